"""A request's body to one JSON object: its size, its kind and its form are checked in that order. Knows no fields."""

from __future__ import annotations

import json
from typing import Any

import anyio
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from mmswap.server.refusal import Refusal
from mmswap.units import format_bytes

PATIENCE = 60.0  # seconds in which a body must have come


async def read_object(request: Request, limit: int) -> dict[str, Any]:
    """The JSON object of a request of at most `limit` bytes.

    Raises:
        Refusal: 415 it is not called JSON, 413 it is too long, 408 it does not come, 400 it is no JSON object.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        shown = f"not {kind[:60]!r}" if kind else "which it lacks"
        raise Refusal(415, f"The request needs the header Content-Type: application/json, {shown}.")
    raw = await _read(request, limit)
    return await run_in_threadpool(parse, raw)


def parse(raw: bytes) -> dict[str, Any]:
    """Bytes as a JSON object; NaN and Infinity are none.

    Raises:
        Refusal: 400, with what is wrong.
    """
    try:
        value = json.loads(raw.decode("utf-8-sig"), parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise Refusal(400, "The body is not UTF-8.", code="invalid_json") from None
    except RecursionError:
        raise Refusal(400, "The body is nested too deeply.", code="invalid_json") from None
    except ValueError as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        where = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise Refusal(400, f"The body is not JSON: {reason[:100]}{where}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise Refusal(400, "The body must be a JSON object.", code="invalid_json")
    return value


async def _read(request: Request, limit: int) -> bytes:
    too_long = Refusal(
        413,
        f"The request is longer than {format_bytes(limit)}: send fewer or smaller pictures, or raise --max-body.",
        code="request_too_large",
        headers={"connection": "close"},
    )
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise too_long
    chunks, size = [], 0
    try:
        with anyio.fail_after(PATIENCE):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    raise too_long
                chunks.append(chunk)
    except TimeoutError:
        sentence = f"The request's body did not come within {PATIENCE:.0f} s."
        raise Refusal(408, sentence, headers={"connection": "close"}) from None
    except ClientDisconnect:
        raise Refusal(400, "The request's body was cut off.") from None
    return b"".join(chunks)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")
