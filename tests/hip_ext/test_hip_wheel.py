"""`MMSWAP_HIP_ARCH=... pip wheel .`: a wheel of this platform with the library in it; without it one for all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from fake_sdk import FakeSdk

from mmswap.hip_ext.recipe import source_files

ROOT = Path(__file__).parents[2]
NEEDED = (
    "setup.py",
    "MANIFEST.in",
    "scripts",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "mmswap",
    "vision",
    "llm",
    "hip_ext",
    "profiles",
)
pytestmark = pytest.mark.skipif(
    find_spec("setuptools") is None or find_spec("setuptools.command.bdist_wheel") is None,
    reason="setuptools is too old to make a wheel",
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a wheel is made of, in a folder with a space."""
    folder = tmp_path_factory.mktemp("a source tree")
    for name in NEEDED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, folder / name)
    return folder


def wheel(tree: Path, **variables: str) -> tuple[list[Path], str]:
    """The wheels that came of it, and what was said."""
    shutil.rmtree(tree / "build", ignore_errors=True)
    shutil.rmtree(tree / "dist", ignore_errors=True)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MMSWAP", "HIP", "ROCM"))}
    done = subprocess.run(
        [sys.executable, "-P", "setup.py", "-q", "bdist_wheel"] if sys.version_info >= (3, 11) else
        [sys.executable, "setup.py", "-q", "bdist_wheel"],
        cwd=tree, env={**environ, **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return sorted((tree / "dist").glob("*.whl")), done.stdout + done.stderr


def test_a_wheel_for_named_architectures_is_of_this_platform_and_holds_the_library(tree: Path, tmp_path: Path) -> None:
    sdk = FakeSdk(tmp_path / "Program Files" / "ROCm")
    sdk.add("hipcc")
    sdk.add("clang++")
    (made,), _ = wheel(tree, MMSWAP_HIP_ARCH="gfx1030;gfx1100", HIP_PATH=str(sdk.folder))
    assert "-py3-none-any" not in made.name
    assert "-py3-none-" in made.name
    names = zipfile.ZipFile(made).namelist()
    built = [name for name in names if name.startswith("mmswap/hip_ext/built/")]
    assert [Path(name).name[:8] for name in sorted(built)] == ["built.js", "gfx1030-"]
    assert "mmswap/hip_ext/csrc/mmswap_hip.cpp" in names
    assert {"--offload-arch=gfx1030", "--offload-arch=gfx1100"} <= set(sdk.compiled("hipcc")["words"])


def test_a_wheel_without_the_variable_is_for_every_platform(tree: Path) -> None:
    (made,), _ = wheel(tree)
    assert made.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(made).namelist()
    assert "mmswap/hip_ext/csrc/mmswap_hip.h" in names
    assert not any("/built/" in name for name in names)


def test_a_wheel_that_cannot_be_built_says_so_and_is_none(tree: Path, tmp_path: Path) -> None:
    sdk = FakeSdk(tmp_path / "ROCm")
    sdk.add("hipcc")
    sdk.breaks("hipcc")
    made, said = wheel(tree, MMSWAP_HIP_ARCH="gfx1100", HIP_PATH=str(sdk.folder))
    assert made == []
    assert "MMSWAP_HIP_ARCH asks for native kernels, and they cannot be built: the compiler failed: " in said
    assert "Traceback" not in said


def test_a_source_archive_holds_all_that_a_build_needs(tree: Path) -> None:
    shutil.rmtree(tree / "dist", ignore_errors=True)
    words = [sys.executable, "setup.py", "-q", "sdist", "--formats=gztar"]
    done = subprocess.run(words, cwd=tree, capture_output=True, text=True, check=False)
    (made,) = (tree / "dist").glob("*.tar.gz")
    with tarfile.open(made) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {f"hip_ext/csrc/{path.name}" for path in source_files()}
    assert sources | {"setup.py", "hip_ext/build.py", "scripts/build-windows.bat"} <= names, done.stderr
