"""How large a model's keys are, layer by layer and channel by channel: what an 8-bit cache has to hold.

    python benchmarks/k_amplitude.py                       # SmolLM2-135M; writes benchmarks/k_amplitude.csv
    python benchmarks/k_amplitude.py --model FOLDER        # any text model that transformers reads
    python benchmarks/k_amplitude.py --calibration FILE    # of a model that `mmswap profile --kv --out FILE` measured

For each layer and key head: the largest offset of a channel (its mean) and that channel, the largest key with and
without offsets, and by how much the largest channel exceeds most of its head, with and without. Above 32 without
offsets, an 8-bit float is refused.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from kv_table import smollm2, write

from mmswap.llm.kv.calibration import Calibration
from mmswap.llm.kv.measuring import Prompted, measure
from mmswap.llm.kv.reading import passage
from mmswap.llm.text_model import load_text_model, text_tokenizer

OUT = Path(__file__).with_suffix(".csv")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--calibration", type=Path)
    parser.add_argument("--tokens", type=int, default=512)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.calibration is not None:
        found = Calibration.of_json(json.loads(given.calibration.read_text(encoding="utf-8")))
    else:
        source = given.model or smollm2()
        ids = passage(text_tokenizer(source), given.tokens)
        found = measure(load_text_model(source), [Prompted({"input_ids": ids})], name=source.stem, kinds=())
    write(OUT, rows(found), torch.device("cpu"))


def rows(found: Calibration) -> Iterator[dict[str, Any]]:
    for index, layer in found.layers.items():
        for head, (mean, low, high) in enumerate(zip(layer.mean, layer.low, layer.high)):
            means, lows, highs = (torch.tensor(part) for part in (mean, low, high))
            whole, rest = torch.maximum(highs.abs(), lows.abs()), torch.maximum(highs - means, means - lows)
            yield {
                "model": found.name,
                "layer": index,
                "head": head,
                "offset": f"{float(means.abs().max()):.3f}",
                "channel": int(means.abs().argmax()),
                "largest": f"{float(whole.max()):.3f}",
                "rest": f"{float(rest.max()):.3f}",
                "uneven": f"{uneven(whole):.2f}",
                "uneven_rest": f"{uneven(rest):.2f}",
                "values": f"{layer.values[head]:.3f}",
            }


def uneven(reach: torch.Tensor) -> float:
    """The largest channel over the median one."""
    return float(reach.max() / reach.median().clamp_min(1e-30))


if __name__ == "__main__":
    main()
