"""The host's memory: its size, and how fast it copies, which bounds what a mirror in ordinary memory can do."""

from __future__ import annotations

import statistics
import time

from mmswap.card.base import Card
from mmswap.doctor.check import Check
from mmswap.units import MIB, format_bytes

COPIED = 128 * MIB
RUNS = 7


def host_memory(card: Card) -> Check:
    """Bytes of the host, and of them those that can still be had."""
    reading = card.free()
    facts = {"total": card.total(), "available": reading.bytes}
    value = f"{format_bytes(reading.bytes)} of {format_bytes(card.total())} available"
    return Check("host memory", "note" if reading.doubtful else "ok", value, reading.reason, facts=facts)


def bandwidth(nbytes: int = COPIED, runs: int = RUNS) -> Check:
    """Median of some copies from one block of host memory to another, by torch's threads."""
    import torch

    source = torch.ones(nbytes, dtype=torch.uint8)
    target = torch.zeros_like(source)  # both written to: no page is fresh when it is timed
    seconds = []
    for _ in range(runs):
        begin = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - begin)
    rate = int(nbytes / statistics.median(seconds))
    threads = torch.get_num_threads()
    value = f"{rate / 1e9:.1f} GB/s copied"
    reason = (
        f"median of {runs} copies of {format_bytes(nbytes)}, {threads} threads; as much is read, and as much written"
    )
    facts = {"bytes_per_second": rate, "copied_bytes": nbytes, "runs": runs, "threads": threads}
    return Check("host bandwidth", "ok", value, reason, facts=facts)
