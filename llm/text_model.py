"""Models of text alone, for tests and measurements: a folder, or a GGUF file. Knows no pictures and no card.

    model = load_text_model("SmolLM2.gguf");  tokenizer = text_tokenizer("SmolLM2.gguf")

A GGUF file is unpacked by transformers' reader (which needs the package `gguf`) into plain weights; `quantize` rounds
them to 4 bits in mmswap's own layout.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from mmswap.errors import ModelError, told
from mmswap.llm.checkpoint import check_checkpoint
from mmswap.llm.loader import described, stored_dtype
from mmswap.llm.loading import Options, Rounded4, load_tensors
from mmswap.llm.progress import Progress
from mmswap.llm.quant import Which, which
from mmswap.llm.skeleton import build
from mmswap.llm.tensors import Later

_LOG = logging.getLogger("mmswap")
SUFFIX = ".gguf"


def load_text_model(
    source: str | Path,
    *,
    dtype: torch.dtype | str = "auto",
    attention: str = "sdpa",
    quantize: Rounded4 | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = _LOG.info,
) -> Any:
    """A causal language model on the host, in eval mode and without gradients.

    Args:
        source: the folder of a checkpoint, plain or in 4 bits, or a GGUF file.
        dtype: `auto` for what the folder's weights are stored in; float32 for a GGUF file.
        quantize, progress, say: as of `load_model`.

    Raises:
        ModelError: files that are missing, damaged, or of another kind.
    """
    path = Path(source).expanduser()
    tensors: dict[str, Any]
    if path.suffix == SUFFIX:
        config, tensors = _read_gguf(path)
        found, stored = Which({}, "a GGUF file is unpacked"), torch.float32
    else:
        checkpoint = check_checkpoint(path)
        config = _config(path)
        tensors = {name: Later(entry) for name, entry in checkpoint.tensors.items()}
        found, stored = which(described(path), checkpoint.tensors), stored_dtype(config, checkpoint)
    options = Options(
        dtype=stored if isinstance(dtype, str) else dtype,
        attention=attention,
        quantize=quantize,
        progress=progress,
        say=say,
    )
    return load_tensors(path, tensors, found, config, AutoModelForCausalLM, options).model


def text_tokenizer(source: str | Path) -> Any:
    """The tokenizer of a folder or a GGUF file."""
    path = Path(source).expanduser()
    folder, more = (path.parent, {"gguf_file": path.name}) if path.suffix == SUFFIX else (path, {})
    try:
        return AutoTokenizer.from_pretrained(folder, **more)
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise ModelError(f"{path} has no tokenizer that can be read: {told(error)}.") from error


def _config(folder: Path) -> Any:
    try:
        return AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise ModelError(f"{folder} has no config that can be read: {told(error)}.") from error


def _read_gguf(path: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    """The config, and every weight in float32 by its name in transformers' model."""
    if not path.is_file():
        raise ModelError(f"There is no file {path}: give a GGUF file.")
    try:
        from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

        config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
        skeleton, _ = build(config, "sdpa", torch.float32, AutoModelForCausalLM)
        return config, load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=skeleton)["tensors"]
    except ImportError as error:
        raise ModelError(f"{path} needs the package gguf: pip install gguf.") from error
    except ModelError:
        raise
    except Exception as error:  # whatever the reader raises at bytes that make no sense
        raise ModelError(f"{path} cannot be read as a GGUF file: {told(error)}.") from error
