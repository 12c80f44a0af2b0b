"""The weights as a run wants them: in which dtype, rounded or not, the tower in one that does not overflow.

loaded = load_weights(folder, check_checkpoint(folder), config, card, say);  loaded.model, loaded.foreseen
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mmswap.card import Card
from mmswap.config import RunConfig
from mmswap.errors import told
from mmswap.llm.checkpoint import Checkpoint
from mmswap.llm.loader import described, load_checked, load_config, resolve_dtype, stored_dtype
from mmswap.llm.loading import Loaded, Options, Rounded4
from mmswap.llm.ops import shuffle
from mmswap.llm.ops.backends import REFERENCE
from mmswap.llm.ops.cpu_layout import int4pack_bytes
from mmswap.llm.ops.trial import trial
from mmswap.llm.quant import QuantLinear, which
from mmswap.vision.precision import keep_in_range

Say = Callable[[str], None]


def load_weights(
    folder: Path,
    checkpoint: Checkpoint,
    config: RunConfig,
    card: Card,
    say: Say,
    progress: Callable[[int, int], None] | None = None,
) -> Loaded:
    """The model on the host.

    Raises:
        ModelError: a checkpoint of another kind, or one that lacks weights.
    """
    trust, on_host = config.trust_remote_code, not card.can_swap
    settings = load_config(folder, trust_remote_code=trust)
    stored = stored_dtype(settings, checkpoint)
    dtype, why = resolve_dtype(stored, checkpoint.nbytes, host=on_host, wanted=config.dtype)
    if on_host and config.dtype == "auto" and _in_four_bits(folder, checkpoint, config):
        dtype, why = torch.bfloat16, "bfloat16, the only dtype in which this processor multiplies by 4-bit weights fast"
    say(f"Weights run in {why}.")
    prepare = None
    if dtype == torch.float16:
        say(
            "The vision tower runs in bfloat16, because inside of it some pictures pass 65504, where float16 ends; "
            "it is the same on every card, so that texts are."
        )
        prepare = _keeping(torch.bfloat16)
    options = Options(
        dtype=dtype,
        attention=config.attention,
        trust_remote_code=trust,
        quantize=Rounded4(head=config.quantize_head) if config.quantize is not None else None,
        prepare=prepare,
        progress=progress,
        card=_that_shuffles(card, say),
        say=say,
    )
    loaded = load_checked(folder, checkpoint, settings, options)
    if on_host and dtype == torch.bfloat16:
        loaded = replace(loaded, foreseen=loaded.foreseen - _for_the_processor(loaded.model, say))
    return loaded


def _that_shuffles(card: Card, say: Say) -> torch.device | None:
    """The card's device if a kernel of its own brings GPTQ's tensors into the layout, and is right."""
    if card.device.type != "cuda":
        return None
    try:
        row, off = trial(shuffle.NAME, card.device, torch.float16)
    except Exception as error:  # a driver's or a compiler's: the host does it as well
        say(f"GPTQ's weights are laid out on the host, because the card fails: {told(error)}.")
        return None
    return card.device if row.backend != REFERENCE and off == 0 else None


def _in_four_bits(folder: Path, checkpoint: Checkpoint, config: RunConfig) -> bool:
    return config.quantize is not None or bool(which(described(folder), checkpoint.tensors).packed)


def _for_the_processor(model: Any, say: Say) -> int:
    """4-bit weights in the layout of its kernel, in place of the common one; whatever cannot be stays.

    Returns:
        Bytes that this saves, by arithmetic.
    """
    layers = [part for part in model.modules() if isinstance(part, QuantLinear) and not part.prepared]
    saved, kept = 0, []
    for layer in layers:
        packed = layer.packed
        before, shape = packed.nbytes, (packed.out_features, packed.slots, packed.group_size)
        why = layer.prepare("cpu")
        if why is None:
            saved += before - int4pack_bytes(*shape, reordered=packed.order is not None)
        else:
            kept.append(why)
    if layers:
        others = f"; {len(kept)} stay in the common layout, because {kept[0]}" if kept else ""
        done = len(layers) - len(kept)
        say(f"{done} of {len(layers)} 4-bit layers lie as this processor's kernel reads them{others}.")
    return saved


def _keeping(dtype: torch.dtype) -> Callable[[Any], None]:
    return lambda model: keep_in_range(model, dtype)
