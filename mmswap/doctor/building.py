"""The toolchain on the page, a line for each probe. What is missing matters only where an AMD card is built for."""

from __future__ import annotations

from mmswap.doctor.check import Check
from mmswap.doctor.patient import Patient
from mmswap.hip_ext import folders, overrides, toolchain
from mmswap.hip_ext.arch import hip_arch
from mmswap.hip_ext.bare_clang import bare_clang
from mmswap.hip_ext.cuda_toolkit import nvcc
from mmswap.hip_ext.surroundings import Found


def lines(patient: Patient) -> list[Check]:
    """HIP SDK, host compiler, architecture, build root, and the caches that a variable moves."""
    here = patient.here
    live = patient.arch
    amd = live.startswith("gfx")
    compiler = ("MSVC", toolchain.msvc(here)) if here.windows else ("C++ compiler", toolchain.host_compiler(here))
    return [
        _line("HIP SDK", toolchain.hip_sdk(here), amd),
        _line("clang++ for AMD", bare_clang(here), False),
        _line("nvcc", nvcc(here), False),
        _line(*compiler, amd),
        _line("HIP architecture", hip_arch(here, live), amd),
        _line("build root", folders.build_root(here), True),
        *(_line(name, found, True) for name, found in overrides.named(here)),
        *(_line(name, found, True) for name, found in folders.caches(here)),
    ]


def _line(name: str, found: Found, wanted: bool) -> Check:
    """A note where something is wrong, or missing although it is wanted; missing otherwise is nothing."""
    reason = "; ".join(part for part in (found.reason, *found.faults) if part)
    facts = {"value": found.value, "source": found.source, "version": found.version, "faults": list(found.faults)}
    if found.value is None:
        advice = found.advice if wanted or found.faults else ""
        return Check(name, "note" if wanted or found.faults else "ok", "not found", reason, advice, facts)
    value = found.value + (f", version {found.version}" if found.version else "")
    return Check(name, "note" if found.faults else "ok", value, reason, found.advice, facts)
