"""Where each input column of a weight is stored, so that every group of columns lies in one piece (act-order).

Knows the group of each column, no weight. `arrange(groups, 128)`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Arrangement:
    """Slots of a row, `group_size` of them for each stored group.

    Attributes:
        slots: int64 [columns], the input column in each slot, -1 for an empty one.
        table: int64 [stored groups], which group of the checkpoint each is.
        reordered: False when every column lies where it is counted.
    """

    slots: Tensor
    table: Tensor
    reordered: bool


def arrange(groups: Tensor, group_size: int) -> Arrangement:
    """Slots for columns of which column j is in group `groups[j]` (int64 [in], 0 or more).

    Columns of a group keep their order. A group of more than `group_size` columns is stored as several with the same
    scale; one of fewer leaves slots empty, save at the end of the row.
    """
    columns = torch.arange(len(groups), device=groups.device)
    if torch.equal(groups, columns // group_size):
        return Arrangement(columns, torch.arange(-(-len(groups) // group_size), device=groups.device), False)
    counts = torch.bincount(groups).tolist()
    slots, table = [], []
    for group, members in enumerate(torch.split(torch.argsort(groups, stable=True), counts)):
        pieces = -(-len(members) // group_size)
        empty = members.new_full((pieces * group_size - len(members),), -1)
        slots += [members, empty]
        table += [group] * pieces
    placed = torch.cat(slots)
    end = int(torch.nonzero(placed >= 0).max()) + 1
    return Arrangement(placed[:end], torch.tensor(table, device=groups.device), True)
