"""A check can neither end the page nor hold it up."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from mmswap.doctor.check import Check, attempt, guarded, sentence


def raise_(error: BaseException) -> Check:
    raise error


@pytest.mark.parametrize("error", [KeyError("libamd_smi.so"), SystemExit(3), OSError("no such library\nsecond line")])
def test_a_check_that_raises_is_a_line_with_its_reason(error: BaseException) -> None:
    (check,) = guarded("smi", lambda: raise_(error), 5)
    assert (check.name, check.state) == ("smi", "unknown")
    assert check.reason == sentence(error)
    assert "second line" not in check.reason
    assert type(error).__name__ in check.reason


def test_a_check_that_hangs_is_a_line_with_its_limit() -> None:
    release = threading.Event()
    try:
        (check,) = guarded("driver", lambda: raise_(KeyError()) if release.wait(60) else Check("", "ok", ""), 0.05)
        assert (check.name, check.state) == ("driver", "unknown")
        assert "0.05 s" in check.reason
    finally:
        release.set()


def test_a_check_that_raises_half_way_through_several_lines_is_one_line() -> None:
    def several() -> Iterator[Check]:
        yield Check("first", "ok", "there")
        raise ValueError("the second is broken")

    assert [check.reason for check in guarded("several", several, 5)] == ["ValueError: the second is broken"]


def test_one_line_and_several_lines_are_both_lines() -> None:
    one = Check("a", "ok", "1")
    assert guarded("x", lambda: one, 5) == (one,)
    assert guarded("x", lambda: [one, one], 5) == (one, one)
    assert guarded("x", list, 5) == ()


def test_an_outcome_tells_a_value_from_an_error_and_from_silence() -> None:
    release = threading.Event()
    late = attempt(lambda: release.wait(60), 0.01)
    release.set()
    assert (late.value, late.error, late.late) == (None, None, True)
    assert attempt(lambda: 7, 5).value == 7
    assert isinstance(attempt(lambda: raise_(KeyError("x")), 5).error, KeyError)


def test_a_check_survives_json() -> None:
    check = Check("free", "note", "1 GiB", "the driver says so", "close the browser", {"bytes": 1 << 30})
    assert Check.of_json("free", check.to_json()) == check
    assert "facts" not in Check("os", "ok", "Linux").to_json()
    assert Check.of_json("os", Check("os", "ok", "Linux").to_json()) == Check("os", "ok", "Linux")


def test_a_sentence_is_never_empty_and_never_long() -> None:
    assert sentence(ValueError()) == "ValueError"
    assert len(sentence(ValueError("x" * 5000))) == 300
