"""Wheels without torch.distributed (ROCm on Windows): fake tensors work there too. Knows torch, no model.

torch looks up the class of distributed tensors when it first dispatches on a tensor subclass. Where that module cannot
be imported, a class that nothing is an instance of serves as well.
"""

from __future__ import annotations

import sys
from types import ModuleType

import torch

_NAME = "torch.distributed.tensor"


def stand_in() -> None:
    """Make dispatch on fake tensors possible on a torch that was built without torch.distributed; else do nothing."""
    if torch.distributed.is_available() or _NAME in sys.modules:
        return
    module = ModuleType(_NAME, "Stands in for a module that this build of torch lacks.")
    module.DTensor = type("DTensor", (), {"__doc__": "Nothing is one of these here."})  # type: ignore[attr-defined]
    sys.modules[_NAME] = module
