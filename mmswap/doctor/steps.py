"""What is tried on the card itself, one step after the other: in this process, or in one of its own for a real card.

found = try_all(patient)      # name -> Check, for every step, whatever happens
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from mmswap.doctor import attention, kernels, ops
from mmswap.doctor.check import Check, guarded, sentence
from mmswap.doctor.devices import KERNEL, first_kernel
from mmswap.doctor.isolation import NoCard, isolated, python_words, say, speak
from mmswap.doctor.patient import Patient
from mmswap.doctor.pinning import PINNED, pinned
from mmswap.hip_ext.surroundings import Surroundings

LIMIT = 60.0  # seconds for one step: a first kernel may be compiled or loaded for long
CHILD = "from mmswap.doctor.steps import child; child()"
ATTENTION = "attention "


def names(patient: Patient) -> list[str]:
    """The steps for this card."""
    backends = [ATTENTION + backend for backend in attention.backends()]
    compiled = [kernels.TRITON_KERNEL] if patient.accelerator and kernels.has_triton() else []
    compiled.append(kernels.HIP)
    table = ops.names(patient.card) if patient.card is not None else []
    return [KERNEL, PINNED, *backends, *compiled, *table]


def run(name: str, patient: Patient) -> Check:
    """One step."""
    if name == KERNEL:
        return first_kernel(patient)
    if name == PINNED:
        return pinned(patient)
    if name == kernels.TRITON_KERNEL:
        return kernels.triton_kernel(patient)
    if name == kernels.HIP:
        return kernels.hip_ext(patient)
    if name.startswith(ops.PREFIX):
        return ops.check(name, patient)
    return attention.self_test(patient.card).check(name.removeprefix(ATTENTION))


def try_all(patient: Patient) -> dict[str, Check]:
    """Every step; what comes after a first kernel that fails is not tried."""
    steps = names(patient)
    found: dict[str, Check] = {}
    for name, check in _results(patient, steps):
        found[name] = check
        if name == KERNEL and check.state not in ("ok", "note"):
            why = "the card runs no kernel"
            found |= {rest: Check(rest, "unknown", "not tried", why) for rest in steps if rest not in found}
            break
    return found


def _results(patient: Patient, steps: Sequence[str]) -> Iterator[tuple[str, Check]]:
    """From a process of its own where a real card may take it down; from here where only this one sees the card."""
    left, why = list(steps), ""
    if patient.accelerator is not None and patient.backend is None:
        assert patient.card is not None
        try:
            for name, check in isolated(python_words(CHILD, patient.card.spec), steps, LIMIT):
                left.remove(name)  # whatever comes, it has its answer: a step that ended a process is not tried here
                yield name, check
            return
        except (NoCard, OSError) as error:
            why = f"tried in this process, because another one cannot do it: {sentence(error)}"
    for name in left:
        check = _guarded(name, patient)
        yield name, replace(check, reason="; ".join(part for part in (check.reason, why) if part))


def _guarded(name: str, patient: Patient) -> Check:
    return guarded(name, lambda: run(name, patient), LIMIT)[0]


def _bare(name: str, patient: Patient) -> Check:
    """Without a limit of its own: the other process is ended by the one that waits for it."""
    try:
        return run(name, patient)
    except Exception as error:
        return Check(name, "unknown", "failed", sentence(error))


def child() -> None:
    """The other process: `sys.argv` holds the card and the steps."""
    from mmswap.card.opening import open_card

    spec, *steps = sys.argv[1:]
    patient = Patient(Surroundings.real(), spec)
    try:
        patient.take(open_card(spec))
    except Exception as error:
        say({"no card": sentence(error)})
        return
    speak(steps, lambda name: _bare(name, patient))
