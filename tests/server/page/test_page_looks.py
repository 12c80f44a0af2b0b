"""The chat page as everybody gets it: offline, by keyboard, by screen reader, in both themes, on a phone."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, until
from fastapi import FastAPI
from paging import STAR, Open, ask, ended
from scripted import Scripted
from starlette.testclient import TestClient

import mmswap.server.page as shipped
from mmswap.runtime import Runtime

FOLDER = Path(shipped.__file__).parent
CONTRASTS = Path(__file__).with_name("contrasts.js")
SVG = "http://www.w3.org/2000/svg"


def test_the_page_asks_nobody_else_for_anything() -> None:
    """Not even where no policy of a browser would forbid it."""
    files = [path for path in FOLDER.iterdir() if path.suffix in (".html", ".js", ".css", ".svg")]
    assert {"index.html", "main.js", "style.css", "icon.svg"} <= {path.name for path in files}
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"https?://[\w.]\S*", text.replace(SVG, "")) == [], path.name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text), (
            path.name
        )
        assert len(text.splitlines()) < 330, path.name


def test_files_are_called_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Windows registry calls scripts plain text; browsers then refuse to run them."""
    monkeypatch.setattr("starlette.responses.guess_type", lambda *args, **kwargs: ("text/plain", None))
    app = FastAPI()
    shipped.mount_page(app)
    with TestClient(app) as client:
        kinds = {path: client.get(path).headers["content-type"] for path in ("/", "/main.js", "/card.css", "/icon.svg")}
        again = client.get("/main.js", headers={"if-none-match": client.get("/main.js").headers["etag"]})
        hidden = [client.get(path).status_code for path in ("/__init__.py", "/../app.py", "/%2e%2e/app.py", "/none.js")]
    assert list(kinds.values()) == [
        "text/html; charset=utf-8",
        "text/javascript; charset=utf-8",
        "text/css; charset=utf-8",
        "image/svg+xml",
    ]
    assert again.status_code == 304
    assert hidden == [404] * 4


def test_the_policy_forbids_scripts_and_styles_of_elsewhere(page: Browser, opened: Open, small: Runtime) -> None:
    opened(Scripted(small))
    with urllib.request.urlopen(page.run("return location.href")) as response:
        headers = response.headers
        html = response.read().decode()
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=", html)
    page.run(
        "const one = document.createElement('script'); one.textContent = 'window.stray = 1'; document.body.append(one)"
    )
    assert page.run("return window.stray") is None
    assert any("Content Security Policy" in one for one in page.complaints())  # which also shows that they are heard


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_can_be_read(page: Browser, opened: Open, small: Runtime, dark: bool) -> None:
    """4.5 to 1 is what WCAG 2.2 asks of text (AA)."""
    page.look(dark=dark)
    opened(Scripted(small, pieces=("# A\n", "some `code`\n\n> quoted\n\n", "| a | b |\n|---|---|\n| 1 | 2 |")))
    until(lambda: page.find("#state").text == "Ready", "the model")
    page.find("#files").type(str(STAR))
    ask(page, "Show me.")
    ended(page)
    until(lambda: page.run("return document.getAnimations().length === 0"), "everything to stand still")
    page.picture("theme-dark" if dark else "theme-light")
    poor = page.run(CONTRASTS.read_text(encoding="utf-8"))
    assert poor["looked"] > 15
    assert poor["poor"] == []


def test_every_control_has_a_name_and_the_keyboard_reaches_it(page: Browser, opened: Open, small: Runtime) -> None:
    opened(Scripted(small))
    page.find("#files").type(str(STAR))
    ask(page, "Show me.")
    ended(page)
    page.command("Accessibility.enable")
    nodes = page.command("Accessibility.getFullAXTree")["nodes"]
    kinds = {
        "button",
        "textbox",
        "link",
        "image",
        "dialog",
        "list",
        "form",
        "region",
        "complementary",
        "DisclosureTriangle",
    }
    named: dict[str, list[str]] = {}
    for node in nodes:
        if not node.get("ignored") and (kind := node["role"]["value"]) in kinds:
            named.setdefault(kind, []).append(node.get("name", {}).get("value", ""))
    for kind in ("button", "textbox", "link", "image", "form", "region", "complementary"):
        assert named[kind]
        assert all(named[kind]), (kind, named[kind])
    assert any(name.startswith("Of 11.0 MiB: weights") for name in named["image"])
    page.run("document.activeElement.blur(); document.querySelector('.skip').focus()")
    walked = []
    for _ in range(12):
        page.press("tab")
        walked.append(page.run("const one = document.activeElement; return one.id || one.innerText || one.className"))
        if walked[-1] == "add":
            break
    reached = ["new", "open-chats", "open-settings", "Edit", "Copy", "Again", "question", "add"]
    assert [one for one in walked if one in reached] == reached
    page.run("document.querySelector('.skip').focus()")
    page.press("enter")
    assert page.run("return document.activeElement.id") == "question"
    assert page.find("#said").text == "abc"  # the whole answer is said once


def test_it_fits_the_smallest_phone(page: Browser, opened: Open, small: Runtime) -> None:
    page.look(size=(320, 560), phone=True)
    opened(Scripted(small, pieces=("averyveryveryverylongword" * 9, "\n\n```\n" + "x" * 300 + "\n```")))
    page.find("#files").type(str(STAR))
    page.find("#question").type("A question that is longer than a narrow line of a small phone can be.")
    page.find("#send").click()
    ended(page)
    over = "const all = document.documentElement; return [all.scrollWidth - innerWidth, all.scrollHeight - innerHeight]"
    assert page.run(over) == [0, 0]
    assert not page.find("#plan").shown  # folded, with a strip beside its title
    assert page.find("#strip").shown
    page.picture("phone")
    page.find("#card summary").click()
    assert page.find("#plan").shown
    assert page.run(over) == [0, 0]
    page.picture("phone-card")
    small_targets = page.run("""
        return [...document.querySelectorAll("button, summary, textarea")].filter((one) => one.checkVisibility())
          .filter((one) => Math.min(one.offsetHeight, one.offsetWidth) < 24).map((one) => one.innerText);
    """)
    assert small_targets == []  # WCAG 2.2 target size
    page.find("#open-settings").click()
    edges = "const box = document.querySelector('#settings').getBoundingClientRect(); return [box.left, box.right]"
    left, right = page.run(edges)
    assert 0 <= left < right <= 320
    page.press("escape")


def test_scripts_from_the_right_run_from_the_right(page: Browser, opened: Open, small: Runtime) -> None:
    opened(Scripted(small, pieces=("שלום\n\n", "- אחת\n\n", "```\nx = 1\n```")))
    ask(page, "مرحبا")
    ended(page)
    ways = """
        const all = document.querySelectorAll(".question .text, .answer .text p, .answer .text ul, .answer .text pre");
        return [...all].map((one) => `${one.localName} ${getComputedStyle(one).direction}`);
    """
    assert page.run(ways) == ["p rtl", "p rtl", "ul rtl", "pre ltr"]


def test_a_window_too_short_to_be_looked_at_is_shown_all_the_same(page: Browser, opened: Open, small: Runtime) -> None:
    opened(Scripted(small))
    until(lambda: page.all("#plan.known"), "the card")
    card = {"name": "x", "total": 1000, "free": 100, "weights": 800, "evicted": 0, "kv": 50, "kv_kept": 0, "spilled": 0}
    last = {"reason": "Because.", "evicted_bytes": 300, "restore_ms": 2, "restore_hidden_ms": 1}
    seen: dict[str, Any] = {"state": "ready", "queue": {"running": 0, "waiting": 0}, "card": card}
    closed = seen | {"window": {"state": "closed", "count": 4, "last": last}}
    once_more = seen | {"window": {"state": "closed", "count": 5, "last": last}}
    script = """
        const events = arguments[0];
        return import("/card.js").then(({ CardPicture }) => {
          const root = document.querySelector("#card").cloneNode(true);
          root.querySelectorAll("svg").forEach((svg) => svg.replaceChildren());
          const card = new CardPicture(root);
          return events.map((seen) => {
            card.show(seen);
            return root.querySelector("#plan").getAttribute("aria-label");
          });
        });
    """
    shown = page.run(script, [closed, closed, once_more])
    still = "Of 1000 B: weights 800 B, KV cache 50 B, others and buffers 50 B, free 100 B."
    assert shown[:2] == [still, still]
    assert (
        shown[2]
        == "Of 1000 B: weights 500 B, lent to the encoder 300 B, KV cache 50 B, others and buffers 50 B, free 100 B."
    )
    during = seen | {
        "card": card | {"evicted": 300, "free": 400},
        "window": {"state": "open", "count": 4, "last": last},
    }
    assert page.run(script, [closed, during])[1] == shown[2]  # what is lent counts as free on the card
