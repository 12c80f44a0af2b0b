"""Draw the pictures of `examples/pictures` and write down what is true of them.

Plain Pillow calls, not the training's own drawing, so that they stand for pictures of a stranger.
"""

import json
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

FOLDER = Path(__file__).parents[1] / "pictures"
COUNT, WHERE, LOOK = "How many shapes are there?", "Where is the {}?", "Describe the picture."


def red_circle() -> Image.Image:
    image = Image.new("RGB", (300, 200), "white")
    ImageDraw.Draw(image).ellipse((100, 50, 200, 150), fill="red")
    return image


def blue_squares() -> Image.Image:
    image = Image.new("RGB", (160, 120), (128, 128, 128))
    pen = ImageDraw.Draw(image)
    pen.rectangle((16, 20, 60, 64), fill="blue")
    pen.rectangle((96, 60, 136, 100), fill="blue")
    return image


def green_triangle() -> Image.Image:
    image = Image.new("RGB", (97, 211), "white")
    ImageDraw.Draw(image).polygon([(50, 140), (22, 195), (78, 195)], outline=(0, 128, 0), width=4)
    return image


def star_and_cross() -> Image.Image:
    image = Image.new("RGB", (128, 96), "black")
    pen = ImageDraw.Draw(image)
    star = [(26, 5), (31, 18), (45, 19), (34, 27), (38, 41), (26, 33), (14, 41), (18, 27), (7, 19), (21, 18)]
    pen.polygon(star, fill="yellow")
    pen.rectangle((94, 52, 104, 84), fill="white")
    pen.rectangle((83, 63, 115, 73), fill="white")
    return image


def seven() -> Image.Image:
    image = Image.new("RGB", (120, 160), "white")
    ImageDraw.Draw(image).text((38, 30), "7", fill="purple", font=ImageFont.load_default(90))
    return image


def stop() -> Image.Image:
    image = Image.new("RGB", (240, 120), "black")
    ImageDraw.Draw(image).text((40, 25), "stop", fill="orange", font=ImageFont.load_default(70))
    return image


PICTURES = {
    "red_circle.png": (red_circle, [
        ("What shape is this?", "circle"), ("What colour is it?", "red"), (COUNT, "one"),
        (WHERE.format("circle"), "middle"), (LOOK, "a red circle on a white background"),
    ]),
    "blue_squares.png": (blue_squares, [
        ("what shape is it", "square"), ("How many squares are there?", "two"), ("What color are the squares?", "blue"),
        ("What colour is the background?", "grey"), (LOOK, "two blue squares on a grey background"),
    ]),
    "green_triangle.png": (green_triangle, [
        ("Which shape is in the picture?", "triangle"), ("what color is the triangle?", "green"),
        (WHERE.format("triangle"), "bottom"), (LOOK, "a green triangle on a white background"),
    ]),
    "star_and_cross.png": (star_and_cross, [
        (COUNT, "two"), ("What colour is the star?", "yellow"), ("What shape is the white one?", "cross"),
        (WHERE.format("star"), "top left"), (WHERE.format("white cross"), "bottom right"),
        (LOOK, "a yellow star and a white cross on a black background"),
    ]),
    "seven.png": (seven, [
        ("What digit is this?", "7"), ("What number do you see?", "7"), ("What colour is the digit?", "purple"),
        (LOOK, "the digit 7 in purple on a white background"),
    ]),
    "stop.png": (stop, [
        ("What word is this?", "stop"), ("What does it say?", "stop"), ("What color is the word?", "orange"),
        (LOOK, "the word stop in orange on a black background"),
    ]),
}  # fmt: skip


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, (draw_picture, _) in PICTURES.items():
        draw_picture().save(FOLDER / name, optimize=True)
    answers = {name: pairs for name, (_, pairs) in PICTURES.items()}
    (FOLDER / "answers.json").write_text(json.dumps(answers, indent=1) + "\n")


if __name__ == "__main__":
    main()
