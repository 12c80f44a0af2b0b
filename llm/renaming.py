"""Where transformers puts the tensors of a checkpoint in its model: renamed, split, stacked. Knows no bytes.

    names = Names(model)                        # on meta
    names.settled("visual.blocks.0.norm1.weight")  # what to call it so that transformers finds its place
    names.rows({"model.layers.0.mlp.experts.0.gate_proj": 768, ...})   # which rows make which parameter

transformers' own rules decide (`conversion_mapping`); they are run on the numbers of rows in place of weights, so that
a packed weight goes wherever a plain one would.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    Transpose,
    WeightConverter,
    rename_source_key,
)

from mmswap.errors import ModelError
from mmswap.llm.quant.choice import STACKED
from mmswap.llm.quant.names import core


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """A parameter made of rows of packed modules.

    Attributes:
        target: the parameter's name in the model.
        sources: names of the modules in the file.
        ids: int64 [rows] or [experts, rows]: `source` and row in it, see `split`.
        transposed: the parameter holds inputs before outputs.
        whole: it is one module as it stands.
        columns: inputs that the parameter takes.
    """

    target: str
    sources: tuple[str, ...]
    ids: Tensor
    transposed: bool = False
    whole: bool = False
    columns: int = 0

    def split(self) -> tuple[Tensor, Tensor]:
        """(index into `sources`, row there), each like `ids`."""
        return self.ids // _MOST, self.ids % _MOST


_MOST = 1 << 32  # rows of one module
_NUMBER = re.compile(r"(\d+)")


class Names:
    """Names of a checkpoint's tensors against those of `model`, which may be on meta.

    Attributes:
        transforms: transformers' rules, and those for experts of which a checkpoint holds each alone.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._known: dict[str, Tensor] = dict(model.state_dict())
        self._prefix = model.base_model_prefix
        self._by_core: dict[str, list[str]] = {}
        for name in self._known:
            self._by_core.setdefault(core(name), []).append(name)
        self.transforms: list[Any] = []
        self._renamings: list[Any] = []
        self._converters: list[Any] = []
        self._add(get_model_conversion_mapping(model))
        for alone, rules in _alone(model):
            if self._place(alone)[0] not in self._known:
                self._add(rules)

    def settled(self, name: str) -> str:
        """What to call a tensor of the file so that transformers finds its place: mostly what it is called."""
        renamed, pattern = self._place(name)
        if renamed in self._known or name in self._known:
            return name
        near = self._by_core.get(core(renamed), ())
        if len(near) != 1:
            return name
        return near[0] if pattern is None else near[0].removesuffix(core(renamed)) + core(name)

    def rows(self, modules: Mapping[str, int]) -> list[Rows]:
        """Which parameters the packed modules of a file make up.

        Args:
            modules: their names in the file, and the rows (outputs) of each.

        Raises:
            ModelError: a module for which the model has no place, or a place that they do not fill.
        """
        sources = tuple(sorted(modules, key=_natural))
        found: dict[str, Rows] = {}
        merged: dict[str, tuple[Any, list[int]]] = {}
        lost = []
        for index, module in enumerate(sources):
            name = self.settled(f"{module}.weight")
            target, pattern = self._place(name)
            if target not in self._known and name in self._known:
                target, pattern = name, None
            if target not in self._known or (pattern is None and target in found):
                lost.append(module)
            elif pattern is None:
                found[target] = Rows(target, (module,), torch.arange(modules[module]), whole=True)
            else:
                converter, members = merged.setdefault(target, (self._converter(pattern), []))
                converter.add_tensor(target, name, pattern, _numbered(len(members), modules[module]))
                members.append(index)
        if lost:
            more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
            raise ModelError(
                f"the file holds {', '.join(lost[:5])}{more} in 4 bits, for which the model has no place of its own: "
                "is config.json that of these weights?"
            )
        made = [
            rows
            for target, (converter, members) in merged.items()
            for rows in self._run(converter, target, tuple(sources[index] for index in members))
        ]
        return [self._fitting(rows) for rows in (*found.values(), *made)]

    def _add(self, rules: Iterable[Any]) -> None:
        for rule in rules:
            self.transforms.append(rule)
            (self._converters if isinstance(rule, WeightConverter) else self._renamings).append(rule)

    def _place(self, name: str) -> tuple[str, str | None]:
        """(the name in the model, the pattern of the rule that makes more than a new name of it)."""
        renamed, pattern = rename_source_key(name, self._renamings, self._converters, self._prefix, self._known)
        return renamed, pattern

    def _converter(self, pattern: str) -> Any:
        return deepcopy(next(rule for rule in reversed(self._converters) if pattern in rule.source_patterns))

    def _run(self, converter: Any, target: str, sources: tuple[str, ...]) -> Iterator[Rows]:
        try:
            made = converter.convert(target, model=self._model, config=self._model.config)
        except Exception as error:  # whatever an operation raises on what it was not made for
            raise ModelError(
                f"{sources[0]} is stored in 4 bits, and what transformers makes of it cannot be followed: {error}."
            ) from error
        for name, value in made.items():
            numbers = value[0] if isinstance(value, list) else value
            ids, transposed = _decoded(numbers, sources[0])
            yield Rows(name, sources, ids, transposed)

    def _fitting(self, rows: Rows) -> Rows:
        """With the parameter's columns, if it has the rows that it was given, no more and no fewer."""
        shape = list(self._known[rows.target].shape) if rows.target in self._known else []
        *experts, first, last = shape if len(shape) > 1 else [0, 0]
        outputs, inputs = (last, first) if rows.transposed else (first, last)
        if list(rows.ids.shape) == [*experts, outputs]:
            return replace(rows, columns=inputs)
        raise ModelError(
            f"{rows.target} has shape {shape} and the file holds {list(rows.ids.shape)} rows for it in 4 bits: "
            "is config.json that of these weights, and is the download complete?"
        )


def stacks(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules that hold the weights of many experts as one parameter each."""
    for name, module in model.named_modules():
        if any(weight is not None and weight.ndim == 3 for weight in map(module._parameters.get, STACKED)):
            yield name, module


def _alone(model: nn.Module) -> Iterator[tuple[str, list[Any]]]:
    """For each kind of stack a name of one expert's own weight, and the rules by which such weights are stacked."""
    seen = set()
    for name, module in stacks(model):
        where = ".".join(name.split(".")[-2:])
        if where in seen or not getattr(module, "is_concatenated", True):
            continue
        seen.add(where)
        turned = [Transpose(1, 2)] if getattr(module, "is_transposed", False) else []
        rules = [_rule([f"{where}.*.down_proj.weight"], f"{where}.down_proj", [MergeModulelist(0), *turned])]
        if "gate_up_proj" in module._parameters:
            pair = [f"{where}.*.gate_proj.weight", f"{where}.*.up_proj.weight"]
            rules.append(_rule(pair, f"{where}.gate_up_proj", [MergeModulelist(0), Concatenate(1), *turned]))
        else:
            rules.append(_rule([f"{where}.*.up_proj.weight"], f"{where}.up_proj", [MergeModulelist(0), *turned]))
        yield f"{name}.0.down_proj.weight", rules


def _rule(sources: list[str], target: str, operations: list[Any]) -> Any:
    return WeightConverter(source_patterns=sources, target_patterns=target, operations=operations)


def _natural(name: str) -> list[Any]:
    """In transformers' order: numbers as numbers."""
    return [int(part) if part.isdigit() else part for part in _NUMBER.split(name)]


def _numbered(source: int, rows: int) -> Tensor:
    """int64 [rows, 2]: a stand-in for a weight whose entries tell from where they are: 2 (source, row) + column."""
    ids = source * _MOST + torch.arange(rows)
    return torch.stack((2 * ids, 2 * ids + 1), 1)


def _decoded(numbers: Tensor, source: str) -> tuple[Tensor, bool]:
    """(the ids of the rows, whether they lie in columns)."""
    for transposed, lines in ((False, numbers), (True, numbers.transpose(-1, -2))):
        if lines.shape[-1] == 2 and bool((lines[..., :1] % 2 == 0).all()) and bool((lines.diff() == 1).all()):
            return lines[..., 0] // 2, transposed
    raise ModelError(f"{source} is stored in 4 bits, and transformers mixes its columns: take the plain checkpoint.")
