"""Each attention backend of torch, called on a small and on a large shape, and compared with plain math on the host.

torch calls a backend enabled that then fails, or asks for the whole score matrix; only a call tells. Knows no model.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmswap.doctor.check import Check, State, sentence
from mmswap.hip_ext.arch import is_rdna
from mmswap.units import GIB, format_bytes

AOTRITON = "TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL"
DEFAULT = "default"
MATH = "math"
BACKENDS = {
    MATH: "MATH",
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    DEFAULT: "",
}
FUSED = ("flash", "efficient", "cudnn")
NOT_THERE = "torch has no such kernel for this device and shape"
STAND_IN = "not compiled with CUDA enabled"  # devices that somebody put over a torch without kernels for any
ROWS = 64  # queries of the large shape that are compared
LARGE_NEEDS = GIB  # bytes: math attention on the large shape, with room

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Meter = Callable[[Attend, Tensor, Tensor, Tensor], int | None]


@dataclass(frozen=True, slots=True)
class Shape:
    """Batch 1; the large one has the head size of a vision tower."""

    name: str
    heads: int
    tokens: int
    head_dim: int

    def matrix(self, itemsize: int) -> int:
        """Bytes of all scores."""
        return self.heads * self.tokens**2 * itemsize


SMALL = Shape("small", 2, 37, 64)
LARGE = Shape("large", 8, 2048, 80)
LARGE_ON_HOST = Shape("large", 2, 1024, 80)


@dataclass(frozen=True, slots=True)
class Trial:
    """One backend on one shape: the error it raised, or how far off it was and what it took beside its operands."""

    shape: Shape
    error: str = ""
    off: float = 0.0
    wrong: bool = False
    scratch: int | None = None
    quadratic: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "tokens": self.shape.tokens,
            "works": not self.error and not self.wrong,
            "error": self.error,
            "off": self.off,
            "scratch_bytes": self.scratch,
            "score_matrix": self.quadratic,
        }


@dataclass(frozen=True, slots=True)
class SelfTest:
    """The attention self-test on one device.

    Attributes:
        meter: runs a call and says how many bytes it took beyond its operands and result, if that is known.
        attend: `scaled_dot_product_attention`.
    """

    device: torch.device
    dtype: torch.dtype
    shapes: tuple[Shape, ...]
    meter: Meter
    attend: Attend = torch.nn.functional.scaled_dot_product_attention

    def check(self, backend: str) -> Check:
        """One line for one backend of `BACKENDS`."""
        trials = [self._trial(backend, shape) for shape in self.shapes]
        facts: dict[str, Any] = {trial.shape.name: trial.to_json() for trial in trials}
        facts["enabled"] = enabled(backend)
        return _line(backend, trials, facts)

    def _trial(self, backend: str, shape: Shape) -> Trial:
        q, k, v = self._operands(shape)
        with warnings.catch_warnings(record=True) as heard, forced(backend):
            warnings.simplefilter("always")
            try:
                result = self.attend(q, k, v)
                off = _off(result, q, k, v)  # waits for the kernel
                scratch = self.meter(self.attend, q, k, v)
            except Exception as error:
                return Trial(shape, _why(error, [str(one.message) for one in heard]))
        allowed = 1e-4 if self.dtype == torch.float32 else 3e-2
        quadratic = scratch is not None and scratch >= shape.matrix(q.element_size()) // 2
        return Trial(shape, "", round(off, 6), not off <= allowed, scratch, quadratic)

    def _operands(self, shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v [1, heads, tokens, head_dim], the same at every run; q is twice as wide, for scores that differ."""
        random = torch.Generator().manual_seed(shape.tokens)
        size = (1, shape.heads, shape.tokens, shape.head_dim)
        q, k, v = (torch.randn(size, generator=random).to(self.dtype).to(self.device) for _ in range(3))
        return q * 2, k, v


def forced(backend: str) -> Any:
    """The context in which torch may take this backend alone; for `default`, the one that changes nothing."""
    if backend == DEFAULT:
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel([getattr(SDPBackend, BACKENDS[backend])])


def enabled(backend: str) -> bool | None:
    """What torch says about the backend, without having called it."""
    names = {MATH: "math_sdp", "flash": "flash_sdp", "efficient": "mem_efficient_sdp", "cudnn": "cudnn_sdp"}
    ask = getattr(torch.backends.cuda, f"{names.get(backend, '')}_enabled", None)
    return bool(ask()) if ask is not None else None


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d)) v, in float32 on the host."""
    q, k, v = (tensor.detach().cpu().float() for tensor in (q, k, v))
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return scores.softmax(-1) @ v


def _off(result: Tensor, q: Tensor, k: Tensor, v: Tensor) -> float:
    """Largest deviation from plain math attention, as a share of its largest value; of some of the queries, at most."""
    step = max(1, q.shape[-2] // ROWS)
    want = plain(q[..., ::step, :], k, v)
    got = result[..., ::step, :].detach().cpu().float()
    off = float((got - want).abs().max() / want.abs().max())
    return off if math.isfinite(off) else math.inf


def _why(error: Exception, heard: list[str]) -> str:
    """The error, and the first of torch's warnings that gives a reason; torch's own 'not used because' says nothing."""
    reasons = [text.split(" (Triggered internally")[0].strip() for text in heard]
    reasons = [text for text in reasons if text and not text.endswith("because:")]
    said = NOT_THERE if "No viable backend" in str(error) else sentence(error)
    return said + (f" ({reasons[0][:160]})" if reasons else "")


def _line(backend: str, trials: list[Trial], facts: Mapping[str, Any]) -> Check:
    name = f"attention {backend}"
    failed = [trial for trial in trials if trial.error]
    wrong = [trial for trial in trials if trial.wrong]
    needed = backend in (MATH, DEFAULT)
    if failed:
        shapes = "on every shape" if len(failed) == len(trials) else f"on the {failed[0].shape.name} shape"
        reason = failed[0].error
        if reason.startswith(NOT_THERE) and not needed and len(failed) == len(trials):
            return Check(name, "ok", "not there", reason, facts=facts)
        state: State = "unknown" if STAND_IN in reason else "broken" if needed else "ok"
        return Check(name, state, f"fails {shapes}", reason, facts=facts)
    worst = max(trial.off for trial in trials)
    if wrong:
        reason = f"off by {worst:.2g} of the largest value on the {wrong[0].shape.name} shape"
        advice = "use --attention eager, and report this page" if needed else ""
        return Check(name, "broken" if needed else "note", "wrong results", reason, advice, facts)
    return Check(name, "ok", f"right within {worst:.1g}; {_memory(trials[-1])}", facts=facts)


def _memory(trial: Trial) -> str:
    """How the bytes grow, as seen on the large shape."""
    if trial.scratch is None:
        return "its memory is not known"
    kind = "the whole score matrix" if trial.quadratic else "no score matrix"
    return f"{kind}: {format_bytes(trial.scratch)} at {trial.shape.tokens} tokens"


def verdict(found: Mapping[str, Check], arch: str, environ: Mapping[str, str] = os.environ) -> Check:
    """From the lines of all backends: does the attention that will run need a score matrix, and what helps?

    Args:
        found: the checks by backend.
        arch: the architecture of the accelerator; empty on the processor.
    """
    name = "attention"
    fused = [backend for backend in FUSED if backend in found and _works(found[backend])]
    default = found.get(DEFAULT)
    if default is None or default.state == "unknown":
        return Check(name, "unknown", "not known", "what torch takes by itself could not be called")
    large = dict(default.facts).get("large", {})
    facts = {"fused": fused, "score_matrix": large.get("score_matrix"), AOTRITON: environ.get(AOTRITON)}
    on = environ.get(AOTRITON, "") not in ("", "0")
    switch = f"{AOTRITON}={environ[AOTRITON]}" if AOTRITON in environ else f"{AOTRITON} is not set"
    if not is_rdna(arch):
        switch = ""
    if fused and not large.get("score_matrix"):
        return Check(name, "ok", f"memory-efficient by {' and '.join(fused)}", switch, facts=facts)
    value = (
        "math alone: every image asks for whole score matrices" if not fused else "the default asks for score matrices"
    )
    advice = ""
    if is_rdna(arch) and not fused:
        advice = (
            f"set {AOTRITON}=1" if not on else "flash and efficient fail although the switch is set: try a newer torch"
        )
    return Check(name, "note", value, switch, advice, facts)


def _works(check: Check) -> bool:
    trials = [value for value in check.facts.values() if isinstance(value, dict)]
    return bool(trials) and all(trial["works"] for trial in trials)


def self_test(card: Any) -> SelfTest:
    """For a card; the large shape only where there is room for it."""
    backend = getattr(card, "backend", None)
    if backend is None:
        return SelfTest(torch.device("cpu"), torch.float32, (SMALL, LARGE_ON_HOST), _host_meter)
    shapes = (SMALL, LARGE) if card.free().bytes >= LARGE_NEEDS else (SMALL,)
    return SelfTest(card.device, torch.float16, shapes, _card_meter(backend, card.index))


def backends() -> list[str]:
    """Names of the backends that this torch knows, in the order in which they are tried."""
    from torch.nn.attention import SDPBackend

    return [name for name, member in BACKENDS.items() if not member or hasattr(SDPBackend, member)]


def _host_meter(attend: Attend, q: Tensor, k: Tensor, v: Tensor) -> int | None:
    from mmswap.swap.meter import CpuMeter

    return CpuMeter().scratch(torch.ops.aten.scaled_dot_product_attention.default, (q, k, v), {})


def _card_meter(backend: Any, index: int) -> Meter:
    def meter(attend: Attend, q: Tensor, k: Tensor, v: Tensor) -> int | None:
        backend.synchronize(index)
        backend.reset_peak(index)
        before = backend.allocated(index)
        result = attend(q, k, v)
        backend.synchronize(index)
        peak = backend.peak_allocated(index)
        return max(0, int(peak) - int(before) - result.untyped_storage().nbytes())

    return meter
