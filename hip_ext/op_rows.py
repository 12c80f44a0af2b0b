"""Ops that go over rows: silu_and_mul, gelu_and_mul, rms_norm, fused_add_rms_norm. Meaning: `docs/ops.md`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mmswap.hip_ext.interface import STRUCTS
from mmswap.hip_ext.launching import address, code, crowded, oversized, rows_of, start

_ACT, _NORM = STRUCTS["mms_act"], STRUCTS["mms_norm"]
_GELU = {"none": 1, "tanh": 2}


def refuses_act(gate_up: Tensor, approximate: str = "none") -> str | None:
    """Why not; None when `silu` or `gelu` is right."""
    return _too_many(gate_up)


def refuses_norm(x: Tensor, *_: Any) -> str | None:
    """Why not; None when `norm` or `fused_norm` is right."""
    return _too_many(x)


def silu(gate_up: Tensor) -> Tensor:
    """[..., 2I] -> [..., I]."""
    return _act("mms_silu_and_mul", gate_up, 0)


def gelu(gate_up: Tensor, approximate: str) -> Tensor:
    """[..., 2I] -> [..., I]."""
    return _act("mms_gelu_and_mul", gate_up, _GELU[approximate])


def norm(x: Tensor, weight: Tensor | None, eps: float, offset: float, late: bool) -> Tensor:
    """[..., H] -> [..., H]."""
    out = x.new_empty(x.shape)
    _norm("mms_rms_norm", x, None, weight, out, None, eps, offset, late)
    return out


def fused_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, offset: float, late: bool
) -> tuple[Tensor, Tensor]:
    """(normed sum, sum), both like x."""
    out, total = x.new_empty(x.shape), x.new_empty(x.shape)
    _norm("mms_fused_add_rms_norm", x, residual, weight, out, total, eps, offset, late)
    return out, total


def _act(launcher: str, gate_up: Tensor, act: int) -> Tensor:
    features = gate_up.shape[-1] // 2
    out = gate_up.new_empty((*gate_up.shape[:-1], features))
    if out.numel():
        rows = rows_of(gate_up)
        arguments = _ACT(
            gate_up=rows.data_ptr(), out=out.data_ptr(), stride=rows.stride(0), rows=rows.shape[0], features=features,
            dtype=code(gate_up), act=act,
        )  # fmt: skip
        start(launcher, arguments, gate_up.device)
    return out


def _norm(
    launcher: str,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    out: Tensor,
    total: Tensor | None,
    eps: float,
    offset: float,
    late: bool,
) -> None:
    if not x.numel():
        return
    rows = rows_of(x)
    added = None if residual is None else rows_of(residual)
    weight = None if weight is None else weight.contiguous()
    arguments = _NORM(
        x=rows.data_ptr(), residual=address(added), weight=address(weight), out=out.data_ptr(), total=address(total),
        x_stride=rows.stride(0), residual_stride=0 if added is None else added.stride(0), rows=rows.shape[0],
        features=rows.shape[1], dtype=code(x), weight_dtype=code(weight), late=late, eps=eps, offset=offset,
    )  # fmt: skip
    start(launcher, arguments, x.device)


def _too_many(x: Tensor) -> str | None:
    return crowded(x.numel() // max(x.shape[-1], 1)) or oversized(x)
