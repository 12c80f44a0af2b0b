"""Whether a library or a code object is all there: loading one that was cut off ends the process. Knows ELF alone.

whole(path.read_bytes())
"""

from __future__ import annotations

import struct

_MAGIC = b"\x7fELF"
_HEADER = struct.Struct("<40xQ10xHH")  # of 64 bits: place, size and number of the entries about sections


def whole(binary: bytes) -> bool:
    """False where the table of sections, which linkers write last, lies beyond the end. What is not ELF is whole."""
    if not binary.startswith(_MAGIC):
        return bool(binary)
    if len(binary) < _HEADER.size + 2:
        return False
    place, size, count = (int(number) for number in _HEADER.unpack_from(binary))
    return place + size * count <= len(binary)
