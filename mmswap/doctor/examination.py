"""Every check in its order, each isolated and with its time limit: the page's lines, as they are found.

    for section, check in examine(Patient(Surroundings.real(), "auto")): ...

What torch is needed for is told so where torch cannot be imported; the rest of the page is there all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from mmswap.doctor import building, carried, kernels, system
from mmswap.doctor.check import Check, attempt, guarded, sentence
from mmswap.doctor.patient import Patient
from mmswap.errors import OptionError

QUICK = 20.0  # seconds
LONG = 120.0  # imports of torch, drivers that start
Line = tuple[str, Check]
Found = Check | Iterable[Check]


def examine(patient: Patient, *, full: bool = False) -> Iterator[Line]:
    """Section and check. Afterwards the patient's card is open, if it could be opened.

    Args:
        full: load the carried model, too.

    Raises:
        OptionError: there is no such card.
    """
    here = patient.here
    yield from _under("system", "os", lambda: system.operating_system(here))
    yield from _under("system", "processor", system.processor)
    yield from _under("system", "driver", lambda: system.driver(here))
    yield from _under("system", "python", system.python)
    torch = tuple(_fatal(check) for check in guarded("torch", system.torch_build, LONG))
    yield from (("system", check) for check in torch)
    works = torch[0].state in ("ok", "note")
    if works:
        yield from _under("system", "torch.distributed", system.distributed)
    yield from _under("system", "packages", system.packages, LONG)
    yield from _under("system", "amdsmi", kernels.amdsmi, kernels.IMPORT_LIMIT + 5)
    yield from _under("system", "variables", lambda: system.variables(here))
    if works:
        yield from _about_card(patient)
    else:
        yield "devices", Check("card", "unknown", "not looked for", "torch cannot be imported")
    yield from _under("kernels", "triton", lambda: kernels.triton(patient), kernels.IMPORT_LIMIT + 5)
    yield from _under("toolchain", "toolchain", lambda: building.lines(patient), LONG)
    if works:
        yield from _about_host()
    check = carried.answers if full else carried.whole
    yield from _under("model", carried.NAME, lambda: check(carried.folder()), LONG)


def open_patient(patient: Patient) -> Check | None:
    """Opens the card; None when that worked.

    Raises:
        OptionError: the name is no card's.
    """
    from mmswap.card.choosing import Unusable
    from mmswap.card.opening import open_card

    outcome = attempt(lambda: open_card(patient.spec, patient.backend), LONG)
    if outcome.value is not None:
        patient.take(outcome.value)
        return None
    error = outcome.error
    if isinstance(error, OptionError) and not isinstance(error, Unusable) and patient.spec.strip() != "cuda":
        raise error
    if error is None:
        return Check("card", "broken", "does not open", f"it did not answer within {LONG:g} s", "restart the machine")
    reason = str(error) if isinstance(error, OptionError) else sentence(error)
    return Check("card", "broken", "does not open", reason, "--card cpu works without it")


def _fatal(check: Check) -> Check:
    """Without an answer (it hangs, it ends the process that imports it) torch is as good as broken."""
    return replace(check, state="broken", advice="reinstall torch") if check.state == "unknown" else check


def _about_card(patient: Patient) -> Iterator[Line]:
    """Devices, memory, attention and ops."""
    from mmswap.doctor import attention, devices, memory, ops, pinning, steps

    listed = guarded("accelerators", lambda: devices.accelerators(patient), LONG)
    failed = open_patient(patient) if patient.card is None else None
    yield from (("devices", check) for check in listed)
    if failed is not None or patient.card is None:
        yield "devices", failed or Check("card", "unknown", "does not open")
        return
    card = patient.card
    yield from _under("devices", "card", lambda: devices.chosen(patient, list(listed)))
    tried = steps.try_all(patient)
    yield "devices", tried.pop(devices.KERNEL)
    yield from _under("memory", "sources", lambda: memory.sources(card))
    yield from _under("memory", "free", lambda: memory.free(card))
    yield from _under("memory", "WDDM budget", lambda: memory.wddm(patient))
    yield from _under("memory", "spill", lambda: memory.spill(card))
    yield "memory", tried.pop(pinning.PINNED)
    compiled = [tried.pop(name) for name in (kernels.TRITON_KERNEL, kernels.HIP) if name in tried]
    table = [tried.pop(name) for name in list(tried) if name.startswith(ops.PREFIX)]
    yield from (("attention", check) for check in tried.values())
    by_backend = {name.removeprefix(steps.ATTENTION): check for name, check in tried.items()}
    yield from _under(
        "attention", "attention", lambda: attention.verdict(by_backend, patient.arch, patient.here.environ)
    )
    yield from (("ops", check) for check in table)
    yield from (("kernels", check) for check in compiled)


def _about_host() -> Iterator[Line]:
    from mmswap.card.host import HostCard
    from mmswap.doctor import host

    yield from _under("host", "host memory", lambda: host.host_memory(HostCard()))
    yield from _under("host", "host bandwidth", host.bandwidth)


def _under(section: str, name: str, call: Callable[[], Found], limit: float = QUICK) -> Iterator[Line]:
    yield from ((section, check) for check in guarded(name, call, limit))
