"""`mmswap bench`: what it measures and writes; never how fast."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import families
import pytest
import torch
from command_line import run

from mmswap.bench import COLUMNS, append, bench, check, copy_rate, spread
from mmswap.bench.traffic import weight_bytes
from mmswap.errors import OptionError
from mmswap.llm.decoding import Decoding
from mmswap.llm.fast import open_lean
from mmswap.llm.kv import KvCache
from mmswap.llm.kv.caching import Caching, decide

SHORT = ("--prompt", "24", "--prompt", "40", "--tokens", "2", "--runs", "2")


def test_the_carried_model_as_json_and_as_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "decode.csv"
    more = ("--batch", "2", "--quantize", "int4", "--csv", str(table), "--json")
    code, out, err = run(monkeypatch, capsys, "bench", *SHORT, *more)
    assert code == 0, err
    said = json.loads(out)
    what = [(row["what"], row["size"]) for row in said["rows"]]
    assert what == [("first token", 24), ("decode", 24), ("first token", 40), ("decode", 40), ("sequences", 2)]
    decode = said["rows"][1]
    assert float(decode["p20"]) <= float(decode["p50"]) <= float(decode["p80"])
    assert float(decode["share"]) == pytest.approx(float(decode["GB/s"]) * 1e9 / said["copy"], rel=0.02)
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["what"], int(row["size"])) for row in rows] == what
    assert {row["model"] for row in rows} == {"the carried model"}
    assert all(row["device"] and row["torch"] == torch.__version__ for row in rows)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--card", "sim:1GiB"], "A simulated card has no speed of its own"),
        (["--tokens", "0"], "--tokens, --runs, --prompt and --batch must be 1 or more."),
        (["--batch", "0"], "--tokens, --runs, --prompt and --batch must be 1 or more."),
        (["--csv", "."], ". cannot be written: "),
        (["--batch", "2", "--decode", "model"], "--batch needs a model that decodes part by part"),
        (["--prompt", "5000"], "do not fit into 2048: give fewer."),
    ],
)
def test_mistakes_get_one_sentence(
    arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(monkeypatch, capsys, "bench", *arguments)
    assert code == 2
    assert sentence in err


@pytest.mark.parametrize("kind", ["auto", "int8"])
def test_tokens_are_measured_in_the_cache_that_was_asked_for(kind: str) -> None:
    """`--kv` was taken and had no effect: tokens went into transformers' own cache."""
    model, kinds = families.shared("qwen2_vl"), []
    caching = decide(model, kind)

    class Noting(Caching):
        def open(self, tokens: int) -> KvCache | None:
            made = super().open(tokens)
            kinds.append(made.kind.name if made is not None else None)
            return made

    noting = Noting(caching.kind, caching.survey)
    decoding = Decoding(open_lean(model))
    report = bench(model, decoding, name="it", tokens=2, prompts=(5,), runs=1, batches=(2,), caching=noting)
    assert kinds == [caching.kind.name] * 2
    assert [figure.what for figure in report.figures] == ["first token", "decode", "sequences"]


def test_rows_are_added_and_other_tables_left_alone(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    append([{"model": "one"}], table)
    append([{"model": "two"}], table)
    assert table.read_text(encoding="utf-8").splitlines()[0] == ",".join(COLUMNS)
    assert len(table.read_text(encoding="utf-8").splitlines()) == 3
    table.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(OptionError, match="is a table with other columns"):
        append([{"model": "three"}], table)
    check(tmp_path / "new.csv")
    assert not (tmp_path / "new.csv").exists()
    assert table.read_text(encoding="utf-8") == "a,b\n1,2\n"


def test_the_middle_of_many_and_of_one() -> None:
    assert spread([3.0]).p20 == spread([3.0]).p80 == 3.0
    many = spread([float(n) for n in range(11)])
    assert (many.p20, many.p50, many.p80) == (2.0, 5.0, 8.0)
    rate = many.rate(10.0)
    assert (rate.p20, rate.p50, rate.p80) == (1.25, 2.0, 5.0)
    assert copy_rate(torch.device("cpu"), 1 << 20).p50 > 0


def test_a_token_reads_every_layer_and_of_a_mixture_its_share() -> None:
    from mmswap.llm.parts import find_parts

    model = families.shared("qwen2_vl")
    parts = find_parts(model)
    held = [parameter for _, layer in parts.layers for parameter in layer.parameters()]
    held += [*parts.norm.parameters(), *parts.head.parameters()]  # type: ignore[union-attr]
    assert weight_bytes(parts, model.config) == sum(4 * parameter.numel() for parameter in held)
    mixture = families.shared("qwen3_vl_moe")
    parts, text = find_parts(mixture), mixture.config.get_text_config()
    experts = sum(
        4 * parameter.numel()
        for _, layer in parts.layers
        for n, parameter in layer.named_parameters()
        if "experts" in n
    )
    whole = sum(4 * parameter.numel() for _, layer in parts.layers for parameter in layer.parameters())
    whole += sum(4 * parameter.numel() for part in (parts.norm, parts.head) for parameter in part.parameters())  # type: ignore[union-attr]
    idle = experts * (1 - text.num_experts_per_tok / text.num_experts)
    assert weight_bytes(parts, mixture.config) == pytest.approx(whole - idle, abs=8)
