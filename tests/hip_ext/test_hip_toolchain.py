"""Compilers are found by override, on PATH and in the usual places, spaces or not; or it is said why not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_machine import Machine

from mmswap.hip_ext.surroundings import Surroundings, numbers
from mmswap.hip_ext.toolchain import hip_sdk, host_compiler, msvc

ROCM = r"C:\Program Files\AMD\ROCm"
STUDIO = r"C:\Program Files (x86)\Microsoft Visual Studio"


def test_no_compiler_at_all_says_where_it_looked_and_what_helps(windows: Machine, linux: Machine) -> None:
    for machine, place in ((windows, "Program Files/AMD/ROCm"), (linux, "/opt/rocm*")):
        found = hip_sdk(machine.here)
        assert found.value is None
        assert "HIP_PATH" in found.reason
        assert place in found.reason
        assert "HIP_PATH" in found.advice
        assert found.faults == ()


def test_a_path_with_a_space_reaches_the_compiler_whole(windows: Machine) -> None:
    compiler = windows.program(ROCM + r"\7.2\bin\hipcc.exe")
    windows.environ["HIP_PATH"] = ROCM + "\\7.2\\"
    windows.says["hipcc.exe"] = "HIP version: 7.2.0-fake\nclang version 20"
    found = hip_sdk(windows.here)
    assert (found.source, found.version, found.faults) == ("HIP_PATH", "7.2.0-fake", ())
    assert found.value == str(compiler.parents[1])
    assert windows.started == [[str(compiler), "--version"]]
    assert windows.given[0]["HIP_PLATFORM"] == "amd"


def test_a_real_program_below_a_space_gets_its_arguments_whole(tmp_path: Path) -> None:
    folder = tmp_path / "Program Files" / "Žluťoučký 用户" / "bin"
    folder.mkdir(parents=True)
    (tmp_path / "show.py").write_text("import sys; print(sys.argv[1:])")
    windows = sys.platform == "win32"
    script = folder / ("hipcc.bat" if windows else "hipcc")
    call = f'"{sys.executable}" "{tmp_path / "show.py"}"'
    script.write_text(f"@{call} %*\n" if windows else f'#!/bin/sh\nexec {call} "$@"\n')
    script.chmod(0o755)
    here = Surroundings({**os.environ, "HIP_PATH": str(folder.parent)})
    assert here.run([str(script), "a b", "c"], 30) == "['a b', 'c']"
    assert hip_sdk(here).value == str(folder.parent)
    assert hip_sdk(here).faults == ()


def test_quotes_around_a_variable_are_no_part_of_it(windows: Machine) -> None:
    windows.program(ROCM + r"\6.4\bin\hipcc.bat")
    windows.environ["HIP_PATH"] = f'"{ROCM}\\6.4"'
    assert hip_sdk(windows.here).source == "HIP_PATH"


def test_an_empty_rocm_home_is_ignored_and_said(linux: Machine) -> None:
    linux.environ["ROCM_HOME"] = ""
    linux.program("/opt/rocm/bin/hipcc")
    found = hip_sdk(linux.here)
    assert found.source == "the default folder"
    assert found.faults == ("ROCM_HOME is set but empty, and ignored",)
    linux.environ["HIP_PATH"] = "/opt/rocm"
    assert hip_sdk(linux.here).faults == ("ROCM_HOME is set but empty, and ignored",)


def test_an_override_that_leads_nowhere_is_said_and_the_search_goes_on(linux: Machine) -> None:
    linux.environ |= {"HIP_PATH": "/nowhere", "ROCM_PATH": "/empty"}
    (linux.root / "empty").mkdir(parents=True)
    linux.program("/opt/rocm-6.4.1/bin/hipcc")
    found = hip_sdk(linux.here)
    assert found.value == str(linux.root / "opt/rocm-6.4.1")
    assert "HIP_PATH names" in found.faults[0]
    assert "no such folder" in found.faults[0]
    assert "ROCM_PATH names" in found.faults[1]
    assert "no bin/hipcc" in found.faults[1]


def test_the_variables_go_before_path_and_path_before_the_usual_folders(linux: Machine) -> None:
    for place in ("/a/bin/hipcc", "/b/bin/hipcc", "/c/bin/hipcc", "/d/bin/hipcc", "/opt/rocm/bin/hipcc"):
        linux.program(place)
    linux.environ |= {"HIP_PATH": "/a", "ROCM_PATH": "/b", "ROCM_HOME": "/c", "PATH": "/nowhere:/d/bin"}
    for name, folder in (("HIP_PATH", "a"), ("ROCM_PATH", "b"), ("ROCM_HOME", "c")):
        found = hip_sdk(linux.here)
        assert (found.source, found.value) == (name, str(linux.root / folder))
        del linux.environ[name]
    assert hip_sdk(linux.here).source == "PATH"
    del linux.environ["PATH"]
    assert hip_sdk(linux.here).source == "the default folder"


def test_the_newest_version_is_the_largest_number_and_not_the_last_word(windows: Machine) -> None:
    for version in ("6.10", "6.9", "5.7"):
        windows.program(rf"{ROCM}\{version}\bin\hipcc.exe")
    assert Path(hip_sdk(windows.here).value or "").name == "6.10"
    assert numbers("rocm-6.10.1") == (6, 10, 1)


def test_a_variable_that_names_the_bin_folder_is_understood(linux: Machine) -> None:
    linux.program("/sdk/bin/hipcc")
    linux.environ["HIP_PATH"] = "/sdk/bin"
    assert hip_sdk(linux.here).value == str(linux.root / "sdk")


def test_the_sdk_of_a_python_package_and_a_bare_clang_are_found(linux: Machine) -> None:
    linux.site = [linux.root / "site"]
    linux.program("/site/_rocm_sdk_core/lib/llvm/bin/clang++")
    linux.says["clang++"] = "AMD clang version 22.0.0git"
    found = hip_sdk(linux.here)
    assert found.source == "the Python package _rocm_sdk_core"
    assert found.version == "22.0.0git"


@pytest.mark.parametrize(
    "error", [OSError("it ended with code 1: perl is missing"), subprocess.TimeoutExpired("hipcc", 5)]
)
def test_a_compiler_that_does_not_run_is_found_and_at_fault(linux: Machine, error: OSError) -> None:
    linux.program("/opt/rocm-6.4/bin/hipcc")
    linux.says["hipcc"] = error
    found = hip_sdk(linux.here)
    assert found.version == "6.4"
    assert "does not run" in found.faults[0]
    assert "perl is missing" in found.faults[0] or "5 s" in found.faults[0]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps no such bit")
def test_a_file_that_may_not_be_run_is_no_compiler(linux: Machine) -> None:
    linux.file("/opt/rocm/bin/hipcc")
    assert hip_sdk(linux.here).value is None


def test_vcvars64_overrides_and_a_wrong_one_is_said(windows: Machine) -> None:
    vcvars = windows.file(r"D:\Build Tools\vcvars64.bat")
    windows.environ["vcvars64"] = r"D:\Build Tools\vcvars64.bat"  # Windows' variables know no case
    found = msvc(windows.here)
    assert (found.value, found.source) == (str(vcvars), "VCVARS64")
    windows.environ["vcvars64"] = r"D:\elsewhere.bat"
    found = msvc(windows.here)
    assert found.value is None
    assert "elsewhere.bat" in found.faults[0]
    windows.environ["vcvars64"] = ""
    assert msvc(windows.here).faults == ("VCVARS64 is set but empty",)


def test_vswhere_is_asked_with_whole_arguments_and_its_answer_may_have_odd_letters(windows: Machine) -> None:
    finder = windows.file(STUDIO + r"\Installer\vswhere.exe")
    windows.says["vswhere.exe"] = "C:\\Prográmy 用\\VS\r\n"
    vcvars = windows.file(r"C:\Prográmy 用\VS\VC\Auxiliary\Build\vcvars64.bat")
    windows.file(r"C:\Prográmy 用\VS\VC\Tools\MSVC\14.9.1\x")
    windows.file(r"C:\Prográmy 用\VS\VC\Tools\MSVC\14.44.35207\x")
    found = msvc(windows.here)
    assert (found.value, found.version) == (str(vcvars), "14.44.35207")
    assert windows.started[0][0] == str(finder)
    assert "-utf8" in windows.started[0]
    assert "-property" in windows.started[0]


def test_a_vswhere_that_fails_or_lies_leaves_the_usual_folders(windows: Machine) -> None:
    windows.file(STUDIO + r"\Installer\vswhere.exe")
    windows.says["vswhere.exe"] = OSError("access denied")
    assert "access denied" in msvc(windows.here).reason
    windows.says["vswhere.exe"] = r"C:\gone"
    assert "no Visual Studio" in msvc(windows.here).reason
    old = windows.file(STUDIO + r"\2022\BuildTools\VC\Auxiliary\Build\vcvars64.bat")
    assert msvc(windows.here).value == str(old)
    new = windows.file(r"C:\Program Files\Microsoft Visual Studio\18\Community\VC\Auxiliary\Build\vcvars64.bat")
    assert msvc(windows.here).value == str(new)


def test_a_developer_prompt_is_taken(windows: Machine) -> None:
    compiler = windows.program(r"C:\VS\bin\cl.exe")
    windows.environ |= {"Path": r"C:\Windows;C:\VS\bin", "VCToolsVersion": "14.44"}
    assert (msvc(windows.here).value, msvc(windows.here).version) == (str(compiler), "14.44")


def test_msvc_is_nothing_elsewhere_and_the_host_compiler_nothing_on_windows(windows: Machine, linux: Machine) -> None:
    assert msvc(linux.here).reason == "only Windows needs it"
    assert host_compiler(windows.here).value is None


def test_cxx_overrides_the_host_compiler_and_a_wrong_one_is_said(linux: Machine) -> None:
    linux.program("/usr/bin/g++")
    linux.program("/my tools/clang++")
    linux.environ |= {"PATH": "/usr/bin", "CXX": "/my tools/clang++"}
    assert host_compiler(linux.here).source == "CXX"
    linux.environ["CXX"] = "icpc"
    found = host_compiler(linux.here)
    assert found.value == str(linux.root / "usr/bin/g++")
    assert "CXX names icpc" in found.faults[0]
    del linux.environ["PATH"]
    assert host_compiler(linux.here).value is None


def test_the_probes_import_no_torch() -> None:
    code = (
        "import sys, mmswap.hip_ext.toolchain, mmswap.hip_ext.arch, mmswap.hip_ext.folders, mmswap.doctor.building, "
        "mmswap.doctor.examination; sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, check=False)
    assert done.returncode == 0
