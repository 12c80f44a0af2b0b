"""NVML by ctypes: found by UUID or address, and never the cause of a crash."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from mmswap.card import nvml
from mmswap.card.nvml import NvmlCard, find_nvml

GIB = 1 << 30
UUID = "12345678-1234-1234-1234-123456789abc"
NOT_FOUND = 6


class FakeNvml:
    """NVML's functions as ctypes callbacks, so that pointers and structures travel as they would to the real one."""

    def __init__(self, cards: dict[str, tuple[int, int]]) -> None:
        self.cards = cards
        self.names = list(cards)
        self.failing: set[str] = set()
        pointer, integer = ctypes.c_void_p, ctypes.c_int
        make: Callable[..., Any] = ctypes.CFUNCTYPE
        self.nvmlInit_v2 = make(integer)(lambda: self.status("init"))
        find = make(integer, ctypes.c_char_p, pointer)(self.find)
        self.nvmlDeviceGetHandleByUUID = self.nvmlDeviceGetHandleByPciBusId_v2 = find
        self.nvmlDeviceGetMemoryInfo = make(integer, pointer, pointer)(self.memory)

    def status(self, call: str) -> int:
        return 999 if call in self.failing else 0

    def find(self, name: bytes, handle: int) -> int:
        if name.decode() not in self.cards:
            return NOT_FOUND
        ctypes.cast(handle, ctypes.POINTER(ctypes.c_void_p))[0] = self.names.index(name.decode()) + 1
        return 0

    def memory(self, handle: int, place: int) -> int:
        total, free = self.cards[self.names[handle - 1]]
        numbers = ctypes.cast(place, ctypes.POINTER(ctypes.c_ulonglong))
        numbers[0], numbers[1], numbers[2] = total, free, max(0, total - free)
        return self.status("memory")


@pytest.mark.parametrize("told", [UUID, f"GPU-{UUID}"])
def test_by_uuid(told: str) -> None:
    library = FakeNvml({"0000:01:00.0": (8 * GIB, GIB), f"GPU-{UUID}": (24 * GIB, 9 * GIB)})
    card = find_nvml(uuid=told, pci=None, total=24 * GIB, library=library)
    assert isinstance(card, NvmlCard)
    source = card.vram()
    assert source.bytes == 9 * GIB
    assert source.reason.endswith("all processes use 15.0 GiB (by its UUID)")
    library.cards[f"GPU-{UUID}"] = (24 * GIB, 5 * GIB)
    assert card.vram().bytes == 5 * GIB


def test_by_address_when_the_uuid_is_not_known() -> None:
    library = FakeNvml({"0000:01:00.0": (24 * GIB, 4 * GIB)})
    card = find_nvml(uuid=UUID, pci="0000:01:00.0", total=24 * GIB, library=library)
    assert isinstance(card, NvmlCard)
    assert card.vram().bytes == 4 * GIB


def test_a_part_of_a_card_is_found_by_its_own_name_and_not_taken_for_the_whole() -> None:
    whole = {"0000:01:00.0": (80 * GIB, 70 * GIB)}
    refused = find_nvml(uuid=UUID, pci="0000:01:00.0", total=10 * GIB, library=FakeNvml(whole))
    assert refused == "NVML's card of that name has 80.0 GiB, this one 10.0 GiB"
    library = FakeNvml({**whole, f"MIG-{UUID}": (10 * GIB, 8 * GIB)})
    card = find_nvml(uuid=UUID, pci="0000:01:00.0", total=10 * GIB, library=library)
    assert isinstance(card, NvmlCard)
    assert card.vram().bytes == 8 * GIB


def test_failures_are_unknown_with_their_cause() -> None:
    library = FakeNvml({f"GPU-{UUID}": (24 * GIB, 25 * GIB)})
    card = NvmlCard(library, ctypes.c_void_p(1), "by its UUID")
    assert card.vram().bytes is None
    assert f"{25 * GIB} bytes free of {24 * GIB}" in card.vram().reason
    library.failing.add("memory")
    assert "status 999" in card.vram().reason
    assert "status 999" in str(find_nvml(uuid=UUID, pci=None, total=24 * GIB, library=library))
    library.failing.add("init")
    assert find_nvml(uuid=UUID, pci=None, total=1, library=library) == "nvmlInit_v2 failed with status 999"
    assert "does not know this card (status 6)" in str(find_nvml(uuid="x", pci="y", total=1, library=FakeNvml({})))
    assert "neither" in str(find_nvml(uuid=None, pci=None, total=1, library=library))


def test_a_library_without_the_functions_or_that_cannot_be_loaded_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "nvmlInit_v2" in str(find_nvml(uuid=UUID, pci=None, total=1, library=object()))
    assert "nvmlDeviceGetMemoryInfo" in NvmlCard(object(), ctypes.c_void_p(1), "").vram().reason

    def refuse(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(nvml.ctypes, "CDLL", refuse)
    assert "is not installed" in str(find_nvml(uuid=UUID, pci=None, total=1))


def test_the_installed_library_is_given_its_types(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeNvml({f"GPU-{UUID}": (24 * GIB, 9 * GIB)})
    asked: list[str] = []
    monkeypatch.setattr(nvml.ctypes, "CDLL", lambda name: asked.append(name) or library)
    card = find_nvml(uuid=UUID, pci=None, total=24 * GIB)
    assert isinstance(card, NvmlCard)
    assert card.vram().bytes == 9 * GIB
    assert asked[0] in ("libnvidia-ml.so.1", "nvml.dll")
