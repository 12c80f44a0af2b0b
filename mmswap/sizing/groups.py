"""The weights of a model by group, each tensor once, and the ladder of units that may give way. Needs no weights.

    held = weigh(blueprint.model, blueprint.tower, blueprint.parts, quantize="int4")
    held.groups["decoder layers"], held.ladder

Groups are told apart by structure. The sum of all groups is what the card holds, parameters and buffers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor, nn

from mmswap.llm.parts import Parts
from mmswap.llm.quant.choice import packable
from mmswap.sizing.packing import packed_bytes, packed_parts
from mmswap.sizing.weights import EMBEDDINGS, GROUPS, HEAD, LAYERS, NORMS, PROJECTOR, REST, TOWER, Weights
from mmswap.swap.layout import extent, padded
from mmswap.swap.plan import Rung
from mmswap.vision.tower import Tower


def weigh(model: nn.Module, tower: Tower, parts: Parts, quantize: str | None = None) -> Weights:
    """Bytes of every group of `model`, which may be on meta.

    Args:
        quantize: `int4` for linear weights of the decoder layers, stacked experts included; None as stored.
    """
    packed = _packable(parts) if quantize is not None else {}
    groups = dict.fromkeys(GROUPS, 0)
    taken: set[int] = set()
    for group, modules in _homes(model, tower, parts):
        for module in modules:
            for tensor in _tensors(module):
                if id(tensor) not in taken:
                    taken.add(id(tensor))
                    groups[group] += packed_bytes(*packed[id(tensor)]) if id(tensor) in packed else _bytes(tensor)
    unpacked = max((_bytes(tensor) for tensor in _tensors(model) if id(tensor) in packed), default=0)
    return Weights(groups, _ladder(model, parts, packed), unpacked, parts.tied)


def _homes(model: nn.Module, tower: Tower, parts: Parts) -> Iterator[tuple[str, list[nn.Module]]]:
    """Group and modules, the more specific first: a tensor belongs to the first group in which it is met."""
    eyes = [module for _, module in tower.modules]
    main = max(eyes, key=lambda module: sum(map(_bytes, _tensors(module))))
    width = getattr(getattr(parts.embeddings, "weight", None), "shape", (0, 0))[-1]
    yield PROJECTOR, [*_projectors(main, width), *(module for module in eyes if module is not main)]
    yield TOWER, [main]
    yield EMBEDDINGS, [parts.embeddings]
    yield LAYERS, [layer for _, layer in parts.layers]
    yield HEAD, [parts.head]
    yield NORMS, [parts.norm] if parts.norm is not None else []
    yield EMBEDDINGS, [part for part in parts.decoder.modules() if isinstance(part, nn.Embedding)]
    yield REST, [model]


def _projectors(tower: nn.Module, width: int) -> list[nn.Module]:
    """Children of a tower that turn its vectors into the language model's: they end in a linear layer of that width."""
    children = list(tower.children())
    stacks = [i for i, child in enumerate(children) if isinstance(child, nn.ModuleList) and len(child) > 1]
    heaviest = max(stacks, key=lambda i: sum(map(_bytes, _tensors(children[i]))), default=None)
    if heaviest is None:
        return []
    return [child for i, child in enumerate(children) if i != heaviest and _last_width(child) == width]


def _last_width(module: nn.Module) -> int | None:
    linears = [part for part in module.modules() if isinstance(part, nn.Linear)]
    return linears[-1].out_features if linears else None


def _packable(parts: Parts) -> dict[int, tuple[int, int]]:
    """Rows and columns of what `--quantize` packs, by id: those that the loader would."""
    return {id(one.weight): (one.rows, one.columns) for one in packable(parts)}


def _ladder(model: nn.Module, parts: Parts, packed: dict[int, tuple[int, int]]) -> tuple[Rung, ...]:
    units = list(parts.layers) if parts.tied else [*parts.layers, (parts.head_name, parts.head)]
    owners = _owners(model, [module for _, module in units])
    rungs = []
    for index, (name, module) in enumerate(units):
        own = [tensor for tensor in _tensors(module) if owners[id(tensor)] == {index} and tensor.numel()]
        rungs.append(Rung(name, sum(_slab(tensor, packed.get(id(tensor))) for tensor in own)))
    return tuple(rung for rung in reversed(rungs) if rung.nbytes)


def _owners(model: nn.Module, units: list[nn.Module]) -> dict[int, set[int]]:
    """Which units hold a tensor, -1 standing for the rest of the model; one that is held twice stays where it is."""
    inside = {id(part): index for index, unit in enumerate(units) for part in unit.modules()}
    owners: dict[int, set[int]] = {}
    for module in model.modules():
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            owners.setdefault(id(tensor), set()).add(inside.get(id(module), -1))
    return owners


def _slab(tensor: Tensor, shape: tuple[int, int] | None) -> int:
    """Bytes of a tensor in a unit's slab, where every tensor begins at a multiple of 256."""
    return padded(extent(tensor)) if shape is None else sum(map(padded, packed_parts(*shape)))


def _tensors(module: nn.Module) -> Iterable[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
