"""`mmswap chat` as a person types it: text streams out, numbers follow, mistakes are one sentence and exit code 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import run
from PIL import Image, ImageDraw

from mmswap.answer import Answer
from mmswap.cli import report
from mmswap.measured import Load
from mmswap.swap.report import WindowReport

HERE = Path(__file__).parent  # not the root: `-c` would put ./mmswap before the installed package

KEYS = {"text", "finish_reason", "usage", "images", "window", "prefill_tok_s", "decode_tok_s", "card"}
LOAD_KEYS = {"weights_predicted", "weights_measured", "free", "over", "context", "kv_bytes"}
SPILL_KEYS = {"count", "worst_bytes", "bytes", "cause", "how"}
IMAGE_KEYS = {"width", "height", "patches", "tokens", "encode_ms", "peak_predicted", "peak_measured"}
WINDOW_KEYS = {
    "opened",
    "reason",
    "need",
    "free",
    "deficit",
    "evicted",
    "evicted_bytes",
    "restored_bytes",
    "restore_ms",
    "restore_hidden_ms",
    "spilled_bytes",
}


@pytest.fixture
def picture(tmp_path: Path) -> str:
    image = Image.new("RGB", (300, 200), "white")
    ImageDraw.Draw(image).rectangle((100, 60, 180, 140), fill="blue")
    path = tmp_path / "Žluťoučký 图 picture.png"
    image.save(path)
    return str(path)


def test_json_holds_every_field_and_integers_for_bytes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], picture: str
) -> None:
    code, out, _ = run(
        monkeypatch, capsys, "chat", "--card", "sim:1GiB", "--mmproj-swap-layers", "2", "--image", picture, "--json",
        "--max-new-tokens", "4", "What is this?",
    )  # fmt: skip
    answer = json.loads(out)
    assert code == 0
    assert set(answer) == KEYS | {"load", "spill"}
    assert set(answer["load"]) == LOAD_KEYS
    assert set(answer["spill"]) == SPILL_KEYS
    assert set(answer["window"]) == WINDOW_KEYS
    assert set(answer["images"][0]) == IMAGE_KEYS
    assert (answer["images"][0]["width"], answer["images"][0]["height"]) == (300, 200)
    assert answer["card"] == "sim:1GiB"
    assert answer["window"]["opened"] is True
    assert len(answer["window"]["evicted"]) == 2
    for name in ("need", "free", "deficit", "evicted_bytes", "restored_bytes", "spilled_bytes"):
        assert type(answer["window"][name]) is int
    assert set(answer["usage"]) == {"prompt_tokens", "completion_tokens"}


def test_text_goes_to_stdout_and_numbers_to_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], picture: str
) -> None:
    words = ("chat", "--card", "sim:1GiB", "--image", picture, "--explain", "--max-new-tokens", "4", "What is this?")
    code, out, err = run(monkeypatch, capsys, *words)
    assert code == 0
    assert out.strip()
    assert "tok/s" not in out
    for figure in ("patches in", "peak", "prefill", "Nothing is evicted because", "Card:", "Context:", "Weights: "):
        assert figure in err


def test_weights_that_came_to_what_was_predicted_are_not_in_every_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(measured: int, **options: bool) -> str:
        load = Load(1_000_000, measured, 0, 0, 64, 0)
        report.line(
            Answer("", "stop", 1, 1, (), WindowReport(False, "", 0, 0, 0), 1.0, 1.0, "cpu", load=load), **options
        )
        return capsys.readouterr().err

    assert "weights" not in said(1_010_000, first=True)
    assert "weights 976.6 KiB predicted, 986.4 KiB measured" in said(1_010_100, first=True)
    assert "weights" in said(989_000, first=True)
    assert "weights" not in said(2_000_000)  # the later answers of a conversation


def test_two_runs_say_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], picture: str
) -> None:
    words = ("chat", "--temperature", "1", "--seed", "5", "--image", picture, "--max-new-tokens", "8", "What is this?")
    assert run(monkeypatch, capsys, *words)[1] == run(monkeypatch, capsys, *words)[1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--image", "nowhere.png", "hi"), "nowhere.png"),
        (("--card", "sim:16GB", "hi"), "16GiB"),
        (("--card", "potato", "hi"), "potato"),
        (("--card", "cuda:99", "hi"), "cuda:99"),
        (("--card", "rx7900xt", "hi"), "sim:20GiB@23.9GB/s"),
        (("--card", "RX 7900 XT", "hi"), 'mmswap plan takes (--card "RX 7900 XT")'),
        (("--model", "/no/such/folder", "hi"), "/no/such/folder"),
        (("--temperature", "-1", "hi"), "--temperature"),
        (("--top-p", "2", "hi"), "--top-p"),
        (("--mmproj-swap-layers", "-2", "hi"), "--mmproj-swap-layers"),
        (("--image-min-pixels", "100", "--image-max-pixels", "10", "hi"), "--image-max-pixels"),
        (("--context", "3", "hi"), "--context"),
        (("--dtype", "int3", "hi"), "--dtype"),
        (("--json",), "--json"),
        (("--image", "nowhere.png", ""), "The prompt is empty"),
        (("  ",), "The prompt is empty"),
        (("--card", "sim:1GiB+linux", "hi"), "sim:16GiB+wddm"),
        (("--vram-limit", "lots", "hi"), "--vram-limit"),
        (("--max-new-tokens", "0", "hi"), "--max-new-tokens"),
    ],
)
def test_mistakes_get_one_sentence_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    code, out, err = run(monkeypatch, capsys, "chat", *words)
    assert code == 2
    assert out == ""
    assert says in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1


def test_a_model_too_big_for_the_card_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(monkeypatch, capsys, "chat", "--card", "sim:1MiB", "hi")
    assert code == 1
    assert "1.0 MiB" in err


def test_an_unknown_flag_is_exit_code_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, capsys, "chat", "--no-such-flag")[0] == 2


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from mmswap import __version__

    assert run(monkeypatch, capsys, "--version") == (0, f"mmswap {__version__}\n", "")


def test_a_console_without_the_characters_does_not_end_the_program(picture: str) -> None:
    """F7: PYTHONIOENCODING=cp1252:strict and text that cp1252 lacks."""
    code = (
        "import sys; from mmswap.cli import main, report\n"
        "said = '\\U0001f60a \\u5e73\\u53f0 \\u2192 end\\n'\n"
        "sys.modules['mmswap.cli.chat']._answer_once = lambda *a, **k: report.write(said)\n"
        "sys.argv = ['mmswap', 'chat', 'hi']; main()"
    )
    env = {**os.environ, "PYTHONIOENCODING": "cp1252:strict"}
    done = subprocess.run([sys.executable, "-c", code], cwd=HERE, env=env, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"end" in done.stdout


def test_flags_of_memory_reach_the_runtime_and_clamps_are_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--card", "sim:64MiB+wddm@2GB/s", "--vram-limit", "12MiB", "--mmproj-swap-layers", "99", "hi")
    code, out, err = run(monkeypatch, capsys, "chat", "--explain", "--max-new-tokens", "2", *words)
    assert code == 0
    assert out.strip()
    assert "more than there are: 8 units are evicted" in err
    assert "all that the card" in err or "what the card has room for" in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device here")
def test_a_full_disk_is_one_sentence() -> None:
    words = ["-m", "mmswap", "chat", "--max-new-tokens", "2", "--json", "hi"]
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, *words], cwd=HERE, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
    assert done.stderr.decode().strip().splitlines()[-1] == (
        "mmswap: The output cannot be written: No space left on device."
    )
