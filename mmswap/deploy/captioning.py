"""Captions of the pictures of a folder, by one model in this process. Knows no Ray.

captioner = Captioner(CaptionJob(folder, prompt="Describe the picture."))
row = captioner.caption("a/b.png")                # {"file", "caption", "finish_reason"}, or {"file", "error"}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmswap.config import RunConfig, SamplingConfig
from mmswap.errors import ImageError, MmswapError
from mmswap.vision.images import open_image

if TYPE_CHECKING:
    from mmswap.runtime import Runtime


@dataclass(frozen=True, slots=True)
class CaptionJob:
    """What a worker must know. `folder`: absolute; `model`: None for the carried one."""

    folder: Path
    prompt: str
    model: str | None = None
    config: RunConfig = field(default_factory=RunConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)


class Captioner:
    """Writes captions; its model is loaded for the first good picture. See the module."""

    def __init__(self, job: CaptionJob, progress: Callable[[int, int], None] | None = None) -> None:
        self._job, self._progress = job, progress
        self._runtime: Runtime | None = None

    def caption(self, file: str) -> dict[str, Any]:
        """The line of a file; one that is no good picture, or needs more than there is, has an error in it."""
        job = self._job
        try:
            picture = open_image(job.folder / file, limit=job.config.image.decode_limit, name=file)
        except ImageError as error:
            return {"file": file, "error": str(error)}
        runtime = self._loaded()
        try:
            answer = runtime.chat(job.prompt, images=[picture], sampling=job.sampling)
        except MmswapError as error:
            return {"file": file, "error": str(error)}
        return {"file": file, "caption": answer.text, "finish_reason": answer.finish_reason}

    def _loaded(self) -> Runtime:
        from mmswap.runtime import load

        if self._runtime is None:
            self._runtime = load(self._job.model, config=self._job.config, progress=self._progress)
        return self._runtime


def captions_here(
    job: CaptionJob, files: Sequence[str], progress: Callable[[int, int], None] | None = None
) -> Iterator[dict[str, Any]]:
    """Lines of all files, one after the other."""
    captioner = Captioner(job, progress)
    for file in files:
        yield captioner.caption(file)
