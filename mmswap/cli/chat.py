"""`mmswap chat`: one prompt, or a conversation when there is none."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from mmswap.cli import progress, report
from mmswap.cli.options import Json, number, whole
from mmswap.cli.running import running
from mmswap.config import RunConfig, SamplingConfig
from mmswap.errors import OptionError

Images = Annotated[
    list[str] | None, typer.Option("--image", metavar="FILE", help="A picture; repeat for several, in order.")
]


@running
def chat(
    *,
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="The question. Without it a conversation begins.")
    ] = None,
    image: Images = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Checkpoint folder or hub id.", show_default="the carried model"),
    ] = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A system message for the whole conversation.")
    ] = None,
    config: RunConfig,
    max_new_tokens: Annotated[int, whole("TOKENS", "Most tokens of an answer.")] = 512,
    temperature: Annotated[float, number("NUMBER", "0 is greedy.")] = 0.0,
    top_p: Annotated[float, number("SHARE", "Keep the likeliest tokens of this total probability.")] = 1.0,
    top_k: Annotated[int, whole("N", "Keep this many likeliest tokens; 0 is off.")] = 0,
    min_p: Annotated[float, number("SHARE", "Drop tokens below this share of the likeliest one.")] = 0.0,
    repetition_penalty: Annotated[float, number("NUMBER", "Above 1 discourages tokens seen before.")] = 1.0,
    seed: Annotated[
        int | None, whole("N", "Same seed, same sampled answer.", show_default="a new one each time")
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="End the answer before this text; repeatable.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print every decision with its reason.")] = False,
    as_json: Json = False,
) -> None:
    """Ask a vision-language model about pictures.

    The carried model is small: it knows drawn shapes, colours, counts, places, digits and a few words.
    """
    sampling = SamplingConfig(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        max_new_tokens=max_new_tokens,
        stop=tuple(stop or ()),
    )
    if prompt is not None and not prompt.strip():
        raise OptionError("The prompt is empty: write a question, or leave it out to begin a conversation.")
    if as_json and prompt is None:
        raise OptionError("--json prints one answer: give the prompt on the command line.")
    conversation = _begin(config, system, prompt, image or [])
    runtime = _load(model, config, explain)
    if prompt is None:
        from mmswap.cli.repl import Repl

        Repl(runtime, conversation, sampling, explain=explain, pending=image or []).run()
    else:
        _answer_once(runtime, conversation, sampling, explain=explain, as_json=as_json)


def _begin(config: RunConfig, system: str | None, prompt: str | None, images: list[str]) -> Any:
    """Open the pictures before the model is loaded: a mistake there should not cost a minute."""
    from mmswap.chat import Conversation

    conversation = Conversation(config.image)
    if system is not None:
        conversation.messages.append({"role": "system", "content": system})
    if prompt is not None:
        conversation.ask(prompt, images)
    return conversation


def _load(model: str | None, config: RunConfig, explain: bool) -> Any:
    if model is not None and ("/" in model or "\\" in model) and Path(model).is_absolute() and not Path(model).exists():
        raise OptionError(f"There is no folder '{model}': give a checkpoint folder or a hub id with --model.")
    with progress.loading() as advance:
        from mmswap.runtime import load  # torch takes longer than the carried model

        runtime = load(model, config=config, progress=advance)
    if explain:
        for decision in runtime.decisions:
            report.explain(decision)
    return runtime


def _answer_once(runtime: Any, conversation: Any, sampling: SamplingConfig, *, explain: bool, as_json: bool) -> None:
    stream = runtime.stream(conversation.messages, sampling=sampling, on_decision=report.explain if explain else None)
    for piece in stream:
        if not as_json:
            report.write(piece)
    if as_json:
        ascii_only = sys.stdout.encoding.lower() not in ("utf-8", "utf8")
        report.write(json.dumps(stream.answer.to_json(), ensure_ascii=ascii_only) + "\n")
    else:
        report.write("\n")
        report.line(stream.answer, first=True)
