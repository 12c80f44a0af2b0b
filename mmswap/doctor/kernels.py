"""What computes beside torch's own kernels: Triton and mmswap's native kernels. Neither is needed; both may be broken.

Triton is imported in a process of its own: a library that crashes at load, or never returns, costs one line.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

from mmswap.doctor.check import Check, sentence
from mmswap.doctor.isolation import python_environment, python_words
from mmswap.doctor.patient import Patient
from mmswap.hip_ext.surroundings import run_program

TRITON = "triton"
TRITON_KERNEL = "triton kernel"
HIP = "hip_ext"
IMPORT_LIMIT = 20.0  # seconds


def triton(patient: Patient) -> Check:
    """Version, or the error of its import."""
    wanted = patient.accelerator is not None
    package = "triton-windows" if patient.here.windows else "triton"
    if not _there("triton"):
        advice = f"pip install {package} for faster kernels" if wanted else ""
        return Check(TRITON, "note" if wanted else "ok", "not installed", "plain torch computes", advice)
    version, error = _imported("triton")
    if error:
        advice = f"reinstall {package}, or uninstall it: plain torch computes without it"
        return Check(TRITON, "note", "cannot be imported", error, advice, {"there": True, "works": False})
    return Check(TRITON, "ok", version, facts={"there": True, "works": True, "version": version})


def amdsmi() -> Check:
    """AMD's management library, which nothing here needs: Windows' wheels lack it, elsewhere it is often damaged."""
    if not _there("amdsmi"):
        return Check("amdsmi", "ok", "not installed, and not needed")
    version, error = _imported("amdsmi")
    return Check("amdsmi", "ok", "cannot be imported, and is not needed" if error else version or "there", error)


def triton_kernel(patient: Patient) -> Check:
    """Compiles and runs one small kernel on the card."""
    accelerator = patient.accelerator
    if accelerator is None:
        return Check(TRITON_KERNEL, "ok", "none to try: this card computes on the processor")
    from mmswap.doctor.triton_trial import trial

    try:
        trial(accelerator.device)
    except Exception as error:
        reason = sentence(error)
        return Check(TRITON_KERNEL, "note", "does not compile", reason, "plain torch computes without it")
    return Check(TRITON_KERNEL, "ok", "compiled, ran and was right")


def hip_ext(patient: Patient) -> Check:
    """mmswap's native kernels: which library serves this card, or why none does. Builds nothing."""
    accelerator = patient.accelerator
    if accelerator is None:
        return Check(HIP, "ok", "not used", "this card computes on the processor", facts={"works": False})
    from mmswap.hip_ext.library import Missing
    from mmswap.hip_ext.supply import kernels

    found = kernels(accelerator.device)
    if isinstance(found, Missing):
        return Check(HIP, "ok", "none", found.reason, found.advice, {"works": False})
    return Check(HIP, "ok", found.origin, facts={"works": True, "origin": found.origin})


def has_triton() -> bool:
    """Whether a package of that name could be imported; it is not."""
    return _there("triton")


def _there(name: str) -> bool:
    try:
        return name in sys.modules or find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _imported(name: str) -> tuple[str, str]:
    """Version and error of a module that is imported in another process."""
    code = f"import importlib; m = importlib.import_module({name!r}); print('version', getattr(m, '__version__', ''))"
    try:
        said = run_program(python_words(code), IMPORT_LIMIT, python_environment())
    except Exception as error:  # TimeoutExpired too
        late = isinstance(error, subprocess.TimeoutExpired)
        return "", f"it did not end within {IMPORT_LIMIT:g} s" if late else str(error).removeprefix(
            "it ended with code 1: "
        )
    return said.rpartition("version")[2].strip(), ""
