"""From a checkpoint folder to an answer, for many families: what transformers itself would say, on every card."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from fingerprint import fingerprint
from PIL import Image
from transformers import AutoModelForImageTextToText
from whole_folders import make_whole

import mmswap
from mmswap.card import Reading
from mmswap.errors import ContextOverflow, DoesNotFit, UserError
from mmswap.runtime import Runtime
from mmswap.swap.dry_run import DryRun

NAMES = ("qwen2_5_vl", "qwen3_5", "gemma3", "idefics3", "llava_next", "internvl", "mistral3", "mllama", "minicpmv4_6")
QUESTION = "What colour is the circle?"
NEW = 6


def noise(width: int, height: int, seed: int) -> Image.Image:
    draw = random.Random(seed)
    return Image.frombytes("RGB", (width, height), draw.randbytes(3 * width * height))


PICTURES = (noise(61, 37, 1), noise(23, 90, 2))


def load(folder: Path, **options: Any) -> Runtime:
    """A runtime whose answers do not end by themselves."""
    runtime = mmswap.load(folder, **options)
    runtime.end_ids = frozenset()
    return runtime


def ask(runtime: Runtime, pictures: int, **options: Any) -> mmswap.Answer:
    return runtime.chat(QUESTION, PICTURES[:pictures], **{"max_new_tokens": NEW, **options})


def weights(runtime: Runtime) -> int:
    return sum(runtime.card.claims.values())  # type: ignore[attr-defined]


def text_need(runtime: Runtime, pictures: int) -> int:
    """Bytes without which the prompt is refused."""
    inputs = runtime.prepare(runtime.render(opened(runtime, pictures))).inputs
    job = runtime.encoder.begin(inputs, print)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime.memory, "_free", lambda: Reading(0, "nothing is left"))
        with pytest.raises(DoesNotFit) as caught:
            runtime.reserve(inputs, job, print)
    return caught.value.need


def opened(runtime: Runtime, pictures: int) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"type": "image", "image": picture} for picture in PICTURES[:pictures]]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": QUESTION}]}]


def reference(folder: Path, runtime: Runtime, pictures: int) -> str:
    """By transformers' own processor, a model that nothing has touched, and its own `generate()`."""
    hf = runtime.processor._hf
    hf.tokenizer.clean_up_tokenization_spaces = False
    prompt = runtime.render(opened(runtime, pictures)).text
    inputs = hf(text=prompt, images=[list(PICTURES[:pictures])], return_tensors="pt", add_special_tokens=False)
    model = AutoModelForImageTextToText.from_pretrained(folder).eval()
    with torch.no_grad():
        ids = model.generate(**inputs, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, eos_token_id=None)
    return str(hf.tokenizer.decode(ids[0][inputs["input_ids"].shape[1] :], skip_special_tokens=True))


@pytest.fixture
def one_dry_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """All runtimes of a test hold the same model: what is traced for one serves the others."""
    made: list[DryRun] = []

    def shared(model: Any, **options: Any) -> DryRun:
        made.extend([] if made else [DryRun(model, **options)])
        return made[0]

    monkeypatch.setattr("mmswap.runtime.DryRun", shared)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("one_dry_run")
def test_a_folder_answers_alike_on_every_card(name: str, tmp_path: Path) -> None:
    folder = make_whole(tmp_path / name, name)
    host, roomy = load(folder, card="cpu"), load(folder, card="sim:1GiB")
    expected, answer = ask(host, 2), ask(roomy, 2)
    assert expected.text == reference(folder, host, 2)
    assert (answer.text, answer.window.evicted, answer.window.spilled_bytes) == (expected.text, (), 0)
    assert roomy.encoder.pool is not None
    assert roomy.encoder.pool.mirrors.nbytes == 0

    room = max(answer.window.need // 2, text_need(roomy, 2) + (16 << 10))
    small = load(folder, card=f"sim:{weights(roomy) + room}")
    before = fingerprint(small.model)
    tight = ask(small, 2)
    after = {**fingerprint(small.model), "hooks": before["hooks"]}  # transformers adds some at the first call
    assert tight.text == expected.text
    assert tight.window.spilled_bytes == 0
    assert tight.window.restored_bytes == tight.window.evicted_bytes
    if room < answer.window.need:
        assert tight.window.opened or any("runs on the CPU" in decision for decision in tight.decisions)
    assert after == before


@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"attention": "eager"}, {"mmproj_swap_layers": 0}])
def test_an_option_changes_no_text_between_cards(options: dict[str, Any], tmp_path: Path) -> None:
    folder = make_whole(tmp_path / "qwen2_vl", "qwen2_vl", dtype=torch.float16, tied=True)
    host = load(folder, card="cpu", **options)
    for layers in (2, 0, -1):
        runtime = load(folder, card="sim:1GiB", **{"mmproj_swap_layers": layers, **options})
        answer = ask(runtime, 2)
        assert answer.text == ask(host, 2).text
        assert len(answer.window.evicted) == (max(0, layers) if "mmproj_swap_layers" not in options else 0)


def test_turns_pictures_and_the_contexts_end(tmp_path: Path) -> None:
    folder = make_whole(tmp_path / "idefics3", "idefics3")
    host, small = load(folder, card="cpu"), load(folder, card="sim:1GiB", mmproj_swap_layers=2)
    first = opened(host, 1)
    turns = [
        *first,
        {"role": "assistant", "content": "It is red."},
        *opened(host, 2)[:1],
        {"role": "user", "content": "?"},
    ]
    answers = [runtime.chat(turns, max_new_tokens=NEW) for runtime in (host, small)]
    assert answers[0].text == answers[1].text
    assert len(answers[0].images) == 3
    with pytest.raises(ContextOverflow):
        load(folder, card="sim:1GiB", context=64).chat(turns)


def test_a_folder_without_a_template_is_one_sentence(tmp_path: Path) -> None:
    folder = make_whole(tmp_path / "llava", "llava", template=False)
    with pytest.raises(UserError, match="template"):
        ask(load(folder, card="cpu"), 1)
