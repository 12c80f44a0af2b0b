"""The same model plain and in 4 bits, and a second question about the same picture that reads only what is new.

    python examples/four_bits_and_two_turns.py [--model path/to/checkpoint] [--card cuda] [--kv int8]

Prints what each decision was, the answers, and the tokens that the second turn did not read again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import mmswap

PICTURE = str(Path(__file__).parent / "pictures" / "star_and_cross.png")
QUESTIONS = ("Describe the picture.", "What can you do?")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--card", default="cpu")
    parser.add_argument("--kv", default="auto")
    chosen = parser.parse_args()

    for quantize in (None, "int4"):
        runtime = mmswap.load(chosen.model, card=chosen.card, kv=chosen.kv, quantize=quantize)
        print(f"\n== {quantize or 'plain'}")
        print("\n".join(decision for decision in runtime.decisions if "4 bits" in decision or "Decode" in decision))
        messages: list[dict[str, object]] = []
        for turn, question in enumerate(QUESTIONS):
            picture = [{"type": "image", "image": PICTURE}] if turn == 0 else []
            messages.append({"role": "user", "content": [*picture, {"type": "text", "text": question}]})
            answer = runtime.chat(messages, reuse=True)
            messages.append({"role": "assistant", "content": answer.text})
            print(f"{question} {answer.text} [{answer.prompt_tokens} tokens, {answer.reused_tokens} of them kept]")


if __name__ == "__main__":
    try:
        main()
    except mmswap.MmswapError as error:  # every mistake is one sentence
        raise SystemExit(f"{error}") from None
