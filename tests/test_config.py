"""Options that make no sense are refused at once, with the flag's name."""

from __future__ import annotations

import dataclasses

import pytest

from mmswap.config import ImageConfig, RunConfig, SamplingConfig, SwapConfig
from mmswap.errors import OptionError


@pytest.mark.parametrize(
    ("make", "flag"),
    [
        (lambda: SamplingConfig(temperature=-1), "--temperature"),
        (lambda: SamplingConfig(temperature=float("nan")), "--temperature"),
        (lambda: SamplingConfig(top_p=0), "--top-p"),
        (lambda: SamplingConfig(top_p=1.1), "--top-p"),
        (lambda: SamplingConfig(top_k=-1), "--top-k"),
        (lambda: SamplingConfig(min_p=1), "--min-p"),
        (lambda: SamplingConfig(repetition_penalty=0), "--repetition-penalty"),
        (lambda: SamplingConfig(max_new_tokens=0), "--max-new-tokens"),
        (lambda: SamplingConfig(stop=("",)), "stop text"),
        (lambda: SamplingConfig(seed=-1), "--seed"),
        (lambda: ImageConfig(min_pixels=0), "--image-min-pixels"),
        (lambda: ImageConfig(max_pixels=0), "--image-max-pixels"),
        (lambda: ImageConfig(min_pixels=10, max_pixels=9), "--image-max-pixels"),
        (lambda: SwapConfig(layers=-2), "--mmproj-swap-layers"),
        (lambda: RunConfig(context=1), "--context"),
        (lambda: RunConfig(attention="flash"), "--attention"),
        (lambda: RunConfig(dtype="int4"), "--dtype"),
        (lambda: RunConfig(prefill_chunk=0), "--prefill-chunk"),
        (lambda: RunConfig.of(vram_limit="lots"), "--vram-limit: 'lots' is not a size"),
        (lambda: RunConfig.of(vram_limit="14"), "--vram-limit 14: 14 bytes. Write the unit"),
        (lambda: RunConfig.of(vram_limit=-1), "--vram-limit"),
        (lambda: RunConfig.of(vram_limit=float("nan")), "--vram-limit: nan is not a size"),
        (lambda: RunConfig.of(vram_limit=[]), r"--vram-limit: \[\] is not a size"),
        (lambda: RunConfig.of(vram_limit="9" * 400), "--vram-limit: '999.* is not a size"),
        (lambda: RunConfig.of(vram_limit="14 GB"), "--vram-limit: '14 GB' is not a size: write for example 14GiB"),
        (lambda: RunConfig.of(vram_limit="0"), "--vram-limit 0: 0 bytes. Write the unit"),
    ],
)
def test_senseless_options_name_their_flag(make, flag: str) -> None:
    with pytest.raises(OptionError, match=flag):
        make()


def test_a_temperature_too_small_for_half_precision_is_greedy() -> None:
    assert SamplingConfig(temperature=1e-38).greedy
    assert not SamplingConfig(temperature=1e-3).greedy


def test_config_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunConfig().card = "cpu"


def test_flat_options_reach_their_group() -> None:
    config = RunConfig.of(card="sim:1GiB", image_max_pixels=100, mmproj_swap_layers=3, no_mmproj_offload=True)
    assert (config.card, config.image.max_pixels, config.swap.layers, config.swap.tower_on_cpu) == (
        "sim:1GiB",
        100,
        3,
        True,
    )
    with pytest.raises(OptionError, match="no option 'cards'"):
        RunConfig.of(cards="cpu")


def test_the_cap_on_the_cards_memory_may_be_text() -> None:
    assert RunConfig().vram_limit is None
    assert RunConfig.of(vram_limit="14GiB").vram_limit == RunConfig(vram_limit=14 << 30).vram_limit == 14 << 30
