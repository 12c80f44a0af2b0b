"""`mmswap bench`: how fast a model answers on this machine, as a table and as rows of a CSV."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from mmswap.cli import progress
from mmswap.cli.options import Attention, Dtype, Json, Quantize, QuantizeHead, whole
from mmswap.config import BACKENDS, KV_KINDS, RunConfig
from mmswap.errors import OptionError


def bench(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Checkpoint folder or hub id; without it the carried model.")
    ] = None,
    card: Annotated[str, typer.Option(metavar="CARD", help="auto, cpu, cuda or cuda:1.")] = "auto",
    dtype: Dtype = "auto",
    attention: Attention = "sdpa",
    decode: Annotated[
        str, typer.Option(metavar="HOW", help="auto, or model: every token through the model's own forward.")
    ] = "auto",
    quantize: Quantize = None,
    quantize_head: QuantizeHead = False,
    backend: Annotated[
        str, typer.Option(metavar="NAME", help=f"What computes the ops: {', '.join(BACKENDS)}.")
    ] = "auto",
    kv: Annotated[str, typer.Option(metavar="KIND", help=f"How the KV cache is kept: {', '.join(KV_KINDS)}.")] = "auto",
    prompt: Annotated[
        list[int] | None, whole("TOKENS", "Length of a prompt; repeat for several.", show_default="128 and 512")
    ] = None,
    tokens: Annotated[int, whole("TOKENS", "Decoded after each prompt.")] = 64,
    runs: Annotated[int, whole("N", "Of everything; the table shows the middle.")] = 5,
    batch: Annotated[list[int] | None, whole("N", "Sequences decoded at once; repeat for a sweep.")] = None,
    csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Add the rows to this table.")] = None,
    as_json: Json = False,
) -> None:
    """Measure how fast a model answers here.

    Time to the first token and tokens a second, beside the rate at which this device copies bytes. Prompts are random
    ids. A simulated card is no device: its times mean nothing, so it is refused.
    """
    if card.startswith("sim:"):
        raise OptionError("A simulated card has no speed of its own: give --card cpu or cuda, or see `mmswap plan`.")
    lengths = tuple(prompt or (128, 512))
    if min(tokens, runs, *lengths, *(batch or ())) < 1:
        raise OptionError("--tokens, --runs, --prompt and --batch must be 1 or more.")
    config = RunConfig.of(
        card=card,
        dtype=dtype,
        attention=attention,
        decode=decode,
        quantize=quantize,
        quantize_head=quantize_head,
        backend=backend,
        kv=kv,
    )

    import mmswap
    from mmswap.bench import append, check
    from mmswap.bench import bench as measure

    if csv is not None:
        check(csv)
    with progress.loading() as advance:
        runtime = mmswap.load(model, config=config, progress=advance)
    if max(lengths) + tokens + 8 > runtime.context:
        raise OptionError(
            f"A prompt of {max(lengths)} and {tokens} tokens do not fit into {runtime.context}: give fewer."
        )
    name = Path(model).name if model else "the carried model"
    report = measure(
        runtime.model,
        runtime.decoding,
        name=name,
        tokens=tokens,
        prompts=lengths,
        runs=runs,
        batches=tuple(batch or ()),
        caching=runtime.caching,
        say=_say(sys.stderr.isatty()),
    )
    if csv is not None:
        append(report.rows(), csv)
    if as_json:
        print(json.dumps({"copy": report.copy.p50, "rows": list(report.rows())}, indent=2))
    else:
        _show(report)


def _say(aloud: bool) -> Any:
    return (lambda sentence: print(f"mmswap: {sentence}", file=sys.stderr)) if aloud else lambda _: None


def _show(report: Any) -> None:
    machine = report.machine
    print(f"{report.model} on {machine.device}" + (f", {machine.threads} threads" if machine.threads else ""))
    print(f"torch {machine.library}, transformers {machine.transformers}; copies {report.copy.p50 / 1e9:.1f} GB/s")
    print(f"{'':<14}{'prompt':>8}{'p20':>10}{'p50':>10}{'p80':>10} {'':<6}{'GB/s':>8}{'share':>8}")
    for row in report.rows():
        share = f"{float(str(row['share'])):.0%}" if row["share"] else ""
        figures = f"{row['p20']:>10}{row['p50']:>10}{row['p80']:>10} {row['unit']:<6}{row['GB/s']:>8}{share:>8}"
        print(f"{row['what']:<14}{row['size']:>8}{figures}")
