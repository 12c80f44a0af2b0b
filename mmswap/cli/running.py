"""The flags that say how a model is loaded and run: one list for every command that answers.

    @running                            # what stands at `config` becomes these flags, and a `RunConfig` in the call
    def chat(prompt: ..., config: RunConfig, explain: ...) -> None: ...

Names are those of `RunConfig.of`. Knows no command.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

from mmswap.cli.options import CARDS, Attention, Dtype, Quantize, QuantizeHead, whole
from mmswap.config import BACKENDS, KV_KINDS, RunConfig

PLACE = "config"  # the parameter of a command that the flags stand for


def _flags(
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
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python code that the checkpoint brings.")
    ] = False,
) -> None:
    """Only its signature is looked at."""


def running(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with the flags above in place of its parameter `config`."""
    own, flags = _parameters(command), _parameters(_flags)
    at = [one.name for one in own].index(PLACE)

    @functools.wraps(command)
    def wrapped(**given: Any) -> Any:
        options = {one.name: given.pop(one.name) for one in flags}
        options["autotune"] = not options.pop("no_autotune")
        return command(**given, **{PLACE: RunConfig.of(**options)})

    parameters = [*own[:at], *flags, *own[at + 1 :]]
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {one.name: one.annotation for one in parameters}
    return wrapped


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """With annotations that are types, not their texts, and in a form in which defaults may stand anywhere."""
    hints = get_type_hints(function, include_extras=True)
    found = inspect.signature(function).parameters.values()
    return [one.replace(annotation=hints[one.name], kind=inspect.Parameter.KEYWORD_ONLY) for one in found]
