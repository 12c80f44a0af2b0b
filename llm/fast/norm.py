"""Norms by what they compute: a module whose numbers are those of `rms_norm` is called as that op.

`norm_of(module, sample)` tries the variants of the op on the sample. Knows no class by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmswap.llm.fast.calls import bind

_VARIANTS = ((0.0, True), (0.0, False), (1.0, False), (1.0, True))
_EPSILONS = ("variance_epsilon", "eps", "epsilon")
TIGHT = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Largest relative difference of two right results: two units in the last place."""


@dataclass(slots=True, eq=False)
class Norm:
    """`norm(x)` -> x normed; `joined(y, x)` -> (norm(x + y), x + y). Weights are read at every call."""

    module: nn.Module
    run: Callable[..., Tensor] | None = None
    join: Callable[..., tuple[Tensor, Tensor]] | None = None
    eps: float = 0.0
    offset: float = 0.0
    late: bool = True

    def __call__(self, x: Tensor) -> Tensor:
        if self.run is None:
            return self.module(x)  # type: ignore[no-any-return]
        return self.run(x, self.module._parameters["weight"], self.eps, self.offset, self.late)

    def joined(self, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.join is None:
            x = x + y
            return self(x), x
        return self.join(y, x, self.module._parameters["weight"], self.eps, self.offset, self.late)


def norm_of(module: nn.Module, sample: Tensor) -> Norm:
    """The norm as an op, or as the module that it is where no variant of the op gives its numbers.

    Args:
        sample: what the module was seen to work on; only its shape, dtype and device matter.
    """
    weight, eps = getattr(module, "weight", None), epsilon(module)
    if not isinstance(weight, nn.Parameter) or eps is None or sample.dtype not in TIGHT:
        return Norm(module)
    x = torch.randn(sample.shape, generator=torch.Generator().manual_seed(0)).to(sample.device, sample.dtype) * 2 + 0.5
    wanted = module(x)
    for offset, late in _VARIANTS:
        run = bind("rms_norm", x, weight, eps, offset, late)
        if close(run(x, weight, eps, offset, late), wanted):
            join = bind("fused_add_rms_norm", x, x, weight, eps, offset, late)
            return Norm(module, run, join, eps, offset, late)
    return Norm(module)


def epsilon(module: nn.Module) -> float | None:
    """What the module adds under its root, if it says."""
    found: Any = next((getattr(module, name) for name in _EPSILONS if hasattr(module, name)), None)
    return float(found) if isinstance(found, (int, float)) else None


def close(given: Any, wanted: Any, factor: float = 1.0) -> bool:
    """Whether two results differ by rounding only: relative to the largest number among those wanted."""
    if not isinstance(given, Tensor) or not isinstance(wanted, Tensor) or given.shape != wanted.shape:
        return False
    scale = wanted.abs().max().float().clamp(min=1e-30)
    worst = (given.float() - wanted.float()).abs().max() / scale
    return bool(worst <= factor * TIGHT.get(wanted.dtype, 0.0))
