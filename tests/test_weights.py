"""Weights as a run wants them: on the processor 4 bits lie as its kernel reads them, in a dtype that is fast there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import mmswap
from mmswap.llm.quant import QuantLinear

PICTURE = Path(__file__).parents[1] / "examples" / "pictures" / "star_and_cross.png"
ROWS, HEAD = 12544, 686  # of the decoder's layers, joined or not; of the head
TRUTH = "a yellow star and a white cross on a black background"


def packed(runtime: mmswap.Runtime) -> list[QuantLinear]:
    return [part for part in runtime.model.modules() if isinstance(part, QuantLinear)]


@pytest.mark.parametrize(
    ("options", "prepared", "dtype"),
    [
        ({}, True, torch.bfloat16),
        ({"quantize_head": True, "decode": "model"}, True, torch.bfloat16),  # its 686 rows are no multiple of 16
        ({"dtype": "float32"}, False, torch.float32),
        ({"card": "sim:1GiB"}, False, torch.float16),  # a simulated card keeps what a real one would hold
    ],
)
def test_four_bits_answer_as_plain_weights_do(options: dict[str, Any], prepared: bool, dtype: torch.dtype) -> None:
    runtime = mmswap.load(quantize="int4", **options)
    rows = [(part.out_features, part.prepared) for part in packed(runtime)]
    assert sum(count for count, _ in rows) == ROWS + HEAD * ("quantize_head" in options)
    assert sum(count for count, done in rows if done) == (ROWS if prepared else 0)
    assert runtime.model.get_input_embeddings().weight.dtype == dtype
    assert runtime.chat("Describe the picture.", [str(PICTURE)]).text == TRUTH
    found = runtime.measurements().load
    assert abs(found.weights_measured - found.weights_predicted) <= 0.001 * found.weights_predicted


def test_the_processors_layout_is_said() -> None:
    said = " ".join(mmswap.load(quantize="int4").decisions)
    assert "Weights run in bfloat16, the only dtype in which this processor multiplies by 4-bit weights fast." in said
    assert "56 of 56 4-bit layers lie as this processor's kernel reads them." in said
