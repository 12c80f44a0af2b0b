"""The weights as a run wants them: in which dtype, rounded or not, the tower in one that does not overflow.

    loaded = load_weights(folder, check_checkpoint(folder), config, card, say);  loaded.model, loaded.foreseen
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from mmswap.card import Card
from mmswap.config import RunConfig
from mmswap.llm.checkpoint import Checkpoint
from mmswap.llm.loader import load_checked, load_config, resolve_dtype, stored_dtype
from mmswap.llm.loading import Loaded, Options, Rounded4
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
    described = load_config(folder, trust_remote_code=trust)
    stored = stored_dtype(described, checkpoint)
    dtype, why = resolve_dtype(stored, checkpoint.nbytes, host=on_host, wanted=config.dtype)
    say(f"Weights run in {why}.")
    prepare = None
    if dtype == torch.float16:
        wide = torch.float32 if on_host else torch.bfloat16
        say(
            f"The vision tower runs in {str(wide).removeprefix('torch.')}, because inside of it some pictures pass "
            "65504, where float16 ends."
        )
        prepare = _keeping(wide)
    options = Options(
        dtype=dtype,
        attention=config.attention,
        trust_remote_code=trust,
        quantize=Rounded4(head=config.quantize_head) if config.quantize is not None else None,
        prepare=prepare,
        progress=progress,
        say=say,
    )
    return load_checked(folder, checkpoint, described, options)


def _keeping(dtype: torch.dtype) -> Callable[[Any], None]:
    return lambda model: keep_in_range(model, dtype)
