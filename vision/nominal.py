"""The image processor of a model of which only the config is there: its family's own, with the config's sizes put in.

`nominal_processor(config)`; `stored_processor(folder)` where the checkpoint brings its own. Knows no tokenizer.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmswap.errors import ModelError, told
from mmswap.vision.checkpoint import read_json
from mmswap.vision.family_defaults import images_defaults
from mmswap.vision.torchless import torchless_class

# What published checkpoints of a family have in preprocessor_config.json where its class default is another.
_PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen2VLImageProcessorPil/14": {"size": {"shortest_edge": 56 * 56, "longest_edge": 16384 * 28 * 28}},
    "Qwen2VLImageProcessorPil/16": {"size": {"shortest_edge": 256 * 256, "longest_edge": 4096 * 4096}},
    "dots3_note": {"temporal_patch_size": 1},
    "idefics2": {"do_image_splitting": True},
    "florence2": {"size": {"height": 768, "width": 768}, "crop_size": {"height": 768, "width": 768}},
}

# Families whose checkpoints use another's image processor, which transformers does not say anywhere.
_LIKE = {"glm_ocr": "glm46v", "diffusion_gemma": "gemma4", "fast_vlm": "llava"}


def stored_processor(folder: Path, model_type: str) -> Any:
    """The image processor that a checkpoint's folder describes; None if it describes none.

    Raises:
        ModelError: it is damaged, or of a kind that this transformers does not have.
    """
    from transformers import AutoImageProcessor

    described = read_json(folder, "preprocessor_config.json") or read_json(folder, "processor_config.json").get(
        "image_processor"
    )
    if not described:
        return None
    try:
        found = AutoImageProcessor.from_pretrained(str(folder), backend="pil", local_files_only=True)
    except Exception as error:
        kind = _torchless_class(described.get("image_processor_type"))
        if kind is None:
            raise ModelError(f"{folder}: its image processor cannot be loaded: {told(error)}.") from error
        known = set(kind._valid_kwargs_names)
        found = kind(**{name: value for name, value in described.items() if name in known})
    for name, value in images_defaults(model_type).items():  # asked for by the processor at every call
        if hasattr(found, name):
            setattr(found, name, value)
    whole = read_json(folder, "processor_config.json")
    named = whole.get("processor_class") or described.get("processor_class")
    if _like_pixtral(found) and (named == "PixtralProcessor" or (named is None and model_type == "mistral3")):
        side = int(whole.get("patch_size") or 16) * int(whole.get("spatial_merge_size") or 1)
        found.patch_size = {"height": side, "width": side}
    return found


def _like_pixtral(processor: Any) -> bool:
    """Whether whole cells of several patches are asked of it at every call, whatever it says of patches itself."""
    return type(processor).__name__.startswith("PixtralImageProcessor")


def nominal_processor(config: Any, settings: Mapping[str, Any] | None = None) -> Any:
    """The family's default image processor (PIL) with the config's sizes; None if there is none without torchvision.

    Args:
        settings: of a preprocessor_config.json, which go before all else.
    """
    found = _class_for(config)
    if found is None:
        return None
    vision = _vision(config)
    return found(**(_sizes(found(), config, vision) | dict(settings or {})))


def _vision(config: Any) -> Any:
    """The config of the tower: usually `vision_config`, in encoder-decoder models the encoder's or inside it."""
    found = getattr(config, "vision_config", None)
    encoder = getattr(config, "encoder", None)
    if found is None and encoder is not None:
        found = getattr(encoder, "vision_config", None) or encoder
    return config if found is None else found


def _class_for(config: Any) -> Any:
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES as NAMES

    for model_type in _relatives(config):
        names = NAMES.get(model_type) or {}
        found = _pil_class(names.get("pil")) or _torchless_class(names.get("torchvision"))
        if found is not None:
            return found
    return None


def _homes(name: str) -> list[str]:
    """The folders of transformers in which an image processor class may live."""
    from transformers.models.auto.configuration_auto import model_type_to_module_name
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES as NAMES

    return [str(model_type_to_module_name(home)) for home, names in NAMES.items() if name in names.values()]


def _pil_class(name: str | None) -> Any:
    for folder in _homes(name) if name else ():
        for file in (f"image_processing_pil_{folder}", f"image_processing_{folder}"):
            try:
                module = importlib.import_module(f"transformers.models.{folder}.{file}")
            except ImportError:
                continue
            if name in vars(module):
                return vars(module)[name]
    return None


def _torchless_class(name: str | None) -> Any:
    found = (torchless_class(folder, name) for folder in _homes(name)) if name else ()
    return next((kind for kind in found if kind is not None), None)


def _relatives(config: Any) -> list[str]:
    """Model types whose image processor would serve, the likeliest first."""
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES as NAMES
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES as PROCESSORS

    own, tower = config.model_type, getattr(_vision(config), "model_type", "")
    family = PROCESSORS.get(own)
    siblings = [name for name, processor in PROCESSORS.items() if family is not None and processor == family]
    parents = sorted((name for name in NAMES if own.startswith(name)), key=len, reverse=True)
    like = [_LIKE[own]] if own in _LIKE else []
    first = ["pixtral"] if tower == "pixtral" else []  # native resolution, also where the family had fixed sizes once
    towers = [tower, tower.removesuffix("_vision_model").removesuffix("_vision")]
    return [*first, own, *like, *siblings, *parents, *towers]


def _sizes(plain: Any, config: Any, vision: Any) -> dict[str, Any]:
    """Settings of the image processor that the model's config decides."""
    asked = images_defaults(config.model_type)
    chosen = {name: value for name, value in asked.items() if hasattr(plain, name)}
    patch = _side(getattr(vision, "patch_size", None))
    if patch is not None and hasattr(plain, "patch_size"):
        given = plain.patch_size
        patch *= getattr(config, "spatial_merge_size", 1) if _like_pixtral(plain) else 1
        chosen["patch_size"] = {"height": patch, "width": patch} if isinstance(given, Mapping) else patch
    for name, others in _SAME.items():
        values = [getattr(holder, other, None) for other in others for holder in (vision, config)]
        value = next((value for value in values if value is not None), None)
        if name == "temporal_patch_size" and getattr(plain, name, None) == 1:
            continue  # a picture is one frame for this family, whatever its config copied from another's
        if value is not None and hasattr(plain, name):
            chosen[name] = value
    image = _side(getattr(vision, "image_size", None) or getattr(config, "image_size", None))
    if image is not None:
        chosen |= _edges(plain, image)
    if hasattr(plain, "do_crop_margin"):  # what would be cut depends on the picture; the largest result is the whole
        chosen["do_crop_margin"] = False
    published = _PUBLISHED.get(f"{type(plain).__name__}/{patch}", {}) | _PUBLISHED.get(config.model_type, {})
    return chosen | published


_SAME = {
    "encoder_patch_size": ("patch_size",),
    "downsample_factor": ("downsample_factor",),
    "merge_size": ("spatial_merge_size", "merge_size"),
    "temporal_patch_size": ("temporal_patch_size",),
    "image_grid_pinpoints": ("image_grid_pinpoints",),
    "max_image_tiles": ("max_num_tiles",),
    "pooling_kernel_size": ("pooling_kernel_size",),
}


def _edges(plain: Any, image: int) -> dict[str, Any]:
    """`size` and its like for a tower that is built for pictures or tiles of `image` x `image`."""
    size = getattr(plain, "size", None)
    size = {name: value for name, value in dict(size or {}).items() if value is not None}
    if not size or hasattr(plain, "merge_size"):
        return {}
    if getattr(plain, "max_image_size", None) and "longest_edge" in size:
        return {"max_image_size": {"longest_edge": image}, "size": {"longest_edge": 4 * image}}
    chosen: dict[str, Any] = {}
    if set(size) == {"height", "width"}:
        chosen["size"] = {"height": image, "width": image}
    elif set(size) in ({"shortest_edge"}, {"longest_edge"}):
        chosen["size"] = dict.fromkeys(size, image)
    if getattr(plain, "crop_size", None):
        chosen["crop_size"] = {"height": image, "width": image}
    return chosen


def _side(value: Any) -> int | None:
    if isinstance(value, (list, tuple)) and value:
        value = value[0]
    return int(value) if isinstance(value, (int, float)) else None
