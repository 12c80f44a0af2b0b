"""One layer of each kind: attention over what it gives back is near the truth, or it refuses; rings, rewinds, bytes."""

from __future__ import annotations

from collections import deque

import pytest
import torch
from kv_cases import BOUND, CASES, attend, make
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from mmswap.errors import OptionError
from mmswap.llm.kv.calibration import Calibration
from mmswap.llm.kv.kinds import BLOCK, KINDS, kv_kind
from mmswap.llm.kv.layer import GrowingLayer
from mmswap.llm.kv.ring import RingLayer

QUANTISED = [name for name, kind in KINDS.items() if kind.quantised]
# Offsets do not help where positions turn a large channel into a small one; e5m2 has two bits for a fraction.
REFUSED = {("outlier_rope", "fp8_e4m3"), ("outlier_rope", "fp8_e5m2"), ("outlier_values", "fp8_e5m2")}


@pytest.mark.parametrize("kind", BOUND)
@pytest.mark.parametrize("name", CASES)
def test_attention_over_a_cache_is_near_the_truth_or_refused_at_start(name: str, kind: str) -> None:
    case = CASES[name]()
    layer = GrowingLayer(kv_kind(kind), 1)
    if (name, kind) in REFUSED:
        with pytest.raises(OptionError, match="--kv int8"):
            layer.update(case.k, case.v)
        return
    k, v = layer.update(case.k, case.v)
    assert (k.shape, k.dtype) == (case.k.shape, torch.float32)
    bound = 0.999 if kind == "bf16" and "outlier" in name else BOUND[kind]  # a step of 1 at 250, in any bf16 model
    assert case.cosine(k, v) >= bound


@pytest.mark.parametrize(("name", "kind"), sorted(REFUSED))
@pytest.mark.parametrize("step", [1, 2, 7])
def test_what_8_bits_lose_is_refused_however_the_first_tokens_come(name: str, kind: str, step: int) -> None:
    """One at a time they were never looked at together, and the answer was wrong without a word."""
    case, layer = CASES[name](), GrowingLayer(kv_kind(kind), 1)
    pieces = list(zip(case.k.split(step, 2), case.v.split(step, 2)))
    with pytest.raises(OptionError, match="--kv int8"):
        deque((layer.update(*piece) for piece in pieces), maxlen=0)


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("at", [3, 25])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_costs_no_other_token(kind: str, at: int, bad: float) -> None:
    """One of them in a channel once made the scale of that channel infinite, and every key in it NaN."""
    case, spoilt, layer, clean = make(2), make(2), GrowingLayer(kv_kind(kind), 1), GrowingLayer(kv_kind(kind), 1)
    spoilt.k[0, 0, at, 5] = spoilt.v[0, 1, at, 7] = bad
    case.k[0, 0, at, 5] = case.v[0, 1, at, 7] = 0
    for part in (slice(0, 20), slice(20, 48)):
        found = layer.update(spoilt.k[:, :, part], spoilt.v[:, :, part])
        wanted = clean.update(case.k[:, :, part], case.v[:, :, part])
    others = [token for token in range(48) if token != at]
    for one, other in zip(found, wanted):
        assert torch.equal(one[:, :, others], other[:, :, others])


@pytest.mark.parametrize("kind", KINDS)
def test_no_tokens_at_all(kind: str) -> None:
    layer, case = GrowingLayer(kv_kind(kind), 1), make(2)
    none = case.k[:, :, :0], case.v[:, :, :0]
    assert layer.update(*none)[0].shape[2] == 0
    layer.update(case.k, case.v)
    assert layer.update(*none)[0].shape[2] == 48


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("first", [1, 5, 20])
def test_ranges_widen_for_what_comes_later(kind: str, first: int) -> None:
    """The first tokens say little: a channel that grows afterwards must not be cut off."""
    case = make(20, tokens=60)
    case.k[:, :, 30:] *= 3
    case.v[:, :, 40:] *= 50
    layer = GrowingLayer(kv_kind(kind), 8)
    layer.update(case.k[:, :, :first], case.v[:, :, :first])
    for token in range(first, 60):
        k, v = layer.update(case.k[:, :, token : token + 1], case.v[:, :, token : token + 1])
    assert case.cosine(k, v) >= 0.99


@pytest.mark.parametrize("kind", QUANTISED)
def test_offsets_are_taken_off_before_the_store_and_cancel_in_the_softmax(kind: str) -> None:
    case = make(3, outlier=250.0, positions=False)
    layer = GrowingLayer(kv_kind(kind), 64)
    layer.update(case.k, case.v)
    assert layer.k_offset is not None
    assert layer.k_offset.abs().max() > 200
    tokens = case.k.shape[2]
    codes = layer.keys[:, :, :tokens].float() * layer.k_scale[None, :, None]  # the offset is not added
    _, v = layer.store.get(0, tokens, torch.float32)
    assert case.cosine(codes, v) >= 0.99
    plain = GrowingLayer(kv_kind(kind), 64, offsets=False)
    if kind == "int8":
        assert case.cosine(*plain.update(case.k, case.v)) >= 0.99  # a scale for each channel is enough
        assert plain.k_offset is None
    else:
        with pytest.raises(OptionError):
            plain.update(case.k, case.v)


@pytest.mark.parametrize("kind", ["fp32", "fp16", *QUANTISED])
def test_a_slot_that_holds_nothing_is_never_read(kind: str) -> None:
    """A workspace that was full of 1e30."""
    case = make(12)
    layer = GrowingLayer(kv_kind(kind), 200)
    layer.lazy_initialization(case.k, case.v)
    for part in (layer.keys, layer.values, layer.v_scale if kind == "int8" else None):
        if part is not None:
            part.copy_(torch.full(part.shape, 1e4 if part.dtype != torch.int8 else 99).to(part.dtype))
    assert case.cosine(*layer.update(case.k, case.v)) >= BOUND[kind]


@pytest.mark.parametrize("kind", ["fp32", *QUANTISED])
def test_a_window_that_wrapped_twice(kind: str) -> None:
    """In chunks and token by token: what is given back is what transformers' sliding layer gives back."""
    case = make(7, tokens=40, window=16)
    for chunks in ([40], [7, 30, 3], [36, 1, 1, 1, 1], [1] * 40, [16, 16, 8], [15, 2, 23]):
        ours, theirs = RingLayer(kv_kind(kind), 4096, 16), DynamicSlidingWindowLayer(16)
        start = 0
        for count in chunks:
            part = slice(start, start + count)
            assert ours.get_mask_sizes(count) == theirs.get_mask_sizes(count)
            k, v = ours.update(case.k[:, :, part], case.v[:, :, part])
            wanted, _ = theirs.update(case.k[:, :, part], case.v[:, :, part])
            assert k.shape == wanted.shape
            start += count
            if kind == "fp32":
                assert torch.equal(k, wanted)
        assert ours.keys.shape[2] == 16  # bounded by the window
        kept = [*range(max(0, 40 - chunks[-1] - 15), 40)]
        seen = case.cosine(*_placed(case, k, v, kept)) if chunks[-1] >= 4 else None
        assert seen is None or seen >= BOUND[kind]


def _placed(case, k, v, kept):  # type: ignore[no-untyped-def]
    """Back at their numbers, with nothing where nothing may be seen."""
    keys, values = torch.zeros_like(case.k), torch.zeros_like(case.v)
    keys[:, :, kept], values[:, :, kept] = k, v
    return keys, values


@pytest.mark.parametrize("kind", ["fp32", *QUANTISED])
@pytest.mark.parametrize("back", [1, 5])
def test_a_rewind_gives_what_a_fresh_cache_holds_or_is_refused(kind: str, back: int) -> None:
    case = make(30, tokens=40)
    ring = RingLayer(kv_kind(kind), 64, 16)
    ring.update(case.k, case.v)
    assert ring.keepable(40)
    assert ring.keepable(39)  # the window of the next token lacks nothing yet
    assert not ring.keepable(35)
    young = RingLayer(kv_kind(kind), 64, 48)
    young.update(case.k, case.v)
    full = GrowingLayer(kv_kind(kind), 64)
    full.update(case.k, case.v)
    other = make(31, tokens=back)
    for layer in (young, full, *([ring] if back == 1 else [])):
        assert layer.keepable(40 - back)
        layer.crop(-back)
        k, _ = layer.update(other.k, other.v)
        past = torch.cat([case.k[:, :, : 40 - back], other.k], 2)[:, :, -k.shape[2] :]
        assert torch.allclose(k, past, atol=0.3 if kind != "fp32" else 0)
        assert layer.get_seq_length() == 40


@pytest.mark.parametrize("kind", KINDS)
def test_reset_overwrites_what_was_there(kind: str) -> None:
    case = make(40)
    for layer in (GrowingLayer(kv_kind(kind), 64), RingLayer(kv_kind(kind), 64, 16)):
        layer.update(case.k, case.v)
        layer.reset()
        assert not layer.keys.float().any()
        assert not layer.values.float().any()
        assert layer.get_seq_length() == 0
        k, _ = layer.update(case.k * 100, case.v)  # ranges are the new chat's
        assert case.cosine(k / 100, case.v) >= BOUND[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_those_that_are_held(kind: str) -> None:
    k, v = torch.randn(2, 3, 20, 24), torch.randn(2, 3, 20, 40)
    layer = GrowingLayer(kv_kind(kind), 8 * BLOCK + 1)
    layer.update(k, v)
    assert layer.capacity == 9 * BLOCK
    assert layer.nbytes == layer.capacity * layer.bytes_per_token() + layer.overhead_bytes()
    layer.grow(12 * BLOCK - 3)
    assert layer.nbytes == 12 * BLOCK * layer.bytes_per_token() + layer.overhead_bytes()
    sizes = KINDS[kind].bytes_per_token(3, 24, 40)
    assert sizes == {"fp32": 768, "fp16": 384, "bf16": 384, "int8": 204}.get(kind, 192)


def test_growing_keeps_what_was_there_and_a_copy_is_independent() -> None:
    import copy

    case = make(50, tokens=300)
    layer, theirs = GrowingLayer(kv_kind("fp32"), 10), DynamicLayer()
    other = None
    for start in range(0, 300, 60):
        part = slice(start, start + 60)
        k, v = layer.update(case.k[:, :, part], case.v[:, :, part])
        wanted = theirs.update(case.k[:, :, part], case.v[:, :, part])
        assert torch.equal(k, wanted[0])
        assert torch.equal(v, wanted[1])
        other = other or copy.deepcopy(layer)
    assert other.get_seq_length() == 60
    assert torch.equal(other.update(case.k[:, :, :1], case.v[:, :, :1])[0][:, :, :60], case.k[:, :, :60])


def test_scales_that_a_checkpoint_gives_are_used_and_not_swapped() -> None:
    """Ignored they reach a cosine of 0.906, swapped 0.80."""
    case = make(30)
    given = Calibration("", "", "", given={0: (0.5, 2.0)})
    kind = kv_kind("fp8_e4m3")
    layer = GrowingLayer(kind, 64, known=given.ranges(0, kind))
    k, v = layer.update(case.k, case.v)
    assert case.cosine(k, v) >= 0.998
    wanted = (case.k / 0.5).to(torch.float8_e4m3fn)
    assert torch.equal(layer.keys[:, :, :48].float(), wanted.float())
    assert torch.equal(layer.values[:, :, :48].float(), (case.v / 2).to(torch.float8_e4m3fn).float())
    assert given.ranges(0, kv_kind("int8")) is None
    loud = make(3, outlier=150.0, positions=False)  # a bias that whoever gave the scales did not take off
    known = given.ranges(0, kind, biased=True)
    layer = GrowingLayer(kind, 64, known=known)
    assert loud.cosine(*layer.update(loud.k, loud.v)) >= 0.99
    assert layer.k_offset.abs().max() > 100
    assert bool((layer.k_scale == 0.5).all())
    assert given.ranges(1, kind) is None


def decode(layer: GrowingLayer, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """A token as a lean step takes it in: stored and attended to by the ops, on the layer's own tensors."""
    layer.grow(layer.tokens + 1)
    scales = (layer.k_scale, layer.v_scale)
    start, length = (torch.tensor([layer.tokens + more], dtype=torch.int32) for more in (0, 1))
    torch.ops.mmswap.kv_store(k, v, layer.keys, layer.values, start, layer.k_offset, *scales)
    got = torch.ops.mmswap.decode_attention(
        q, layer.keys, layer.values, length, q.shape[-1] ** -0.5, 0.0, *scales, None, None
    )
    layer.advance(1)
    return got


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [None, 16])
def test_the_ops_over_the_store_are_attention_over_what_update_gives(kind: str, window: int | None) -> None:
    """Past the window, past the capacity, and with ranges that must widen; a ring has no order to keep."""
    case = make(60, tokens=300, batch=2)
    case.k[:, :, 280:, 3] *= 2
    made = [GrowingLayer(kv_kind(kind), 1) if window is None else RingLayer(kv_kind(kind), 1, window) for _ in range(2)]
    for layer in made:
        layer.update(case.k[:, :, :250], case.v[:, :, :250])
    for token in range(250, 300):
        q = torch.randn(2, 4, 1, 64, generator=torch.Generator().manual_seed(token))
        k, v = case.k[:, :, token : token + 1], case.v[:, :, token : token + 1]
        got, seen = decode(made[0], q, k, v), made[1].update(k, v)
        mask = torch.ones(2, 1, seen[0].shape[2], dtype=torch.bool)
        wanted = attend(q, *seen, mask).float()
        similar = torch.nn.functional.cosine_similarity(got.flatten(), wanted.flatten(), dim=0)
        assert similar >= (0.999999 if kind == "fp32" else 0.99)
    assert made[0].get_seq_length() == 300


def test_what_was_cut_off_widens_its_channel() -> None:
    case = make(61, tokens=40)
    layer = GrowingLayer(kv_kind("int8"), 1)
    layer.update(case.k[:, :, :31], case.v[:, :, :31])
    before = layer.k_scale.clone()
    loud = case.k[:, :, 31:32].clone()
    loud[:, 1, :, 7] += 100
    decode(layer, torch.randn(1, 4, 1, 64), loud, case.v[:, :, 31:32])
    wider = layer.k_scale > before * 1.01
    assert wider[1, 7]
    assert wider.sum() < 5
    assert torch.allclose(layer.store.get(0, 31, torch.float32)[0], case.k[:, :, :31], atol=0.05)
