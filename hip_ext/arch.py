"""Which architecture native code is to be built for: MMSWAP_HIP_ARCH, the live device, the kernel's own list (Linux).

    hip_arch(here, live="gfx90a:sramecc+:xnack-") -> Found(value="gfx90a", source="the live device", ...)

Imports no torch: who has a device says what it is called.
"""

from __future__ import annotations

import re
from pathlib import Path

from mmswap.hip_ext.surroundings import Found, Surroundings

_NAME = re.compile(r"gfx[0-9a-f]{3,5}|gfx\d+(?:-\d+)*-generic", re.IGNORECASE)
_GENERIC = {
    "gfx10-1-generic": ("gfx101",),
    "gfx10-3-generic": ("gfx103",),
    "gfx11-generic": ("gfx110", "gfx115"),
    "gfx12-generic": ("gfx120",),
}
_KFD = "/sys/class/kfd/kfd/topology/nodes"


def base_name(arch: str) -> str:
    """`'gfx90a:sramecc+:xnack-' -> 'gfx90a'`: features are no part of the architecture's name."""
    return arch.partition(":")[0].strip().lower()


def names(text: str) -> tuple[str, ...]:
    """`'gfx1100; gfx1030:xnack-,gfx1100' -> ('gfx1100', 'gfx1030')`: as people write several."""
    return tuple(dict.fromkeys(base_name(word) for word in re.split(r"[;,\s]+", text) if word))


def unfit(arch: str) -> str | None:
    """Why the kernels are not for an AMD architecture; None when they are. They count on waves of 32 lanes."""
    return None if re.match(r"gfx1[0-2]", arch) else f"the kernels are for RDNA cards, and {arch} is none"


def covers(built: str, arch: str) -> bool:
    """Whether code for `built` runs on a card that calls itself `arch`: its own, and a generic one of its family."""
    return built == arch or (built in _GENERIC and arch.startswith(_GENERIC[built]))


def hip_arch(here: Surroundings, live: str | None = None) -> Found:
    """Architectures, joined by `;`.

    Args:
        live: what the device that was chosen calls itself, if it is an AMD card.
    """
    faults: tuple[str, ...] = ()
    asked = names(here.variable("MMSWAP_HIP_ARCH"))
    if asked:
        wrong = [word for word in asked if not _NAME.fullmatch(word)]
        if not wrong:
            return Found(";".join(asked), "MMSWAP_HIP_ARCH", "MMSWAP_HIP_ARCH names it")
        faults = (f"MMSWAP_HIP_ARCH names {', '.join(wrong)}, which is no architecture and ignored",)
    elif here.is_set("MMSWAP_HIP_ARCH"):
        faults = ("MMSWAP_HIP_ARCH is set but empty, and ignored",)
    if live and _NAME.fullmatch(base_name(live)):
        return Found(base_name(live), "the live device", "the chosen device calls itself so", faults=faults)
    listed = kfd_archs(here.place(_KFD)) if not here.windows else []
    if listed:
        return Found(";".join(listed), "the amdgpu driver", "the driver's list of devices", faults=faults)
    listing = "" if here.windows else ", and the amdgpu driver lists none"
    reason = f"no AMD card is chosen{listing}; MMSWAP_HIP_ARCH would name one"
    return Found(None, "", reason, "let MMSWAP_HIP_ARCH name it, for example gfx1100", faults=faults)


def kfd_archs(nodes: Path) -> list[str]:
    """The architectures that the amdgpu compute driver lists, processors left out."""
    found = []
    try:
        files = sorted(nodes.glob("*/properties"))
    except OSError:
        return []
    for file in files:
        try:
            match = re.search(r"^gfx_target_version (\d+)$", file.read_text(encoding="ascii", errors="replace"), re.M)
        except OSError:
            continue
        if match and int(match[1]):
            found.append(kfd_name(int(match[1])))
    return list(dict.fromkeys(found))


def kfd_name(version: int) -> str:
    """`90010 -> 'gfx90a'`, `110001 -> 'gfx1101'`: two digits each for minor and step, the rest is the major version."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def is_rdna(arch: str) -> bool:
    """Whether it is a desktop architecture (gfx10 to gfx12), which needs AOTriton's experimental switch."""
    return re.match(r"gfx1[0-2]\d\d", base_name(arch)) is not None
