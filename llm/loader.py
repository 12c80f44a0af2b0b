"""A model from a folder or the hub, onto the host. Knows transformers' configs and which dtype is right, no card.

`load_model("folder")` checks the files first (milliseconds, nothing allocated), then loads by the one path that every
checkpoint takes (`loading.py`), plain or in 4 bits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForImageTextToText

from mmswap.errors import ModelError, told
from mmswap.llm.checkpoint import Checkpoint, check_checkpoint, read_json
from mmswap.llm.loading import Loaded, Options, Rounded4, load_tensors
from mmswap.llm.progress import Progress
from mmswap.llm.quant import which
from mmswap.llm.quant.section import section_of
from mmswap.llm.source import resolve_source
from mmswap.llm.tensors import Later
from mmswap.units import MIB, format_bytes

_LOG = logging.getLogger("mmswap")
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_FLOATS = frozenset({*_DTYPES, "F64", "F8_E4M3", "F8_E5M2"})
_SMALL = 200 * MIB  # below this, slow kernels are not felt


def load_model(
    source: str | Path,
    *,
    dtype: torch.dtype | str = "auto",
    attention: str = "sdpa",
    trust_remote_code: bool = False,
    quantize: Rounded4 | None = None,
    prepare: Callable[[Any], None] | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = _LOG.info,
) -> Any:
    """An image-text-to-text model on the host, in eval mode, without gradients.

    What the files hold in 4 bits stays so: `QuantLinear` stands in place of a linear layer, `QuantStack` in place of
    the weights of many experts.

    Args:
        source: a folder, or an id on the hub.
        dtype: a torch dtype, or `auto`: what the checkpoint is stored in.
        attention: `sdpa` or `eager`.
        quantize: round the decoder's plain weights to 4 bits as they come.
        prepare: called with the model on meta, before any weight is read; parameters are loaded in the dtype that they
            have afterwards.
        progress: called with (tensors loaded, tensors in all).
        say: told every decision with its reason.

    Raises:
        ModelError: damaged or incomplete files, a model of another kind, weights that are missing.
    """
    folder = resolve_source(source, trust_remote_code=trust_remote_code)
    checkpoint = check_checkpoint(folder)
    config = load_config(folder, trust_remote_code=trust_remote_code)
    options = Options(
        dtype=stored_dtype(config, checkpoint) if isinstance(dtype, str) else dtype,
        attention=attention,
        trust_remote_code=trust_remote_code,
        quantize=quantize,
        prepare=prepare,
        progress=progress,
        say=say,
    )
    return load_checked(folder, checkpoint, config, options).model


def load_checked(folder: Path, checkpoint: Checkpoint, config: Any, options: Options) -> Loaded:
    """As `load_model`, of a folder that was checked: `check_checkpoint(folder)`, `load_config(folder)`."""
    found = which(described(folder), checkpoint.tensors)
    _check_floats(checkpoint)
    tensors = {name: Later(entry) for name, entry in checkpoint.tensors.items()}
    return load_tensors(folder, tensors, found, config, AutoModelForImageTextToText, options)


def _check_floats(checkpoint: Checkpoint) -> None:
    """Refuse whole numbers where a model multiplies: transformers would turn them into floats as they stand.

    A `bias` of more dimensions is a causal mask of old models, which nobody loads.
    """
    for name, entry in checkpoint.tensors.items():
        kind = name.rpartition(".")[2]
        if entry.dtype not in _FLOATS and (kind == "weight" or (kind == "bias" and len(entry.shape) == 1)):
            raise ModelError(
                f"{entry.file.name} holds {name} as {entry.dtype}, which is no float that mmswap reads: download it "
                "again, or take a plain or 4-bit checkpoint."
            )


def described(folder: Path) -> dict[str, Any]:
    """config.json; what old repositories say of their quantisation in a file of its own is put into it."""
    said = read_json(folder / "config.json")
    own = folder / "quantize_config.json"
    if section_of(said) is None and own.is_file():
        said["quantization_config"] = read_json(own)
    return said


def load_config(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """The model's config, if it is that of an image-text-to-text model.

    Raises:
        ModelError: no config, an unknown one, or that of a model that takes no pictures.
    """
    named = read_json(folder / "config.json").get("model_type", "unknown")
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise ModelError(
            f"{folder / 'config.json'} ({named}) is not understood by transformers {transformers.__version__}: "
            f"{told(error)}."
        ) from None
    remote = "AutoModelForImageTextToText" in (getattr(config, "auto_map", None) or {})
    if not remote and type(config) not in AutoModelForImageTextToText._model_mapping:
        raise ModelError(
            f"{folder} is a {config.model_type} model without a vision tower: mmswap needs an image-text-to-text model."
        )
    return config


def stored_dtype(config: Any, checkpoint: Checkpoint) -> torch.dtype:
    """What most bytes of the weights are stored in, if a model can run in it; else what the config says, else fp32."""
    floats = {name: size for name, size in checkpoint.dtypes.items() if name in _DTYPES}
    if floats:
        return _DTYPES[max(floats, key=lambda name: floats[name])]
    named = getattr(config, "dtype", None)
    return named if isinstance(named, torch.dtype) else torch.float32


def resolve_dtype(
    stored: torch.dtype, nbytes: int, *, host: bool, wanted: str = "auto", half_is_fast: bool | None = None
) -> tuple[torch.dtype, str]:
    """The dtype that the model runs in, with the reason: what it is stored in, save large float16 ones on a slow CPU.

    Args:
        stored: what the weights are stored in (`stored_dtype`).
        nbytes: bytes of the weights.
        host: whether the card is the processor itself. A simulated card keeps what a real one would hold.
        wanted: `auto`, `float32`, `float16` or `bfloat16`.
        half_is_fast: whether this CPU multiplies in float16; asked of torch by default.
    """
    if wanted != "auto":
        return getattr(torch, wanted), f"{wanted}, asked for with --dtype"
    fast = _half_is_fast() if half_is_fast is None else half_is_fast
    if host and stored == torch.float16 and nbytes >= _SMALL and not fast:
        return torch.float32, f"float32, for {format_bytes(nbytes)} of float16 weights are slow on this CPU"
    return stored, f"{str(stored).removeprefix('torch.')}, as the weights are stored"


def _half_is_fast() -> bool:
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    except (AttributeError, RuntimeError):
        return False
