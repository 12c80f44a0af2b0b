"""Which kind of card a device is, in Triton's words, and why Triton does not compute on it. Imports Triton when asked.

    refusal(torch.device("cuda"))      # None: it computes there; else the reason
    card(torch.device("cuda"))         # Card("hip", "gfx1100", 32)

Nothing here was run on a card.
"""

from __future__ import annotations

import os
import re
from functools import cache
from importlib import import_module
from typing import NamedTuple

import torch

WINDOWS = os.name == "nt"
INTERPRETER = "interpreter"
_OLDEST = (3, 3)
_OLDEST_CUDA = 80


class Card(NamedTuple):
    """What kernels are compiled for: `hip`, `cuda` or `interpreter`; gfx1100, 90; lanes of a warp."""

    backend: str
    arch: str
    lanes: int

    @property
    def family(self) -> str:
        """The row of the table of configurations: rdna3, rdna4, cdna, cuda, interpreter."""
        if self.backend != "hip":
            return self.backend
        return {"gfx11": "rdna3", "gfx12": "rdna4"}.get(self.arch[:5], "cdna")

    @property
    def name(self) -> str:
        """As people say it: gfx1100, sm_90."""
        return f"sm_{self.arch}" if self.backend == "cuda" else self.arch


def version() -> str:
    """Triton's version; "" where it is missing."""
    try:
        return str(import_module("triton").__version__)
    except Exception:
        return ""


def refusal(device: torch.device) -> str | None:
    """Why nothing is computed on `device` by Triton; None when it is."""
    try:
        module = import_module("triton")
        import_module("triton.language")
    except ModuleNotFoundError:
        return f"the package {'triton-windows' if WINDOWS else 'triton'} is not installed"
    except Exception as error:
        return f"triton cannot be imported ({(str(error).splitlines() or [''])[0]})"
    if tuple(int(number) for number in re.findall(r"\d+", module.__version__)[:2]) < _OLDEST:
        return f"triton {module.__version__} is older than {'.'.join(map(str, _OLDEST))}"
    if interpreted():
        return None if device.type == "cpu" else "TRITON_INTERPRET is set: it computes on the CPU alone"
    if device.type != "cuda":
        return f"it computes on cards, not on {device.type}"
    try:
        found = card(device)
    except Exception as error:
        return f"triton finds no card ({(str(error).splitlines() or [''])[0]})"
    return unfit(found)


def unfit(found: Card) -> str | None:
    """Why Triton does not compile for a card; None when it does."""
    if found.backend == "hip" and not re.fullmatch(r"gfx(90[8a]|94[0-2]|950|1[12]\d\d)", found.arch):
        return f"triton does not compile for {found.arch}"
    if found.backend == "cuda" and int(found.arch) < _OLDEST_CUDA:
        return f"{found.name} is older than sm_{_OLDEST_CUDA}"
    return None


def interpreted() -> bool:
    """Kernels run in Triton's interpreter, on tensors of the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on")


@cache
def card(device: torch.device) -> Card:
    """The kind of card that `device` is, asked of torch."""
    if device.type == "cpu":
        return Card(INTERPRETER, INTERPRETER, 32)
    about = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        arch = about.gcnArchName.split(":")[0]
        return Card("hip", arch, 32 if arch.startswith("gfx1") else 64)
    return Card("cuda", str(about.major * 10 + about.minor), 32)


@cache
def pairs_math(found: Card, dtype: torch.dtype) -> str:
    """How pairs of codes and activations are multiplied there: MATH of `pairs.py`."""
    kind = "bf16" if dtype == torch.bfloat16 else "f16"
    return f"{ {'rdna3': 'dot2', 'rdna4': 'dot2', 'cuda': 'ptx'}.get(found.family, 'plain') }_{kind}"


@cache
def processors(device: torch.device) -> int:
    """Compute units (AMD) or multiprocessors (NVIDIA) of the card."""
    return 1 if device.type == "cpu" else int(torch.cuda.get_device_properties(device).multi_processor_count)
