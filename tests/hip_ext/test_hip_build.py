"""Builds by fake compilers: below spaces and letters beyond ASCII, without one, with a cache that is read-only."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fake_machine import Machine
from fake_sdk import FakeSdk, bare_environ

from mmswap.errors import KernelError
from mmswap.hip_ext import build as building
from mmswap.hip_ext import compiler, recipe, shipping
from mmswap.hip_ext.build import build, main, scratch_parent
from mmswap.hip_ext.compiler import Plan, plan
from mmswap.hip_ext.folders import build_root
from mmswap.hip_ext.recipe import LONGEST_NAME, Target, source_files, source_hash
from mmswap.hip_ext.surroundings import Found, Surroundings

TARGET = Target("hip", ("gfx1100",), "7.2")
ODD = "Žluťoučký 用户"


@pytest.fixture
def sdk(tmp_path: Path) -> FakeSdk:
    found = FakeSdk(tmp_path / "Program Files" / "AMD" / "ROCm" / "7.2")
    found.add("hipcc")
    found.add("clang++")
    return found


def here_with(sdk: FakeSdk, **more: str) -> Surroundings:
    return Surroundings(bare_environ(HIP_PATH=str(sdk.folder), **more))


def test_every_word_reaches_the_compiler_whole(sdk: FakeSdk, tmp_path: Path) -> None:
    product = build(TARGET, here_with(sdk), tmp_path / ODD / "cache")
    call = sdk.compiled("hipcc")
    assert f"--rocm-path={sdk.folder}" in call["words"]
    assert "--offload-arch=gfx1100" in call["words"]
    assert not any(word.startswith(("Files", "AMD", '"', "'")) for word in call["words"])
    assert {path.name for path in source_files()} <= set(call["files"])
    if sys.platform != "win32":
        assert product.read_bytes().startswith(b"made by clang++")
        assert "-shared" not in call["words"]
        assert "-shared" in sdk.compiled("clang++")["words"]


def test_no_word_but_the_sdks_is_a_path(sdk: FakeSdk, tmp_path: Path) -> None:
    """A user's name outside ASCII never stands in a command line."""
    build(TARGET, here_with(sdk), tmp_path / ODD / "cache")
    words = [word for name in ("hipcc", "clang++") for call in sdk.calls(name) for word in call["words"]]
    assert all(word.isascii() for word in words)
    assert [word for word in words if os.sep in word] == [f"--rocm-path={sdk.folder}"]


@pytest.mark.parametrize("place", [ODD, "long/" + "a-folder-with-a-long-name/" * 12], ids=["letters", "long"])
def test_the_product_and_nothing_else_is_left_in_an_odd_place(sdk: FakeSdk, tmp_path: Path, place: str) -> None:
    folder = tmp_path / place
    product = build(TARGET, here_with(sdk), folder)
    assert [path.name for path in folder.iterdir()] == [product.name]
    assert len(product.name) <= LONGEST_NAME


def test_what_a_build_leaves_is_kept_when_asked(sdk: FakeSdk, tmp_path: Path) -> None:
    build(TARGET, here_with(sdk, MMSWAP_BUILD_CLEAN="0"), tmp_path / "cache")
    (scratch,) = [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    log = (scratch / building.LOG).read_text(encoding="utf-8")
    assert "--offload-arch=gfx1100" in log
    assert (scratch / recipe.UNIT).is_file()


def test_what_the_compiler_says_first_is_the_reason(sdk: FakeSdk, tmp_path: Path) -> None:
    sdk.breaks("hipcc")
    with pytest.raises(KernelError, match=r"mmswap_hip\.cpp:7:1: error: no such card; MMSWAP_BUILD_CLEAN=0 keeps"):
        build(TARGET, here_with(sdk), tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
    with pytest.raises(KernelError, match="all that it said is in"):
        build(TARGET, here_with(sdk, MMSWAP_BUILD_CLEAN="0"), tmp_path / "cache")
    (scratch,) = (tmp_path / "cache").iterdir()
    assert "1 error generated" in (scratch / building.LOG).read_text(encoding="utf-8")


def test_a_compiler_that_writes_nothing_is_no_success(sdk: FakeSdk, tmp_path: Path) -> None:
    for name in ("hipcc", "clang++"):
        sdk.breaks(name, "writes nothing")
    with pytest.raises(KernelError, match="wrote nothing"):
        build(TARGET, here_with(sdk), tmp_path / "cache")
    (sdk.bin / "clang++.writes nothing").unlink()
    (sdk.bin / "hipcc.writes nothing").unlink()
    for name in ("hipcc", "clang++"):  # an empty object links well
        sdk.breaks(name, "forgets")
    with pytest.raises(KernelError, match="wrote a library without mms_rms_norm"):
        build(TARGET, here_with(sdk), tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_without_any_compiler_the_sentence_says_where_was_looked(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "root", windows=False)
    machine.environ |= {"ROCM_HOME": ""}
    with pytest.raises(
        KernelError,
        match=r"no hipcc or clang.* in HIP_PATH.*ROCM_HOME is set but empty.*install.*MMSWAP_CLANG name one",
    ):
        build(TARGET, machine.here, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_written_to_is_named(sdk: FakeSdk, tmp_path: Path) -> None:
    """As a read-only folder, for root too: a file stands where the folder should be."""
    (tmp_path / "cache").write_text("")
    with pytest.raises(KernelError, match=r"cache cannot be written to.*let MMSWAP_BUILD_ROOT name a folder that can"):
        build(TARGET, here_with(sdk), tmp_path / "cache")


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="folders of root cannot be made read-only")
def test_a_read_only_cache_is_named(sdk: FakeSdk, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o500)
    with pytest.raises(KernelError, match="cache cannot be written to"):
        build(TARGET, here_with(sdk), folder)


def test_who_builds_the_same_at_once_writes_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in containers that share a cache, whose processes have equal numbers."""
    written: list[str] = []
    write = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", lambda path, data: (written.append(path.name), write(path, data))[1])
    monkeypatch.setattr(os, "getpid", lambda: 1)
    for text in (b"one", b"two"):
        building.keep(text, tmp_path / "gfx1100.so")
    assert len(set(written)) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["gfx1100.so"]


@pytest.mark.parametrize("kind", ["hip", "cuda", "code"])
@pytest.mark.parametrize("arch", ["gfx1100", "gfx9-4-generic", "gfx10-3-generic", "sm_90", "gfx90a"])
def test_names_in_the_cache_are_short_and_plain(kind: str, arch: str) -> None:
    for windows in (False, True):
        name = Target(kind, (arch, "gfx1201"), "7.2").file(windows=windows)
        assert len(name) <= LONGEST_NAME
        assert name.startswith(arch)
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-")


def test_the_key_follows_sources_architecture_and_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {
        target.key()
        for target in (
            TARGET,
            replace(TARGET, runtime="6.4"),
            replace(TARGET, archs=("gfx1101",)),
            Target("code", *"a7"),
        )
    }
    assert len(keys) == 4
    for name in ("a.h", "b.h"):
        (tmp_path / name).write_bytes(b"one\ntwo\n")
    whole = source_hash(tmp_path)
    (tmp_path / "a.h").write_bytes(b"one\r\ntwo\r\n")
    assert source_hash(tmp_path) == whole
    (tmp_path / "a.h").write_bytes(b"one\ntwo")
    assert source_hash(tmp_path) != whole


def test_on_windows_microsofts_variables_are_set_for_the_compiler(windows: Machine, tmp_path: Path) -> None:
    windows.program(r"C:\Program Files\AMD\ROCm\6.4\bin\clang++.exe")
    script = windows.file(r"C:\my tools 100%\vcvars64.bat")
    windows.environ |= {"VCVARS64": r"C:\my tools 100%\vcvars64.bat", "Path": "before"}
    windows.says["cmd"] = "Path=after\nLib=C:\\kits\nINCLUDE=C:\\Program Files\\kits\n=C:=C:\\\nnonsense"
    with pytest.raises(KernelError, match="wrote nothing"):
        build(TARGET, windows.here, tmp_path / "cache")
    words, environ = windows.started[-1], windows.given[-1]
    assert Path(words[0]).name == "clang++.exe"
    assert "-shared" in words
    assert not words[list(words).index("-o") + 1].endswith(".lib"), "the linker writes its import library there"
    assert (environ["LIB"], environ["PATH"]) == ("C:\\kits", "after")
    assert windows.started[-2] == ["cmd", "/u", "/d", "/c", "variables.bat"]
    assert windows.given[-2]["MMSWAP_VCVARS"] == str(script).replace("%", "%%")


def test_the_script_of_variables_holds_no_path(windows: Machine, tmp_path: Path) -> None:
    """In what encoding a .bat is read, nobody knows."""
    windows.says["cmd"] = "LIB=x"
    compiler.variables(windows.here, Path(f"C:/{ODD} 100%/vcvars64.bat"), tmp_path)
    assert (tmp_path / "variables.bat").read_bytes().startswith(b'@call "%MMSWAP_VCVARS%" >nul\r\n')
    windows.says["cmd"] = "nothing of use"
    with pytest.raises(OSError, match="sets no LIB"):
        compiler.variables(windows.here, Path("C:/vcvars64.bat"), tmp_path)


def test_in_a_developer_prompt_the_variables_that_are_there_do(windows: Machine) -> None:
    windows.program(r"C:\Program Files\AMD\ROCm\6.4\bin\hipcc.exe")
    windows.program(r"C:\vc\cl.exe")
    windows.environ["PATH"] = r"C:\vc"
    found = plan(windows.here, "hip", ("gfx1100",))
    assert isinstance(found, Plan)
    assert found.msvc is None


def test_windows_without_msvc_is_told_so(windows: Machine) -> None:
    windows.program(r"C:\Program Files\AMD\ROCm\6.4\bin\hipcc.exe")
    found = plan(windows.here, "hip", ("gfx1100",))
    assert isinstance(found, Found)
    assert "VCVARS64" in found.reason


def test_compilers_on_windows_work_where_their_tools_bear_the_path(windows: Machine, tmp_path: Path) -> None:
    folder = tmp_path / ODD
    assert scratch_parent(windows.here, folder) != folder
    assert scratch_parent(Surroundings({}, windows=False), folder) == folder


def test_a_clang_alone_builds_on_linux(linux: Machine) -> None:
    linux.program("/tools/clang++-22")
    linux.environ["PATH"] = "/tools"
    linux.says["clang++-22"] = "clang version 22.1.8\n  amdgcn - AMD"
    found = plan(linux.here, "hip", ("gfx1030", "gfx1201"))
    assert isinstance(found, Plan)
    first, last = found.commands
    assert {"--offload-arch=gfx1030", "--offload-arch=gfx1201", "-nogpuinc", "-nogpulib"} <= set(first)
    assert first[0] == last[0] == str(linux.root / "tools/clang++-22")


@pytest.mark.parametrize(
    ("said", "fault"), [("clang version 15.0.7\namdgcn", "older than"), ("clang version 22.1\nx86", "does not know")]
)
def test_a_clang_that_cannot_is_said(linux: Machine, said: str, fault: str) -> None:
    linux.environ["MMSWAP_CLANG"] = str(linux.program("/tools/clang++"))
    linux.says["clang++"] = said
    from mmswap.hip_ext.bare_clang import bare_clang

    found = bare_clang(linux.here)
    assert found.value is None
    assert fault in found.faults[0]
    linux.environ["MMSWAP_CLANG"] = "/nowhere/clang++"
    assert "no such program" in bare_clang(linux.here).faults[0]


def test_nvcc_is_found_and_gets_its_architecture(linux: Machine) -> None:
    linux.program("/usr/local/cuda-13.0/bin/nvcc")
    linux.says["nvcc"] = "Cuda compilation tools, release 13.0, V13.0.88"
    found = plan(linux.here, "cuda", ("sm_90",))
    assert isinstance(found, Plan)
    assert "-gencode=arch=compute_90,code=sm_90" in found.commands[0]
    linux.environ["CUDA_HOME"] = "/nowhere"
    from mmswap.hip_ext.cuda_toolkit import nvcc

    assert nvcc(linux.here).faults == (f"CUDA_HOME names {linux.root / 'nowhere'}, which has no bin/nvcc",)
    assert nvcc(linux.here).version == "13.0"


def test_a_wheel_holds_the_library_and_says_what_it_is_for(sdk: FakeSdk, tmp_path: Path) -> None:
    here = here_with(sdk, MMSWAP_HIP_ARCH="gfx1100;gfx1201:xnack-")
    made = shipping.ship(here, tmp_path / "built")
    (entry,) = json.loads((tmp_path / "built" / shipping.MANIFEST).read_text(encoding="utf-8"))
    assert entry["archs"] == ["gfx1100", "gfx1201"]
    assert shipping.shipped_for(Target("hip", ("gfx1201",), "7.2"), tmp_path / "built") == made
    assert shipping.shipped_for(Target("hip", ("gfx1030",), "7.2"), tmp_path / "built") is None
    assert shipping.shipped_for(Target("cuda", ("gfx1100",), "7.2"), tmp_path / "built") is None


def test_a_wheel_for_a_family_serves_its_cards(sdk: FakeSdk, tmp_path: Path) -> None:
    made = shipping.ship(here_with(sdk, MMSWAP_HIP_ARCH="gfx11-generic"), tmp_path)
    assert shipping.shipped_for(TARGET, tmp_path) == made
    assert shipping.shipped_for(replace(TARGET, archs=("gfx1201",)), tmp_path) is None


@pytest.mark.parametrize("archs", ["gfx90a", "gfx1100;gfx942", "gfx9-4-generic"])
def test_no_compiler_is_started_for_cards_that_the_kernels_are_not_for(
    sdk: FakeSdk, tmp_path: Path, archs: str
) -> None:
    with pytest.raises(KernelError, match=f"the kernels are for RDNA cards, and {archs.split(';')[-1]} is none"):
        shipping.ship(here_with(sdk, MMSWAP_HIP_ARCH=archs), tmp_path / "built")
    assert sdk.calls("hipcc") == []
    assert not (tmp_path / "built").exists()


def test_a_wheel_of_other_sources_or_a_damaged_one_is_not_used(
    sdk: FakeSdk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipping.ship(here_with(sdk, MMSWAP_HIP_ARCH="gfx1100"), tmp_path)
    assert shipping.shipped_for(TARGET, tmp_path) is not None
    monkeypatch.setattr(shipping, "source_hash", lambda: "other")
    assert shipping.shipped_for(TARGET, tmp_path) is None
    monkeypatch.undo()
    for text in ("{", "[1]", '[{"kind": "hip"}]'):
        (tmp_path / shipping.MANIFEST).write_text(text)
        assert shipping.shipped_for(TARGET, tmp_path) is None


@pytest.mark.parametrize("asked", ["", "gfx!!"])
def test_a_wheel_without_a_right_architecture_is_refused(sdk: FakeSdk, tmp_path: Path, asked: str) -> None:
    with pytest.raises(KernelError, match="MMSWAP_HIP_ARCH"):
        shipping.ship(here_with(sdk, MMSWAP_HIP_ARCH=asked), tmp_path)


def test_by_hand_it_says_where_the_library_is_or_why_there_is_none(
    sdk: FakeSdk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Surroundings, "real", classmethod(lambda cls: here_with(sdk, MMSWAP_BUILD_ROOT=str(tmp_path))))
    assert main(["--arch", "gfx1100"]) == 0
    assert Path(capsys.readouterr().out.strip()).parent == tmp_path
    assert main(["--arch", "gfx1100, gfx1030;"]) == 0
    assert [word for word in sdk.calls("hipcc")[-1]["words"] if "arch" in word] == [
        "--offload-arch=gfx1100",
        "--offload-arch=gfx1030",
    ]
    capsys.readouterr()
    assert main(["--arch", "gfx942"]) == 1
    assert capsys.readouterr().err == "mmswap: the kernels are for RDNA cards, and gfx942 is none.\n"
    sdk.breaks("hipcc")
    assert main(["--arch", "gfx1100"]) == 1
    assert capsys.readouterr().err.startswith("mmswap: the compiler failed: ")
    assert main(["--kind", "cuda"]) == 1
    assert "--arch" in capsys.readouterr().err


def test_the_build_root_is_where_the_variable_says(tmp_path: Path) -> None:
    assert build_root(Surroundings({"MMSWAP_BUILD_ROOT": str(tmp_path)})).value == str(tmp_path)
