"""The parts of a language model, found by structure: decoder, its layers in order, embeddings, head, norm, ties.

Knows no architecture by name. `find_parts(model)` works on real, meta and fake models alike.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from mmswap.errors import PartsNotFound


@dataclass(frozen=True, slots=True)
class Parts:
    """What `find_parts` found; names are qualified from the model's root.

    Attributes:
        decoder: the module whose forward takes `inputs_embeds` and runs the layers.
        layers: (name, layer) in order of use: self, cross and linear attention alike.
        embeddings, head: token embedding and output projection; `tied` if they share their weight.
        norm: what stands between the last layer and the head, if it is a module of the decoder.
    """

    decoder: nn.Module
    layers: tuple[tuple[str, nn.Module], ...]
    embeddings: nn.Module
    head: nn.Module
    norm: nn.Module | None
    tied: bool
    decoder_name: str
    embeddings_name: str
    head_name: str


def find_parts(model: nn.Module) -> Parts:
    """Find decoder, layers, embeddings and head of an image-text-to-text model.

    Raises:
        PartsNotFound: the message names the part that is missing.
    """
    names = {module: name for name, module in model.named_modules()}
    kind = type(model).__name__
    embeddings = _find_embeddings(model, names)
    if embeddings is None:
        raise PartsNotFound(f"{kind} has no token embedding: get_input_embeddings() gives none.")
    head = _ask(model, "get_output_embeddings") or _head_like(model, embeddings)
    if head is None:
        raise PartsNotFound(
            f"{kind} has no output head: get_output_embeddings() gives none, nor is there one its shape."
        )
    stack = _find_stack(model, names[embeddings], names)
    if stack is None:
        raise PartsNotFound(f"{kind} has no decoder layers: no list of equal layers stands beside its token embedding.")
    decoder = _decoder_of(model, names[stack])
    if decoder is None:
        raise PartsNotFound(f"{kind} has no decoder: nothing around {names[stack]} takes inputs_embeds.")
    return Parts(
        decoder=decoder,
        layers=tuple((names[layer], layer) for layer in stack),
        embeddings=embeddings,
        head=head,
        norm=_final_norm(decoder, stack),
        tied=_tied(embeddings, head),
        decoder_name=names[decoder],
        embeddings_name=names[embeddings],
        head_name=names[head],
    )


def _ask(model: nn.Module, getter: str) -> nn.Module | None:
    try:
        found = getattr(model, getter)()
    except (AttributeError, NotImplementedError):
        return None
    return found if isinstance(found, nn.Module) and _holds_weights(found) else None


def _holds_weights(module: nn.Module) -> bool:
    return any(True for _ in _tensors(module))


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    """A packed layer keeps its weight in buffers."""
    return itertools.chain(module.parameters(), module.buffers())


def _find_embeddings(model: nn.Module, names: dict[nn.Module, str]) -> nn.Module | None:
    """The decoder's token embedding; an encoder-decoder model would name its encoder's."""
    side = _decoder_side(model)
    found = _ask(side, "get_input_embeddings") if side is not model else None
    return found if found in names else _ask(model, "get_input_embeddings")


def _decoder_side(model: nn.Module) -> nn.Module:
    """The innermost module that an encoder-decoder model calls its decoder; any other model itself."""
    side, inner = model, _ask(model, "get_decoder")
    if not getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return model
    while inner is not None and inner is not side:
        side, inner = inner, _ask(inner, "get_decoder")
    return side


def _head_like(model: nn.Module, embeddings: nn.Module) -> nn.Module | None:
    """The last linear layer, plain or packed, that gives one number for each row of the embedding."""
    shape = tuple(getattr(getattr(embeddings, "weight", None), "shape", ()))
    sides = ("out_features", "in_features")
    heads = [part for part in model.modules() if shape and tuple(getattr(part, side, None) for side in sides) == shape]
    return heads[-1] if heads else None


def _upwards(model: nn.Module, name: str) -> Iterator[nn.Module]:
    """The modules around `name`, innermost first, the root last."""
    while name:
        name = name.rpartition(".")[0]
        yield model.get_submodule(name)


def _find_stack(model: nn.Module, embeddings_name: str, names: dict[nn.Module, str]) -> nn.ModuleList | None:
    """The list of decoder layers: the heaviest list of blocks in the nearest module around the embedding.

    Where the count of layers that the text config gives fits one of the lists, that one is meant: a model that keeps
    its embedding beside tower and decoder would otherwise offer the tower's blocks too.
    """
    expected = _layer_count(model)
    side = _decoder_side(model)
    for around in _upwards(model, embeddings_name) if side is model else (side,):
        lists = [part for part in around.modules() if isinstance(part, nn.ModuleList) and _is_stack(part)]
        outer = [part for part in lists if not any(part is not other and _holds(other, part) for other in lists)]
        fitting = [part for part in outer if len(part) == expected and _decoder_of(model, names[part])]
        if fitting or outer:
            return max(fitting or outer, key=_weight)
    return None


def _is_stack(part: nn.ModuleList) -> bool:
    """Blocks have structure of their own: a list of bare linear layers or embeddings is no stack."""
    return len(part) > 0 and all(any(True for _ in block.children()) for block in part)


def _holds(outer: nn.Module, inner: nn.Module) -> bool:
    return any(part is inner for part in outer.modules())


def _weight(part: nn.Module) -> int:
    """Bytes of it."""
    return sum(tensor.numel() * tensor.element_size() for tensor in _tensors(part))


def _text_config(model: nn.Module) -> Any:
    config = getattr(model, "config", None)
    getter = getattr(config, "get_text_config", None)
    return getter(decoder=True) if getter is not None else config


def _layer_count(model: nn.Module) -> int | None:
    return getattr(_text_config(model), "num_hidden_layers", None)


def _decoder_of(model: nn.Module, stack_name: str) -> nn.Module | None:
    for around in _upwards(model, stack_name):
        if "inputs_embeds" in inspect.signature(around.forward).parameters:
            return around
    return None


def _final_norm(decoder: nn.Module, stack: nn.ModuleList) -> nn.Module | None:
    """The first child of the decoder after its layers whose weight is a vector, else the last such one before them."""
    before: list[nn.Module] = []
    after: list[nn.Module] = []
    passed = False
    for name, child in decoder.named_children():
        passed = passed or any(part is stack for part in child.modules())
        weight = getattr(child, "weight", None)
        if isinstance(weight, nn.Parameter) and weight.ndim == 1 and "emb" not in name:
            (after if passed else before).append(child)
    return after[0] if after else before[-1] if before else None


def _tied(embeddings: nn.Module, head: nn.Module) -> bool:
    one, other = getattr(embeddings, "weight", None), getattr(head, "weight", None)
    if one is None or other is None:
        return False
    storages = [weight.untyped_storage()._cdata for weight in (one, other)]  # addresses do not exist on meta
    return one is other or (storages[0] == storages[1] and one.storage_offset() == other.storage_offset())
