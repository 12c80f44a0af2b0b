"""The pairs (cos, sin) of one token, made by the model's own modules at a position that counts up.

`Ropes(calls)` keeps how they were called; `ropes.at(h, position)` calls them again. `with ropes.noting() as noted:`
around a prefill tells where it ended: pictures move the positions of what follows them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmswap.llm.fast.sighting import Call
from mmswap.swap.between import is_aside

Pair = tuple[Tensor, Tensor]


@dataclass(slots=True)
class Noted:
    """The position after the last one that was asked for; None while nobody asked."""

    next: int | None = None


class Ropes:
    """The modules that make positions, as one step calls them.

    Attributes:
        calls: as seen while one token was decoded.
    """

    def __init__(self, calls: list[Call]) -> None:
        self.calls = calls
        self._shapes = [_position_of(call) for call in calls]

    @property
    def seen_at(self) -> int | None:
        """The position of the token with which the modules were seen; None if there are none."""
        asked = [value for call in self.calls if (value := _integers(call.args, call.kwargs)) is not None]
        return int(asked[0].max()) if asked else None

    def at(self, h: Tensor, position: Tensor) -> list[Pair]:
        """The pair of each call for the token `h [B, 1, H]` at `position`, int32 [1, 1]."""
        return [
            self._call(call, h, position.expand(*shape[:-2], h.shape[0], 1))
            for call, shape in zip(self.calls, self._shapes)
        ]

    @contextmanager
    def noting(self) -> Iterator[Noted]:
        """Note the largest position that the modules are asked for inside the block."""
        noted = Noted()

        def note(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            asked = _integers(args, kwargs)
            if asked is not None and not is_aside():
                noted.next = int(asked.max()) + 1

        with ExitStack() as stack:
            for module in {call.module for call in self.calls}:
                stack.callback(module.register_forward_pre_hook(note, with_kwargs=True).remove)
            yield noted

    def _call(self, call: Call, h: Tensor, position: Tensor) -> Pair:
        def put(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return h if value.is_floating_point() else position

        args = tuple(put(value) for value in call.args)
        kwargs = {name: put(value) for name, value in call.kwargs.items()}
        return call.module(*args, **kwargs)  # type: ignore[no-any-return]


def _integers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor) and not value.is_floating_point():
            return value
    return None


def _position_of(call: Call) -> torch.Size:
    asked = _integers(call.args, call.kwargs)
    return asked.shape if asked is not None else torch.Size((1, 1))
