"""Several answers of one model at a time give the ids that each gives alone, whoever is beside it and since when."""

from __future__ import annotations

from typing import Any

import families
import pytest
import torch
from decoding import NEW, ours, start

from mmswap.config import SamplingConfig
from mmswap.llm.batch import Batch, open_batch
from mmswap.llm.decode import Generation
from mmswap.llm.decoding import Decoding
from mmswap.llm.fast import Refused, open_lean
from mmswap.llm.kv.caching import decide
from mmswap.llm.pause import Pause

BEGINS = (0, 0, 1, 3, 7)  # rounds in which each of five answers begins
FAMILIES = ["qwen2_5_vl", "gemma3", "qwen3_vl_moe", "qwen3_5", "mllama"]


def opened(model: Any) -> tuple[Batch, dict[str, Any]]:
    try:
        step = open_lean(model)
    except Refused:
        step = None
    caching = decide(model, "auto")
    decoding = Decoding(step)
    return open_batch(decoding, caching.open, 500), {"decoding": decoding, "caching": caching}


def prompts(name: str, model: Any) -> list[Any]:
    """Five of different lengths, three of them with a picture."""
    return [families.inputs(name, model, text=9 + 4 * seed, seed=seed, picture=seed % 2 == 0) for seed in range(5)]


def run(
    generations: list[Generation], batch: Batch, begins: tuple[int, ...], leaves: dict[int, int]
) -> list[list[int]]:
    """The ids of all, in rounds: who has begun gets one token a round. `leaves`: after so many tokens it is closed."""
    given: list[list[int]] = [[] for _ in generations]
    going: dict[int, Generation] = {}
    left = set(range(len(generations)))
    for turn in range(200):
        going |= {index: generations[index] for index in left if begins[index] <= turn and index not in going}
        wanted = [one.wanted for one in going.values() if one.wanted is not None]
        batch.take(wanted)
        for index, one in list(going.items()):
            for move in one.moves:
                if isinstance(move, Pause):
                    break
                given[index].append(move.id)
            else:
                left.discard(index)
            if len(given[index]) >= leaves.get(index, 100):
                one.close()
                left.discard(index)
            if index not in left:
                del going[index]
        if not left:
            return given
    pytest.fail("it does not end")


@pytest.mark.parametrize("name", FAMILIES)
def test_ids_are_those_of_each_alone(name: str) -> None:
    model = families.shared(name)
    batch, more = opened(model)
    assert (batch.why is not None) == (name in ("gemma4", "mllama"))
    given = prompts(name, model)
    alone = [ours(model, inputs, **more) for inputs in given]
    assert len({tuple(ids) for ids in alone}) > 1
    rounds = [start(model, inputs, **more) for inputs in given]
    assert run(rounds, batch, BEGINS, {}) == alone
    leaving = run([start(model, inputs, **more) for inputs in given], batch, (0, 0, 0, 2, 2), {0: 3, 3: 1})
    assert leaving == [ids[: {0: 3, 3: 1}.get(index, NEW)] for index, ids in enumerate(alone)]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_everybody_has_a_sampler_of_its_own(count: int) -> None:
    model = families.shared("qwen2_5_vl")
    batch, more = opened(model)
    inputs = families.inputs("qwen2_5_vl", model, picture=False)
    samplings = [SamplingConfig(max_new_tokens=NEW, temperature=2.0, seed=seed, logprobs=2) for seed in range(count)]
    alone = [ours(model, inputs, sampling=sampling, **more) for sampling in samplings]
    together = [start(model, inputs, sampling=sampling, **more) for sampling in samplings]
    assert run(together, batch, (0, 0, 1), {}) == alone
    assert len({tuple(ids) for ids in alone}) == count


class _Counting:
    """A lean step that counts its batches, and fails when it is told to."""

    def __init__(self, step: Any, fails: bool = False) -> None:
        self.step, self.sizes, self.fails = step, [], fails  # type: ignore[var-annotated]
        self.lean, self.begin, self.noting, self.leave = step.lean, step.begin, step.noting, step.leave

    def __call__(self, token: int, state: Any) -> Any:
        return self.step(token, state)

    def together(self, tokens: list[int], rows: Any) -> Any:
        self.sizes.append(len(tokens))
        if self.fails:
            rows.put(tokens)
            rows.take_back()
            raise torch.OutOfMemoryError("no")
        return self.step.together(tokens, rows)


@pytest.mark.parametrize("fails", [False, True])
def test_a_batch_that_fails_costs_nobody_its_answer(fails: bool) -> None:
    model = families.shared("gemma3")
    caching = decide(model, "auto")
    counting = _Counting(open_lean(model), fails)
    decoding: Any = Decoding(counting)  # type: ignore[arg-type]
    given = prompts("gemma3", model)
    more = {"decoding": decoding, "caching": caching}
    alone = [ours(model, inputs, **more) for inputs in given]
    assert run([start(model, inputs, **more) for inputs in given], Batch(decoding, None), BEGINS, {}) == alone
    assert max(counting.sizes) == 5


def test_a_cache_that_cannot_be_taken_back_fails_with_its_batch() -> None:
    model = families.shared("qwen3_5")
    caching = decide(model, "auto")
    decoding: Any = Decoding(_Counting(open_lean(model), True))  # type: ignore[arg-type]
    inputs = families.inputs("qwen3_5", model, picture=False)
    two = [start(model, inputs, decoding=decoding, caching=caching) for _ in range(2)]
    with pytest.raises(torch.OutOfMemoryError):
        run(two, Batch(decoding, None), (0, 0), {})


def test_others_go_on_between_the_layers_of_a_prompt() -> None:
    """What they compute there changes neither them nor the prompt, though hooks and stand-ins are in place."""
    for name, own in (("qwen2_5_vl", False), ("qwen2_5_vl", True), ("gemma4", True), ("mllama", True)):
        model = families.shared(name)
        batch, more = opened(model)
        if own:
            batch, more["decoding"] = Batch(Decoding(), "its own forward decodes"), Decoding()
        given = prompts(name, model)
        alone = [ours(model, inputs, **more) for inputs in given]
        others = [start(model, inputs, **more) for inputs in given[:4]]
        ids: list[list[int]] = [[] for _ in others]

        def go_on(others: Any = others, ids: Any = ids, batch: Any = batch) -> None:
            batch.take([one.wanted for one in others if one.wanted is not None])
            for one, found in zip(others, ids):
                for move in one.moves:
                    if isinstance(move, Pause):
                        break
                    found.append(move.id)

        go_on()
        last = start(model, given[4], 8, meanwhile=go_on, **more)
        assert [token.id for token in last] == alone[4], name
        assert [len(found) for found in ids] >= [4] * 4, name
        for _ in range(20):
            go_on()
        assert ids == alone[:4], name
