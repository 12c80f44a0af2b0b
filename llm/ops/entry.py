"""The ops in torch's dispatcher: `torch.ops.mmswap.NAME`, on every device, with fakes. Importing it registers them.

`Library.define` and `impl`, not `custom_op`: a mutating `custom_op` costs 11 us a call, this 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.library import Library, register_fake

from mmswap.llm.ops import shuffle
from mmswap.llm.ops.backends import chooser
from mmswap.llm.ops.schema import NAMESPACE, OPS, Op

_LIBRARY = Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]  # as long as it lives, so do the ops


def _entry(name: str, op: Op) -> Callable[..., Any]:
    choose = chooser(name, op.check)

    def enter(*arguments: Any) -> Any:
        return choose(arguments)(*arguments)

    return enter


for _name, _op in {**OPS, shuffle.NAME: shuffle.OP}.items():
    _LIBRARY.define(f"{_name}{_op.schema}", tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    _LIBRARY.impl(_name, _entry(_name, _op), "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    register_fake(f"{NAMESPACE}::{_name}", _op.fake, lib=_LIBRARY)
