"""One answer under way: prompt in, pieces of text out, an `Answer` with every figure at the end.

A transaction around one prompt: however it ends, every weight is back and the card's ledger is as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmswap.answer import Answer, ImageReport
from mmswap.chat import Prompt
from mmswap.config import SamplingConfig
from mmswap.errors import DoesNotFit, WindowMisuse
from mmswap.llm.decode import Token, generate
from mmswap.llm.kv.prefix import Kept
from mmswap.llm.sampling import Constraint
from mmswap.llm.writer import Writer
from mmswap.measured import EncodePeak
from mmswap.reuse import Begun
from mmswap.swap.report import WindowReport
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
    """

    def __init__(
        self,
        runtime: Runtime,
        messages: list[dict[str, Any]] | Prompt,
        sampling: SamplingConfig,
        on_decision: Say | None,
        *,
        reuse: bool = False,
        should_stop: Callable[[], bool] | None = None,
        constraint: Constraint | None = None,
        template: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokens: list[Token] = []
        self._should_stop, self._constraint, self._template = should_stop, constraint, template or {}
        self._runtime = runtime
        self._sampling, self._reuse = sampling, reuse
        self._left: Kept | None = None
        self._on_decision = on_decision
        self._decisions: list[str] = []
        self._answer: Answer | None = None
        self._pieces = self._run(messages)

    @property
    def answer(self) -> Answer:
        """The whole answer with its figures.

        Raises:
            WindowMisuse: the stream has not ended yet.
        """
        if self._answer is None:
            raise WindowMisuse("The answer is there when the stream has ended: read all its pieces first.")
        return self._answer

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """Stop here: the work ends, everything that was evicted comes back."""
        self._pieces.close()  # type: ignore[attr-defined]

    def _say(self, decision: str) -> None:
        self._decisions.append(decision)
        if self._on_decision is not None:
            self._on_decision(decision)

    def _run(self, messages: list[dict[str, Any]] | Prompt) -> Iterator[str]:
        runtime = self._runtime
        with runtime.turn():
            prompt = messages if isinstance(messages, Prompt) else runtime.render(messages, **self._template)
            prepared = runtime.prepare(prompt)
            try:
                yield from self._respond(prompt, prepared)
            except torch.OutOfMemoryError as error:  # the process and the next prompt live on
                raise runtime.memory.exhausted() from error
            finally:
                runtime.memory.release()
                runtime.reuse.keep(self._left)
                self._left = None
                runtime.encoder.settle()

    def _respond(self, prompt: Prompt, prepared: Prepared) -> Iterator[str]:
        runtime = self._runtime
        tokens = prepared.inputs["input_ids"].shape[1]
        self._tell_spills()
        inputs = runtime.on_card(prepared.inputs)
        begun, chunk = self._begin(prompt, prepared, inputs)
        job = runtime.encoder.begin(inputs, self._say) if prepared.images and begun.kept is None else None
        if begun.kept is None:
            chunk = runtime.reserve(inputs, job, self._say)
        encoded = self._encode(prompt, job)
        features = tensor_bytes(encoded.features) if encoded is not None else 0
        chunk = runtime.memory.start(tokens, features, chunk, self._say)  # the budget may have fallen meanwhile
        generation = generate(
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
            constraint=self._constraint,
        )
        writer = Writer(generation, runtime.processor.tokenizer, self._sampling.stop, runtime.memory.grow)
        self.tokens = writer.shown
        text: list[str] = []
        try:
            for piece in writer:
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
        runtime = self._runtime
        if not self._reuse:
            runtime.reuse.forget()
            return Begun(), 0
        ids = prepared.inputs["input_ids"][0].tolist()
        begun = runtime.reuse.begin(
            prompt, prepared, runtime.processor.placeholder(ids) if prepared.images else None, self._say
        )
        if begun.kept is None:
            return begun, 0
        words = {name: value for name, value in inputs.items() if not value.is_floating_point()}
        try:
            chunk = runtime.reserve(words, None, self._say)
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
        return self._runtime.encoder.encode(job, lambda: self._runtime.singles(prompt), self._say)

    def _conclude(self, text: str, tokens: int, prepared: Prepared, encoded: Encoded | None, writer: Writer) -> None:
        runtime = self._runtime
        runtime.encoder.settle()
        window = encoded.report() if encoded is not None else no_window(_why(prepared))
        images = _image_reports(prepared, encoded)
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
            self._say(f"{end}: the card has no room for a longer KV cache ({runtime.memory.refusal}).")
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
        if any(image.encode_ms for image in images):  # both peaks are the whole call's
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


def _image_reports(prepared: Prepared, encoded: Encoded | None) -> tuple[ImageReport, ...]:
    if encoded is None:  # none, or none that was encoded
        return tuple(ImageReport(one.width, one.height, one.patches, one.tokens, 0.0, 0, 0) for one in prepared.images)
    patches = sum(image.patches for image in prepared.images) or 1
    return tuple(
        ImageReport(
            width=image.width,
            height=image.height,
            patches=image.patches,
            tokens=image.tokens,
            encode_ms=encoded.encode_ms * image.patches / patches,
            peak_predicted=encoded.peak_predicted,
            peak_measured=encoded.report().peak_measured,
        )
        for image in prepared.images
    )
