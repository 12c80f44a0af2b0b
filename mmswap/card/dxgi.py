"""DXGI by ctypes: a factory, its adapters, and the memory that Windows budgets to this process on each of them.

Every object is one owned COM reference: `close()` it, or use it in a `with`. Knows nothing of cards or torch.

    with open_factory(libraries.dxgi) as factory, factory.adapter(luid) as adapter: adapter.memory(LOCAL)

Source of slots, IIDs and structures: Microsoft's dxgi.h, dxgi1_2.h, dxgi1_4.h. All calls raise `CallFailed`.
"""

from __future__ import annotations

import ctypes
import logging
import uuid
from collections.abc import Iterable
from ctypes import byref, c_int32, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, TypeVar

from mmswap.card.wddm_libraries import STATUS, CallFailed, bind, failed, prototype

log = logging.getLogger(__name__)

LOCAL, NON_LOCAL = 0, 1  # DXGI_MEMORY_SEGMENT_GROUP: the card's own memory, and the system's
REMOTE, SOFTWARE = 1, 2  # DXGI_ADAPTER_FLAG
NOT_FOUND = 0x887A0002
MOST_ADAPTERS = 64  # an enumeration longer than this never ends


class Guid(ctypes.Structure):
    _fields_ = (("data", ctypes.c_ubyte * 16),)

    @classmethod
    def of(cls, text: str) -> Guid:
        return cls.from_buffer_copy(uuid.UUID(text).bytes_le)


class Luid(ctypes.Structure):
    """A locally unique id: names an adapter until the next boot or driver reset."""

    _fields_ = (("low", c_uint32), ("high", c_int32))

    @classmethod
    def of(cls, value: int) -> Luid:
        return cls.from_buffer_copy((value & (1 << 64) - 1).to_bytes(8, "little"))

    def value(self) -> int:
        return int.from_bytes(bytes(self), "little")


class AdapterDescription(ctypes.Structure):
    """DXGI_ADAPTER_DESC1. The name is kept as UTF-16 units: wchar_t has another size elsewhere."""

    _fields_ = (
        ("name_units", c_uint16 * 128),
        ("vendor", c_uint32),
        ("device", c_uint32),
        ("subsystem", c_uint32),
        ("revision", c_uint32),
        ("dedicated", c_size_t),
        ("dedicated_system", c_size_t),
        ("shared", c_size_t),
        ("luid", Luid),
        ("flags", c_uint32),
    )


class MemoryInfo(ctypes.Structure):
    """DXGI_QUERY_VIDEO_MEMORY_INFO."""

    _fields_ = (("budget", c_uint64), ("usage", c_uint64), ("available", c_uint64), ("reservation", c_uint64))


@dataclass(frozen=True, slots=True)
class Description:
    """Who an adapter is. `dedicated` and `shared` are bytes; `luid` is a 64-bit number."""

    name: str
    vendor: int
    dedicated: int
    shared: int
    luid: int
    flags: int


@dataclass(frozen=True, slots=True)
class Segment:
    """What this process may use of one kind of memory before Windows takes it away, and what it uses; bytes."""

    budget: int
    usage: int


Object = TypeVar("Object", bound="ComObject")


class ComObject:
    """One owned reference. `slots` maps a method to its place in the vtable and the types after `this`."""

    iid: ClassVar[Guid]
    slots: ClassVar[dict[str, tuple[Any, ...]]] = {"QueryInterface": (0, c_void_p, c_void_p), "Release": (2,)}

    def __init__(self, pointer: int) -> None:
        self._pointer: int | None = pointer

    def invoke(self, method: str, *arguments: Any) -> int:
        """What the method returns, unjudged."""
        assert self._pointer, f"{method} of a released {type(self).__name__}"
        slot, *types = self.slots[method]
        table = c_void_p.from_address(self._pointer).value
        assert table
        address = c_void_p.from_address(table + slot * ctypes.sizeof(c_void_p)).value
        assert address
        return int(prototype(STATUS, c_void_p, *types)(address)(self._pointer, *arguments))

    def call(self, method: str, *arguments: Any) -> None:
        status = self.invoke(method, *arguments)
        if status < 0:
            raise failed(method, status)

    def take(self, result: type[Object], method: str, *arguments: Any) -> Object:
        """Calls a method whose last argument receives a new reference."""
        out = c_void_p()
        self.call(method, *arguments, byref(out))
        return _owned(result, method, out)

    def query(self, interface: type[Object]) -> Object:
        return self.take(interface, "QueryInterface", byref(interface.iid))

    def close(self) -> None:
        if self._pointer:
            self.invoke("Release")
            self._pointer = None

    def __enter__(self: Object) -> Object:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Adapter(ComObject):
    """IDXGIAdapter3, Windows 10."""

    iid = Guid.of("645967a4-1392-4310-a798-8053ce3e93fd")
    slots: ClassVar[dict[str, tuple[Any, ...]]] = ComObject.slots | {
        "GetDesc1": (10, c_void_p),
        "QueryVideoMemoryInfo": (14, c_uint32, c_uint32, c_void_p),
        "RegisterVideoMemoryBudgetChangeNotificationEvent": (16, c_void_p, c_void_p),
        "UnregisterVideoMemoryBudgetChangeNotification": (17, c_uint32),
    }

    def describe(self) -> Description:
        raw = AdapterDescription()
        self.call("GetDesc1", byref(raw))
        name = bytes(raw.name_units).decode("utf-16-le", "replace").split("\0", 1)[0]
        return Description(name, raw.vendor, raw.dedicated, raw.shared, raw.luid.value(), raw.flags)

    def memory(self, group: int, node: int = 0) -> Segment:
        raw = MemoryInfo()
        self.call("QueryVideoMemoryInfo", node, group, byref(raw))
        return Segment(raw.budget, raw.usage)

    def notify(self, event: int) -> int:
        """Has `event` set when the budget changes; returns the cookie for `forget`."""
        cookie = c_uint32()
        self.call("RegisterVideoMemoryBudgetChangeNotificationEvent", event, byref(cookie))
        return cookie.value

    def forget(self, cookie: int) -> None:
        self.invoke("UnregisterVideoMemoryBudgetChangeNotification", cookie)  # returns nothing to judge


class _Adapter1(ComObject):
    """What an enumeration gives; only asked to become an `Adapter`."""


class Factory(ComObject):
    """IDXGIFactory4, Windows 10."""

    iid = Guid.of("1bc6ea02-ef36-464f-bf0c-21ca39e5168a")
    slots: ClassVar[dict[str, tuple[Any, ...]]] = ComObject.slots | {
        "EnumAdapters1": (12, c_uint32, c_void_p),
        "IsCurrent": (13,),
        "EnumAdapterByLuid": (26, Luid, c_void_p, c_void_p),  # the LUID itself, in one register
    }

    def adapters(self) -> list[Adapter]:
        """All adapters in DXGI's order (one may come twice); an adapter too old to know budgets is left out."""
        found: list[Adapter] = []
        try:
            for index in range(MOST_ADAPTERS):
                with self.take(_Adapter1, "EnumAdapters1", index) as plain:
                    try:
                        found.append(plain.query(Adapter))
                    except CallFailed as error:
                        log.debug("adapter %d knows no budgets: %s", index, error)
        except Exception as error:
            if not isinstance(error, CallFailed) or error.status != NOT_FOUND:
                close_all(found)
                raise
        return found

    def adapter(self, luid: int) -> Adapter:
        """The adapter of that LUID."""
        return self.take(Adapter, "EnumAdapterByLuid", Luid.of(luid), byref(Adapter.iid))

    def is_current(self) -> bool:
        """False once adapters came, went or were reset since the factory was made."""
        return bool(self.invoke("IsCurrent"))


def open_factory(dxgi: Any) -> Factory:
    """A factory of the library `dxgi`; refused by Windows 8 and older."""
    create = bind(dxgi, "CreateDXGIFactory1", STATUS, c_void_p, c_void_p)
    out = c_void_p()
    status = create(byref(Factory.iid), byref(out))
    if status < 0:
        raise failed("CreateDXGIFactory1", status)
    return _owned(Factory, "CreateDXGIFactory1", out)


def close_all(objects: Iterable[Adapter]) -> None:
    for one in objects:
        one.close()


def _owned(result: type[Object], method: str, out: c_void_p) -> Object:
    if not out.value:
        raise CallFailed(f"{method} succeeded and gave nothing")
    return result(out.value)
