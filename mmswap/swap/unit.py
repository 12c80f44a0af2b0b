"""A unit: modules whose weights are given up and brought back whole, and where each tensor lies in the unit's slab.

`survey(layers, root)` reads modules and gives units; `Unit.adopt(slab)` moves their bytes in and binds the tensors to
views. Knows tensors and bytes, no card: who owns the slab, and when it is there, is not its business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from mmswap.errors import WindowMisuse
from mmswap.swap.layout import Span, bytes_around, rest_of, spans_of

Layer = nn.Module | tuple[str, nn.Module]


@dataclass(slots=True, eq=False)
class Slot:
    """One tensor of a unit: its span in the slab, where modules keep it, and what it is bound to while at home."""

    name: str
    tensor: Tensor
    span: Span
    shift: int  # bytes from the span's begin to the tensor's first element
    homes: tuple[tuple[dict[str, Tensor | None], str], ...]
    view: Tensor | None = None
    hole: Tensor | None = None

    def in_place(self) -> bool:
        """Whether modules still hold this very tensor, and it still points into the slab."""
        kept = all(store.get(key) is self.tensor for store, key in self.homes)
        return kept and self.view is not None and self.tensor.data_ptr() == self.view.data_ptr()


@dataclass(slots=True, eq=False)
class Unit:
    """A thing that is evicted whole: a decoder layer, an output head.

    Attributes:
        name: how plans and reports call it.
        modules: the modules whose forward needs it.
        nbytes: bytes of its slab: all that evicting it gives, and all that restoring it moves.
        left_out: tensors of its modules that stay where they are, with the reason.
        missing: True from the moment at which its bytes are given up until they are back.
    """

    name: str
    modules: tuple[nn.Module, ...]
    slots: tuple[Slot, ...]
    nbytes: int
    left_out: tuple[str, ...] = ()
    missing: bool = field(default=False)

    def gather(self, slab: Tensor) -> None:
        """Copies the unit's bytes from where its tensors were found into `slab` (uint8 [nbytes])."""
        for slot in {id(slot.span): slot for slot in self.slots}.values():
            source = bytes_around(slot.tensor, slot.shift, slot.span.nbytes)
            slab.narrow(0, slot.span.offset, slot.span.nbytes).copy_(source)

    def settle_in(self, slab: Tensor) -> None:
        """Binds the unit's tensors to views of `slab`, which holds its bytes."""
        for slot in self.slots:
            with torch.inference_mode(slot.tensor.is_inference()):  # `.data =` cannot turn one kind into the other
                slot.view = _view(slot, slab)
                slot.hole = torch.empty(0, dtype=slot.tensor.dtype, device=slab.device)
        self.bind()

    def bind(self) -> None:
        """Points the tensors at the slab. `.data =` keeps every Parameter object, so ties and optimisers survive."""
        for slot in self.slots:
            assert slot.view is not None
            slot.tensor.data = slot.view

    def unbind(self) -> None:
        """Points the tensors at nothing, so that a use while the slab is lent fails by its shape."""
        for slot in self.slots:
            assert slot.hole is not None
            slot.tensor.data = slot.hole

    def check(self) -> None:
        """Raises `WindowMisuse` if somebody has put other tensors into the modules since the unit was made."""
        for slot in self.slots:
            if not slot.in_place():
                raise WindowMisuse(
                    f"{self.name}: {slot.name} was replaced or moved since the pool was made: make a new SwapPool."
                )

    def versions(self) -> tuple[int, ...]:
        """Changes when a weight is written in place, so that a stale mirror is noticed."""
        return tuple(-1 if slot.tensor.is_inference() else slot.tensor._version for slot in self.slots)

    def owners(self) -> tuple[nn.Module, ...]:
        """The unit's modules and those inside that hold its tensors themselves: whose forward must wait for it."""
        stores = {id(store) for slot in self.slots for store, _ in slot.homes}
        found = {id(module): module for module in self.modules}
        for top in self.modules:
            for module in top.modules():
                if id(module._parameters) in stores or id(module._buffers) in stores:
                    found[id(module)] = module
        return tuple(found.values())


def survey(layers: Sequence[Layer], root: nn.Module | None = None) -> tuple[Unit, ...]:
    """Units in order of use.

    Tensors that two units share, or that `root` also uses outside of the units (a head tied to the embedding), are left
    out: they stay where they are. Tied tensors within a unit lie in the slab once.

    Raises:
        ValueError: two units of one name, or a module in two units.
        WindowMisuse: a tensor without bytes (on `meta`).
    """
    named = [(f"unit.{index}", layer) if isinstance(layer, nn.Module) else layer for index, layer in enumerate(layers)]
    names = [name for name, _ in named]
    if len(set(names)) != len(names):
        raise ValueError(f"two units have the same name: {names}")
    if len({id(module) for _, module in named}) != len(named):
        raise ValueError("a module was given twice: every layer can be one unit only")
    tensors = [list(_tensors(module)) for _, module in named]
    outside = list(rest_of(root, {id(t) for _, module in named for t in module.modules()})) if root is not None else []
    return tuple(
        _unit(name, module, held, placed, nbytes)
        for (name, module), held, (placed, nbytes) in zip(
            named, tensors, spans_of([[t for _, t, _ in held] for held in tensors], outside)
        )
    )


_Held = tuple[str, Tensor, tuple[tuple[dict[str, Tensor | None], str], ...]]


def _tensors(top: nn.Module) -> Iterator[_Held]:
    """Each distinct parameter and buffer below `top`: dotted name, tensor, and every dict entry that holds it."""
    found: dict[int, tuple[str, Tensor, list[tuple[dict[str, Tensor | None], str]]]] = {}
    for path, module in top.named_modules():
        for store in (module._parameters, module._buffers):
            for key, tensor in store.items():
                if tensor is not None:
                    name = f"{path}.{key}" if path else key
                    found.setdefault(id(tensor), (name, tensor, []))[2].append((store, key))
    for name, tensor, homes in found.values():
        if tensor.is_meta:
            raise WindowMisuse(f"{name} is on meta and has no bytes: load the weights before making a SwapPool.")
        yield name, tensor, tuple(homes)


def _unit(
    name: str, module: nn.Module, held: list[_Held], placed: dict[int, tuple[Span, int] | str], nbytes: int
) -> Unit:
    slots, left_out = [], []
    for label, tensor, homes in held:
        place = placed[id(tensor)]
        if isinstance(place, str):
            left_out.append(f"{label}: {place}")
        else:
            slots.append(Slot(label, tensor, place[0], place[1], homes))
    return Unit(name, (module,), tuple(slots), nbytes, tuple(left_out))


def _view(slot: Slot, slab: Tensor) -> Tensor:
    begin = slab.storage_offset() + slot.span.offset + slot.shift
    tensor = slot.tensor
    return torch.empty(0, dtype=tensor.dtype, device=slab.device).set_(
        slab.untyped_storage(), begin // tensor.element_size(), tensor.shape, tensor.stride()
    )
