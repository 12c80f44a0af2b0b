"""What a test says of a pretended Windows, however it is made: vtables.py (ctypes callbacks), compiled.py (C)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from mmswap.card.wddm import Wddm, open_wddm
from mmswap.card.wddm_libraries import Libraries

MIB, GIB = 1 << 20, 1 << 30
AMD, NVIDIA, MICROSOFT, INTEL = 0x1002, 0x10DE, 0x1414, 0x8086
LOCAL, NON_LOCAL = 0, 1
XT = "AMD Radeon RX 7900 XT"
SIZE = 16368 * MIB


class World(ABC):
    """Cards as DXGI lists them, devices as the runtime orders them, rows of the counters, and calls that fail."""

    @abstractmethod
    def card(
        self,
        luid: int,
        *,
        name: str = XT,
        vendor: int = AMD,
        dedicated: int = SIZE,
        shared: int = 32 * GIB,
        flags: int = 0,
        pci: tuple[int, int, int] = (0, 0, 0),
    ) -> None: ...

    @abstractmethod
    def memory(self, luid: int, budget: int, usage: int = 0, *, group: int = LOCAL, node: int = 0) -> None: ...

    @abstractmethod
    def device(self, luid: int, *, name: str = XT, nodes: int = 1, pci: str = "") -> None: ...

    @abstractmethod
    def row(
        self,
        luid: int,
        *,
        pid: int | None = None,
        dedicated: int = 0,
        shared: int = 0,
        phys: int = 0,
        status: int = 0,
    ) -> None:
        """One row of GPU Process Memory, or without `pid` of GPU Adapter Memory."""

    @abstractmethod
    def fail(self, *calls: str) -> None:
        """These calls fail from now on; none of them is: all succeed again."""

    @abstractmethod
    def forget_cards(self) -> None: ...

    @abstractmethod
    def forget_rows(self) -> None: ...

    @abstractmethod
    def growing(self, times: int) -> None:
        """So many times there are more rows than a moment before."""

    @abstractmethod
    def old(self, yes: bool) -> None:
        """Windows 8: no IDXGIFactory4."""

    @abstractmethod
    def outdate(self) -> None:
        """Factories made so far are no longer current."""

    @abstractmethod
    def signal(self) -> None:
        """Sets every registered budget event."""

    @abstractmethod
    def held(self) -> dict[str, int]:
        """References, events, queries and handles that are out."""

    @abstractmethod
    def libraries(self) -> Libraries: ...

    def open(self, **changes: Any) -> Wddm:
        """`open_wddm` on this Windows, for HIP device 0 of the usual name and size unless told otherwise."""
        given = {"kind": "hip", "ordinal": 0, "name": XT, "total": SIZE, "environ": {}, "libraries": self.libraries()}
        wddm = open_wddm(**(given | changes))
        assert wddm is not None
        return wddm
