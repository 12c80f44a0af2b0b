"""The card's own name and the user's wish decide what is built and loaded; torch is asked, and nobody else."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_sdk import FakeSdk, bare_environ

from mmswap.hip_ext import live as living
from mmswap.hip_ext import supply
from mmswap.hip_ext.live import Live, live
from mmswap.hip_ext.recipe import Target
from mmswap.hip_ext.surroundings import Surroundings

CARD = torch.device("cuda", 0)


def card(monkeypatch: pytest.MonkeyPatch, *, hip: str | None = "7.2.1", **about: Any) -> None:
    """torch sees one card of these properties."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(**about))
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.version, "cuda", None if hip else "13.0")
    monkeypatch.setattr(living.runtime, "loaded", lambda: SimpleNamespace(version="7.2"))


@pytest.mark.parametrize(
    ("named", "arch"), [("gfx1030", "gfx1030"), ("gfx90a:sramecc+:xnack-", "gfx90a"), ("GFX1151:xnack-", "gfx1151")]
)
def test_what_comes_after_a_colon_is_no_part_of_the_name(
    monkeypatch: pytest.MonkeyPatch, named: str, arch: str
) -> None:
    card(monkeypatch, gcnArchName=named)
    assert live(CARD) == Live("hip", arch, "7.2")


def test_cards_that_say_nothing_or_are_too_old_have_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    card(monkeypatch, gcnArchName="")
    assert live(CARD) == "torch does not tell the card's architecture"
    card(monkeypatch, hip=None, major=9, minor=0)
    assert live(CARD) == Live("cuda", "sm_90", "13.0")
    card(monkeypatch, hip=None, major=7, minor=5)
    assert live(CARD) == "sm_75 is older than sm_80"
    card(monkeypatch, gcnArchName="gfx1030")
    monkeypatch.setattr(living.runtime, "loaded", lambda: "no HIP runtime is loaded")
    assert live(CARD) == "no HIP runtime is loaded"
    assert live(torch.device("meta")) == "it computes on cards, not on meta"


def test_a_driver_that_fails_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(device: torch.device) -> None:
        raise RuntimeError("HIP error: invalid device ordinal\nDetails follow")

    monkeypatch.setattr(torch.cuda, "get_device_properties", fail)
    assert live(CARD) == "torch finds no such card (HIP error: invalid device ordinal)"


def test_the_wish_goes_before_the_card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = Surroundings(bare_environ(MMSWAP_HIP_ARCH="gfx1100", MMSWAP_BUILD_ROOT=str(tmp_path)), windows=False)
    found = supply.choose(Live("hip", "gfx1103", "7.2"), CARD, here, building=False)
    assert str(found) == "no native kernels are built for gfx1100 yet; --backend hip builds them once"


def test_a_list_for_a_wheel_does_not_hide_the_card(tmp_path: Path) -> None:
    """MMSWAP_HIP_ARCH that stayed set after `pip wheel` named other cards first."""
    wish = "gfx1030;gfx1100"
    here = Surroundings(bare_environ(MMSWAP_HIP_ARCH=wish, MMSWAP_BUILD_ROOT=str(tmp_path)), windows=False)
    found = supply.choose(Live("hip", "gfx1100", "7.2"), CARD, here, building=False)
    assert "no native kernels are built for gfx1100 yet" in str(found)


@pytest.mark.parametrize("arch", ["gfx90a", "gfx803", "gfx942"])
def test_cards_of_other_kinds_are_refused_before_anything_is_built(tmp_path: Path, arch: str) -> None:
    here = Surroundings(bare_environ(MMSWAP_BUILD_ROOT=str(tmp_path)), windows=False)
    found = supply.choose(Live("hip", arch, "7.2"), CARD, here, building=True)
    assert f"the kernels are for RDNA cards, and {arch} is none" in str(found)
    assert list(tmp_path.iterdir()) == []


def test_what_is_built_once_is_built_for_the_card_and_named_when_it_does_not_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sdk = FakeSdk(tmp_path / "Program Files" / "ROCm")
    sdk.add("hipcc")
    sdk.add("clang++")
    root = tmp_path / "Žluťoučký 用户"
    here = Surroundings(bare_environ(HIP_PATH=str(sdk.folder), MMSWAP_BUILD_ROOT=str(root)), windows=False)
    first = supply.choose(Live("hip", "gfx1201", "7.2"), CARD, here, building=True)
    name = Target("hip", ("gfx1201",), "7.2").file(windows=False)
    assert [path.name for path in root.iterdir()] == [name]
    assert "--offload-arch=gfx1201" in sdk.compiled("hipcc")["words"]
    assert "no HIP runtime is loaded" in str(first)
    again = supply.choose(Live("hip", "gfx1201", "7.2"), CARD, here, building=False)
    assert "no HIP runtime is loaded" in str(again), "the cache was not looked into"
    assert len([call for call in sdk.calls("hipcc") if "-o" in call["words"]]) == 1


def test_a_library_that_was_cut_off_is_built_again_and_one_of_other_sources_is_not_looked_at(tmp_path: Path) -> None:
    """A full disk, or a process that ended while it wrote; a cache that an older version left."""
    sdk = FakeSdk(tmp_path / "ROCm")
    sdk.add("hipcc")
    sdk.add("clang++")
    root, card = tmp_path / "cache", Live("hip", "gfx1100", "7.2")
    here = Surroundings(bare_environ(HIP_PATH=str(sdk.folder), MMSWAP_BUILD_ROOT=str(root)), windows=False)
    root.mkdir()
    (root / "gfx1100-0123456789abcdef.so").write_bytes(b"of other sources")
    assert "no native kernels are built for gfx1100 yet" in str(supply.choose(card, CARD, here, building=False))
    place = root / Target("hip", ("gfx1100",), "7.2").file(windows=False)
    place.write_bytes(b"\x7fELF" + bytes(36) + b"\xff" * 24)
    assert f"{place} is cut off; remove it" in str(supply.choose(card, CARD, here, building=False))
    assert "cut off" not in str(supply.choose(card, CARD, here, building=True))
    assert place.read_bytes().startswith(b"made by")
    assert (root / "gfx1100-0123456789abcdef.so").read_bytes() == b"of other sources"


def test_a_device_is_built_for_once_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def find(device: torch.device, here: Surroundings, *, building: bool) -> Any:
        asked.append(building)
        raise RuntimeError("a damaged disk")

    monkeypatch.setattr(supply, "find", find)
    monkeypatch.setattr(supply, "_held", {})
    monkeypatch.setattr(supply, "_tried", set())
    assert "the search for native kernels failed (a damaged disk)" in str(supply.kernels(CARD))
    supply.kernels(CARD)
    supply.prepare(CARD)
    supply.prepare(CARD)
    assert asked == [False, True]
