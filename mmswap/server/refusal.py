"""An answer that is an error, in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}` with its status.

raise Refusal(400, "temperature must be 0 or more.", param="temperature");  refusal_of(error).body()
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from mmswap.errors import (
    ContextOverflow,
    DoesNotFit,
    ImageError,
    MmswapError,
    ModelError,
    NonFiniteLogits,
    UserError,
    told,
)

log = logging.getLogger(__name__)

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_DO_NOT_RETRY = {"x-should-retry": "false"}  # heeded by the `openai` package: the same request would fail again


class Refusal(Exception):
    """A request that is not answered, and why, in one sentence.

    Attributes:
        status: of HTTP. param: the field that is wrong. code: for programs. headers: that go with it.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The object that is sent."""
        usual = "invalid_request_error" if self.status < 500 else "server_error"
        kind = _TYPES.get(self.status, usual)
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def refusal_of(error: BaseException) -> Refusal:
    """What a caller is told of an error: mistakes of the request are 4xx, everything else 5xx."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, ContextOverflow):
        return Refusal(400, str(error), param="messages", code="context_length_exceeded")
    if isinstance(error, ImageError):
        return Refusal(400, str(error), param="messages", code="invalid_image")
    if isinstance(error, DoesNotFit):
        return Refusal(503, str(error), code="insufficient_memory", headers=_DO_NOT_RETRY)
    if isinstance(error, NonFiniteLogits):
        return Refusal(500, str(error), code="non_finite_logits", headers=_DO_NOT_RETRY)
    if isinstance(error, ModelError):
        return Refusal(500, str(error), code="model_error", headers=_DO_NOT_RETRY)
    if isinstance(error, UserError):
        return Refusal(400, str(error), code="invalid_value")
    if isinstance(error, MmswapError):
        return Refusal(500, str(error), code="internal_error")
    log.error("A request failed: %s", told(error)[:500], exc_info=error)
    return Refusal(500, f"The server failed on this request: {told(error)[:200]}.", code="internal_error")
