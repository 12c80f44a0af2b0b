"""Where a prompt may be divided, and that what is not understood goes in one pass with its reason."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mmswap.llm.division import keep_whole
from mmswap.llm.prefill import chunked


class _Cache:
    """Counts tokens as a cache does; `kept` bounds what the sliding layer holds."""

    def __init__(self, kept: int = 10_000) -> None:
        self.seen, self._kept = 0, kept

    def get_seq_length(self) -> int:
        return self.seen

    @property
    def layers(self) -> list[Any]:
        held = [min(self.seen, self._kept), self.seen]
        return [SimpleNamespace(get_mask_sizes=lambda new, count=count: (count + new, 0)) for count in held]


class _Decoder(nn.Module):
    """Notes what it is given; its layer 0 slides, its layer 1 sees all."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(layer_types=["sliding_attention", "full_attention"])
        self.given: list[dict[str, Any]] = []

    def forward(
        self, inputs_embeds: Tensor, attention_mask: Any = None, cache: Any = None, **more: Any
    ) -> SimpleNamespace:
        self.given.append({"inputs_embeds": inputs_embeds, "attention_mask": attention_mask, **more})
        if cache is not None:
            cache.seen += inputs_embeds.shape[1]
        return SimpleNamespace(last_hidden_state=inputs_embeds)


EMBEDS = torch.arange(20.0).reshape(1, 10, 2)


def run(size: int = 4, *, last_only: bool = False, cache: Any = None, **more: Any) -> tuple[Any, list[dict], Any]:
    decoder = _Decoder()
    cache = _Cache() if cache is None else cache
    with chunked(decoder, size, last_only=last_only) as report:
        outputs = decoder(EMBEDS, cache=cache or None, **more)
    assert "forward" not in vars(decoder)
    return report, decoder.given, outputs


def test_a_decoder_that_is_kept_whole_says_why() -> None:
    decoder = _Decoder()
    keep_whole(decoder, "it was told so")
    with chunked(decoder, 4) as report:
        decoder(EMBEDS, cache=_Cache())
    assert (report.sizes, report.reason) == ((10,), "one pass: it was told so")


def test_a_cache_that_counts_no_tokens_is_read_in_one_pass() -> None:
    """So transformers' answers for a model that is recurrent throughout; the question ended in a traceback."""

    class Uncounted(_Cache):
        def get_seq_length(self) -> int:
            raise ValueError("only on attention layers")

    assert run(cache=Uncounted())[0].reason == "one pass: its cache does not count tokens"


def test_layers_that_keep_a_prompt_whole_are_told_how_long_it_is() -> None:
    """Unlimited-OCR's took the first chunk for all of it, and let the others slide away."""
    told: list[int] = []

    class Keeping(_Cache):
        @property
        def layers(self) -> list[Any]:
            return [SimpleNamespace(set_prefill_length=told.append), *super().layers]

    run(cache=Keeping())
    assert told == [10]
    run(size=64, cache=Keeping())
    assert told == [10], "in one pass the layer sees that by itself"


def test_tokens_go_in_order_and_the_last_chunk_is_handed_on() -> None:
    report, given, outputs = run()
    assert report.sizes == (4, 4, 2)
    assert torch.equal(torch.cat([piece["inputs_embeds"] for piece in given], 1), EMBEDS)
    assert torch.equal(outputs.last_hidden_state, EMBEDS[:, 8:])


def test_last_only_keeps_one_hidden_state() -> None:
    assert torch.equal(run(last_only=True)[2].last_hidden_state, EMBEDS[:, -1:])
    assert torch.equal(run(size=64, last_only=True)[2].last_hidden_state, EMBEDS[:, -1:])


def test_what_counts_tokens_is_divided_with_them() -> None:
    positions = torch.arange(30).reshape(3, 1, 10)
    seen = torch.tensor([[False, True, True, True, False, False, False, False, True, False]])
    deep = [torch.arange(8.0).reshape(4, 2), torch.ones(4, 2)]
    padding = torch.ones(1, 10, dtype=torch.long)
    states, rows = torch.ones(1, 5, 2), torch.arange(10.0).reshape(1, 1, 10, 1)
    report, given, _ = run(
        size=3,
        position_ids=positions,
        visual_pos_masks=seen,
        deepstack_visual_embeds=deep,
        attention_mask=padding,
        cross_attention_states=states,
        full_text_row_masked_out_mask=rows,
        use_cache=True,
    )
    assert report.sizes == (3, 3, 3, 1)
    assert [piece["position_ids"][0, 0].tolist() for piece in given] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert [piece["attention_mask"].shape[1] for piece in given] == [3, 6, 9, 10]
    rows_of = [
        None if piece["deepstack_visual_embeds"] is None else piece["deepstack_visual_embeds"][0] for piece in given
    ]
    assert [None if part is None else part[:, 0].tolist() for part in rows_of] == [[0.0, 2.0], [4.0], [6.0], None]
    assert [piece["visual_pos_masks"] is None for piece in given] == [False, False, False, True]
    assert [piece["cross_attention_states"] is None for piece in given] == [False, True, True, True]
    assert [piece["full_text_row_masked_out_mask"].flatten().tolist() for piece in given][1] == [3.0, 4.0, 5.0]
    assert all(piece["use_cache"] for piece in given)


def causal(count: int, window: int = 10_000) -> Tensor:
    rows, columns = torch.arange(count)[:, None], torch.arange(count)[None]
    return ((columns <= rows) & (columns > rows - window))[None, None]


def with_block(mask: Tensor, first: int, last: int) -> Tensor:
    mask = mask.clone()
    mask[..., first : last + 1, first : last + 1] = True
    return mask


def test_masks_follow_the_keys_that_layers_still_hold() -> None:
    masks = {"sliding_attention": causal(10, window=3), "full_attention": None}
    report, given, _ = run(size=4, cache=_Cache(kept=2), attention_mask=masks)
    assert report.sizes == (4, 4, 2)
    slid = [piece["attention_mask"]["sliding_attention"] for piece in given]
    assert [tuple(part.shape[-2:]) for part in slid] == [(4, 4), (4, 6), (2, 4)]
    assert torch.equal(slid[1], masks["sliding_attention"][..., 4:8, 2:8])
    full = [piece["attention_mask"]["full_attention"] for piece in given]
    assert torch.equal(full[1], causal(10)[..., 4:8, :8])
    assert torch.equal(full[2], causal(10)[..., 8:, :])


@pytest.mark.parametrize("kind", ["bool", "float", "dict"])
def test_a_border_never_cuts_tokens_that_see_each_other(kind: str) -> None:
    allowed = with_block(causal(10), 3, 6)
    mask: Any = allowed
    if kind == "float":
        mask = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    elif kind == "dict":
        mask = {"full_attention": allowed, "sliding_attention": causal(10)}
    assert run(size=4, attention_mask=mask)[0].sizes == (3, 4, 3)
    report = run(size=2, attention_mask=mask)[0]
    assert report.sizes == (2, 1, 4, 2, 1)
    assert "largest of 4 tokens" in report.reason


def test_one_pass_where_all_tokens_see_each_other() -> None:
    report, given, _ = run(attention_mask=torch.ones(1, 1, 10, 10, dtype=torch.bool))
    assert report.sizes == (10,)
    assert report.reason == "one pass: all tokens look at each other"
    assert len(given) == 1


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"per_layer_secret": torch.ones(1, 10)}, "per_layer_secret"),
        ({"nested": {"inside": [torch.ones(3)]}}, "nested"),
        ({"position_ids": torch.ones(1, 1)}, r"position_ids has shape \(1, 1\)"),
        ({"attention_mask": torch.ones(1, 1, 10, 12)}, "attention mask has shape"),
        ({"attention_mask": SimpleNamespace()}, "cannot be divided"),
        ({"cache": False}, "no cache"),
    ],
)
def test_one_pass_with_the_reason(more: dict[str, Any], why: str) -> None:
    report, given, outputs = run(**more)
    assert len(given) == 1
    assert report.sizes == (10,)
    assert report.reason.startswith("one pass: ")
    assert re.search(why, report.reason)
    assert torch.equal(outputs.last_hidden_state, EMBEDS)


def test_scalars_and_flags_are_no_hindrance() -> None:
    assert run(temperature=torch.tensor(1.0), flag=True, names=["a"])[0].sizes == (4, 4, 2)


def test_decoder_that_makes_masks_both_ways_is_run_once() -> None:
    decoder = _Decoder()
    decoder.config.is_causal = False
    with chunked(decoder, 4) as report:
        decoder(EMBEDS, cache=_Cache())
    assert report.sizes == (10,)
