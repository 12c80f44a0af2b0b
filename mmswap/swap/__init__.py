"""Decides and moves memory: live bytes, peaks, plans, units, windows. Knows modules and bytes, not images or tokens.

`SwapPool` is what a user needs. It is looked up when it is used, so that `plan` can be had without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmswap.late import late

if TYPE_CHECKING:
    from mmswap.swap.pool import SwapPool

__all__ = ["SwapPool"]

__getattr__ = late(__name__, {"SwapPool": "pool"})
