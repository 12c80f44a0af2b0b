"""A pretended Windows whose vtables are ctypes callbacks: needs no compiler. Slots, IIDs and layouts are its own."""

from __future__ import annotations

import ctypes
import struct
import sys
import uuid
from ctypes import addressof, c_int32, c_uint32, c_uint64, c_void_p, memmove, string_at
from types import SimpleNamespace
from typing import Any

from windows.beside import Gdi, Kernel, Pdh, Runtime
from windows.world import AMD, GIB, LOCAL, NON_LOCAL, SIZE, XT, World

from mmswap.card.wddm_libraries import Libraries

FUNCTION = ctypes.WINFUNCTYPE if sys.platform == "win32" else ctypes.CFUNCTYPE
E_NOTIMPL, E_NOINTERFACE, E_FAIL, NOT_FOUND, INVALID_CALL = (
    code - (1 << 32) for code in (0x80004001, 0x80004002, 0x80004005, 0x887A0002, 0x887A0001)
)
FACTORY1, FACTORY4 = "770aae78-f26f-4dba-a829-253c83d1b387", "1bc6ea02-ef36-464f-bf0c-21ca39e5168a"
ADAPTER1, ADAPTER3 = "29038f61-3839-4626-91fd-086879011a05", "645967a4-1392-4310-a798-8053ce3e93fd"
DESCRIPTION = struct.Struct("<256s4I3QIiI4x")  # DXGI_ADAPTER_DESC1


class Object:
    """An object in COM's layout: a cell with the address of a table of function pointers."""

    def __init__(self, world: Vtables, slots: int, iids: tuple[str, ...], methods: dict[int, tuple[Any, ...]]) -> None:
        self.world, self.refs = world, 0
        self.iids = [uuid.UUID(iid).bytes_le for iid in iids]
        methods = {
            0: (self.query, c_void_p, c_void_p),
            1: (lambda this: self.count(1),),
            2: (lambda this: self.count(-1),),
            **methods,
        }
        unused = (lambda this: E_NOTIMPL,)
        self.functions = []
        for slot in range(slots):
            method, *types = methods.get(slot, unused)
            self.functions.append(FUNCTION(c_int32, c_void_p, *types)(method))
        self.table = (c_void_p * slots)(*(ctypes.cast(one, c_void_p).value for one in self.functions))
        self.cell = c_void_p(addressof(self.table))
        self.pointer = addressof(self.cell)

    def count(self, change: int) -> int:
        self.refs += change
        self.world.live += change
        assert self.refs >= 0
        return self.refs

    def query(self, this: int, iid: int, out: int) -> int:
        known = string_at(iid, 16) in self.iids
        c_void_p.from_address(out).value = self.pointer if known else None
        if not known:
            return E_NOINTERFACE
        self.count(1)
        return 0


class Card(Object):
    def __init__(self, world: Vtables, luid: int, pci: tuple[int, int, int], description: bytes) -> None:
        self.luid, self.pci, self.description = luid, pci, description
        self.segments: dict[tuple[int, int], tuple[int, int]] = {}
        methods = {
            10: (self.describe, c_void_p),
            14: (self.tell, c_uint32, c_uint32, c_void_p),
            16: (self.register, c_void_p, c_void_p),
            17: (self.unregister, c_uint32),
        }
        super().__init__(world, 18, (ADAPTER1, ADAPTER3), methods)

    def query(self, this: int, iid: int, out: int) -> int:
        return self.world.judge("QueryInterface", E_FAIL) or super().query(this, iid, out)

    def describe(self, this: int, out: int) -> int:
        if status := self.world.judge("GetDesc1", E_FAIL):
            return status
        memmove(out, self.description, 312)
        return 0

    def tell(self, this: int, node: int, group: int, out: int) -> int:
        if status := self.world.judge("QueryVideoMemoryInfo", E_FAIL):
            return status
        if group == NON_LOCAL and (status := self.world.judge("NonLocal", E_FAIL)):
            return status
        if self not in self.world.cards or (node, group) not in self.segments:
            return INVALID_CALL
        budget, usage = self.segments[node, group]
        memmove(out, struct.pack("<4Q", budget, usage, budget // 2, 0), 32)
        return 0

    def register(self, this: int, event: int, out: int) -> int:
        if status := self.world.judge("Register", E_FAIL):
            return status
        self.world.cookies += 1
        self.world.registered[self.world.cookies] = event
        c_uint32.from_address(out).value = self.world.cookies
        return 0

    def unregister(self, this: int, cookie: int) -> int:
        del self.world.registered[cookie]
        return 0


class Factory(Object):
    def __init__(self, world: Vtables) -> None:
        self.generation = world.generation
        iids = (FACTORY1,) if world.is_old else (FACTORY1, FACTORY4)
        methods = {
            12: (self.enumerate, c_uint32, c_void_p),
            13: (lambda this: int(self.generation == world.generation),),
            26: (self.by_luid, c_uint64, c_void_p, c_void_p),
        }
        super().__init__(world, 28, iids, methods)

    def enumerate(self, this: int, index: int, out: int) -> int:
        if status := self.world.judge("EnumAdapters1", E_FAIL):
            return status
        if index >= len(self.world.cards):
            return NOT_FOUND
        card = self.world.cards[index]
        card.count(1)
        c_void_p.from_address(out).value = card.pointer
        return 0

    def by_luid(self, this: int, luid: int, iid: int, out: int) -> int:
        if status := self.world.judge("EnumAdapterByLuid", E_FAIL):
            return status
        for card in self.world.cards:
            if card.luid == luid:
                return card.query(0, iid, out)
        return NOT_FOUND


class Vtables(World):
    def __init__(self) -> None:
        self.cards: list[Card] = []
        self.kept: list[Object] = []  # an object may be asked after the world has forgotten it
        self.devices: list[tuple[int, str, int, str]] = []
        self.rows: list[tuple[int | None, int, int, int, int, int]] = []
        self.failing: tuple[str, ...] = ()
        self.registered: dict[int, int] = {}
        self.live = self.cookies = self.generation = self.queries = self.kernel_handles = self.grows = 0
        self.is_old = False
        self.kernel = Kernel(self)

    def card(self, luid, *, name=XT, vendor=AMD, dedicated=SIZE, shared=32 * GIB, flags=0, pci=(0, 0, 0)):
        units = name.encode("utf-16-le")
        figures = (vendor, 0x744C, 0x11, 0x22, dedicated, 0x33, shared)
        low, high = struct.unpack("<Ii", struct.pack("<Q", luid))
        card = Card(self, luid, pci, DESCRIPTION.pack(units, *figures, low, high, flags))
        card.segments |= {(0, LOCAL): (dedicated, 0), (0, NON_LOCAL): (shared, 0)}
        card.segments |= {(1, LOCAL): (0, 0), (1, NON_LOCAL): (0, 0)}
        self.cards.append(card)
        self.kept.append(card)

    def memory(self, luid, budget, usage=0, *, group=LOCAL, node=0):
        for card in self.cards:
            if card.luid == luid:
                card.segments[node, group] = budget, usage

    def device(self, luid, *, name=XT, nodes=1, pci=""):
        self.devices.append((luid, name, nodes, pci))

    def row(self, luid, *, pid=None, dedicated=0, shared=0, phys=0, status=0):
        self.rows.append((pid, luid, phys, dedicated, shared, status))

    def fail(self, *calls):
        self.failing = calls

    def judge(self, call: str, status: int) -> int:
        return status if call in self.failing else 0

    def forget_cards(self):
        self.cards.clear()

    def forget_rows(self):
        self.rows.clear()

    def growing(self, times):
        self.grows = times

    def old(self, yes):
        self.is_old = yes

    def outdate(self):
        self.generation += 1

    def signal(self):
        for event in self.registered.values():
            self.kernel.SetEvent(event)

    def held(self):
        return {
            "live": self.live,
            "registered": len(self.registered),
            "queries": self.queries,
            "handles": len(self.kernel.events),
            "kernel_handles": self.kernel_handles,
        }

    def create_factory(self, iid: int, out: int) -> int:
        c_void_p.from_address(out).value = None
        if status := self.judge("CreateDXGIFactory1", E_FAIL):
            return status
        factory = Factory(self)
        self.kept.append(factory)
        return factory.query(0, iid, out)

    def libraries(self):
        dxgi = SimpleNamespace(CreateDXGIFactory1=self.create_factory)
        return Libraries(dxgi, Gdi(self), Pdh(self), self.kernel, Runtime(self))
