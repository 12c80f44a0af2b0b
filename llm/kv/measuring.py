"""Measures offsets and widths of a model's keys and values, and what each kind of cache costs its attention.

    calibration = measure(model, [Prompted(inputs), ...], name="...", contexts=(128, 2048))

Every prompt is read twice: first for the numbers, then with each kind's own numbers, beside attention without it. Only
the last tokens of a prompt are compared: they see all the others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers import DynamicCache

from mmswap.errors import OptionError
from mmswap.llm.kv.calibration import Calibration, Layer, matrix
from mmswap.llm.kv.kinds import KINDS, Kind
from mmswap.llm.kv.layer import GrowingLayer
from mmswap.llm.kv.opening import Survey, unusual
from mmswap.llm.parts import Parts, find_parts
from mmswap.llm.prefill import chunked
from mmswap.llm.request import first_inputs, prepare
from mmswap.swap.profile import fingerprint

ROWS = 32  # queries of each pass that are compared
TRIED = tuple(kind for kind in KINDS.values() if kind.quantised)
Replay = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Prompted:
    """A prompt as the processor gives it, and where the model finds its picture's features."""

    inputs: Mapping[str, Tensor]
    replay: Replay | None = None


def measure(
    model: Any,
    prompts: Sequence[Prompted],
    *,
    name: str = "",
    key: str | None = None,
    kinds: Iterable[Kind] = TRIED,
    chunk: int = 2048,
    say: Callable[[str], None] = lambda _: None,
) -> Calibration:
    """What the keys and values of `model` look like on `prompts`.

    Args:
        key: what it is kept under (`Caching.key`); by default `key_of` the model as it is now.
        kinds: what is tried on them. chunk: tokens of one prefill pass. say: told what is being done.

    Raises:
        OptionError: this model keeps transformers' own cache, for which nothing is to be measured.
    """
    why = unusual(model)
    if why is not None:
        raise OptionError(f"There is nothing to measure for --kv: {why}.")
    parts, survey = find_parts(model), Survey.of(model)
    seen = _Numbers()
    worst: dict[int, dict[str, float]] = {}
    contexts = tuple(int(prompt.inputs["input_ids"].shape[1]) for prompt in prompts)
    for prompt, tokens in zip(prompts, contexts):
        say(f"Reading {tokens} tokens.")
        _read(model, parts, prompt, chunk, _Recorder(survey, seen))
    layers = seen.layers()
    found = Calibration("", name, "", layers=layers)
    trial = _Trial(found, tuple(kinds), survey.offsets, worst)
    for prompt, tokens in zip(prompts, contexts):
        say(f"Reading {tokens} tokens once more, with each kind of cache.")
        _read(model, parts, prompt, chunk, _Recorder(survey, trial))
    for index, layer in layers.items():
        layer.cosine.update(worst.get(index, {}))
    how = f"measured on {sum(contexts)} tokens in {len(contexts)} prompts"
    return Calibration(key_of(model) if key is None else key, name, how, contexts, layers)


def key_of(model: Any) -> str:
    """What a calibration is for: the config, and the small weights (norms, biases) of the language model."""
    config = json.loads(json.dumps(model.config.to_dict(), default=str))
    digest = hashlib.sha256(fingerprint(config, "", "", "kv", "").encode())
    for name, weight in sorted(find_parts(model).decoder.named_parameters()):
        if weight.ndim == 1:
            digest.update(name.encode())
            digest.update(weight.detach().float().cpu().clone().numpy().tobytes())  # `numpy()` pins the storage
    return digest.hexdigest()[:32]


@torch.no_grad()
def _read(model: Any, parts: Parts, prompt: Prompted, chunk: int, recorder: _Recorder) -> None:
    replay = prompt.replay or nullcontext
    with replay():
        prepared = prepare(model, prompt.inputs, 1, cache=recorder)
        with chunked(parts.decoder, chunk, last_only=True), recorder.watching():
            prepared.model(**first_inputs(prepared), return_dict=True)


class _Watcher(Protocol):
    """Is shown every layer's new keys and values, and each query beside all keys and values so far."""

    def take(self, index: int, k: Tensor, v: Tensor) -> None: ...

    def look(self, index: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None) -> None: ...


class _Numbers:
    """Sums and extremes of every layer's keys and values."""

    def __init__(self) -> None:
        self._count: dict[int, int] = {}
        self._sum: dict[int, Tensor] = {}
        self._low: dict[int, Tensor] = {}
        self._high: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}

    def take(self, index: int, k: Tensor, v: Tensor) -> None:
        keys, largest = k.float(), v.float().abs().amax((0, 2, 3))
        low, high, total = keys.amin((0, 2)), keys.amax((0, 2)), keys.double().sum((0, 2))
        if index in self._count:
            low, high = torch.minimum(low, self._low[index]), torch.maximum(high, self._high[index])
            total, largest = total + self._sum[index], torch.maximum(largest, self._values[index])
        self._low[index], self._high[index], self._sum[index], self._values[index] = low, high, total, largest
        self._count[index] = self._count.get(index, 0) + k.shape[0] * k.shape[2]

    def look(self, index: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None) -> None:
        """Queries do not count."""

    def layers(self) -> dict[int, Layer]:
        return {
            index: Layer(
                matrix(self._sum[index] / count),
                matrix(self._low[index]),
                matrix(self._high[index]),
                [float(f"{value:.6g}") for value in self._values[index].tolist()],
            )
            for index, count in sorted(self._count.items())
        }


class _Trial:
    """Attention over all keys so far, with each kind and without: the worst cosine of each layer."""

    def __init__(
        self, found: Calibration, kinds: tuple[Kind, ...], offsets: bool, worst: dict[int, dict[str, float]]
    ) -> None:
        self._found, self._kinds, self._offsets, self._worst = found, kinds, offsets, worst

    def take(self, index: int, k: Tensor, v: Tensor) -> None:
        """Nothing is to be tried before there is a query."""

    def look(self, index: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None) -> None:
        q, mask = _last_rows(q, k, mask)
        wanted = _attend(q, k, v, mask, scale)
        for kind in self._kinds:
            known = self._found.ranges(index, kind, offsets=self._offsets)
            layer = GrowingLayer(kind, k.shape[2], known=known, offsets=self._offsets, index=index)
            got = _attend(q, *layer.update(k, v), mask, scale)
            cosine = float(functional.cosine_similarity(got.flatten(), wanted.flatten(), dim=0))
            held = self._worst.setdefault(index, {})
            held[kind.name] = min(held.get(kind.name, 1.0), round(cosine, 6))


class _Recorder(DynamicCache):  # type: ignore[misc]
    """transformers' own cache, which shows what goes into it and what is asked of it."""

    def __init__(self, survey: Survey, watcher: _Watcher) -> None:
        super().__init__(config=survey.config)
        self._own = set(survey.own)
        self.watcher = watcher
        self.last: tuple[int, Tensor, Tensor] | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """As transformers' own."""
        found: tuple[Tensor, Tensor] = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        if layer_idx in self._own:
            self.watcher.take(layer_idx, key_states, value_states)
            self.last = (layer_idx, *found)
        return found

    def watching(self) -> AbstractContextManager[Any]:
        """Shows queries too."""
        return _Queries(self)


class _Queries(TorchFunctionMode):
    """Hands each query on with the keys that were stored right before it."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        last = self._recorder.last
        if func is functional.scaled_dot_product_attention and last is not None:
            query = args[0] if args else given["query"]
            self._recorder.last = None
            if query.shape[-1] == last[1].shape[-1]:
                mask, scale = given.get("attn_mask"), given.get("scale")
                self._recorder.watcher.look(last[0], query, last[1], last[2], mask, scale)
        return func(*args, **given)


def _last_rows(q: Tensor, k: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The last queries, and bool [.., rows, keys]: what they may see."""
    rows, keys = min(ROWS, q.shape[2]), k.shape[2]
    places = torch.arange(keys, device=q.device)
    causal = places[None] <= places[keys - rows :, None]
    if mask is None:
        return q[:, :, -rows:], causal
    part = mask[..., -rows:, -keys:]
    return q[:, :, -rows:], part if part.dtype == torch.bool else part > torch.finfo(part.dtype).min / 2


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float | None) -> Tensor:
    repeats = q.shape[1] // k.shape[1]
    keys, values = (part.float().repeat_interleave(repeats, 1) for part in (k, v))
    scores = q.float() @ keys.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    return scores.masked_fill(~mask, torch.finfo(torch.float32).min).softmax(-1) @ values
