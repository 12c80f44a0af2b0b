"""Features of single pictures add up to those of one call, whichever way a family nests them."""

from __future__ import annotations

import pytest
import torch
from transformers.modeling_outputs import BaseModelOutputWithPooling

from mmswap.vision.merge import CannotMerge, merge


def rows(count: int, width: int = 4) -> torch.Tensor:
    return torch.arange(count * width, dtype=torch.float32).view(count, width)


def test_tensors_grow_along_their_first_dimension() -> None:
    whole = merge(torch.empty(5, 4, device="meta"), [rows(2), rows(3)])
    assert torch.equal(whole, torch.cat([rows(2), rows(3)]))


@pytest.mark.parametrize("dimension", [0, 1, 2])
def test_tensors_grow_along_whatever_dimension_holds_the_pictures(dimension: int) -> None:
    """Mllama stacks pictures along the second dimension, MiniCPM-V rows of one batch of one."""
    pieces = [rows(6).view(2, 3, 4), 100 + rows(6).view(2, 3, 4)]
    whole = torch.cat(pieces, dimension)
    assert torch.equal(merge(whole.to("meta"), pieces), whole)


def test_a_list_of_pictures_gets_longer() -> None:
    template = (torch.empty(2, 4), torch.empty(3, 4))
    whole = merge(template, [(rows(2),), (rows(3),)])
    assert isinstance(whole, tuple)
    assert [tuple(part.shape) for part in whole] == [(2, 4), (3, 4)]


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_a_list_of_levels_keeps_its_length(levels: int) -> None:
    template = [torch.empty(5, 4) for _ in range(levels)]
    whole = merge(template, [[rows(2)] * levels, [rows(3)] * levels])
    assert [tuple(part.shape) for part in whole] == [(5, 4)] * levels


def test_a_model_output_keeps_its_class() -> None:
    template = BaseModelOutputWithPooling(pooler_output=(torch.empty(2, 4), torch.empty(3, 4)))
    pieces = [BaseModelOutputWithPooling(pooler_output=(rows(count),)) for count in (2, 3)]
    whole = merge(template, pieces)
    assert isinstance(whole, BaseModelOutputWithPooling)
    assert torch.equal(whole.pooler_output[1], rows(3))
    assert len(pieces[0].pooler_output) == 1


@pytest.mark.parametrize(
    "template", [torch.empty(6, 4), torch.empty(5, 3), (torch.empty(5, 4),), [torch.empty(2, 4), torch.empty(2, 4)]]
)
def test_what_does_not_add_up_is_refused(template: object) -> None:
    pieces = [rows(2), rows(3)] if isinstance(template, torch.Tensor) else [(rows(2),), (rows(4),)]
    with pytest.raises(CannotMerge):
        merge(template, pieces)
