"""Headless Chromium over WebDriver, by plain HTTP: start it, look, type, press, drop a file. Knows no page of ours.

with Browser.start(tmp_path) as browser:  browser.open(url);  browser.find("#send").click();  browser.picture("chat")

`missing()` says why there is none. Screenshots go to the folder that MMSWAP_SCREENSHOTS names, or nowhere.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHROMIUM, DRIVER = ("chromium", "chromium-browser", "google-chrome"), "chromedriver"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key under which WebDriver names an element
KEYS = {"enter": "\ue007", "escape": "\ue00c", "tab": "\ue004", "shift": "\ue008"}
PATIENCE = 30.0
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")


def missing() -> str:
    """Why no browser can be started; empty if one can."""
    absent = [names[0] for names in (CHROMIUM, (DRIVER,)) if not any(map(shutil.which, names))]
    return f"needs {' and '.join(absent)} (Debian: apt-get install chromium chromium-driver)" if absent else ""


class WebDriverError(Exception):
    """What the driver refused."""


@dataclass(frozen=True)
class Element:
    browser: Browser
    id: str

    def click(self) -> None:
        self._do("click", {})

    def type(self, text: str) -> None:
        """Keys as a person presses them; in a file field, the path of a file."""
        self._do("value", {"text": text})

    def clear(self) -> None:
        self._do("clear", {})

    @property
    def text(self) -> str:
        return self.browser.run("return arguments[0].innerText", self)

    @property
    def shown(self) -> bool:
        return self.browser.run("return arguments[0].checkVisibility()", self)

    def _do(self, what: str, body: dict[str, Any]) -> None:
        self.browser.ask("POST", f"/element/{self.id}/{what}", body)


class Browser:
    """One window of a headless Chromium."""

    def __init__(self, address: str, options: dict[str, Any]) -> None:
        self._address = f"{address}/session"
        wanted = {"capabilities": {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}}
        self._address += "/" + self.ask("POST", "", wanted)["sessionId"]

    @classmethod
    @contextmanager
    def start(cls, folder: Path) -> Iterator[Browser]:
        """A browser whose profile lies in `folder`, and that nobody else has used."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        address = f"http://127.0.0.1:{port}"
        driver = subprocess.Popen([DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until(lambda: _answers(address), "chromedriver to answer")
            binary = next(path for path in map(shutil.which, CHROMIUM) if path)
            browser = cls(address, {"binary": binary, "args": [*FLAGS, f"--user-data-dir={folder}"]})
            try:
                yield browser
            finally:
                browser.ask("DELETE", "")
        finally:
            driver.terminate()
            driver.wait(10)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """One WebDriver command; `path` behind the session.

        Raises:
            WebDriverError: with what the driver said.
        """
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._address + path, data, {"content-type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise WebDriverError(json.load(error)["value"]["message"].splitlines()[0]) from None

    def open(self, url: str) -> None:
        self.ask("POST", "/url", {"url": url})

    def reload(self) -> None:
        self.ask("POST", "/refresh", {})

    def find(self, selector: str) -> Element:
        """The first that matches, as soon as there is one."""
        return until(lambda: next(iter(self.all(selector)), None), f"{selector} to be there")

    def all(self, selector: str) -> list[Element]:
        found = self.ask("POST", "/elements", {"using": "css selector", "value": selector})
        return [Element(self, one[ELEMENT]) for one in found]

    def press(self, *keys: str) -> None:
        """Keys held together, then let go, wherever the focus is."""
        spelled = [KEYS.get(key, key) for key in keys]
        downs = [{"type": "keyDown", "value": key} for key in spelled]
        ups = [{"type": "keyUp", "value": key} for key in reversed(spelled)]
        self.ask("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": downs + ups}]})

    def run(self, script: str, *arguments: Any) -> Any:
        given = [{ELEMENT: one.id} if isinstance(one, Element) else one for one in arguments]
        return self.ask("POST", "/execute/sync", {"script": script, "args": given})

    def command(self, name: str, **parameters: Any) -> Any:
        """A command of Chromium's own protocol."""
        return self.ask("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def drop(self, path: Path, x: int, y: int) -> None:
        """A file dragged in from outside and let go at a place of the window."""
        data = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.command("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def look(self, *, dark: bool = False, size: tuple[int, int] = (1280, 800), phone: bool = False) -> None:
        """How the window is: its theme and its size in CSS pixels."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])
        shape = {"width": size[0], "height": size[1], "deviceScaleFactor": 1.5 if phone else 1, "mobile": phone}
        self.command("Emulation.setDeviceMetricsOverride", **shape)

    def picture(self, name: str) -> None:
        """A screenshot, if somebody wants one."""
        if folder := os.environ.get("MMSWAP_SCREENSHOTS"):
            place = Path(folder)
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{name}.png").write_bytes(base64.b64decode(self.ask("GET", "/screenshot")))

    def complaints(self) -> list[str]:
        """What the console holds of errors since it was last asked: of scripts, of the policy, of files not found."""
        return [
            entry["message"] for entry in self.ask("POST", "/se/log", {"type": "browser"}) if entry["level"] == "SEVERE"
        ]


def until(look: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """What `look` gives as soon as it gives something."""
    end = time.monotonic() + patience
    while not (found := look()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {patience:.0f} s for {what}")
        time.sleep(0.05)
    return found


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/status", timeout=1) as response:
            return bool(json.load(response)["value"]["ready"])
    except OSError:
        return False
