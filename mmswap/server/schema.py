"""The bodies of `/v1/chat/completions` and `/v1/completions`, as pydantic models, and what is wrong with one as a
sentence.

wish = read(ChatRequest, {"messages": [...]})
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError

from mmswap.server.messages import Message, NamedTool, Pixels, Strict, Tool, Whole
from mmswap.server.refusal import Refusal

Amount = Annotated[float, Field(ge=0)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Words = Annotated[str, Field(min_length=1)]
Tokens = Annotated[Whole, Field(ge=1)]
Stops = Words | Annotated[list[Words], Field(max_length=16)]
MOST_CHOICES = 16


class StreamOptions(Strict):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class JsonSchema(Strict):
    """`strict` makes no difference: the answer always follows the schema."""

    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | bool, Field(alias="schema")]
    strict: bool | None = None


class PlainFormat(Strict):
    type: Literal["text", "json_object"]


class SchemaFormat(Strict):
    type: Literal["json_schema"]
    json_schema: JsonSchema


class Sampled(Strict):
    """What both kinds of requests have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Tokens | None = None
    n: Annotated[Whole, Field(ge=1, le=MOST_CHOICES)] | None = None
    temperature: Amount | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[Whole, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, lt=1)] | None = None
    seed: Annotated[Whole, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Stops | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    user: str | None = None


class ChatRequest(Sampled):
    """`POST /v1/chat/completions`. `user` and `safety_identifier` say whose request it is: the owners take turns."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
    response_format: Annotated[PlainFormat | SchemaFormat, Field(discriminator="type")] | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: Pixels | None = None
    safety_identifier: str | None = None
    store: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None
    modalities: Annotated[list[Literal["text"]], Field(min_length=1, max_length=1)] | None = None


class CompletionRequest(Sampled):
    """`POST /v1/completions`: texts that the model reads as they stand, control tokens and all."""

    prompt: Words | Annotated[list[Words], Field(min_length=1, max_length=64)]
    logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None
    suffix: None = None


Read = TypeVar("Read", bound=Strict)


def read(kind: type[Read], body: Mapping[str, Any]) -> Read:
    """The request in a JSON object.

    Raises:
        Refusal: 400, with the first field that is wrong.
    """
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        worst = max(
            faults, key=lambda fault: len(fault["loc"])
        )  # of the branches of a union, the one that got furthest
        raise _refusal(worst, kind, body) from None


def _refusal(fault: Any, kind: type[Strict], body: Mapping[str, Any]) -> Refusal:
    place = _place(fault["loc"], body)
    if fault["type"] == "extra_forbidden":
        known = ", ".join(sorted(kind.model_fields)) if len(fault["loc"]) == 1 else ""
        more = f": the fields are {known}" if known else ""
        return Refusal(400, f"There is no field {place}{more}.", param=place, code="unknown_parameter")
    if fault["type"] == "missing":
        return Refusal(400, f"The field {place} is missing.", param=place, code="missing_required_parameter")
    sentence = fault["msg"][:1].lower() + fault["msg"][1:].rstrip(".")
    return Refusal(400, f"The field {place or 'body'} is wrong: {sentence[:300]}.", param=place, code="invalid_value")


def _place(location: tuple[str | int, ...], body: Any) -> str:
    """`messages[0].content[1].text`; steps that are not in the body, such as the branches of unions, are left out."""
    place = ""
    for number, step in enumerate(location, 1):
        if isinstance(step, int):
            place += f"[{step}]"
            body = body[step] if isinstance(body, list) and step < len(body) else None
        elif isinstance(body, Mapping) and (step in body or number == len(location)):
            place += f".{step}" if place else step
            body = body.get(step)
    return place[:120]
