"""Predicted and true peaks of shipped towers at their real widths, cut to a few blocks, under the malloc hook.

    LD_PRELOAD=hook.so python real_towers.py '{"name": "gemma-3-4b", "size": [896, 896], "dtype": "bfloat16", ...}'

Prints one JSON row per case; `peaks.py` starts it. The language model is cut to next to nothing, and weights are
random: neither changes what the tower allocates.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from malloc_hook import Hook
from run import truth
from transformers import AutoModelForImageTextToText

import mmswap.profiles as profiles
from mmswap.blueprint import Blueprint
from mmswap.swap.dry_run import DryRun
from mmswap.vision.tower import Call, find_tower

_DEPTHS = ("depth", "num_hidden_layers")
_SMALL = {"num_hidden_layers": 1, "intermediate_size": 64, "vocab_size": 512}


def cut(config: dict[str, Any], blocks: int) -> dict[str, Any]:
    """The same config with a tower of `blocks` blocks (every kind of block is still there)."""
    vision = dict(config["vision_config"])
    vision |= {name: blocks for name in _DEPTHS if name in vision}
    if "fullatt_block_indexes" in vision:
        vision["fullatt_block_indexes"] = [blocks - 1]
    if "deepstack_visual_indexes" in vision:
        vision["deepstack_visual_indexes"] = list(range(blocks))
    return config | {"vision_config": vision}


def small(config: dict[str, Any]) -> dict[str, Any]:
    """The same config with a language model of one thin layer; what the projector hands over keeps its width."""
    text = config["text_config"] | _SMALL
    for token in ("pad_token_id", "bos_token_id", "eos_token_id"):
        text.pop(token, None)
    return {name: value for name, value in config.items() if not name.startswith("pad_")} | {"text_config": text}


def blueprint_of(config: dict[str, Any]) -> Blueprint:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cut.json"
        path.write_text(json.dumps(config))
        return Blueprint.of(path)


def real_model(config: dict[str, Any], dtype: torch.dtype, attention: str) -> Any:
    values = blueprint_of(small(config)).config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForImageTextToText.from_config(values, dtype=dtype, attn_implementation=attention)
    return model.eval().requires_grad_(False)


def real_call(call: Call) -> Call:
    """The call with pixels in place of the blueprint's shapes."""
    generator = torch.Generator().manual_seed(0)

    def fill(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "meta":
            return tensor
        return torch.rand(tensor.shape, generator=generator).to(tensor.dtype)

    return call.mapped(fill)


def rows(case: dict[str, Any]) -> Iterator[dict[str, Any]]:
    hook = Hook()
    config = cut(profiles.read(case["name"])["config"], case["blocks"])
    picture = blueprint_of(config).picture(*case["size"])
    call = real_call(picture.call)
    for dtype in case["dtypes"]:
        for attention in case["attentions"]:
            model = real_model(config, getattr(torch, dtype), attention)
            tower, dry_run = find_tower(model), DryRun(model)
            peak = dry_run.tower_peak(lambda twin, call: find_tower(twin).run(call), call)
            row = {"family": case["name"], "dtype": dtype, "attention": attention, "patches": picture.patches}
            row |= {"size": "x".join(map(str, case["size"])), "width": width_of(config), "blocks": case["blocks"]}
            row |= {"live": peak.live, "with_scratch": peak.with_scratch, "output": peak.output, "how": peak.how}
            yield row | truth(hook, tower, call)


def width_of(config: dict[str, Any]) -> int:
    vision = config["vision_config"]
    return int(vision.get("embed_dim") or vision["hidden_size"])


if __name__ == "__main__":
    torch.set_num_threads(1)
    for found in rows(json.loads(sys.argv[1])):
        print(json.dumps(found), flush=True)
