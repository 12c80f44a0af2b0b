"""The import rules of ARCHITECTURE.md: downwards only, never sideways between vision and llm."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent  # not the root: `-c` would put ./mmswap before the installed package

ROOT = Path(__file__).parents[1]
FLOORS = {
    "mmswap.errors": 0,
    "mmswap.units": 0,
    "mmswap.config": 0,
    "mmswap.late": 0,
    "mmswap.profiles": 0,
    "mmswap.card": 1,
    "mmswap.swap": 2,
    "mmswap.vision": 3,
    "mmswap.llm": 3,
    "mmswap.hip_ext": 0,
    "mmswap.answer": 4,
    "mmswap.chat": 4,
    "mmswap.bench": 4,
    "mmswap.blueprint": 4,
    "mmswap.doctor": 4,
    "mmswap.foresight": 4,
    "mmswap.measured": 4,
    "mmswap.place": 4,
    "mmswap.placement": 4,
    "mmswap.profiling": 4,
    "mmswap.recall": 4,
    "mmswap.reuse": 4,
    "mmswap.several": 4,
    "mmswap.sizing": 4,
    "mmswap.stream": 4,
    "mmswap.runtime": 4,
    "mmswap.weights": 4,
    "mmswap.cli": 5,
    "mmswap.__main__": 5,
    "mmswap.server": 5,
    "mmswap.deploy": 5,
}
NEVER_NEEDED = ("torchvision", "accelerate", "amdsmi", "torch.distributed", "triton")
TRITON = "mmswap.llm.ops.triton."  # its files are imported when Triton is there
PURE = (
    "mmswap.swap.plan",
    "mmswap.swap.fit",
    "mmswap.card.budget",
    "mmswap.card.wddm",
    "mmswap.card.sysfs",
    "mmswap.card.known",
    "mmswap.llm.kv.kinds",
    "mmswap.llm.kv.layout",
    "mmswap.sizing.packing",
    "mmswap.sizing.limits",
    "mmswap.sizing.scales",
    "mmswap.sizing.bar",
    "mmswap.sizing.wish",
    "mmswap.sizing.answer",
    "mmswap.errors",
    "mmswap.units",
    "mmswap.config",
)


def modules() -> dict[str, Path]:
    found = {}
    for house in ("mmswap", "vision", "llm", "hip_ext", "profiles"):
        for path in (ROOT / house).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = parts if parts[0] == "mmswap" else ("mmswap", *parts)
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def house_of(name: str) -> str | None:
    return next((house for house in FLOORS if name == house or name.startswith(house + ".")), None)


def faults(name: str, path: Path) -> list[str]:
    house = house_of(name)
    wrong = []
    for imported in imports_of(path):
        other = house_of(imported)
        if other is None or other == house or house is None:
            continue
        if FLOORS[other] > FLOORS[house] or {house, other} == {"mmswap.vision", "mmswap.llm"}:
            wrong.append(f"{name} imports {imported}")
    return wrong


def test_imports_go_downwards_only() -> None:
    assert len(modules()) > 20
    assert [fault for name, path in modules().items() for fault in faults(name, path)] == []


def test_every_module_has_a_floor() -> None:
    assert [name for name in modules() if name != "mmswap" and house_of(name) is None] == []


def test_an_upward_import_is_caught(tmp_path: Path) -> None:
    path = tmp_path / "low.py"
    path.write_text("from mmswap.runtime import load\nfrom mmswap.llm.text import Detokenizer\n")
    assert len(faults("mmswap.vision.low", path)) == 2
    assert len(faults("mmswap.card.low", path)) == 2


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_import_no_torch(name: str) -> None:
    code = f"import sys, {name}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=HERE, check=False).returncode == 0


def test_nothing_needs_the_packages_that_windows_wheels_lack() -> None:
    used = {name: imports_of(path) for name, path in modules().items()}
    wrong = [
        f"{name}: {imported}"
        for name, names in used.items()
        for imported in names
        if any(imported == never or imported.startswith(never + ".") for never in NEVER_NEEDED)
        and not (name.startswith(TRITON) and imported.split(".")[0] == "triton")
    ]
    assert wrong == []


def test_help_imports_no_torch() -> None:
    code = "import sys, mmswap.cli; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=HERE, check=False).returncode == 0
