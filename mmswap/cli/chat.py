"""`mmswap chat`: one prompt, or a conversation when there is none."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from mmswap.cli import progress, report
from mmswap.cli.options import CARDS, Attention, Dtype, Json, Quantize, QuantizeHead, number, whole
from mmswap.config import BACKENDS, KV_KINDS, RunConfig, SamplingConfig
from mmswap.errors import OptionError

Images = Annotated[
    list[str] | None, typer.Option("--image", metavar="FILE", help="A picture; repeat for several, in order.")
]


def chat(
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
    card: Annotated[str, typer.Option(metavar="CARD", help=f"{CARDS}.")] = "auto",
    vram_limit: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Use no more of the card, for example 14GiB.")
    ] = None,
    dtype: Dtype = "auto",
    quantize: Quantize = None,
    quantize_head: QuantizeHead = False,
    attention: Attention = "sdpa",
    context: Annotated[
        int | None,
        whole("TOKENS", "Of prompt and answer together.", show_default="the model's, or what fits"),
    ] = None,
    decode: Annotated[
        str, typer.Option(metavar="HOW", help="auto, or model: every token through the model's own forward.")
    ] = "auto",
    backend: Annotated[
        str, typer.Option(metavar="NAME", help=f"What computes the ops: {', '.join(BACKENDS)}.")
    ] = "auto",
    no_autotune: Annotated[
        bool, typer.Option("--no-autotune", help="Do not measure kernels for this model at its first load on a card.")
    ] = False,
    kv: Annotated[str, typer.Option(metavar="KIND", help=f"How the KV cache is kept: {', '.join(KV_KINDS)}.")] = "auto",
    kv_unsafe: Annotated[
        bool, typer.Option("--kv-unsafe", help="Use an fp8 cache even where it is known to go wrong.")
    ] = False,
    prefill_chunk: Annotated[int, whole("TOKENS", "Most tokens of the prompt in one forward pass.")] = 2048,
    mmproj_swap_layers: Annotated[
        int, whole("N", "Units to evict for an image: -1 as many as needed, 0 never, N always N.")
    ] = -1,
    no_mmproj_offload: Annotated[
        bool, typer.Option("--no-mmproj-offload", help="Run the vision tower on the CPU; nothing is evicted then.")
    ] = False,
    image_min_pixels: Annotated[int | None, whole("PIXELS", "Enlarge pictures below this many pixels.")] = None,
    image_max_pixels: Annotated[int | None, whole("PIXELS", "Shrink pictures above this many pixels.")] = None,
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
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python code that the checkpoint brings.")
    ] = False,
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
    config = RunConfig.of(
        card=card,
        vram_limit=vram_limit,
        dtype=dtype,
        quantize=quantize,
        quantize_head=quantize_head,
        context=context,
        attention=attention,
        decode=decode,
        backend=backend,
        autotune=not no_autotune,
        kv=kv,
        kv_unsafe=kv_unsafe,
        prefill_chunk=prefill_chunk,
        trust_remote_code=trust_remote_code,
        image_min_pixels=image_min_pixels,
        image_max_pixels=image_max_pixels,
        mmproj_swap_layers=mmproj_swap_layers,
        no_mmproj_offload=no_mmproj_offload,
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
    from mmswap.runtime import load

    if model is not None and ("/" in model or "\\" in model) and Path(model).is_absolute() and not Path(model).exists():
        raise OptionError(f"There is no folder '{model}': give a checkpoint folder or a hub id with --model.")
    with progress.loading() as advance:
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
