"""Conversations on the chat page: asked, streamed, stopped, kept, listed; what goes wrong, as a sentence."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, until
from paging import PICTURES, STAR, Open, ask, ended
from PIL import Image
from scripted import Gate, Scripted
from serving import listening

from mmswap.errors import DoesNotFit
from mmswap.runtime import Runtime
from mmswap.server import ServerConfig, create_app


def test_a_dropped_picture_is_answered_and_a_reload_keeps_it(page: Browser, opened: Open, small: Runtime) -> None:
    wanted = small.chat("Describe the picture.", images=[STAR]).text
    assert wanted == "a yellow star and a white cross on a black background"
    opened(small)
    until(lambda: page.find("#state").text == "Ready", "the model")
    page.drop(STAR, 300, 300)
    assert page.find("#picked .preview img").shown
    page.picture("question")
    ask(page, "Describe the picture.")
    assert ended(page) == wanted
    assert page.find("#question").text == ""
    assert page.all("#picked li") == []

    def seen() -> list[Any]:
        inside = "return [...document.querySelectorAll('#turns > li')].map(one => one.innerText)"
        sizes = "return [...document.querySelectorAll('#turns img')].map(one => [one.naturalWidth, one.naturalHeight])"
        until(lambda: page.run(sizes) == [[128, 96]], "the picture")
        return [page.run(inside), page.run("return document.querySelector('.figures dl').textContent")]

    before = seen()
    assert "11 tokens · " in before[0][1]
    assert "128 × 96, 120 patches, 30 tokens, encoded" in before[1]
    page.picture("chat")
    page.reload()
    assert ended(page) == wanted
    assert seen() == before
    ask(page, "Where is the star?")  # the picture of the first turn goes along
    assert ended(page, 2) == "top left"
    page.find(".answer:last-child .figures summary").click()
    page.picture("figures")
    assert "70 tokens, 55 of them kept from the turn before" in page.find(".answer:last-child dl").text


def test_the_window_opens_in_the_picture_of_the_card(
    page: Browser, opened: Open, small: Runtime, tmp_path: Path
) -> None:
    with Image.open(STAR) as star:
        changed = star.convert("RGB")
    changed.putpixel((0, 0), (0, 0, 1))  # a picture that was not encoded before
    changed.save(tmp_path / STAR.name)
    opened(small)
    until(lambda: page.all("#plan.known"), "the card")
    before = page.find("#plan").text, page.run("return document.querySelector('#plan').getAttribute('aria-label')")
    assert before[1] == "Of 11.0 MiB: weights 10.2 MiB, free 825.9 KiB."
    assert page.find("#window").text == "No picture has needed a window yet."
    ask(page, "What can you do?")
    ended(page)
    page.run("""
        window.seen = [];
        const plan = document.querySelector("#plan");
        const look = () => seen.push(`${plan.classList.contains("open")} ${plan.getAttribute("aria-label")}`);
        new MutationObserver(look).observe(plan, {attributes: true});
    """)
    page.find("#files").type(str(tmp_path / STAR.name))
    ask(page, "What colour is the star?")
    assert ended(page, 2) == "yellow"
    until(lambda: any("true" in one and "lent to the encoder" in one for one in page.run("return seen")), "the window")
    until(
        lambda: page.run("return document.getAnimations().every(one => one.effect.getTiming().iterations > 1)"), "rest"
    )
    page.picture("window")  # docs/chat.png
    until(lambda: page.find("#window").text.startswith("Window "), "the report")
    until(lambda: not page.all("#plan.open"), "the window to close")
    report = page.find("#window").text
    assert ". Evicting 2 units lends 1.1 MiB because the encoder needs " in report
    assert "of it behind the prefill." in report
    assert "lent to" not in page.run("return document.querySelector('#plan').getAttribute('aria-label')")
    heights = page.run("""
        const blocks = [...document.querySelectorAll("#plan rect:not(.frame, .ghost)")];
        return blocks.map((one) => parseFloat(one.getAttribute("height")));
    """)
    assert sum(heights) == pytest.approx(398, abs=0.1)  # the whole card, whatever is in it


def test_pictures_are_pasted_picked_and_removed_and_other_files_are_refused(
    page: Browser, opened: Open, small: Runtime, tmp_path: Path
) -> None:
    opened(small)
    for name in ("red_circle.png", "seven.png"):
        page.find("#files").type(str(PICTURES / name))
    page.run("""
        const canvas = new OffscreenCanvas(40, 30);
        canvas.getContext("2d").fillRect(0, 0, 40, 30);
        return canvas.convertToBlob().then((blob) => {
          const data = new DataTransfer();
          data.items.add(new File([blob], "", {type: "image/png"}));
          const how = {clipboardData: data, bubbles: true, cancelable: true};
          document.querySelector("#question").dispatchEvent(new ClipboardEvent("paste", how));
        });
    """)
    names = "return [...document.querySelectorAll('#picked .remove')].map(one => one.getAttribute('aria-label'))"
    wanted = ["Remove red_circle.png", "Remove seven.png", "Remove pasted picture"]
    until(lambda: page.run(names) == wanted, "the pictures")
    page.all("#picked .remove")[0].click()
    assert page.run("return document.activeElement.getAttribute('aria-label')") == "Remove seven.png"
    (tmp_path / "notes.txt").write_text("no picture")
    page.drop(tmp_path / "notes.txt", 300, 300)
    until(lambda: page.find("#notice").text == "“notes.txt” is no picture.", "what is wrong with it")
    page.all("#picked .remove")[1].click()
    ask(page, "What digit is this?")
    assert ended(page) == "7"
    assert not page.find("#notice").shown
    page.find(".pictures .preview").click()
    assert page.find("#viewer").shown
    assert page.find("#viewed-name").text == "seven.png"
    page.press("escape")
    until(lambda: not page.find("#viewer").shown, "the picture to close")


def test_what_cannot_be_read_is_refused_and_what_was_picked_is_kept(
    page: Browser, opened: Open, small: Runtime, tmp_path: Path
) -> None:
    """A dropped folder, and a file that was deleted before it was sent, spoiled the chat and its store."""
    opened(small)
    (tmp_path / "folder").mkdir()
    page.drop(tmp_path / "folder", 300, 300)
    until(lambda: page.find("#notice").text == "“folder” cannot be read.", "what is wrong with it")
    assert page.all("#picked li") == []
    gone = tmp_path / "gone.png"
    gone.write_bytes(STAR.read_bytes())
    page.drop(gone, 300, 300)
    assert page.find("#picked .preview img").shown
    gone.unlink()
    ask(page, "Describe the picture.")
    assert ended(page) == "a yellow star and a white cross on a black background"
    assert not page.find("#notice").shown
    page.reload()
    until(lambda: page.run("return document.querySelector('#turns img')?.naturalWidth") == 128, "the picture")


def test_a_picture_goes_along_however_soon_its_question_is_sent(page: Browser, opened: Open, small: Runtime) -> None:
    opened(small)
    page.run("""
        const read = File.prototype.arrayBuffer;
        File.prototype.arrayBuffer = async function () {
          await new Promise((go) => setTimeout(go, 500));
          return read.call(this);
        };
    """)
    page.drop(STAR, 300, 300)
    ask(page, "Describe the picture.")
    page.press("enter")
    assert ended(page) == "a yellow star and a white cross on a black background"
    assert len(page.all(".question")) == 1


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stop_ends_the_work_and_keeps_what_was_written(page: Browser, opened: Open, small: Runtime, how: str) -> None:
    scripted = Scripted(small, pieces=("one ", "two ", "three"))
    gate = scripted.before = Gate(at=1)
    engine = opened(scripted)
    ask(page, "Count.")
    until(lambda: page.find(".answer .text").text.strip() == "one", "the first word")
    assert page.find("#stop").shown
    assert not page.find("#send").shown
    page.picture("answering")
    if how == "button":
        page.find("#stop").click()
    else:
        page.press("escape")
    assert ended(page) == "one"
    assert page.find(".answer .end").text == "Stopped."
    until(lambda: all(work.gone() for work in engine.running), "the server to hear of it")
    gate.open()
    until(lambda: scripted.closed == 1 and not engine.running, "the work to end")
    assert scripted.steps == 2  # the piece that was under way was the last
    page.find(".answer:last-child .only-last").click()  # again
    assert ended(page) == "one two three"
    assert page.run("return document.activeElement.id") == "question"


def test_errors_are_sentences_and_the_question_is_not_lost(
    page: Browser, opened: Open, small: Runtime, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(STAR.read_bytes()[:60])
    opened(small)
    page.drop(broken, 300, 300)
    ask(page, "What is this?")
    assert ended(page) == ""
    trouble = page.find(".answer .trouble").text
    assert trouble.startswith("Picture 1 ")
    assert trouble.endswith(".")
    assert [one["url"].rpartition("/")[2] for one in _failed(page)] == ["completions"]
    page.find(".question .only-last").click()  # edit
    until(lambda: page.run("return document.querySelector('#question').value") == "What is this?", "the question")
    assert page.all("#turns li") == []
    page.find("#picked .remove").click()
    ask(page, " What can you do?")
    assert "shapes" in ended(page)


def _failed(page: Browser) -> list[dict[str, Any]]:
    """Requests that were refused: Chromium complains of them itself."""
    return [{"url": one.split(" ")[0]} for one in page.complaints() if "Failed to load resource" in one]


def test_what_breaks_off_an_answer_is_said_below_it(page: Browser, opened: Open, small: Runtime) -> None:
    def fail(number: int) -> None:
        if number == 1:
            raise DoesNotFit("The picture", 3 << 30, 1 << 30, "send a smaller one")

    scripted = Scripted(small, pieces=("so far", "no further"), before=fail)
    engine = opened(scripted)
    ask(page, "Go on.")
    assert ended(page) == "so far"
    assert page.find(".answer .trouble").text == str(DoesNotFit("The picture", 3 << 30, 1 << 30, "send a smaller one"))
    gate = scripted.before = Gate(at=1)
    ask(page, "And on.")
    until(lambda: page.all(".answer.running .text p"), "the first piece")
    engine.stop()
    gate.open()
    ended(page, 2)
    assert page.all(".answer .trouble")[1].text == "The server is stopping."


def test_a_model_that_is_loading_is_waited_for(page: Browser, small: Runtime) -> None:
    gate = threading.Event()

    def load(progress: Any) -> Any:
        progress(1, 4)
        assert gate.wait(30)
        return Scripted(small)

    with listening(create_app(ServerConfig(name="seer"), load)) as port:
        page.open(f"http://127.0.0.1:{port}/")
        until(lambda: page.find("#state").text == "Loading, 25 %", "the progress")
        assert page.find("#card-name").text == "The model is not loaded yet."
        ask(page, "Already?")
        ended(page)
        assert page.find(".answer .trouble").text == "The model is loading (25%): try again in a moment."
        assert all("503" in one for one in page.complaints())
        gate.set()
        until(lambda: page.find("#state").text == "Ready", "the model")
        page.find(".answer .only-last").click()  # again
        until(lambda: page.find(".answer .text").text == "abc", "the answer")
        page.open("about:blank")


def test_a_server_that_is_gone_is_said_to_be(page: Browser, small: Runtime) -> None:
    with listening(create_app(ServerConfig(name="seer"), lambda progress: small)) as port:
        page.open(f"http://127.0.0.1:{port}/")
        until(lambda: page.find("#state").text == "Ready", "the model")
    until(lambda: page.find("#state").text == "Not connected", "the page to notice")
    ask(page, "Is anybody there?")
    ended(page)
    assert page.find(".answer .trouble").text == "The server does not answer. Is it still running?"
    assert all("ERR_CONNECTION" in one for one in page.complaints())
    page.open("about:blank")
    page.complaints()


def test_a_key_is_asked_for_and_opens_the_server(page: Browser, opened: Open, small: Runtime) -> None:
    opened(Scripted(small), api_keys=("secret",))
    until(lambda: page.find("#settings").shown, "the settings")
    assert page.find("#state").text == "A key is wanted"
    assert page.run("return document.activeElement.name") == "key"
    page.find("[name=key]").type("secret")
    page.find("#settings .first").click()
    until(lambda: page.find("#state").text == "Ready", "the server")
    assert all("401" in one for one in page.complaints())
    ask(page, "Hello?")
    assert ended(page) == "abc"


def test_settings_reach_the_server_and_survive_a_reload(page: Browser, opened: Open, small: Runtime) -> None:
    opened(small)
    page.find("#open-settings").click()
    page.find("[name=max_tokens]").type("3")
    page.find("[name=system]").type("Be terse.")
    page.picture("settings")
    page.find("#settings .first").click()
    page.reload()
    sent = """
        const real = window.fetch;
        window.fetch = (address, options) => {
          if (options.body) window.sent = JSON.parse(options.body);
          return real(address, options);
        };
    """
    page.run(sent)
    ask(page, "What can you do?")
    ended(page)
    assert page.find(".answer .end").text.startswith("The answer ends here because it reached the most tokens")
    assert page.find(".figures summary").text.startswith("3 tokens")
    body = page.run("return sent")
    assert body["messages"] == [
        {"role": "system", "content": "Be terse."},
        {"role": "user", "content": "What can you do?"},
    ]
    assert {key: value for key, value in body.items() if key != "messages"} == {
        "max_tokens": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
