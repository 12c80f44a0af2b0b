"""What the API must know of a model to read a request; it stays true while the model is unloaded. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mmswap.config import SamplingConfig
from mmswap.errors import UserError
from mmswap.llm.text import Spelling
from mmswap.server.call_styles import Style, style_of

if TYPE_CHECKING:
    from mmswap.runtime import Runtime

_SAMPLED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_OURS = {"messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now"}
_OURS |= {"bos_token", "eos_token", "pad_token", "unk_token", "image_token", "video_token"}
NAME = "mmswap_probe"
_PROBE = {"type": "function", "function": {"name": NAME, "description": "", "parameters": {}}}
_ASKED: dict[str, Any] = {"role": "user", "content": "x"}
_CALL = {"id": "abcdefghi", "type": "function", "function": {"name": NAME, "arguments": {"kind": "x"}}}
_CALLED: list[dict[str, Any]] = [_ASKED, {"role": "assistant", "content": "", "tool_calls": [_CALL]}]


@dataclass(frozen=True, slots=True)
class Facts:
    """Of one model.

    Attributes:
        context: tokens of prompt and answer together.
        vocabulary: ids are below it.
        usual: how it samples where a request does not say: its `generation_config`.
        end_ids: tokens that end an answer.
        decode_limit: pixels of a picture.
        variables: what a request may tell its chat template.
        tools: whether its chat template shows tools. calls: in which form it calls them, if that is known.
        tokenizer: transformers' own. spelling: of its tokens. dangerous: whether a text spells a control token.
    """

    context: int
    vocabulary: int
    usual: SamplingConfig
    end_ids: frozenset[int]
    decode_limit: int
    variables: frozenset[str]
    tools: bool
    calls: Style | None
    tokenizer: Any = field(repr=False)
    spelling: Spelling = field(repr=False)
    dangerous: Any = field(repr=False)

    @classmethod
    def of(cls, runtime: Runtime) -> Facts:
        """What a loaded model says of itself."""
        shown, called = _shown(runtime, [_ASKED]), _shown(runtime, _CALLED)
        return cls(
            context=runtime.context,
            vocabulary=int(runtime.model.get_input_embeddings().weight.shape[0]),
            usual=_usual(runtime.model.generation_config),
            end_ids=frozenset(runtime.end_ids),
            decode_limit=runtime.config.image.decode_limit,
            variables=_variables(runtime.processor.template),
            tools=bool(shown),
            calls=style_of(_behind(shown, called), shown, runtime.processor.template) if shown else None,
            tokenizer=runtime.processor.tokenizer,
            spelling=Spelling(runtime.processor.tokenizer),
            dangerous=runtime.processor.dangerous,
        )


def _usual(generation: Any) -> SamplingConfig:
    """A checkpoint that does not ask for sampling is greedy."""
    if not getattr(generation, "do_sample", False):
        return SamplingConfig()
    given = {name: getattr(generation, name, None) for name in _SAMPLED}
    known = {name: value for name, value in given.items() if value is not None}
    return SamplingConfig(**{"temperature": 1.0, **known})


def _variables(template: str) -> frozenset[str]:
    """Names that the template asks for and that are neither ours nor transformers' to give."""
    from jinja2 import Environment, TemplateError, meta

    try:
        asked = meta.find_undeclared_variables(Environment(extensions=["jinja2.ext.loopcontrols"]).parse(template))
    except TemplateError:  # of a dialect of transformers' own
        return frozenset()
    return frozenset(asked) - _OURS


def _behind(shown: str, called: str) -> str:
    """What a call adds to a prompt."""
    differs = (at for at, (one, another) in enumerate(zip(shown, called)) if one != another)
    return called[next(differs, len(shown)) :]


def _shown(runtime: Runtime, messages: list[dict[str, Any]]) -> str:
    """What the chat template makes of a tool, and of a call of it; nothing where it refuses or does not look at it."""
    try:
        shown = runtime.processor.render(messages, tools=[_PROBE])
    except UserError:
        return ""
    return shown if NAME in shown else ""
