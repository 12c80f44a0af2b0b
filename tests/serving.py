"""What the server's tests share: pictures as data URIs, requests, events read back, an application that listens."""

from __future__ import annotations

import base64
import io
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn
from PIL import Image, ImageDraw

from mmswap.server.listening import bind

CHAT = "/v1/chat/completions"
NEVER_ENDS = {"2": -100, "0": -100}  # the carried model's end ids


def shape(colour: str = "red", kind: str = "ellipse", size: tuple[int, int] = (112, 112)) -> Image.Image:
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    width, height = size
    getattr(draw, kind)((width // 4, height // 4, 3 * width // 4, 3 * height // 4), fill=colour)
    return image


def uri(image: Image.Image) -> str:
    data = io.BytesIO()
    image.save(data, "PNG")
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


def picture(image: Image.Image, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": uri(image), **more}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def asks(content: str | Sequence[Any], **more: Any) -> dict[str, Any]:
    """The body of a chat request with one user's message."""
    return {"messages": [{"role": "user", "content": content}], "temperature": 0, **more}


def strictly(raw: str | bytes) -> Any:
    """JSON as a strict reader reads it."""

    def no(name: str) -> Any:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(raw, parse_constant=no)


def chunks_of(body: str) -> list[Any]:
    """The chunks of a stream that was read whole; `[DONE]` must be its last line, and its only one."""
    lines = [line.removeprefix("data: ") for line in body.split("\n") if line]
    assert all(line.startswith("data: ") for line in body.split("\n") if line)
    assert lines[-1] == "[DONE]"
    assert lines.count("[DONE]") == 1
    return [strictly(line) for line in lines[:-1]]


def joined(chunks: Sequence[Any], index: int = 0) -> str:
    """The text of one answer of a stream."""
    mine = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content") or "" for choice in mine)


def content_of(response: Any, index: int = 0) -> str:
    assert response.status_code == 200, response.text
    return str(strictly(response.text)["choices"][index]["message"]["content"])


def error_of(response: Any, status: int) -> dict[str, Any]:
    """The error of a response, whose shape is OpenAI's."""
    assert response.status_code == status, response.text
    error: dict[str, Any] = strictly(response.text)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"].endswith(".")
    return error


@contextmanager
def listening(app: Any) -> Iterator[int]:
    """An application on a real port of this machine, until the block ends."""
    listener = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        until(lambda: server.started)
        yield listener.getsockname()[1]
    finally:
        app.state.engine.stop()
        server.should_exit = True
        thread.join(10)


def until(holds: Any, seconds: float = 30.0) -> None:
    """Wait for something that happens elsewhere."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
