"""Which modules of a checkpoint are quantised, and how. What is in the file decides; the config says in which format.

Knows the config as JSON and the names of the tensors, reads none. `which(config, names)` before anything is allocated,
then `read(stored, tensors)` for each module as its tensors come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch import Tensor

from mmswap.errors import ModelError
from mmswap.llm.quant import awq, compressed, gptq
from mmswap.llm.quant.ignore import listed
from mmswap.llm.quant.layout import Packed4
from mmswap.llm.quant.scheme import OTHERWISE, Scheme
from mmswap.llm.quant.section import method_of, section_of

_METHODS: dict[str, ModuleType] = {"gptq": gptq, "awq": awq, "compressed-tensors": compressed}
_MAINS = {method.MAIN for method in _METHODS.values()}
_TELLING = {"qweight", "qzeros", "g_idx", "weight_packed", "weight_zero_point", "weight_g_idx"}
_SCALED = {"weight_scale", "weight_scale_inv"}  # fp8 and int8 keep their numbers in `weight` itself
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Stored:
    """One packed module of a checkpoint.

    Attributes:
        name: the module's name in the file.
        scheme: how it is stored.
        tensors: the names of all its tensors in the file, its bias among them.
    """

    name: str
    scheme: Scheme
    tensors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Which:
    """The answer for a checkpoint.

    Attributes:
        packed: the quantised modules by their names in the file; every other tensor is plain.
        reason: one sentence for the log.
    """

    packed: dict[str, Stored]
    reason: str


def which(config: Mapping[str, Any], names: Iterable[str]) -> Which:
    """The packed modules of a checkpoint.

    Args:
        config: config.json. An old repository's quantize_config.json goes in as its `quantization_config`.
        names: every tensor of the weight files.

    Raises:
        ModelError: an unknown method, a packed module that cannot be read, tensors that no module claims.
    """
    held = _by_module(names)
    section = section_of(config)
    kind = method_of(section) if section else None
    if kind is not None and kind not in _METHODS:
        raise ModelError(
            f"quantization_config.quant_method is {kind} and mmswap reads {', '.join(_METHODS)}: {OTHERWISE}."
        )
    packed = sorted(module for module, suffixes in held.items() if suffixes & _MAINS)
    if packed and (kind is None or section is None):
        raise ModelError(
            f"{packed[0]} is packed and config.json has no quantization_config that says how: take config.json (or "
            "quantize_config.json) from where the weights are from."
        )
    _orphans(held, packed)
    if not packed or section is None or kind is None:
        return Which({}, _plain(kind, len(held)))
    method = _METHODS[kind]
    stored = {module: _stored(method, section, module, held[module]) for module in packed}
    return Which(stored, _sentence(stored, method.not_converted(section)))


def rows_of(stored: Stored, shapes: Mapping[str, Sequence[int]]) -> int:
    """Outputs of a module, by the shapes of the file's tensors.

    Raises:
        ModelError: the tensor that tells them is missing or no matrix.
    """
    suffix, dimension = _METHODS[stored.scheme.method].OUTPUTS
    shape = shapes.get(f"{stored.name}.{suffix}", ())
    if len(shape) != 2:
        raise ModelError(f"{stored.name} is quantised and its {suffix} is missing or no matrix: download it again.")
    return int(shape[dimension])


def read(stored: Stored, tensors: Mapping[str, Tensor]) -> tuple[Packed4, Tensor | None]:
    """A module's weight in mmswap's layout, and its bias as stored.

    Args:
        tensors: at least those of `stored.tensors`, by their names in the file.

    Raises:
        ModelError: tensors that are missing or do not belong together.
    """
    own = {name.rpartition(".")[2]: tensors[name] for name in stored.tensors if name in tensors}
    packed: Packed4 = _METHODS[stored.scheme.method].read(stored.scheme, own, stored.name)
    bias = own.get("bias")
    if bias is not None and tuple(bias.shape) != (packed.out_features,):
        raise ModelError(
            f"{stored.name}.bias is {list(bias.shape)} and must be [{packed.out_features}]: download the model again."
        )
    return packed, None if bias is None else bias.clone()  # no view of a mapped file outlives the load


def _by_module(names: Iterable[str]) -> dict[str, set[str]]:
    held: dict[str, set[str]] = {}
    for name in names:
        module, _, suffix = name.rpartition(".")
        held.setdefault(module, set()).add(suffix)
    return held


def _orphans(held: Mapping[str, set[str]], packed: Iterable[str]) -> None:
    """Refuse parts of a packed weight without the weight, and weights in 8 bits or less beside their scales."""
    whole = set(packed)
    lost = [
        f"{module}.{suffix}"
        for module in sorted(held)
        if module not in whole
        for suffix in sorted(held[module] & _TELLING)
    ]
    scaled = [module for module in sorted(held) if module not in whole and held[module] & _SCALED]
    if scaled:
        raise ModelError(f"{scaled[0]} is quantised in a format that is not 4 bits packed: {OTHERWISE}.")
    if lost:
        more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
        raise ModelError(f"the file holds {', '.join(lost[:_SHOWN])}{more} and no weight for it: download it again.")


def _stored(method: ModuleType, section: Mapping[str, Any], module: str, suffixes: set[str]) -> Stored:
    if "weight" in suffixes:
        raise ModelError(f"{module} is in the file twice, as weight and as {method.MAIN}: download the model again.")
    if method.MAIN not in suffixes:
        raise ModelError(
            f"{module} holds {sorted(suffixes & _MAINS)[0]} and quantization_config.quant_method says otherwise: take "
            "config.json from where the weights are from."
        )
    own = sorted(suffixes & (set(method.SUFFIXES) | {"bias"}))
    return Stored(module, method.scheme(section, module), tuple(f"{module}.{suffix}" for suffix in own))


def _plain(kind: str | None, count: int) -> str:
    said = "" if kind is None else f", though the config says {kind}"
    return f"none of {count} modules is packed in the file: all are read as they are{said}"


def _sentence(stored: Mapping[str, Stored], entries: tuple[str, ...]) -> str:
    kinds = sorted({str(one.scheme) for one in stored.values()})
    text = f"{len(stored)} modules are packed in the file ({'; '.join(kinds)}), all others are read as they are"
    odd = [module for module in stored if listed(module, entries)]
    if odd:
        text += f"; {len(odd)} of them the config calls not quantised, such as {odd[0]}: the file decides"
    return text
