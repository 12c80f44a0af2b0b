"""Load a model from a folder or the hub onto the host. Knows transformers' auto classes, no card.

`load_model("folder")` checks the files first (milliseconds, nothing allocated), then loads by the one path that every
checkpoint takes, and refuses a model of which a weight would have stayed random.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.utils import logging as library_logging

from mmswap.errors import ModelError
from mmswap.llm.checkpoint import Checkpoint, check_checkpoint, read_json
from mmswap.llm.source import resolve_source
from mmswap.units import MIB, format_bytes

_LOG = logging.getLogger("mmswap")
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_SMALL = 200 * MIB  # below this, slow kernels are not felt

Progress = Callable[[int, int], None]


def load_model(
    source: str | Path,
    *,
    dtype: torch.dtype | str = "auto",
    attention: str = "sdpa",
    trust_remote_code: bool = False,
    progress: Progress | None = None,
) -> Any:
    """An image-text-to-text model on the host, in eval mode, without gradients.

    Args:
        source: a folder, or an id on the hub.
        dtype: a torch dtype, or `auto`: what the checkpoint is stored in.
        attention: `sdpa` or `eager`.
        progress: called with (tensors loaded, tensors in all).

    Raises:
        ModelError: damaged or incomplete files, a model of another kind, weights that are missing.
    """
    folder = resolve_source(source, trust_remote_code=trust_remote_code)
    checkpoint = check_checkpoint(folder)
    config = load_config(folder, trust_remote_code=trust_remote_code)
    wanted = stored_dtype(config, checkpoint) if isinstance(dtype, str) else dtype
    more = {"config": config, "dtype": wanted, "trust_remote_code": trust_remote_code}
    more |= {"output_loading_info": True, "ignore_mismatched_sizes": True}  # both so that `_complete` can name tensors
    with _progress_to(progress):
        try:
            model, told = _from_pretrained(folder, attention, more)
        except (OSError, ValueError, RuntimeError, ImportError, KeyError) as error:
            raise ModelError(f"{folder} cannot be loaded as {config.model_type}: {_sentence(error)}") from error
    _complete(folder, told)
    return model.eval().requires_grad_(False)


def _from_pretrained(folder: Path, attention: str, more: dict[str, Any]) -> Any:
    """(model, loading info); a model that cannot do with `sdpa` is given `eager`, and that is said."""
    try:
        return AutoModelForImageTextToText.from_pretrained(folder, attn_implementation=attention, **more)
    except ValueError as error:
        if attention == "eager" or "scaled_dot_product_attention" not in str(error):
            raise
    _LOG.warning("%s has no %s attention: eager is used, which takes more memory.", folder, attention)
    return AutoModelForImageTextToText.from_pretrained(folder, attn_implementation="eager", **more)


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
            f"{_sentence(error)}"
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


def _complete(folder: Path, told: dict[str, Any]) -> None:
    """Refuse random weights: a checkpoint that lacks a tensor, or holds one of another shape."""
    for kind, why in (("missing_keys", "lacks"), ("mismatched_keys", "has other shapes for")):
        keys = sorted(str(key[0] if isinstance(key, tuple) else key) for key in told.get(kind) or ())
        if keys:
            more = f" and {len(keys) - 5} more" if len(keys) > 5 else ""
            raise ModelError(f"{folder} {why} {', '.join(keys[:5])}{more}: these weights would be random.")
    unused = sorted(map(str, told.get("unexpected_keys") or ()))
    if unused:
        _LOG.warning("%s holds %d tensors that the model does not use, such as %s.", folder, len(unused), unused[0])


def _sentence(error: BaseException) -> str:
    """The first line of a library's error, without its advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".") + "."


class _Counter:
    """Stands in for transformers' progress bar and hands the counts on."""

    def __init__(self, items: Iterable[Any] | None, progress: Progress | None, total: int | None) -> None:
        self._items, self._progress = items if items is not None else (), progress
        self._total = total if total is not None else len(items) if hasattr(items, "__len__") else 0  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        for count, item in enumerate(self._items, start=1):
            yield item
            if self._progress is not None:
                self._progress(count, max(self._total, count))

    def __enter__(self) -> _Counter:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


@contextmanager
def _progress_to(progress: Progress | None) -> Iterator[None]:
    """Hand transformers' loading progress to `progress`, or to nobody; its own bar stays away."""
    hook = getattr(library_logging, "set_tqdm_hook", None)
    if hook is None:
        yield
        return

    def count(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Counter:
        return _Counter(args[0] if args else kwargs.get("iterable"), progress, kwargs.get("total"))

    before = hook(count)
    try:
        yield
    finally:
        hook(before)
