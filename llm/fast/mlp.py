"""The feed-forward part of a layer for one token: gate, up, activation, down.

`mlp_of(call, sighting)` reads a gated MLP from one forward that was seen; anything else is called as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from mmswap.llm.fast.calls import bind
from mmswap.llm.fast.linear import Linear, linear_of, takes_features
from mmswap.llm.fast.norm import close
from mmswap.llm.fast.part import shared_by
from mmswap.llm.fast.sighting import Call, Sighting

Activation = Callable[[Tensor], Tensor]
_gelu_tanh: Activation = partial(functional.gelu, approximate="tanh")
_ACTIVATIONS: tuple[Activation, ...] = (functional.silu, functional.gelu, _gelu_tanh)
_AS_OP: dict[Activation, tuple[str, ...]] = {
    functional.silu: ("silu_and_mul",),
    functional.gelu: ("gelu_and_mul", "none"),
    _gelu_tanh: ("gelu_and_mul", "tanh"),
}


@dataclass(slots=True, eq=False)
class Gated:
    """down(act(gate(h)) * up(h)).

    Attributes:
        inner: h -> act(gate(h)) * up(h). sides: the modules of gate and up.
    """

    inner: Linear
    down: Linear
    sides: tuple[nn.Module, nn.Module]

    def __call__(self, h: Tensor, _: Any) -> Tensor:
        return self.down(self.inner(h))


@dataclass(slots=True, eq=False)
class Opaque:
    """A module as it is; of a tuple that it gives, the first."""

    module: Callable[..., Any]

    def __call__(self, h: Tensor, _: Any) -> Tensor:
        result = self.module(h)
        return result[0] if isinstance(result, tuple) else result  # type: ignore[no-any-return]


def mlp_of(call: Call, sighting: Sighting) -> Gated | Opaque:
    """How to compute what `call.module` was seen to compute."""
    inside = [one for one in sighting.children(call.module) if takes_features(one.module)]
    if len(inside) == 3 and inside[0].given is call.given and inside[1].given is call.given:
        gate, up, down = inside
        for act in _ACTIVATIONS:
            for one, other in ((gate, up), (up, gate)):
                if close(act(one.result) * other.result, down.given) and call.result is down.result:
                    return Gated(_inner(one, other, act), linear_of(down), (one.module, other.module))
    return Opaque(call.module)


def _inner(gate: Call, up: Call, act: Activation) -> Linear:
    shared = shared_by((gate.module, up.module))
    op = _AS_OP.get(act)
    if shared is not None and op is not None:
        name, *more = op
        whole = shared.layer.bound(gate.given)
        run = bind(name, torch.cat((gate.result, up.result), -1), *more)
        return lambda h: run(whole(h), *more)
    left, right = linear_of(gate), linear_of(up)
    return lambda h: act(left(h)) * right(h)
