"""Every error that mmswap raises on purpose.

    MmswapError
    ├── UserError               the user can mend it: one sentence, exit code 2 (HTTP 4xx)
    │   ├── OptionError         a flag, size or name that makes no sense
    │   ├── ImageError          a picture that cannot or may not be decoded
    │   ├── ModelError          a checkpoint that is damaged, missing or of the wrong kind
    │   │   └── PartsNotFound   a model whose tower, layers, embeddings or head were not found
    │   └── ContextOverflow     a prompt that does not fit into the context
    ├── DoesNotFit              not enough memory, with needed and free bytes
    ├── WindowMisuse            the context manager was used in a way it cannot serve
    ├── KernelError             a native kernel that could not be built, loaded or started
    └── NonFiniteLogits         the model computed NaN for this request

The message of a `UserError` is one sentence that says what to do; front ends print it without a traceback.
What others raise goes into such a sentence by `told(error)`: their words, not the names of their classes.
"""

from __future__ import annotations

import re

from mmswap.units import format_apart


class MmswapError(Exception):
    """Base of all errors below."""


class UserError(MmswapError):
    """A mistake that the user can mend; the message says how."""


class OptionError(UserError):
    """An option, size or name that makes no sense."""


class ImageError(UserError):
    """A picture that cannot or may not be decoded; the message names the picture."""


class ModelError(UserError):
    """A checkpoint that is damaged, missing, or of the wrong kind."""


class PartsNotFound(ModelError):
    """A part of the model (tower, decoder layers, embeddings, head) was not found by structure."""


class ContextOverflow(UserError):
    """The prompt is longer than the context.

    Attributes:
        prompt_tokens: tokens of the prompt, image tokens included.
        context: tokens that the context holds.
    """

    def __init__(self, prompt_tokens: int, context: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.context = context
        super().__init__(
            f"The prompt has {prompt_tokens} tokens and the context holds {context}: shorten it, "
            "use fewer or smaller images (--image-max-pixels), or raise --context."
        )


class DoesNotFit(MmswapError):
    """There is not enough memory, and nothing is left to give up.

    Attributes:
        need: bytes that were needed.
        free: bytes that could be had, everything evictable included.
        The message ends with `advice`: what would help in this case.
    """

    def __init__(self, what: str, need: int, free: int, advice: str) -> None:
        self.need = need
        self.free = free
        needed, had = format_apart(need, free)
        super().__init__(f"{what} needs {needed} and only {had} can be had: {advice}.")


class WindowMisuse(MmswapError):
    """The window was used in a way it cannot serve; the message says which."""


class KernelError(MmswapError):
    """A native kernel could not be built, loaded or started; the message ends with what to do."""


class NonFiniteLogits(MmswapError):
    """The model computed NaN (or only -inf) for this request; its KV cache is dropped."""


def told(error: BaseException) -> str:
    """What somebody else's error says, for the middle of a sentence: its first line, without the class's name.

    A first line that only announces the next one, as a config's validation does, gives way to it. An error without a
    text is told by its kind in plain words: `MemoryError() -> 'memory error'`.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    if isinstance(error, KeyError) and error.args:
        key = error.args[0]
        return str(key)[:200].rstrip(".:!") if " " in str(key) else f"{key!r:.160} is missing"
    if not lines:
        return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__).lower()
    if lines[0].endswith(":") and len(lines) > 1:
        lines = [re.sub(r"^\w*(Error|Exception): ", "", lines[1])]
    return lines[0].rstrip(".:!")[:200]
