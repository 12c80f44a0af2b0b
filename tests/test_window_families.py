"""For every family: the answer with the window forced open, with chunks and with a card too small, is generate()'s."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fake_cuda import FakeCuda
from families import FAMILIES, build, inputs
from fingerprint import fingerprint

from mmswap.card import AcceleratorCard, SimulatedCard
from mmswap.config import RunConfig, SamplingConfig, SwapConfig
from mmswap.llm.decode import generate
from mmswap.llm.decoding import open_decoding
from mmswap.llm.kv.caching import decide
from mmswap.llm.parts import find_parts
from mmswap.placement import place
from mmswap.swap.dry_run import DryRun
from mmswap.swap.replay import ARENA, TORCH
from mmswap.units import GIB
from mmswap.vision.encoder import Encoded, Encoder
from mmswap.vision.tower import find_tower

NEW = 6


class Bench:
    """A tiny model of a family on a simulated card, with everything that the runtime would put around it."""

    def __init__(self, name: str, capacity: int, layers: int = -1, card: Any = None) -> None:
        self.model = build(name)
        self.inputs = inputs(name, self.model)
        self.expected = self._reference()
        self.before = fingerprint(self.model)
        self.card = card or SimulatedCard(f"sim:{capacity}")
        swap = SwapConfig(layers=layers)
        self.said: list[str] = []
        policy = TORCH if card is not None else ARENA
        parts, tower, dry_run = find_parts(self.model), find_tower(self.model), DryRun(self.model, policy=policy)
        self.pool = place(self.model, tower, parts, self.card, swap, self.said.append)
        self.encoder = Encoder(tower, dry_run, self.card, self.pool, swap)
        self.caching = decide(self.model, "auto")
        config = RunConfig(card="cpu")
        self.decoding = open_decoding(self.model, parts, self.card, config, self.caching.open, self.said.append)

    def answer(self, chunk: int = 2048) -> tuple[list[int], Encoded]:
        encoded = self.encoder.encode(self.encoder.begin(self.inputs, self.said.append), list, self.said.append)
        generation = generate(
            self.model,
            self.inputs,
            sampling=SamplingConfig(max_new_tokens=NEW),
            end_ids=frozenset(),
            prefill_chunk=chunk,
            context=4096,
            replay=lambda: self.encoder.tower.replay(encoded.features),
            decoding=self.decoding,
            caching=self.caching,
        )
        ids = [token.id for token in generation]
        self.encoder.settle()
        return ids, encoded

    def _reference(self) -> list[int]:
        with torch.no_grad():
            ids = self.model.generate(
                **self.inputs, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, eos_token_id=None
            )
        prompt = 0 if self.model.config.is_encoder_decoder else self.inputs["input_ids"].shape[1]
        return [int(token) for token in ids[0][prompt:]][-NEW:]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_answer_with_a_forced_window_is_generates(name: str) -> None:
    bench = Bench(name, GIB, layers=2)
    ids, encoded = bench.answer(chunk=16)
    report = encoded.report()
    assert ids == bench.expected
    assert report.opened
    assert len(report.evicted) == 2
    assert report.restored_bytes == report.evicted_bytes > 0
    assert fingerprint(bench.model) == bench.before


@pytest.mark.parametrize("name", FAMILIES)
def test_a_card_too_small_evicts_the_fewest_units_and_spills_nothing(name: str) -> None:
    roomy = Bench(name, GIB)
    ids, encoded = roomy.answer()
    assert ids == roomy.expected
    assert not encoded.report().opened
    need = encoded.report().need
    claimed = sum(roomy.card.claims.values())

    small = Bench(name, claimed + need - 1)
    ids, encoded = small.answer()
    report = encoded.report()
    assert ids == small.expected
    assert len(report.evicted) >= 1
    assert report.deficit == 1 or report.need != need
    assert report.spilled_bytes == 0
    assert report.peak_measured <= encoded.peak_predicted
    assert fingerprint(small.model) == small.before


@pytest.mark.parametrize("name", ["qwen3_vl", "gemma3", "mllama"])
def test_a_roomy_card_makes_no_mirror(name: str) -> None:
    bench = Bench(name, GIB)
    bench.answer()
    assert bench.pool is not None
    assert bench.pool.mirrors.nbytes == 0


@pytest.mark.parametrize("name", ["qwen3_vl", "llava_next"])
def test_zero_layers_is_as_if_the_feature_did_not_exist(name: str) -> None:
    bench = Bench(name, GIB, layers=0)
    ids, encoded = bench.answer()
    assert bench.pool is None
    assert ids == bench.expected
    assert not encoded.report().opened
    assert encoded.report().peak_measured > 0


@pytest.mark.parametrize("name", ["qwen3_vl", "gemma3", "mllama", "llava_next"])
def test_the_same_answer_by_the_accelerators_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a torch.cuda of nothing: slabs in a private pool, late copies on a side stream, waits by events."""
    fake = FakeCuda()
    fake.install(monkeypatch)
    bench = Bench(name, 0, layers=2, card=AcceleratorCard(fake, 0))
    ids, encoded = bench.answer(chunk=16)
    assert ids == bench.expected
    assert len(encoded.report().evicted) == 2
    assert bench.pool is not None
    assert fingerprint(bench.model) == bench.before
