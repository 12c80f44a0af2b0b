"""Which weights of a model `--quantize` packs: those of the decoder's linear layers and of its experts. Knows shapes.

    for one in packable(parts):  one.name, one.rows, one.columns

Routers and gates stay as they are: they are a thousandth of the bytes, and decide what everything else computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from mmswap.llm.parts import Parts

FEWEST_ROWS = 16
"""Below that a linear layer is a gate."""
STACKED = ("gate_up_proj", "up_proj", "down_proj")
"""What transformers calls the weights of all experts of a layer."""


@dataclass(frozen=True, slots=True, eq=False)
class Packable:
    """A weight that can be packed.

    Attributes:
        name: the parameter's, from the model's root. weight: the parameter.
        experts: how many matrices it holds, 0 for a plain one.
        rows, columns: outputs of all experts together, and inputs.
        transposed: inputs stand before outputs.
    """

    name: str
    weight: Tensor
    experts: int
    rows: int
    columns: int
    transposed: bool = False


def packable(parts: Parts, *, head: bool = False) -> Iterator[Packable]:
    """Every weight to pack, in order of use; `head` also that of an output head that is not tied."""
    for layer_name, layer in parts.layers:
        routers = set(_routers(layer))
        for name, module in layer.named_modules(prefix=layer_name):
            if computes_linearly(module) and module not in routers and module.out_features >= FEWEST_ROWS:
                yield _plain(f"{name}.weight", module)
            for attribute in STACKED:
                weight = module._parameters.get(attribute)
                if weight is not None and weight.ndim == 3:
                    yield _stacked(f"{name}.{attribute}", module, weight)
    if head and not parts.tied and computes_linearly(parts.head):
        yield _plain(f"{parts.head_name}.weight", parts.head)


def tied_head(parts: Parts) -> Iterator[Packable]:
    """The head that shares the embedding's weight, as a weight of its own: none if it does not."""
    if parts.tied and computes_linearly(parts.head):
        yield _plain(f"{parts.head_name}.weight", parts.head)


def computes_linearly(module: nn.Module) -> bool:
    """Whether a module is nothing but an `nn.Linear`."""
    return isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward


def is_transposed(module: nn.Module, weight: Tensor, attribute: str) -> bool:
    """Whether a stack of experts holds [E, in, out]: as its class says, else by the width that its parts share."""
    said = getattr(module, "is_transposed", None)
    if said is not None:
        return bool(said)
    down = module._parameters.get("down_proj")
    if down is None or attribute not in module._parameters:
        return False
    up = next((held for held in map(module._parameters.get, STACKED[:2]) if held is not None), None)
    # the model's width: last of the way down and first of the way up where inputs stand first
    return up is not None and up.shape[1] == down.shape[2] and up.shape[2] != down.shape[1]


def _plain(name: str, module: nn.Module) -> Packable:
    weight = module.weight
    assert isinstance(weight, Tensor)
    return Packable(name, weight, 0, weight.shape[0], weight.shape[1])


def _stacked(name: str, module: nn.Module, weight: Tensor) -> Packable:
    transposed = is_transposed(module, weight, name.rpartition(".")[2])
    experts, first, last = weight.shape
    rows, columns = (last, first) if transposed else (first, last)
    return Packable(name, weight, experts, experts * rows, columns, transposed)


def _routers(layer: nn.Module) -> Iterator[nn.Module]:
    """Linear layers beside a stack of experts that give one number for each of them."""
    for module in layer.modules():
        for child in module.children():
            counts = {weight.shape[0] for weight in map(child._parameters.get, STACKED) if weight is not None}
            if counts:
                yield from (
                    one for one in module.modules() if isinstance(one, nn.Linear) and one.out_features in counts
                )
