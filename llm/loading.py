"""The one path by which every checkpoint becomes a model on the host: plain, in 4 bits, or rounded to 4 bits. Knows
transformers' models and tensors that are read when asked for, no card.

    model = load_tensors("folder", tensors, found, config, AutoModelForImageTextToText, options)

Weights are read one at a time, by plain reads: beside the model there is never more than one of its weights. A model of
which a weight would have stayed random is refused.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig

from mmswap.errors import ModelError, told
from mmswap.llm.hook import Hook
from mmswap.llm.packing import Packing
from mmswap.llm.parts import find_parts
from mmswap.llm.progress import Progress, progress_to
from mmswap.llm.quant import Which
from mmswap.llm.renaming import Names
from mmswap.llm.rounding import Rounding
from mmswap.llm.skeleton import build

_LOG = logging.getLogger("mmswap")
_SECTIONS = ("quantization_config", "compression_config")


@dataclass(frozen=True, slots=True)
class Rounded4:
    """`--quantize int4`. `head`: the output head too (`--quantize-head`)."""

    head: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to load; the arguments of `load_model`, where they are explained. `card`: as `Packing` takes it."""

    dtype: torch.dtype
    attention: str = "sdpa"
    trust_remote_code: bool = False
    quantize: Rounded4 | None = None
    prepare: Callable[[Any], None] | None = None
    progress: Progress | None = None
    card: torch.device | None = None
    say: Callable[[str], None] = field(default=_LOG.info)


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A model on the host, and the bytes that its weights were thought to take before any was read."""

    model: Any
    foreseen: int


def load_tensors(
    source: Path, tensors: Mapping[str, Any], found: Which, config: Any, auto: Any, options: Options
) -> Loaded:
    """The model of `config`, with these tensors, in eval mode and without gradients.

    Args:
        source: where they are from, for messages and for the generation config.
        tensors: by name in the file: tensors, or `Later`s.
        found: which of them are in 4 bits.
        auto: transformers' class that makes models of this kind.

    Raises:
        ModelError: weights that are missing, of other shapes, or that cannot be read.
    """
    config = _plain(config)
    skeleton, attention = build(
        config, options.attention, options.dtype, auto, trust_remote_code=options.trust_remote_code
    )
    if attention != options.attention:
        _LOG.warning("%s has no %s attention: eager is used, which takes more memory.", source, options.attention)
    names = Names(skeleton)
    packing = Packing(found, tensors, names, options.dtype, options.card)
    _untie(config, skeleton, packing)
    rounding = _rounding(skeleton, packing, options)
    kind = type(skeleton)
    if options.prepare is not None:
        options.prepare(skeleton)
    foreseen = _foreseen(skeleton, packing, rounding)
    shapes = {name: parameter.shape for name, parameter in skeleton.named_parameters()}
    del skeleton
    steps = _Steps(options.progress, len(packing))
    with progress_to(steps.plain):
        plain = {names.settled(name): tensor for name, tensor in tensors.items() if name not in packing.taken}
        hook = _hook(names, packing, rounding, options)
        more = {"config": config, "dtype": options.dtype, "attn_implementation": attention}
        more |= {
            "output_loading_info": True,
            "ignore_mismatched_sizes": True,
        }  # both so that `_complete` can name tensors
        try:
            model, report = kind.from_pretrained(None, state_dict=plain, quantization_config=hook.config(), **more)
        except (OSError, ValueError, RuntimeError, ImportError, KeyError) as error:
            if rounding is not None and rounding.fault is not None:  # which transformers has kept to itself
                raise rounding.fault from None
            raise ModelError(f"{source} cannot be loaded as {config.model_type}: {told(error)}.") from error
    _complete(source, report, shapes, model)
    packing.fill(model, steps.packed)
    if rounding is not None:
        rounding.finish(model)
        options.say(rounding.sentence())
    elif len(packing):
        options.say(f"Weights: {found.reason}.")
    return Loaded(_dressed(model, source).eval().requires_grad_(False), foreseen)


class _Steps:
    """Progress over plain weights, which transformers counts, and packed ones after them."""

    def __init__(self, progress: Progress | None, packed: int) -> None:
        self._progress, self._more = progress, packed
        self._done = self._total = 0

    def plain(self, done: int, total: int) -> None:
        self._done, self._total = done, total + self._more
        if self._progress is not None:
            self._progress(self._done, self._total)

    def packed(self) -> None:
        self.plain(self._done + 1, self._total - self._more)


def _hook(names: Names, packing: Packing, rounding: Rounding | None, options: Options) -> Hook:
    def prepare(model: Any) -> None:
        if options.prepare is not None:
            options.prepare(model)
        packing.clear(model)

    if rounding is None:
        return Hook(names.transforms, prepare, lambda _: False, _nothing)
    return Hook(names.transforms, prepare, rounding.wants, rounding.take)


def _plain(config: Any) -> Any:
    """A copy of the config without what it says of quantisation: transformers would ask for a package that computes."""
    config = copy.deepcopy(config)
    for holder in (config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", {}))):
        for section in _SECTIONS:
            if holder is not None and getattr(holder, section, None) is not None:
                delattr(holder, section)
    return config


def _untie(config: Any, skeleton: nn.Module, packing: Packing) -> None:
    """A head that the file holds in 4 bits is its own, whatever the config says."""
    if not len(packing):
        return
    parts = find_parts(skeleton)
    if parts.tied and f"{parts.head_name}.weight" in packing.targets:
        for holder in (config, config.get_text_config(decoder=True)):
            holder.tie_word_embeddings = False


def _foreseen(skeleton: nn.Module, packing: Packing, rounding: Rounding | None) -> int:
    """Bytes of every parameter and buffer, each once, those in 4 bits as such."""
    packed = packing.nbytes() if rounding is None else rounding.nbytes()
    tensors = {id(tensor): (name, tensor) for name, tensor in _named(skeleton)}
    replaced = packing.targets if rounding is None else rounding.targets
    return packed + sum(tensor.nbytes for name, tensor in tensors.values() if name not in replaced)


def _named(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _rounding(skeleton: nn.Module, packing: Packing, options: Options) -> Rounding | None:
    if options.quantize is None:
        return None
    if len(packing):
        options.say(f"--quantize int4 changes nothing: {len(packing)} weights are stored in 4 bits already.")
        return None
    return Rounding(find_parts(skeleton), options.dtype, head=options.quantize.head)


def _dressed(model: Any, source: Path) -> Any:
    """With the generation config of its folder, and its name."""
    model.config.name_or_path = str(source)
    if (source / "generation_config.json").is_file() and model.can_generate():
        model.generation_config = GenerationConfig.from_pretrained(source)
    return model


def _complete(
    source: Path, report: Mapping[str, Iterable[Any]], shapes: Mapping[str, torch.Size], model: nn.Module
) -> None:
    """Refuse random weights: a checkpoint that lacks a tensor, or holds one of another shape."""
    for kind, why in (("missing_keys", "lacks"), ("mismatched_keys", "has other shapes for")):
        keys = sorted(str(key[0] if isinstance(key, tuple) else key) for key in report.get(kind) or ())
        if kind == "mismatched_keys":  # not every version of transformers looks at them
            loaded = dict(model.named_parameters())
            keys = keys or [name for name, shape in shapes.items() if name in loaded and loaded[name].shape != shape]
        if keys:
            more = f" and {len(keys) - 5} more" if len(keys) > 5 else ""
            raise ModelError(f"{source} {why} {', '.join(keys[:5])}{more}: these weights would be random.")
    unused = sorted(map(str, report.get("unexpected_keys") or ()))
    if unused:
        _LOG.warning("%s holds %d tensors that the model does not use, such as %s.", source, len(unused), unused[0])


def _nothing(*_: Any) -> None:
    """Takes no weight."""
