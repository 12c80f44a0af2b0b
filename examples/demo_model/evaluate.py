"""Exact answers of a checkpoint on held-out drawn pictures: `python examples/demo_model/evaluate.py [CHECKPOINT]`.

Prints a table by kind of question and by picture size and writes it as CSV. Uses plain transformers `generate`.
"""

import argparse
import csv
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from batches import resized_grid
from chat import Chat, Turn, question
from draw import draw
from questions import KINDS, capability, questions

ROOT = Path(__file__).parents[2]
SIZES = [
    (64, 64), (96, 96), (112, 112), (128, 80), (80, 128), (97, 211), (150, 90), (160, 120), (200, 200), (224, 224),
    (240, 320), (300, 200), (400, 200), (480, 360), (640, 480), (800, 600),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Item:
    size: str
    kind: str
    turn: Turn
    answer: str

    @property
    def text(self) -> str:
        return self.turn.messages[-1]["content"][-1]["text"]


def held_out(pictures: int, seed: int) -> list[Item]:
    """Every question to `pictures` new pictures; the training draws from other seeds."""
    items = []
    for index in range(pictures):
        rng = Random(f"held out {seed}/{index}")
        width, height = SIZES[index % len(SIZES)]
        scene = draw(rng, width, height)
        asked = [(one, scene.image) for one in questions(scene, rng)]
        if index % 5 == 0:
            asked.append((capability(rng), scene.image if rng.random() < 0.5 else None))
        items += [Item(f"{width}x{height}", one.kind, question(one.text, image), one.answer) for one, image in asked]
    return items


def run(chat: Chat, items: list[Item], batch: int = 128) -> list[str]:
    """Answers in the order of the items; pictures of one grid go together, so that little is padded."""

    def grid(index: int) -> tuple[int, int]:
        pictures = items[index].turn.pictures
        return resized_grid(*pictures[0].size) if pictures else (0, 0)

    order = sorted(range(len(items)), key=lambda i: (len(items[i].answer) > 12, grid(i), len(items[i].text)))
    answers = [""] * len(items)
    for start in range(0, len(order), batch):
        part = order[start : start + batch]
        for index, answer in zip(part, chat.answer([items[i].turn for i in part]), strict=True):
            answers[index] = answer
    return answers


def table(items: list[Item], answers: list[str]) -> list[tuple[str, str, int, float]]:
    """Rows (by, name, questions, exact %)."""
    asked, right = Counter(), Counter()
    for item, answer in zip(items, answers, strict=True):
        for key in (("kind", item.kind), ("size", item.size), ("all", "all")):
            asked[key] += 1
            right[key] += answer == item.answer
    keys = [("kind", k) for k in KINDS] + [("size", f"{w}x{h}") for w, h in SIZES] + [("all", "all")]
    return [(*key, asked[key], round(100 * right[key] / asked[key], 2)) for key in keys if asked[key]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", nargs="?", type=Path, default=ROOT / "mmswap" / "carried" / "seer")
    parser.add_argument("--pictures", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--csv", type=Path, default=Path(__file__).parent / "results.csv")
    parser.add_argument("--wrong", type=int, default=20, help="show this many wrong answers")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    items = held_out(arguments.pictures, arguments.seed)
    answers = run(Chat(arguments.checkpoint), items)
    rows = table(items, answers)
    with arguments.csv.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("by", "name", "questions", "exact %"), *rows])
    print("| by | name | questions | exact % |\n|---|---|---|---|")
    print("\n".join(f"| {by} | {name} | {count} | {exact} |" for by, name, count, exact in rows))
    wrong = [(i, a) for i, a in zip(items, answers, strict=True) if a != i.answer]
    for item, answer in wrong[: arguments.wrong]:
        print(f"{item.size} {item.kind}: {item.text!r} -> {answer!r}, not {item.answer!r}")


if __name__ == "__main__":
    main()
