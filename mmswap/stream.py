"""One answer under way: prompt in, pieces of text out, an `Answer` with every figure at the end.

A transaction around one prompt: however it ends, every weight is back and the card's ledger is as before. It has the
runtime to itself, or a `Place` beside others.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmswap.answer import Answer, ImageReport, image_reports
from mmswap.chat import Prompt
from mmswap.config import SamplingConfig
from mmswap.errors import DoesNotFit, WindowMisuse
from mmswap.llm.decode import Generation, Token, Wanted, generate
from mmswap.llm.kv.prefix import Kept
from mmswap.llm.pause import Pause, next_of
from mmswap.llm.sampling import Constraint
from mmswap.llm.stopping import Stopped
from mmswap.llm.writer import Writer
from mmswap.measured import EncodePeak
from mmswap.place import Place
from mmswap.reuse import Begun, Turn
from mmswap.swap.report import WindowReport
from mmswap.vision.beside import Others
from mmswap.vision.cache import tensor_bytes
from mmswap.vision.encoder import Encoded, Job, no_window
from mmswap.vision.processor import Prepared

if TYPE_CHECKING:
    from mmswap.runtime import Runtime

Say = Callable[[str], None]


class Stream(Iterator[str]):
    """An iterator over pieces of the answer's text; made by `Runtime.stream`. Work begins with the first piece.

    Attributes:
        tokens: the ones whose text has been handed out; with their logprobs, if those were asked for.
        moves: the same pieces, with a `Pause` wherever others may have their turn.
    """

    def __init__(
        self,
        runtime: Runtime,
        messages: list[dict[str, Any]] | Prompt,
        sampling: SamplingConfig,
        on_decision: Say | None,
        *,
        reuse: bool | Turn = False,
        should_stop: Callable[[], bool] | None = None,
        constraint: Constraint | None = None,
        template: Mapping[str, Any] | None = None,
        place: Place | None = None,
    ) -> None:
        self.tokens: list[Token] = []
        self._shared = place is not None
        self._place = place or Place(runtime.memory, runtime.memory.grow, shortage=runtime.reuse.give_up)
        self._generation: Generation | None = None
        self._encoding = False  # weights may be out from now on
        self._should_stop, self._constraint, self._template = should_stop, constraint, template or {}
        self._runtime = runtime
        self._sampling = sampling
        self._turn = reuse if isinstance(reuse, Turn) else Turn() if reuse else None
        self._left: Kept | None = None
        self._on_decision = on_decision
        self._decisions: list[str] = []
        self._answer: Answer | None = None
        self.moves = self._run(messages)

    @property
    def answer(self) -> Answer:
        """The whole answer with its figures.

        Raises:
            WindowMisuse: the stream has not ended yet.
        """
        if self._answer is None:
            raise WindowMisuse("The answer is there when the stream has ended: read all its pieces first.")
        return self._answer

    @property
    def wanted(self) -> Wanted | None:
        """At `Pause.STEP` the step that comes next, which may be taken for it."""
        return self._generation.wanted if self._generation is not None else None

    def __next__(self) -> str:
        return next_of(self.moves)

    def close(self) -> None:
        """Stop here: the work ends, everything that was evicted comes back."""
        self.moves.close()

    def _say(self, decision: str) -> None:
        self._decisions.append(decision)
        if self._on_decision is not None:
            self._on_decision(decision)

    def _run(self, messages: list[dict[str, Any]] | Prompt) -> Generator[str | Pause, None, None]:
        runtime = self._runtime
        with nullcontext() if self._shared else runtime.turn():
            prompt = messages if isinstance(messages, Prompt) else runtime.render(messages, **self._template)
            prepared = runtime.prepare(prompt)
            try:
                yield from self._respond(prompt, prepared)
            except torch.OutOfMemoryError as error:  # the process and the next prompt live on
                raise self._place.memory.exhausted() from error
            except Stopped:  # nobody wants it any more
                pass
            finally:
                self._place.memory.release()
                runtime.reuse.keep(self._left, self._turn.trace if self._turn is not None else None)
                self._left = self._generation = None
                self._settle()

    def _settle(self) -> None:
        """Every weight that went out for this prompt is back; those that others sent out are theirs to bring back."""
        if self._encoding:
            self._runtime.encoder.settle()
        self._encoding = False

    def _respond(self, prompt: Prompt, prepared: Prepared) -> Iterator[str | Pause]:
        runtime, place = self._runtime, self._place
        tokens = prepared.inputs["input_ids"].shape[1]
        self._tell_spills()
        self._breathe()
        inputs = runtime.on_card(prepared.inputs)
        begun, chunk = self._begin(prompt, prepared, inputs)
        job = runtime.encoder.begin(inputs, self._say) if prepared.images and begun.kept is None else None
        if begun.kept is None:
            chunk = self._with_room(lambda: runtime.reserve(inputs, job, self._say, place.memory))
        self._breathe()
        encoded = self._encode(prompt, job)
        self._breathe()
        features = tensor_bytes(encoded.features) if encoded is not None else 0
        chunk = self._with_room(lambda: place.memory.start(tokens, features, chunk, self._say))  # the budget may fall
        generation = self._generation = generate(
            runtime.model,
            inputs,
            sampling=self._sampling,
            end_ids=runtime.end_ids,
            prefill_chunk=chunk,
            context=runtime.context,
            replay=None if encoded is None else lambda: runtime.encoder.tower.replay(encoded.features),
            decoding=runtime.decoding,
            caching=runtime.caching,
            key=begun.key,
            kept=begun.kept,
            should_stop=self._should_stop,
            meanwhile=None if place.meanwhile is None else lambda: self._look(None),
            constraint=self._constraint,
        )
        writer = Writer(generation, runtime.processor.tokenizer, self._sampling.stop, place.grow, place.patient)
        self.tokens = writer.shown
        text: list[str] = []
        try:
            for piece in writer.moves:
                if self._shared:  # the prompt is read, and has waited for every weight: others' windows come and go
                    self._settle()
                if isinstance(piece, Pause):
                    yield piece
                    continue
                if not text:
                    self._say(f"Prefill: {writer.statistics.chunking.reason}.")
                text.append(piece)
                yield piece
        finally:
            writer.close()
            self._left = generation.kept
        self._conclude("".join(text), tokens, prepared, encoded, writer)

    def _begin(self, prompt: Prompt, prepared: Prepared, inputs: dict[str, Tensor]) -> tuple[Begun, int]:
        """What the turn before serves of this prompt, and the prefill step for the rest; nothing if that is long."""
        runtime, beside = self._runtime, self._place.beside()
        if self._turn is None:
            runtime.reuse.forget(beside)
            return Begun(), 0
        ids = prepared.inputs["input_ids"][0].tolist()
        placeholder = runtime.processor.placeholder(ids) if prepared.images else None
        begun = runtime.reuse.begin(prompt, prepared, placeholder, self._say, self._turn, beside)
        if begun.kept is None:
            return begun, 0
        words = {name: value for name, value in inputs.items() if not value.is_floating_point()}
        try:
            chunk = runtime.reserve(words, None, self._say, self._place.memory)
        except DoesNotFit:
            chunk = 0
        if len(ids) - begun.shared <= chunk:
            return begun, chunk
        self._say("The rest does not fit into one prefill step beside it, so the prompt is read whole.")
        return Begun(begun.key), 0

    def _encode(self, prompt: Prompt, job: Job | None) -> Encoded | None:
        if job is None and prompt.images:
            return None  # what it became is in the KV cache
        if job is None:
            self._say("There is no picture in this prompt, so no window is needed.")
            return None
        self._encoding = True
        others = Others(self._look, self._place.shortage, self._place.pictures)
        return self._runtime.encoder.encode(job, lambda: self._runtime.singles(prompt), self._say, others)

    def _look(self, spare: int | None) -> None:
        """Between two layers of the encoder, or of the prompt: it ends here, or others have their turn.

        Args:
            spare: bytes that nobody needs; None: as the card says. Below 0 nobody may do anything.
        """
        if self._should_stop is not None and self._should_stop():
            raise Stopped
        if self._place.meanwhile is not None and (spare is None or spare >= 0):
            self._place.meanwhile(spare)

    def _breathe(self) -> None:
        """Between two parts of what is done before the prompt is read."""
        if self._shared:
            self._look(None)

    def _with_room(self, act: Callable[[], int]) -> int:
        """What `act` gives, once there is room for it."""
        while True:
            try:
                return act()
            except DoesNotFit:
                if not self._place.shortage():
                    raise

    def _conclude(self, text: str, tokens: int, prepared: Prepared, encoded: Encoded | None, writer: Writer) -> None:
        runtime = self._runtime
        self._settle()
        window = encoded.report() if encoded is not None else no_window(_why(prepared))
        images = image_reports(prepared, encoded)
        self._tell_end(tokens, writer)
        self._look_back(window, images)
        self._answer = Answer(
            text=text,
            finish_reason=writer.finish_reason or "stop",
            prompt_tokens=tokens,
            completion_tokens=writer.tokens,
            images=images,
            window=window,
            prefill_tok_s=writer.statistics.prefill_rate or 0.0,
            decode_tok_s=writer.statistics.decode_rate or 0.0,
            card=runtime.card.spec,
            decisions=(*runtime.decisions, *self._decisions),
            reused_tokens=writer.statistics.reused_tokens,
            load=runtime.tally.load,
            spill=runtime.watch.count(),
        )

    def _tell_end(self, tokens: int, writer: Writer) -> None:
        """Says it if the card's memory, and nothing else, ended the answer."""
        runtime, end = self._runtime, f"The answer ends after {writer.tokens} tokens"
        if writer.full:
            self._say(f"{end}: the card has no room for a longer KV cache ({self._place.memory.refusal}).")
        elif writer.finish_reason == "length" and runtime.limited_by_card and tokens + writer.tokens >= runtime.context:
            self._say(
                f"{end}: the card has no room for a longer KV cache than the context of {runtime.context} tokens."
            )

    def _look_back(self, window: WindowReport, images: tuple[ImageReport, ...]) -> None:
        """Adds the prompt to the figures, and looks for a spill."""
        runtime = self._runtime
        if runtime.encoder.pool is None:  # a pool's windows count their own
            runtime.watch.note(window.spilled_bytes, "when a picture had been encoded")
        runtime.watch.poll("when an answer had been given")
        self._tell_spills()
        peak = None
        if any(image.peak_measured for image in images):  # both are the whole call's; guests of a window have none
            patches = sum(image.patches for image in images)
            peak = EncodePeak(patches, images[0].peak_predicted, images[0].peak_measured)
        runtime.tally.add(window, peak)

    def _tell_spills(self) -> None:
        for sentence in self._runtime.watch.news():
            self._say(sentence)


def _why(prepared: Prepared) -> str:
    if prepared.images:
        return "The pictures are in the KV cache from the turn before."
    return "There is no picture in this prompt."
