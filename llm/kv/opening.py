"""Opening a cache for a model: which layers are ours, which stay transformers' own, and what is refused. All of it
is found by structure and config.

    cache = open_cache(model, capacity=4096, kind=kv_kind("fp8_e4m3"), calibration=found)
    reason = unusual(model)        # why this model keeps transformers' own cache; None: it does not
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from mmswap.errors import ModelError, OptionError
from mmswap.llm.kv.cache import KvCache
from mmswap.llm.kv.calibration import Calibration
from mmswap.llm.kv.kinds import Kind
from mmswap.llm.kv.layer import GrowingLayer
from mmswap.llm.kv.ring import RingLayer
from mmswap.llm.parts import Parts, find_parts

_CROSS = ("cross_attn", "cross_attention", "crossattention", "encoder_attn")


@dataclass(frozen=True, slots=True)
class Survey:
    """What a model's layers keep, found once.

    Attributes:
        own: the layers that are ours, and the window of each (None: it keeps all). kept: why another stays as it is.
        crossing: layers that look at a picture's keys. offsets: keys may be stored less an offset.
        biased: layers that add a bias to their keys.
    """

    config: Any
    own: Mapping[int, int | None]
    kept: Mapping[int, str]
    crossing: frozenset[int]
    offsets: bool
    biased: frozenset[int] = frozenset()

    @classmethod
    def of(cls, model: Any) -> Survey:
        """Raises ModelError: this model needs transformers' own cache."""
        why = unusual(model)
        if why is not None:
            raise ModelError(f"{type(model).__name__} keeps transformers' own KV cache: {why}.")
        parts = find_parts(model)
        crossing = _crossing(parts)
        theirs = DynamicCache(config=parts.decoder.config).layers
        stays = {index: _stays(parts, index, layer, crossing) for index, layer in enumerate(theirs)}
        kept = {index: why for index, why in stays.items() if why is not None}
        own = {index: getattr(layer, "sliding_window", None) for index, layer in enumerate(theirs) if index not in kept}
        return cls(
            parts.decoder.config, own, kept, crossing, offsets_cancel(model, parts), frozenset(key_biases(parts))
        )

    def open(self, capacity: int, kind: Kind, calibration: Calibration | None = None) -> KvCache:
        """An empty cache with room for `capacity` tokens; its slots are taken with the first of them."""
        layers: list[Any] = DynamicCache(config=self.config).layers
        measured = calibration if kind.quantised else None
        for index, window in self.own.items():
            how = {"offsets": self.offsets, "biased": index in self.biased}
            known = measured.ranges(index, kind, **how) if measured is not None else None
            options: dict[str, Any] = {"known": known, "offsets": self.offsets, "index": index}
            if window is None:
                layers[index] = GrowingLayer(kind, capacity, **options)
            else:
                layers[index] = RingLayer(kind, capacity, window, **options)
        return KvCache(layers, kind, self.kept, self.crossing)


def open_cache(
    model: Any, capacity: int, kind: Kind, calibration: Calibration | None = None, *, unsafe: bool = False
) -> KvCache:
    """An empty cache with room for `capacity` tokens. Who opens many keeps a `Survey`, or a `Caching`.

    Args:
        calibration: offsets and scales that were measured or came with the checkpoint.
        unsafe: use an 8-bit float without them even where that is known to go wrong.

    Raises:
        ModelError: this model needs transformers' own cache. OptionError: the kind would make it answer wrongly.
    """
    survey = Survey.of(model)
    refuse(model, kind, calibration, unsafe=unsafe)
    return survey.open(capacity, kind, calibration)


def own_layers(model: Any) -> Mapping[int, int | None]:
    """As `Survey.own`; none where transformers' own cache serves the model."""
    return {} if unusual(model) is not None else Survey.of(model).own


def unusual(model: Any) -> str | None:
    """Why transformers' own cache must serve `model`, as half a sentence; None if ours can."""
    if getattr(model.config, "is_encoder_decoder", False):
        return "it has an encoder, whose keys lie in a second cache"
    parts = find_parts(model)
    supports = getattr(type(model), "_supports_default_dynamic_cache", None)
    if supports is not None and not supports():
        return "it brings a cache of its own"
    if _reads_layers(type(parts.decoder).__module__) and not _crossing(parts):
        return "its layers look into each other's keys, past the cache's interface"
    try:
        layers = DynamicCache(config=parts.decoder.config).layers
    except Exception as error:  # a config that another library wrote
        return f"its config does not say what its layers keep ({type(error).__name__})"
    if not any(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers):
        return "none of its layers keeps plain keys and values"
    return None


def refuse(model: nn.Module, kind: Kind, calibration: Calibration | None, *, unsafe: bool = False) -> None:
    """Raises OptionError where `kind` is known to make `model` answer wrongly."""
    if unsafe or not kind.float8:
        return
    known = set()
    if calibration is not None:
        calibration.check(kind)
        known = calibration.known(kind)
    biased = key_biases(find_parts(model)) - known
    if biased:
        raise OptionError(
            f"--kv {kind.name} needs offsets for this model: {_counted(len(biased))} a bias to their keys, and "
            "8-bit floats lose what is small beside it. Run `mmswap profile --kv MODEL` once, or use --kv int8 "
            "(--kv-unsafe uses it all the same)."
        )


def _counted(layers: int) -> str:
    return "1 layer adds" if layers == 1 else f"{layers} layers add"


def key_biases(parts: Parts) -> set[int]:
    """The decoder layers that add a bias to their keys."""
    found = set()
    for index, (_, layer) in enumerate(parts.layers):
        for name, part in layer.named_modules():
            if _makes_keys(name.rpartition(".")[2].lower()) and getattr(part, "bias", None) is not None:
                found.add(index)
    return found


def offsets_cancel(model: Any, parts: Parts) -> bool:
    """Whether a number added to all products with a query changes nothing: no soft cap, and no sink beside them."""
    config = model.config.get_text_config(decoder=True)
    capped = any("softcap" in name and "attn" in name and value for name, value in vars(config).items())
    sinks = any(
        name.rpartition(".")[2] in ("sinks", "sink")
        for _, layer in parts.layers
        for name, _ in layer.named_parameters()
    )
    return not capped and not sinks


def _makes_keys(name: str) -> bool:
    return name in ("k_proj", "key", "qkv", "qkv_proj", "key_proj", "query_key_value", "wk", "wqkv", "c_attn", "k")


def _crossing(parts: Parts) -> frozenset[int]:
    """Layers that look at a picture's keys, and not at the text's."""
    named = getattr(parts.decoder.config, "cross_attention_layers", None) or ()
    found = {index for index in named if isinstance(index, int)}
    for index, (_, layer) in enumerate(parts.layers):
        if any(name in _CROSS for name, _ in layer.named_children()):
            found.add(index)
    return frozenset(found)


def _stays(parts: Parts, index: int, theirs: Any, crossing: frozenset[int]) -> str | None:
    """Why layer `index` stays as transformers makes it."""
    if index in crossing:
        return "it looks at a picture's keys, which do not grow"
    if type(theirs) not in (DynamicLayer, DynamicSlidingWindowLayer):
        return f"{type(theirs).__name__} keeps something else than keys and values"
    kinds = getattr(parts.decoder.config, "layer_types", None) or []
    if index < len(kinds) and kinds[index] == "chunked_attention":
        return "its window is cut at fixed places"
    return None


@cache
def _reads_layers(name: str) -> bool:
    """Whether the module that defines a decoder takes keys out of a cache's layers by itself."""
    module = sys.modules.get(name)
    try:
        return module is not None and "cache.layers" in inspect.getsource(module)
    except (OSError, TypeError):
        return False
