"""Which accelerators torch sees, whether they run a kernel at all, and which card was chosen and why."""

from __future__ import annotations

import warnings

from mmswap.card.backend import Backend, TorchBackend
from mmswap.card.choosing import trial
from mmswap.card.outside import is_integrated
from mmswap.doctor.check import Check, attempt, sentence
from mmswap.doctor.patient import Patient
from mmswap.hip_ext.surroundings import Surroundings
from mmswap.units import format_bytes

VENDORS = {"0x1002": "AMD", "0x10de": "NVIDIA"}
KERNEL = "first kernel"
KERNEL_LIMIT = 60.0  # seconds


def accelerators(patient: Patient) -> list[Check]:
    """One line for each device that torch sees, or one that says why there is none."""
    backend = patient.backend or TorchBackend()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        count = backend.count()
    if count == 0:
        return [_none(patient.here, [str(one.message).partition(" (Triggered")[0] for one in heard])]
    return [_accelerator(backend, index) for index in range(count)]


def _accelerator(backend: Backend, index: int) -> Check:
    name = f"cuda:{index}"
    try:
        found = backend.properties(index)
    except Exception as error:
        return Check(name, "note", "does not say what it is", sentence(error), facts={"kernel": False})
    tried = attempt(lambda: trial(backend, index), KERNEL_LIMIT)
    failure = tried.value or ("" if tried.error is None else sentence(tried.error))
    failure = f"its first kernel did not end within {KERNEL_LIMIT:g} s" if tried.late else failure
    integrated = is_integrated(found)
    traits = [found.arch] if found.arch else []
    traits += ["part of the processor"] if integrated else []
    traits += ["RUNS NO KERNEL"] if failure else []
    value = ", ".join([found.name, format_bytes(found.total), *traits])
    facts = {"name": found.name, "total": found.total, "integrated": integrated, "arch": found.arch}
    facts |= {"pci": found.pci, "kernel": not failure}
    return Check(name, "note" if failure else "ok", value, failure, facts=facts)


def _none(here: Surroundings, heard: list[str]) -> Check:
    """No accelerator: a machine without one, or a torch that cannot use the one that is there."""
    import torch

    listed = system_cards(here)
    built = "HIP" if getattr(torch.version, "hip", None) else "CUDA" if torch.version.cuda else ""
    torch_is = f"this torch is built for {built or 'the processor alone'}" + (" and finds no device" if built else "")
    reason = "; ".join([torch_is, *heard[:1]])
    facts = {"system_lists": listed}
    if not listed:
        return Check("accelerators", "note" if heard else "ok", "torch sees none", reason, facts=facts)
    reason = f"the system lists a card of {' and '.join(listed)}, and {reason}"
    advice = f"install the {'ROCm' if listed == ['AMD'] else 'CUDA'} build of torch"
    if built:
        advice = "check the driver, the variables that hide devices, and that you may open /dev/kfd or /dev/nvidia0"
    return Check("accelerators", "note", "torch sees none", reason, advice, facts)


def system_cards(here: Surroundings) -> list[str]:
    """Vendors of the cards that Linux lists, AMD and NVIDIA alone; nothing elsewhere."""
    found = []
    try:
        files = [] if here.windows else sorted(here.place("/sys/class/drm").glob("card*/device/vendor"))
    except OSError:
        return []
    for file in files:
        try:
            found.append(VENDORS.get(file.read_text(encoding="ascii", errors="replace").strip(), ""))
        except OSError:
            continue
    return sorted({vendor for vendor in found if vendor})


def chosen(patient: Patient, listed: list[Check]) -> Check:
    """The card that everything below is about.

    Args:
        listed: the lines of the accelerators. Where some are there and none works, the processor is no choice.
    """
    card = patient.card
    assert card is not None
    asked = "" if patient.spec == "auto" else f"--card {patient.spec}: "
    total = card.total()
    facts = {"spec": card.spec, "name": card.name, "total": total, "choice": card.choice, "can_swap": card.can_swap}
    value = f"{card.spec}, {card.name}, {format_bytes(total)}"
    dead = [check for check in listed if check.facts.get("kernel") is False]
    if patient.spec == "auto" and patient.accelerator is None and dead:
        return Check("card", "broken", value, card.choice, "mend that, or say --card cpu if it is meant so", facts)
    return Check("card", "ok", value, asked + (card.choice or "it was asked for"), facts=facts)


def first_kernel(patient: Patient) -> Check:
    """One tiny kernel on the chosen card: a device that is listed may still have no code in this torch."""
    card = patient.accelerator
    if card is None:
        return Check(KERNEL, "ok", "none to try: this card computes on the processor")
    failure = trial(card.backend, card.index)
    if failure:
        return Check(KERNEL, "broken", f"fails on {patient.arch or card.name}", failure, facts={"arch": patient.arch})
    return Check(KERNEL, "ok", f"ran on {patient.arch or card.name}", facts={"arch": patient.arch})
