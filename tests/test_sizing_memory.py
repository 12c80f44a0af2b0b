"""What a plan remembers: the second one is the first one, in no time, and nothing that is not so is ever used."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import families
import pytest
from whole_folders import make_whole

import mmswap.profiles as profiles
from mmswap.blueprint import Blueprint
from mmswap.runtime import carried_model
from mmswap.sizing import Wish, room_of, size_up
from mmswap.sizing.facts import Facts
from mmswap.sizing.memory import Remembered, remembered
from mmswap.sizing.room import Room
from mmswap.sizing.traced import Traced, traced
from mmswap.swap.replay import ARENA

CARD = "RX 9060 XT 16GB"
WISHES = (Wish(1000, 700), Wish(640, 480, images=3), Wish(1400, 500, quantize="int4"), Wish(224, 224))


def no_model() -> Facts:
    raise AssertionError("a model was built for what is remembered")


def same_versions(name: str) -> None:
    """Figures may differ between versions of what computes them; the shipped ones say which."""
    for package, version in profiles.read(name)["versions"].items():
        if importlib.metadata.version(package).partition("+")[0] != version:
            pytest.skip(f"the shipped answers are those of {package} {version}")


def both_ways(place: Path, blueprint: Blueprint, room: Room, wish: Wish) -> None:
    """Traced, and from the file that was kept."""
    first = Remembered(blueprint.name, place, room.segments, lambda: traced(blueprint, room))
    said = size_up(first, room, wish)
    first.keep()
    assert said == size_up(blueprint, room, wish)
    assert said == size_up(Remembered(blueprint.name, place, room.segments, no_model), room, wish)


@pytest.mark.parametrize("name", profiles.names())
def test_a_remembered_plan_and_a_shipped_one_are_the_calculated_one(name: str, tmp_path: Path) -> None:
    wish = WISHES[profiles.names().index(name) % len(WISHES)]
    blueprint = Blueprint.of(name)
    both_ways(tmp_path / "plan.json", blueprint, room_of(CARD), wish)
    same_versions(name)
    for card, quantize in ((CARD, None), ("RX 7900 XT", "int4")):
        shipped = remembered(name, room_of(card))
        shipped._find = no_model
        wish = Wish(quantize=quantize)
        assert size_up(shipped, room_of(card), wish) == size_up(blueprint, room_of(card), wish)


@pytest.mark.parametrize("family", ["gemma3", "mllama", "qwen3_5", "llava_next"])
@pytest.mark.parametrize("size", [(96, 64, 1), (300, 200, 2)])
def test_so_is_one_for_a_simulated_card_where_kernels_are_tried(
    family: str, size: tuple[int, int, int], tmp_path: Path
) -> None:
    blueprint = Blueprint(family, families.shared(family).config)
    both_ways(tmp_path / "plan.json", blueprint, room_of("sim:2MiB"), Wish(*size, context=512))


def test_another_picture_is_asked_of_the_model(tmp_path: Path) -> None:
    blueprint, room = Blueprint.of(carried_model()), room_of(CARD)
    facts = Remembered(blueprint.name, tmp_path / "plan.json", True, lambda: traced(blueprint, room))
    size_up(facts, room, Wish(64, 64))
    facts.keep()
    again = Remembered(blueprint.name, tmp_path / "plan.json", True, lambda: traced(blueprint, room))
    assert size_up(again, room, Wish(96, 64, context=512)) == size_up(blueprint, room, Wish(96, 64, context=512))


def test_a_second_plan_imports_no_torch(own_cache: Path) -> None:
    code = (
        "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr)); "
        f"sys.argv[1:] = ['plan', {str(carried_model())!r}, '--card', '{CARD}', '--json']; "
        "from mmswap.cli import main; main()"
    )
    run = {"cwd": Path(__file__).parent, "capture_output": True, "text": True}  # the root would hide the package
    first, second = (subprocess.run([sys.executable, "-c", code], check=False, **run) for _ in range(2))
    assert (first.stderr.strip(), second.stderr.strip()) == ("True", "False")
    assert json.loads(first.stdout) == json.loads(second.stdout)


def test_a_file_of_another_hand_is_not_used(tmp_path: Path) -> None:
    blueprint, room, place = Blueprint.of(carried_model()), room_of(CARD), tmp_path / "plan.json"
    facts = Remembered(blueprint.name, place, True, lambda: traced(blueprint, room))
    said = size_up(facts, room, Wish(64, 64))
    facts.keep()
    stored = json.loads(place.read_text())
    question = next(key for key in stored["answers"] if key.startswith("patches"))
    stored["answers"][question] += 1
    for text in (json.dumps(stored), "{}", "[]", "no JSON", '{"answers": 3}'):
        place.write_text(text)
        facts = Remembered(blueprint.name, place, True, lambda: traced(blueprint, room))
        assert size_up(facts, room, Wish(64, 64)) == said


def test_what_a_failed_dry_run_says_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blueprint, room, place = Blueprint.of(carried_model()), room_of("sim:1GiB"), tmp_path / "plan.json"
    found = Traced(blueprint, ARENA, rules=False)
    monkeypatch.setattr(found._decoder.dry_run, "failed", True)
    facts = Remembered(blueprint.name, place, False, lambda: found)
    size_up(facts, room, Wish(64, 64))
    facts.keep()
    assert not place.exists()


def test_another_image_processor_another_card_and_another_dtype_are_asked_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_whole(tmp_path / "model", "qwen2_vl")

    def place(card: str = CARD, **more: Any) -> Path:
        return remembered(str(folder), room_of(card), **more)._place

    known = place()
    assert place() == place("RX 7900 XT") == known  # neither card is here: rules tell of both
    different = [place("sim:1GiB"), place(dtype="float16"), place(attention="eager")]
    settings = folder / "preprocessor_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"patch_size": 4}))
    different.append(place())
    assert len({known, *different}) == 5


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MMSWAP_CACHE", str(tmp_path / "file"))
    room = room_of(CARD)
    facts = remembered(str(carried_model()), room)
    assert size_up(facts, room, Wish(64, 64)).groups
    facts.keep()
    assert "Nothing is kept" in caplog.text
