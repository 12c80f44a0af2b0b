"""What torch and the checks say of the ops: schemas, fakes, meta tensors, and sentences for wrong arguments."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from cases import DTYPES, HERE, draw
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck

from mmswap.llm.ops import OPS, using
from mmswap.llm.ops.backends import ON_HOST

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def _entry(op: str) -> Any:
    return getattr(torch.ops.mmswap, op).default


def _drawn(op: str, name: str, seed: int) -> tuple[Any, ...]:
    """torch's own checks cannot compare float8."""
    for number in range(100):
        arguments = draw(op, DTYPES[seed % 3], Random(f"{name} {op} {seed} {number}"))
        if all(a.dtype not in FLOAT8 for a in arguments if isinstance(a, Tensor)):
            return arguments
    raise AssertionError


@pytest.mark.parametrize("backend", ON_HOST)
@pytest.mark.parametrize("op", HERE)
def test_torch_finds_nothing_wrong(op: str, backend: str) -> None:
    with using(backend):
        for seed in range(2):
            opcheck(_entry(op), _drawn(op, "opcheck", seed))


@pytest.mark.parametrize("op", HERE)
def test_fake_and_meta_tensors_have_the_shapes_of_real_ones(op: str) -> None:
    for seed in range(8):
        arguments = draw(op, DTYPES[seed % 3], Random(f"fake {op} {seed}"))
        want = _shapes(_entry(op)(*_copies(arguments)))
        assert _shapes(_entry(op)(*(a.to("meta") if isinstance(a, Tensor) else a for a in arguments))) == want
        with FakeTensorMode() as mode:
            fakes = [mode.from_tensor(a) if isinstance(a, Tensor) else a for a in arguments]
            assert _shapes(_entry(op)(*fakes)) == want


def _copies(arguments: tuple[Any, ...]) -> list[Any]:
    return [a.clone() if isinstance(a, Tensor) else a for a in arguments]


def _shapes(result: Any) -> Any:
    results = result if isinstance(result, tuple) else (result,)
    return [None if one is None else (one.shape, one.dtype) for one in results]


def _plain(op: str) -> list[Any]:
    return list(draw(op, torch.float32, Random(f"wrong {op} 3"), views=False))


WRONG = {
    "x is torch.int64": ("rms_norm", 0, lambda x: x.long()),
    "weight has shape": ("rms_norm", 1, lambda _: torch.ones(3)),
    "residual is torch.float16": ("fused_add_rms_norm", 1, lambda r: r.half()),
    "no two halves": ("silu_and_mul", 0, lambda x: torch.randn(2, 7)),
    "gelu knows": ("gelu_and_mul", 1, lambda _: "erf"),
    "x has 9 features": ("w4a16", 0, lambda _: torch.randn(1, 9)),
    "do not hold": ("w4a16", 1, lambda words: torch.cat((words, words), 1)),
    "scales has shape": ("w4a16", 2, lambda scales: scales[:, :0]),
    "zeros is torch.int8": ("w4a16", 3, lambda zeros: zeros.to(torch.int8)),
    "a group of 48": ("int4pack", 6, lambda _: 48),
    "scale_zero is": ("int4pack", 2, lambda sz: sz.half()),
    "weight is torch.float16": ("linear", 1, lambda weight: weight.half()),
    "experts is": ("expert_linear", 1, lambda experts: experts.to(torch.uint8)),
    "cannot turn": ("rotary", 2, lambda cos: cos[..., :1]),
    "k is torch.float16": ("rotary", 1, lambda k: k.half()),
    "start is torch.int64": ("kv_store", 4, lambda start: start.long()),
    "values has shape": ("kv_store", 3, lambda values: values[:, :, :0]),
    "length is": ("decode_attention", 3, lambda length: length.float()),
    "a soft cap of": ("decode_attention", 5, lambda _: -1.0),
    "different devices": ("decode_attention", 3, lambda length: length.to("meta")),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_wrong_arguments_are_told(sentence: str) -> None:
    op, place, spoil = WRONG[sentence]
    if op not in HERE:
        pytest.skip("this processor does not have the op")
    arguments = _plain(op)
    arguments[place] = spoil(arguments[place])
    with pytest.raises(ValueError, match=sentence):
        OPS[op].fake(*arguments)


@pytest.mark.parametrize("kind", [torch.float16, torch.int8])
def test_scales_belong_to_the_kind_of_the_cache(kind: torch.dtype) -> None:
    """A cache of 16 bits with a scale, and codes without one, would be read as other numbers than were stored."""
    cache, scale = torch.zeros(1, 2, 8, 4, dtype=kind), torch.ones(2, 4) if kind == torch.float16 else None
    length = torch.ones(1, dtype=torch.int32)
    with pytest.raises(ValueError, match="scales"):
        _entry("decode_attention")(torch.ones(1, 2, 1, 4), cache, cache, length, 1.0, 0.0, scale, None, None, None)


def test_an_entry_checks_every_new_shape() -> None:
    for width in (8, 8, 6):
        torch.ops.mmswap.rms_norm(torch.ones(1, width), torch.ones(width), 1e-6, 0.0, True)
    with pytest.raises(ValueError, match="weight has shape"):
        torch.ops.mmswap.rms_norm(torch.ones(1, 8), torch.ones(6), 1e-6, 0.0, True)


def test_compiled_code_calls_the_ops() -> None:
    def block(x: Tensor, weight: Tensor) -> Tensor:
        normed, total = torch.ops.mmswap.fused_add_rms_norm(x, x, weight, 1e-6, 0.0, True)
        return torch.ops.mmswap.silu_and_mul(normed) + total[..., :4]

    x, weight = torch.randn(3, 8), torch.randn(8)
    assert torch.equal(torch.compile(block, backend="aot_eager", fullgraph=True)(x, weight), block(x, weight))
