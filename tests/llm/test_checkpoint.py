"""Half a download is refused before anything is allocated, with the file's name and sizes (case D9)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mmswap.errors import ModelError
from mmswap.llm.checkpoint import check_checkpoint

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def shards(folder: Path, placed: dict[str, str] | None = None, *, second: bool = True) -> Path:
    """Two shards with one 8 x 8 tensor each and their index; `placed` overrides what the index says."""
    save_file({"a.weight": torch.ones(8, 8)}, folder / FIRST)
    if second:
        save_file({"b.weight": torch.zeros(8, 8, dtype=torch.bfloat16)}, folder / SECOND)
    placed = placed or {"a.weight": FIRST, "b.weight": SECOND}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": placed}), encoding="utf-8")
    return folder


def cut(path: Path, count: int) -> int:
    """Take `count` bytes off the end of a file; its size before."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size - count)
    return size


def test_whole_checkpoint_is_summed(tmp_path: Path) -> None:
    found = check_checkpoint(shards(tmp_path))
    assert found.nbytes == 8 * 8 * 4 + 8 * 8 * 2
    assert found.dtypes == {"F32": 256, "BF16": 128}
    assert [path.name for path in found.files] == [FIRST, SECOND]


def test_single_file_and_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no weights"):
        check_checkpoint(tmp_path)
    save_file({"a": torch.ones(3)}, tmp_path / "model.safetensors")
    assert check_checkpoint(tmp_path).nbytes == 12


def test_stray_file_is_ignored(tmp_path: Path) -> None:
    save_file({"a.weight": torch.full((8, 8), 9.0)}, shards(tmp_path) / "consolidated.safetensors")
    assert check_checkpoint(tmp_path).nbytes == 384


def test_missing_shard(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"{SECOND} is missing"):
        check_checkpoint(shards(tmp_path, second=False))


@pytest.mark.parametrize("count", [1, 10, 100])
def test_truncated_shard_tells_found_and_expected(tmp_path: Path, count: int) -> None:
    size = cut(shards(tmp_path) / SECOND, count)
    with pytest.raises(ModelError, match=f"{SECOND}.*found {size - count} bytes.*expected {size} "):
        check_checkpoint(tmp_path)


def test_longer_file_than_its_header_promises(tmp_path: Path) -> None:
    path = shards(tmp_path) / FIRST
    path.write_bytes(path.read_bytes() + b"xx")
    with pytest.raises(ModelError, match=f"{FIRST} is damaged"):
        check_checkpoint(tmp_path)


def test_header_cut(tmp_path: Path) -> None:
    path = shards(tmp_path) / SECOND
    cut(path, 128 + 20)
    with pytest.raises(ModelError, match=f"{SECOND} ends inside its header"):
        check_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"abc", b"<!DOCTYPE html><html>", b"version https://git-lfs.github.com/spec/v1"]
)
def test_file_of_another_kind(tmp_path: Path, content: bytes) -> None:
    (shards(tmp_path) / SECOND).write_bytes(content)
    with pytest.raises(ModelError, match=f"{SECOND} .*found {len(content)} bytes"):
        check_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "header",
    [
        {"b.weight": {"dtype": "F32", "shape": [8, 8], "data_offsets": [0, 128]}},
        {"b.weight": {"dtype": "BF16", "shape": [8, 8], "data_offsets": [8, 136]}},
        {"b.weight": {"dtype": "BF16", "shape": [8, 8]}},
        {"b.weight": {"dtype": "BF16", "shape": [8.0, 8], "data_offsets": [0, 128]}},
        {"b.weight": {"dtype": "BF16", "shape": [8, 8], "data_offsets": [0.0, 128]}},
        {"b.weight": 7},
        [1, 2],
    ],
    ids=str,
)
def test_header_that_does_not_fit_its_bytes(tmp_path: Path, header: object) -> None:
    raw = json.dumps(header).encode()
    (shards(tmp_path) / SECOND).write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(128))
    with pytest.raises(ModelError, match=SECOND):
        check_checkpoint(tmp_path)


def test_header_nested_deeper_than_any_reader_goes(tmp_path: Path) -> None:
    raw = b'{"a":' * 100_000
    (shards(tmp_path) / SECOND).write_bytes(len(raw).to_bytes(8, "little") + raw)
    with pytest.raises(ModelError, match=f"{SECOND} has a header that cannot be read"):
        check_checkpoint(tmp_path)


def test_tensor_that_is_not_in_its_shard(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"{FIRST} lacks the tensor b.weight"):
        check_checkpoint(shards(tmp_path, {"a.weight": FIRST, "b.weight": FIRST}))


@pytest.mark.parametrize("place", [f"../good/{SECOND}", f"/tmp/{SECOND}", f"..\\good\\{SECOND}", f"C:\\x\\{SECOND}", 7])
def test_index_that_leaves_its_folder(tmp_path: Path, place: object) -> None:
    with pytest.raises(ModelError, match="points out of its folder"):
        check_checkpoint(shards(tmp_path, {"a.weight": FIRST, "b.weight": place}))  # type: ignore[dict-item]


@pytest.mark.parametrize("text", ["", "{not json", "[]", "{}", '{"weight_map": []}'])
def test_damaged_index(tmp_path: Path, text: str) -> None:
    (shards(tmp_path) / INDEX).write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match=INDEX.replace(".", r"\.")):
        check_checkpoint(tmp_path)
