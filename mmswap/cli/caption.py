"""`mmswap caption`: a sentence for each picture of a folder, in a file that a stopped job goes on with."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from mmswap.cli import progress
from mmswap.cli.options import whole
from mmswap.cli.running import running
from mmswap.config import RunConfig, SamplingConfig
from mmswap.errors import OptionError

NEEDED = ("ray", "pyarrow")


@running
def caption(
    *,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of pictures, with those below it.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where captions go, one JSON object a line.")],
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Checkpoint folder or hub id.", show_default="the carried model"),
    ] = None,
    prompt: Annotated[
        str, typer.Option(metavar="TEXT", help="What is asked of each picture.")
    ] = "Describe the picture.",
    max_new_tokens: Annotated[int, whole("TOKENS", "Most tokens of a caption.")] = 256,
    workers: Annotated[
        int,
        whole("N", "Copies of the model, by Ray, with a card each; 0 is this process alone, without Ray."),
    ] = 0,
    config: RunConfig,
) -> None:
    """Write captions for a folder of pictures.

    A file that is no good picture is named on standard error and skipped. Started again with the same --out it goes on:
    what has a caption is not looked at, what had an error is tried again.
    """
    if workers < 0:
        raise OptionError("--workers must be 0 or more.")
    if not prompt.strip():
        raise OptionError("--prompt is empty: write what is asked of each picture.")
    _check(model, workers)
    from mmswap.deploy.captioning import CaptionJob
    from mmswap.deploy.captions import Captions, pictures
    from mmswap.server.config import name_of

    files = [file for file in pictures(folder) if (folder / file).resolve() != out.resolve()]
    sampling = SamplingConfig(max_new_tokens=max_new_tokens)
    job = CaptionJob(folder.resolve(), prompt, model, config, sampling)
    with Captions.open(out, model=name_of(model), prompt=prompt) as captions:
        missing = captions.missing(files)
        before = len(files) - len(missing)
        for row in _rows(job, missing, workers) if missing else ():
            if captions.add(row) and "error" in row:
                _tell(row["file"], row["error"])
        wrote = len(captions.done) - before
    known = f", {before} had one before" if before else ""
    bad = f", {len(captions.failed)} of {len(files)} files are no good pictures" if captions.failed else ""
    print(f"mmswap: {wrote} captions written to {out}{known}{bad}.", file=sys.stderr)


def _tell(file: str, error: str) -> None:
    named = error if error.startswith(file) else f"{file}: {error}"
    print(f"mmswap: {named}", file=sys.stderr, flush=True)


def _rows(job: Any, files: Sequence[str], workers: int) -> Iterator[dict[str, Any]]:
    if workers:
        from mmswap.deploy.ray_captions import captions_by_ray

        yield from captions_by_ray(job, files, workers)
        return
    from mmswap.deploy.captioning import captions_here

    with progress.loading() as advance:
        yield from captions_here(job, files, advance)


def _check(model: str | None, workers: int) -> None:
    missing = [name for name in NEEDED if workers and find_spec(name) is None]
    if missing:
        raise OptionError(
            f'--workers needs packages that are not installed ({", ".join(missing)}): pip install "mmswap[ray]", '
            "or leave it out."
        )
    if model is not None and Path(model).is_absolute() and not Path(model).exists():
        raise OptionError(f"There is no folder '{model}': give a checkpoint folder or a hub id with --model.")
