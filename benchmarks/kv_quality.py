"""What each kind of KV cache costs a real model: perplexity, and how far its next-token odds move from those with fp16.

    python benchmarks/kv_quality.py              # writes benchmarks/kv_quality.csv; SmolLM2-135M, about a minute

The text is `mmswap.llm.kv.reading`'s. Its first 64 tokens are read at once, the others `--chunk` at a time, so that
ranges are those of a chat: taken from the beginning, wider where they must be. `measured` rows have offsets from
another text (docs/free-memory.md). KL: of the odds with fp16 against those with the kind, in nats, over all tokens.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from kv_table import smollm2, write
from torch import Tensor

from mmswap.llm.kv.calibration import Calibration
from mmswap.llm.kv.kinds import KINDS
from mmswap.llm.kv.measuring import Prompted, measure
from mmswap.llm.kv.opening import Survey
from mmswap.llm.kv.reading import TEXT
from mmswap.llm.text_model import load_text_model, text_tokenizer
from mmswap.swap.dry_run import cache_argument

HERE = Path(__file__).parent
FIRST = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunk", type=int, default=64, help="tokens read at a time after the first")
    parser.add_argument("--model", type=Path, help="another GGUF file or folder of a text model")
    given = parser.parse_args()
    torch.set_num_threads(1)
    source = given.model or smollm2()
    model, tokenizer = load_text_model(source), text_tokenizer(source)
    ids = torch.tensor([tokenizer(TEXT)["input_ids"]])
    other = (HERE.parent / "docs" / "free-memory.md").read_text(encoding="utf-8")
    measured = measure(model, [Prompted({"input_ids": torch.tensor([tokenizer(other)["input_ids"][:512]])})])
    rows = ({"model": source.stem, **row} for row in quality(model, ids, given.chunk, measured))
    write(HERE / "kv_quality.csv", rows, torch.device("cpu"))


def quality(model: Any, ids: Tensor, chunk: int, measured: Calibration) -> Iterator[dict[str, Any]]:
    """A row for each kind, with and without offsets."""
    survey = Survey.of(model)
    truth, _ = odds(model, survey, "fp16", ids, chunk)
    for name, kind in KINDS.items():
        for offsets in (None, measured) if kind.quantised else (None,):
            found, size = odds(model, survey, name, ids, chunk, offsets)
            wanted = ids[0, 1:]
            kl = (truth.exp() * (truth - found)).sum(-1)
            loss = -found[:-1].gather(-1, wanted[:, None]).mean()
            yield {
                "kind": name,
                "offsets": "" if not kind.quantised else "first tokens" if offsets is None else "measured",
                "tokens": ids.shape[1],
                "bytes_per_token": size,
                "perplexity": f"{math.exp(float(loss)):.4f}",
                "mean_kl": f"{float(kl.mean()):.6f}",
                "max_kl": f"{float(kl.max()):.5f}",
                "same_top": f"{float((truth.argmax(-1) == found.argmax(-1)).float().mean()):.4f}",
            }


@torch.no_grad()
def odds(
    model: Any, survey: Survey, kind: str, ids: Tensor, chunk: int, measured: Calibration | None = None
) -> tuple[Tensor, int]:
    """Log odds [T, V] behind every token, and bytes of a token in the cache."""
    cache = survey.open(ids.shape[1], KINDS[kind], measured)
    found = []
    borders = [0, *range(FIRST, ids.shape[1], chunk), ids.shape[1]]
    for start, end in itertools.pairwise(borders):
        out = model(input_ids=ids[:, start:end], **cache_argument(model, cache), use_cache=True)
        found.append(out.logits[0].float().log_softmax(-1))
    return torch.cat(found), cache.bytes_per_token()


if __name__ == "__main__":
    main()
