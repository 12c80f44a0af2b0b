"""Cards by name: what a person types finds the card, and nothing is guessed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mmswap.card.known import known_card, known_cards
from mmswap.errors import OptionError
from mmswap.sizing.room import DESKTOP, LINK, room_of
from mmswap.units import GIB, MIB


@pytest.mark.parametrize(
    ("typed", "name", "gib"),
    [
        ("RX 7900 XT", "RX 7900 XT", 20),
        ("7900xt", "RX 7900 XT", 20),
        ("AMD Radeon RX 7900 XTX", "RX 7900 XTX", 24),
        ("rtx4090", "RTX 4090", 24),
        ("NVIDIA GeForce RTX 3060 12GB", "RTX 3060 12GB", 12),
        ("9060 XT 16G", "RX 9060 XT 16GB", 16),
        ("rx-9070-xt", "RX 9070 XT", 16),
        ("w7900", "Radeon PRO W7900", 48),
        ("Radeon PRO W7800", "Radeon PRO W7800", 32),
        ("RTX 4070 Ti SUPER", "RTX 4070 Ti SUPER", 16),
        ("RTX 6000 Ada Generation", "RTX 6000 Ada", 48),
        ("Ryzen AI Max+ 395", "Strix Halo", 96),
        ("2060", "RTX 2060", 6),
    ],
)
def test_obvious_spellings(typed: str, name: str, gib: int) -> None:
    card = known_card(typed)
    assert (card.name, card.total) == (name, gib * GIB)


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("9060 XT", "RX 9060 XT 8GB or RX 9060 XT 16GB"),
        ("RTX 3080", "RTX 3080 10GB or RTX 3080 12GB"),
        ("RX 7900", "RX 7900 XT, RX 7900 XTX"),
        ("RX 7900 XT 24GB", "RX 7900 XT"),
        ("RTX 4090 Laptop", "RTX 4090"),
        ("potato", "sim:16GiB"),
        ("", "sim:16GiB"),
    ],
)
def test_unknown_and_ambiguous_names_are_one_sentence_with_the_nearest(typed: str, near: str) -> None:
    with pytest.raises(OptionError) as told:
        known_card(typed)
    assert near in str(told.value)
    assert "\n" not in str(told.value)


def test_every_card_finds_itself_and_makes_sense() -> None:
    assert len(known_cards()) >= 60
    assert len({card.name for card in known_cards()}) == len(known_cards())
    for card in known_cards():
        assert known_card(card.name) == card
        assert 4 * GIB <= card.total <= 256 * GIB
        assert 2e9 < card.link_rate < card.bandwidth / 2
        assert card.source


def test_the_link_is_the_lanes_and_what_a_copy_reaches() -> None:
    assert known_card("RX 7900 XT").link_rate == pytest.approx(16 * 1.969e9 * 0.76)
    assert known_card("RX 7600").link_rate == pytest.approx(8 * 1.969e9 * 0.76)
    assert known_card("RTX 5090").link_rate == pytest.approx(16 * 3.938e9 * 0.76)
    assert known_card("Strix Halo").link_rate == pytest.approx(256e9 / 2 * 0.76)


def test_room_on_a_card_by_name_leaves_something_to_the_desktop_and_says_so() -> None:
    room = room_of("RX 7900 XT")
    assert (room.total, room.usable, room.segments) == (20 * GIB, 20 * GIB - DESKTOP, True)
    assert any("930.0 MiB" in reason and "--reserve" in reason for reason in room.reasons)
    assert room_of("RX 7900 XT", reserve=0).usable == 20 * GIB


def test_room_on_a_simulated_card_is_all_of_it_at_its_own_link() -> None:
    room = room_of("sim:16GiB@10GB/s")
    assert (room.total, room.usable, room.link_rate, room.segments) == (16 * GIB, 16 * GIB, 10**10, False)
    assert room_of("sim:16GiB").link_rate == LINK
    assert room_of("sim:16GiB@10GB/s", link=5 * 10**9).link_rate == 5 * 10**9


def test_a_budget_that_falls_as_the_card_fills_counts_as_it_is_then() -> None:
    """facts of one Windows card: 15569 MiB while small, about 14540 MiB once filled, of 16368 MiB."""
    room = room_of("sim:16368MiB+wddm")
    assert room.usable == 14540 * MIB
    assert sum(room.held.values()) == room.total - room.usable


def test_a_limit_holds_and_the_sum_stays() -> None:
    room = room_of("RTX 4090", limit=14 * GIB)
    assert room.usable == 14 * GIB
    assert room_of("sim:8GiB", limit=14 * GIB).usable == 8 * GIB


def test_a_reserve_that_takes_all_is_refused() -> None:
    with pytest.raises(OptionError, match="--reserve"):
        room_of("RTX 4090", reserve=24 * GIB)


def test_names_of_cards_need_no_torch() -> None:
    code = "import sys, mmswap.sizing.room as r; r.room_of('7900xt'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, check=True)
