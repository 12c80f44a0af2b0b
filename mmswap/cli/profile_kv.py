"""`mmswap profile --kv`: what a model's keys and values look like, so that a KV cache in 8 bits answers rightly."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmswap.cli import progress, report
from mmswap.config import RunConfig
from mmswap.errors import OptionError

if TYPE_CHECKING:
    from mmswap.llm.kv.calibration import Calibration
    from mmswap.llm.kv.measuring import Prompted
    from mmswap.runtime import Runtime

PICTURE = 448  # pixels each way


def profile_kv(model: str, dtype: str, card: str, contexts: str, out: Path | None, *, as_json: bool) -> None:
    """Measure, keep, tell.

    Raises:
        OptionError: contexts that are no numbers, a file that cannot be written, a model without a cache of ours.
    """
    lengths = _lengths(contexts)
    from mmswap.llm.kv.calibration import keep
    from mmswap.llm.kv.measuring import measure
    from mmswap.runtime import load

    with progress.loading() as advance:
        runtime = load(model, config=RunConfig(card=card, dtype=dtype), progress=advance)
    fitting = sorted({min(tokens, runtime.context - 1) for tokens in lengths})
    with runtime.turn():
        prompts = list(_prompts(runtime, fitting))
        found = measure(
            runtime.model,
            prompts,
            name=Path(model).name,
            key=runtime.caching.key or None,
            chunk=runtime.config.prefill_chunk,
            say=report.explain,
        )
    try:
        place = keep(found, out)
    except OSError as error:
        raise OptionError(f"--out {out} cannot be written: {error.strerror or error}.") from None
    if as_json:
        print(json.dumps(found.to_json(), ensure_ascii=(sys.stdout.encoding or "").lower() not in ("utf-8", "utf8")))
        return
    print("\n".join(_lines(found)))
    print(f"\nWritten to {place}." if place is not None else "\nNot kept: the cache folder cannot be written.")


def _lengths(text: str) -> list[int]:
    try:
        lengths = [int(part) for part in text.split(",")]
    except ValueError:
        lengths = []
    if not lengths or min(lengths) < 16:
        raise OptionError(f"--contexts {text}: write numbers of tokens, 16 or more, for example 128,2048,8192.")
    return lengths


def _prompts(runtime: Runtime, lengths: list[int]) -> Iterator[Prompted]:
    """Texts of these lengths, and a picture with a question."""
    import torch

    from mmswap.llm.kv.measuring import Prompted
    from mmswap.llm.kv.reading import passage

    for tokens in lengths:
        ids = passage(runtime.processor.tokenizer, tokens)
        yield Prompted(runtime.on_card({"input_ids": ids, "attention_mask": torch.ones_like(ids)}))
    yield _pictured(runtime)


def _pictured(runtime: Runtime) -> Prompted:
    from mmswap.chat import Conversation
    from mmswap.llm.kv.measuring import Prompted

    conversation = Conversation(runtime.config.image)
    conversation.ask("Describe this picture: its shapes, their colours, and where they are.", [_picture()])
    prompt = runtime.render(conversation.messages)
    inputs = runtime.on_card(runtime.prepare(prompt).inputs)
    job = runtime.encoder.begin(inputs, report.explain)
    encoded = runtime.encoder.encode(job, lambda: runtime.singles(prompt), report.explain)
    runtime.encoder.settle()
    return Prompted(inputs, lambda: runtime.encoder.tower.replay(encoded.features))


def _picture() -> Any:
    """Shapes on a slope of colours."""
    from PIL import Image, ImageDraw

    slope = Image.linear_gradient("L").resize((PICTURE, PICTURE))
    image = Image.merge("RGB", (slope, slope.transpose(Image.Transpose.ROTATE_90), slope.point(lambda x: 255 - x)))
    draw = ImageDraw.Draw(image)
    draw.ellipse((60, 80, 200, 220), fill="navy", outline="white", width=5)
    draw.rectangle((250, 220, 400, 380), fill="orange")
    draw.polygon([(300, 40), (400, 180), (230, 170)], fill="darkgreen")
    return image


def _lines(found: Calibration) -> list[str]:
    kinds = sorted({kind for layer in found.layers.values() for kind in layer.cosine})
    lines = [f"{found.name}: keys and values of {len(found.layers)} layers, {found.how}.", ""]
    lines.append("layer  largest offset  largest rest  " + "  ".join(kind.rjust(9) for kind in kinds))
    for index, layer in found.layers.items():
        pairs = [
            (abs(mean), max(high - mean, mean - low))
            for means, lows, highs in zip(layer.mean, layer.low, layer.high)
            for mean, low, high in zip(means, lows, highs)
        ]
        offset, rest = max(pair[0] for pair in pairs), max(pair[1] for pair in pairs)
        cells = "  ".join(f"{layer.cosine[kind]:9.5f}" if kind in layer.cosine else " " * 9 for kind in kinds)
        lines.append(f"{index:5}  {offset:14.2f}  {rest:12.2f}  {cells}")
    lines.append("")
    lines.append("Columns of kinds: the cosine of attention with that cache against attention without it, at worst.")
    return lines
