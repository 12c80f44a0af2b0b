"""Time to the first token by length of the prompt, tokens a second after it, and several sequences at once.

Prompts are random ids: what they say changes nothing about the time. Every figure is the middle of several runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmswap.bench.machine import Machine, copy_rate, wait
from mmswap.bench.quantiles import Spread, spread
from mmswap.bench.traffic import kv_bytes, weight_bytes
from mmswap.config import SamplingConfig
from mmswap.errors import OptionError
from mmswap.llm.decode import generate
from mmswap.llm.decoding import Decoding
from mmswap.llm.kv.caching import Caching
from mmswap.llm.parts import find_parts

WARM = 4  # tokens before the clock runs


@dataclass(frozen=True, slots=True)
class Figure:
    """One row: `what` at `size` (tokens of the prompt, sequences), a rate or a time, and the bytes a token reads."""

    what: str
    size: int
    unit: str
    value: Spread
    bytes_read: int = 0


@dataclass(slots=True)
class Report:
    """Everything that one run of `bench` measured.

    Attributes:
        copy: bytes a second of a plain copy on the same device, read and written.
    """

    model: str
    machine: Machine
    copy: Spread
    figures: list[Figure] = field(default_factory=list)

    def rate(self, figure: Figure) -> float | None:
        """Bytes a second that the weights and keys of a decode figure were read at."""
        return figure.bytes_read * figure.value.p50 if figure.bytes_read else None

    def rows(self) -> Iterator[dict[str, object]]:
        """One for each figure, as `table.COLUMNS` names them."""
        for one in self.figures:
            rate = self.rate(one)
            yield {
                "model": self.model,
                "device": self.machine.device,
                "torch": self.machine.library,
                "transformers": self.machine.transformers,
                "python": self.machine.python,
                "threads": self.machine.threads,
                "what": one.what,
                "size": one.size,
                "unit": one.unit,
                "p20": f"{one.value.p20:.4g}",
                "p50": f"{one.value.p50:.4g}",
                "p80": f"{one.value.p80:.4g}",
                "GB/s": "" if rate is None else f"{rate / 1e9:.3g}",
                "copy GB/s": f"{self.copy.p50 / 1e9:.3g}",
                "share": "" if rate is None else f"{rate / self.copy.p50:.3g}",
                "ratio": "",
                "overhead": "",
            }


def bench(
    model: Any,
    decoding: Decoding,
    *,
    name: str,
    tokens: int = 64,
    prompts: Sequence[int] = (128, 512),
    runs: int = 5,
    batches: Sequence[int] = (),
    caching: Caching | None = None,
    chunk: int = 2048,
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Measure a model that is in its place.

    Args:
        decoding: how its tokens are computed.
        tokens: decoded after each prompt. prompts: their lengths in tokens. runs: of everything.
        batches: numbers of sequences decoded at once. caching: how keys and values are kept (`runtime.caching`);
            without it in transformers' own cache.
        chunk: most tokens of one prefill step.

    Raises:
        OptionError: several sequences are asked for, of a model that does not decode part by part.
    """
    lean = getattr(decoding.step, "lean", decoding.step)
    if batches and (lean is None or caching is None or caching.survey is None):
        raise OptionError("--batch needs a model that decodes part by part into mmswap's KV cache: leave it out here.")
    parts = find_parts(model)
    table: Any = parts.embeddings.weight
    report = Report(name, Machine.of(table.device), copy_rate(table.device))
    weights = weight_bytes(parts, model.config)
    for length in prompts:
        say(f"a prompt of {length} tokens, {runs} times")
        firsts, steps, read = [], [], 0
        for turn in range(runs):
            first, after, cached = _answer(
                model, decoding, caching, _ids(int(table.shape[0]), length, turn, table.device), tokens, chunk
            )
            firsts.append(first)
            steps.append(after)
            read = weights + cached
        report.figures.append(Figure("first token", length, "s", spread(firsts)))
        report.figures.append(Figure("decode", length, "tok/s", spread(steps).rate(1.0), read))
    for rows in batches:
        assert caching is not None
        say(f"{rows} sequences at once, {runs} times")
        with decoding.token():
            seconds = [_together(lean, caching.open(WARM + tokens + 1), rows, tokens) for _ in range(runs)]
        report.figures.append(Figure("sequences", rows, "tok/s", spread(seconds).rate(rows)))
    return report


def _together(lean: Any, cache: Any, rows: int, tokens: int) -> float:
    """Seconds of one step of `rows` sequences, from nothing on."""
    state = lean.begin_many(cache, rows)
    for _ in range(WARM):
        lean.many([1] * rows, state)
    wait(lean.device)
    begun = time.perf_counter()
    for _ in range(tokens):
        lean.many([1] * rows, state)
    wait(lean.device)
    return (time.perf_counter() - begun) / tokens


def _answer(
    model: Any, decoding: Decoding, caching: Caching | None, ids: Tensor, tokens: int, chunk: int
) -> tuple[float, float, int]:
    """(seconds to the first token, seconds of one after it, bytes of keys and values that the last one looked at)."""
    device = ids.device
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    wait(device)
    begun = time.perf_counter()
    run = generate(
        model,
        inputs,
        sampling=SamplingConfig(max_new_tokens=WARM + tokens),
        end_ids=frozenset(),
        prefill_chunk=chunk,
        context=ids.shape[1] + WARM + tokens + 1,
        decoding=decoding,
        caching=caching,
    )
    next(run)
    first = time.perf_counter() - begun
    for _ in range(WARM - 1):
        next(run)
    begun = time.perf_counter()
    for _ in range(tokens):
        next(run)
    seconds = (time.perf_counter() - begun) / tokens
    cached = kv_bytes(run.cache, ids.shape[1] + WARM + tokens) if run.cache is not None else 0
    run.close()
    return first, seconds, cached


def _ids(vocabulary: int, count: int, seed: int, device: torch.device) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(vocabulary // 3, vocabulary // 2, (1, count), generator=random).to(device)
