"""load -> dry run -> plan -> answer: the only place where pictures, language model and memory meet.

runtime = mmswap.load("path/to/checkpoint", card="auto")
answer = runtime.chat("What is this?", images=["photo.jpg"])
for piece in (stream := runtime.stream(messages)): ...          # then stream.answer
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from torch import Tensor

from mmswap.answer import Answer
from mmswap.card import open_card
from mmswap.card.spill import SpillCount
from mmswap.card.watching import watch_of
from mmswap.chat import Conversation, Message, Picture, Prompt, open_messages, render
from mmswap.config import RunConfig, SamplingConfig
from mmswap.errors import ContextOverflow, OptionError, WindowMisuse
from mmswap.foresight import Way, to_decoder
from mmswap.llm.checkpoint import check_checkpoint
from mmswap.llm.context import ContextBeyondCard, choose_context
from mmswap.llm.costs import prefill_cost, query_groups
from mmswap.llm.decoding import force_backend, open_decoding
from mmswap.llm.ending import end_ids
from mmswap.llm.kv.caching import Caching, decide
from mmswap.llm.memory import TextMemory
from mmswap.llm.parts import find_parts
from mmswap.llm.source import resolve_source
from mmswap.measured import Measurements, Tally
from mmswap.placement import answer_to_spill, place, require_room, weigh
from mmswap.recall import experience_of
from mmswap.reuse import Reuse, Turn
from mmswap.stream import Stream
from mmswap.swap.dry_run import DryRun, calibrate, policy_of
from mmswap.vision.encoder import Encoder, Job
from mmswap.vision.processor import Prepared, load_processor
from mmswap.vision.tower import find_tower
from mmswap.weights import load_weights

Say = Callable[[str], None]
log = logging.getLogger(__name__)


def carried_model() -> Path:
    """The folder of the small model that comes with the package."""
    return Path(str(files("mmswap") / "carried" / "seer"))


def load(
    source: str | Path | None = None,
    *,
    config: RunConfig | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Runtime:
    """Load a model and make it ready to answer.

    Args:
        source: a checkpoint folder or a hub id; None for the carried model.
        config: all options at once; or give them as keywords named like the command line's flags
            (`card="sim:16GiB"`, `image_max_pixels=...`, `mmproj_swap_layers=-1`), see `RunConfig.of`.
        progress: called with (done, total) while weights are loaded.

    Raises:
        UserError: a model, option or card that cannot be used; the message says what to do.
        DoesNotFit: the weights alone are larger than the card.
    """
    if config is not None and options:
        raise OptionError(f"Give either config= or single options, not both: {', '.join(sorted(options))}.")
    return Runtime(source or carried_model(), config or RunConfig.of(**options), progress)


class Runtime:
    """A loaded model on a card. One prompt is answered at a time; others wait for it.

    Attributes:
        decisions: what was decided while loading, each with its reason.
        context: tokens that prompt and answer may hold together.
        limited_by_card: whether the card's memory, and neither the model nor the user, set the context.
        watch: notices spills. tally: what was measured so far; see `measurements`.
    """

    def __init__(
        self, source: str | Path, config: RunConfig, progress: Callable[[int, int], None] | None = None
    ) -> None:
        self.config = config
        self.decisions: list[str] = []
        say = self.decisions.append
        self.card = open_card(config.card, vram_limit=config.vram_limit)
        say(f"Card: {self.card.name}, because {self.card.choice or 'it was asked for'}.")
        force_backend(config.backend, self.card, say)
        before = self.card.free()
        folder = resolve_source(source, trust_remote_code=config.trust_remote_code)
        self.processor = load_processor(folder, config.image, trust_remote_code=config.trust_remote_code)
        self._checkpoint = check_checkpoint(folder)
        loaded = load_weights(folder, self._checkpoint, config, self.card, say, progress)
        self.model = loaded.model
        parts = find_parts(self.model)
        tower = find_tower(self.model)
        self.caching = self._caching(say)
        experience = experience_of(self.model, self.card)
        policy = policy_of(self.card.device)
        known = experience.profile.scratch if experience.profile is not None else None
        dry_run = DryRun(self.model, policy=policy, scratch=calibrate(policy, known))
        pool = place(self.model, tower, parts, self.card, config.swap, say)
        aloud = partial(_aloud, say)
        require_room(self.model, self.card, config.swap, aloud)
        self.watch = pool.watch if pool is not None else watch_of(self.card)
        self.watch.answer = answer_to_spill(config.swap.layers if pool is not None else 0)
        self.watch.start()
        self.encoder = Encoder(tower, dry_run, self.card, pool, config.swap, experience)
        free = self.card.free if pool is None else pool.free
        groups = query_groups(self.model.config.get_text_config(decoder=True))
        cost_of = prefill_cost(dry_run, parts.decoder_name, len(parts.layers), groups, self.caching)
        self.memory = TextMemory(cost_of, self.card, free, config.prefill_chunk)
        self._dry_run = dry_run
        self.end_ids = end_ids(self.model.config, self.model.generation_config, self.processor.tokenizer)
        weights = weigh(self.model, tower, loaded.foreseen, before, self.card, config.swap, say)
        chosen = choose_context(self.memory, self.card, limit=self._made_for(), wanted=config.context, say=aloud)
        self.context, self.limited_by_card = chosen.tokens, chosen.by_card
        self.decoding = open_decoding(self.model, parts, self.card, config, self.caching.open, say)
        self.tally = Tally(replace(weights, context=chosen.tokens, kv_bytes=chosen.kv_bytes))
        say(f"Context: {chosen.tokens} tokens, {chosen.reason}. {self.processor.limits()}")
        self.reuse = Reuse(self.model, self.caching, self.card)
        self._turn = threading.Lock()
        self._holder: int | None = None

    def chat(
        self,
        prompt: str | Sequence[Message],
        images: Sequence[Picture] = (),
        *,
        on_text: Callable[[str], None] | None = None,
        sampling: SamplingConfig | None = None,
        reuse: bool = False,
        **options: Any,
    ) -> Answer:
        """Answer one prompt: a text with pictures, or a whole conversation as a list of messages (see `open_messages`).

        Args:
            images: paths, bytes, PIL images or data URIs; only beside a text.
            on_text: called with every piece of the answer as it comes.
            reuse: as of `stream`: this is a turn of a chat that goes on.
            sampling: how tokens are chosen; or single fields of `SamplingConfig` as keywords.

        Raises:
            OptionError: an empty prompt, an option that does not exist, or pictures that are no list.
        """
        if isinstance(images, (str, bytes)) or not isinstance(images, Sequence):
            raise OptionError("images= is a list of pictures: write images=[picture] for one.")
        if isinstance(prompt, str):
            if not prompt.strip() and not images:
                raise OptionError("The prompt is empty: write a question.")
            conversation = Conversation(self.config.image)
            conversation.ask(prompt, images)
            messages: Sequence[Message] = conversation.messages
        elif images:
            raise OptionError("images= goes with a text; in a list of messages pictures are parts of the messages.")
        else:
            messages = prompt
        stream = self.stream(messages, sampling=sampling or SamplingConfig.of(**options), reuse=reuse)
        with closing(stream):  # an `on_text` that raises must not leave the turn taken
            for piece in stream:
                if on_text is not None:
                    on_text(piece)
        return stream.answer

    def stream(
        self,
        messages: Sequence[Message] | Prompt,
        *,
        sampling: SamplingConfig | None = None,
        on_decision: Say | None = None,
        reuse: bool | Turn = False,
        **more: Any,
    ) -> Stream:
        """The answer piece by piece. Closing the stream early stops the work and brings every weight back.

        Args:
            reuse: this is a turn of a chat: what it shares with the turn before is not read again, and its KV cache is
                kept on the card for the next one (until a prompt comes that it does not serve, or `forget`).
            messages: as of `chat`; or a `Prompt`, whose text the model reads as it stands.
            on_decision: called with every decision and its reason as it is taken.
            more: `should_stop` (asked before every step), `constraint` (what the answer must look like), `template`
                (keywords for the chat template) and `place` (beside others, see `Several`) of `Stream`.
        """
        opened = messages if isinstance(messages, Prompt) else open_messages(messages, self.config.image)
        return Stream(self, opened, sampling or SamplingConfig(), on_decision, reuse=reuse, **more)

    def plan(self, messages: Sequence[Message]) -> list[str]:
        """What the window would do for these messages now, and why; nothing is run."""
        prepared = self.prepare(self.render(open_messages(messages, self.config.image)))
        said: list[str] = []
        if not prepared.images:
            return ["There is no picture, so there is nothing to make room for."]
        with self.turn():
            self.reuse.forget()  # a new picture would take its bytes
            self.encoder.explain(self.on_card(prepared.inputs), said.append)
        return said

    def forget(self) -> None:
        """Give back what the last turn of a chat keeps on the card."""
        with self.turn():
            self.reuse.forget()

    def spill(self) -> SpillCount:
        """What the driver placed in host memory since the model was loaded; looked up now."""
        self.watch.poll()
        return self.watch.count()

    def measurements(self) -> Measurements:
        """Predicted beside measured, windows and spills so far."""
        return self.tally.so_far(self.spill())

    def prepare(self, prompt: Prompt) -> Prepared:
        """The tensors of a prompt, if they fit into the context: counted before any tower runs.

        Raises:
            ContextOverflow: the prompt leaves no room for an answer.
        """
        prepared = self.processor.prepare(prompt.text, prompt.images, prompt.literals, prompt.limits)
        tokens = prepared.inputs["input_ids"].shape[1]
        limit = self._made_for() if self.limited_by_card else self.context  # `reserve` looks at the card
        if tokens >= limit:
            raise ContextOverflow(tokens, limit)
        return prepared

    def render(self, messages: list[dict[str, Any]], **template: Any) -> Prompt:
        """The text of a conversation whose pictures are decoded, by the model's chat template with these keywords."""
        return render(messages, partial(self.processor.render, **template), self.processor.dangerous)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """One prompt at a time: other threads wait here.

        Raises:
            WindowMisuse: an answer of this very thread is still under way.
        """
        if self._holder == threading.get_ident():
            raise WindowMisuse("An answer is under way in this thread: read it to its end, or close its stream, first.")
        with self._turn:
            try:  # an interrupt may strike behind every line
                self._holder = threading.get_ident()
                yield
            finally:
                self._holder = None

    def on_card(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Ids, grids and masks on the card; pixels stay on the host until a window makes room for them."""
        device = self.card.device
        return {name: value if value.is_floating_point() else value.to(device) for name, value in inputs.items()}

    def singles(self, prompt: Prompt) -> list[Any]:
        """What the processor gives for each picture of the prompt alone."""
        text = self.processor.render([{"role": "user", "content": [{"type": "image"}]}])
        pictures = [(image, prompt.limits[at : at + 1]) for at, image in enumerate(prompt.images)]
        return [self.on_card(self.processor.prepare(text, [image], {}, own).inputs) for image, own in pictures]

    def reserve(self, inputs: Mapping[str, Tensor], job: Job | None, say: Say, memory: TextMemory | None = None) -> int:
        """The prefill chunk for a prompt whose text and features fit on the card.

        Raises:
            DoesNotFit: they do not; nothing has been run.
            ContextBeyondCard: they do by now, and are more than the context that the card was found to have room for.
        """
        tokens, features = inputs["input_ids"].shape[1], job.peak.output if job is not None else 0
        ahead, way_bytes = None, 0
        if self.card.can_swap:
            way = Way(inputs) if job is None else Way(inputs, job.peak.result, job.call.entry)
            peak = self._dry_run.tower_peak(to_decoder, way)
            ahead, way_bytes = peak.result, peak.total if peak.result is not None else 0
        chunk = (memory or self.memory).begin(tokens, features, say, ahead, way_bytes)
        if tokens >= self.context:
            raise ContextBeyondCard(tokens, self.context)
        return chunk

    def _caching(self, say: Say) -> Caching:
        """How keys and values are kept; found out before the weights take the card, for it may be refused."""
        unsafe, aloud = self.config.kv_unsafe, partial(_aloud, say)
        tensors = self._checkpoint.tensors
        return decide(self.model, self.config.kv, tensors=tensors, unsafe=unsafe, say=say, warn=aloud)

    def _made_for(self) -> int:
        """Tokens that the model was made for."""
        text = self.model.config.get_text_config(decoder=True)
        return int(getattr(text, "max_position_embeddings", None) or 4096)


def _aloud(say: Say, sentence: str) -> None:
    """A decision that nobody should have to ask for."""
    say(sentence)
    log.warning(sentence)
