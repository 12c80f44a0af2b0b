"""The processor as a card: weights and encoder share the host's memory, so there is nothing to lend."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from mmswap.card.base import Card
from mmswap.card.budget import Reading
from mmswap.units import GIB, format_bytes

_MEMINFO = Path("/proc/meminfo")


class HostCard(Card):
    """`--card cpu`: never swaps, and says so."""

    def __init__(self) -> None:
        self.spec = "cpu"
        self.name = f"{platform.machine() or 'host'} processor"
        self.device = torch.device("cpu")

    def total(self) -> int:
        return _meminfo("MemTotal") or _sysconf("SC_PHYS_PAGES") or 8 * GIB

    def free(self) -> Reading:
        available = _meminfo("MemAvailable") or _sysconf("SC_AVPHYS_PAGES")
        if available:
            return Reading(available, f"the operating system reports {format_bytes(available)} available")
        total = self.total()
        return Reading(total, f"the system does not say what is free; its size is {format_bytes(total)}", doubtful=True)


def _meminfo(field: str) -> int:
    """A line of Linux' /proc/meminfo in bytes, 0 where there is none."""
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return 0
    for line in lines:
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0


def _sysconf(name: str) -> int:
    try:
        return int(os.sysconf(name)) * int(os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return 0
