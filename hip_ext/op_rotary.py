"""rotary: queries and keys turn by their angles, sections of a picture's positions included. Meaning: `docs/ops.md`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mmswap.hip_ext.interface import STRUCTS
from mmswap.hip_ext.launching import code, crowded, dense, oversized, start

_ROTARY = STRUCTS["mms_rotary"]
_WAVES = 4  # of a block, a head each
SECTIONS = len(_ROTARY().section)


def refuses(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, sections: Sequence[int]) -> str | None:
    """Why not; None when `run` is right."""
    if len(sections) > SECTIONS:
        return f"{len(sections)} sections: it takes {SECTIONS}"
    if cos.dtype != sin.dtype:
        return "cos and sin differ in dtype"
    return crowded(q.shape[0] * q.shape[2] * (q.shape[1] + k.shape[1]), _WAVES) or oversized(q, k)


def run(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, sections: Sequence[int]) -> tuple[Tensor, Tensor]:
    """(q, k) turned, contiguous; q [B, Hq, T, D], k [B, Hk, T, D], cos and sin [axes,] [B or 1,] T, R."""
    q_out, k_out = q.new_empty(q.shape), k.new_empty(k.shape)
    batch, q_heads, tokens, channels = q.shape
    turned = cos.shape[-1]
    if not turned:
        return q_out.copy_(q), k_out.copy_(k)
    if q.numel() or k.numel():
        q, k, cos, sin = dense(q), dense(k), cos.contiguous(), sin.contiguous()
        arguments = _ROTARY(
            q=q.data_ptr(), k=k.data_ptr(), cos=cos.data_ptr(), sin=sin.data_ptr(),
            q_out=q_out.data_ptr(), k_out=k_out.data_ptr(),
            q_batch=q.stride(0), q_head=q.stride(1), q_token=q.stride(2),
            k_batch=k.stride(0), k_head=k.stride(1), k_token=k.stride(2),
            axis=cos.stride(0) if sections else 0, angle_batch=0 if cos.shape[-3] == 1 else cos.stride(-3),
            angle_token=cos.stride(-2), batch=batch, q_heads=q_heads, k_heads=k.shape[1], tokens=tokens,
            channels=channels, turned=turned, dtype=code(q), angle_dtype=code(cos),
            axes=cos.shape[0] if sections else 1, sections=len(sections),
            section=(*sections, *(0,) * (SECTIONS - len(sections))),
        )  # fmt: skip
        start("mms_rotary_embedding", arguments, q.device)
    return q_out, k_out
