"""Draw one random picture with Pillow: coloured shapes, a digit or a word on a background.

`draw(rng, width, height)` returns a `Scene`: the image and everything that is true of it.
Knows nothing of questions, tokens or models. The same `random.Random` state gives the same picture.
"""

import math
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random

import numpy as np
from PIL import Image, ImageDraw, ImageFont

Colour = tuple[int, int, int]
Point = tuple[float, float]

COLOURS: dict[str, list[Colour]] = {
    "red": [(220, 30, 30), (255, 0, 0), (200, 25, 45)],
    "green": [(0, 128, 0), (40, 165, 70), (0, 190, 0), (20, 235, 30)],
    "blue": [(0, 0, 255), (45, 80, 220), (25, 55, 170), (40, 120, 245)],
    "yellow": [(255, 255, 0), (240, 220, 50), (255, 225, 20)],
    "orange": [(255, 165, 0), (245, 140, 30), (255, 128, 0)],
    "purple": [(128, 0, 128), (145, 60, 190), (150, 40, 210)],
    "pink": [(255, 192, 203), (255, 105, 180), (255, 150, 190)],
    "grey": [(128, 128, 128), (150, 150, 150), (105, 105, 105)],
    "black": [(0, 0, 0), (20, 20, 20)],
    "white": [(255, 255, 255), (247, 247, 247)],
}
NEUTRAL = ("white", "black", "grey")
PALE = ("grey", "pink")  # a thin line of black or red looks so once the picture is made smaller
SHAPES = ["circle", "square", "triangle", "star", "cross"]
WORDS = ["cat", "dog", "sun", "bus", "yes", "no", "stop", "go", "milk", "hello"]
DIGITS = [str(i) for i in range(10)]
ROWS, COLUMNS = ("top", "", "bottom"), ("left", "", "right")
LAYOUTS = {"one": 0.3, "same": 0.2, "groups": 0.22, "digit": 0.14, "word": 0.14}
MOST = 4  # shapes in one picture


@dataclass(slots=True)
class Thing:
    shape: str
    colour: str
    x: float  # centre, in pixels
    y: float
    radius: float
    corners: list[Point]


@dataclass(slots=True)
class Writing:
    text: str
    colour: str
    box: tuple[float, float, float, float]  # left, top, right, bottom in pixels
    edges: list[float]  # where each character begins and the last one ends, in pixels


@dataclass(slots=True)
class Scene:
    image: Image.Image
    layout: str
    background: str
    things: list[Thing] = field(default_factory=list)
    writing: Writing | None = None

    def groups(self) -> list[tuple[str, str, int]]:
        """(shape, colour, how many) of each kind of thing, in the order of SHAPES."""
        seen = sorted({(SHAPES.index(t.shape), t.colour) for t in self.things})
        return [(SHAPES[s], c, sum(t.shape == SHAPES[s] for t in self.things)) for s, c in seen]

    def zone(self, thing: Thing) -> str | None:
        """Where the thing is, or None where two answers would be fair."""
        column, row = _third(thing.x / self.image.width), _third(thing.y / self.image.height)
        if column is None or row is None:
            return None
        return zone_name(column, row)


def zone_name(column: int, row: int) -> str:
    return " ".join(part for part in (ROWS[row], COLUMNS[column]) if part) or "middle"


ZONES = [zone_name(column, row) for row in range(3) for column in range(3)]


def draw(rng: Random, width: int, height: int, layout: str | None = None, plain: bool = False) -> Scene:
    """A random picture; `plain` leaves out noise, gradients, outlines and coloured backgrounds."""
    layout = layout or rng.choices(list(LAYOUTS), list(LAYOUTS.values()))[0]
    background, shade = _background(rng, plain)
    scene = Scene(_canvas(rng, width, height, shade, plain), layout, background)
    if layout in ("digit", "word"):
        _write(rng, scene, shade)
    else:
        _place(rng, scene, shade, plain)
    if not plain and rng.random() < 0.2:
        _noise(rng, scene)
    return scene


def _third(fraction: float) -> int | None:
    for index, (low, high) in enumerate(((-1.0, 0.29), (0.4, 0.6), (0.71, 2.0))):
        if low < fraction < high:
            return index
    return None


def _shade(rng: Random, colour: str, spread: int = 12) -> Colour:
    red, green, blue = rng.choice(COLOURS[colour])
    if colour in NEUTRAL:  # stay neutral
        change = rng.randint(-spread, spread)
        red, green, blue = red + change, green + change, blue + change
    else:
        red, green, blue = (v + rng.randint(-spread, spread) for v in (red, green, blue))
    return tuple(max(0, min(255, v)) for v in (red, green, blue))  # type: ignore[return-value]


def _background(rng: Random, plain: bool) -> tuple[str, Colour]:
    named = (
        "white"
        if rng.random() < 0.45
        else rng.choice(["black", "grey"] if plain or rng.random() < 0.5 else list(COLOURS))
    )
    return named, _shade(rng, named, 8)


def _visible_colours(
    rng: Random, shade: Colour, background: str, count: int, avoid: tuple[str, ...] = ()
) -> list[tuple[str, Colour]]:
    """`count` different colours that stand out from the background."""
    found: dict[str, Colour] = {}
    while len(found) < count:
        name = rng.choice(list(COLOURS))
        colour = _shade(rng, name)
        distance = math.dist(colour, shade)
        if name not in found and name not in (background, *avoid) and distance > 110:
            found[name] = colour
    return list(found.items())


def _canvas(rng: Random, width: int, height: int, shade: Colour, plain: bool) -> Image.Image:
    image = Image.new("RGB", (width, height), shade)
    if not plain and rng.random() < 0.1:  # a soft gradient, still clearly one colour
        along = (
            np.linspace(-1, 1, width)[None, :, None]
            if rng.random() < 0.5
            else np.linspace(-1, 1, height)[:, None, None]
        )
        field_ = np.asarray(image, dtype=np.float32) + along * rng.uniform(4, 16)
        image = Image.fromarray(field_.clip(0, 255).astype(np.uint8))
    return image


def _noise(rng: Random, scene: Scene) -> None:
    pixels = np.asarray(scene.image, dtype=np.float32)
    grain = np.random.default_rng(rng.getrandbits(32)).standard_normal(pixels.shape, dtype=np.float32)
    scene.image = Image.fromarray((pixels + grain * rng.uniform(2, 12)).clip(0, 255).astype(np.uint8))


def _place(rng: Random, scene: Scene, shade: Colour, plain: bool) -> None:
    counts = _counts(rng, scene.layout)
    shapes = rng.sample(SHAPES, len(counts))
    style = "filled" if plain else rng.choices(["filled", "outline", "edged"], [0.68, 0.24, 0.08])[0]
    if style == "outline" and scene.background not in NEUTRAL:
        style = "filled"
    colours = _visible_colours(rng, shade, scene.background, len(counts), PALE if style == "outline" else ())
    wanted = [(s, c) for s, c, n in zip(shapes, colours, counts, strict=True) for _ in range(n)]
    pen = ImageDraw.Draw(scene.image)
    places = _places(rng, scene.image.width, scene.image.height, len(wanted), 0.11 if style == "outline" else 0.09)
    for (shape, (name, colour)), (x, y, radius) in zip(wanted, places, strict=True):
        corners = _corners(rng, shape, x, y, radius)
        _paint(rng, pen, shape, corners, colour, style, radius, min(scene.image.size))
        scene.things.append(Thing(shape, name, x, y, radius, corners))


def _counts(rng: Random, layout: str) -> list[int]:
    if layout == "one":
        return [1]
    if layout == "same":
        return [rng.randint(2, MOST)]
    if rng.random() < 0.5:
        return [1, 1]
    first = rng.randint(1, MOST - 1)
    return [first, rng.randint(1, MOST - first)]


def _places(rng: Random, width: int, height: int, count: int, smallest: float) -> list[tuple[float, float, float]]:
    """(x, y, radius) of `count` things that do not touch each other or the border."""
    side, least = math.sqrt(width * height), min(width, height)
    low = smallest * side
    high = max(low * 1.05, min({1: 0.42, 2: 0.3, 3: 0.24, 4: 0.2}[count] * side, 0.44 * least))
    while True:
        places: list[tuple[float, float, float]] = []
        for _ in range(12 * count):
            radius = min(rng.uniform(low, high), 0.44 * least)
            x, y = _spot(rng, width, radius), _spot(rng, height, radius)
            if all(math.dist((x, y), (a, b)) > 1.12 * (radius + r) + 0.04 * side for a, b, r in places):
                places.append((x, y, radius))
            if len(places) == count:
                return places
        high = max(low * 1.01, high * 0.9)


def _spot(rng: Random, length: int, radius: float) -> float:
    """A centre along one side; two thirds of them lie clearly in one of the three zones."""
    low, high = 1.08 * radius + 1, length - 1.08 * radius - 1
    if rng.random() < 0.66:
        start, end = rng.choice(((0.0, 0.28), (0.41, 0.59), (0.72, 1.0)))
        if max(low, start * length) < min(high, end * length):
            low, high = max(low, start * length), min(high, end * length)
    return rng.uniform(low, high)


def _corners(rng: Random, shape: str, x: float, y: float, radius: float) -> list[Point]:
    if shape == "circle":
        unit = [(-1.0, -1.0), (1.0, 1.0)]
    elif shape == "square":
        unit = [(-0.84, -0.84), (0.84, -0.84), (0.84, 0.84), (-0.84, 0.84)]
    elif shape == "triangle":
        unit = [(rng.choice((0.0, 0.0, rng.uniform(-0.8, 0.8))), -1.0), (-0.97, 0.8), (0.97, 0.8)]
    elif shape == "star":
        inner = rng.uniform(0.36, 0.46)
        angles = [(math.pi * (i / 5 - 0.5), 1.0 if i % 2 == 0 else inner) for i in range(10)]
        unit = [(r * math.cos(a), r * math.sin(a)) for a, r in angles]
    else:
        t = rng.uniform(0.22, 0.36)
        unit = [
            (-t, -1),
            (t, -1),
            (t, -t),
            (1, -t),
            (1, t),
            (t, t),
            (t, 1),
            (-t, 1),
            (-t, t),
            (-1, t),
            (-1, -t),
            (-t, -t),
        ]
    angle = 0.0
    if shape != "circle" and rng.random() < 0.35:
        angle = rng.uniform(-10, 10)
    if shape == "triangle" and rng.random() < 0.15:
        angle += rng.choice((90, 180, 270))
    sine, cosine = math.sin(math.radians(angle)), math.cos(math.radians(angle))
    wide, tall = (rng.uniform(0.9, 1.08), rng.uniform(0.9, 1.08)) if rng.random() < 0.5 else (1.0, 1.0)
    stretched = [(px * wide * radius, py * tall * radius) for px, py in unit]
    return [(x + px * cosine - py * sine, y + px * sine + py * cosine) for px, py in stretched]


def _paint(
    rng: Random,
    pen: ImageDraw.ImageDraw,
    shape: str,
    corners: list[Point],
    colour: Colour,
    style: str,
    radius: float,
    least: int,
) -> None:
    thin = max(1.0, 0.018 * least)
    if style == "outline":
        options = {"fill": None, "outline": colour, "width": round(max(thin, rng.uniform(0.06, 0.22) * radius))}
    elif style == "edged":
        dark = tuple(int(v * 0.55) for v in colour) if sum(colour) > 120 else colour
        options = {"fill": colour, "outline": dark, "width": round(max(thin, 0.07 * radius))}
    else:
        options = {"fill": colour}
    if shape == "circle":
        pen.ellipse(corners, **options)
    else:
        pen.polygon(corners, **options)


@lru_cache(maxsize=256)
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default_imagefont() if size == 0 else ImageFont.load_default(size)


def _write(rng: Random, scene: Scene, shade: Colour) -> None:
    """Write a digit or a word: Pillow's own fonts, now and then bold, stretched or tilted."""
    width, height = scene.image.size
    side = math.sqrt(width * height)
    text = rng.choice(DIGITS if scene.layout == "digit" else WORDS)
    ((name, colour),) = _visible_colours(rng, shade, scene.background, 1)
    bitmap = rng.random() < 0.12
    size = 0 if bitmap else int(rng.uniform(0.3, 0.8) * side)
    bold = 0 if bitmap or rng.random() < 0.6 else max(1, int(size * rng.uniform(0.02, 0.06)))
    stamp = _stamp(text, size, bold)
    stretch = rng.uniform(0.82, 1.2) if rng.random() < 0.5 else 1.0
    wide, tall = stamp.width * stretch, float(stamp.height)
    if len(text) > 1:
        scale = min(rng.uniform(0.6, 0.95) * width / wide, 0.85 * height / tall)
    else:
        scale = min(rng.uniform(0.24, 0.75) * side / tall, 0.9 * height / tall, 0.9 * width / wide)
    stamp = stamp.resize((max(3, round(wide * scale)), max(6, round(tall * scale))), Image.Resampling.BICUBIC)
    if rng.random() < 0.3:
        stamp = stamp.rotate(rng.uniform(-8, 8), Image.Resampling.BILINEAR, expand=True)
        factor = min(1.0, 0.98 * width / stamp.width, 0.98 * height / stamp.height)
        stamp = stamp.resize(
            (max(3, int(stamp.width * factor)), max(6, int(stamp.height * factor))), Image.Resampling.BICUBIC
        )
    left, top = rng.randint(0, max(0, width - stamp.width)), rng.randint(0, max(0, height - stamp.height))
    scene.image.paste(colour, (left, top), stamp)
    edges = [left + stamp.width * part for part in _edges(text, size)]
    scene.writing = Writing(text, name, (left, top, left + stamp.width, top + stamp.height), edges)


def _stamp(text: str, size: int, bold: int) -> Image.Image:
    """The text as a tight mask."""
    font = _font(size)
    left, top, right, bottom = font.getbbox(text, stroke_width=bold) if size else font.getbbox(text)
    stamp = Image.new("L", (math.ceil(right - left) + 2, math.ceil(bottom - top) + 2))
    pen = ImageDraw.Draw(stamp)
    pen.text((1 - left, 1 - top), text, fill=255, font=font, stroke_width=bold)
    return stamp.crop(stamp.getbbox())


def _edges(text: str, size: int) -> list[float]:
    """Where the characters begin and end, as parts of the width."""
    font = _font(size)
    total = font.getlength(text)
    return [font.getlength(text[:i]) / total for i in range(len(text) + 1)]
