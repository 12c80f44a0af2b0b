"""How the tokens of an answer are computed: chosen once at load, each choice with its reason.

decoding = open_decoding(model, parts, card, config, caching.open, say)
with decoding.prompt(): ...            # attention kernels of the prefill
with decoding.token(): ...             # threads of one token; `decoding.step` takes it through the model
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from mmswap.card import Card
from mmswap.config import RunConfig
from mmswap.llm.division import keep_whole
from mmswap.llm.fast import STEPS, LeanStep, Refused, Step, open_lean
from mmswap.llm.fast.calls import Call, noted_calls
from mmswap.llm.fast.merge import merge
from mmswap.llm.fast.replace import replace
from mmswap.llm.graph import open_graph
from mmswap.llm.kv.proof import cannot_be_parted
from mmswap.llm.ops import threads
from mmswap.llm.ops.backends import AUTO, missing, use
from mmswap.llm.ops.schema import ACTIVATIONS
from mmswap.llm.ops.trial import verify
from mmswap.llm.parts import Parts
from mmswap.llm.sdpa import Kernels, choose

_LOG = logging.getLogger("mmswap")

Say = Callable[[str], None]
OpenCache = Callable[[int], Any]


@dataclass(frozen=True, slots=True)
class Decoding:
    """Attributes:
    step: takes a token through the model; None: the model's own forward does.
    threads: of the processor for a token; None: as they are. kernels: attention of the prompt; None: as torch chooses.
    """

    step: Step | None = None
    threads: int | None = None
    kernels: Kernels | None = None

    def prompt(self) -> AbstractContextManager[None]:
        """Around the prefill."""
        return nullcontext() if self.kernels is None else self.kernels.applied()

    @contextmanager
    def token(self) -> Iterator[None]:
        """Around one token after it: a prompt gains from every core, a token often does not."""
        before = torch.get_num_threads()
        if self.threads is None or self.threads == before:
            yield
            return
        torch.set_num_threads(self.threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


PLAIN = Decoding()


def force_backend(name: str, card: Card, say: Say) -> None:
    """What computes the ops of this process from now on."""
    use(name, card.device)
    if name != AUTO:
        say(f"Ops: by {name}, what it refuses by plain torch, because --backend {name} was given.")


def open_decoding(model: Any, parts: Parts, card: Card, config: RunConfig, open_cache: OpenCache, say: Say) -> Decoding:
    """Choose, for a model that is in its place and whole."""
    _try_ops(model, card, say)
    if (why := cannot_be_parted(model, open_cache)) is not None:
        keep_whole(parts.decoder, f"its prompts cannot be read in chunks, for {why}")
        say(f"Every prompt is read in one pass, for this model cannot go on where a chunk ended: {why}.")
    kernels = _kernels(model, card, config, say)
    if config.decode == "model":
        say("Decode: through the model's own forward, because --decode model was given.")
        return Decoding(kernels=kernels)
    try:
        with noted_calls() as calls:
            lean = open_lean(model)
    except Refused as why:
        say(f"Decode: through the model's own forward, because {why}. {replace(parts)} of its parts are ours.")
        return Decoding(threads=_threads(card, None, say), kernels=kernels)
    if not card.can_swap and (joined := merge(model, lean)):
        lean = open_lean(model)
        say(f"{joined} layers that work on the same input are computed together.")
    _tune(calls, card, config, say)
    step, eager = open_graph(lean, open_cache)
    how = "as a captured graph" if eager is None else f"not captured, because {eager}"
    say(f"Decode: part by part, {how}; {STEPS} tokens came out as from the model's own forward. {lean.describe()}")
    return Decoding(step, _threads(card, _again(lean, open_cache), say), kernels)


def _try_ops(model: Any, card: Card, say: Say) -> None:
    """An op that fails on this card, or is wrong, is computed by the next backend."""
    dtype = model.get_input_embeddings().weight.dtype
    for lost in verify(card.device, dtype) if dtype in ACTIVATIONS else ():
        _LOG.warning("%s", lost)
        say(f"Ops: {lost}")


def _kernels(model: Any, card: Card, config: RunConfig, say: Say) -> Kernels | None:
    if card.device.type != "cuda" or config.attention != "sdpa":
        return None
    text = model.config.get_text_config(decoder=True)
    heads = int(text.num_attention_heads)
    width = int(getattr(text, "head_dim", None) or text.hidden_size // heads)
    kernels = choose(
        card.device,
        model.get_input_embeddings().weight.dtype,
        heads=heads,
        kv_heads=int(getattr(text, "num_key_value_heads", None) or heads),
        width=width,
    )
    say(kernels.describe())
    return kernels


def _tune(calls: list[Call], card: Card, config: RunConfig, say: Say) -> None:
    """Kernels for this model's shapes, before anybody waits for an answer."""
    why = missing("triton", card.device)
    if why is not None:
        return
    from mmswap.llm.ops import triton
    from mmswap.llm.ops.triton import tuning

    ours = [(op, arguments) for op, arguments in calls if op in triton.IMPLEMENTATIONS and op != "kv_store"]
    tuning.tune(ours, _first_aloud(say), measure=config.autotune)


def _first_aloud(say: Say) -> Say:
    """Who waits is told once what for."""
    told: list[str] = []

    def tell(sentence: str) -> None:
        if not told:
            _LOG.warning("%s (once for this model on this card; --no-autotune leaves it out)", sentence)
        told.append(sentence)
        say(sentence)

    return tell


def _again(lean: LeanStep, open_cache: OpenCache) -> Callable[[], Any] | None:
    """The same token over and over, into the same slot; None where the cache would grow with it."""
    cache = open_cache(1)
    if cache is None:
        return None
    state = lean.begin(cache, 0)
    if not state.own:
        return None

    def step() -> None:
        state.tokens = state.position = 0
        lean(1, state)

    return step


def _threads(card: Card, step: Callable[[], Any] | None, say: Say) -> int | None:
    if card.device.type != "cpu" or card.can_swap:
        return None
    chosen = threads.choose(step)
    say(f"Threads of a token: {chosen.reason}.")
    return chosen.threads
