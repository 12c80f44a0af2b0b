"""Each kind of KV cache at 128 to 16384 tokens: a step of prefill, a token of decode, and how far the logits move.

    python benchmarks/kv.py                                  # a small random model; writes benchmarks/kv.csv
    python benchmarks/kv.py --device cuda --shape layer-7b   # on a card; rows of other devices stay in the file

The cache is filled with random keys and values, the same for every kind; then `STEP` tokens are read in one pass and
some are decoded one by one, through the model's own forward (`forward_ms`) and part by part (`lean_ms`). Milliseconds
are medians. `cosine` and `kl` compare the logits behind the step with those of fp16; a random model says nothing of
answers, only of rounding that adds up: `kv_quality.py` has a real one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from kv_table import write
from torch import Tensor
from torch.nn import functional
from transformers import Qwen2Config, Qwen2ForCausalLM

from mmswap.bench.machine import wait
from mmswap.llm.fast import open_lean
from mmswap.llm.kv.cache import KvCache
from mmswap.llm.kv.kinds import KINDS
from mmswap.llm.kv.opening import Survey
from mmswap.swap.dry_run import cache_argument

OUT = Path(__file__).with_suffix(".csv")
LENGTHS = (128, 512, 2048, 8192, 16384)
STEP, DECODED = 64, 8
SHAPES = {"small": (256, 4, 4, 2, 512), "layer-7b": (3584, 28, 28, 4, 1024)}  # hidden, layers, heads, kv heads, vocab


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float16", "bfloat16"])
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)))
    given = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(given.device)
    model = build(given.shape, getattr(torch, given.dtype), device)
    lengths = [int(part) for part in given.lengths.split(",")]
    shown = {"shape": given.shape, "dtype": given.dtype}
    write(OUT, ({**shown, **row} for row in rows(model, lengths, device)), device, keep=True)


def build(shape: str, dtype: torch.dtype, device: torch.device) -> Any:
    hidden, layers, heads, kv_heads, vocabulary = SHAPES[shape]
    config = Qwen2Config(
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=vocabulary,
        max_position_embeddings=2 * max(LENGTHS),
    )
    torch.manual_seed(0)
    with torch.device(device):
        return Qwen2ForCausalLM(config).to(dtype).eval().requires_grad_(False)


def rows(model: Any, lengths: list[int], device: torch.device) -> Iterator[dict[str, Any]]:
    survey, lean = Survey.of(model), open_lean(model)
    for tokens in lengths:
        truth: Tensor | None = None
        for name in ("fp16", *(kind for kind in KINDS if kind != "fp16")):
            cache = survey.open(tokens + STEP + 4 * DECODED, KINDS[name])
            fill(cache, model, tokens, device)
            step = partial(forward, model, cache, torch.arange(STEP, device=device)[None])
            token = partial(forward, model, cache, torch.tensor([[5]], device=device))
            seconds, logits = timed(device, step)
            truth = logits if truth is None else truth
            yield {
                "kind": name,
                "tokens": tokens,
                "bytes": cache.nbytes,
                "step_ms": f"{seconds * 1e3:.2f}",
                "forward_ms": each(device, token),
                "lean_ms": leaned(lean, cache, device),
                "cosine": f"{float(functional.cosine_similarity(logits, truth, dim=-1).min()):.6f}",
                "kl": f"{float(divergence(truth, logits)):.2e}",
            }


def fill(cache: KvCache, model: Any, tokens: int, device: torch.device) -> None:
    """The same numbers for every kind, with what models have: some channels larger, some off centre."""
    config = model.config
    shape = (1, config.num_key_value_heads, tokens, config.hidden_size // config.num_attention_heads)
    generator = torch.Generator().manual_seed(tokens)
    for layer in cache.layers:
        k, v = (torch.randn(shape, generator=generator) for _ in range(2))
        k = k * (1 + 3 * torch.rand(shape[-1], generator=generator) ** 4) + torch.randn(shape[-1], generator=generator)
        layer.update(k.to(device, model.dtype), v.to(device, model.dtype))


@torch.no_grad()
def forward(model: Any, cache: KvCache, ids: Tensor) -> Tensor:
    found: Tensor = model(input_ids=ids, **cache_argument(model, cache), use_cache=True).logits[0].float()
    return found


def leaned(lean: Any, cache: KvCache, device: torch.device) -> str:
    state = lean.begin(cache, None)
    return each(device, lambda: lean(5, state))


def each(device: torch.device, call: Callable[[], Any]) -> str:
    """Median milliseconds of one."""
    return f"{median(timed(device, call)[0] for _ in range(DECODED)) * 1e3:.3f}"


def timed(device: torch.device, call: Callable[[], Any]) -> tuple[float, Any]:
    wait(device)
    begun = time.perf_counter()
    result = call()
    wait(device)
    return time.perf_counter() - begun, result


def divergence(truth: Tensor, logits: Tensor) -> Tensor:
    """Mean KL in nats."""
    p, q = truth.log_softmax(-1), logits.log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1).mean()


if __name__ == "__main__":
    main()
