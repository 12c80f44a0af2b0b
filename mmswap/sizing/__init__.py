"""What a model would take of a card, from its config alone: `size_up(blueprint, room, wish) -> Sizing`.

Names are looked up when they are used: the arithmetic (`kv`, `packing`, `limits`, `bar`) can be had without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmswap.late import late

if TYPE_CHECKING:
    from mmswap.sizing.answer import Sizing
    from mmswap.sizing.room import Room, room_of
    from mmswap.sizing.sizer import size_up
    from mmswap.sizing.wish import Wish

__all__ = ["Room", "Sizing", "Wish", "room_of", "size_up"]

__getattr__ = late(
    __name__, {"Room": "room", "Sizing": "answer", "Wish": "wish", "room_of": "room", "size_up": "sizer"}
)
