"""The Ray that is there, or one of this machine alone: started when it is needed, told what one copy of a model takes.

begin(workers=2);  share_of_card("auto")        # {"num_gpus": 1}, {"num_cpus": 1} where there is no card
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray

from mmswap.errors import OptionError

ACCEL = "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"  # 0: a copy without a card is not told that there is none at all


def begin(workers: int) -> None:
    """Join the cluster of RAY_ADDRESS, or start Ray here with room for `workers` copies; nothing where it runs."""
    if ray.is_initialized():
        return
    os.environ.setdefault(ACCEL, "0")
    for name in ("ray.data", "ray.serve"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with TemporaryDirectory() as nowhere:  # else copies look for modules where this program was started
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR, "runtime_env": {"working_dir": nowhere}}
        if os.environ.get("RAY_ADDRESS"):
            ray.init(**quiet)
        else:  # a share is a promise, not a core
            ray.init(num_cpus=max(os.cpu_count() or 1, workers + 1), include_dashboard=False, **quiet)


def found_anywhere(model: str | None) -> str | None:
    """A model's name as every copy finds it: a folder by its whole path."""
    return str(Path(model).resolve()) if model is not None and Path(model).exists() else model


def share_of_card(card: str) -> dict[str, Any]:
    """What Ray sets aside for one copy: a whole card, or a processor where it asks for none or there is none.

    Raises:
        OptionError: `card` names one of several: Ray says which copy has which.
    """
    if card.startswith("cuda:"):
        raise OptionError(f"--card {card}: Ray gives each copy a card of its own, so write cuda, or auto.")
    wants = card in ("auto", "cuda")
    if wants and ray.cluster_resources().get("GPU", 0) >= 1:
        return {"num_gpus": 1}
    if card == "cuda":
        raise OptionError("--card cuda: Ray knows of no card in this cluster.")
    return {"num_cpus": 1}
