"""What the browser keeps of chats: over a reload, beside another tab, and what is said when it keeps nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser import Browser, until
from paging import STAR, Open, ask, ended
from scripted import Gate, Scripted

from mmswap.runtime import Runtime


def test_chats_are_listed_opened_and_deleted_with_their_pictures(page: Browser, opened: Open, small: Runtime) -> None:
    opened(Scripted(small))
    page.find("#files").type(str(STAR))
    ask(page, "The first chat.")
    ended(page)
    page.find("#new").click()
    assert page.all("#turns li") == []
    ask(page, "The second chat.")
    ended(page)
    page.find("#open-chats").click()
    until(lambda: len(page.all("#chat-list .title")) == 2, "the list")
    assert [one.text for one in page.all("#chat-list .title")] == ["The second chat.", "The first chat."]
    page.picture("chats")
    page.all("#chat-list .title")[1].click()
    until(lambda: page.all(".question .preview"), "the first chat")
    page.find("#open-chats").click()
    kept = """
        return new Promise((resolve) => {
          const asked = indexedDB.open("mmswap", 1);
          asked.onsuccess = () => {
            const store = asked.result.transaction("pictures").objectStore("pictures").count();
            store.onsuccess = () => resolve(store.result);
          };
        });
    """
    assert page.run(kept) == 1
    page.find("[aria-label='Delete The first chat.']").click()
    until(lambda: len(page.all("#chat-list .title")) == 1, "it to go")
    assert page.run(kept) == 0
    assert page.all("#turns li") == []
    page.press("escape")


def test_a_reload_in_the_middle_of_an_answer_keeps_what_there_is(page: Browser, opened: Open, small: Runtime) -> None:
    scripted = Scripted(small, pieces=("one ", "two"))
    gate = scripted.before = Gate(at=1)
    engine = opened(scripted)
    ask(page, "Count.")
    until(lambda: page.find(".answer .text").text.strip() == "one", "the first word")
    page.reload()
    assert ended(page) == "one"
    assert page.find(".answer .end").text.startswith("This answer is not whole:")
    until(lambda: all(work.gone() for work in engine.running), "the server to hear of it")
    gate.open()
    page.find(".answer .only-last").click()  # again
    until(lambda: page.find(".answer .text").text == "one two", "the whole answer")


def test_what_another_tab_adds_is_shown(page: Browser, opened: Open, small: Runtime) -> None:
    opened(Scripted(small))
    ask(page, "Here.")
    ended(page)
    page.run("""
        return import("/store.js?another").then(async ({ Store }) => {
          const store = new Store();
          const [chat] = await store.list();
          chat.turns.push({role: "user", text: "There.", pictures: []});
          chat.turns.push({role: "assistant", text: "seen", state: "done"});
          await store.keep(chat);
        });
    """)
    assert ended(page, 2) == "seen"
    ask(page, "And here.")
    assert ended(page, 3) == "abc"


REFUSES = {
    "opens nothing": "IDBFactory.prototype.open = () => { throw new Error('no'); };",
    "is full": "IDBObjectStore.prototype.put = () => { throw new DOMException('no', 'QuotaExceededError'); };",
}


@pytest.fixture
def refusing(page: Browser, request: pytest.FixtureRequest) -> Iterator[str]:
    made = page.command("Page.addScriptToEvaluateOnNewDocument", source=REFUSES[request.param])
    yield request.param
    page.command("Page.removeScriptToEvaluateOnNewDocument", identifier=made["identifier"])


@pytest.mark.parametrize("refusing", list(REFUSES), indirect=True)
def test_a_browser_that_keeps_nothing_is_said_to_and_chats_all_the_same(
    page: Browser, opened: Open, small: Runtime, refusing: str
) -> None:
    scripted = Scripted(small)
    opened(scripted)
    page.find("#files").type(str(STAR))
    ask(page, "One.")
    ended(page)
    assert page.find("#notice").text.endswith("what is new here will be gone when the page is closed.")
    ask(page, "Two.")
    assert ended(page, 2) == "abc"
    assert scripted.asked == ["One.", "Two."]
    page.find("#new").click()
    page.find("#open-chats").click()
    until(lambda: page.all("#chat-list .title"), "the list")
    page.find("#chat-list .title").click()
    assert ended(page, 2) == "abc"
    assert page.run("return document.querySelector('.question img').naturalWidth") == 128
