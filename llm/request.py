"""One request on its way through a transformers model: what every forward of it is given, and what the model recalls.

`prepare` lets the model's own `generate()` set up cache, positions and masks, and stops it before its loop, so that
every family is set up exactly as unpatched. `RequestState` keeps what a model stores on itself between two forwards
(such as rope deltas) per request, so that requests can take turns on one model.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig

from mmswap.errors import MmswapError, ModelError
from mmswap.swap.dry_run import cache_argument

_PER_TOKEN_KINDS = ("token_type_ids", "mm_token_type_ids")
_ABSENT = object()
ODD = (MmswapError, TypeError, ValueError, KeyError, RuntimeError, IndexError, AttributeError, AssertionError)
"""What a model's own code raises at a prompt that it was not made for."""


@dataclass(slots=True)
class Prepared:
    """`ids [1, T]` are those that `model` continues (the model itself, or the language model within that its own
    `generate()` turns to); `kwargs` go into every forward of the request."""

    model: Any
    ids: Tensor
    kwargs: dict[str, Any]


@torch.no_grad()
def prepare(model: Any, inputs: Mapping[str, Any], new_tokens: int, cache: Any = None) -> Prepared:
    """Set up a request as `model.generate(**inputs)` would, without running the decoder.

    Where `generate()` encodes the picture beforehand, that happens here: a tower's `replay` has to be around this call.

    Args:
        cache: what the request keeps its keys and values in; None: transformers' own.

    Raises:
        ModelError: the model does not take such a prompt (one without a picture, for some).
    """
    caught: list[Prepared] = []

    def catch(model: Any, input_ids: Tensor, *_: Any, **kwargs: Any) -> Tensor:
        for name in ("logits_processor", "stopping_criteria", "generation_config", "synced_gpus", "streamer"):
            kwargs.pop(name, None)
        caught.append(Prepared(model, input_ids, kwargs))
        return input_ids

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            config = _plain_config(model, new_tokens)
            given = _accepted(model, inputs)
            if cache is not None:
                given |= cache_argument(model, cache)
                config.cache_implementation = None
            model.generate(**given, generation_config=config, custom_generate=catch)
        except (TypeError, ValueError) as error:
            raise ModelError(f"{type(model).__name__} does not take this prompt: {error}") from error
    (prepared,) = caught
    start = getattr(
        prepared.model, "_get_initial_cache_position", None
    )  # transformers before 5.1 counts positions by hand
    if start is not None:
        prepared.kwargs = start(prepared.ids.shape[1], prepared.ids.device, prepared.kwargs)
    return prepared


def first_inputs(prepared: Prepared) -> dict[str, Any]:
    """What the prefill's forward is given."""
    return dict(prepared.model.prepare_inputs_for_generation(prepared.ids, is_first_iteration=True, **prepared.kwargs))


def later_inputs(prepared: Prepared, count: int) -> dict[str, Any]:
    """What a forward over the last `count` tokens is given, those before them being in the cache.

    Raises:
        ModelError: this version of transformers has no word for that.
    """
    if not _takes_length(prepared.model):
        raise ModelError("This version of transformers reads a prompt whole: update it.")
    model = prepared.model
    return dict(model.prepare_inputs_for_generation(prepared.ids, next_sequence_length=count, **prepared.kwargs))


def next_inputs(prepared: Prepared, outputs: Any, token: int) -> dict[str, Any]:
    """Take the last outputs and the chosen token into the request; what the next forward is given."""
    model = prepared.model
    encoder_decoder = bool(model.config.is_encoder_decoder)
    prepared.kwargs = model._update_model_kwargs_for_generation(outputs, prepared.kwargs, encoder_decoder)
    prepared.ids = torch.cat([prepared.ids, prepared.ids.new_tensor([[token]])], dim=1)
    step = {"next_sequence_length": 1} if _takes_length(model) else {}
    return dict(model.prepare_inputs_for_generation(prepared.ids, **step, **prepared.kwargs))


def _takes_length(model: Any) -> bool:
    generic: Any = next(kind for kind in type(model).__mro__ if kind.__name__ == "GenerationMixin")
    return "next_sequence_length" in inspect.signature(generic.prepare_inputs_for_generation).parameters


def _plain_config(model: Any, new_tokens: int) -> GenerationConfig:
    """The checkpoint's generation config without anything that chooses tokens: that is the sampler's affair."""
    config = copy.deepcopy(model.generation_config) or GenerationConfig()
    config.max_length, config.min_length, config.min_new_tokens = None, None, None
    config.max_new_tokens = new_tokens
    config.do_sample, config.num_beams, config.num_return_sequences = False, 1, 1
    config.temperature, config.top_p, config.top_k, config.min_p, config.typical_p = None, None, None, None, None
    config.cache_implementation, config.prefill_chunk_size, config.use_cache = "dynamic", None, True
    config.output_attentions, config.output_hidden_states, config.return_dict_in_generate = False, False, False
    if config.pad_token_id is None:
        ends = config.eos_token_id
        config.pad_token_id = ends[0] if isinstance(ends, list) and ends else ends if isinstance(ends, int) else 0
    return config


def _accepted(model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """All inputs, save token kinds that the model's forward has no name for: tokenizers add them unasked."""
    known = inspect.signature(model.forward).parameters
    return {name: value for name, value in inputs.items() if name not in _PER_TOKEN_KINDS or name in known}


class RequestState:
    """What a model keeps on itself for one request: plain attributes of its modules that a forward changed.

    `with state.applied(): ...` shows the model this request's values and, after, whatever stood there before.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(model.modules())
        self._mine: dict[tuple[int, str], Any] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note what changes in the block (the prefill), and undo it after."""
        before = [_plain(module) for module in self._modules]
        try:
            yield
        finally:
            for index, (module, old) in enumerate(zip(self._modules, before)):
                for name, value in _plain(module).items():
                    if value is not old.get(name, _ABSENT):
                        self._mine[index, name] = value
                        _put(module, name, old.get(name, _ABSENT))

    @contextmanager
    def applied(self) -> Iterator[None]:
        outside = {key: vars(self._modules[key[0]]).get(key[1], _ABSENT) for key in self._mine}
        for (index, name), value in self._mine.items():
            _put(self._modules[index], name, value)
        try:
            yield
        finally:
            for index, name in self._mine:
                self._mine[index, name] = vars(self._modules[index]).get(name, _ABSENT)
            for (index, name), value in outside.items():
                _put(self._modules[index], name, value)


def _plain(module: nn.Module) -> dict[str, Any]:
    kinds = (Tensor, int, float, type(None))
    return {k: v for k, v in vars(module).items() if isinstance(v, kinds) and k != "training"}


def _put(module: nn.Module, name: str, value: Any) -> None:
    if value is _ABSENT:
        vars(module).pop(name, None)
    else:
        vars(module)[name] = value
