"""amdgpu's files: the right card among several, and files that are missing, renamed or nonsense."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmswap.card.sysfs import AmdgpuCard, figure, find_amdgpu

MIB, GIB = 1 << 20, 1 << 30
NAVI31 = 20464 * MIB  # what a 20 GiB card says


def write_card(
    root: Path,
    name: str,
    pci: str,
    *,
    total: object = NAVI31,
    used: object = GIB,
    gtt: object = 30 * MIB,
    vendor: str = "0x1002",
    unique: str = "",
    link: bool = False,
) -> Path:
    """A card as the kernel shows it: its folder has its address as a name, or its `uevent` says it."""
    device = root.parent / "devices" / pci if link else root / name / "device"
    device.mkdir(parents=True)
    files = {"vendor": vendor, "mem_info_vram_total": total, "mem_info_vram_used": used, "mem_info_gtt_used": gtt}
    if not link:
        files["uevent"] = f"DRIVER=amdgpu\nPCI_CLASS=30000\nPCI_SLOT_NAME={pci}"
    if unique:
        files["unique_id"] = unique
    for file, text in files.items():
        if text is not None:
            (device / file).write_text(f"{text}\n")
    if link:
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / "device").symlink_to(device)
    return device


@pytest.fixture
def root(tmp_path: Path) -> Path:
    found = tmp_path / "drm"
    found.mkdir()
    (found / "version").write_text("drm 1.1.0 20060810\n")
    for connector in ("card0-eDP-1", "card1-HDMI-A-1", "card1-DP-2", "renderD128"):
        (found / connector).mkdir()
    return found


def found_card(found: AmdgpuCard | str) -> AmdgpuCard:
    assert isinstance(found, AmdgpuCard), found
    return found


@pytest.mark.parametrize("link", [False, True])
def test_the_card_is_found_by_its_address_and_never_by_its_number(root: Path, link: bool) -> None:
    write_card(root, "card0", "0000:7a:00.0", total=512 * MIB, used=400 * MIB, gtt=GIB, link=link)
    write_card(root, "card1", "0000:03:00.0", used=5 * GIB, link=link)
    write_card(root, "card2", "0000:0a:00.0", used=2 * GIB, link=link)  # a twin
    for address in ("0000:03:00.0", "03:00.0", "0000:03:00.0 "):
        card = found_card(find_amdgpu(pci=address, total=NAVI31, root=root))
        assert card.vram().bytes == NAVI31 - 5 * GIB
        assert "by its PCI address 0000:03:00.0" in card.vram().reason
        assert card.gtt_used() == 30 * MIB
    assert found_card(find_amdgpu(pci="0000:0A:00.0", total=NAVI31, root=root)).vram().bytes == NAVI31 - 2 * GIB
    absent = find_amdgpu(pci="0000:04:00.0", total=NAVI31, root=root)
    assert isinstance(absent, str)
    assert "at PCI address 0000:04:00.0" in absent


def test_figures_are_read_again_each_time(root: Path) -> None:
    device = write_card(root, "card5", "0000:03:00.0")
    card = found_card(find_amdgpu(pci=None, total=NAVI31, root=root))
    assert card.vram().bytes == NAVI31 - GIB
    (device / "mem_info_vram_used").write_text(str(3 * GIB))
    (device / "mem_info_gtt_used").write_text(str(7 * GIB))
    assert (card.vram().bytes, card.gtt_used()) == (NAVI31 - 3 * GIB, 7 * GIB)
    (device / "mem_info_vram_used").unlink()
    (device / "mem_info_gtt_used").unlink()
    assert card.vram().bytes is None
    assert "mem_info_gtt_used cannot be read" in str(card.gtt_used())


def test_without_an_address_a_serial_number_tells_twins_apart(root: Path) -> None:
    write_card(root, "card1", "0000:03:00.0", used=5 * GIB, unique="ab12cd34ef560789")
    write_card(root, "card2", "0000:0a:00.0", used=2 * GIB, unique="00000000ffffffff")
    card = found_card(find_amdgpu(pci=None, total=NAVI31, unique="00000000FFFFFFFF", root=root))
    assert card.vram().bytes == NAVI31 - 2 * GIB
    assert "serial number" in card.vram().reason


def test_of_twins_that_nothing_tells_apart_the_fuller_one_counts(root: Path) -> None:
    write_card(root, "card0", "0000:7a:00.0", total=2 * GIB, used=GIB)
    write_card(root, "card1", "0000:03:00.0", used=5 * GIB, gtt=10)
    write_card(root, "card2", "0000:0a:00.0", used=2 * GIB, gtt=20)
    card = found_card(find_amdgpu(pci=None, total=20 * GIB, root=root))
    assert card.vram().bytes == NAVI31 - 5 * GIB
    assert "the least of 2 twins" in card.vram().reason
    assert card.gtt_used() == 30


def test_a_card_of_another_maker_or_size_does_not_answer(root: Path) -> None:
    write_card(root, "card0", "0000:01:00.0", vendor="0x10de")
    none = find_amdgpu(pci=None, total=NAVI31, root=root)
    assert none == f"there is no AMD card among the 1 in {root}"
    write_card(root, "card1", "0000:03:00.0", total=8 * GIB)
    other = find_amdgpu(pci=None, total=NAVI31, root=root)
    assert other == "none of the 1 AMD cards has about 20.0 GiB"


def test_an_integrated_card_whose_size_may_be_an_aperture_must_be_the_only_one(root: Path) -> None:
    write_card(root, "card0", "0000:c5:00.0", total=96 * GIB, used=6 * GIB)
    card = found_card(find_amdgpu(pci=None, total=None, root=root))
    assert (card.vram_total(), card.vram().bytes) == (96 * GIB, 90 * GIB)
    write_card(root, "card1", "0000:03:00.0")
    assert "nothing tells which of the 2" in str(find_amdgpu(pci=None, total=None, root=root))


def test_a_card_that_is_numbered_anew_keeps_its_own_figures(root: Path) -> None:
    """After a reset or a hot plug `card1` may be another card; one that is gone is unknown, not its successor."""
    ours = write_card(root, "card1", "0000:03:00.0", used=2 * GIB, link=True)
    write_card(root, "card2", "0000:0a:00.0", used=9 * GIB, link=True)
    card = found_card(find_amdgpu(pci="0000:03:00.0", total=NAVI31, root=root))
    (root / "card1").rename(root / "card7")
    (root / "card2").rename(root / "card1")
    assert card.vram().bytes == NAVI31 - 2 * GIB
    ours.rename(ours.parent / "gone")
    assert (card.vram().bytes, card.vram().doubtful) == (None, True)
    ours.parent.joinpath("gone").rename(ours)
    assert card.vram().bytes == NAVI31 - 2 * GIB


def test_two_names_of_one_device_are_no_twins(root: Path) -> None:
    device = write_card(root, "card1", "0000:03:00.0", link=True)
    (root / "card9").mkdir()
    (root / "card9" / "device").symlink_to(device)
    assert "the only AMD card" in found_card(find_amdgpu(pci=None, total=NAVI31, root=root)).how
    assert isinstance(find_amdgpu(pci=None, total=None, root=root), AmdgpuCard)


def test_at_the_right_address_a_card_of_another_size_does_not_answer(root: Path) -> None:
    """A whole card must not answer for a part of it, as with NVML."""
    write_card(root, "card1", "0000:03:00.0", total=192 * GIB, used=180 * GIB)
    refused = find_amdgpu(pci="0000:03:00.0", total=24 * GIB, root=root)
    assert refused == "the AMD card at PCI address 0000:03:00.0 has 192.0 GiB, this one 24.0 GiB"
    assert isinstance(find_amdgpu(pci="0000:03:00.0", total=None, root=root), AmdgpuCard)  # an APU
    assert isinstance(find_amdgpu(pci="0000:03:00.0", total=190 * GIB, root=root), AmdgpuCard)


@pytest.mark.parametrize("uevent", ["", "PCI_SLOT_NAME=\n", "PCI_SLOT_NAME=usb1\n", "PCI_SLOT_NAME"])
def test_without_a_word_of_the_driver_the_folders_name_is_the_address(root: Path, uevent: str) -> None:
    device = write_card(root, "card1", "0000:03:00.0", link=True)
    (device / "uevent").write_text(uevent)
    assert isinstance(find_amdgpu(pci="0000:03:00.0", total=NAVI31, root=root), AmdgpuCard)


def test_a_card_whose_vendor_cannot_be_read_is_known_by_amdgpus_own_file(root: Path) -> None:
    device = write_card(root, "card1", "0000:03:00.0")
    (device / "vendor").unlink()
    assert isinstance(find_amdgpu(pci="0000:03:00.0", total=NAVI31, root=root), AmdgpuCard)
    (device / "mem_info_vram_total").unlink()
    assert "no AMD card" in str(find_amdgpu(pci="0000:03:00.0", total=NAVI31, root=root))


@pytest.mark.parametrize(
    ("total", "used", "cause"),
    [
        (None, GIB, "mem_info_vram_total cannot be read"),
        (NAVI31, None, "mem_info_vram_used cannot be read"),
        (NAVI31, "", "no number of bytes"),
        (NAVI31, "n/a", "no number of bytes"),
        (NAVI31, "-5", "no number of bytes"),
        (NAVI31, "0x500", "no number of bytes"),
        (NAVI31, "\u0665", "no number of bytes"),
        (NAVI31, "9" * 30, "no number of bytes"),
        (NAVI31, NAVI31 + 1, f"{NAVI31 + 1} bytes used of {NAVI31}"),
        (0, 0, "0 bytes used of 0"),
    ],
)
def test_files_that_make_no_sense_are_unknown_with_their_cause(
    root: Path, total: object, used: object, cause: str
) -> None:
    write_card(root, "card1", "0000:03:00.0", total=total, used=used)
    source = found_card(find_amdgpu(pci="0000:03:00.0", total=NAVI31, root=root)).vram()
    assert source.bytes is None
    assert source.reason.startswith("unknown, because ")
    assert cause in source.reason


def test_a_system_without_the_folder_says_so(tmp_path: Path) -> None:
    assert "cannot be read" in str(find_amdgpu(pci="0000:03:00.0", total=1, root=tmp_path / "nowhere"))
    (tmp_path / "file").write_text("")
    assert "cannot be read" in str(find_amdgpu(pci=None, total=1, root=tmp_path / "file"))
    (tmp_path / "folder" / "mem_info_vram_total").mkdir(parents=True)
    assert "cannot be read" in str(figure(tmp_path / "folder", "mem_info_vram_total"))


def test_a_link_that_leads_to_itself_is_no_card(root: Path) -> None:
    (root / "card0").mkdir()
    (root / "card0" / "device").symlink_to(root / "card0" / "device")
    assert "no AMD card" in str(find_amdgpu(pci="0000:03:00.0", total=1, root=root))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(total=st.binary(max_size=24), used=st.binary(max_size=24), vendor=st.sampled_from([b"0x1002\n", b"", b"\xff"]))
def test_whatever_the_files_hold_nothing_is_raised(root: Path, total: bytes, used: bytes, vendor: bytes) -> None:
    device = root / "card3" / "device"
    device.mkdir(parents=True, exist_ok=True)
    for name, content in (("mem_info_vram_total", total), ("mem_info_vram_used", used), ("vendor", vendor)):
        (device / name).write_bytes(content)
    for size in (None, NAVI31):
        found = find_amdgpu(pci=None, total=size, root=root)
        if isinstance(found, AmdgpuCard):
            source = found.vram()
            assert source.bytes is None or 0 <= source.bytes <= found.vram_total()
