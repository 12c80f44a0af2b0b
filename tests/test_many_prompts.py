"""300 prompts in a row, all different, each with an answer of its own length: nothing may be left of them."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import mmswap
from mmswap.units import MIB

WARM, MANY = 40, 300


def anonymous() -> int:
    """Bytes of this process that are in no file, swapped ones included."""
    status = Path("/proc/self/status")
    if not status.is_file():
        pytest.skip("needs /proc/self/status")
    lines = dict(line.split(":", 1) for line in status.read_text(encoding="ascii").splitlines() if ":" in line)
    return sum(int(lines[name].split()[0]) * 1024 for name in ("RssAnon", "VmSwap"))


def tensors() -> int:
    """Bytes of all tensors that anything still holds."""
    gc.collect()
    held = [thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, torch.nn.Parameter)]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in held}
    return sum(storages.values())


def ask_them_all() -> None:
    runtime = mmswap.load(quantize="int4")

    def ask(number: int) -> None:
        words = " ".join(str(number * 7 + word) for word in range(number % 9))
        runtime.chat(f"Describe {number} {words}", max_new_tokens=1 + number % 3)

    for number in range(WARM):
        ask(number)
    before, held = anonymous(), tensors()
    for number in range(WARM, WARM + MANY):
        ask(number)
    assert tensors() == held
    assert anonymous() - before < 32 * MIB


def test_memory_does_not_grow_with_prompts() -> None:
    """In a process of its own, as users have it: among other tests, their rubbish is collected in between."""
    anonymous()  # skips
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    ask_them_all()
