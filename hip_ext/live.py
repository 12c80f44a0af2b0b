"""The card that torch computes on, in the words of compilers: what native kernels must be built for. Asks torch alone.

    live(torch.device("cuda"))      # Live(kind="hip", arch="gfx1100", runtime="7.2"), or why there is nothing

The index is torch's, so HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mmswap.errors import told
from mmswap.hip_ext import runtime
from mmswap.hip_ext.arch import base_name

OLDEST_CUDA = 80


@dataclass(frozen=True, slots=True)
class Live:
    """`kind`: hip or cuda. `arch`: gfx1100, sm_90. `runtime`: major and minor version of HIP or CUDA."""

    kind: str
    arch: str
    runtime: str


def live(device: torch.device) -> Live | str:
    """Never raises."""
    if device.type != "cuda":
        return f"it computes on cards, not on {device.type}"
    try:
        about = torch.cuda.get_device_properties(device)
    except Exception as error:  # a driver's, whatever it is
        return f"torch finds no such card ({told(error)})"
    if torch.version.hip is None:
        return _cuda(about.major * 10 + about.minor)
    arch = base_name(str(getattr(about, "gcnArchName", "")))
    if not arch:
        return "torch does not tell the card's architecture"
    found = runtime.loaded()
    return found if isinstance(found, str) else Live("hip", arch, found.version)


def _cuda(capability: int) -> Live | str:
    if capability < OLDEST_CUDA:
        return f"sm_{capability} is older than sm_{OLDEST_CUDA}"
    return Live("cuda", f"sm_{capability}", torch.version.cuda or "")
