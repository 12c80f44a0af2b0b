"""Round to nearest: any plain weight in 4 bits, at load, without data. Knows one matrix; which ones is the loader's.

`quantise(weight)` gives the packed weight and how far it is from the plain one (SQNR in dB; 20 is usual at group 128).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from mmswap.errors import ModelError, OptionError
from mmswap.llm.quant.layout import MIDDLE, Packed4, pack

_PIECE = 1 << 18  # weights that are looked at in float32 at a time
_SMALLEST, _LARGEST = 2.0**-17, 65504.0  # scales that float16 holds with 8 bits or more
_NOTHING = 2.0**-126  # what float32 and bfloat16 hold in full


@dataclass(frozen=True, slots=True, eq=False)
class Rounded:
    """A weight that was rounded.

    Attributes:
        packed: the weight.
        signal: sum of the squares of the plain weight.
        noise: sum of the squares of what rounding changed. Sums of several weights give the SQNR of all.
    """

    packed: Packed4
    signal: float
    noise: float

    @property
    def sqnr_db(self) -> float:
        """10 log10(signal / noise) in dB; infinite if nothing changed."""
        return sqnr_db(self.signal, self.noise)


def sqnr_db(signal: float, noise: float) -> float:
    """Signal to quantisation noise in dB; infinite without noise."""
    return math.inf if noise == 0 else 10 * math.log10(signal / noise) if signal else -math.inf


def quantise(weight: Tensor, *, group_size: int = 128, symmetric: bool = False) -> Rounded:
    """The weight [out, in] in 4 bits.

    Each group of `group_size` columns (-1: the row) gets the smallest step at which none of its values is cut:
    asymmetric with a zero point between its least and its greatest, symmetric with 8. Scales are float16, or bfloat16
    for a weight with scales that float16 would lose. Codes are those of the scale as it is stored.

    Raises:
        OptionError: a group size of 0 or below -1.
        ModelError: a weight that is no matrix of floats, or not finite.
    """
    if group_size == 0 or group_size < -1:
        raise OptionError(f"a group of {group_size} weights is none: use -1 for whole rows, or 1 or more.")
    if weight.dim() != 2 or weight.numel() == 0 or not weight.is_floating_point():
        raise ModelError(
            f"a weight of {weight.dtype} {list(weight.shape)} cannot be quantised: it must be a float matrix."
        )
    columns = weight.shape[1]
    group = columns if group_size == -1 else min(group_size, columns)
    pieces = torch.split(weight, max(1, _PIECE // columns))
    rounded = _rounded(pieces, group, symmetric, torch.float16) or _rounded(pieces, group, symmetric, torch.bfloat16)
    assert rounded is not None
    codes, scales, zeros, signal, noise = zip(*rounded)
    packed = pack(torch.cat(codes), torch.cat(scales), torch.cat(zeros), group_size=group)
    return Rounded(packed, math.fsum(signal), math.fsum(noise))


_Piece = tuple[Tensor, Tensor, Tensor, float, float]


def _rounded(pieces: Sequence[Tensor], group: int, symmetric: bool, dtype: torch.dtype) -> list[_Piece] | None:
    """Codes, scales in `dtype`, zeros, signal and noise of each piece; None where float16 would lose a scale."""
    made = []
    for piece in pieces:
        grouped = _grouped(piece, group)
        step, zeros = _steps(grouped, symmetric)
        if dtype == torch.float16 and not _SMALLEST <= float(step.min()) <= float(step.max()) <= _LARGEST:
            return None
        scales = step.to(dtype)
        made.append(_codes(grouped, scales, zeros, piece.shape[1]))
    return made


def _grouped(piece: Tensor, group: int) -> Tensor:
    """float32 [rows, groups, group]; the last group is filled with 0, which is always among the values."""
    columns = piece.shape[1]
    return functional.pad(piece.float(), (0, -columns % group)).reshape(len(piece), -(-columns // group), group)


def _steps(grouped: Tensor, symmetric: bool) -> tuple[Tensor, Tensor]:
    """(scales float32 [rows, groups], zeros uint8 [rows, groups])."""
    low, high = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
    if not bool(torch.isfinite(high - low).all()):
        raise ModelError("a weight that is not finite cannot be quantised: download the model again.")
    step = torch.maximum(-low / MIDDLE, high / (MIDDLE - 1)) if symmetric else (high - low) / 15
    step = torch.where(step >= _NOTHING, step, 1.0)  # a group of nothing but zeros: any step is right
    zeros = torch.full_like(step, MIDDLE) if symmetric else (-low / step).round().clamp(0, 15)
    return step, zeros.to(torch.uint8)


def _codes(grouped: Tensor, scales: Tensor, zeros: Tensor, columns: int) -> _Piece:
    scale, zero = scales.float().unsqueeze(-1), zeros.unsqueeze(-1).float()
    codes = (grouped / scale).add_(zero).round_().clamp_(0, 15)
    stored = codes.to(torch.uint8).flatten(1)[:, :columns]
    signal = _squares(grouped)
    return stored, scales, zeros, signal, _squares(codes.sub_(zero).mul_(scale).sub_(grouped))


def _squares(values: Tensor) -> float:
    flat = values.reshape(-1)
    return float(torch.dot(flat, flat))
