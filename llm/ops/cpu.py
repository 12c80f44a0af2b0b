"""The processor: the fastest composition of torch's own kernels that is right."""

from __future__ import annotations

import torch

from mmswap.llm.ops.backends import Implementation

NAME = "cpu"


def available(device: torch.device) -> str | None:
    """On the processor."""
    return None if device.type == "cpu" else "it computes on the processor"


IMPLEMENTATIONS: dict[str, Implementation] = {}
