"""Native kernels on Windows itself, or Wine: which runtime is loaded, compilers behind .bat files, vcvars64.bat."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
from windows.installed import add_houses

add_houses()

from fake_sdk import FakeSdk  # noqa: E402

from mmswap.errors import KernelError  # noqa: E402
from mmswap.hip_ext import runtime  # noqa: E402
from mmswap.hip_ext.build import build  # noqa: E402
from mmswap.hip_ext.recipe import Target  # noqa: E402
from mmswap.hip_ext.surroundings import Surroundings  # noqa: E402
from mmswap.hip_ext.toolchain import msvc  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform != "win32", reason="needs Windows, or scripts/test-windows")
SCRIPT = Path(__file__).parents[2] / "scripts" / "build-windows.bat"
ODD = "Žluťoučký 用户"
TARGET = Target("hip", ("gfx1100",), "7.2")


def test_a_loaded_runtime_is_found_by_its_path_and_handle(fakes: Path) -> None:
    library = ctypes.CDLL(str(fakes / "amdhip64_7.dll"))
    (path,) = runtime.modules("amdhip64")
    assert Path(path).name.lower() == "amdhip64_7.dll"
    opened = runtime.opened(path)
    assert opened is not None
    assert opened._handle == library._handle
    assert runtime.opened(path.replace("amdhip64_7", "amdhip64_6")) is None
    assert runtime.modules("hiprtc") == []
    assert runtime.loaded() == f"{path} is no HIP runtime", "the fake knows no hipRuntimeGetVersion"


@pytest.fixture
def sdk(tmp_path: Path) -> FakeSdk:
    found = FakeSdk(tmp_path / "Program Files" / "AMD" / "ROCm" / "7.2")
    found.add("hipcc")
    return found


def here(sdk: FakeSdk, vcvars: Path) -> Surroundings:
    environ = {name: value for name, value in os.environ.items() if name.upper() not in ("PATH", "LIB", "INCLUDE")}
    paths = os.environ.get("SYSTEMROOT", r"C:\windows") + r"\system32"
    return Surroundings({**environ, "PATH": paths, "HIP_PATH": str(sdk.folder), "VCVARS64": str(vcvars)})


def test_a_build_runs_through_bat_files_below_spaces_and_odd_letters(sdk: FakeSdk, tmp_path: Path) -> None:
    vcvars = tmp_path / f"Build Tools 100% {ODD}" / "vcvars64.bat"
    vcvars.parent.mkdir()
    vcvars.write_bytes(b"@set LIB=C:\\kits\\lib of all\r\n@set INCLUDE=x\r\n@echo a banner\r\n")
    assert msvc(here(sdk, vcvars)).source == "VCVARS64"
    product = build(TARGET, here(sdk, vcvars), tmp_path / ODD)
    assert product.read_bytes().startswith(b"made by hipcc")
    call = sdk.compiled("hipcc")
    assert f"--rocm-path={sdk.folder}" in call["words"]
    assert "-shared" in call["words"]
    assert [path.name for path in (tmp_path / ODD).iterdir()] == [product.name]


def test_a_script_of_variables_that_fails_is_told(sdk: FakeSdk, tmp_path: Path) -> None:
    vcvars = tmp_path / "vcvars64.bat"
    vcvars.write_bytes(b"@exit /b 1\r\n")
    with pytest.raises(KernelError, match="the compiler failed"):
        build(TARGET, here(sdk, vcvars), tmp_path / "cache")
    assert sdk.calls("hipcc") == [] or all("-o" not in call["words"] for call in sdk.calls("hipcc"))


def test_the_script_for_people_says_which_python_it_asked(tmp_path: Path) -> None:
    missing = tmp_path / "no Python here" / "python.exe"
    done = subprocess.run(
        ["cmd", "/d", "/c", str(SCRIPT), "gfx1100"], env={**os.environ, "PYTHON": str(missing)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert f'mmswap is not installed in "{missing}"' in done.stdout.decode("utf-8", "replace")
