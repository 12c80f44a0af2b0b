"""The vision tower of any image-text-to-text model, found by structure, and the one call that makes image features.

Knows no architecture by name and no language model: the model's own forward is run up to the point where it asks for
image features (`Tower.call_for`), the tower alone is run (`Tower.run`), and the model's own forward is later handed
those features in place of running the tower (`Tower.replay`), so that merging, positions and cross attention stay its.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from mmswap.errors import PartsNotFound
from mmswap.swap.intercept import intercepted

_METHOD = "get_image_features"


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments with which the model asks for image features; `entry` names the callable that it asks."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    entry: str = _METHOD

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

    @torch.no_grad()
    def call_for(self, inputs: Mapping[str, Any]) -> Call:
        """The call that the model makes for these inputs, found without running the tower.

        Args:
            inputs: what the processor gave: `input_ids [1, T]`, `pixel_values`, grids, masks.

        Raises:
            PartsNotFound: the model's forward reached its language model without asking for image features.
        """
        known = inspect.signature(self._model.forward).parameters
        given = {name: value for name, value in inputs.items() if name in known or len(known) <= 2}
        with ExitStack() as stack:
            for entry, (owner, name) in self._entries.items():
                stack.enter_context(intercepted(owner, name, _asker(entry)))
            for layer in _first_layers(self._model):
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

    @torch.no_grad()
    def run(self, call: Call) -> Any:
        """The image features of `call`: whatever the model's own code returns there (tensors in any nesting)."""
        owner, name = self._entries[call.entry]
        return (
            owner(*call.args, **call.kwargs) if name == "forward" else getattr(owner, name)(*call.args, **call.kwargs)
        )

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
    owner = _innermost_with(model, _METHOD)
    encoder = _pixel_encoder(model, owner)
    entries: dict[str, tuple[nn.Module, str]] = {}
    if owner is not None and not (encoder is not None and _goes_past(type(model), _METHOD)):
        entries[_METHOD] = (owner, _METHOD)
    if encoder is not None:
        entries[f"{names[encoder]}.forward"] = (encoder, "forward")
    if not entries:
        raise PartsNotFound(
            f"{type(model).__name__} has no vision tower: no module offers {_METHOD}(), and none beside the language "
            "model takes pixel values."
        )
    if owner is not None:
        parts = _called_parts(model, owner)
    else:
        assert encoder is not None
        parts = _around(model, names, encoder)
    if not parts:
        raise PartsNotFound(
            f"{type(model).__name__} answers {_METHOD}(), but no module beside its language model does it."
        )
    modules = tuple((names[part], part) for part in parts)
    return Tower(model, entries, modules)


def _asker(entry: str | None) -> Any:
    def ask(*args: Any, **kwargs: Any) -> NoReturn:
        raise _Asked(None if entry is None else Call(args, kwargs, entry))

    return ask


def _first_tensor(tree: Any) -> Tensor | None:
    floats = (leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor) and leaf.is_floating_point())
    return next(floats, None)


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None or one is other:
        return one is other
    return one.shape == other.shape and one.device == other.device and torch.equal(one, other)


def _innermost_with(model: nn.Module, method: str) -> nn.Module | None:
    """The innermost module that offers `method` and still holds the language model (a CLIP inside offers it too)."""
    parts = _language_parts(model)
    owners = [module for module in model.modules() if callable(getattr(type(module), method, None))]
    holders = [module for module in owners if _is_language(module, parts)]
    return holders[-1] if holders else None


def _language_parts(model: nn.Module) -> set[nn.Module]:
    """The token embedding and the output head; whatever holds one of them is no part of a tower."""
    decoder = _asked(model, "get_decoder")
    parts = [_asked(model, "get_input_embeddings"), _asked(model, "get_output_embeddings")]
    if decoder is not None:
        parts.append(_asked(decoder, "get_input_embeddings"))
    return {part for part in parts if part is not None}


def _asked(model: nn.Module, getter: str) -> nn.Module | None:
    try:
        found = getattr(model, getter)()
    except (AttributeError, NotImplementedError):
        return None
    return found if isinstance(found, nn.Module) else None


def _is_language(module: nn.Module, parts: set[nn.Module]) -> bool:
    return any(child in parts for child in module.modules())


def _pixel_encoder(model: nn.Module, owner: nn.Module | None) -> nn.Module | None:
    """The outermost module that takes pixels and holds no part of the language model."""
    parts = _language_parts(model)
    queue = [owner if owner is not None else model]
    while queue:
        module = queue.pop(0)
        for child in module.children():
            if _is_language(child, parts) or not any(True for _ in child.parameters()):
                queue.append(child)
            elif any("pixel" in name for name in inspect.signature(child.forward).parameters):
                return child
    return None


def _goes_past(kind: type, method: str) -> bool:
    """The model has a `generate()` of its own which reaches the encoder without `method`."""
    own = next((base for base in kind.__mro__ if "generate" in vars(base)), None)
    if own is None or own.__name__ == "GenerationMixin":
        return False
    names = _names_in(kind, "generate", set())
    return method not in names and "super" not in names


def _called_parts(model: nn.Module, owner: nn.Module) -> list[nn.Module]:
    """The children of `owner` that its features method names, itself or through other methods of `owner`.

    Read from the code and not from a run: a run would need pictures, weights and memory. A child that holds the token
    embedding or the head is never the tower's; where no child is named, all others are taken.
    """
    language = _language_parts(model)
    own = {name: child for name, child in owner.named_children() if not _is_language(child, language)}
    own = {name: child for name, child in own.items() if any(True for _ in child.parameters())}
    named = _names_in(type(owner), _METHOD, set())
    return [child for name, child in own.items() if name in named] or list(own.values())


def _names_in(kind: type, method: str, seen: set[str]) -> set[str]:
    """Every attribute that the code of `kind.method`, and of the methods that it calls, asks for."""
    seen.add(method)
    function = inspect.unwrap(getattr(kind, method))
    code = getattr(function, "__code__", None)
    names = set(code.co_names) if code is not None else set()
    for name in sorted(names - seen):
        if callable(inspect.getattr_static(kind, name, None)):
            names |= _names_in(kind, name, seen)
    return names


def _around(model: nn.Module, names: Mapping[nn.Module, str], encoder: nn.Module) -> list[nn.Module]:
    """The encoder, and the modules beside it that are neither language nor a stack of layers: its projector."""
    home = model.get_submodule(names[encoder].rpartition(".")[0])
    language = _language_parts(model)
    beside = [child for child in home.children() if not _is_language(child, language) and not _holds_layers(child)]
    return [child for child in home.children() if child is encoder or (child in beside and list(child.parameters()))]


def _holds_layers(module: nn.Module) -> bool:
    return any(isinstance(part, nn.ModuleList) and len(part) > 1 for part in module.modules())


def _first_layers(model: nn.Module) -> list[nn.Module]:
    """The first member of every list of layers that stands beside or below the token embedding's parent."""
    parts = _language_parts(model)
    layers = []
    for module in model.modules():
        if not any(child in parts for child in module.children()):
            continue
        for child in module.children():
            if isinstance(child, nn.ModuleList) and len(child):
                layers.append(child[0])
    return layers
