"""Who besides torch knows about a card's memory: the kernel, NVIDIA's library, Windows, the host. Knows no allocator.

    outside = look_outside(found, kind="hip", platform="linux", index=0)

Each is found once, when the card is opened, and asked at every reading. None of them is required.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from mmswap.card import host
from mmswap.card.backend import Kind, Properties
from mmswap.card.budget import DRIVER, Source, adapter_leaves, below, cause_in, unknown, wddm_bounds, wddm_lowers
from mmswap.card.nvml import NvmlCard, find_nvml
from mmswap.card.sysfs import AmdgpuCard, find_amdgpu
from mmswap.card.wddm import SWITCH, Wddm, open_wddm

# Graphics cores that are part of a processor: a torch that does not flag them must not make them the first choice.
_IN_PROCESSORS = re.compile(r"gfx(90c|902|909|1013|103[3567]|1103|115[0-9a-f])", re.IGNORECASE)


@dataclass(slots=True)
class Outside:
    """A sentence in place of a source says why it is not there; None that it does not exist on such a system.

    `counters` tells what Windows moved to host memory where `wddm` is not asked for a budget.
    """

    amdgpu: AmdgpuCard | str | None = None
    nvml: NvmlCard | str | None = None
    wddm: Wddm | str | None = None
    counters: Wddm | None = None
    host_available: Callable[[], int | None] = host.available
    host_installed: Callable[[], int] = host.installed

    def windows(self, base: Source, total: int) -> list[Source]:
        """The budget, and what everybody uses of the card.

        Args:
            base: the driver's figure, or the own account's where the driver has none.
            total: bytes of the card.
        """
        if self.wddm is None or isinstance(self.wddm, str):
            return [] if self.wddm is None else [unknown("WDDM", self.wddm)]
        used = self.wddm.adapter_used()  # before the budget, which then needs no second look at the counters
        found, kept = self.wddm.memory(), 0
        if isinstance(found, str):
            budget = unknown("WDDM", cause_in(found))
        elif self.wddm.mode == "strict":
            budget = wddm_bounds(base, budget=found.budget, usage=found.usage)
        else:
            budget = wddm_lowers(base, total=total, budget=found.budget)
            kept = _kept_by_driver(base, total, found.usage)
        if isinstance(used, str):
            return [budget, unknown("PDH", cause_in(used))]
        if not below(total, used):
            used = min(used, total)  # Windows counts what the driver keeps from everybody too
        return [budget, adapter_leaves("PDH", total=total, used=used, regained=min(kept, used))]

    def host_bytes(self) -> tuple[int | str, str]:
        """What of this process lies in host memory for the card, pinned bytes included, or why that is unknown; and
        the name of who says it, empty where nobody can."""
        counters = self.counters if self.wddm is None or isinstance(self.wddm, str) else self.wddm
        if counters is not None:
            found = counters.process_shared()
            return (cause_in(found) if isinstance(found, str) else found), "Windows' shared GPU memory"
        if self.amdgpu is not None and not isinstance(self.amdgpu, str):
            return self.amdgpu.gtt_used(), "amdgpu's GTT"
        for absent in (self.wddm, self.amdgpu):
            if isinstance(absent, str):
                return absent, ""
        return "this driver refuses an allocation rather than moving it to host memory", ""


def look_outside(found: Properties, *, kind: Kind, platform: str, index: int) -> Outside:
    """Finds what there is for a device of torch. Never raises.

    Args:
        found: the device's properties.
        kind: which of AMD's and NVIDIA's runtimes torch was built for.
        platform: `sys.platform`.
        index: the device's number in torch.
    """
    outside = Outside()
    integrated = is_integrated(found)
    if kind == "hip" and platform.startswith("linux"):
        outside.amdgpu = find_amdgpu(
            pci=found.pci, total=None if integrated else found.total, unique=_serial(found.uuid)
        )
    if kind == "cuda" and not integrated:
        outside.nvml = find_nvml(uuid=found.uuid, pci=found.pci, total=found.total)
    if platform == "win32" and integrated:
        outside.wddm = "Windows budgets no more of an integrated card than its carve-out"
    elif platform == "win32":
        ask = partial(open_wddm, kind=kind, ordinal=index, name=found.name, total=found.total, pci=found.pci)
        wddm = ask()
        outside.wddm = wddm or f"it is not asked for ({SWITCH})"
        if kind == "cuda" and not os.environ.get(SWITCH, "").strip():  # unset is no word against the counters
            outside.counters = ask(environ={SWITCH: "1"})
    return outside


def is_integrated(found: Properties) -> bool:
    """Whether the card is a part of the processor: by torch's word, or by its architecture."""
    return found.integrated or _IN_PROCESSORS.search(f"{found.arch} {found.name}") is not None


def _kept_by_driver(driver: Source, total: int, usage: int) -> int:
    """What the driver keeps for this process after it was freed: used by Windows' count, not by the driver's own."""
    if driver.bytes is None or driver.name != DRIVER:
        return 0
    return max(0, usage - (total - driver.bytes))


def _serial(uuid: str | None) -> str:
    """amdgpu's `unique_id` out of HIP's UUID, whose 16 bytes are that number's 16 characters; empty otherwise."""
    try:
        text = bytes.fromhex((uuid or "").removeprefix("GPU-").replace("-", "")).decode("ascii")
    except ValueError:
        return ""
    return text if re.fullmatch(r"[0-9a-fA-F]{16}", text) else ""
