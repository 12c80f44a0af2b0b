"""From a request that was read to the work that the engine does: messages, pictures, sampling. Knows no HTTP.

asked = ask_chat(request, facts, pictures);  work = asked.work(owner)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mmswap.chat import Prompt
from mmswap.config import PixelLimits, SamplingConfig
from mmswap.server.calls import Offer
from mmswap.server.facts import Facts
from mmswap.server.forms import check_calls, form_of
from mmswap.server.grammar import Grammars
from mmswap.server.messages import AssistantMessage, ImagePart, Pixels, TextPart, ToolMessage
from mmswap.server.pictures import Fetch, open_picture
from mmswap.server.refusal import Refusal
from mmswap.server.schema import ChatRequest, CompletionRequest, Sampled
from mmswap.server.work import Part, Work

if TYPE_CHECKING:
    from mmswap.llm.sampling import Constraint

SEEDS = 2**63


@dataclass(frozen=True, slots=True)
class Asked:
    """Everything that a request's work is made of; `Work` itself wants to be made in the event loop."""

    parts: tuple[Part, ...]
    nbytes: int = 0
    template: Mapping[str, Any] = field(default_factory=dict)
    constraint: Callable[[], Constraint] | None = None
    offer: Offer | None = None  # tools that may be called in the answers

    def work(self, owner: str) -> Work:
        return Work(owner, self.parts, self.nbytes, self.template, self.constraint)


@dataclass(frozen=True, slots=True)
class PictureLimits:
    """How many pictures a request may hold, and who fetches the ones that are addresses."""

    count: int
    fetch: Fetch | None = None


def ask_chat(request: ChatRequest, facts: Facts, limits: PictureLimits, grammars: Grammars) -> Asked:
    """The work of a chat request. Decodes its pictures, so not for the event loop.

    Raises:
        Refusal, UserError: the request cannot be served; the sentence says why.
    """
    _check_streaming(request)
    opener = _Opener(facts, limits, request.mm_processor_kwargs)
    check_calls(request, facts)
    messages = _named([_message(message, number, opener) for number, message in enumerate(request.messages)])
    if request.top_logprobs is not None and not request.logprobs:
        raise Refusal(400, "top_logprobs goes with logprobs: true.", param="top_logprobs", code="invalid_value")
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    given = [limit for limit in (request.max_tokens, request.max_completion_tokens) if limit is not None]
    sampling = _sampling(request, facts, min(given, default=None), logprobs)
    form = form_of(request, facts, grammars)
    sampling = replace(sampling, stop=(*sampling.stop, *form.stop))
    parts = tuple(Part(messages, _numbered(sampling, number)) for number in range(request.n or 1))
    return Asked(parts, opener.nbytes, {**_template(request, facts), **form.template}, form.constraint, form.offer)


def ask_completion(request: CompletionRequest, facts: Facts) -> Asked:
    """The work of a completion request.

    Raises:
        Refusal: the request cannot be served; the sentence says why.
    """
    _check_streaming(request)
    texts = [request.prompt] if isinstance(request.prompt, str) else request.prompt
    # 16 is the default that OpenAI documents for this endpoint
    sampling = _sampling(request, facts, request.max_tokens or 16, request.logprobs)
    prompts = [Prompt(text, (), {}) for text in texts]
    return Asked(tuple(Part(prompt, _numbered(sampling, n)) for prompt in prompts for n in range(request.n or 1)))


class _Opener:
    """Opens pictures in their order, and counts them. `usual`: limits of those that have none of their own."""

    def __init__(self, facts: Facts, limits: PictureLimits, usual: Pixels | None) -> None:
        self._facts, self._limits, self._usual = facts, limits, usual
        self._count = 0
        self.nbytes = 0

    def open(self, part: ImagePart) -> dict[str, Any]:
        self._count += 1
        if self._count > self._limits.count:
            sentence = f"The request has more than {self._limits.count} pictures (--max-images)."
            raise Refusal(400, sentence, param="messages", code="too_many_images")
        given = part.image_url
        url, detail = (given, None) if isinstance(given, str) else (given.url, given.detail)
        name = f"Picture {self._count}"
        limit = self._facts.decode_limit
        picture = open_picture(url, name=name, detail=detail, limit=limit, fetch=self._limits.fetch)
        self.nbytes += 3 * picture.width * picture.height
        return {"type": "image", "image": picture, **self._pixels(part)}

    def _pixels(self, part: ImagePart) -> dict[str, int]:
        """The limits that stand nearest to the picture."""
        found: dict[str, int] = {}
        for holder in (self._usual, part, part.image_url):
            for name in Pixels.model_fields if isinstance(holder, Pixels) else ():
                value = getattr(holder, name)
                found |= {name: value} if value is not None else {}
        PixelLimits(**found)
        return found


def _message(message: Any, number: int, opener: _Opener) -> dict[str, Any]:
    """As `open_messages` and the chat template take it."""
    role = "system" if message.role == "developer" else message.role
    content = message.content if message.content is not None else ""
    if not isinstance(content, str):
        content = [_part(part, opener) for part in content]
    opened: dict[str, Any] = {"role": role, "content": content}
    if isinstance(message, AssistantMessage) and message.tool_calls:
        opened["tool_calls"] = [_call(call, f"messages[{number}].tool_calls") for call in message.tool_calls]
    if isinstance(message, ToolMessage):
        opened |= {name: value for name in ("tool_call_id", "name") if (value := getattr(message, name)) is not None}
    return opened


def _named(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results of tools with the name of the tool, which some templates show.

    Raises:
        Refusal: a result says that it is another tool's.
    """
    known: dict[Any, str] = {}
    for number, message in enumerate(messages):
        known |= {call["id"]: call["function"]["name"] for call in message.get("tool_calls", ()) if "id" in call}
        called = known.get(message.get("tool_call_id"))
        if message["role"] == "tool" and called is not None and message.setdefault("name", called) != called:
            place = f"messages[{number}].name"
            sentence = f"{place} is {message['name']!r}, and its tool_call_id is of a call of {called!r}."
            raise Refusal(400, sentence, param=place, code="invalid_value")
    return messages


def _part(part: TextPart | ImagePart, opener: _Opener) -> dict[str, Any]:
    return {"type": "text", "text": part.text} if isinstance(part, TextPart) else opener.open(part)


def _call(call: Any, place: str) -> dict[str, Any]:
    """A tool call of an earlier turn; templates want its arguments as an object."""
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise Refusal(400, f"{place}: arguments must be a JSON object as text.", param=place, code="invalid_value")
    function = {"name": call.function.name, "arguments": arguments}
    return {"type": "function", "function": function, **({"id": call.id} if call.id else {})}


def _sampling(request: Sampled, facts: Facts, most: int | None, logprobs: int | None) -> SamplingConfig:
    """What a request leaves open is as the model's `generation_config` has it; its length, what the context holds."""
    given: dict[str, Any] = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": None if request.top_k is None else max(0, request.top_k),
        "min_p": request.min_p,
        "repetition_penalty": request.repetition_penalty,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "seed": None if request.seed is None else request.seed % SEEDS,
    }
    stop = request.stop if isinstance(request.stop, list) else [request.stop] if request.stop is not None else []
    return replace(
        facts.usual,
        **{name: value for name, value in given.items() if value is not None},
        max_new_tokens=min(most or facts.context, facts.context),
        stop=tuple(stop),
        logit_bias=_biases(request.logit_bias or {}, facts),
        logprobs=logprobs,
    )


def _biases(given: Mapping[str, float], facts: Facts) -> tuple[tuple[int, float], ...]:
    for token in given:
        if not (token.isascii() and token.isdigit()) or int(token[:20]) >= facts.vocabulary:
            sentence = f"logit_bias: {token[:20]!r} is no token of this model, whose tokens are 0 to "
            raise Refusal(400, f"{sentence}{facts.vocabulary - 1}.", param="logit_bias", code="invalid_value")
    return tuple((int(token), bias) for token, bias in given.items())


def _numbered(sampling: SamplingConfig, number: int) -> SamplingConfig:
    """Each of several answers has a seed of its own."""
    if sampling.seed is None or number == 0:
        return sampling
    return replace(sampling, seed=(sampling.seed + number) % SEEDS)


def _check_streaming(request: Sampled) -> None:
    if request.stream_options is not None and not request.stream:
        raise Refusal(400, "stream_options goes with stream: true.", param="stream_options", code="invalid_value")


def _template(request: ChatRequest, facts: Facts) -> dict[str, Any]:
    """Keywords for the chat template: numbers, switches and harmless texts that it really asks for."""
    given = request.chat_template_kwargs or {}
    for name, value in given.items():
        place = f"chat_template_kwargs.{name[:60]}"
        if name not in facts.variables:
            known = ", ".join(sorted(facts.variables)) or "nothing"
            sentence = f"{place}: this model's chat template asks for {known}."
            raise Refusal(400, sentence, param=place, code="unknown_parameter")
        if not isinstance(value, (bool, int, float, str)) or (isinstance(value, str) and facts.dangerous(value)):
            raise Refusal(
                400, f"{place} must be a number, a switch or a plain text.", param=place, code="invalid_value"
            )
    return dict(given)
