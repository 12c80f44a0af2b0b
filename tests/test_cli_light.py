"""`mmswap plan` leaves out what it never uses; its figures are the same, and who wants the compiler gets it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mmswap.runtime import carried_model

_AFTER = """
import sys
sys.argv = ["mmswap", "plan", sys.argv[1], "--card", "sim:64MiB", "--image", "201x167", "--json"]
from mmswap.cli import light, main
if LATE:
    light.travel_light = lambda: False
try:
    main()
finally:
    print(*[name for name in ("torch._dynamo.convert_frame", "torch.distributed.fsdp") if name in sys.modules])
"""

_COMPILED = """
from mmswap.cli.light import travel_light
assert travel_light() and not travel_light()
import torch
from transformers import Qwen3VLForConditionalGeneration
assert type(torch._dynamo).__name__ == "StandIn"
double = torch.compile(lambda x: x * 2, backend="eager")
assert torch.equal(double(torch.ones(3)), torch.full((3,), 2.0))
assert torch._dynamo.utils.counters is not None and type(torch._dynamo).__name__ == "module"
from transformers.masking_utils import TransformGetItemToIndex
with TransformGetItemToIndex():
    rows = torch.vmap(lambda row: torch.arange(4)[row])(torch.tensor([2, 0]))
assert rows.tolist() == [2, 0]
"""

_LISTS = """
from pathlib import Path
import transformers
from transformers.utils import import_utils
from mmswap.cli import light
models = str(Path(transformers.__file__).with_name("models") / "__init__.py")
read = import_utils.define_import_structure(models)
light._list_models_once()
assert import_utils.define_import_structure(models) == read
"""


def _run(code: str, folder: Path, *arguments: str) -> str:
    env = {"PATH": "", "XDG_CACHE_HOME": str(folder), "LOCALAPPDATA": str(folder), "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=folder, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_plan_needs_no_compiler_and_says_the_same_without(tmp_path: Path) -> None:
    told = {}
    for late in (False, True):
        (home := tmp_path / str(late)).mkdir()
        *page, loaded = _run(_AFTER.replace("LATE", str(late)), home, str(carried_model())).splitlines()
        told[late] = json.loads("".join(page))
        assert bool(loaded) == late
    assert told[False] == told[True]
    assert told[False]["need"] > 0


@pytest.mark.parametrize("code", [_COMPILED, _LISTS], ids=["the compiler is there for who asks", "models are listed"])
def test_what_is_left_out_is_not_lost(code: str, tmp_path: Path) -> None:
    _run(code, tmp_path)
