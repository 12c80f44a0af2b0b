"""Several answers of other families at a time, from the pictures of a folder's own processor to the text."""

from __future__ import annotations

from pathlib import Path

import pytest
from members import Asker, ask, circle, serve
from whole_folders import make_whole

import mmswap
from mmswap.several import Several


@pytest.mark.parametrize(
    ("family", "how"),
    [
        ("gemma3", "their tokens as one batch"),  # its picture's tokens look at each other
        ("qwen3_5", "their tokens as one batch"),  # layers whose caches are not ours
        ("mllama", "in turn, because the model keeps its own forward"),  # cross attention
    ],
)
def test_texts_are_those_of_each_alone(family: str, how: str, tmp_path: Path) -> None:
    runtime = mmswap.load(make_whole(tmp_path / family, family), card="sim:1GiB", dtype="float32")
    shown = [circle(colour, (90 + 8 * number, 80)) for number, colour in enumerate(("red", "blue", "green"))]
    members = [Asker(runtime, ask(f"What is number {n}?", picture), 5 + 3 * n) for n, picture in enumerate(shown)]
    if family != "mllama":  # its prompts without a picture take another way, which `test_batch.py` takes
        members.append(Asker(runtime, ask("And without a picture?"), 9))
    alone = [member.alone() for member in members]
    runtime.encoder.cache.clear()
    runtime.forget()
    several = Several(runtime, 3)
    assert how in several.how
    serve(several, members)
    assert [member.error for member in members] == [None] * len(members)
    assert [member.text for member in members] == alone
    runtime.forget()
    assert not any("KV" in label for label in runtime.card.claims)  # type: ignore[attr-defined]
