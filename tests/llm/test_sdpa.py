"""Attention kernels of the prompt: what is wrong or raises is left out, and what is left is used."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend

from mmswap.llm import sdpa
from mmswap.llm.sdpa import choose

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(9, 3, 64), (8, 8, 80), (3, 1, 40)])
def test_this_processors_flash_attention_passes(dtype: torch.dtype, heads: int, kv_heads: int, width: int) -> None:
    kernels = choose(CPU, dtype, heads=heads, kv_heads=kv_heads, width=width)
    assert kernels.names == ("flash",)
    assert dict(kernels.refused)["cudnn"] == "it does not take these shapes here"
    assert kernels.describe().startswith("Attention of the prompt: flash, math, fastest first; cudnn is left out")


def test_a_kernel_that_is_wrong_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    right = functional.scaled_dot_product_attention

    def wrong(q: torch.Tensor, *args: object, **options: object) -> torch.Tensor:
        options["is_causal"] = False  # as if the kernel looked ahead
        return right(q, *args, **options)

    monkeypatch.setattr(sdpa.functional, "scaled_dot_product_attention", wrong)
    kernels = choose(CPU, torch.float32, heads=2, kv_heads=2, width=16)
    assert kernels.names == ()
    assert dict(kernels.refused)["flash"].startswith("its numbers are off by ")


def test_only_what_passed_is_used() -> None:
    with sdpa.Kernels(("flash",)).applied():
        assert torch._C._get_flash_sdp_enabled()
        assert not torch._C._get_mem_efficient_sdp_enabled()
    with sdpa.Kernels(()).applied():
        assert not torch._C._get_flash_sdp_enabled()
        assert torch._C._get_math_sdp_enabled()
    assert SDPBackend.MATH not in sdpa._FUSED.values()
