"""A block's own layer of a cache that it is given: what stands there before a call and after it. Knows no transformers.

    slot = slot_of(block, (args, kwargs))       # None: it is given no cache, or its layer there cannot be told
    slot.before, slot.state(), slot.others_changed(), slot.fill(state)

A cache is what has a list `layers` and an `update`; a block says by `layer_idx` which of them is its own.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.utils import _pytree as pytree


class Slot:
    """One layer of a cache, as it was when this was made.

    Attributes:
        layer: the cache's object. first: whether it is the cache's first one, which sees the whole cache empty.
        before: the leaves of what it held. tree: how they hang together.
    """

    def __init__(self, cache: Any, index: int) -> None:
        self.layer = cache.layers[index]
        self.first = index == 0
        self.before, self.tree = pytree.tree_flatten(dict(vars(self.layer)))
        self._cache = cache
        self._others = self._held_by_others()

    def state(self) -> dict[str, Any]:
        """What it holds now."""
        return dict(vars(self.layer))

    def fill(self, state: dict[str, Any]) -> None:
        """Has it hold that."""
        vars(self.layer).update(state)

    def others_changed(self) -> bool:
        """Whether anything but this layer of the cache is another than it was."""
        return self._others != self._held_by_others()

    def _held_by_others(self) -> list[int]:
        rest = {name: value for name, value in vars(self._cache).items() if name != "layers"}
        held: list[Any] = [rest, *(vars(layer) for layer in self._cache.layers if layer is not self.layer)]
        return [id(leaf) for leaf in pytree.tree_leaves(held)]


def is_cache(value: Any) -> bool:
    return isinstance(getattr(value, "layers", None), list) and hasattr(value, "update")


def slot_of(block: nn.Module, arguments: Any) -> Slot | None:
    """The layer of the one cache among `arguments` that is the block's own."""
    caches = {id(leaf): leaf for leaf in pytree.tree_leaves(arguments) if is_cache(leaf)}
    said = {vars(module)["layer_idx"] for module in block.modules() if isinstance(vars(module).get("layer_idx"), int)}
    if len(caches) != 1 or len(said) != 1:
        return None
    (cache,), (index,) = caches.values(), said
    return Slot(cache, index) if 0 <= index < len(cache.layers) else None
