"""Predicted and true peaks of many small towers, side by side, in one process under the malloc hook.

    LD_PRELOAD=hook.so python run.py '{"families": [...], "dtypes": ["float32"], "attentions": ["sdpa"], ...}'

Prints one JSON row per case. The prediction comes from mmswap; everything called true comes from malloc.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
from families import build, inputs
from malloc_hook import Hook
from torch.utils._python_dispatch import TorchDispatchMode

from mmswap.swap.dry_run import DryRun
from mmswap.vision.tower import find_tower


class _TensorsOnly(TorchDispatchMode):
    """The highest reading between operators: what is alive there is a tensor and no kernel's scratch."""

    def __init__(self, hook: Hook) -> None:
        super().__init__()
        self.hook, self.start, self.peak = hook, hook.live(), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        wants = [str(argument.type) == "Tensor" for argument in func._schema.arguments]
        wrapped = sum(8 for want, arg in zip(wants, args) if want and isinstance(arg, (int, float)))
        self.peak = max(self.peak, self.hook.live() - self.start - wrapped)
        return result


def rows(case: dict[str, Any]) -> Iterator[dict[str, Any]]:
    hook = Hook()
    for name in case["families"]:
        for dtype in case["dtypes"]:
            for attention in case["attentions"]:
                model = build(name, dtype=getattr(torch, dtype), attention=attention, width=case["width"])
                tower, dry_run = find_tower(model), DryRun(model)
                for size in case["sizes"]:
                    call = tower.call_for(inputs(name, model, size=size))
                    peak = dry_run.tower_peak(lambda twin, call: find_tower(twin).run(call), call)
                    row = {"family": name, "width": case["width"], "dtype": dtype, "attention": attention, "size": size}
                    row |= {
                        "live": peak.live,
                        "with_scratch": peak.with_scratch,
                        "output": peak.output,
                        "how": peak.how,
                    }
                    yield row | truth(hook, tower, call)


def truth(hook: Hook, tower: Any, call: Any) -> dict[str, int]:
    tower.run(call)  # warm: what kernels set up once per process is no part of a call
    before = hook.live()
    hook.reset()
    features = tower.run(call)
    peak, output = hook.peak() - before, hook.live() - before
    del features
    with _TensorsOnly(hook) as tensors:
        tower.run(call)
    return {"true_live": tensors.peak, "true_peak": peak, "true_output": output}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for found in rows(json.loads(sys.argv[1])):
        print(json.dumps(found), flush=True)
