"""A checkpoint folder, checked before anything is allocated: which files hold the weights, and are they whole?

Knows safetensors headers and the index file; reads no tensor. `check_checkpoint(folder)` takes milliseconds.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from mmswap.errors import ModelError
from mmswap.units import format_bytes

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_HEADER_LIMIT = 100_000_000  # bytes; what safetensors itself accepts
_BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U8": 8, "BOOL": 8}
_BITS |= {"U64": 64, "U32": 32, "U16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "C64": 64, "F4": 4}


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one tensor lies: bytes `start` to `start + nbytes` of `file`; `dtype` as safetensors writes it."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the weight files of a folder hold.

    Attributes:
        files: the files that are loaded, in order of name; others are ignored.
        nbytes: bytes of all tensors.
        dtypes: bytes by safetensors dtype (`BF16`, `F32`, ...).
        tensors: every tensor by name, where the index places it.
    """

    files: tuple[Path, ...]
    nbytes: int
    dtypes: dict[str, int]
    tensors: Mapping[str, Entry] = field(default_factory=dict)


def check_checkpoint(folder: Path) -> Checkpoint:
    """Check index, presence, headers and sizes of the weight files in `folder`.

    Raises:
        ModelError: one sentence with the file's name and, for a damaged one, the bytes found and expected.
    """
    index = folder / _INDEX
    if index.is_file():
        placed = _read_index(index)
        names: Iterable[str] = sorted(set(placed.values()))
    elif (folder / _SINGLE).is_file():
        placed, names = {}, (_SINGLE,)
    elif len(alone := sorted(folder.glob("*.safetensors"))) == 1:  # old quantised repositories name it as they like
        placed, names = {}, (alone[0].name,)
    else:
        raise ModelError(f"{folder} holds no weights: neither {_SINGLE} nor {_INDEX} is there.")
    found = {name: _read_header(folder / name) for name in names}
    for tensor, name in placed.items():
        if tensor not in found[name]:
            raise ModelError(f"{name} lacks the tensor {tensor} that {_INDEX} places there: download the model again.")
    tensors: dict[str, Entry] = {}
    for name, held in found.items():
        tensors |= {tensor: entry for tensor, entry in held.items() if placed.get(tensor, name) == name}
    dtypes: Counter[str] = Counter()
    for entry in tensors.values():
        dtypes[entry.dtype] += entry.nbytes
    return Checkpoint(tuple(folder / name for name in found), dtypes.total(), dict(dtypes), tensors)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ModelError: it is missing or damaged; the message names it.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path.parent} holds no {path.name}: is it the folder of a model?") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read ({error}): download the model again.") from None
    if not isinstance(found, dict):
        raise ModelError(f"{path} holds no JSON object: download the model again.")
    return found


def _read_index(index: Path) -> dict[str, str]:
    placed = read_json(index).get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise ModelError(f"{index} has no weight_map: download the model again.")
    for name in placed.values():
        path = PurePosixPath(str(name).replace("\\", "/"))
        if not isinstance(name, str) or path.is_absolute() or ".." in path.parts or ":" in name:
            raise ModelError(f"{index} points out of its folder, to '{name}': do not use this model.")
    return placed


def _read_header(path: Path) -> dict[str, Entry]:
    """The tensors of a safetensors file whose size was found to be what its header promises."""
    name = path.name
    if not path.is_file():
        raise ModelError(f"{name} is missing from {path.parent}: the download is not complete.")
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > _HEADER_LIMIT:
            raise ModelError(f"{name} is no safetensors file ({_sizes(size, None)}): download it again.")
        if size < 8 + length:
            raise ModelError(f"{name} ends inside its header ({_sizes(size, 8 + length)} or more): download it again.")
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError):
            raise ModelError(
                f"{name} has a header that cannot be read ({_sizes(size, None)}): download it again."
            ) from None
    tensors = {key: value for key, value in header.items() if key != "__metadata__"} if isinstance(header, dict) else {}
    expected = 8 + length + _data_bytes(name, tensors)
    if size != expected:
        raise ModelError(f"{name} is damaged ({_sizes(size, expected)}): download it again.")
    return {key: _entry(path, 8 + length, value) for key, value in tensors.items()}


def _entry(path: Path, begin: int, value: Mapping[str, Any]) -> Entry:
    start, stop = value["data_offsets"]
    return Entry(path, value["dtype"], tuple(value["shape"]), begin + start, stop - start)


def _data_bytes(name: str, tensors: dict[str, Any]) -> int:
    """Where the last tensor ends; every tensor must have the bytes that its shape and dtype ask for, without gaps."""
    end = 0
    try:
        placed = sorted((value["data_offsets"], key) for key, value in tensors.items())
        for (start, stop), key in placed:
            if any(type(size) is not int for size in (start, stop, *tensors[key]["shape"])):
                raise TypeError
            wanted = math.prod(tensors[key]["shape"]) * _BITS.get(tensors[key]["dtype"], 0)
            if start != end or (wanted and (stop - start) * 8 != wanted) or stop < start:
                raise ModelError(
                    f"{name} places the tensor {key} at bytes {start} to {stop} where {end} to {end + wanted // 8} was "
                    "expected: download it again."
                )
            end = stop
    except (KeyError, TypeError, ValueError):
        raise ModelError(f"{name} has a header that describes no tensors: download it again.") from None
    return end


def _sizes(found: int, expected: int | None) -> str:
    wanted = "" if expected is None else f", expected {expected} ({format_bytes(expected)})"
    return f"found {found} bytes ({format_bytes(found)}){wanted}"
