"""The probe's table: every byte is given back, the budget is the end of it, and the columns are those of the driver."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from fake_cuda import FakeCuda
from torch import Tensor

from mmswap.card.accelerator import AcceleratorCard
from mmswap.card.host import HostCard
from mmswap.card.outside import Outside
from mmswap.card.simulated import SimulatedCard
from mmswap.card.wddm import Budget
from mmswap.doctor.probe import Table, lines, probe, targets

MIB = 1 << 20
GIB = 1 << 30
SIZE = 256 * MIB


class Plain(FakeCuda):
    """Hands out exactly what is asked for, and keeps nothing that is given back."""

    held = 0

    def empty(self, nbytes: int, index: int) -> Tensor:
        if self.room is not None and self.held + nbytes > self.room:
            raise torch.OutOfMemoryError("HIP out of memory")
        tensor = torch.empty(nbytes, dtype=torch.uint8)
        self.held += nbytes
        weakref.finalize(tensor, self._give_back, nbytes)
        return tensor

    def allocated(self, index: int) -> int:
        return self.held

    def reserved(self, index: int) -> int:
        return self.held

    def _give_back(self, nbytes: int) -> None:
        self.held -= nbytes


class Windows:
    """A budget that falls from 15/16 to 13/16 of the card once half of it is held, and usage with a context's 1 MiB."""

    mode = "default"
    route = "a test"
    pinned = 3 * MIB  # in host memory before the probe, and no spill

    def __init__(self, fake: FakeCuda) -> None:
        self.fake = fake

    def memory(self) -> Budget:
        held = self.fake.allocated(0)
        budget = SIZE * (13 if held >= SIZE // 2 else 15) // 16
        return Budget(budget, held + MIB, None, GIB, 0)

    def adapter_used(self) -> str:
        return "unknown, because nobody counts"

    def process_shared(self) -> int:
        return self.pinned + max(0, self.fake.allocated(0) - self.memory().budget)


def windows_card() -> tuple[AcceleratorCard, FakeCuda]:
    fake = Plain(total=SIZE, hip=True, windows=True)
    fake.driver = lambda: (SIZE - MIB - fake.allocated(0), SIZE)
    return AcceleratorCard(fake, 0, outside=Outside(wddm=Windows(fake))), fake


def test_the_table_ends_where_the_budget_ends_and_everything_is_given_back() -> None:
    card, fake = windows_card()
    table = probe(card)
    gc.collect()
    assert fake.allocated(0) == 0
    first, *middle, last = table.rows
    assert (first.held, last.held) == (0, 0)
    assert [row.held for row in middle] == sorted({row.held for row in middle})
    assert last.free == first.free
    assert table.freed
    for row in table.rows:
        assert row.driver_free == SIZE - MIB - row.held
        assert row.usage == row.held + MIB
        assert row.budget == SIZE * (13 if row.held >= SIZE // 2 else 15) // 16
        assert row.free == max(0, row.driver_free - (SIZE - row.budget))
        assert row.over == 0
        assert row.spilled == 0
        assert row.sources["WDDM"] == row.free
    assert middle[-1].held > SIZE // 2
    assert "--beyond-budget" in table.ended


def test_beyond_the_budget_only_when_told_and_then_the_spill_is_seen() -> None:
    card, fake = windows_card()
    table = probe(card, beyond=True)
    gc.collect()
    assert fake.allocated(0) == 0
    fullest = table.rows[-2]
    assert fullest.held > SIZE * 13 // 16
    assert fullest.held < SIZE
    assert fullest.free == 0
    assert fullest.over > 0
    assert fullest.spilled == fullest.held - SIZE * 13 // 16


def test_a_driver_that_has_no_more_ends_the_table() -> None:
    card, fake = windows_card()
    fake.room = SIZE // 2
    table = probe(card)
    gc.collect()
    assert "the driver has no" in table.ended
    assert fake.allocated(0) == 0
    assert max(row.held for row in table.rows) <= SIZE // 2
    assert table.rows[-1].held == 0


def test_an_error_of_the_driver_ends_the_table_and_frees_what_was_held(monkeypatch: pytest.MonkeyPatch) -> None:
    card, fake = windows_card()
    real = fake.empty

    def empty(nbytes: int, index: int) -> Any:
        if fake.allocated(0):
            raise RuntimeError("HIP error: the operation cannot be performed")
        return real(nbytes, index)

    monkeypatch.setattr(fake, "empty", empty)
    table = probe(card)
    gc.collect()
    assert "cannot be performed" in table.ended
    assert fake.allocated(0) == 0
    assert len(table.rows) == 3


def test_bytes_that_do_not_come_back_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimulatedCard("sim:64GiB")

    @contextmanager
    def leaky(label: str, nbytes: int) -> Iterator[bool]:
        card.claim(label, nbytes)
        yield True

    monkeypatch.setattr(card, "placed", leaky)
    table = probe(card)
    assert not table.freed
    assert "have not come back" in table.ended


def test_a_simulated_card_is_claimed_and_released() -> None:
    card = SimulatedCard("sim:16368MiB+wddm")
    card.claim("language model", GIB)
    before = dict(card.claims)
    table = probe(card)
    assert card.claims == before
    assert {row.budget // MIB for row in table.rows if row.budget} == {15569, 14540}
    for row in table.rows:
        assert row.usage == GIB + row.held
        assert row.driver_free == 16368 * MIB - row.usage
        assert row.budget is not None
        assert row.free == row.budget - row.usage
    assert max(row.held for row in table.rows) + GIB <= 14540 * MIB


def test_on_the_processor_there_is_nothing_to_probe() -> None:
    table = probe(HostCard())
    assert table.rows == ()
    assert "nothing to probe" in table.ended
    assert lines(table) == [table.ended]


def test_the_steps_never_leave_the_card_and_go_beyond_the_free_bytes_only_when_told() -> None:
    for free, total in ((15 * GIB, 16 * GIB), (GIB, 16 * GIB), (0, GIB), (1000, 1000), (16 * GIB, 16 * GIB)):
        within, beyond = list(targets(free, total, False)), list(targets(free, total, True))
        assert within == sorted(set(within))
        assert all(0 < target <= free for target in within)
        assert beyond == sorted(set(beyond))
        assert all(target <= max(free, total * 63 // 64) for target in beyond)
        assert beyond[: len(within)] == within
    assert max(targets(15 * GIB, 16 * GIB, True)) > 15 * GIB


def test_the_table_is_aligned_and_says_what_is_not_known() -> None:
    card, _ = windows_card()
    text = lines(probe(card))
    heads, *rows, _ = text[1:]
    assert heads.split("  ")[-1] == "spilled"
    assert len({len(row) for row in rows} | {len(heads)}) == 1
    assert rows[-1].startswith("all freed")
    plain = SimulatedCard("sim:1GiB")
    assert "-" not in lines(probe(plain))[2].split()


def test_json_has_sizes_in_bytes() -> None:
    found = Table(probe(SimulatedCard("sim:1GiB")).rows[:1], "end", True).to_json()
    assert found["rows"][0] == {
        "held": 0, "driver_free": GIB, "budget": GIB, "usage": 0, "free": GIB, "over": 0, "spilled": 0,
        "sources": {"ledger": GIB},
    }  # fmt: skip
