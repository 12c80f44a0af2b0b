"""Bytes that one token makes a machine read: the weights that it uses, and the keys and values before it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from mmswap.llm.parts import Parts


def weight_bytes(parts: Parts, config: Any) -> int:
    """Weights that one token reads: all of every layer, of a mixture only the experts that it is sent to; norm, head.

    Of the embeddings it reads a row, which does not count, unless they are the head too.
    """
    share = _share(config)
    layers = sum(_bytes(layer, share) for _, layer in parts.layers)
    return layers + sum(_bytes(part, 1.0) for part in (parts.norm, parts.head) if part is not None)


def kv_bytes(cache: Any, tokens: int) -> int:
    """Keys and values of `tokens` that one more token looks at, as the cache holds them."""
    held = 0
    for layer in cache.layers:
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        for tensor in (keys, values):
            if isinstance(tensor, Tensor) and tensor.dim() == 4:
                slot = tensor.shape[0] * tensor.shape[1] * tensor.shape[3] * tensor.element_size()
                held += slot * min(tokens, tensor.shape[2])
    return held


def _share(config: Any) -> float:
    """Of the experts of a mixture, how many a token is sent to."""
    text = config.get_text_config(decoder=True)
    count = next(
        (n for name in ("num_experts", "num_local_experts", "n_routed_experts") if (n := getattr(text, name, 0))), 0
    )
    active = next(
        (n for name in ("num_experts_per_tok", "top_k_experts", "moe_top_k") if (n := getattr(text, name, 0))), 0
    )
    return active / count if count and active else 1.0


def _bytes(module: nn.Module, share: float) -> int:
    total = 0.0
    for name, part in module.named_modules():
        factor = share if "experts" in name.split(".") else 1.0
        total += factor * sum(tensor.nbytes for tensor in _own(part))
    return int(total)


def _own(module: nn.Module) -> Iterable[Tensor]:
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)
