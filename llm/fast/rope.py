"""The pairs (cos, sin) of one token, made by the model's own modules at a position that counts up.

`Ropes(calls)` keeps how they were called; `ropes.at(h, position)` calls them again. `with ropes.noting() as noted:`
around a prefill tells where it ended: pictures move the positions of what follows them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

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
        self._asked = [_asked(call.module, call.args, call.kwargs) for call in calls]
        self._shapes = [torch.Size((1, 1)) if asked is None else asked.shape for asked in self._asked]

    @property
    def seen_at(self) -> int | None:
        """The position of the token with which the modules were seen; None if there are none."""
        return next((int(asked.max()) for asked in self._asked if asked is not None), None)

    def at(self, h: Tensor, position: Tensor) -> list[Pair]:
        """The pair of each call for the token `h [B, 1, H]` at `position`, int32 [1, 1]."""
        return [
            _again(call, asked, h, position.expand(*shape[:-2], h.shape[0], 1))
            for call, asked, shape in zip(self.calls, self._asked, self._shapes)
        ]

    @contextmanager
    def noting(self) -> Iterator[Noted]:
        """Note the largest position that the modules are asked for inside the block."""
        noted = Noted()

        def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            asked = _asked(module, args, kwargs)
            if asked is not None and not is_aside():
                noted.next = int(asked.max()) + 1

        with ExitStack() as stack:
            for module in {call.module for call in self.calls}:
                stack.callback(module.register_forward_pre_hook(note, with_kwargs=True).remove)
            yield noted


def _again(call: Call, asked: Tensor | None, h: Tensor, position: Tensor) -> Pair:
    """The call with another token, and another position in place of the one that was asked for."""

    def put(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value is asked:
            return position.to(value.dtype) if value.is_floating_point() else position
        return h if value.is_floating_point() else position

    args = tuple(put(value) for value in call.args)
    kwargs = {name: put(value) for name, value in call.kwargs.items()}
    return call.module(*args, **kwargs)  # type: ignore[no-any-return]


def _asked(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The positions among a call's arguments: by their name (Qwen-Omni's are floats), else the first whole numbers."""
    named = {**dict(zip(inspect.signature(module.forward).parameters, args)), **kwargs}
    tensors = {name: value for name, value in named.items() if isinstance(value, Tensor)}
    whole = (value for value in tensors.values() if not value.is_floating_point())
    return next((value for name, value in tensors.items() if "position" in name), next(whole, None))
