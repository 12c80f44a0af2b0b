"""Several linear layers that work on the same input, as one: each stays in its place and gives its rows of the result.

`parts = joined([q_proj, k_proj, v_proj])` gives modules for the three places. A small product costs its call more than
its numbers. Knows packed layers of the processor, no model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from mmswap.llm.quant import QuantLinear, merged


class Shared:
    """One layer for all parts; what it gave is kept until every part has taken its rows."""

    def __init__(self, layer: QuantLinear, sizes: Sequence[int]) -> None:
        self.layer, self.sizes = layer, list(sizes)
        self._given: Tensor | None = None
        self._result: Tensor | None = None
        self._left = 0

    def of(self, x: Tensor) -> Tensor:
        """The result for `x`: computed at the first part's call, found again at the others'."""
        if self._result is None or x is not self._given:
            self._given, self._result, self._left = x, self.layer(x), len(self.sizes)
        result = self._result
        assert result is not None
        self._left -= 1
        if self._left == 0:
            self._given = self._result = None
        return result


class Part(nn.Module):
    """Some rows of a shared layer, in the place of the layer that they were.

    Attributes:
        shared: the layer and its other parts. start: of its rows.
    """

    def __init__(self, shared: Shared, start: int, size: int, *, holds: bool) -> None:
        super().__init__()
        self.shared, self.start = shared, start
        self.in_features, self.out_features = shared.layer.in_features, size
        if holds:  # the tree has it once
            self.layer = shared.layer

    @property
    def bias(self) -> Tensor | None:
        """Its rows of the bias."""
        whole = self.shared.layer.bias
        return None if whole is None else whole[self.start : self.start + self.out_features]

    @property
    def weight(self) -> Tensor:
        """Its rows of the weight, unpacked."""
        return self.shared.layer.weight[self.start : self.start + self.out_features]

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return self.shared.of(x).narrow(-1, self.start, self.out_features)


def joined(layers: Sequence[nn.Module]) -> list[Part] | None:
    """Modules that take the layers' places; None where they cannot be one, or would give other numbers."""
    packed = [layer for layer in layers if isinstance(layer, QuantLinear)]
    whole = merged(packed) if len(packed) == len(layers) > 1 else None
    if whole is None or not _same(whole, packed):
        return None
    sizes = [layer.out_features for layer in packed]
    shared = Shared(whole, sizes)
    starts = [0, *accumulate(sizes)]
    return [Part(shared, start, size, holds=not start) for start, size in zip(starts, sizes)]


def shared_by(modules: Sequence[nn.Module]) -> Shared | None:
    """The one layer whose parts these are, all of them and in its order."""
    parts = [module for module in modules if isinstance(module, Part)]
    if len(parts) != len(modules) or any(part.shared is not parts[0].shared for part in parts):
        return None
    starts = [part.start for part in parts]
    return parts[0].shared if starts == sorted(starts) and len(parts) == len(parts[0].shared.sizes) else None


def split(shared: Shared, sample: Tensor) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """All parts at once."""
    run, sizes = shared.layer.bound(sample), shared.sizes
    return lambda x: run(x).split_with_sizes(sizes, -1)  # `torch.split` is the same behind Python of its own


def _same(whole: QuantLinear, layers: Sequence[QuantLinear]) -> bool:
    x = torch.randn(1, whole.in_features, generator=torch.Generator().manual_seed(0)).to(whole.device, whole.dtype)
    return torch.equal(whole(x), torch.cat([layer(x) for layer in layers], -1))
