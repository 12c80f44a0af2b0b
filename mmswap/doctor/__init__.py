"""`mmswap doctor`: what this machine, its card and its packages are, on one page that can be pasted into a bug report.

    for section, check in examine(Patient(Surroundings.real(), "auto")): print(section, check.name, check.value)

Names are looked up when they are used, so that the toolchain's probes can be had without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmswap.hip_ext.surroundings import Surroundings
from mmswap.late import late

if TYPE_CHECKING:
    from mmswap.doctor.check import Check
    from mmswap.doctor.discreet import Discreet
    from mmswap.doctor.examination import examine
    from mmswap.doctor.page import Page
    from mmswap.doctor.patient import Patient

__all__ = ["Check", "Discreet", "Page", "Patient", "Surroundings", "examine"]

__getattr__ = late(
    __name__,
    {
        "Check": "check",
        "Discreet": "discreet",
        "Page": "page",
        "Patient": "patient",
        "examine": "examination",
    },
)
