"""Pictures in: every awkward file is opened right or refused in one sentence that names it (kind A of the cases)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pictures
import pytest
from PIL import Image, ImageFile

from mmswap.errors import ImageError
from mmswap.vision.images import content_key, open_image

GOOD = {picture.name: picture for picture in pictures.good()}
BAD = {picture.name: picture for picture in pictures.bad()}


def assert_right(image: Image.Image, wanted: pictures.Good) -> None:
    assert (image.mode, image.size) == ("RGB", wanted.size)
    for x, y, colour, tolerance in wanted.pixels:
        found = image.getpixel((int(x * image.width), int(y * image.height)))
        assert max(abs(a - b) for a, b in zip(found, colour)) <= tolerance, (wanted.name, found, colour)


@pytest.mark.parametrize("name", GOOD)
def test_good_files_are_opened_right_by_every_route(name: str, tmp_path: Path) -> None:
    picture = GOOD[name]
    path = tmp_path / name
    path.write_bytes(picture.data)
    from_pil = Image.open(path)
    for source in (path, str(path), picture.data, from_pil):
        assert_right(open_image(source), picture)


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    picture = BAD[name]
    path = tmp_path / name
    path.write_bytes(picture.data)
    with pytest.raises(ImageError) as caught:
        open_image(path)
    sentence = str(caught.value)
    assert sentence.startswith(f"{path} is ")
    assert "\n" not in sentence
    assert sentence.endswith(".")
    for word in picture.words:
        assert word in sentence


def test_a_flag_of_pillow_that_accepts_broken_files_is_left_alone() -> None:
    for picture in BAD.values():
        with pytest.raises(ImageError):
            open_image(picture.data)
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False


@pytest.mark.parametrize("size", [(1, 1), (1, 2), (3, 1), (1, 3), (4, 4), (500, 19), (1000, 5), (13, 2600), (29, 57)])
def test_thin_and_tiny_pictures_keep_their_size(size: tuple[int, int]) -> None:
    image = open_image(pictures.encode(Image.new("RGB", size, (0, 128, 255)), "PNG"))
    assert image.size == size
    assert image.getpixel((0, 0)) == (0, 128, 255)


@pytest.mark.parametrize("name", ["фото кот 🐱.png", "a b#c%20d.png", "-dash.png", "UPPER.PNG", "no_extension"])
def test_any_file_name_is_opened(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(pictures.encode(Image.new("RGB", (5, 6), pictures.GREEN), "PNG"))
    assert open_image(str(tmp_path / name)).getpixel((2, 2)) == pictures.GREEN


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="does not exist"):
        open_image(tmp_path / "none.png")
    with pytest.raises(ImageError, match="is a folder"):
        open_image(tmp_path)
    with pytest.raises(ImageError, match=r"^The image name is empty"):
        open_image("   ")
    with pytest.raises(ImageError, match="cannot be opened"):
        open_image("a\0b.png")
    with pytest.raises(ImageError, match="cannot be opened"):
        open_image("x" * 5000)


def test_other_types_of_sources() -> None:
    data = GOOD["palette.png"].data
    for source in (bytearray(data), memoryview(data)):
        assert_right(open_image(source), GOOD["palette.png"])
    for wrong in (3, None, [data]):
        with pytest.raises(ImageError, match=f"The image is a {type(wrong).__name__}: give a path"):
            open_image(wrong)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(ImageError, match="not a regular file"):
        open_image(tmp_path / "pipe.png")


def test_a_file_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = tmp_path / "secret.png"
    path.write_bytes(b"x")
    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(ImageError, match=r"secret\.png may not be read"):
        open_image(path)


@pytest.mark.parametrize(
    "address",
    ["http://127.0.0.1:9/a.png", "HTTPS://example.com/a.png", "ftp://x/a", "file:///etc/passwd", " gopher://x"],
)
def test_nothing_is_fetched(address: str) -> None:
    with pytest.raises(ImageError, match="is not fetched"):
        open_image(address)


def test_the_limit_is_the_callers(tmp_path: Path) -> None:
    data = pictures.encode(Image.new("RGB", (20, 10)), "PNG")
    assert open_image(data, limit=200).size == (20, 10)
    for source in (data, Image.new("RGB", (20, 10))):
        with pytest.raises(ImageError, match=r"20x10 = 200 pixels; the limit is 199 pixels"):
            open_image(source, limit=199)


def test_sizes_that_pillow_itself_warns_about_are_judged_by_our_limit(recwarn: pytest.WarningsRecorder) -> None:
    data = pictures.encode(Image.new("1", (9600, 9600)), "PNG")  # 92 megapixels: Pillow itself would warn
    with pytest.raises(ImageError, match="92160000"):
        open_image(data, limit=92_000_000)
    assert not recwarn.list


def test_a_name_can_be_given() -> None:
    with pytest.raises(ImageError, match=r"^image 2 of turn 3 is text"):
        open_image(b"hello", name="image 2 of turn 3")


def test_a_users_pil_image_is_not_modified() -> None:
    image = Image.new("RGBA", (8, 8), (255, 0, 0, 128))
    image.info["transparency"] = 3
    before = (image.mode, image.size, image.tobytes(), dict(image.info))
    assert open_image(image).getpixel((0, 0)) == (255, 127, 127)
    assert (image.mode, image.size, image.tobytes(), dict(image.info)) == before
    plain = Image.new("RGB", (8, 8), pictures.RED)
    opened = open_image(plain)
    opened.putpixel((0, 0), pictures.BLUE)
    assert plain.getpixel((0, 0)) == pictures.RED


def test_the_result_carries_nothing_that_would_turn_it_again() -> None:
    again = open_image(open_image(GOOD["exif_6.jpg"].data))
    assert_right(again, GOOD["exif_6.jpg"])
    assert not again.info


def test_content_key_is_the_pixels() -> None:
    first = open_image(GOOD["exif_6.png"].data)
    assert content_key(first) == content_key(open_image(GOOD["plain.bmp"].data))
    changed = first.copy()
    changed.putpixel((63, 47), (255, 255, 1))
    assert content_key(changed) != content_key(first)
    assert content_key(Image.new("RGB", (2, 8))) != content_key(Image.new("RGB", (8, 2)))


def run_threads(work: Callable[[int], None], count: int) -> None:
    errors: list[BaseException] = []

    def guarded(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


def test_many_threads_at_once() -> None:
    everything = [*GOOD.values(), *BAD.values()]

    def work(offset: int) -> None:
        for picture in everything[offset::2] + everything[: offset * 3]:
            if isinstance(picture, pictures.Good):
                assert_right(open_image(picture.data), picture)
            else:
                with pytest.raises(ImageError):
                    open_image(picture.data)

    run_threads(work, 4)


BOMBS_AT_ONCE = """
import resource, sys, threading
from pathlib import Path
from mmswap.errors import ImageError
from mmswap.vision.images import open_image
def work(path):
    try:
        open_image(path)
    except ImageError:
        pass
paths = sorted(Path(sys.argv[1]).iterdir())
open_image(paths[0])  # a small good picture: every module is loaded now
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in paths[1:]:
    threads = [threading.Thread(target=work, args=(path,)) for _ in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss in KiB is Linux's")
def test_eight_bombs_at_once_take_little_memory(tmp_path: Path) -> None:
    (tmp_path / "0.png").write_bytes(GOOD["palette.png"].data)
    for index, bomb in enumerate(pictures.bombs(), 1):
        (tmp_path / f"{index}_{bomb.name}").write_bytes(bomb.data)
    (tmp_path / "9_text.png").write_bytes(pictures.text_bomb())
    command = [sys.executable, "-c", BOMBS_AT_ONCE, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 300 * 1024
