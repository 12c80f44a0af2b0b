"""Self-attention over a cache for one token: projections, norms, positions, store, attend, output.

`attention_of(module, sighting, rope)` reads all of it from one forward that was seen, or refuses. Knows no class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmswap.llm.fast.linear import Linear, linear_of, takes_features
from mmswap.llm.fast.norm import Norm, close, norm_of
from mmswap.llm.fast.part import shared_by, split
from mmswap.llm.fast.refused import Refused
from mmswap.llm.fast.sighting import Call, Looked, Sighting, is_norm
from mmswap.llm.fast.turn import Turn, turn_of

_KNOWN = {"scaling", "sliding_window", "softcap", "s_aux"}
_WITHOUT_MEANING = {"dropout", "position_ids", "cache_position", "is_causal", "use_cache", "output_attentions"}
_WITHOUT_MEANING |= {"output_hidden_states", "return_dict", "logits_to_keep"}


@dataclass(slots=True, eq=False)
class Attention:
    """One layer's self-attention.

    Attributes:
        index: of the layer in the cache.
        heads, head_dim: of the query. kv_heads, value_dim: of keys and values.
        project: h -> query, key, value, each [B, 1, heads * D]; `sides` are their modules.
        whole_norms: whether q_norm and k_norm take all heads as one row (OLMo 2), not each by itself.
        rope: which of the step's pairs (cos, sin) it turns by; None: it does not turn.
    """

    index: int
    heads: int
    head_dim: int
    kv_heads: int
    value_dim: int
    project: Callable[[Tensor], tuple[Tensor, ...]]
    o: Linear
    q_norm: Norm | None
    k_norm: Norm | None
    whole_norms: bool
    turn: Turn | None
    rope: int | None
    scale: float
    soft_cap: float
    window: int
    sinks: Tensor | None
    sides: tuple[nn.Module, ...]

    def __call__(self, h: Tensor, step: Any) -> Tensor:
        """`h [B,1,H]` -> `[B,1,H]`; the token's key and value go into `step.cache`."""
        batch = h.shape[0]  # one token: [B, 1, heads * D] and [B, heads, 1, D] are the same bytes
        q, k, v = self.project(h)
        q = self._normed(self.q_norm, q, self.heads)
        k = self._normed(self.k_norm, k, self.kv_heads)
        v = v.view(batch, self.kv_heads, 1, self.value_dim)
        if self.turn is not None:
            cos, sin = step.ropes[self.rope]
            q, k = self.turn(q, k, cos, sin)
        return self.o(step.attend(self, q, k, v).view(batch, 1, -1))

    def _normed(self, norm: Norm | None, x: Tensor, heads: int) -> Tensor:
        """The heads of a projection, [B, heads, 1, D], normed each by itself or all as one row."""
        if norm is not None and self.whole_norms:
            x = norm(x.view(x.shape[0], 1, -1))
        x = x.view(x.shape[0], heads, 1, self.head_dim)
        return x if norm is None or self.whole_norms else norm(x)


def attention_of(call: Call, sighting: Sighting, ropes: list[Any]) -> Attention:
    """Read an attention module from what it was seen to do.

    Raises:
        Refused: something in it is not understood.
    """
    module = call.module
    look = _only_look(module, sighting)
    kinds = _meaning(look)
    calls = sighting.children(module)
    _all_called(module, calls, kinds.get("s_aux"))
    projections = [one for one in calls if takes_features(one.module)]
    if len(projections) != 4 or any(one.given is not projections[0].given for one in projections[:3]):
        raise Refused(f"it has {len(projections)} projections in another order than query, key, value, output")
    norms = [one for one in calls if is_norm(one.module)]
    if len(projections) + len(norms) != len(calls):
        raise Refused("it calls more than projections and norms")
    width = look.query.shape[-1]
    heads = [one.result for one in projections[:3]]
    norm = [_norm_on(norms, index, heads) for index in (0, 1)]
    if len(norms) != sum(one is not None for one in norm):
        raise Refused("a norm stands where none was expected")
    if len({one.given.shape[-1] == width for one in norm if one is not None}) > 1:
        raise Refused("it norms each head on one side and all together on the other")
    before = [_per_head(one.result if one is not None else heads[index], width) for index, one in enumerate(norm)]
    after = (look.query, look.key[:, :, -1:])
    rope = _rope_index(call, ropes)
    turn = turn_of(module, (before[0], before[1]), after, None if rope is None else ropes[rope].output)
    if not close(_per_head(heads[2], look.value.shape[-1]), look.value[:, :, -1:]):
        raise Refused("its values change between projection and attention")
    if not close(projections[3].given, look.output.reshape(projections[3].given.shape)):
        raise Refused("something stands between its attention and its output projection")
    return Attention(
        index=int(getattr(module, "layer_idx", -1)),
        heads=look.query.shape[1],
        head_dim=width,
        kv_heads=look.key.shape[1],
        value_dim=look.value.shape[-1],
        project=_project(projections[:3]),
        o=linear_of(projections[3]),
        q_norm=None if norm[0] is None else norm_of(norm[0].module, norm[0].given),
        k_norm=None if norm[1] is None else norm_of(norm[1].module, norm[1].given),
        whole_norms=any(one is not None and one.given.shape[-1] != width for one in norm),
        turn=turn,
        rope=rope if turn is not None else None,
        scale=float(kinds["scaling"]) if kinds.get("scaling") is not None else width**-0.5,
        soft_cap=float(kinds.get("softcap") or 0.0),
        window=int(kinds.get("sliding_window") or 0),
        sinks=kinds.get("s_aux"),
        sides=tuple(one.module for one in projections[:3]),
    )


def _project(calls: list[Call]) -> Callable[[Tensor], tuple[Tensor, ...]]:
    shared = shared_by([one.module for one in calls])
    if shared is not None:
        return split(shared, calls[0].given)
    q, k, v = (linear_of(one) for one in calls)
    return lambda h: (q(h), k(h), v(h))


def _only_look(module: nn.Module, sighting: Sighting) -> Looked:
    looks = [look for look in sighting.looks if look.module is module]
    if len(looks) != 1:
        raise Refused(f"it attended {len(looks)} times")
    (look,) = looks
    if look.mask is not None and not _sees_all(look.mask):
        raise Refused("its mask hides tokens of the past")
    return look


def _sees_all(mask: Tensor) -> bool:
    return bool(mask.all()) if mask.dtype == torch.bool else not bool(mask.any())


def _meaning(look: Looked) -> dict[str, Any]:
    said = {name: value for name, value in look.more.items() if value is not None and value is not False}
    unknown = set(said) - _KNOWN - _WITHOUT_MEANING
    if unknown:
        raise Refused(f"its attention is given {', '.join(sorted(unknown))}")
    return said


def _all_called(module: nn.Module, calls: list[Call], sinks: Tensor | None) -> None:
    called = {one.module for one in calls}
    for name, child in module.named_children():
        if child not in called and any(True for _ in child.parameters()):
            raise Refused(f"{name} was not used")
    if len(called) != len(calls):
        raise Refused("a part of it was called twice")
    if any(one is not sinks for one in module.parameters(recurse=False)):
        raise Refused("it has weights of its own beside its projections")


def _norm_on(norms: list[Call], index: int, heads: list[Tensor]) -> Call | None:
    """The norm that worked on this projection's result, if there was one."""
    wanted = heads[index]
    for one in norms:
        if one.given.numel() == wanted.numel() and one.given.data_ptr() == wanted.data_ptr():
            return one
    return None


def _per_head(flat: Tensor, width: int) -> Tensor:
    """[B,1,H*D], [B,1,H,D] or [B,H,1,D] -> [B,H,1,D]: with one token all three are the same bytes."""
    return flat.reshape(flat.shape[0], -1, 1, width)


def _rope_index(call: Call, ropes: list[Any]) -> int | None:
    """Which of the pairs that were made beside the layers this attention was given."""
    given = [value for value in (*call.args, *call.kwargs.values()) if isinstance(value, tuple) and len(value) == 2]
    for pair in given:
        for index, rope in enumerate(ropes):
            if pair[0] is rope.output[0] and pair[1] is rope.output[1]:
                return index
    return None
