"""The feed-forward part of a layer for one token: gate, up, activation, down.

`mlp_of(call, sighting)` reads a gated MLP from one forward that was seen; anything else is called as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import functional

from mmswap.llm.fast.linear import Linear, linear_of, takes_features
from mmswap.llm.fast.norm import close
from mmswap.llm.fast.sighting import Call, Sighting

Activation = Callable[[Tensor], Tensor]
_ACTIVATIONS: tuple[Activation, ...] = (
    functional.silu,
    functional.gelu,
    partial(functional.gelu, approximate="tanh"),
)


@dataclass(slots=True, eq=False)
class Gated:
    """down(act(gate(h)) * up(h))."""

    gate: Linear
    up: Linear
    down: Linear
    act: Activation

    def __call__(self, h: Tensor, _: Any) -> Tensor:
        return self.down(self.act(self.gate(h)) * self.up(h))


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
                    return Gated(linear_of(one), linear_of(other), linear_of(down), act)
    return Opaque(call.module)
