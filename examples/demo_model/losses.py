"""The two losses: what the tower's tokens show (dense heads, dropped after training) and what the model says."""

from collections import defaultdict

import torch
import torch.nn.functional as F
from batches import Batch
from draw import COLOURS, SHAPES
from fast_forward import FastForward
from labels import CHARACTERS, COVERS, PAINTS, TEXTS, thirds
from questions import NUMBERS
from torch import Tensor, nn

SIZES = [1 + len(SHAPES), len(COVERS), len(PAINTS), len(CHARACTERS)]
WHOLE = [len(NUMBERS), len(TEXTS), len(COLOURS)]
WEIGHTS = {"shape_of": 4.0, "where_of": 2.0, "count": 3.0, "count_of": 4.0, "capability": 0.3}  # slow kinds weigh more
Scores = dict[str, float]


class Heads(nn.Module):
    """Linear readings of the merged tokens: four patches each, and the picture as a whole from their mean."""

    def __init__(self, width: int):
        super().__init__()
        self.dense = nn.Linear(width, 4 * sum(SIZES))
        self.whole = nn.Linear(width, sum(WHOLE))
        self.zone = nn.Linear(width, 4 * 6)


def seeing_loss(heads: Heads, tokens: Tensor, batch: Batch) -> tuple[Tensor, Scores]:
    pictures, cells, _ = tokens.shape
    centre, *readings = heads.dense(tokens).view(pictures * cells * 4, -1).split(SIZES, -1)
    target = torch.from_numpy(batch.centres).view(pictures * cells * 4, -1)
    weight = 1 + 3 * (1 - target[:, 0])
    loss = (-(target * centre.log_softmax(-1)).sum(-1) * weight).sum() / weight.sum() * 2
    classes = torch.from_numpy(batch.classes).view(pictures * cells * 4, 3)
    scores = {}
    for name, reading, answer in zip(("cover", "paint", "char"), readings, classes.T, strict=True):
        shown = answer > 0
        weight = 1 + 3 * shown.float()
        loss = loss + (F.cross_entropy(reading, answer, reduction="none") * weight).sum() / weight.sum()
        scores[name] = _mean((reading.argmax(-1) == answer)[shown])
    whole = torch.from_numpy(batch.whole)
    for name, reading, answer in zip(
        ("number", "text", "ground"), heads.whole(tokens.mean(1)).split(WHOLE, -1), whole.T, strict=True
    ):
        loss = loss + 0.3 * F.cross_entropy(reading, answer)
        shown = answer >= 0 if name == "ground" else answer > 0
        scores[name] = _mean((reading.argmax(-1) == answer)[shown])
    zones = heads.zone(tokens).view(pictures, cells * 4, 2, 3)
    target = torch.from_numpy(thirds(batch.grid)).expand(pictures, -1, -1)
    loss = loss + 0.5 * F.cross_entropy(zones.reshape(-1, 3), target.reshape(-1))
    scores["zone"] = _mean(zones.argmax(-1) == target)
    return loss, scores


def saying_loss(forward: FastForward, tokens: Tensor, deep: list[Tensor], batch: Batch) -> tuple[Tensor, Scores]:
    """Cross entropy of the answers, and the share of exact answers per kind (teacher forced)."""
    ids, blocks, labels = (torch.from_numpy(a) for a in (batch.ids, batch.blocks, batch.labels))
    hidden = forward.read(
        ids, torch.from_numpy(batch.positions), attention_mask(blocks), torch.from_numpy(batch.slots), tokens, deep
    )
    chosen = labels[:, 1:] >= 0
    logits, answer = forward.logits(hidden[:, :-1][chosen]), labels[:, 1:][chosen]
    start = chosen & (labels[:, :-1] < 0)
    number = start.flatten().long().cumsum(0).view_as(start)[chosen] - 1  # which answer each token belongs to
    weight = torch.tensor([WEIGHTS.get(kind, 1.0) for kind in batch.kinds])[number]
    loss = (F.cross_entropy(logits, answer, reduction="none") * weight).sum() / weight.sum()
    with torch.no_grad():
        wrong = torch.zeros(len(batch.kinds)).index_add_(0, number, (logits.argmax(-1) != answer).float())
        by_kind = defaultdict(list)
        for kind, errors in zip(batch.kinds, wrong.tolist(), strict=True):
            by_kind[kind].append(errors == 0)
    return loss, {kind: sum(right) / len(right) for kind, right in by_kind.items()}


def attention_mask(blocks: Tensor) -> Tensor:
    """blocks [R, L] -> additive mask [R, 1, L, L]: causal, and blocks beyond 0 see only block 0 and themselves."""
    length = blocks.shape[1]
    allowed = (blocks[:, None] == 0) | (blocks[:, None] == blocks[:, :, None])
    allowed = (allowed & torch.ones(length, length, dtype=torch.bool).tril()) | torch.eye(length, dtype=torch.bool)
    return torch.zeros(allowed.shape).masked_fill_(~allowed, -1e9)[:, None]


def _mean(hits: Tensor) -> float:
    return hits.float().mean().item() if len(hits) else float("nan")
