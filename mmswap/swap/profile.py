"""A profile: what a vision tower needs at several sizes, the curve through them, and for what exactly that holds.

    profile.to_json()          Profile.of_json(values)          # ValueError says what is wrong with the values
    keep(profile)              recall(fingerprint)              # in the cache folder; None where there is none

Holds bytes and names; knows no model and no card.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from mmswap.swap import shelf
from mmswap.swap.fit import Fit

FORMAT = 1
_VOLATILE = {"_name_or_path", "name_or_path", "transformers_version", "_attn_implementation", "attn_implementation"}
_VOLATILE |= {"dtype", "torch_dtype", "_commit_hash", "auto_map", "use_cache", "_attn_implementation_internal"}
_VOLATILE |= {"quantization_config", "compression_config"}  # of the language model: a loaded one has it no more
_ValueT = TypeVar("_ValueT")


@dataclass(frozen=True, slots=True)
class Sample:
    """One tower call; sizes in bytes, weights and inputs not counted.

    Attributes:
        width, height, images: pixels of each picture, and how many of them.
        patches, tokens: of all pictures together.
        live: most bytes of tensors alive at once. with_scratch: with what kernels take inside one op.
        reserved: what torch's allocator takes from the card with its default settings; expandable: with
            `expandable_segments:True`.
        least_free: the fewest free bytes with which the call runs under the default settings.
        output: bytes of the features. measured: most bytes alive in a real run; 0: there was none.
    """

    width: int
    height: int
    patches: int
    live: int
    reserved: int
    images: int = 1
    tokens: int = 0
    with_scratch: int = 0
    least_free: int = 0
    expandable: int = 0
    output: int = 0
    measured: int = 0


@dataclass(frozen=True, slots=True)
class PrefillSample:
    """The language model's prefill of `tokens` image tokens in one pass, with an empty cache before it; bytes.

    `live` and `reserved` as in `Sample`, the cache's growth (`kv_bytes`) included.
    """

    tokens: int
    live: int
    reserved: int
    kv_bytes: int


@dataclass(frozen=True, slots=True)
class Profile:
    """A tower's peak model with all that it depends on.

    Attributes:
        fingerprint: see `fingerprint`. name: of the model, for people. config: the model's config as a dict.
        dtype, attention, card: what the figures are for. how: where they come from, one sentence.
        tower: the curve of `Sample.live` over patches. allocator: that of `Sample.reserved`.
        prefill: the language model's own peak, at the samples' token counts.
        weights: bytes by group: vision tower, layers, embeddings, output head, other.
        versions: of torch and transformers. scratch: see `ScratchTable.state`. corrections: see `Experience`.
    """

    fingerprint: str
    name: str
    config: dict[str, Any]
    dtype: str
    attention: str
    card: str
    how: str
    tower: Fit
    allocator: Fit
    samples: tuple[Sample, ...]
    prefill: tuple[PrefillSample, ...] = ()
    weights: dict[str, int] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    scratch: dict[str, Any] = field(default_factory=dict)
    corrections: dict[str, Any] = field(default_factory=dict)

    @property
    def margin(self) -> float:
        """The share to add to a prediction, from the residuals of the tower's curve; 5 % at the least.

        The allocator's own steps are no uncertainty: they are replayed for each call.
        """
        return self.tower.margin

    def to_json(self) -> dict[str, Any]:
        """All fields by name, ready for `json.dumps`."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Profile:
        """The profile that `to_json` gave.

        Raises:
            ValueError: fields are missing or of the wrong kind, or the format is another one; the message names it.
        """
        if values.get("format") != FORMAT:
            raise ValueError(f"its format is {values.get('format')!r}, and this version reads {FORMAT}")
        given = dict(values)
        for name, kind in (("tower", Fit), ("allocator", Fit)):
            given[name] = _made(kind, given.get(name), name)
        for name, one in (("samples", Sample), ("prefill", PrefillSample)):
            given[name] = tuple(_made(one, value, name) for value in _checked(given.get(name, []), list, name))
        if not given["samples"]:
            raise ValueError("it has no samples")
        return _made(cls, given, "profile")


def fingerprint(config: Mapping[str, Any], dtype: str, attention: str, card: str, torch_version: str) -> str:
    """What a profile's figures depend on, as 32 hexadecimal digits.

    Args:
        config: the model config's dict; entries that change no figure (names, versions) are left out.
        torch_version: a build's suffix (`+cu128`) does not count.
    """
    told = [_normal(config), dtype, attention, card, torch_version.partition("+")[0]]
    text = json.dumps(told, sort_keys=True, ensure_ascii=True, default=str, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def keep(profile: Profile, path: Path | None = None) -> Path | None:
    """Writes a profile to `path` or into the cache folder; where it went, or None where nothing can be written.

    Raises:
        OSError: `path` was given and cannot be written.
    """
    if path is not None:
        shelf.write_atomically(path, json.dumps(profile.to_json(), ensure_ascii=False, indent=1) + "\n")
        return path
    place = _place(profile.fingerprint)
    return place if shelf.put(place, profile.to_json()) else None


def read(path: Path) -> Profile | None:
    """The profile in `path`; None, and a message, where there is nothing usable."""
    values = shelf.take(path)
    if values is None:
        return None
    try:
        return Profile.of_json(values)
    except ValueError as error:
        shelf.ignore(path, error)
        return None


def recall(wanted: str) -> Profile | None:
    """The profile of that fingerprint from the cache folder. One that says it is for another is not used."""
    place = _place(wanted)
    found = read(place)
    if found is not None and found.fingerprint != wanted:
        shelf.ignore(place, ValueError("its fingerprint is another one"))
        return None
    return found


def _place(fingerprint: str) -> Path:
    return shelf.cache_folder() / f"{fingerprint}.json"


def _normal(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _normal(item) for name, item in value.items() if name not in _VOLATILE}
    return [_normal(item) for item in value] if isinstance(value, (list, tuple)) else value


def _checked(value: Any, kind: type, name: str) -> Any:
    if not isinstance(value, kind) or (kind in (int, float) and isinstance(value, bool)):
        raise ValueError(f"its {name} is not a {kind.__name__}")
    return value


_KINDS = {"int": int, "str": str, "float": (int, float), "Fit": Fit}


def _made(kind: type[_ValueT], values: Any, name: str) -> _ValueT:
    """A dataclass from a dict; what it does not know is left out, what it needs must be there and of its type."""
    _checked(values, dict, name)
    known = {item.name: item for item in fields(kind) if item.name in values}  # type: ignore[arg-type]
    for item in known.values():
        wanted = _KINDS.get(str(item.type), dict if str(item.type).startswith("dict") else tuple)
        given = values[item.name]
        if not isinstance(given, wanted) or isinstance(given, bool):  # type: ignore[arg-type]
            raise ValueError(f"its {name} has a {item.name} of {given!r:.40}")
    try:
        return kind(**{item: values[item] for item in known})
    except TypeError as error:
        raise ValueError(f"its {name} is incomplete: {error}") from None
