"""What weights take once they are quantised, in pure ints: the layout of `llm/quant/layout.py`, which a test compares.
Which weights it holds for is `groups.py`'s.

int4: rows are padded to whole groups of 128; 4 bits a weight, and for each group a scale of 16 bits and a zero of 8:

    bytes = rows * ceil(columns / 128) * (64 + 3)
"""

from __future__ import annotations

GROUP = 128
FORMATS = ("int4",)


def packed_parts(rows: int, columns: int) -> tuple[int, int, int]:
    """Bytes of the packed weights, of the scales, and of the zero points, of a matrix (rows: outputs)."""
    groups = -(-columns // GROUP)
    return rows * groups * GROUP // 2, rows * groups * 2, rows * groups


def packed_bytes(rows: int, columns: int) -> int:
    """Bytes of a matrix in int4."""
    return sum(packed_parts(rows, columns))
