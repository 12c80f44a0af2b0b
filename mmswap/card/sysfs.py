"""What Linux' amdgpu driver says of a card's memory, all processes counted, graphics too. Knows no torch.

    found = find_amdgpu(pci="0000:03:00.0", total=17163091968);  found.vram().bytes  # or a str: why not

The driver's files lie beside the card: `/sys/class/drm/card1/device/mem_info_vram_total`, `..._vram_used`,
`mem_info_gtt_used` (bytes in decimal: the kernel's Documentation/gpu/amdgpu/driver-misc.rst). Which `cardN` it is
depends on the order in which drivers started, so a card is found by its PCI address, and never by its number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from mmswap.card.budget import Source, adapter_leaves, differs, unknown
from mmswap.errors import told
from mmswap.units import format_bytes

ROOT = Path("/sys/class/drm")
AMD = 0x1002
NAME = "amdgpu sysfs"
_CARD = re.compile(r"card\d+")  # not card1-HDMI-A-1, a connector, nor renderD128
_PCI = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class AmdgpuCard:
    """The DRM devices that may be a card: one, or several that nothing tells apart.

    Attributes:
        folders: their `device` folders.
        how: how they were found.
    """

    folders: tuple[Path, ...]
    how: str

    def vram(self) -> Source:
        """What is left of the card's own memory; of several the least. Read now, never raises."""
        readings = [_vram(folder) for folder in self.folders]
        known = [reading for reading in readings if reading.bytes is not None]
        if not known:
            return readings[0]
        least = min(known, key=lambda reading: reading.bytes or 0)
        return Source(NAME, least.bytes, f"{least.reason} ({self.how})")

    def vram_total(self) -> int:
        """Bytes of the card's own memory, 0 if it is not said; of several the least."""
        sizes = [size for folder in self.folders if isinstance(size := figure(folder, "mem_info_vram_total"), int)]
        return min(sizes, default=0)

    def gtt_used(self) -> int | str:
        """Host memory that the driver uses for cards like this one, in bytes, or why it is unknown.

        Of several it is their sum: whichever is ours, what moved to the host is in it.
        """
        figures = [figure(folder, "mem_info_gtt_used") for folder in self.folders]
        known = [found for found in figures if isinstance(found, int)]
        return sum(known) if len(known) == len(figures) else next(found for found in figures if isinstance(found, str))


def find_amdgpu(*, pci: str | None, total: int | None, unique: str = "", root: Path | None = None) -> AmdgpuCard | str:
    """The DRM device of a card, or why there is none. Never raises.

    Args:
        pci: its address, `0000:03:00.0` or `03:00.0`, where it is known.
        total: its bytes, which must agree where the address is not known; None where they may be an aperture (APUs):
            then it must be the only AMD card.
        unique: the card's serial number as amdgpu's `unique_id` gives it, where it is known.
        root: another folder than `/sys/class/drm`.
    """
    root = root or ROOT
    cards = _amd_cards(root)
    if isinstance(cards, str):
        return cards
    wanted = _address(pci or "")
    if wanted:
        found = [card for card in cards if _address_of(card) == wanted]
        return _at_address(found[0], wanted, total) if found else f"no AMD card in {root} is at PCI address {wanted}"
    found = [card for card in cards if unique and _text(card, "unique_id").lower() == unique.lower()]
    if found:
        return AmdgpuCard(tuple(found), "by its serial number")
    if total is not None:
        return _by_size(cards, total)
    if len(cards) > 1:
        return f"nothing tells which of the {len(cards)} AMD cards in {root} it is"
    return AmdgpuCard(tuple(cards), "the only AMD card")


def _at_address(card: Path, address: str, total: int | None) -> AmdgpuCard | str:
    """A whole card must not answer for a part of it; a size that cannot be read yet is no reason to refuse one."""
    size = figure(card, "mem_info_vram_total")
    if total and isinstance(size, int) and size and differs(size, total):
        return f"the AMD card at PCI address {address} has {format_bytes(size)}, this one {format_bytes(total)}"
    return AmdgpuCard((card,), f"by its PCI address {address}")


def _by_size(cards: list[Path], total: int) -> AmdgpuCard | str:
    sizes = [figure(card, "mem_info_vram_total") for card in cards]
    found = [card for card, size in zip(cards, sizes) if isinstance(size, int) and not differs(size, total)]
    if len(found) == 1:
        return AmdgpuCard(tuple(found), f"the only AMD card of {format_bytes(total)}")
    if found:
        return AmdgpuCard(tuple(found), f"the least of {len(found)} twins")
    causes = [f" ({size})" for size in sizes if isinstance(size, str)]
    return f"none of the {len(cards)} AMD cards has about {format_bytes(total)}{''.join(causes[:1])}"


def figure(folder: Path, name: str) -> int | str:
    """A file's number of bytes, or why there is none."""
    try:
        text = (folder / name).read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        return f"{name} cannot be read ({error.strerror or told(error)})"
    if not (text.isascii() and text.isdecimal()) or len(text) > 20:
        return f"{name} holds {text[:20]!r}, which is no number of bytes"
    return int(text)


def _vram(folder: Path) -> Source:
    total, used = figure(folder, "mem_info_vram_total"), figure(folder, "mem_info_vram_used")
    for found in (total, used):
        if isinstance(found, str):
            return unknown(NAME, found, doubtful=True)
    return adapter_leaves(NAME, total=int(total), used=int(used))


def _amd_cards(root: Path) -> list[Path] | str:
    try:
        numbered = [path for path in root.iterdir() if _CARD.fullmatch(path.name)]
    except OSError as error:
        return f"{root} cannot be read ({error.strerror or told(error)})"
    numbered.sort(key=lambda path: int(path.name[4:]))
    devices = dict.fromkeys(_device(path) for path in numbered)  # two names may lead to one device
    cards = [device for device in devices if _is_amd(device)]
    return cards or f"there is no AMD card among the {len(numbered)} in {root}"


def _device(card: Path) -> Path:
    """Where the device itself is: its place stays, while `cardN` is given anew after a reset or a hot plug."""
    try:
        return (card / "device").resolve(strict=True)
    except (OSError, RuntimeError):  # a link that leads nowhere, or to itself
        return card / "device"


def _is_amd(folder: Path) -> bool:
    """By the vendor; where that cannot be read, by the file that amdgpu alone has."""
    try:
        return int(_text(folder, "vendor"), 16) == AMD
    except ValueError:
        return bool(_text(folder, "mem_info_vram_total"))


def _address_of(folder: Path) -> str:
    """By the driver's own word for it, else by the name of its folder."""
    for line in _text(folder, "uevent").splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "PCI_SLOT_NAME" and _address(value):
            return _address(value)
    return _address(folder.name)


def _address(text: str) -> str:
    """`0000:03:00.0`, whatever of it was written; empty if it is no address."""
    match = _PCI.fullmatch(text.strip())
    if match is None:
        return ""
    return f"{int(match[1] or '0', 16):04x}:{match[2]}:{match[3]}.{match[4]}".lower()


def _text(folder: Path, name: str) -> str:
    try:
        return (folder / name).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
