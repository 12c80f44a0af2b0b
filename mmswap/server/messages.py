"""The messages of a chat request, as pydantic models. What a model has no use for is refused, never ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class Strict(BaseModel):
    """No unknown fields, no guessing of types, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class TextPart(Strict):
    type: Literal["text"]
    text: str


def _whole(value: Any) -> Any:
    """JSON knows one kind of number: 3.0 is a whole one."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]


class Pixels(Strict):
    """Of a picture after resizing: as `--image-min-pixels` and `--image-max-pixels`, for one request."""

    min_pixels: Annotated[Whole, Field(ge=1)] | None = None
    max_pixels: Annotated[Whole, Field(ge=1)] | None = None


class ImageUrl(Pixels):
    """`url`: a data URI. `detail`: `low` looks at the picture in at most 512x512 pixels."""

    url: str
    detail: Literal["auto", "low", "high"] | None = None


class ImagePart(Pixels):
    """The limits that stand nearest to the picture count: in `image_url`, beside it, or in the request."""

    type: Literal["image_url"]
    image_url: ImageUrl | str


Texts = str | list[TextPart]
Parts = str | list[Annotated[TextPart | ImagePart, Field(discriminator="type")]]


class CalledFunction(Strict):
    """`arguments`: JSON as text."""

    name: str
    arguments: str


class ToolCall(Strict):
    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class SystemMessage(Strict):
    role: Literal["system", "developer"]
    content: Texts


class UserMessage(Strict):
    role: Literal["user"]
    content: Parts


class AssistantMessage(Strict):
    """What the `openai` package gives back of an answer can be sent again as it is."""

    role: Literal["assistant"]
    content: str | list[TextPart] | None = None
    tool_calls: list[ToolCall] | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")]


class ToolMessage(Strict):
    """`name`: of the tool; without it that of the call that `tool_call_id` names."""

    role: Literal["tool"]
    content: Texts
    tool_call_id: str | None = None
    name: Name | None = None


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class FunctionShape(Strict):
    """`strict` asks that arguments follow `parameters`."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    type: Literal["function"]
    function: FunctionShape


class NamedFunction(Strict):
    name: str


class NamedTool(Strict):
    type: Literal["function"]
    function: NamedFunction
