"""What the host can give: the operating system's word, a container's limit, and files that make no sense."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmswap.card import HostCard, host

MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Linux of 64 GiB with 40 GiB available, in no group."""
    (tmp_path / "meminfo").write_text(f"MemTotal: {64 * GIB // 1024} kB\nMemAvailable:   {40 * GIB // 1024} kB\n")
    (tmp_path / "cgroup").write_text("0::/\n")
    monkeypatch.setattr(host, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(host, "_OWN_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(host, "_CGROUPS", tmp_path / "groups")
    return tmp_path


def group(folder: Path, limit: object, usage: int, cache: int = 0, *, old: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ("memory.limit_in_bytes" if old else "memory.max")).write_text(f"{limit}\n")
    (folder / ("memory.usage_in_bytes" if old else "memory.current")).write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{'total_' if old else ''}inactive_file {cache}\nslab 7\n")


def test_without_a_limit_the_systems_word_counts(machine: Path) -> None:
    assert (host.available(), host.installed()) == (40 * GIB, 64 * GIB)
    reading = HostCard().free()
    assert (reading.bytes, reading.over, reading.doubtful) == (40 * GIB, 0, False)
    assert reading.reason == "the operating system reports 40.0 GiB available"


def test_a_containers_limit_bounds_it_and_its_page_cache_is_free(machine: Path) -> None:
    (machine / "cgroup").write_text("0::/user.slice/box\n")
    group(machine / "groups" / "user.slice" / "box", "max", 9 * GIB)
    assert HostCard().free().bytes == 40 * GIB
    group(machine / "groups" / "user.slice", 8 * GIB, 3 * GIB, cache=GIB)  # the group above limits it too
    reading = HostCard().free()
    assert (reading.bytes, host.available()) == (6 * GIB, 6 * GIB)
    assert "cgroup of this process has 6.0 GiB left" in reading.reason
    group(machine / "groups" / "user.slice", 8 * GIB, 9 * GIB)
    assert (HostCard().free().bytes, host.available()) == (0, 0)


def test_groups_of_the_first_version(machine: Path) -> None:
    (machine / "cgroup").write_text("3:cpu:/x\n2:memory:/box\n1:name=systemd:/\n")
    group(machine / "groups" / "memory" / "box", 4 * GIB, GIB, old=True)
    group(machine / "groups" / "memory", 1 << 63, GIB, old=True)  # how that version writes "no limit"
    assert HostCard().free().bytes == 3 * GIB


@pytest.mark.parametrize("text", ["", "MemAvailable:", "MemAvailable: much kB", "MemAvailable", "\u00e9"])
def test_a_meminfo_that_makes_no_sense_is_no_crash(machine: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "meminfo").write_text(text, encoding="utf-8")
    monkeypatch.setattr(host, "_sysconf", lambda name: 0)
    assert (host.available(), host.installed()) == (None, 0)
    assert HostCard().free().doubtful


@pytest.mark.parametrize("text", ["", "nonsense", "0::", "::::"])
def test_a_cgroup_file_that_makes_no_sense_is_no_limit(machine: Path, text: str) -> None:
    (machine / "cgroup").write_text(text)
    (machine / "groups").mkdir()
    (machine / "groups" / "memory.max").write_text("many")
    assert HostCard().free().bytes == 40 * GIB


@pytest.mark.parametrize(
    ("limit", "usage", "stat", "left"),
    [
        (4 * GIB, GIB, None, 3 * GIB),  # a container that hides the statistics still has its limit
        (4 * GIB, 2 * GIB, "inactive_file", 2 * GIB),
        (4 * GIB, 2 * GIB, "inactive_file -9", 2 * GIB),
        (4 * GIB, 2 * GIB, f"inactive_file {10**18}", 2 * GIB),  # more pages than are used
        (4 * GIB, 2 * GIB, "inactive_file 0x40000000", 2 * GIB),
        (0, 0, "", 0),
        (-1, GIB, "", None),
        ("0x100000", GIB, "", None),
        ("9" * 60, GIB, "", None),
        ("", GIB, "", None),
        (4 * GIB, -5, "", None),
        (4 * GIB, "", "", None),
        (64 * GIB, GIB, "", None),  # as much as there is: no limit
    ],
)
def test_figures_of_a_group_that_make_no_sense_never_decide(
    machine: Path, limit: object, usage: int, stat: str | None, left: int | None
) -> None:
    (machine / "cgroup").write_text("0::/box\n")
    folder = machine / "groups" / "box"
    group(folder, limit, usage)
    (folder / "memory.stat").unlink()
    if stat is not None:
        (folder / "memory.stat").write_text(stat)
    expected = 40 * GIB if left is None else left
    assert (HostCard().free().bytes, host.available()) == (expected, expected)


def test_a_system_that_answers_minus_one_says_nothing(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "meminfo").unlink()
    monkeypatch.setattr(host.os, "sysconf", lambda name: -1 if name == "SC_AVPHYS_PAGES" else 4096)
    assert (host.available(), host.installed()) == (None, 4096 * 4096)
