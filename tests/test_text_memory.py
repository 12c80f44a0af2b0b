"""What is claimed for the text is never less than what lives: prefill whole and in chunks, cache, and decode steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from families import build, inputs

from mmswap.card import SimulatedCard
from mmswap.config import SamplingConfig
from mmswap.foresight import Way, to_decoder
from mmswap.llm.costs import prefill_cost, query_groups
from mmswap.llm.decode import generate
from mmswap.llm.kv.caching import decide
from mmswap.llm.kv.kinds import blocks
from mmswap.llm.memory import TextMemory
from mmswap.llm.parts import find_parts
from mmswap.swap.dry_run import REMEMBERED, DryRun
from mmswap.swap.tracker import LiveTracker
from mmswap.vision.tower import find_tower, run_tower

PER_TOKEN = 48  # bytes of ids, kinds and positions that the request keeps beside the cache


class Bench:
    def __init__(self, name: str, text: int, kv: str = "auto") -> None:
        self.model = build(name, dtype=torch.float32 if kv == "auto" else torch.bfloat16)
        self.caching = decide(self.model, kv, unsafe=True)
        self.inputs = inputs(name, self.model, text=text, size=3)
        self.tokens = self.inputs["input_ids"].shape[1]
        self.tower, self.parts, self.dry_run = find_tower(self.model), find_parts(self.model), DryRun(self.model)
        call = self.tower.call_for(self.inputs)
        self.features = self.tower.run(call)
        peak = self.dry_run.tower_peak(run_tower, call)
        self.way = self.dry_run.tower_peak(to_decoder, Way(self.inputs, peak.result, call.entry))

    def memory(self, capacity: int, chunk: int) -> TextMemory:
        card = SimulatedCard(f"sim:{capacity}")
        groups = query_groups(self.model.config.get_text_config(decoder=True))
        cost_of = prefill_cost(self.dry_run, self.parts.decoder_name, len(self.parts.layers), groups, self.caching)
        return TextMemory(cost_of, card, card.free, chunk)

    def begin(self, memory: TextMemory) -> int:
        return memory.begin(self.tokens, 0, lambda _: None, self.way.result, self.way.total)

    def smallest(self, chunk: int) -> int:
        """The smallest card on which a prefill in chunks of `chunk` is begun, in KiB steps."""
        low, high = 0, 1 << 14
        while high - low > 1:
            middle = (low + high) // 2
            try:
                fits = self.begin(self.memory(middle << 10, chunk)) == chunk
            except Exception:
                fits = False
            low, high = (low, middle) if fits else (middle, high)
        return high << 10

    def run(self, chunk: int) -> tuple[int, int, int]:
        """Bytes really alive: at most in the prefill, after it, and at most in the steps after it beyond that."""
        generation = generate(
            self.model,
            self.inputs,
            sampling=SamplingConfig(max_new_tokens=4),
            end_ids=frozenset(),
            prefill_chunk=chunk,
            context=1024,
            replay=lambda: self.tower.replay(self.features),
            caching=self.caching,
        )
        with torch.no_grad(), LiveTracker() as tracker:
            next(generation)
            prefill, after = tracker.peak, tracker.live
            tracker.peak = after
            for _ in generation:
                pass
        return prefill, after, tracker.peak - after


FAMILIES = ["qwen2_vl", "qwen3_5", "gemma3", "gemma4", "mllama", "paligemma", "llava"]


@pytest.mark.parametrize(
    ("name", "kv"), [*((name, "auto") for name in FAMILIES), ("gemma3", "int8"), ("llava", "fp8_e4m3")]
)
@pytest.mark.parametrize("chunk", [512, 32])
def test_what_is_claimed_for_the_text_covers_what_lives(name: str, kv: str, chunk: int) -> None:
    """Masks of tokens x tokens, a prompt that cannot be cut, cross-attention keys and recurrent states included."""
    bench = Bench(name, text=300, kv=kv)
    capacity = bench.smallest(chunk)
    memory = bench.memory(capacity, chunk)
    assert bench.begin(memory) == chunk
    prefill, after, step = bench.run(chunk)
    assert prefill <= capacity <= 2 * prefill
    assert memory.grow(bench.tokens)
    claimed = capacity - memory._free().bytes
    assert after <= claimed + PER_TOKEN * bench.tokens + 4096
    assert step <= memory._free().bytes


def test_a_recurrent_state_is_not_counted_for_every_token() -> None:
    """A hybrid's states are there once; counted per token of a short prompt they would end long answers early."""
    bench = Bench("qwen3_5", text=12)
    memory = bench.memory(1 << 30, 64)
    bench.begin(memory)
    short, long = memory._kept(blocks(bench.tokens)), memory._kept(2048)
    assert (
        long - short == (2048 - blocks(bench.tokens)) * 2 * 2 * 16 * 4
    )  # one layer of four attends, with two heads of 16 keys and values


def test_a_mask_is_read_in_rows() -> None:
    """Finding the legal cuts must not take eight times the mask's own bytes."""
    from mmswap.llm.division import _reach

    mask = torch.ones(1, 1, 1024, 1024, dtype=torch.bool).tril()
    with LiveTracker() as tracker:
        reach: Any = _reach(mask, 1024)
    assert torch.equal(reach, torch.arange(1024))
    assert tracker.peak < 3 * mask.numel()


def test_the_dry_run_forgets_old_answers() -> None:
    bench = Bench("llava", text=8)
    for tokens in range(1, REMEMBERED + 20):
        bench.dry_run._answer(("x", tokens), lambda _: object(), lambda peak: peak)
    assert len(bench.dry_run._answers) == REMEMBERED
