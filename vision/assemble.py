"""Put a transformers processor together from its parts, without torchvision and whatever else only videos need.

`AutoProcessor` insists on a video processor, which needs torchvision. Here image processor (PIL backend), tokenizer
and processor class are found one by one; parts for video and audio are `Absent`. Knows no limits and no prompts.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmswap.errors import ModelError, told
from mmswap.vision.checkpoint import check_source, read_json
from mmswap.vision.tokenizer import load_tokenizer

_PATCH_LOCK = threading.Lock()


class Absent:
    """Stands for a part that is not there (video, audio): every attribute is None, and a call is refused."""

    model_input_names: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise ModelError("This family's processor wants a part that is not loaded (video, audio, a second tokenizer).")


@dataclass(frozen=True, slots=True)
class Parts:
    """A processor put together: transformers' own processor object, and the model's config (None if there is none)."""

    hf: Any
    config: Any


def assemble(source: str | Path, *, trust_remote_code: bool = False) -> Parts:
    """Build the processor of a folder or a hub id.

    Raises:
        ModelError: a file is missing or damaged, or the family needs something that is not here; the message names it.
    """
    check_source(source)
    settings = read_json(source, "processor_config.json")
    config = _load_config(source, trust_remote_code)
    _require_pictures(source, settings, config)
    tokenizer = load_tokenizer(source, trust_remote_code=trust_remote_code)
    image_processor = _load_image_processor(source, trust_remote_code)
    cls = _find_class(source, settings, config, trust_remote_code)
    parameters = inspect.signature(cls.__init__).parameters
    ours = {"tokenizer": tokenizer, "image_processor": image_processor}
    parts = {name: ours.get(name, Absent()) for name in cls.get_attributes()}
    chosen = {k: v for k, v in settings.items() if k in parameters and k not in parts and k != "chat_template"}
    try:
        with _without_num2words(cls):
            hf = _tolerant(cls)(**parts, **chosen)
    except Exception as error:
        raise ModelError(f"{source}: its {cls.__name__} cannot be built ({told(error)}).") from error
    _fill_from_config(hf, config)
    return Parts(hf, config)


def _load_config(source: str | Path, trust_remote_code: bool) -> Any:
    from transformers import AutoConfig

    if not read_json(source, "config.json"):
        if not Path(source).is_dir():
            raise ModelError(f"{source}: no such model on the hub, or no network, or no access granted to it.")
        return None
    try:
        return AutoConfig.from_pretrained(str(source), trust_remote_code=trust_remote_code)
    except Exception as error:
        raise ModelError(f"{source}: config.json cannot be used ({told(error)}).") from error


def _require_pictures(source: str | Path, settings: dict[str, Any], config: Any) -> None:
    """Refuse a model of text alone before its files are blamed for what they need not have.

    Raises:
        ModelError: neither its family, nor its config, nor a file of it knows pictures.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as FAMILIES

    if config is None or config.model_type in FAMILIES or hasattr(config, "vision_config"):
        return
    own_code = {"AutoProcessor", "AutoModelForImageTextToText"} & set(getattr(config, "auto_map", None) or {})
    if not (own_code or settings or read_json(source, "preprocessor_config.json")):
        raise ModelError(
            f"{source} is a {config.model_type} model, which takes no pictures: "
            "mmswap needs an image-text-to-text model."
        )


def _load_image_processor(source: str | Path, trust_remote_code: bool) -> Any:
    from transformers import AutoImageProcessor

    try:
        return AutoImageProcessor.from_pretrained(str(source), backend="pil", trust_remote_code=trust_remote_code)
    except Exception as error:
        settings = read_json(source, "preprocessor_config.json")
        family = settings.get("image_processor_type", "")
        if "torchvision" in str(error).lower():
            reason = f"{family or 'it'} exists for torchvision only, which mmswap does not use"
        elif not settings and "image_processor" not in read_json(source, "processor_config.json"):
            reason = "preprocessor_config.json is missing"
        else:
            reason = told(error)
        raise ModelError(f"{source}: its image processor cannot be loaded: {reason}.") from error


def _find_class(source: str | Path, settings: dict[str, Any], config: Any, trust_remote_code: bool) -> Any:
    from transformers.dynamic_module_utils import get_class_from_dynamic_module
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    files = (settings, *(read_json(source, file) for file in ("preprocessor_config.json", "tokenizer_config.json")))
    names = [file["processor_class"] for file in files if isinstance(file.get("processor_class"), str)]
    model_type = getattr(config, "model_type", None)
    name = names[0] if names else PROCESSOR_MAPPING_NAMES.get(model_type)
    found = _own_class(str(name)) if name else None
    if found is not None:
        return found
    maps = [file.get("auto_map") or {} for file in files]
    code = next((entry["AutoProcessor"] for entry in maps if "AutoProcessor" in entry), None)
    if code is not None and trust_remote_code:
        return get_class_from_dynamic_module(code, str(source))
    if code is not None:
        raise ModelError(f"{source}: its processor is code of the checkpoint's own: it needs --trust-remote-code.")
    if name:
        raise ModelError(f"{source}: this version of transformers has no usable {name}.")
    raise ModelError(
        f"{source}: no file names its processor_class, and the model type '{model_type}' has none: "
        "is it a vision-language model?"
    )


def _own_class(name: str) -> Any:
    # Not by transformers' own look-up: for a class that asks for torchvision it gives a dummy that only raises.
    from transformers.models.auto.configuration_auto import model_type_to_module_name
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    for model_type, class_name in PROCESSOR_MAPPING_NAMES.items():
        if class_name != name:
            continue
        try:
            found = getattr(_import_processing(model_type_to_module_name(model_type)), name, None)
        except ImportError:  # several model types share one class; it lives in the folder of one of them
            continue
        if found is not None:
            return found
    return None


def _import_processing(module: str) -> Any:
    folder = f"transformers.models.{module}"
    try:
        return importlib.import_module(f"{folder}.processing_{module}")
    except ModuleNotFoundError as error:
        if error.name != "torchvision":
            raise
    # Pixtral's module takes a helper from its torchvision file; the PIL file beside it has the same one.
    borrowed = f"{folder}.image_processing_{module}"
    with _PATCH_LOCK:
        sys.modules[borrowed] = importlib.import_module(f"{folder}.image_processing_pil_{module}")
        try:
            return importlib.import_module(f"{folder}.processing_{module}")
        finally:
            sys.modules.pop(borrowed, None)


def _tolerant(cls: Any) -> Any:
    """A subclass that takes `Absent` parts; the class itself stays as it is."""
    skip = {"check_argument_for_proper_class": lambda self, name, argument: None, "__module__": cls.__module__}
    return type(cls.__name__, (cls,), skip)


@contextmanager
def _without_num2words(cls: Any) -> Iterator[None]:
    """SmolVLM's constructor asks for num2words, which it needs for videos only; satisfied while it is constructed."""
    module = sys.modules[cls.__module__]
    if getattr(module, "num2words", str) is not None:
        yield
        return
    with _PATCH_LOCK:
        module.num2words = str  # type: ignore[attr-defined]
        try:
            yield
        finally:
            module.num2words = None  # type: ignore[attr-defined]


def _fill_from_config(hf: Any, config: Any) -> None:
    # Older LLaVA checkpoints keep these in config.json only.
    vision = getattr(config, "vision_config", None)
    if getattr(hf, "patch_size", 0) is None:
        hf.patch_size = getattr(vision, "patch_size", None)
        if hasattr(hf, "num_additional_image_tokens") and getattr(vision, "model_type", "") == "clip_vision_model":
            hf.num_additional_image_tokens = 1
    if getattr(hf, "vision_feature_select_strategy", 0) is None:
        hf.vision_feature_select_strategy = getattr(config, "vision_feature_select_strategy", None)
