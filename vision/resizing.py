"""The size that transformers' image processors give to a picture: the rules of their `resize`, without pixels."""

from __future__ import annotations

from typing import Any

from transformers.image_transforms import get_resize_output_image_size, get_size_with_aspect_ratio
from transformers.image_utils import ChannelDimension, get_image_size_for_max_height_width


def resized(image: Any, size: Any) -> tuple[int, int]:
    """Height and width of `image` [..., height, width] once it is resized to `size` (a `SizeDict`)."""
    height, width = image.shape[-2:]
    if size.shortest_edge and size.longest_edge:
        new = get_size_with_aspect_ratio((height, width), size.shortest_edge, size.longest_edge)
    elif size.shortest_edge:
        plain = {"default_to_square": False, "input_data_format": ChannelDimension.FIRST}
        new = get_resize_output_image_size(image, size=size.shortest_edge, **plain)
    elif size.max_height and size.max_width:
        new = get_image_size_for_max_height_width((height, width), size.max_height, size.max_width)
    else:
        new = (size.height, size.width)
    return int(new[0]), int(new[1])
