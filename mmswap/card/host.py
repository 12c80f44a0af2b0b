"""The processor as a card: weights and encoder share the host's memory, so there is nothing to lend.

`available()` and `installed()` say what the operating system has, to whoever else lives in that memory.
"""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path

import torch

from mmswap.card.base import Card
from mmswap.card.budget import Reading, Source, true_free
from mmswap.units import GIB, format_bytes

_MEMINFO = Path("/proc/meminfo")
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
_GROUP_FILES = {  # limit, usage, and the name of the pages that are given up when they are needed
    "v2": ("memory.max", "memory.current", "inactive_file"),
    "v1": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


class HostCard(Card):
    """`--card cpu`: never swaps, and says so."""

    def __init__(self) -> None:
        self.spec = "cpu"
        self.name = f"{platform.machine() or 'host'} processor"
        self.device = torch.device("cpu")

    def total(self) -> int:
        return installed() or 8 * GIB

    def free(self) -> Reading:
        bytes_available = _system_available()
        sources = []
        if bytes_available:
            reason = f"the operating system reports {format_bytes(bytes_available)} available"
            sources.append(Source("operating system", bytes_available, reason))
        left = _group_left()
        if left is not None:
            sources.append(Source("cgroup", left, f"the cgroup of this process has {format_bytes(left)} left"))
        if not sources:
            total = self.total()
            reason = f"the system does not say what is free; its size is {format_bytes(total)}"
            return Reading(total, reason, doubtful=True)
        return true_free(sources)


def available() -> int | None:
    """Bytes of host memory that can be had without pushing others out; None where nobody says it."""
    bounds = [bound for bound in (_system_available() or None, _group_left()) if bound is not None]
    return min(bounds, default=None)


def installed() -> int:
    """Bytes of memory in this machine, 0 where nobody says it."""
    return _meminfo("MemTotal") or _sysconf("SC_PHYS_PAGES") or _windows("total")


def _system_available() -> int:
    return _meminfo("MemAvailable") or _sysconf("SC_AVPHYS_PAGES") or _windows("available")


def _meminfo(field: str) -> int:
    """A line of Linux' /proc/meminfo in bytes, 0 where there is none."""
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return 0
    for line in lines:
        name, _, figure = line.partition(":")
        if name == field and figure.split()[:1] and figure.split()[0].isdecimal():
            return int(figure.split()[0]) * 1024
    return 0


def _sysconf(name: str) -> int:
    try:
        return max(0, os.sysconf(name)) * max(0, os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return 0


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX of sysinfoapi.h."""

    _fields_ = [
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        ("total", ctypes.c_uint64),
        ("available", ctypes.c_uint64),
        ("unused", ctypes.c_uint64 * 5),
    ]


def _windows(field: str) -> int:
    """What GlobalMemoryStatusEx says, 0 elsewhere."""
    windll = getattr(ctypes, "windll", None)
    if windll is None:
        return 0
    status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
    if not windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
        return 0
    return int(getattr(status, field))


def _group_left() -> int | None:
    """What the tightest of the process's cgroups (a container's limit) still allows; None without a limit."""
    left = [_left_in(folder, version) for folder, version in _groups()]
    return min((found for found in left if found is not None), default=None)


def _groups() -> list[tuple[Path, str]]:
    """The process's groups and all above them, which limit it too."""
    try:
        lines = _OWN_CGROUP.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    found: list[tuple[Path, str]] = []
    for line in lines:
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        version, root = ("v1", _CGROUPS / "memory") if controllers else ("v2", _CGROUPS)
        here = Path(path.lstrip("/"))
        found += [(root / part, version) for part in (here, *here.parents)]
    return found


def _left_in(folder: Path, version: str) -> int | None:
    limit_file, usage_file, reclaimable = _GROUP_FILES[version]
    limit, usage = _number(_text(folder / limit_file)), _number(_text(folder / usage_file))
    if limit is None or usage is None or limit >= installed():  # "max" is no limit, nor is more than there is
        return None
    fields = dict(line.split(" ", 1) for line in _text(folder / "memory.stat").splitlines() if " " in line)
    given_up = _number(fields.get(reclaimable, "")) or 0
    return max(0, limit - usage + (given_up if given_up <= usage else 0))


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 20 else None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""
