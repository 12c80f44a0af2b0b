"""Which modules of a model are its vision side, read from its structure and its code. Knows no architecture by name.

Nothing here runs a model: real, meta and fake ones do alike. `vision/tower.py` makes a `Tower` of what is found here.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from torch import nn


def innermost_with(model: nn.Module, method: str) -> nn.Module | None:
    """The innermost module that offers `method` and still holds the language model (a CLIP inside offers it too)."""
    parts = _language_parts(model)
    owners = [module for module in model.modules() if callable(getattr(type(module), method, None))]
    holders = [module for module in owners if _is_language(module, parts)]
    return holders[-1] if holders else None


def pixel_encoder(model: nn.Module, owner: nn.Module | None) -> nn.Module | None:
    """The outermost module that takes pixels and holds no part of the language model."""
    parts = _language_parts(model)
    queue = [owner if owner is not None else model]
    while queue:
        module = queue.pop(0)
        for child in module.children():
            if _is_language(child, parts) or not _has_weights(child):
                queue.append(child)
            elif any(is_pixels(name) for name in inspect.signature(child.forward).parameters):
                return child
    return None


def is_pixels(name: str) -> bool:
    """Whether a forward's argument of that name is pictures."""
    return "pixel" in name or name == "flattened_patches"


def called_parts(model: nn.Module, owner: nn.Module, method: str) -> list[nn.Module]:
    """The children of `owner` that its features method names, itself or through other methods of `owner`.

    Read from the code and not from a run: a run would need pictures, weights and memory. A child that holds the token
    embedding or the head is never the tower's; where no child is named, all others are taken.
    """
    language = _language_parts(model)
    own = {name: child for name, child in owner.named_children() if not _is_language(child, language)}
    own = {name: child for name, child in own.items() if _has_weights(child)}
    named = _names_in(type(owner), method, set())
    return [child for name, child in own.items() if name in named] or list(own.values())


def modules_around(model: nn.Module, names: Mapping[nn.Module, str], encoder: nn.Module) -> list[nn.Module]:
    """The encoder, and the modules beside it that are neither language nor a stack of layers: its projector."""
    home = model.get_submodule(names[encoder].rpartition(".")[0])
    language = _language_parts(model)
    beside = [child for child in home.children() if not _is_language(child, language) and not _holds_layers(child)]
    return [child for child in home.children() if child is encoder or (child in beside and _has_weights(child))]


def goes_past(kind: type, method: str) -> bool:
    """The model has a `generate()` of its own which reaches the encoder without `method`."""
    own = next((base for base in kind.__mro__ if "generate" in vars(base)), None)
    if own is None or own.__name__ == "GenerationMixin":
        return False
    names = _names_in(kind, "generate", set())
    return method not in names and "super" not in names


def first_layers(model: nn.Module) -> list[nn.Module]:
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


def _has_weights(module: nn.Module) -> bool:
    """Parameters, or what a checkpoint holds in their place: a packed layer has buffers only."""
    return any(True for _ in module.parameters()) or bool(module.state_dict())


def _is_language(module: nn.Module, parts: set[nn.Module]) -> bool:
    return any(child in parts for child in module.modules())


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


def _holds_layers(module: nn.Module) -> bool:
    return any(isinstance(part, nn.ModuleList) and len(part) > 1 for part in module.modules())
