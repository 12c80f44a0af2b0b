"""What was measured of a model's keys and values beforehand: offsets, widths, and how well each kind does with them.

    calibration = recall(key)                      # None: never measured, or unusable (said once)
    calibration.ranges(3, kind)                    # of layer 3; None: not known
    keep(calibration)

Offsets depend on weights, not on the card: the key is made of config and biases, see `measuring.key_of`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmswap.errors import OptionError
from mmswap.llm.kv.kinds import Kind
from mmswap.llm.kv.ranges import Ranges
from mmswap.swap import shelf

FORMAT = 1
LEAST = 0.99  # cosine of attention with a kind against attention without it, below which the kind is refused


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's keys [heads][D] and values [heads], over all that was read.

    Attributes:
        mean, low, high: of the keys' channels. values: largest size in each head.
        cosine: for each kind that was tried, the worst cosine of the attention's result, over contexts.
    """

    mean: list[list[float]]
    low: list[list[float]]
    high: list[list[float]]
    values: list[float]
    cosine: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Calibration:
    """A model's layers by index.

    Attributes:
        key: see `measuring.key_of`. name: of the model, for people. how: one sentence.
        contexts: tokens of the texts that were read.
        given: (k_scale, v_scale) of layers whose scales came with the checkpoint; they hold for fp8 alone.
    """

    key: str
    name: str
    how: str
    contexts: tuple[int, ...] = ()
    layers: dict[int, Layer] = field(default_factory=dict)
    given: dict[int, tuple[float, float]] = field(default_factory=dict)

    def ranges(self, index: int, kind: Kind, *, offsets: bool = True, biased: bool = False) -> Ranges | None:
        """Offsets and scales of layer `index`; None where it was not measured.

        Args:
            offsets: keys may be stored less an offset. biased: they have a bias, so they should be.
        """
        found = self.layers.get(index)
        if found is not None:
            return _measured(found, kind, offsets)
        if index in self.given and kind.name == "fp8_e4m3":
            k_scale, v_scale = self.given[index]
            scales = torch.full((1, 1), k_scale), torch.full((1, 1), v_scale)
            return Ranges(torch.zeros(1, 1), *scales, scales_only=offsets and biased)
        return None

    def known(self, kind: Kind) -> set[int]:
        """Layers for which `ranges` has an answer."""
        return set(self.layers) | (set(self.given) if kind.name == "fp8_e4m3" else set())

    def worst(self, kind: Kind) -> tuple[int, float] | None:
        """The layer that suffers most from `kind`, and its cosine; None where it was not tried."""
        tried = [(layer.cosine[kind.name], index) for index, layer in self.layers.items() if kind.name in layer.cosine]
        if not tried:
            return None
        cosine, index = min(tried)
        return index, cosine

    def check(self, kind: Kind) -> None:
        """Raises OptionError if `kind` was measured to answer wrongly, offsets and all."""
        worst = self.worst(kind)
        if worst is not None and worst[1] < LEAST:
            raise OptionError(
                f"--kv {kind.name} was measured to answer wrongly on this model: layer {worst[0]} keeps a cosine of "
                f"{worst[1]:.3f}, and {LEAST} is the least. Use --kv int8 (--kv-unsafe uses it all the same)."
            )

    def to_json(self) -> dict[str, Any]:
        """All fields by name, ready for `json.dumps`."""
        values = asdict(self)
        values["layers"] = {str(index): asdict(layer) for index, layer in self.layers.items()}
        values["given"] = {str(index): list(pair) for index, pair in self.given.items()}
        return {"format": FORMAT, **values}

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Calibration:
        """What `to_json` gave.

        Raises:
            ValueError: something is missing, of another format, or no number.
        """
        if values.get("format") != FORMAT:
            raise ValueError(f"its format is {values.get('format')!r}, and this version reads {FORMAT}")
        try:
            layers = {int(index): _layer(layer) for index, layer in values["layers"].items()}
            given = {int(index): (float(pair[0]), float(pair[1])) for index, pair in values["given"].items()}
            contexts = tuple(int(tokens) for tokens in values["contexts"])
            return cls(str(values["key"]), str(values["name"]), str(values["how"]), contexts, layers, given)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"it is incomplete: {error}") from None


def keep(calibration: Calibration, path: Path | None = None) -> Path | None:
    """Writes it to `path` or into the cache folder; where it went, or None where nothing can be written.

    Raises:
        OSError: `path` was given and cannot be written.
    """
    if path is not None:
        shelf.write_atomically(path, json.dumps(calibration.to_json(), ensure_ascii=False) + "\n")
        return path
    place = _place(calibration.key)
    return place if shelf.put(place, calibration.to_json()) else None


def recall(key: str) -> Calibration | None:
    """The calibration of that key from the cache folder; one that says it is another's is not used."""
    place = _place(key)
    values = shelf.take(place)
    if values is None:
        return None
    try:
        found = Calibration.of_json(values)
        if found.key != key:
            raise ValueError("its key is another one")
    except ValueError as error:
        shelf.ignore(place, error)
        return None
    return found


def _place(key: str) -> Path:
    return shelf.cache_folder() / f"kv-{key}.json"


def _measured(layer: Layer, kind: Kind, offsets: bool) -> Ranges:
    """As `Ranges.seen` would find them in all that was read."""
    low, high = torch.tensor(layer.low), torch.tensor(layer.high)
    seen = torch.stack([low, high], 1)[None]  # [1, heads, 2, D]: two tokens that span all of it
    values = torch.tensor(layer.values)[None, :, None, None].expand(1, -1, 2, 1)
    middle = torch.tensor(layer.mean) if kind.float8 else None
    return Ranges.seen(kind, seen, values, offsets=offsets, middle=middle, many=True)


def _layer(values: Mapping[str, Any]) -> Layer:
    matrices = {name: _matrix(values[name]) for name in ("mean", "low", "high")}
    cosine = {str(name): float(value) for name, value in values["cosine"].items()}
    return Layer(**matrices, values=_row(values["values"]), cosine=cosine)


def _matrix(rows: Any) -> list[list[float]]:
    return [_row(row) for row in rows]


def _row(row: Any) -> list[float]:
    numbers = [float(number) for number in row]
    if not all(abs(number) < 1e30 for number in numbers):
        raise ValueError("it holds something that is no usable number")
    return numbers


def matrix(tensor: Tensor) -> list[list[float]]:
    """[heads, D] as JSON keeps it, six digits each."""
    return [[float(f"{number:.6g}") for number in row] for row in tensor.tolist()]
