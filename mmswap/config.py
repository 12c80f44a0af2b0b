"""What a person can choose, as frozen dataclasses that are passed whole. Knows no torch; validates at once."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from mmswap.errors import OptionError
from mmswap.units import parse_bytes

BACKENDS = ("auto", "triton", "hip", "cpu", "reference")
"""What may compute the ops (`mmswap.llm.ops`)."""

SMALLEST_LIMIT = 256  # bytes; a bare number below is a size whose unit was forgotten
SMALLEST_CHUNK = 16  # prompt tokens of one forward pass; no smaller step is tried
KV_KINDS = ("auto", "fp32", "fp16", "bf16", "int8", "fp8", "fp8_e4m3", "fp8_e5m2")


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """How the next token is chosen, and when the answer ends.

    `temperature` at or below 1e-5 is greedy. `top_k` 0, `top_p` 1, `min_p` 0 and `repetition_penalty` 1 are off.
    `presence_penalty` is taken once from each token that the answer holds already, `frequency_penalty` as often as it
    does. `logit_bias`: (token, what is added to its logit). `logprobs`: how many likely tokens are noted beside each
    one that was chosen; 0 the chosen one alone, None nothing.
    `seed` None draws a fresh one; the generator belongs to the request, never to the process.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_new_tokens: int = 512
    stop: tuple[str, ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None

    def __post_init__(self) -> None:
        _require(math.isfinite(self.temperature) and self.temperature >= 0, "--temperature must be 0 or more.")
        _require(0 < self.top_p <= 1, "--top-p must be above 0 and at most 1.")
        _require(self.top_k >= 0, "--top-k must be 0 (off) or more.")
        _require(0 <= self.min_p < 1, "--min-p must be at least 0 and below 1.")
        _require(
            math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0,
            "--repetition-penalty must be above 0.",
        )
        _require(self.max_new_tokens >= 1, "--max-new-tokens must be 1 or more.")
        _require(all(self.stop), "A stop text must not be empty.")
        for name in ("presence_penalty", "frequency_penalty"):
            _require(math.isfinite(getattr(self, name)), f"{name} must be a finite number.")
        _require(all(math.isfinite(bias) for _, bias in self.logit_bias), "A logit bias must be a finite number.")
        _require(self.logprobs is None or self.logprobs >= 0, "logprobs must be 0 or more.")
        _require(self.seed is None or 0 <= self.seed < 2**63, "--seed must be between 0 and 2**63 - 1.")

    @classmethod
    def of(cls, **options: Any) -> SamplingConfig:
        """From keywords.

        Raises:
            OptionError: a name that does not exist, or a value that makes no sense.
        """
        for name in options:
            _require(name in cls.__slots__, f"There is no option '{name}': use {', '.join(sorted(cls.__slots__))}.")
        return cls(**options)

    @property
    def greedy(self) -> bool:
        return self.temperature <= 1e-5


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """Limits on pictures: pixels after resizing (None: the model's own), and pixels that may be decoded at all."""

    min_pixels: int | None = None
    max_pixels: int | None = None
    decode_limit: int = 100_000_000

    def __post_init__(self) -> None:
        _require(self.min_pixels is None or self.min_pixels >= 1, "--image-min-pixels must be 1 or more.")
        _require(self.max_pixels is None or self.max_pixels >= 1, "--image-max-pixels must be 1 or more.")
        _require(
            self.min_pixels is None or self.max_pixels is None or self.min_pixels <= self.max_pixels,
            f"--image-min-pixels ({self.min_pixels}) must not be above --image-max-pixels ({self.max_pixels}).",
        )
        _require(self.decode_limit >= 1, "The decode limit must be 1 pixel or more.")


@dataclass(frozen=True, slots=True)
class PixelLimits:
    """What is asked of one picture, within `ImageConfig`: its pixels after resizing. None: as of all others."""

    min_pixels: int | None = None
    max_pixels: int | None = None

    def __post_init__(self) -> None:
        for name in ("min_pixels", "max_pixels"):
            value = getattr(self, name)
            _require(value is None or (isinstance(value, int) and value >= 1), f"{name} must be a number from 1.")
        _require(
            self.min_pixels is None or self.max_pixels is None or self.min_pixels <= self.max_pixels,
            f"min_pixels ({self.min_pixels}) must not be above max_pixels ({self.max_pixels}).",
        )

    def __bool__(self) -> bool:
        return self.min_pixels is not None or self.max_pixels is not None


@dataclass(frozen=True, slots=True)
class SwapConfig:
    """How the window behaves.

    `layers`: 0 off, N > 0 always evict N units, -1 adaptive (`--mmproj-swap-layers`).
    `tower_on_cpu`: `--no-mmproj-offload`. `margin`: the share added to the predicted need.
    """

    layers: int = -1
    tower_on_cpu: bool = False
    margin: float = 0.05

    def __post_init__(self) -> None:
        _require(self.layers >= -1, "--mmproj-swap-layers must be -1 (adaptive), 0 (off) or the number of layers.")
        _require(0 <= self.margin <= 10, "The margin must be between 0 and 10.")


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Everything that `mmswap.load` needs besides the model's name.

    `card`: `auto`, `cpu`, `cuda`, `cuda:1`, `sim:16GiB`, `sim:16GiB@24GB/s`. `dtype`: `auto`, `float32`, `float16`,
    `bfloat16`. `quantize`: `int4` rounds the decoder's linear layers to 4 bits at load, `quantize_head` the output head
    too. `context`: tokens, None for what the model was made for. `attention`: `sdpa` or `eager`.
    `decode`: `auto`, or `model` for the model's own forward at every token. `backend`: what computes the ops, one of
    `BACKENDS`.
    `prefill_chunk`: most tokens of one prefill step. `vram_limit`: bytes of the card that this process may use, None
    for what the card says; a text such as `14GiB` is read (`--vram-limit`).
    `autotune`: kernels of a card are measured at a model's first load there.
    `kv`: one of `KV_KINDS`; `auto` keeps what the model computes. `kv_unsafe`: an fp8 cache even where it goes wrong.
    """

    card: str = "auto"
    dtype: str = "auto"
    quantize: str | None = None
    quantize_head: bool = False
    context: int | None = None
    attention: str = "sdpa"
    decode: str = "auto"
    backend: str = "auto"
    autotune: bool = True
    prefill_chunk: int = 2048
    vram_limit: int | None = None
    kv: str = "auto"
    kv_unsafe: bool = False
    trust_remote_code: bool = False
    image: ImageConfig = field(default_factory=ImageConfig)
    swap: SwapConfig = field(default_factory=SwapConfig)

    def __post_init__(self) -> None:
        _require(self.context is None or self.context >= 16, "--context must be 16 tokens or more.")
        _require(self.attention in ("sdpa", "eager"), "--attention must be sdpa or eager.")
        _require(self.decode in ("auto", "model"), "--decode must be auto or model.")
        _require(self.backend in BACKENDS, f"--backend {self.backend} is not known: use {', '.join(BACKENDS)}.")
        _require(
            self.dtype in ("auto", "float32", "float16", "bfloat16"),
            "--dtype must be auto, float32, float16 or bfloat16.",
        )
        _require(self.kv in KV_KINDS, f"--kv {self.kv} is not known: use {', '.join(KV_KINDS)}.")
        _require(self.quantize in (None, "int4"), f"--quantize must be int4, not {self.quantize}.")
        _require(self.quantize is not None or not self.quantize_head, "--quantize-head goes with --quantize int4.")
        _require(self.prefill_chunk >= 16, "--prefill-chunk must be 16 tokens or more.")
        object.__setattr__(self, "vram_limit", _limit(self.vram_limit))

    @classmethod
    def of(cls, **options: Any) -> RunConfig:
        """From flat keywords named like the flags: `card=`, `image_max_pixels=`, `mmproj_swap_layers=`, ...

        Raises:
            OptionError: a name that does not exist, or a value that makes no sense.
        """
        groups: dict[str, dict[str, Any]] = {"image": {}, "swap": {}, "": {}}
        for name, value in options.items():
            group, own_name = FLAT_NAMES.get(name, ("", name))
            groups[group][own_name] = value
        known = set(cls.__slots__) - {"image", "swap"}
        for name in groups[""]:
            _require(name in known, f"There is no option '{name}': use {', '.join(sorted(known | set(FLAT_NAMES)))}.")
        return cls(**groups[""], image=ImageConfig(**groups["image"]), swap=SwapConfig(**groups["swap"]))


FLAT_NAMES = {
    "image_min_pixels": ("image", "min_pixels"),
    "image_max_pixels": ("image", "max_pixels"),
    "image_decode_limit": ("image", "decode_limit"),
    "mmproj_swap_layers": ("swap", "layers"),
    "no_mmproj_offload": ("swap", "tower_on_cpu"),
    "margin": ("swap", "margin"),
}


def _limit(given: int | str | None) -> int | None:
    """Bytes of `--vram-limit`; the only option that may be given as text."""
    if given is None:
        return None
    try:
        limit = parse_bytes(given) if isinstance(given, str) else int(given)
    except (ValueError, TypeError, OverflowError):
        sentence = (
            f"--vram-limit: {given!r} is not a size: write for example 14GiB or 300MiB (units are powers of 1024)."
        )
        raise OptionError(sentence) from None
    _require(limit >= SMALLEST_LIMIT, f"--vram-limit {given}: {limit} bytes? Write the unit, for example 14GiB.")
    return limit


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise OptionError(sentence)
