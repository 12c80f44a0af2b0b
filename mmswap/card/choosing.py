"""Which accelerator runs the model, and whether it can run anything at all. Knows no memory beyond a card's size.

    index, why = choose(backend)          # Unusable, one sentence, if none can run a kernel

A device that torch lists may still have no code in this torch build: only a kernel that ran proves otherwise.
"""

from __future__ import annotations

import logging
import os

from mmswap.card.backend import Backend, Properties
from mmswap.card.outside import is_integrated
from mmswap.errors import OptionError, told
from mmswap.units import format_bytes

log = logging.getLogger(__name__)

OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"


class Unusable(OptionError):
    """An accelerator that is listed, and cannot be used; the message names it and what would help."""


def choose(backend: Backend) -> tuple[int, str]:
    """Index and reason: not integrated before integrated, then the most memory, then the first; of those that work.

    Raises:
        Unusable: no device can run a kernel; the message is the first one's.
    """
    found = {index: _properties(backend, index) for index in range(backend.count())}
    failures = {index: one for index, one in found.items() if isinstance(one, str)}
    usable = {index: one for index, one in found.items() if not isinstance(one, str)}
    order = sorted(usable, key=lambda index: (is_integrated(usable[index]), -usable[index].total, index))
    for index in order:
        failure = trial(backend, index)
        if not failure:
            return index, _why(usable, failures, usable[index])
        failures[index] = failure
        if len(order) > 1:
            log.warning(failure)
    raise Unusable(next((failures[index] for index in (*order, *failures)), "there is no accelerator."))


def require_kernel(backend: Backend, index: int) -> None:
    """Raises `Unusable` unless a kernel runs on the device."""
    found = _properties(backend, index)
    failure = found if isinstance(found, str) else trial(backend, index)
    if failure:
        raise Unusable(failure)


def trial(backend: Backend, index: int) -> str:
    """Runs one tiny kernel: empty if it ran, else one sentence that says what is missing."""
    try:
        backend.try_kernel(index)
    except Exception as error:
        if isinstance(error, AssertionError) and "not compiled with CUDA" in str(error):
            return ""  # a stand-in for devices over a torch that has no kernels for any
        return _advice(backend, index, error)
    return ""


def _advice(backend: Backend, index: int, error: Exception) -> str:
    found = backend.properties(index)
    cause = told(error)
    which = found.arch or "an architecture that is not told"
    kind = "ROCm" if backend.kind() == "hip" else "CUDA"
    built = ", ".join(backend.compiled_for())
    has = f"this torch is built for {built}" if built else "this torch does not say what it is built for"
    sentence = (
        f"cuda:{index}, {found.name} ({which}), is listed but cannot run a kernel ({cause}): {has}; install a {kind} "
        f"wheel of torch with code for {found.arch or 'this card'} and a driver that fits it, or use --card cpu"
    )
    if backend.kind() == "hip" and backend.platform() == "win32" and os.environ.get(OVERRIDE):
        sentence += f" ({OVERRIDE} does nothing on Windows)"
    return sentence + "."


def _properties(backend: Backend, index: int) -> Properties | str:
    try:
        return backend.properties(index)
    except Exception as error:
        return f"cuda:{index} cannot be asked what it is ({told(error)}); use --card cpu."


def _why(usable: dict[int, Properties], failures: dict[int, str], chosen: Properties) -> str:
    if len(usable) == 1 and not failures:
        return "it is the only accelerator"
    listing = ", ".join(
        f"cuda:{index} {one.name} with {format_bytes(one.total)}"
        f"{' (integrated)' if is_integrated(one) else ''}{' (runs no kernel)' if index in failures else ''}"
        for index, one in usable.items()
    )
    merits = ["works"] if any(index in failures for index in usable) else []
    if any(map(is_integrated, usable.values())) and not is_integrated(chosen):
        merits.append("is no part of the processor")
    which = f" that {' and '.join(merits)}," if merits else ""
    return f"it is the largest{which} of {listing}"
