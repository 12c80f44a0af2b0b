"""Captions of the pictures of a folder by Ray Data: several models at once, here or on a cluster. `mmswap[ray]`.

for row in captions_by_ray(job, files, workers=2): ...        # in the order in which they are ready

The folder must be there on every machine under the same name. Machines that are joined are found by RAY_ADDRESS.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import ray
import ray.data

from mmswap.deploy.captioning import Captioner, CaptionJob
from mmswap.deploy.cluster import begin, found_anywhere, share_of_card

BATCH = 4  # files that a worker takes at once: lost, and done again, if it dies


class Worker:
    """One copy of the model; what Ray calls with a batch of files."""

    def __init__(self, job: CaptionJob) -> None:
        self._captioner = Captioner(job)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        rows = [self._captioner.caption(str(file)) for file in batch["file"]]
        return {"row": [json.dumps(row, ensure_ascii=False) for row in rows]}


def captions_by_ray(job: CaptionJob, files: Sequence[str], workers: int) -> Iterator[dict[str, Any]]:
    """Lines of all files, by up to `workers` models with a card each."""
    begin(workers)
    job = replace(job, model=found_anywhere(job.model))
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    blocks = max(1, min(len(files) // BATCH, 200))
    rows = ray.data.from_items([{"file": file} for file in files], override_num_blocks=blocks).map_batches(
        Worker,
        fn_constructor_args=(job,),
        batch_size=BATCH,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=workers),
        **share_of_card(job.config.card),
    )
    for row in rows.iter_rows():
        yield json.loads(row["row"])
