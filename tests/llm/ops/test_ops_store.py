"""Keys and values in a cache: codes bit for bit, the ring, and numbers that no code holds."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from cases import DTYPES, draw
from torch import Tensor

from mmswap.llm.ops import cpu, reference, using

BACKENDS = {"cpu": cpu, "reference": reference}
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def nearest_codes(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """float8 by looking all of them over: the nearest, of two the one whose last bit is 0; beyond the largest, that."""
    codes = torch.arange(256, dtype=torch.uint8).view(dtype)
    finite = codes.float().isfinite().nonzero().flatten()
    finite = finite[(finite != 128).nonzero().flatten()]
    table = codes.view(torch.uint8)[finite]
    off = (numbers.double().unsqueeze(-1) - codes.float().double()[finite]).abs()
    best = table[torch.where(off == off.amin(-1, keepdim=True), (table & 1).double(), 2.0).argmin(-1)]
    return torch.where((best == 0) & torch.signbit(numbers), torch.tensor(128, dtype=torch.uint8), best)


def expected(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, start: Tensor, offset: Any, ks: Any, vs: Any) -> Any:
    """keys, values, v_scale as bytes and numbers, token by token."""
    keys, values, vs = keys.clone(), values.clone(), None if vs is None else vs.clone()
    batch, heads, slots, _ = keys.shape
    for b in range(batch):
        for t in range(k.shape[2]):
            slot = (int(start[b if len(start) > 1 else 0]) + t) % slots
            for h in range(heads):
                key, worth = k[b, h, t].float(), v[b, h, t].float()
                if offset is not None:
                    key = key - offset[h].float()
                if ks is not None:
                    key = key / ks[h].float()
                if keys.dtype == torch.int8:
                    scale = (worth.abs().max() / 127).to(vs.dtype)
                    vs[b, h, slot], worth = scale, worth / scale.float()
                elif vs is not None:
                    worth = worth / vs[h].float()
                keys[b, h, slot], values[b, h, slot] = _coded(key, keys.dtype), _coded(worth, keys.dtype)
    return keys, values, vs


def _coded(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype == torch.int8:
        return numbers.nan_to_num(0.0).clamp(-127, 127).round().to(dtype)
    return nearest_codes(numbers.nan_to_num(0.0), dtype).view(dtype) if dtype in FLOAT8 else numbers.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_backend_stores_the_same_bits(dtype: torch.dtype) -> None:
    taken = dict.fromkeys(BACKENDS, 0)
    for seed in range(30):
        arguments = draw("kv_store", dtype, Random(f"store {dtype} {seed}"))
        want = expected(*arguments)
        for name, backend in BACKENDS.items():
            own = [a.clone() if isinstance(a, Tensor) else a for a in arguments]
            own[2:4] = [_view_like(a) for a in arguments[2:4]]
            implementation = backend.IMPLEMENTATIONS["kv_store"]
            if implementation.refuses(*own) is None:
                taken[name] += 1
                implementation.run(*own)
                assert all(_bits(a, b) for a, b in zip((own[2], own[3], own[7]), want, strict=True)), (name, seed)
    assert taken["reference"] == 30
    assert taken["cpu"] > 10


def _view_like(tensor: Tensor) -> Tensor:
    """A copy in a wider store: what a cache that grew hands out."""
    wide = tensor.new_zeros((*tensor.shape[:2], tensor.shape[2] + 3, tensor.shape[3]))
    view = wide[:, :, 1 : 1 + tensor.shape[2]]
    view.copy_(tensor)
    return view


def _bits(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(*(t.view(torch.uint8) if t.dtype.itemsize == 1 else t for t in (one, other)))


@pytest.mark.parametrize("kind", [*FLOAT8, torch.int8], ids=str)
@pytest.mark.parametrize("name", BACKENDS)
def test_what_no_code_holds_saturates_and_nan_is_zero(kind: torch.dtype, name: str) -> None:
    most = 127.0 if kind == torch.int8 else torch.finfo(kind).max
    odd = torch.tensor([torch.inf, -torch.inf, torch.nan, 1e30, -1e30, most * 1.03, 0.0, -most]).view(1, 1, 1, 8)
    keys, values = (torch.zeros(1, 1, 2, 8, dtype=kind) for _ in range(2))
    ones = torch.ones(1, 8) if kind == torch.int8 else None
    scales = torch.zeros(1, 1, 2) if kind == torch.int8 else None
    with using(name):
        start = torch.zeros(1, dtype=torch.int32)
        torch.ops.mmswap.kv_store(odd, odd, keys, values, start, None, ones, scales)
    assert keys[0, 0, 0].float().tolist() == [most, -most, 0.0, most, -most, most, 0.0, -most]
    assert values.float().isfinite().all()
    assert scales is None or bool(scales.isfinite().all())


@pytest.mark.parametrize("kind", FLOAT8, ids=str)
def test_every_half_is_rounded_as_by_the_table(kind: torch.dtype) -> None:
    halves = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)
    halves = halves[halves.isfinite()][::7].view(1, 1, 1, -1)
    store = torch.zeros(1, 1, 1, halves.shape[-1], dtype=kind)
    start = torch.zeros(1, dtype=torch.int32)
    torch.ops.mmswap.kv_store(halves, halves, store, store.clone(), start, None, None, None)
    assert torch.equal(store.view(torch.uint8).flatten(), nearest_codes(halves.flatten().float(), kind))


@pytest.mark.parametrize("name", BACKENDS)
def test_a_ring_keeps_the_newest_tokens(name: str) -> None:
    """12 tokens, one and then many at a time, in a window of 5: the same as the last five."""
    tokens = torch.arange(12.0).view(1, 1, 12, 1).expand(1, 2, 12, 4)
    window = torch.zeros(1, 2, 5, 4)
    with using(name):
        for first, last in ((0, 1), (1, 2), (2, 9), (9, 12)):
            part = tokens[:, :, first:last]
            start = torch.tensor([first], dtype=torch.int32)
            torch.ops.mmswap.kv_store(part, part, window, window.clone(), start, None, None, None)
    assert window[0, 1, :, 3].tolist() == [10, 11, 7, 8, 9]


@pytest.mark.parametrize("kind", FLOAT8, ids=str)
def test_the_processor_reads_every_code_as_torch_does(kind: torch.dtype) -> None:
    from mmswap.llm.ops.cpu_attention import widened

    codes = torch.arange(256, dtype=torch.uint8).view(kind)
    finite = codes.float().isfinite()
    assert torch.equal(widened(codes)[finite], codes.float()[finite])
    assert not widened(codes)[~codes.float().isfinite()].isnan().any() or kind == torch.float8_e5m2
