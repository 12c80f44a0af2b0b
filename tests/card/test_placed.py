"""Bytes that are placed to see what is free with them there: really placed, given back, and no crash if too many."""

from __future__ import annotations

from typing import Any

import pytest
from fake_cuda import FakeCuda

from mmswap.card import AcceleratorCard, open_card
from mmswap.card.outside import Outside

GIB = 1 << 30


def test_bytes_are_really_placed_and_given_back() -> None:
    fake = FakeCuda(total=16 * GIB)
    card = AcceleratorCard(fake, 0, outside=Outside())
    before = card.free().bytes
    with card.placed("KV cache", 3 * GIB) as fits:
        assert fits
        assert card.free().bytes == before - 3 * GIB
    assert card.free().bytes == before
    assert fake.log[-1] == "empty cache"


def test_bytes_that_cannot_be_placed_are_an_answer_and_no_crash() -> None:
    fake = FakeCuda(total=16 * GIB)
    fake.room = 2 * GIB
    card = AcceleratorCard(fake, 0, outside=Outside())
    with card.placed("KV cache", 20 * GIB) as fits:
        assert not fits
        assert (card.free().bytes, card.free().over) == (0, 4 * GIB)
        assert "20.0 GiB could not be placed" in card.free().reason
    assert card.free().bytes == 16 * GIB

    def refuse(nbytes: int, index: int) -> Any:
        raise RuntimeError("HIP error: an illegal memory access")

    fake.empty = refuse  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="illegal"), card.placed("KV cache", 1):
        pass
    with pytest.raises(KeyError), open_card("cpu").placed("KV cache", 1):
        raise KeyError
