"""The C interface as ctypes sees it, read from `csrc/mmswap_hip.h` itself, so that the two cannot differ.

    a = STRUCTS["mms_norm"](rows=1, features=64, dtype=DTYPES["F16"]);  library.mms_rms_norm(ctypes.byref(a), stream)

Knows no torch and no library. The header is plain C of one style: a struct a block, a launcher a line.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from typing import Any

from mmswap.hip_ext.recipe import SOURCES, source_files

HEADER = SOURCES / "mmswap_hip.h"
_TYPES: dict[str, Any] = {
    "int": ctypes.c_int,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "float": ctypes.c_float,
    "const char*": ctypes.c_char_p,
}
_STRUCT = re.compile(r"typedef struct \{(.*?)\} (mms_\w+);", re.DOTALL)
_FUNCTION = re.compile(r"^MMS_API (int|int64_t|const char\*) (mms_\w+)\(([^)]*)\);", re.MULTILINE)
_CONSTANT = re.compile(r"^constexpr int (MMS_\w+) = (\d+);", re.MULTILINE)
_DTYPE = re.compile(r"MMS_([A-Z0-9]+) = (\d+)")


def _without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*", "", text)


def _fields(body: str) -> Iterator[tuple[str, Any]]:
    """`const void *x, *y; int32_t rows, section[8];` -> names and types, in their order."""
    for line in filter(None, (part.strip() for part in body.split(";"))):
        match = re.fullmatch(r"((?:const )?void\s*\*|u?int32_t|int64_t|float)\s*(.*)", line, re.DOTALL)
        assert match is not None, f"{HEADER.name}: {line}"
        kind = ctypes.c_void_p if "void" in match[1] else _TYPES[match[1]]
        for word in match[2].split(","):
            name, _, count = word.strip(" \n*").partition("[")
            yield name, kind * int(count.rstrip("]")) if count else kind


def _structs(text: str) -> dict[str, type[ctypes.Structure]]:
    return {
        name: type(name, (ctypes.Structure,), {"_fields_": list(_fields(body))}) for body, name in _STRUCT.findall(text)
    }


def _functions(text: str) -> dict[str, tuple[Any, list[Any]]]:
    """Name -> type of the result, and of the arguments; a struct goes by its address."""
    found = {}
    for result, name, arguments in _FUNCTION.findall(text):
        words = [word.strip() for word in arguments.split(",") if word.strip() != "void"]
        found[name] = (_TYPES[result], [ctypes.c_void_p if "*" in word else _TYPES[word.split()[0]] for word in words])
    return found


_TEXT = _without_comments(HEADER.read_text(encoding="utf-8"))
STRUCTS = _structs(_TEXT)
"""Name -> class, in the order of `mms_struct_size`."""

FUNCTIONS = _functions(_TEXT)
ABI = int(re.findall(r"#define MMS_ABI (\d+)", _TEXT)[0])
DTYPES = {
    name: int(code) for name, code in _DTYPE.findall(re.findall(r"enum mms_dtype \{(.*?)\}", _TEXT, re.DOTALL)[0])
}
STATUS = {
    name: int(code) for name, code in _DTYPE.findall(re.findall(r"enum mms_status \{(.*?)\}", _TEXT, re.DOTALL)[0])
}


def constants() -> dict[str, int]:
    """The numbers of the kernels' headers, such as the threads of their blocks."""
    texts = [path.read_text(encoding="utf-8") for path in source_files() if path.suffix == ".h"]
    return {name: int(number) for text in texts for name, number in _CONSTANT.findall(text)}
