"""`mmswap doctor` as a person runs it: a page or one JSON object; exit code 1 when it is broken, 2 for mistakes."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import command_line
import pytest

from mmswap.doctor import attention, examination, host, system
from mmswap.doctor.attention import Shape
from mmswap.doctor.check import Check

HERE = Path(__file__).parent  # not the root: `-m` would put ./mmswap before the installed package
MIB = 1 << 20
ODD = "Žluťoučký 用户"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "LARGE_ON_HOST", Shape("large", 2, 16, 8))
    monkeypatch.setattr(host.bandwidth, "__defaults__", (MIB, 1))


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    return command_line.run(monkeypatch, capsys, "doctor", *words)


@pytest.mark.usefixtures("quick")
def test_json_is_one_object_with_stable_names_and_sizes_in_bytes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(monkeypatch, capsys, "--card", "sim:16368MiB+wddm", "--probe", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert set(found) == {"mmswap", "broken", "notes", "card", "sources", "sections", "probe"}
    assert found["card"]["spec"] == "sim:16368MiB+wddm"
    assert (found["card"]["total"], found["card"]["free"]) == (16368 * MIB, 15569 * MIB)
    assert found["broken"] == []
    for checks in found["sections"].values():
        for check in checks.values():
            assert set(check) - {"facts"} == {"state", "value", "reason", "advice"}
    rows = found["probe"]["rows"]
    assert {row["budget"] // MIB for row in rows} == {15569, 14540}
    assert rows[0]["held"] == rows[-1]["held"] == 0
    assert all(type(row[name]) is int for row in rows for name in ("held", "driver_free", "usage", "free", "spilled"))


@pytest.mark.usefixtures("quick")
def test_the_probe_is_a_table_on_the_page_and_nothing_on_the_processor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(monkeypatch, capsys, "--card", "sim:1GiB", "--probe", "--beyond-budget")
    assert code == 0
    assert "driver free" in out
    assert "all freed" in out
    code, out, _ = run(monkeypatch, capsys, "--card", "cpu", "--probe")
    assert code == 0
    assert "nothing to probe" in out


@pytest.mark.usefixtures("quick")
def test_what_is_broken_is_exit_code_1_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(system, "torch_build", lambda: Check("torch", "broken", "2.9", "WinError 126", "reinstall it"))
    code, out, err = run(monkeypatch, capsys, "--probe")
    assert code == 1
    assert "BROKEN torch" in out
    assert "Broken: torch." in out
    assert "no card is open" in out
    assert err == ""


@pytest.mark.parametrize(
    "words", [("--card", "gpu"), ("--card", "sim:lots"), ("--beyond-budget",), ("--no-such-flag",), ("--card",)]
)
def test_mistakes_are_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    code, _, err = run(monkeypatch, capsys, *words)
    assert code == 2
    assert "Traceback" not in err


@pytest.mark.usefixtures("quick")
def test_full_loads_the_carried_model_and_the_level_of_the_log_comes_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(examination.carried, "answers", lambda folder: seen.append(folder) or Check("m", "ok", "yes"))
    before = logging.getLogger("mmswap").level
    assert run(monkeypatch, capsys, "--card", "cpu")[0] == 0
    assert seen == []
    assert run(monkeypatch, capsys, "--card", "cpu", "--full")[0] == 0
    assert len(seen) == 1
    assert logging.getLogger("mmswap").level == before


NO_DISTRIBUTED = """
import importlib.abc, sys
class Lacks(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torch.distributed":
            core = sys.modules["torch._C"]
            for part in ("_c10d_init", "_distributed_c10d", "_rpc_init", "_faulty_agent_init"):
                if hasattr(core, part):
                    delattr(core, part)
            sys.modules.pop("torch._C._distributed_c10d", None)
        if name == "torch._C._distributed_c10d":
            raise ModuleNotFoundError("No module named 'torch._C._distributed_c10d'")
sys.meta_path.insert(0, Lacks())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the fake compiler is a shell script")
def test_every_planted_fault_is_a_line_and_nobody_is_named(tmp_path: Path) -> None:
    """F1, F2, F4, F5, F7: broken modules, a compiler below a space, odd letters, empty variables, a narrow console."""
    home = tmp_path / ODD
    compiler = home / "Program Files" / "AMD" / "ROCm" / "7.2" / "bin" / "hipcc"
    site = tmp_path / "site"
    for folder in (compiler.parent, site / "triton"):
        folder.mkdir(parents=True)
    compiler.write_text("#!/bin/sh\necho HIP version: 7.2.0-fake\n")
    compiler.chmod(0o755)
    (site / "amdsmi.py").write_text("raise KeyError('libamd_smi.so')\n")
    (site / "triton" / "__init__.py").write_text(f"raise ImportError({str(home / 'libtriton')!r})\n", encoding="utf-8")
    (site / "sitecustomize.py").write_text(NO_DISTRIBUTED)
    (home / "cache").write_text("a file where a folder should be")
    env = {
        **os.environ,
        "HOME": str(home),
        "USER": "wilhelmine",
        "COMPUTERNAME": "SCHREIBTISCH",
        "PYTHONPATH": str(site),
        "PYTHONIOENCODING": "cp1252:strict",
        "HIP_PATH": str(compiler.parents[1]),
        "ROCM_HOME": "",
        "MMSWAP_HIP_ARCH": "wilhelmine",
        "TRITON_CACHE_DIR": str(home / "cache"),
        "TORCH_EXTENSIONS_DIR": str(home / "new"),
    }
    words = [sys.executable, "-m", "mmswap", "doctor", "--card", "cpu"]
    done = subprocess.run(words, cwd=HERE, env=env, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    page = done.stdout.decode("cp1252")
    assert page.isascii()
    text = " ".join(page.split())
    assert "not in this torch, and not needed" in text
    assert "note triton cannot be imported ImportError: ~/libtriton" in text
    assert "KeyError: 'libamd_smi.so'" in text
    assert "note HIP SDK ~/Program Files/AMD/ROCm/7.2, version 7.2.0-fake" in text
    assert "ROCM_HOME is set but empty" in text
    assert "MMSWAP_HIP_ARCH names <user>, which is no architecture" in text
    assert "note TRITON_CACHE_DIR ~/cache ~/cache is no folder" in text
    assert "ok TORCH_EXTENSIONS_DIR ~/new" in text
    for trace in ("u017d", "u7528", "wilhelmine", "SCHREIBTISCH", str(tmp_path / "Ž")):
        assert trace not in page
    assert max(len(line) for line in page.splitlines()) <= 100
