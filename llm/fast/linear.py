"""A linear layer as one call of an op, its weights read from the module each time (they may be moved and come back).

Knows `nn.Linear` and what stands in its place; anything else is called as the module that it is.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from mmswap.llm.fast.calls import bind, note
from mmswap.llm.fast.part import Part
from mmswap.llm.fast.sighting import Call
from mmswap.llm.quant import QuantLinear

Linear = Callable[[Tensor], Tensor]


def takes_features(module: nn.Module) -> bool:
    """Whether it is a linear layer, packed or plain."""
    return isinstance(module, (nn.Linear, QuantLinear, Part))


def linear_of(call: Call) -> Linear:
    """The fastest way to call it at the rows that it was seen with."""
    module, sample = call.module, call.given
    if isinstance(module, QuantLinear):
        if not module.prepared:
            note("w4a16", (sample, *module.arguments()))
        return module.bound(sample)
    if type(module) is not nn.Linear:
        return module
    run = bind("linear", sample, module.weight, module.bias)
    held = module._parameters  # looked up by hand: a module's attributes are slow
    return lambda x: run(x, held["weight"], held["bias"])
