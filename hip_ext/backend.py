"""The op table's native kernels for AMD cards (and NVIDIA's, from the same source), as a backend of `mmswap.llm.ops`.

    available(torch.device("cuda"))      # None, or why not;  prepare(torch.device("cuda")) builds them once

Importing it compiles, loads and needs nothing but torch. `docs/hip.md`: what was run where, and what never was.
"""

from __future__ import annotations

import torch

from mmswap.hip_ext import op_cache, op_experts, op_gptq, op_linear, op_rotary, op_rows, supply
from mmswap.hip_ext.launching import Implementation
from mmswap.hip_ext.library import Missing

NAME = "hip"
IMPLEMENTATIONS = {
    "w4a16": Implementation(op_linear.w4a16, op_linear.refuses_w4a16),
    "linear": Implementation(op_linear.linear, op_linear.refuses_linear),
    "expert_linear": Implementation(op_experts.run, op_experts.refuses),
    "rms_norm": Implementation(op_rows.norm, op_rows.refuses_norm),
    "fused_add_rms_norm": Implementation(op_rows.fused_norm, op_rows.refuses_norm),
    "silu_and_mul": Implementation(op_rows.silu, op_rows.refuses_act),
    "gelu_and_mul": Implementation(op_rows.gelu, op_rows.refuses_act),
    "rotary": Implementation(op_rotary.run, op_rotary.refuses),
    "kv_store": Implementation(op_cache.store, op_cache.refuses_store),
    "decode_attention": Implementation(op_cache.attention, op_cache.refuses_attention),
    "gptq_shuffle": Implementation(op_gptq.run, op_gptq.refuses),
}


def available(device: torch.device) -> str | None:
    """Why the native kernels do not compute on `device`; None when they do. Builds nothing, never raises."""
    found = supply.kernels(device)
    return str(found) if isinstance(found, Missing) else None


def prepare(device: torch.device) -> None:
    """Builds the kernels for a device that has none: what asking for this backend by name means. Never raises."""
    supply.prepare(device)
