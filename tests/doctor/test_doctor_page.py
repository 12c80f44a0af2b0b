"""The page: narrow, ASCII, one line a check, and one JSON object with the same."""

from __future__ import annotations

from mmswap.doctor.check import Check
from mmswap.doctor.page import WIDTH, Page, text_of

LONG = "a sentence that is rather long and goes on for quite some time, " * 4


def written(*checks: tuple[str, Check]) -> tuple[Page, list[str]]:
    page = Page("1.2.3")
    return page, [page.head(), *(line for section, check in checks for line in page.add(section, check)), *page.foot()]


def test_sections_are_headed_once_and_lines_stay_within_the_width() -> None:
    _, text = written(
        ("system", Check("os", "ok", "Linux")),
        ("system", Check("a name that is longer than its column", "note", LONG, LONG, LONG)),
        ("devices", Check("card", "broken", "none", "torch sees none", "install torch")),
    )
    assert text[0] == "mmswap 1.2.3 doctor"
    assert [line for line in text if line in ("system", "devices")] == ["system", "devices"]
    assert max(len(line) for line in text) <= WIDTH
    assert all(line == line.rstrip() for line in text)
    assert "\n".join(text).isascii()


def test_values_stand_below_one_another_and_reason_and_advice_below_the_value() -> None:
    short = list(text_of(Check("os", "ok", "Linux", "because", "do this")))
    column = short[0].index("Linux")
    assert short[1:] == [" " * column + "because", " " * column + "-> do this"]
    for state, mark in (("ok", "ok"), ("note", "note"), ("broken", "BROKEN"), ("unknown", "?")):
        (line,) = text_of(Check("x", state, "value"))  # type: ignore[arg-type]
        assert line.split() == [mark, "x", "value"]
        assert line.index("value") == column


def test_a_path_is_never_broken_though_it_is_too_long() -> None:
    path = "/opt/" + "x" * 150
    assert any(path in line for line in text_of(Check("HIP SDK", "ok", path)))


def test_what_is_broken_is_named_at_the_end() -> None:
    page, text = written(("a", Check("torch", "broken", "x")), ("b", Check("card", "broken", "y")))
    assert "Broken: torch, card." in text[-1]
    assert page.named("broken") == ["torch", "card"]
    assert "Nothing is broken." in written(("a", Check("torch", "note", "x")))[1][-1]


def test_json_holds_the_same_under_stable_names() -> None:
    page, _ = written(
        ("devices", Check("card", "ok", "cuda:0", facts={"spec": "cuda:0", "total": 16})),
        ("memory", Check("driver", "ok", "9 B", "it says so", facts={"source": True, "bytes": 9})),
        ("memory", Check("PDH", "unknown", "unknown", "no counters", facts={"source": True, "bytes": None})),
        ("memory", Check("free", "note", "9 B", facts={"bytes": 9})),
    )
    found = page.to_json()
    assert set(found) == {"mmswap", "broken", "notes", "card", "sources", "sections"}
    assert found["card"] == {"spec": "cuda:0", "total": 16, "free": 9}
    assert found["sources"] == {
        "driver": {"bytes": 9, "reason": "it says so"},
        "PDH": {"bytes": None, "reason": "no counters"},
    }
    assert found["notes"] == ["free"]
    assert found["sections"]["memory"]["driver"]["state"] == "ok"


def test_json_without_a_card_is_no_error() -> None:
    assert written(("system", Check("torch", "broken", "x")))[0].to_json()["card"] is None
