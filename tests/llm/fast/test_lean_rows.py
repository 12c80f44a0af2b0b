"""Several sequences in one step: each comes out as alone, whoever is beside it, and whoever comes or goes."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import families
import pytest
import torch

from mmswap.llm.fast import open_lean
from mmswap.llm.fast.opening import LOOSE, off
from mmswap.llm.fast.proof import cannot_batch
from mmswap.llm.fast.rows import Rows
from mmswap.llm.graph import STEADY, open_graph
from mmswap.llm.kv.caching import decide

FAR = 200


def opened(name: str, dtype: torch.dtype = torch.float32, kind: str = "auto") -> tuple[Any, Any]:
    model = families.shared(name) if dtype == torch.float32 else families.build(name, dtype=dtype)
    return open_lean(model), decide(model, kind).open


@pytest.mark.parametrize(
    "name", [name for name in (*families.FAMILIES, *families.HELD_OUT) if name not in families.OWN_FORWARD]
)
def test_every_family_that_decodes_part_by_part_does_so_in_batches(name: str) -> None:
    lean, open_cache = opened(name)
    assert cannot_batch(lean, open_cache, FAR) is None


@pytest.mark.parametrize(("name", "kind"), [("qwen2_vl", "auto"), ("gemma3", "int8"), ("qwen3_5", "auto")])
def test_sequences_come_and_go_and_none_notices(name: str, kind: str) -> None:
    """Batches of 1, 2, 3 and 5 in any order: lengths, and a cache that grows, differ from row to row."""
    lean, open_cache = opened(name, kind=kind)
    words = torch.randint(3, 380, (5, 30), generator=torch.Generator().manual_seed(1)).tolist()
    alone = [_alone(lean, open_cache(1), row) for row in words]
    states = [lean.begin(open_cache(1), 0) for _ in words]
    places = [0] * 5
    limit = LOOSE[torch.float32] * (1 if kind == "auto" else 50)  # a code may round to its neighbour
    for members in ([0], [0, 1], [2, 0, 1], [4, 3, 2, 1, 0], [1, 4], [3], [0, 1, 2, 3, 4]) * 2:
        rows = Rows([states[index] for index in members])
        for _ in range(1 + len(members) % 3):
            given = lean.together([words[index][places[index]] for index in members], rows)
            for index, logits in zip(members, given):
                assert off(logits, alone[index][places[index]]) <= limit, (members, index)
                places[index] += 1
    assert len(set(places)) > 2


def _alone(lean: Any, cache: Any, words: list[int]) -> list[torch.Tensor]:
    state = lean.begin(cache, 0)
    return [lean(word, state).clone() for word in words]


def test_a_step_that_fails_leaves_every_sequence_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    lean, open_cache = opened("qwen2_vl")
    states = [lean.begin(open_cache(8), 0) for _ in range(3)]
    rows = Rows(states)
    lean.together([5, 6, 7], rows)
    wanted = lean.together([8, 9, 10], Rows([_copy(lean, open_cache, [5]), _copy(lean, open_cache, [6]), states[2]]))
    states[2].take_back()
    with monkeypatch.context() as patch:
        patch.setattr(lean, "forward", lambda rows: (_ for _ in ()).throw(torch.OutOfMemoryError("no")))
        with pytest.raises(torch.OutOfMemoryError):
            lean.together([8, 9, 10], rows)
    states[2].stand(rows._control[2])
    assert off(lean.together([8, 9, 10], rows), wanted) <= LOOSE[torch.float32]
    assert [state.tokens for state in states] == [2, 2, 2]


def _copy(lean: Any, open_cache: Any, words: list[int]) -> Any:
    state = lean.begin(open_cache(8), 0)
    for word in words:
        lean(word, state)
    return state


def test_angles_that_depend_on_the_tokens_beside_them_keep_sequences_apart() -> None:
    lean, open_cache = opened("qwen2_vl")
    own = lean.ropes.at

    class Dynamic:
        """As a rotary module whose base grows with the furthest position that it is asked for."""

        def at(self, h: torch.Tensor, position: torch.Tensor) -> Any:
            factor = 2 if int(position.max()) > 100 else 1
            return [(cos, sin * factor) for cos, sin in own(h, position)]

    lean.ropes = Dynamic()
    assert "depend on the positions of others" in str(cannot_batch(lean, open_cache, FAR))
    lean.ropes = type("Own", (), {"at": staticmethod(own)})()
    assert cannot_batch(lean, open_cache, FAR) is None
    assert "transformers' own" in str(cannot_batch(lean, lambda tokens: None, FAR))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_go_together_too(dtype: torch.dtype) -> None:
    assert cannot_batch(*opened("qwen2_5_vl", dtype), FAR) is None


def test_rows_that_come_out_wrong_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    lean, open_cache = opened("qwen2_vl")
    attend = Rows.attend
    monkeypatch.setattr(Rows, "attend", lambda self, layer, q, k, v: attend(self, layer, q.flip(0), k, v))
    assert "came out differently in a batch" in str(cannot_batch(lean, open_cache, FAR))


def test_a_batch_that_stays_together_is_captured() -> None:
    """Recorded once it is steady, again where a cache has grown, and not at all while people come and go."""
    recorded: list[int] = []

    def record(run: Any) -> Any:
        recorded.append(1)
        out = run().clone()
        return lambda: out.copy_(run())

    lean, open_cache = opened("qwen3_vl")
    step, why = open_graph(lean, open_cache, record)
    assert why is None
    eager = [lean.begin(open_cache(64), 0) for _ in range(3)]
    states = [step.begin(open_cache(1), 0) for _ in range(3)]
    recorded.clear()
    for number in range(2 * STEADY):
        _both(step, lean, states, eager, [0, 1] if number % 2 else [0, 2], number)
    assert recorded == []
    rows = Rows(states)
    sizes = set()
    for number in range(STEADY + 20):
        given = step.together([7 + number] * 3, rows).clone()
        wanted = lean.together([7 + number] * 3, Rows(eager))
        assert off(given, wanted) <= LOOSE[torch.float32], number
        if number >= STEADY:
            sizes.add(tuple(state.cache.capacity for state in states))
    assert len(recorded) == len(sizes) > 1
    assert off(step(5, states[1]), lean(5, eager[1])) <= LOOSE[torch.float32]
    cache = weakref.ref(states[1].cache)
    step.leave(states[1])
    del rows, states, given
    gc.collect()
    assert cache() is None  # what was recorded of it does not keep it


def _both(step: Any, lean: Any, states: list[Any], eager: list[Any], members: list[int], number: int) -> None:
    tokens = [3 + number + index for index in members]
    given = step.together(tokens, Rows([states[index] for index in members]))
    wanted = lean.together(tokens, Rows([eager[index] for index in members]))
    assert off(given, wanted) <= LOOSE[torch.float32]
