"""The training forward equals the transformers forward, row by row, for one picture, two and none."""

from random import Random

import torch
from batches import Batch, make_batch
from checkpoint import new_model
from fast_forward import FastForward
from losses import attention_mask
from transformers import Qwen3VLForConditionalGeneration


def test_fast_forward_equals_transformers() -> None:
    model, tokenizer = new_model(0)
    model.eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.08) if weight.ndim > 1 else weight.data.add_(torch.randn_like(weight) * 0.1)
    assert _compare(model, make_batch(tokenizer, Random(3), 24)) == {0, 1}
    pairs = next(b for b in (make_batch(tokenizer, Random(seed), 4) for seed in range(200)) if len(b.ids) == 2)
    assert _compare(model, pairs) == {2}


@torch.no_grad()
def _compare(model: Qwen3VLForConditionalGeneration, batch: Batch) -> set[int]:
    """Compares every row and returns how many pictures the rows hold."""
    ids, blocks, positions, slots = (
        torch.from_numpy(a) for a in (batch.ids, batch.blocks, batch.positions, batch.slots)
    )
    patches = torch.from_numpy(batch.patches).float()
    fast = FastForward(model, torch.float32)
    tokens, deep = fast.look(patches, batch.grid)
    logits = fast.logits(fast.read(ids, positions, attention_mask(blocks), slots, tokens, deep))
    cells = batch.grid[0] * batch.grid[1]
    owner = slots[::cells] // ids.shape[1]  # the row that shows each picture
    counts = set()
    for row in range(len(ids)):
        line = ((blocks[row] == 0) | (blocks[row] == 1)).nonzero().flatten()  # what all blocks see, and the first block
        one = ids[row : row + 1, line]
        shown = patches[owner == row]
        counts.add(len(shown))
        inputs = {"input_ids": one, "attention_mask": torch.ones_like(one)}
        if len(shown):
            inputs["pixel_values"] = shown.reshape(-1, 3, 1, 64).expand(-1, -1, 2, -1).reshape(-1, 384)
            inputs["image_grid_thw"] = torch.tensor([[1, batch.grid[0] * 2, batch.grid[1] * 2]] * len(shown))
            inputs["mm_token_type_ids"] = (one == model.config.image_token_id).int()
        torch.testing.assert_close(logits[row : row + 1, line], model(**inputs).logits, atol=2e-4, rtol=1e-3)
    return counts
