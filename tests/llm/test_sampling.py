"""The sampler chooses as transformers' processors would, from a generator of its own (cases C11 and C12)."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from mmswap.config import SamplingConfig
from mmswap.errors import NonFiniteLogits
from mmswap.llm.sampling import Sampler

LOGITS = torch.tensor([-100.0, 0.0, 5.0], dtype=torch.float16)


@pytest.mark.parametrize(
    "config",
    [
        SamplingConfig(temperature=0.7, seed=1),
        SamplingConfig(temperature=1.3, top_k=7, seed=1),
        SamplingConfig(temperature=1.0, top_p=0.8, seed=1),
        SamplingConfig(temperature=2.0, min_p=0.1, seed=1),
        SamplingConfig(temperature=1.5, top_k=20, top_p=0.9, min_p=0.05, repetition_penalty=1.3, seed=1),
        SamplingConfig(temperature=0.9, top_k=1000, repetition_penalty=0.8, seed=1),
        SamplingConfig(repetition_penalty=1.8, seed=1),
    ],
    ids=repr,
)
def test_equal_to_the_processors_of_transformers(config: SamplingConfig) -> None:
    prompt = [3, 5, 5, 49]
    sampler = Sampler(config, prompt)
    theirs = torch.Generator().manual_seed(1)
    ids = list(prompt)
    logits = torch.Generator().manual_seed(2)
    for _ in range(60):
        row = torch.randn(50, generator=logits) * 3
        scores = processors(config)(torch.tensor([ids]), row[None].clone())
        chances = scores.softmax(-1)
        wanted = scores.argmax() if config.greedy else torch.multinomial(chances, 1, generator=theirs)
        ids.append(sampler.next(row))
        assert ids[-1] == int(wanted)


def processors(config: SamplingConfig) -> LogitsProcessorList:
    steps = LogitsProcessorList()
    if config.repetition_penalty != 1:
        steps.append(RepetitionPenaltyLogitsProcessor(config.repetition_penalty))
    if config.greedy:
        return steps
    steps.append(TemperatureLogitsWarper(config.temperature))
    if config.top_k:
        steps.append(TopKLogitsWarper(config.top_k))
    if config.top_p < 1:
        steps.append(TopPLogitsWarper(config.top_p))
    if config.min_p:
        steps.append(MinPLogitsWarper(config.min_p))
    return steps


@pytest.mark.parametrize("temperature", [1e-5, 0.0, 1e-38])
def test_tiny_temperature_is_greedy(temperature: float) -> None:
    assert Sampler(SamplingConfig(temperature=temperature)).next(LOGITS) == 2


def test_small_temperature_and_tiny_nucleus_stay_finite() -> None:
    assert Sampler(SamplingConfig(temperature=2e-5)).next(LOGITS) == 2
    assert {Sampler(SamplingConfig(temperature=5.0, top_p=1e-4, seed=s)).next(LOGITS) for s in range(20)} == {2}


@pytest.mark.parametrize(
    "bad", [[float("nan")] * 3, [1.0, float("nan"), 0.0], [float("-inf")] * 3, [0.0, float("inf")]]
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_no_number_is_an_error(bad: list[float], temperature: float) -> None:
    sampler = Sampler(SamplingConfig(temperature=temperature, seed=0))
    with pytest.raises(NonFiniteLogits, match="NaN"):
        sampler.next(torch.tensor(bad))
    assert sampler.next(LOGITS) in (1, 2)


@pytest.mark.parametrize(
    "config",
    [
        SamplingConfig(temperature=7.7e307, repetition_penalty=6.6e307),
        SamplingConfig(temperature=1.0, repetition_penalty=1e-300),
        SamplingConfig(temperature=1e-4, repetition_penalty=1e300, frequency_penalty=1e300),
        SamplingConfig(temperature=0.7, logit_bias=((0, 1e308), (1, 1e308), (2, -1e308)), presence_penalty=-1e300),
        SamplingConfig(temperature=1e300, top_p=0.5, min_p=0.5, top_k=2),
    ],
)
def test_numbers_beyond_float32_are_as_good_as_large_ones(config: SamplingConfig) -> None:
    """A temperature and a penalty of 1e307 made infinities of scores, and a 500 of the request."""
    sampler = Sampler(config, prompt_ids=[0, 1, 3])
    for _ in range(8):
        assert 0 <= sampler.next(torch.tensor([3.0, -25.0, 0.0, 12.0, -1e4])) < 5


def test_masked_tokens_are_never_drawn() -> None:
    sampler = Sampler(SamplingConfig(temperature=100.0, seed=0))
    assert {sampler.next(torch.tensor([0.0, float("-inf"), 0.0])) for _ in range(60)} == {0, 2}


def test_a_seed_is_an_answer_and_the_global_generator_is_left_alone() -> None:
    config = SamplingConfig(temperature=1.0, seed=42)
    row = torch.zeros(1000)
    state = torch.get_rng_state()
    answers = []
    for noise in range(5):
        other = Sampler(SamplingConfig(temperature=1.0, seed=noise))
        mine = Sampler(config)
        answers.append([(other.next(row), mine.next(row))[1] for _ in range(8)])
    assert all(answer == answers[0] for answer in answers)
    assert torch.equal(torch.get_rng_state(), state)
    fresh = [Sampler(SamplingConfig(temperature=1.0)) for _ in range(2)]
    assert fresh[0].seed != fresh[1].seed
    assert Sampler(SamplingConfig(temperature=1.0, seed=fresh[0].seed)).next(row) == fresh[0].next(row)


def test_placeholders_outside_the_vocabulary_are_no_trouble() -> None:
    assert Sampler(SamplingConfig(repetition_penalty=2.0), [1, 999_999]).next(torch.tensor([0.0, 3.0, 2.0])) == 2


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        (SamplingConfig(presence_penalty=1.5), [0, 1, 0, 0]),
        (SamplingConfig(frequency_penalty=0.8), [0, 0, 1, 0]),
        (SamplingConfig(presence_penalty=-1.0), [0, 0, 0, 0]),
        (SamplingConfig(logit_bias=((2, 4.0), (999, 9.0))), [2, 2, 2, 2]),
        (SamplingConfig(logit_bias=((0, -100.0),)), [1, 1, 1, 1]),
    ],
    ids=repr,
)
def test_what_the_answer_holds_costs_and_biases_are_added(config: SamplingConfig, wanted: list[int]) -> None:
    sampler = Sampler(config, [0, 0, 1, 2])  # the prompt does not count
    assert [sampler.next(torch.tensor([2.0, 1.0, -1.0])) for _ in wanted] == wanted


@pytest.mark.parametrize("count", [0, 2, 50])
def test_logprobs_are_the_models_own(count: int) -> None:
    config = SamplingConfig(temperature=0.5, seed=1, logit_bias=((3, 100.0),), logprobs=count)
    sampler, row = Sampler(config), torch.tensor([0.0, 3.0, 2.0, -1.0], dtype=torch.float16)
    assert sampler.next(row) == 3
    wanted = row.float().log_softmax(-1)
    assert sampler.chosen is not None
    assert sampler.chosen.logprob == pytest.approx(float(wanted[3]))
    order = [1, 2, 0, 3][:count]
    assert [token for token, _ in sampler.chosen.top] == order
    assert [value for _, value in sampler.chosen.top] == pytest.approx([float(wanted[token]) for token in order])


def test_a_constraint_limits_and_is_told() -> None:
    class Descending:
        told: list[int]

        def __init__(self) -> None:
            self.told = []

        def limit(self, scores: torch.Tensor) -> torch.Tensor:
            forbidden = torch.arange(len(scores)) >= (self.told or [len(scores)])[-1]
            return scores.masked_fill(forbidden, float("-inf"))

        def accept(self, token: int) -> None:
            self.told.append(token)

    constraint = Descending()
    sampler = Sampler(SamplingConfig(), constraint=constraint)
    assert [sampler.next(torch.arange(4.0)) for _ in range(4)] == [3, 2, 1, 0] == constraint.told
