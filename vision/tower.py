"""The vision tower of any image-text-to-text model, found by structure, and the one call that makes image features.

Knows no architecture by name and no language model: the model's own forward is run up to the point where it asks for
image features (`Tower.call_for`), the tower alone is run (`Tower.run`), and the model's own forward is later handed
those features in place of running the tower (`Tower.replay`), so that merging, positions and cross attention stay its.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from mmswap.errors import PartsNotFound
from mmswap.swap.between import between
from mmswap.swap.intercept import intercepted
from mmswap.vision.structure import (
    called_parts,
    first_layers,
    goes_past,
    innermost_with,
    is_pixels,
    modules_around,
    pixel_encoder,
)

METHOD = "get_image_features"


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments with which the model asks for image features; `entry` names the callable that it asks."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    entry: str = METHOD

    def mapped(self, change: Any) -> Call:
        """The same call with `change(tensor)` in place of every tensor: another device, or fake tensors."""
        args, kwargs = pytree.tree_map_only(Tensor, change, (self.args, self.kwargs))
        return Call(args, kwargs, self.entry)


class _Asked(BaseException):
    """Stops the model's forward where it asks for features (or where the decoder starts without having asked)."""

    def __init__(self, call: Call | None) -> None:
        super().__init__()
        self.call = call


class Tower:
    """Everything that turns pixels into image features. Made by `find_tower`; holds no tensors of its own.

    Attributes:
        modules: (qualified name, module) of all that must be resident to encode: tower, projector, resampler...
        entry: name of the callable that the model asks: `get_image_features`, or the encoder's `forward`.
    """

    def __init__(
        self, model: nn.Module, entries: Mapping[str, tuple[nn.Module, str]], modules: tuple[tuple[str, nn.Module], ...]
    ) -> None:
        self.modules = modules
        self.entry = next(iter(entries))
        self._model = model
        self._entries = dict(entries)

    @property
    def entries(self) -> tuple[tuple[nn.Module, str], ...]:
        """Module and method of every callable that the model may ask."""
        return tuple(self._entries.values())

    @torch.no_grad()
    def call_for(self, inputs: Mapping[str, Any]) -> Call:
        """The call that the model makes for these inputs, found without running the tower.

        Args:
            inputs: what the processor gave: `input_ids [1, T]`, `pixel_values`, grids, masks.

        Raises:
            PartsNotFound: the model's forward reached its language model without asking for image features.
        """
        given = accepted(self._model, inputs)
        with ExitStack() as stack:
            for entry, (owner, name) in self._entries.items():
                stack.enter_context(intercepted(owner, name, _asker(entry)))
            for layer in first_layers(self._model):
                stack.enter_context(intercepted(layer, "forward", _asker(None)))
            try:
                self._model(**given)
            except _Asked as stop:
                if stop.call is not None:
                    self.entry = stop.call.entry
                    return stop.call
        raise PartsNotFound(
            f"{type(self._model).__name__} never asked for image features (by {', '.join(self._entries)}) "
            f"when it was given {', '.join(sorted(given))}."
        )

    def run(self, call: Call, look: Callable[[], None] | None = None) -> Any:
        """The image features of `call`: whatever the model's own code returns there (tensors in any nesting).

        Args:
            look: called before each of the tower's layers; what it raises ends the run.
        """
        with nullcontext() if look is None else between(self._layers(), look):
            return self._run(call)

    def _layers(self) -> list[nn.Module]:
        """What stands in lists within the tower; without any, its parts."""
        parts = {part: None for _, module in self.modules for part in module.modules()}
        listed = [layer for part in parts if isinstance(part, nn.ModuleList) for layer in part]
        return list(dict.fromkeys(listed)) or [module for _, module in self.modules]

    @torch.no_grad()
    def _run(self, call: Call) -> Any:
        owner, name = self._entries[call.entry]
        ask = owner if name == "forward" else getattr(owner, name)
        try:
            return ask(*call.args, **call.kwargs)
        except RuntimeError as error:  # not every tower casts what it is given
            if "type" not in str(error) or (dtype := _dtype_of(self.modules[0][1])) == torch.float32:
                raise
        cast = call.mapped(lambda tensor: tensor.to(dtype) if tensor.dtype == torch.float32 else tensor)
        return ask(*cast.args, **cast.kwargs)

    @contextmanager
    def replay(self, features: Any) -> Iterator[None]:
        """Inside the block the model finds `features` where it would have run the tower.

        They stand for the pictures of one prompt: asked again with other pixels, the tower runs as ever.
        """
        owner, name = self._entries[self.entry]
        original = getattr(owner, name)
        pixels: list[Any] = []

        def give(*args: Any, **kwargs: Any) -> Any:
            asked = _first_tensor((args, kwargs))
            if pixels and not _same(asked, pixels[0]):
                return original(*args, **kwargs)
            pixels[:] = [asked]
            return copy.copy(features)

        with intercepted(owner, name, give):
            yield


def find_tower(model: nn.Module) -> Tower:
    """Find the vision tower of `model` by structure (a twin on meta or with fake tensors will do as well).

    The callable is the innermost `get_image_features`; a model without one is asked at the `forward` of its image
    encoder: the outermost module beside the language model whose forward takes pixels.

    Raises:
        PartsNotFound: there is neither; the message says what was looked for.
    """
    names = {module: name for name, module in model.named_modules()}
    owner = innermost_with(model, METHOD)
    encoder = pixel_encoder(model, owner)
    entries: dict[str, tuple[nn.Module, str]] = {}
    if owner is not None and not (encoder is not None and goes_past(type(model), METHOD)):
        entries[METHOD] = (owner, METHOD)
    if encoder is not None:
        entries[f"{names[encoder]}.forward"] = (encoder, "forward")
    if not entries:
        raise PartsNotFound(
            f"{type(model).__name__} has no vision tower: no module offers {METHOD}(), and none beside the language "
            "model takes pixel values."
        )
    if owner is not None:
        parts = called_parts(model, owner, METHOD)
    else:
        assert encoder is not None
        parts = modules_around(model, names, encoder)
    if not parts:
        raise PartsNotFound(
            f"{type(model).__name__} answers {METHOD}(), but no module beside its language model does it."
        )
    modules = tuple((names[part], part) for part in parts)
    return Tower(model, entries, modules)


def run_tower(model: nn.Module, call: Call) -> Any:
    """The features of `call` on `model`: the live one, or a twin of it."""
    return find_tower(model).run(call)


def accepted(model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `inputs` that the model's forward takes; all, where it hands pictures on without naming them."""
    known = inspect.signature(model.forward).parameters
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    unnamed = open_ended and not any(is_pixels(name) for name in known)
    return {name: value for name, value in inputs.items() if name in known or unnamed or len(known) <= 2}


def _asker(entry: str | None) -> Any:
    def ask(*args: Any, **kwargs: Any) -> NoReturn:
        raise _Asked(None if entry is None else Call(args, kwargs, entry))

    return ask


def _dtype_of(module: nn.Module) -> torch.dtype:
    return next((weight.dtype for weight in module.parameters() if weight.is_floating_point()), torch.float32)


def _first_tensor(tree: Any) -> Tensor | None:
    floats = (leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor) and leaf.is_floating_point())
    return next(floats, None)


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None or one is other:
        return one is other
    return one.shape == other.shape and one.device == other.device and torch.equal(one, other)
