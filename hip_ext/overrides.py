"""Libraries that a person names by hand in place of those that are found: MMSWAP_HIP_LIBRARY and MMSWAP_HIPRTC.

    named(Surroundings.real()) -> [("MMSWAP_HIP_LIBRARY", Found(value="/home/me/gfx1100.so", ...))]

Imports no torch.
"""

from __future__ import annotations

from mmswap.hip_ext.surroundings import Found, Surroundings, is_file

LIBRARY = "MMSWAP_HIP_LIBRARY"
"""Native kernels that were built by hand."""

HIPRTC = "MMSWAP_HIPRTC"
"""The runtime's compiler."""


def named(here: Surroundings) -> list[tuple[str, Found]]:
    """Those that are set, by variable."""
    return [(name, _look(here, name)) for name in (LIBRARY, HIPRTC) if here.is_set(name)]


def _look(here: Surroundings, name: str) -> Found:
    text = here.variable(name)
    if not text:
        return Found(None, name, f"{name} is set but empty, and ignored", "unset it", faults=("it is empty",))
    faults = () if is_file(here.place(text)) else ("there is no such file",)
    return Found(text, name, f"{name} names it", f"correct or unset {name}" if faults else "", faults=faults)
