"""What a loaded model's requests keep their keys and values in: decided once, with its reasons.

caching = decide(model, "fp8_e4m3", say=print)
cache = caching.open(tokens=300)            # None: transformers' own serves this model
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mmswap.errors import OptionError
from mmswap.llm.checkpoint import Entry
from mmswap.llm.kv.cache import KvCache
from mmswap.llm.kv.calibration import Calibration, recall
from mmswap.llm.kv.given import given_scales
from mmswap.llm.kv.kinds import Kind, kv_kind
from mmswap.llm.kv.measuring import key_of
from mmswap.llm.kv.opening import Survey, refuse, unusual
from mmswap.llm.parts import find_parts

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Caching:
    """Attributes:
    kind: how keys and values are kept.
    survey: of the model's layers; None: transformers' own cache serves.
    key: of the model as it was loaded, under which a calibration is kept; parts may be merged after that.
    """

    kind: Kind
    survey: Survey | None = None
    calibration: Calibration | None = None
    key: str = ""

    def open(self, tokens: int) -> KvCache | None:
        """An empty cache with room for `tokens`; None where transformers' own is used."""
        return None if self.survey is None else self.survey.open(tokens, self.kind, self.calibration)


def decide(
    model: Any,
    name: str,
    *,
    tensors: Mapping[str, Entry] | None = None,
    unsafe: bool = False,
    say: Say = lambda _: None,
    warn: Say = lambda _: None,
) -> Caching:
    """The cache for `--kv name`.

    Args:
        name: of the kind; `auto` is what the decoder computes in. tensors: of the checkpoint, which may bring scales.
        unsafe: an 8-bit float is used even where it is known to go wrong. say, warn: told what was decided.

    Raises:
        OptionError: this model cannot have that kind, or would answer wrongly with it.
    """
    kind = kv_kind(name, find_parts(model).embeddings.weight.dtype)
    why = unusual(model)
    if why is not None:
        if name != "auto":
            raise OptionError(f"--kv {name} does not work with this model, because {why}: leave it out.")
        say(f"KV cache: transformers' own, in the model's dtype, because {why}.")
        return Caching(kind)
    survey = Survey.of(model)
    key = key_of(model)
    calibration = _known(key, survey, kind, tensors or {}, say, warn) if kind.quantised else None
    refuse(model, kind, calibration, unsafe=unsafe)
    if unsafe and kind.float8:
        warn(f"--kv-unsafe: {kind.name} is used whether or not it is known to answer rightly on this model.")
    say(f"KV cache: {kind.name}, {_reason(name, kind, calibration)}.")
    return Caching(kind, survey, calibration, key)


def _known(
    key: str, survey: Survey, kind: Kind, tensors: Mapping[str, Entry], say: Say, warn: Say
) -> Calibration | None:
    """What was measured on this machine, else what the checkpoint brings."""
    found = recall(key)
    if found is not None or not kind.float8:
        return found
    given = given_scales(tensors, survey.own)
    for sentence in given.said:
        (warn if sentence.startswith("Warning") else say)(sentence)
    if not given.by_layer:
        return None
    if kind.name != "fp8_e4m3":
        warn(f"The checkpoint's KV scales are for fp8_e4m3; {kind.name} takes its own from the first tokens.")
        return None
    return Calibration("", "", "scales of the checkpoint", given=given.by_layer)


def _reason(name: str, kind: Kind, calibration: Calibration | None) -> str:
    if name == "auto":
        return "as the model computes"
    if not kind.quantised:
        return "as asked for"
    if calibration is None:
        return "as asked for; its ranges are taken from the first tokens of each prompt"
    return f"as asked for, with {'' if calibration.given else 'offsets '}{calibration.how}"
