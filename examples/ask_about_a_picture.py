"""Load a model, ask it about a picture, and see what the card had to do for it.

python examples/ask_about_a_picture.py                                    # the carried model, on the CPU
python examples/ask_about_a_picture.py --card sim:11MiB                   # on a simulated card that is too small
python examples/ask_about_a_picture.py --model path/to/checkpoint --card cuda photo.jpg "What is this?"
"""

from __future__ import annotations

import argparse
from pathlib import Path

import mmswap

PICTURES = Path(__file__).parent / "pictures"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", nargs="?", default=str(sorted(PICTURES.glob("*.png"))[0]))
    parser.add_argument("question", nargs="?", default="Describe the picture.")
    parser.add_argument("--model")
    parser.add_argument("--card", default="cpu")
    chosen = parser.parse_args()

    runtime = mmswap.load(chosen.model, card=chosen.card)
    answer = runtime.chat(
        chosen.question, images=[chosen.picture], on_text=lambda piece: print(piece, end="", flush=True)
    )
    window = answer.window
    print(f"\n\n{window.reason}")
    if window.opened:
        print(f"{window.restored_bytes} of {window.evicted_bytes} bytes are back, {window.restore_ms:.2f} ms")
    for image in answer.images:
        print(f"{image.width}x{image.height}: {image.patches} patches, peak {image.peak_predicted} bytes predicted, ")
        print(f"    {image.peak_measured} measured, {image.encode_ms:.1f} ms")


if __name__ == "__main__":
    try:
        main()
    except mmswap.MmswapError as error:  # every mistake is one sentence
        raise SystemExit(f"{error}") from None
