"""The op table's kernels in Triton, for RDNA3, RDNA4 and NVIDIA from sm_80 on. Importing it needs no Triton.

    from mmswap.llm.ops import triton;  triton.available(torch.device("cuda"))      # None, or why not

One kernel family a file. `docs/kernels.md`: what was compiled and checked, and that no card ran any of it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from mmswap.llm.ops.backends import Implementation
from mmswap.llm.ops.triton.arch import refusal

NAME = "triton"
_HOMES = {
    "w4a16": ("w4_linear", "run", "refuses"),
    "expert_linear": ("expert_gemv", "run", "refuses"),
    "linear": ("gemv", "run", "refuses"),
    "rms_norm": ("norm", "run", "refuses"),
    "fused_add_rms_norm": ("norm", "run_fused", "refuses_fused"),
    "silu_and_mul": ("activation", "run_silu", "refuses_silu"),
    "gelu_and_mul": ("activation", "run_gelu", "refuses_gelu"),
    "rotary": ("rotary", "run", "refuses"),
    "kv_store": ("kv_store", "run", "refuses"),
    "decode_attention": ("decode_attention", "run", "refuses"),
}


def available(device: torch.device) -> str | None:
    """Why Triton does not compute on `device`; None when it does. Never raises."""
    return refusal(device)


def _late(home: str, name: str) -> Callable[..., Any]:
    """A function of one of the kernels' files, which import Triton: they are imported at the first call."""
    found: list[Callable[..., Any]] = []

    def call(*arguments: Any) -> Any:
        if not found:
            found.append(getattr(import_module(f"{__name__}.{home}"), name))
        return found[0](*arguments)

    return call


IMPLEMENTATIONS = {
    op: Implementation(_late(home, run), _late(home, refuses)) for op, (home, run, refuses) in _HOMES.items()
}
