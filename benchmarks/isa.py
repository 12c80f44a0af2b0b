"""What every Triton kernel compiles to, for cards that are not here: registers, spills, LDS, load widths. NOT a speed.

    python benchmarks/isa.py                              # all targets -> benchmarks/isa.csv
    python benchmarks/isa.py --json gfx1100 sm_90:w4_,gemv     # some, and of sm_90 the cases that begin so; printed

The kernels are compiled ahead of time as the backend would start them: its own launch code runs on tensors without
bytes, of shapes of real models, and what it would start is compiled in place of being started. No card is needed, and
none was used: instructions per weight are counted in the text of the hot loop, per lane, loads and jumps included.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import triton
from isa_cases import CASES, WITH_CHOICES
from isa_text import Report, read_amd, read_nvidia
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from mmswap.llm.ops import triton as backend
from mmswap.llm.ops.triton import arch, configs, launch
from mmswap.llm.ops.triton.arch import Card

CSV = Path(__file__).with_name("isa.csv")
AMD = ("gfx1100", "gfx1101", "gfx1102", "gfx1150", "gfx1151", "gfx1200", "gfx1201")
NVIDIA = ("sm_80", "sm_89", "sm_90", "sm_120")
CHOICES = 4
COLUMNS = ("target", "case", "kernel", "constants", "warps", "registers", "spills", "scratch", "shared_in_loop",
           "loads_in_loop", "instructions", "per_weight", "triton")  # fmt: skip
_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.int8: "i8", torch.uint8: "u8",
          torch.int32: "i32", torch.int64: "i64"}  # fmt: skip


class Start(NamedTuple):
    """A kernel that the backend would have started."""

    kernel: Any
    arguments: tuple[Any, ...]
    constants: tuple[Any, ...]
    warps: int


def card_of(target: str) -> Card:
    """The card of a target's name: gfx1100, sm_90."""
    return Card("cuda", target[3:], 32) if target.startswith("sm_") else Card("hip", target, 32)


def starts_of(op: str, arguments: tuple[Any, ...], card: Card, choice: int = 0) -> list[Start]:
    """What the backend would start on that card, by its own code. `choice`: of the table of configurations."""
    seen: list[Start] = []

    def note(self: Any, grid: Any, arguments: Any, constants: Any, warps: int) -> None:
        seen.append(Start(self.kernel, arguments, constants, warps))

    def choose(kernel: str, card: Card, shape: Any) -> Any:
        row = configs.TABLE[card.family][kernel]
        return row[min(choice, len(row) - 1)]

    found = {"card": lambda device: card, "processors": lambda device: 96}
    with (
        patch.multiple(arch, **found),
        patch.object(configs, "choose", choose),
        patch.object(launch.Launcher, "__call__", note),
    ):
        why = backend.IMPLEMENTATIONS[op].refuses(*arguments)
        assert why is None, why
        backend.IMPLEMENTATIONS[op].run(*arguments)
    return seen


def compiled(start: Start, card: Card) -> Any:
    """The kernel for that card, of what the JIT would know of its arguments."""
    names = start.kernel.arg_names
    values = dict(zip(names, (*start.arguments, *start.constants), strict=True))
    signature, constants, attributes = {}, {}, {}
    for place, (name, value) in enumerate(values.items()):
        kind, known = _kind_of(value, place >= len(start.arguments), card)
        if start.kernel.params[place].do_not_specialize:
            kind, known = "i32", []
        signature[name] = kind
        if kind == "constexpr":
            constants[(place,)] = value
        elif known:
            attributes[(place,)] = known
    source = ASTSource(fn=start.kernel, signature=signature, constexprs=constants, attrs=attributes)
    target = GPUTarget(card.backend, int(card.arch) if card.backend == "cuda" else card.arch, card.lanes)
    return triton.compile(source, target=target, options={"num_warps": start.warps, **launch.OPTIONS})


def _kind_of(value: Any, constant: bool, card: Card) -> tuple[str, list[list[Any]]]:
    if constant or (type(value) is int and value == 1):
        return "constexpr", []
    if isinstance(value, Tensor):
        narrow = (
            [["tt.pointer_range", 32]] if card.backend == "hip" and value.untyped_storage().nbytes() < 1 << 31 else []
        )
        return f"*{_NAMES[value.dtype]}", [["tt.divisibility", 16], *narrow]
    if isinstance(value, float):
        return "fp32", []
    return "i32" if -(1 << 31) <= value < 1 << 31 else "i64", [] if value % 16 else [["tt.divisibility", 16]]


def read(kernel: Any, card: Card) -> Report:
    """What was compiled."""
    if card.backend == "hip":
        return read_amd(kernel.asm["amdgcn"])
    return read_nvidia(kernel.asm["cubin"], Path(triton.__file__).parent / "backends" / "nvidia" / "bin")


def rows(asked: list[str]) -> Iterator[dict[str, Any]]:
    """A row for each kernel, case and target. `asked`: TARGET, or TARGET:BEGINNING,BEGINNING of cases' names."""
    for one in asked:
        target, _, beginnings = one.partition(":")
        card = card_of(target)
        for case, (op, make) in CASES.items():
            if not case.startswith(tuple(beginnings.split(","))):
                continue
            seen = set()
            for choice in range(CHOICES if case in WITH_CHOICES and not beginnings else 1):
                title = case if choice == 0 else f"{case}, choice {choice + 1}"
                for start in starts_of(op, make(), card, choice):
                    if (start.kernel, start.constants, start.warps) not in seen:
                        seen.add((start.kernel, start.constants, start.warps))
                        yield _row(target, title, start, read(compiled(start, card), card), card)


def _row(target: str, case: str, start: Start, report: Report, card: Card) -> dict[str, Any]:
    constants = dict(zip(start.kernel.arg_names[len(start.arguments) :], start.constants, strict=True))
    name = start.kernel.fn.__name__
    words = 16 if start.kernel.fn.__name__ == "w4_dot" else constants.get("BW", 0)
    weights = constants["BN"] * words * 8 if report.loop and words else 0
    return {
        "target": target,
        "case": case,
        "kernel": name,
        "constants": " ".join(f"{key}={value}" for key, value in constants.items()),
        "warps": start.warps,
        "registers": report.registers,
        "spills": report.spills,
        "scratch": report.scratch,
        "shared_in_loop": report.shared,
        "loads_in_loop": " ".join(f"{count}x{width}" for width, count in report.loads.items()),
        "instructions": report.instructions,
        "per_weight": round(report.instructions * start.warps * card.lanes / weights, 2) if weights else "",
        "triton": triton.__version__,
    }


def main() -> None:
    """Compile, and write the table or print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("asked", nargs="*", default=[*AMD, *NVIDIA], metavar="TARGET[:CASES]")
    parser.add_argument("--json", action="store_true", help="print one JSON line a row, and write nothing")
    chosen = parser.parse_args()
    if chosen.json:
        for row in rows(chosen.asked):
            print(json.dumps(row), flush=True)
        return
    with CSV.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in rows(chosen.asked):
            writer.writerow(row)
            print(f"{row['target']:8} {row['case']:40} {row['registers']:4} registers, {row['spills']} spills")


if __name__ == "__main__":
    main()
