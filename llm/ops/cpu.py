"""The processor: for each op the fastest composition of torch's own kernels that is right. Knows no model.

At one token an op costs what its calls cost, so a path for one row comes first and makes as few as can be;
`benchmarks/ops_cpu.py` has the figures. What a path cannot do right it refuses, and the reference computes.
"""

from __future__ import annotations

import torch

from mmswap.llm.ops import cpu_attention, cpu_linear, cpu_rows, cpu_store, cpu_words

NAME = "cpu"


def available(device: torch.device) -> str | None:
    """On the processor."""
    return None if device.type == "cpu" else "it computes on the processor"


IMPLEMENTATIONS = {
    **cpu_linear.IMPLEMENTATIONS,
    **cpu_words.IMPLEMENTATIONS,
    **cpu_rows.IMPLEMENTATIONS,
    **cpu_store.IMPLEMENTATIONS,
    **cpu_attention.IMPLEMENTATIONS,
}
