"""What `/metrics` shows, in Prometheus' text form: requests, tokens, windows, predicted beside measured, free bytes.

metrics = Metrics(engine);  metrics.request("/v1/models", 200);  metrics.answer(answer, seconds);  metrics.text()
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from mmswap.answer import Answer
    from mmswap.server.engine import Engine

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
RATES = (1, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000)


class Metrics:
    """See the module. One registry for each application."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"mmswap_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"mmswap_{name}", text, buckets=buckets, registry=registry)

        self._requests = counter("requests", "Requests answered", ("path", "status"))
        self._prompt = counter("prompt_tokens", "Tokens of prompts")
        self._cached = counter("cached_tokens", "Tokens of prompts that were in the KV cache from the turn before")
        self._completion = counter("completion_tokens", "Tokens of answers")
        self._pictures = counter("pictures", "Pictures in prompts", ("encoded",))
        self._encode = counter("encode_seconds", "Time in the vision encoder")
        self._restore = counter("restore_seconds", "Time in which weights came back after a window")
        self._hidden = counter("restore_hidden_seconds", "The part of it in which nothing waited for them")
        self._share = Gauge("mmswap_restore_hidden_share", "The same of the last window, as a share", registry=registry)
        self._first = histogram(
            "first_piece_seconds", "From a request's coming to the first piece of its text", SECONDS
        )
        self._prefill = histogram("prefill_tokens_per_second", "Prompt tokens read a second", RATES)
        self._decode = histogram("decode_tokens_per_second", "Tokens of an answer a second", RATES)

    def watch(self, engine: Engine) -> None:
        """Show an engine's queue, and its runtime's measurements, as they are when somebody asks."""
        self.registry.register(_Live(engine))

    def request(self, path: str, status: int) -> None:
        """A request was answered."""
        self._requests.labels(path, str(status)).inc()

    def answer(self, answer: Answer, seconds: float) -> None:
        """An answer is whole; its first piece came after `seconds`."""
        self._prompt.inc(answer.prompt_tokens)
        self._cached.inc(answer.reused_tokens)
        self._completion.inc(answer.completion_tokens)
        for image in answer.images:
            self._pictures.labels("yes" if image.encode_ms else "no").inc()
            self._encode.inc(image.encode_ms / 1e3)
        window = answer.window
        if window.opened:
            self._restore.inc(window.restore_ms / 1e3)
            self._hidden.inc(window.restore_hidden_ms / 1e3)
            self._share.set(window.restore_hidden_ms / window.restore_ms if window.restore_ms else 1.0)
        self._first.observe(seconds)
        if answer.prefill_tok_s:
            self._prefill.observe(answer.prefill_tok_s)
        if answer.decode_tok_s:
            self._decode.observe(answer.decode_tok_s)

    def text(self) -> bytes:
        """Everything, for a scraper."""
        return generate_latest(self.registry)


class _Live:
    """Figures that are looked up when they are asked for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        engine = self._engine
        yield _gauge("requests_waiting", "Requests in the queue", len(engine.waiting))
        yield _gauge("requests_running", "Requests under way", len(engine.running))
        yield _gauge("model_loaded", "1 while a model is loaded", int(engine.runtime is not None))
        if (runtime := engine.runtime) is not None:
            yield from _measured(runtime)
            yield _sources(runtime)


def _measured(runtime: Any) -> Iterator[Metric]:
    seen = runtime.measurements()
    load, spill = seen.load, seen.spill
    yield _pair("weights_bytes", "Weights, predicted and measured", load.weights_predicted, load.weights_measured)
    yield _gauge("context_tokens", "Tokens of prompt and answer together", load.context)
    if seen.peaks:
        last = seen.peaks[-1]
        text = "The vision encoder's last peak, predicted and measured"
        yield _pair("peak_bytes", text, last.peak_predicted, last.peak_measured)
        yield _gauge("peak_patches", "Patches of the pictures of that peak", last.patches)
    yield _counter("windows", "Windows in which weights were lent to the encoder", seen.windows)
    yield _counter("evicted_units", "Units given up", seen.units_evicted)
    yield _counter("evicted_bytes", "Bytes given up", seen.bytes_evicted)
    yield _counter("restored_bytes", "Bytes brought back", seen.bytes_restored)
    yield _counter("spills", "Times that the driver put bytes of ours into host memory", spill.count)
    yield _gauge("spilled_bytes", "Bytes of ours in host memory now", spill.bytes)
    yield _gauge("spilled_worst_bytes", "Most bytes of ours that were in host memory", spill.worst_bytes)


def _sources(runtime: Any) -> Metric:
    family = GaugeMetricFamily(
        "mmswap_free_bytes", "Bytes of the card that are free, by who says so", labels=["source"]
    )
    reading = runtime.card.free()
    family.add_metric(["decided"], reading.bytes)
    for source in reading.sources:
        if source.bytes is not None:
            family.add_metric([source.name], source.bytes)
    return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"mmswap_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"mmswap_{name}", text, value=value)


def _pair(name: str, text: str, predicted: float, measured: float) -> Metric:
    family = GaugeMetricFamily(f"mmswap_{name}", text, labels=["kind"])
    family.add_metric(["predicted"], predicted)
    family.add_metric(["measured"], measured)
    return family
