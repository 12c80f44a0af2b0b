"""What can be asked about a drawn picture, in many wordings, and the one right answer to each.

`questions(scene, rng)` gives the questions of every kind that are well defined for the scene.
"""

from dataclasses import dataclass
from random import Random

from draw import Scene

NUMBERS = ["zero", "one", "two", "three", "four", "five"]
PLURALS = {"circle": "circles", "square": "squares", "triangle": "triangles", "star": "stars", "cross": "crosses"}
CAPABILITY = (
    "I look at drawn pictures: I name shapes, colours and places, count, read digits and short words, and describe."
)

# fmt: off
WORDINGS: dict[str, list[str]] = {
    "shape": [
        "What shape is this?", "What shape is it?", "Which shape is in the picture?", "What shape do you see?",
        "Name the shape.", "What shape is shown?", "What is the shape?", "Which shape is this?",
        "What kind of shape is this?", "What shape is there?", "What shape are they?", "What shape is in the image?",
        "What shape is drawn?",
    ],
    "shape_of": [
        "What shape is the {colour} one?", "What shape is {colour}?", "Which shape is {colour}?",
        "What shape is the {colour} object?", "What is the {colour} shape?", "What shape is the {colour} thing?",
        "What shape are the {colour} ones?",
    ],
    "colour": [
        "What colour is it?", "What colour is this?", "What colour is the {noun}?", "Which colour is the {noun}?",
        "Name the colour.", "What is the colour of the {noun}?", "Tell me the colour of the {noun}.",
        "What colour is the {noun} in the picture?", "What colour does the {noun} have?",
    ],
    "colours": [
        "What colour are they?", "What colour are the {nouns}?", "Which colour are the {nouns}?",
        "What is the colour of the {nouns}?", "What colour is it?", "Which colour do the {nouns} have?",
        "What colour are these {nouns}?",
    ],
    "colour_of": [
        "What colour is the {shape}?", "Which colour is the {shape}?", "What is the colour of the {shape}?",
        "Tell me the colour of the {shape}.", "What colour does the {shape} have?",
    ],
    "colours_of": [
        "What colour are the {shapes}?", "Which colour are the {shapes}?", "What is the colour of the {shapes}?",
    ],
    "count": [
        "How many {nouns} are there?", "How many {nouns} do you see?", "Count the {nouns}.",
        "How many {nouns} are in the picture?", "How many {nouns}?", "What is the number of {nouns}?",
        "How many {nouns} can you see?", "How many {nouns} are shown?", "How many {nouns} are in the image?",
    ],
    "where": [
        "Where is it?", "Where is the {noun}?", "Where in the picture is the {noun}?",
        "Where is the {noun} in the picture?", "Where do you see the {noun}?", "Where is the {noun} located?",
        "In which part of the picture is the {noun}?", "Where can you see the {noun}?",
    ],
    "digit": [
        "What digit is this?", "Which digit is written?", "Read the digit.", "What digit is written?",
        "What number is this?", "Which digit is this?", "What is the digit?", "Which number is written?",
        "What digit do you see?", "What number do you see?", "What digit is shown?", "Which digit is it?",
        "What digit is in the picture?", "Which digit is shown?", "What number is in the picture?",
        "What number is shown?",
    ],
    "word": [
        "What word is this?", "Which word is written?", "Read the word.", "What word is written?",
        "Which word is this?", "What is the word?", "What word do you see?", "What does it say?",
        "What does the text say?", "Which word is it?", "What word is in the picture?", "Read the text.",
        "What word is written here?", "What is written?",
    ],
    "background": [
        "What colour is the background?", "Which colour is the background?", "What is the background colour?",
        "What is the colour of the background?", "Tell me the colour of the background.", "Background colour?",
    ],
    "describe": [
        "Describe the picture.", "Describe this image.", "What is in the picture?", "Describe the image.",
        "What do you see?", "What is this?", "Describe this picture.", "What is in the image?",
        "What does the picture show?", "Describe what you see.", "What is shown in the picture?",
        "What's in the picture?", "Please describe the picture.", "Can you describe the picture?",
        "What do you see in the picture?", "Tell me what you see.",
    ],
    "capability": [
        "What can you do?", "What can you do for me?", "What are you able to do?", "Who are you?", "What are you?",
        "What can I ask you?", "Help", "How can you help me?", "What can I ask?", "What do you do?",
        "Tell me what you can do.", "What are your abilities?", "What kinds of questions can you answer?",
        "What questions can you answer?", "Hello", "Hi", "Hello!", "Hi there!", "Hello, who are you?", "Hey",
        "What can you tell me about pictures?", "What can you answer?", "Which questions do you understand?",
        "What do you understand?", "Can you help me?", "How do you work?",
    ],
}
# fmt: on
KINDS = [
    "shape",
    "colour",
    "count",
    "where",
    "digit",
    "word",
    "background",
    "describe",
    "shape_of",
    "colour_of",
    "count_of",
    "where_of",
    "capability",
]


@dataclass(frozen=True, slots=True)
class Question:
    kind: str
    text: str
    answer: str


def questions(scene: Scene, rng: Random) -> list[Question]:
    """Questions of every kind that the scene answers clearly, in random wording."""
    asked = _about_writing(scene, rng) if scene.writing else _about_things(scene, rng)
    asked.append(_ask(rng, "background", scene.background))
    asked.append(_ask(rng, "describe", description(scene)))
    return asked


def capability(rng: Random) -> Question:
    return _ask(rng, "capability", CAPABILITY)


def description(scene: Scene) -> str:
    """One sentence that says all that is drawn; groups come in the order of SHAPES."""
    ground = f"on {_a(scene.background)} background"
    if scene.writing:
        return f"the {scene.layout} {scene.writing.text} in {scene.writing.colour} {ground}"
    parts = [_a(f"{c} {s}") if n == 1 else f"{NUMBERS[n]} {c} {PLURALS[s]}" for s, c, n in scene.groups()]
    return f"{' and '.join(parts)} {ground}"


def _about_writing(scene: Scene, rng: Random) -> list[Question]:
    assert scene.writing is not None
    noun = rng.choice([scene.layout, scene.layout, "text", "writing"])
    return [
        _ask(rng, scene.layout, scene.writing.text),
        _ask(rng, "colour", scene.writing.colour, noun=noun),
    ]


def _about_things(scene: Scene, rng: Random) -> list[Question]:
    groups = scene.groups()
    return _about_one_group(scene, rng, *groups[0]) if len(groups) == 1 else _about_groups(scene, rng, groups)


def _about_one_group(scene: Scene, rng: Random, shape: str, colour: str, total: int) -> list[Question]:
    plural = PLURALS[shape]
    noun = rng.choice(["shape", "object", "thing", shape, shape])
    plain_nouns = rng.choice(["shapes", "objects", plural])
    nouns = rng.choice(["shapes", "objects", "things", plural, plural, f"{colour} {plural}"])
    asked = [_ask(rng, "shape", shape), _ask(rng, "count", NUMBERS[total], nouns=nouns)]
    wording = "colour" if total == 1 else "colours"
    asked.append(_ask(rng, wording, colour, kind="colour", noun=noun, nouns=plain_nouns))
    zone = scene.zone(scene.things[0]) if total == 1 else None
    if zone:
        asked.append(_ask(rng, "where", zone, noun=rng.choice([noun, shape, f"{colour} {shape}"])))
    if rng.random() < 0.1:
        asked.append(_count_absent(rng, [shape]))
    return asked


def _about_groups(scene: Scene, rng: Random, groups: list[tuple[str, str, int]]) -> list[Question]:
    total = sum(n for _, _, n in groups)
    asked = [_ask(rng, "count", NUMBERS[total], nouns=rng.choice(["shapes", "objects", "things"]))]
    for shape, colour, n in groups:
        plural = PLURALS[shape]
        asked.append(_ask(rng, "shape_of", shape, colour=colour))
        wording = "colour_of" if n == 1 else "colours_of"
        asked.append(_ask(rng, wording, colour, kind="colour_of", shape=shape, shapes=plural))
        nouns = rng.choice([plural, plural, f"{colour} {plural}", f"{colour} shapes"])
        asked.append(_ask(rng, "count", NUMBERS[n], kind="count_of", nouns=nouns))
        zone = scene.zone(next(t for t in scene.things if t.shape == shape)) if n == 1 else None
        if zone:
            noun = rng.choice([shape, shape, f"{colour} {shape}"])
            asked.append(_ask(rng, "where", zone, kind="where_of", of=True, noun=noun))
    if rng.random() < 0.2:
        asked.append(_count_absent(rng, [shape for shape, _, _ in groups]))
    return asked


def _count_absent(rng: Random, present: list[str]) -> Question:
    absent = [plural for shape, plural in PLURALS.items() if shape not in present]
    return _ask(rng, "count", NUMBERS[0], kind="count_of", nouns=rng.choice(absent))


def _ask(rng: Random, wording: str, answer: str, kind: str | None = None, of: bool = False, **names: str) -> Question:
    choices = [w for w in WORDINGS[wording] if not of or "{" in w]
    text = rng.choice(choices).format(**names)
    if rng.random() < 0.4:
        text = text.replace("colour", "color").replace("grey", "gray")
    chance = rng.random()
    if chance < 0.15:
        text = text.lower().rstrip("?.!")
    elif chance < 0.25:
        text = text.lower()
    elif chance < 0.35:
        text = text.rstrip("?.!")
    elif chance < 0.4 and wording != "capability":
        text = rng.choice(["Please tell me: ", "Question: ", "Look at the picture. ", "And "]) + text
        text = text.replace("And W", "And w").replace("And H", "And h")
    return Question(kind or wording, text, answer)


def _a(noun: str) -> str:
    return ("an " if noun[0] in "aeiou" else "a ") + noun
