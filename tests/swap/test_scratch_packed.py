"""What layers in 4 bits make plain inside one op, which a trace cannot see: the formula against measurements."""

from __future__ import annotations

import pytest
import torch

from mmswap.llm.quant import QuantLinear, quantise
from mmswap.swap import kernels
from mmswap.swap.meter import CpuMeter
from mmswap.units import MIB

METER = CpuMeter()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("out", "columns"), [(256, 512), (1000, 2050), (2048, 2048)])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_prefill_through_packed_weights_is_bounded(backend: str, out: int, columns: int, dtype: torch.dtype) -> None:
    layer = QuantLinear(quantise(torch.randn(out, columns, generator=torch.Generator().manual_seed(0))).packed)
    layer.prepare(backend)
    op = torch.ops.mmswap.int4pack.default if layer.prepared else torch.ops.mmswap.w4a16.default
    args = (torch.randn(24, columns).to(dtype), *layer.arguments())
    measured = METER.scratch(op, args, {})
    assert measured is not None
    assert measured <= kernels.on_the_host(op, args, None)
    assert kernels.on_a_card(op, args, None) <= out * columns * 5 + 2 * MIB
