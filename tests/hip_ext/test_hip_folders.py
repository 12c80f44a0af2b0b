"""Folders that tools write to: too long, too odd, read-only, or no folders at all."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from fake_machine import Machine

from mmswap.hip_ext.folders import build_root, caches, faults_of
from mmswap.hip_ext.surroundings import Surroundings


def test_the_build_root_is_the_users_cache_unless_it_is_overridden(windows: Machine, linux: Machine) -> None:
    linux.environ["HOME"] = "/home/u"
    assert build_root(linux.here).value == str(linux.root / "home/u/.cache/mmswap/build")
    linux.environ["XDG_CACHE_HOME"] = "/c"
    assert build_root(linux.here).value == str(linux.root / "c/mmswap/build")
    linux.environ["MMSWAP_BUILD_ROOT"] = "/b"
    assert (build_root(linux.here).value, build_root(linux.here).source) == (str(linux.root / "b"), "MMSWAP_BUILD_ROOT")
    windows.environ["LOCALAPPDATA"] = r"C:\Users\u\AppData\Local"
    assert build_root(windows.here).value == str(windows.root / "Users/u/AppData/Local/mmswap/build")


def test_an_empty_build_root_is_ignored_and_said_and_kept_scratch_is_told(linux: Machine) -> None:
    linux.environ |= {"HOME": "/home/u", "MMSWAP_BUILD_ROOT": " ", "MMSWAP_BUILD_CLEAN": "0"}
    found = build_root(linux.here)
    assert "MMSWAP_BUILD_ROOT is set but empty, and ignored" in found.faults
    assert "MMSWAP_BUILD_CLEAN=0 keeps" in found.reason


def test_long_paths_and_odd_letters_trouble_windows_alone(windows: Machine, linux: Machine, tmp_path: Path) -> None:
    odd = tmp_path / "Žluťoučký 用户"
    long = tmp_path.joinpath(*["triton_per_fused_rms_norm_add_mul_"] * 8)
    assert faults_of(linux.here, odd) == ()
    assert faults_of(linux.here, long) == ()
    assert "beyond ASCII" in faults_of(windows.here, odd)[0]
    assert str(len(str(long))) in faults_of(windows.here, long)[0]
    assert faults_of(windows.here, tmp_path) == ()


def test_a_folder_that_cannot_be_written_to_is_named(
    linux: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*, dir: Path, prefix: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert faults_of(linux.here, tmp_path) == (f"{tmp_path} cannot be written to (Permission denied)",)


def test_a_file_in_the_way_is_named_and_a_missing_folder_is_asked_by_its_parent(linux: Machine, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert faults_of(linux.here, file / "below" / "it") == (f"{file} is no folder",)
    assert faults_of(linux.here, tmp_path / "new" / "one") == ()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_a_path_that_no_system_can_open_is_an_answer(linux: Machine, tmp_path: Path) -> None:
    assert faults_of(linux.here, tmp_path / ("x" * 5000)) == ()
    assert faults_of(linux.here, tmp_path / "nul\0byte") == ()


def test_only_cache_variables_that_are_set_are_told(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    environ = {"TRITON_CACHE_DIR": str(tmp_path), "TORCH_EXTENSIONS_DIR": str(file), "HF_HOME": ""}
    found = dict(caches(Surroundings(environ, windows=False)))
    assert set(found) == {"TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR"}
    assert found["TRITON_CACHE_DIR"].faults == ()
    assert "TORCH_EXTENSIONS_DIR" in found["TORCH_EXTENSIONS_DIR"].advice
