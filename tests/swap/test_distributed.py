"""F1: a torch built without torch.distributed, as ROCm's Windows wheels are: the dry run works as anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SITE = """
import importlib.abc, sys

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        compiled = sys.modules.get("torch._C")
        if name == "torch.distributed":
            for part in ("_c10d_init", "_distributed_c10d", "_rpc_init"):
                if hasattr(compiled, part):
                    delattr(compiled, part)
            sys.modules.pop("torch._C._distributed_c10d", None)
        if name == "torch._C._distributed_c10d":
            raise ModuleNotFoundError("No module named 'torch._C._distributed_c10d'")
        return None

sys.meta_path.insert(0, Finder())
"""

PROGRAM = """
import torch
assert not torch.distributed.is_available()
import mmswap
answer = mmswap.load(card="sim:1GiB").chat("What is this?", [__import__("PIL.Image").Image.new("RGB", (90, 60), "red")],
                                           max_new_tokens=2)
assert 0 < answer.images[0].peak_predicted < 100 << 20, answer
print(answer.window.reason)
"""


def test_the_dry_run_needs_no_torch_distributed(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Nothing is evicted because the encoder needs" in done.stdout
