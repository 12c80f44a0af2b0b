"""Finding a peak without spending it: a call is traced on a twin that holds shapes instead of bytes.

    dry_run = DryRun(model)
    peak = dry_run.tower_peak(lambda twin, call: find_tower(twin).run(call), call)
    peak.live, peak.with_scratch, peak.beyond(lent)

Knows modules and bytes; what the call means is the caller's affair. Never fails: what cannot be traced is taken as
300 MiB, and the log says why. `measure` is the other way to know: one real run.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from mmswap.errors import told
from mmswap.swap import kernels
from mmswap.swap.fake import FakeTrace, fake_tensors, fake_twin, is_fake
from mmswap.swap.meter import CpuMeter, CudaMeter
from mmswap.swap.peak import Peak, summits
from mmswap.swap.repeat import repeats_skipped
from mmswap.swap.replay import ARENA, TORCH, Policy
from mmswap.swap.scratch import ScratchTable
from mmswap.swap.tracker import LiveTracker, tensors_of
from mmswap.units import MIB, format_bytes

FALLBACK = 300 * MIB
REMEMBERED = 64  # answers: one holds the lifetimes of a whole call
_log = logging.getLogger(__name__)
_SelfT = TypeVar("_SelfT", bound="Mapped")


class Mapped(Protocol):
    """A call that can be made again with other tensors: `vision.tower.Call` is one."""

    def mapped(self: _SelfT, change: Callable[[Tensor], Any]) -> _SelfT: ...


_CallT = TypeVar("_CallT", bound=Mapped)


class _HasDevice(Protocol):
    @property
    def device(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class PrefillPeak:
    """What the language model needs for a prompt, the cache apart, so that the caller can claim both.

    Attributes:
        peak: the call's peak, the cache's growth included (it grows inside the call).
        kv_bytes: bytes by which the cache has grown when the call is over.
        tokens: of the prompt.
        cache: the cache on the twin when the call is over: layouts without numbers. None if nothing was traced.
    """

    peak: Peak
    kv_bytes: int
    tokens: int
    cache: Any = field(default=None, repr=False)

    @property
    def kv_bytes_per_token(self) -> int:
        return -(-self.kv_bytes // self.tokens)


class DryRun:
    """Made once per model; remembers the last answers by the shapes of the inputs and the values of their integers.

    One call at a time may trace; others wait. The model's parameters are never read, only their shapes.

    Args:
        model: the live model, on any device (meta will do).
        twin: its double if `fake_twin` cannot make it, as for weights in a packed format.
        scratch: the per-op table; by default `calibrate(policy)`.
        policy: how the card's allocator takes memory; see `policy_of`.
        skip_repeats: blocks that repeat are traced once; the figures are the same either way.

    Attributes:
        failed: whether an answer was ever taken as 300 MiB.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        twin: nn.Module | None = None,
        scratch: ScratchTable | None = None,
        policy: Policy = ARENA,
        skip_repeats: bool = True,
    ) -> None:
        self._skip = skip_repeats
        self._scratch = scratch if scratch is not None else calibrate(policy)
        self._policy = policy
        self._answers: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()
        self._twin: nn.Module | None = None
        self._broken: Exception | None = None
        self.failed = ""
        try:
            self._twin = twin if twin is not None else fake_twin(model)
        except Exception as error:
            self._broken = error

    def tower_peak(self, run: Callable[[nn.Module, _CallT], Any], call: _CallT) -> Peak:
        """The peak of `run(model, call)`, found by running it on the twin.

        Args:
            run: makes the call on the module it is given and returns the result.
            call: its arguments; float tensors are replaced by fake ones, integers and bools keep their values.
        """
        asked: list[Hashable] = []

        def note(tensor: Tensor) -> Tensor:
            asked.append(_signature(tensor))
            return tensor

        call.mapped(note)
        key = (getattr(run, "__code__", run), tuple(asked))

        def trace(twin: nn.Module) -> Peak:
            faked = call.mapped(lambda tensor: fake_tensors(tensor, twin))
            return self._traced(twin, lambda: run(twin, faked))

        found: Peak = self._answer(("tower", key), trace, lambda peak: peak)
        return found

    def prefill_peak(self, decoder: str, tokens: int, **arguments: Any) -> PrefillPeak:
        """The peak of the language model's prefill of `tokens` tokens in one pass, with an empty cache before it.

        Args:
            decoder: the dotted path of the module that takes `inputs_embeds [1, T, C]` and a cache.
            tokens: T, image tokens included.
            arguments: passed to it besides: masks, position ids, cross-attention states.
        """
        key = (
            "prefill",
            decoder,
            tokens,
            tuple((name, _signature(value)) for name, value in sorted(arguments.items())),
        )

        def trace(twin: nn.Module) -> PrefillPeak:
            module = twin.get_submodule(decoder)
            given = fake_tensors(embedded(module, tokens) | arguments, twin)
            cache = DynamicCache(config=module.config)
            before = _cache_bytes(cache)
            peak = self._traced(
                twin, lambda: module(**given, **cache_argument(module, cache), use_cache=True).last_hidden_state
            )
            return PrefillPeak(peak, _cache_bytes(cache) - before, tokens, cache)

        found: PrefillPeak = self._answer(key, trace, lambda peak: PrefillPeak(peak, 0, tokens))
        return found

    def _traced(self, twin: nn.Module, call: Callable[[], Any]) -> Peak:
        with torch.inference_mode(False), torch.no_grad(), FakeTrace(twin, self._scratch) as trace:
            with repeats_skipped(twin, trace) if self._skip else nullcontext():
                result = call()
        events = self._scratch.settled(trace.events)
        live, with_scratch = summits(events)
        return Peak(live, with_scratch, _bytes_of(result), events, "trace", self._policy, result)

    def _answer(self, key: Hashable, trace: Callable[[nn.Module], Any], fall_back: Callable[[Peak], Any]) -> Any:
        with self._lock:
            if key not in self._answers:
                self._answers[key] = self._attempt(trace, fall_back)
            self._answers.move_to_end(key)
            while len(self._answers) > REMEMBERED:
                self._answers.popitem(last=False)
            return self._answers[key]

    def _attempt(self, trace: Callable[[nn.Module], Any], fall_back: Callable[[Peak], Any]) -> Any:
        try:
            if self._twin is None:
                raise self._broken or RuntimeError("there is no twin")
            return trace(self._twin)
        except Exception as error:
            how = f"{format_bytes(FALLBACK)}, because the dry run failed: {told(error)}"
            if not self.failed:  # one sentence for all sizes
                _log.warning("The peak is taken as %s", how)
            self.failed = told(error)
            return fall_back(Peak(FALLBACK, FALLBACK, 0, (), how, self._policy))


def measure(call: Callable[[], Any], card: _HasDevice) -> Peak:
    """The peak of one real run of `call` on `card`: lifetimes on the host, the allocator's own reading on a GPU."""
    device = torch.device(card.device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        result = call()
        torch.cuda.synchronize(device)
        peak = torch.cuda.max_memory_allocated(device) - before
        return Peak(peak, peak, _bytes_of(result), (), "measured", TORCH)
    with torch.no_grad(), LiveTracker() as tracker:
        result = call()
    return Peak(tracker.peak, tracker.peak, _bytes_of(result), tuple(tracker.events), "measured", ARENA)


def calibrate(policy: Policy, known: Mapping[str, Any] | None = None) -> ScratchTable:
    """A scratch table for a card with that allocator; it calibrates itself by what a trace asks of it.

    On a GPU (never run on one yet) small calls are measured on the current device, and no more than 32 MiB at once.

    Args:
        known: what `ScratchTable.state` gave earlier; taken over if it is for this device and this torch.
    """
    if policy is ARENA:
        table = ScratchTable(CpuMeter())
    else:
        table = ScratchTable(CudaMeter() if torch.cuda.is_available() else None, 32 * MIB, kernels.on_a_card)
    if known is not None:
        table.load(known)
    return table


def policy_of(device: Any) -> Policy:
    """How the allocator of a device takes memory."""
    return TORCH if torch.device(device).type == "cuda" else ARENA


def cache_argument(module: nn.Module, cache: Any) -> dict[str, Any]:
    """The keyword under which this version of transformers takes a cache."""
    name = "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"
    return {name: cache}


def embedded(decoder: Any, tokens: int) -> dict[str, Tensor]:
    """What a decoder is given for `tokens` embedded tokens, on meta: `inputs_embeds` [1, tokens, width] above all."""
    embedding = next(tensor for name, tensor in decoder.named_parameters() if "embed" in name)
    given = {"inputs_embeds": torch.empty(1, tokens, embedding.shape[1], dtype=embedding.dtype, device="meta")}
    if "per_layer_inputs" in inspect.signature(decoder.forward).parameters:
        width = getattr(decoder.config, "hidden_size_per_layer_input", 0)
        if width:  # a second embedding that enters at every layer
            shape = (1, tokens, decoder.config.num_hidden_layers, width)
            given["per_layer_inputs"] = torch.empty(shape, dtype=embedding.dtype, device="meta")
    return given


def _cache_bytes(cache: Any) -> int:
    """Bytes that a transformers cache holds: keys, values, recurrent states."""
    storages = {}
    for layer in cache.layers:
        for tensor in tensors_of(list(vars(layer).values())):
            storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
    return sum(storages.values())


def _bytes_of(result: Any) -> int:
    leaves = result.values() if isinstance(result, Mapping) else (result,)
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors_of(list(leaves))}
    return sum(storage.nbytes() for storage in storages.values())


def _signature(value: Any) -> Hashable:
    if not isinstance(value, Tensor):
        return repr(value)
    known = (value.dtype, tuple(value.shape), value.stride())
    if value.is_floating_point() or is_fake(value) or value.device.type == "meta":
        return known
    return (*known, value.cpu().numpy().tobytes())
