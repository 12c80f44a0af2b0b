"""What an answer must look like, by a request's `response_format`, `tools` and `tool_choice`.

form = form_of(request, facts, grammars)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mmswap.server.calls import Offer
from mmswap.server.facts import Facts
from mmswap.server.grammar import Grammars, Make
from mmswap.server.messages import AssistantMessage, NamedTool, Tool
from mmswap.server.refusal import Refusal
from mmswap.server.schema import ChatRequest, SchemaFormat


@dataclass(frozen=True, slots=True)
class Form:
    """`template`: keywords for the chat template. `stop`: texts that end the answer. `offer`: what it may call."""

    template: Mapping[str, Any] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    constraint: Make | None = None
    offer: Offer | None = None


def form_of(request: ChatRequest, facts: Facts, grammars: Grammars) -> Form:
    """The form that a request asks for.

    Raises:
        Refusal: this model cannot be held to it.
    """
    format = request.response_format
    constraint: Make | None = None
    if isinstance(format, SchemaFormat):
        constraint = grammars.schema(format.json_schema.schema_, "response_format.json_schema.schema")
    elif format is not None and format.type == "json_object":
        constraint = grammars.schema({"type": "object"}, "response_format")
    choice = request.tool_choice
    if not request.tools:
        if choice not in (None, "none", "auto"):
            raise _refused("tool_choice goes with tools.", "tool_choice")
        return Form(constraint=constraint)
    if choice == "none":
        return Form(constraint=constraint)
    if constraint is not None:
        raise _refused("response_format and tools do not go together, unless tool_choice is none.", "response_format")
    return _with_tools(request, request.tools, facts, grammars)


def check_calls(request: ChatRequest, facts: Facts) -> None:
    """Calls of earlier turns are shown to the model, or the request is refused."""
    for number, message in enumerate(request.messages):
        if not isinstance(message, AssistantMessage) or not message.tool_calls:
            continue
        place = f"messages[{number}].tool_calls"
        if not facts.tools:
            raise _refused(f"{place}: this model's chat template knows no tools.", place)
        for call in message.tool_calls:
            _check_text(f"{call.function.name} {call.function.arguments}", facts, place)


def _with_tools(request: ChatRequest, tools: list[Tool], facts: Facts, grammars: Grammars) -> Form:
    if not facts.tools:
        raise _refused("This model's chat template knows no tools.", "tools")
    if facts.calls is None:
        raise _refused("This model writes tool calls in a form that this server does not read.", "tools")
    for tool in tools:
        _check_text(tool.model_dump_json(), facts, "tools")
    by_name = {tool.function.name: tool.function.parameters for tool in tools}
    offer = Offer(facts.calls, by_name)
    template = {"tools": [tool.model_dump(exclude_none=True) for tool in tools]}
    choice = request.tool_choice
    if isinstance(choice, NamedTool):
        name = choice.function.name
        if name not in by_name:
            raise _refused(f"tool_choice: there is no tool {name[:80]!r}.", "tool_choice")
        return Form(template, (), grammars.call(facts.calls, {name: by_name[name]}, "tools"), offer)
    if choice == "required":
        return Form(template, (), grammars.call(facts.calls, by_name, "tools"), offer)
    if any(tool.function.strict for tool in tools):
        raise _refused("strict tools need tool_choice required, or a tool's name.", "tools")
    if request.parallel_tool_calls is not False:
        return Form(template, offer=offer)
    if not facts.calls.apart:
        sentence = (
            "parallel_tool_calls: false needs tool_choice required, or a tool's name: this model's calls have no end"
        )
        raise _refused(f"{sentence} of their own.", "parallel_tool_calls")
    return Form(template, (facts.calls.close,), offer=offer)


def _check_text(text: str, facts: Facts, place: str) -> None:
    """A template puts these texts into its own syntax, where they cannot be taken literally."""
    if facts.dangerous(text):
        raise _refused(f"{place}: a text spells a control token of this model.", place)


def _refused(sentence: str, place: str) -> Refusal:
    return Refusal(400, sentence, param=place, code="unsupported")
