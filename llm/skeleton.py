"""A model without weights: built on meta from its config, in milliseconds and without bytes. Knows no pictures.

`build(config, "sdpa", torch.bfloat16)`; `shortened(model, stacks)` is the same with equal layers where nobody looks.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForImageTextToText
from transformers.initialization import no_init_weights

from mmswap.errors import ModelError, told


def build(
    config: Any,
    attention: str,
    dtype: torch.dtype,
    auto: Any = AutoModelForImageTextToText,
    *,
    trust_remote_code: bool = False,
) -> tuple[Any, str]:
    """(the model on meta, in eval mode; the attention that it took: `eager` where the family has no `sdpa`).

    Args:
        auto: transformers' class that makes models of this kind.

    Raises:
        ModelError: no model can be built from this config; the sentence says why.
    """
    more = {"trust_remote_code": True} if trust_remote_code else {}
    for kind in dict.fromkeys((attention, "eager")):
        try:
            with torch.device("meta"), no_init_weights():
                model = auto.from_config(config, dtype=dtype, attn_implementation=kind, **more)
            model.tie_weights()  # left out together with the initialisation; a tied head counts once
            return model.eval().requires_grad_(False), kind
        except Exception as error:  # whatever model code raises when its config makes no sense
            if kind != "eager" and "scaled_dot_product_attention" in str(error):
                continue
            raise ModelError(f"No {config.model_type} model can be built from this config: {told(error)}.") from error
    raise AssertionError("unreachable: eager either works or raises")


def stored_dtype(config: Any) -> torch.dtype:
    """What a config says its weights are stored in, itself or for its language model; else float32."""
    for holder in (config, config.get_text_config(decoder=True)):
        if isinstance(found := getattr(holder, "dtype", None), torch.dtype):
            return found
    return torch.float32


def shortened(module: nn.Module, stacks: Set[nn.Module]) -> nn.Module:
    """The same modules and weights, where each list in `stacks` is its first layer over and over.

    For what never reaches those layers: it is as long as it was and found as before, and a copy of it costs one layer.
    `module` is not changed.
    """
    return _shortened(module, stacks, {})


def _shortened(module: nn.Module, stacks: Set[nn.Module], memo: dict[nn.Module, nn.Module]) -> nn.Module:
    if module in memo:
        return memo[module]
    if not any(part in stacks for part in module.modules()):
        return module
    short = memo[module] = type(module).__new__(type(module))
    short.__dict__.update(vars(module))
    children = module._modules
    if module in stacks:
        children = dict.fromkeys(children, next(iter(children.values()), None))
    short.__dict__["_modules"] = {
        name: None if child is None else _shortened(child, stacks, memo) for name, child in children.items()
    }
    return short
