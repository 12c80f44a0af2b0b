"""torch's HIP runtime is found where it is loaded, and no second one is loaded; hiprtc beside it; kernels by both.

In processes of their own, one without and one with a runtime: what is loaded stays there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from native import CLANG, CSRC

from mmswap.hip_ext import runtime
from mmswap.hip_ext.hiprtc import _neighbours
from mmswap.hip_ext.recipe import BARE, FLAGS, UNIT, Target

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="libraries are built by gcc")

START = """
import contextlib, ctypes, json, sys
from pathlib import Path
import torch
from mmswap.errors import KernelError
from mmswap.hip_ext import code, hiprtc, library, live, recipe, runtime, supply
from mmswap.hip_ext.interface import DTYPES, STRUCTS
from mmswap.hip_ext.surroundings import Surroundings

folder = Path(sys.argv[1])
card = torch.device("cuda", 0)
gfx1030 = live.Live("hip", "gfx1030", "7.2")
answers = {}

def answer(call):
    try:
        answers[call.__name__] = call()
    except KernelError as error:
        answers[call.__name__] = str(error)

def here(**variables):
    known = {"MMSWAP_BUILD_ROOT": str(folder / "cache"), "PATH": ""}
    return Surroundings({**known, **variables}, windows=False, root=folder / "root")
"""
WITHOUT = """
@answer
def nothing_loaded():
    return [runtime.loaded(), str(library.load(folder / "libhiprtc.so.7", "hip")), runtime.modules("amdhip64")]

@answer
def other_functions():
    return str(library.load(folder / "libhiprtc.so.7", "cuda"))
"""
WITH = """
hip = ctypes.CDLL(str(folder / "libamdhip64.so.7"))  # as torch does
hip.fake_told.restype = ctypes.c_char_p
torch.cuda.device = lambda device: contextlib.nullcontext()
norm = STRUCTS["mms_norm"](x=4096, out=4096, rows=7, features=64, dtype=DTYPES["F16"])

@answer
def second_runtime():
    found = []
    for text in (b"libamdhip64.so.6 libm.so.6", b"libamdhip64.so.7", None):
        other = folder / ("missing.so" if text is None else "other.so")
        if text is not None:
            other.write_bytes(text)
        found.append(str(library.load(other, "hip")))
    return found

@answer
def first_use():
    steps = []
    for building in (False, True, False):
        found = supply.choose(gfx1030, card, here(), building=building)
        steps.append([type(found).__name__, str(getattr(found, "origin", "") if building else found)[:80]])
    again = supply.choose(gfx1030, card, here(), building=False)
    return [*steps, Path(again.origin).name]

@answer
def launchers():
    if not (folder / "launchers.so").exists():
        return None
    made = library.load(folder / "launchers.so", "hip")
    made.mms_rms_norm(norm, 77)
    said = [str(made.origin) == str(folder / "launchers.so"), hip.fake_registered(), hip.fake_told().decode().strip()]
    hip.fake_answer(98)
    try:
        made.mms_rms_norm(norm, 77)
    except KernelError as error:
        said.append(str(error))
    hip.fake_answer(0)
    hip.fake_forget()
    return said

found = runtime.loaded()

@answer
def the_loaded_one():
    return [found.version, found.path == str(folder / "libamdhip64.so.7"), found.library._handle == hip._handle]

@answer
def beside_it():
    rtc = hiprtc.find(found.path, here())
    return [rtc._name == str(folder / "libhiprtc.so.7"), len(runtime.modules("amdhip64"))]

@answer
def started():
    made = code.CodeLibrary(hiprtc.compile_code(hiprtc.find(found.path, here()), "gfx1030"), found, "hiprtc")
    made.mms_rms_norm(norm, 77)
    return hip.fake_told().decode().strip()

@answer
def not_loaded():
    code.CodeLibrary(b"nonsense here", found, "")

@answer
def not_found():
    code.CodeLibrary(b"CODE gfx1030", found, "").mms_rotary_embedding(STRUCTS["mms_rotary"](), 0)

@answer
def not_started():
    hip.fake_answer(98)
    code.CodeLibrary(b"CODE gfx1030", found, "").mms_rms_norm(norm, 0)

@answer
def not_compiled():
    hiprtc.compile_code(hiprtc.find(found.path, here()), "gfx1031")

@answer
def not_kept():
    place = folder / "root" / "file"
    place.parent.mkdir(exist_ok=True)
    place.write_text("")
    return supply.choose(gfx1030, card, here(MMSWAP_BUILD_ROOT=str(place)), building=True).origin

@answer
def neither():
    surroundings = here(MMSWAP_HIPRTC=str(folder / "nothing.so"))
    return str(supply.choose(live.Live("hip", "gfx1031", "7.2"), card, surroundings, building=True))

@answer
def unfit():
    return str(supply.choose(gfx1030, card, here(MMSWAP_HIP_ARCH="gfx90a:sramecc+"), building=True))

@answer
def by_hand():
    surroundings = here(MMSWAP_HIP_LIBRARY=str(folder / "mine.so"))
    return [str(supply.choose(gfx1030, card, surroundings, building=building)) for building in (False, True)]
"""
END = """
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as torch has one, with a space and letters beyond ASCII."""
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc")
    folder = tmp_path_factory.mktemp("torch lib 用户")
    for name in ("libamdhip64.so.7", "libhiprtc.so.7"):
        words = ["gcc", "-w", "-shared", "-fPIC", f"-Wl,-soname,{name}", str(HERE / "fake_runtime.c"), "-o"]
        subprocess.run([*words, str(folder / name)], check=True)
    (folder / "libhiprtc-builtins.so.7").write_bytes(b"")
    if shutil.which(CLANG):
        _launchers(folder)
    return folder


def _launchers(folder: Path) -> None:
    """The launchers as they are on an AMD machine, without the kernels: the half that runs on the processor."""
    made, library = folder / "host.o", folder / "launchers.so"
    words = ["-x", "hip", "--offload-arch=gfx1100", "--cuda-host-only", *BARE, *FLAGS, "-O1", "-fPIC", "-c"]
    subprocess.run([CLANG, *words, str(CSRC / UNIT), "-o", str(made)], check=True)
    kernels = set(re.findall(rb"__hip_fatbin_\w+", made.read_bytes()))
    given = [f"-Wl,--defsym={name.decode()}=0" for name in kernels]
    subprocess.run(["gcc", "-shared", *given, str(made), "-o", str(library)], check=True)


@pytest.fixture(scope="module")
def without(libraries: Path) -> dict[str, Any]:
    return _answers(libraries, WITHOUT)


@pytest.fixture(scope="module")
def loaded(libraries: Path) -> dict[str, Any]:
    return _answers(libraries, WITH)


def _answers(libraries: Path, code: str) -> dict[str, Any]:
    words = [sys.executable, "-c", START + code + END, str(libraries)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=HERE, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_without_a_loaded_runtime_nothing_is_loaded(without: dict[str, Any]) -> None:
    why = "no HIP runtime is loaded: this torch is not built for ROCm"
    assert without["nothing_loaded"] == [why, f"{why}; install torch for ROCm", []]


def test_a_library_whose_functions_are_others_is_none(without: dict[str, Any]) -> None:
    assert "cannot be loaded" in without["other_functions"]
    assert "undefined symbol" in without["other_functions"]


def test_the_runtime_that_is_loaded_is_used_and_hiprtc_is_the_one_beside_it(loaded: dict[str, Any]) -> None:
    assert loaded["the_loaded_one"] == ["7.2", True, True]
    assert loaded["beside_it"] == [True, 1]


def test_a_library_that_would_bring_a_second_runtime_is_refused(loaded: dict[str, Any]) -> None:
    second, same, missing = loaded["second_runtime"]
    assert "would load libamdhip64.so.6, a second HIP runtime beside torch's libamdhip64.so.7" in second
    assert "cannot be loaded" in same
    assert "missing.so cannot be read (No such file or directory" in missing


def test_a_kernel_starts_with_its_blocks_and_the_stream_that_was_given(loaded: dict[str, Any]) -> None:
    assert loaded["started"] == "mms_k_norm 7 1 1 256 1 1 0 stream 77 first 4096"


@pytest.mark.skipif(shutil.which(CLANG) is None, reason=f"there is no {CLANG}")
def test_launchers_register_with_the_loaded_runtime_and_start_by_it(loaded: dict[str, Any]) -> None:
    origin, registered, started, refused = loaded["launchers"]
    assert origin
    assert registered > 30
    assert started == "mms_k_norm 7 1 1 256 1 1 0 stream 77 first 4096"
    words = "the runtime refused the launch: invalid device function, code 98 (status 1098)"
    assert refused == f"mms_rms_norm was not started: {words}; use --backend reference."


def test_every_status_is_looked_at(loaded: dict[str, Any]) -> None:
    end = "; use --backend reference."
    assert loaded["not_loaded"] == f"A native kernel could not be loaded: some error, code 209{end}"
    assert loaded["not_found"] == f"A native kernel could not be found (mms_k_rotary): some error, code 500{end}"
    words = "A native kernel could not be started (mms_k_norm): invalid device function, code 98"
    assert loaded["not_started"] == f"{words}{end}"
    assert loaded["not_compiled"] == "hiprtc refuses the kernels for gfx1031: kernels.h:3:1: error: no such card"


def test_without_a_compiler_the_runtimes_own_builds_and_the_next_process_finds_it(loaded: dict[str, Any]) -> None:
    before, built, after, name = loaded["first_use"]
    assert before == ["Missing", "no native kernels are built for gfx1030 yet; --backend hip builds them once"]
    assert built == ["CodeLibrary", "hiprtc"]
    assert after[0] == "CodeLibrary"
    assert name == Target("code", ("gfx1030",), "7.2").file(windows=False)


def test_where_nothing_can_be_kept_hiprtc_compiles_at_every_start_and_says_so(loaded: dict[str, Any]) -> None:
    assert loaded["not_kept"].startswith("hiprtc, at every start, because ")
    assert "file cannot be written to" in loaded["not_kept"]


def test_with_neither_compiler_nor_hiprtc_both_reasons_are_told(loaded: dict[str, Any]) -> None:
    assert loaded["neither"].startswith("no hipcc or clang++ in HIP_PATH")
    assert "nothing.so cannot be loaded" in loaded["neither"]


def test_cards_that_the_kernels_are_not_for_are_refused(loaded: dict[str, Any]) -> None:
    assert loaded["unfit"].startswith("the kernels are for RDNA cards, and gfx90a is none")


def test_who_names_a_library_gets_that_one_or_its_reason(loaded: dict[str, Any]) -> None:
    assert len(set(loaded["by_hand"])) == 1
    assert "mine.so" in loaded["by_hand"][0]


def test_loaded_libraries_are_read_from_the_processs_own_list(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    odd = "/opt/a folder/用户/libamdhip64.so.7"
    lines = [
        f"7f00-7f01 r-xp 00000000 08:01 1   {odd}",
        f"7f01-7f02 rw-p 00000000 08:01 1   {odd}",
        "7f02-7f03 r-xp 00000000 00:00 0",
        "7f02-7f03 r-xp 00000000 08:01 2   /lib/libamdhip64.so.7.old/libm.so",
        "7f02-7f03 r-xp 00000000 08:01 2   /lib/libhiprtc-builtins.so.7",
    ]
    maps.write_text("\n".join(lines), encoding="utf-8")
    assert runtime.modules("amdhip64", maps) == [odd]
    assert runtime.modules("hiprtc", maps) == []
    assert runtime.modules("amdhip64", tmp_path / "none") == []


def test_versions_and_names_are_read_right(libraries: Path) -> None:
    assert runtime.version_text(60443482) == "6.4"
    assert runtime.named_in(b"\0amdhip64_7.dll\0 libamdhip64.so.6 AMDHIP64.DLL") == [
        "AMDHIP64.DLL", "amdhip64_7.dll", "libamdhip64.so.6"
    ]  # fmt: skip
    assert [Path(path).name for path in _neighbours(libraries / "libamdhip64.so.7")] == ["libhiprtc.so.7"]
    assert _neighbours(Path("/nowhere/at all/x.so")) == []
