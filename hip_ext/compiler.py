"""Compilers' command lines, as lists of words that no shell sees, for sources that lie in the folder where they run.

    plan(Surroundings.real(), "hip", ("gfx1100",)) -> Plan(commands=(("/opt/rocm/bin/hipcc", "-x", "hip", ...), ...))

Names of files are relative and plain: whatever the user is called, a compiler reads no path but those of its own SDK.
Starts nothing but the compilers' `--version` and Microsoft's own script of variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mmswap.hip_ext import toolchain
from mmswap.hip_ext.bare_clang import bare_clang
from mmswap.hip_ext.cuda_toolkit import nvcc
from mmswap.hip_ext.recipe import BARE, FLAGS, UNIT
from mmswap.hip_ext.surroundings import Found, Surroundings

PRODUCT = "product.dll"
"""On every system. Not .lib: beside a library Windows' linker writes one of that name."""

_OBJECT = "mmswap_hip.o"
_VARIABLES, _SCRIPT = "variables.bat", "MMSWAP_VCVARS"
_LIMIT = 120.0  # seconds for Microsoft's script, which is slow at its first start


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run, one after another, in the folder of the sources; the last one writes `PRODUCT`.

    Attributes:
        msvc: vcvars64.bat, whose variables the commands need; None: those that are there do.
    """

    commands: tuple[tuple[str, ...], ...]
    msvc: Path | None = None


def plan(here: Surroundings, kind: str, archs: tuple[str, ...]) -> Plan | Found:
    """A library for AMD (`hip`) or NVIDIA (`cuda`); what is missing otherwise."""
    return _cuda(here, archs) if kind == "cuda" else _hip(here, archs)


def _hip(here: Surroundings, archs: tuple[str, ...]) -> Plan | Found:
    sdk = toolchain.hip_sdk(here)
    compiler = toolchain.hip_compiler(here, Path(sdk.value)) if sdk.value else None
    targets = (*(f"--offload-arch={arch}" for arch in archs), *FLAGS, *BARE)
    if here.windows:
        if sdk.value is None or compiler is None:
            return sdk
        words = (str(compiler), "-x", "hip", *targets, f"--rocm-path={sdk.value}")
        return _by_msvc(here, (*words, "-shared", UNIT, "-o", PRODUCT))
    if sdk.value is None or compiler is None:
        bare = bare_clang(here)
        if bare.value is None:
            return replace(
                sdk, advice=f"{sdk.advice}; or {bare.advice}", faults=(*sdk.faults, bare.reason, *bare.faults)
            )
        words, linker = (bare.value, "-x", "hip", *targets), Found(bare.value, bare.source, "")
    else:
        words = (str(compiler), "-x", "hip", *targets, f"--rocm-path={sdk.value}")
        linker = toolchain.plain_linker(here, Path(sdk.value))
    if linker.value is None:
        return linker
    # linked apart from compiling: hipcc would add a HIP runtime, and torch has loaded its own
    return Plan(((*words, "-fPIC", "-c", UNIT, "-o", _OBJECT), (linker.value, "-shared", _OBJECT, "-o", PRODUCT)))


def _cuda(here: Surroundings, archs: tuple[str, ...]) -> Plan | Found:
    found = nvcc(here)
    if found.value is None:
        return found
    codes = [arch.removeprefix("sm_") for arch in archs]
    words = (found.value, "-x", "cu", *(f"-gencode=arch=compute_{code},code=sm_{code}" for code in codes), *FLAGS)
    if here.windows:
        return _by_msvc(here, (*words, "-shared", UNIT, "-o", PRODUCT))
    return Plan(((*words, "-shared", "-Xcompiler", "-fPIC", UNIT, "-o", PRODUCT),))


def _by_msvc(here: Surroundings, words: tuple[str, ...]) -> Plan | Found:
    """Headers and linker of Windows are Microsoft's."""
    tools = toolchain.msvc(here)
    if tools.value is None:
        return tools
    return Plan((words,), None if tools.source == "PATH" else Path(tools.value))


def variables(here: Surroundings, script: Path, folder: Path) -> Mapping[str, str]:
    """The variables that Microsoft's compiler needs, as vcvars64.bat sets them.

    Raises:
        OSError: it could not be run, or set nothing.
    """
    # the path goes by a variable: what encoding a .bat is read in, nobody knows; `call` halves percent signs once more
    asked = replace(here, environ={**here.environ, _SCRIPT: str(script).replace("%", "%%")})
    (folder / _VARIABLES).write_bytes(f'@call "%{_SCRIPT}%" >nul\r\n@if errorlevel 1 exit /b 1\r\n@set\r\n'.encode())
    said = asked.run(["cmd", "/u", "/d", "/c", _VARIABLES], _LIMIT, folder)
    found = dict(line.split("=", 1) for line in said.splitlines() if "=" in line[1:])
    upper = {name.upper(): value for name, value in found.items()}  # Windows' names have no case
    if "LIB" not in upper:
        raise OSError(f"{script} sets no LIB")
    return upper
