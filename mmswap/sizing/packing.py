"""What weights take once they are quantised. One formula, in pure ints; which weights it holds for is `groups.py`'s.

int4: 4 bits a weight, and for each group of 128 along a row a scale of 16 bits and a zero point of 4:

    bytes = rows * (ceil(columns / 2) + ceil(columns / 128) * 2.5)
"""

from __future__ import annotations

GROUP = 128
FORMATS = ("int4",)


def packed_parts(rows: int, columns: int) -> tuple[int, int, int]:
    """Bytes of the packed weights, of the scales, and of the zero points, of a matrix (rows: outputs)."""
    groups = -(-columns // GROUP)
    return rows * -(-columns // 2), rows * groups * 2, -(-rows * groups // 2)


def packed_bytes(rows: int, columns: int) -> int:
    """Bytes of a matrix in int4."""
    return sum(packed_parts(rows, columns))
