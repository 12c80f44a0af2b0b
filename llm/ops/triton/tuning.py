"""Which configuration of the table is fastest for a model's shapes: measured at load, kept, never measured in a chat.

    tune([("w4a16", (x, words, scales, zeros, None, None, 3584, 128)), ...], say=print)      # once, after loading
    tune(calls, say=print, measure=False)                                                    # --no-autotune

The calls are those of decoding, with the model's own tensors. What was measured before, on this kind of card and with
this Triton, is read from `cache_folder() / "triton-tuned.json"`; what is neither there nor measured takes the table's
first. Knows no model. No card has run it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from mmswap.llm.ops.triton import IMPLEMENTATIONS, arch, configs
from mmswap.llm.ops.triton.configs import Config, Shape
from mmswap.swap.shelf import cache_folder, ignore, put, take

FILE = "triton-tuned.json"
_RUNS = 12
_FLUSHED = 128 << 20  # bytes written between runs, so that weights come from memory as in a chat
Call = tuple[str, tuple[Any, ...]]
Clock = Callable[[Callable[[], Any]], float]


def tune(calls: Iterable[Call], say: Callable[[str], None], *, measure: bool = True, clock: Clock | None = None) -> int:
    """Fills `configs.tuned` for the shapes of `calls`; the number of shapes that were measured.

    Args:
        calls: (op, arguments); one of those that Triton refuses is passed over. They are run, so none may write.
        say: gets a progress line before each shape, and one at the end where something was measured.
        measure: False: only what was kept before is used.
        clock: milliseconds of a run; None: by events of the card.
    """
    wanted = _wanted(calls)
    if not wanted:
        return 0
    device = next(a.device for a in wanted[0][2] if isinstance(a, Tensor))
    card = arch.card(device)
    kept = restore(card)
    left = [one for one in wanted if one[:2] not in configs.tuned] if measure else []
    for number, (kernel, shape, arguments, op) in enumerate(left, 1):
        say(f"Tuning kernels for this card, {number} of {len(left)}: {kernel} {' x '.join(map(str, shape))}")
        best = fastest(kernel, shape, IMPLEMENTATIONS[op].run, arguments, card, clock or _milliseconds)
        if best is not None:
            configs.tuned[kernel, shape] = best
            kept[_name(kernel, shape)] = list(best)
    if left:
        _keep(card, kept)
        say(f"Kernels are tuned for {len(left)} shapes of this model; the next start reads them.")
    return len(left)


def fastest(
    kernel: str, shape: Shape, run: Callable[..., Any], arguments: tuple[Any, ...], card: arch.Card, clock: Clock
) -> Config | None:
    """The configuration with the shortest run; None where none of them runs. `configs.tuned` is left as it was."""
    times: dict[Config, float] = {}
    before = configs.tuned.get((kernel, shape))
    try:
        for config in configs.TABLE[card.family][kernel]:
            configs.tuned[kernel, shape] = config
            try:
                times[config] = clock(lambda: run(*arguments))
            except torch.OutOfMemoryError:
                raise
            except Exception:  # a configuration that this card has no room for is none
                continue
    finally:
        configs.tuned.pop((kernel, shape), None)
        if before is not None:
            configs.tuned[kernel, shape] = before
    return min(times, key=lambda config: times[config]) if times else None


def restore(card: arch.Card) -> dict[str, list[int]]:
    """Puts what was kept for this kind of card and this Triton into `configs.tuned`, and returns it as it is kept."""
    path = cache_folder() / FILE
    whole = take(path) or {}
    held = whole.get(_title(card), {})
    good: dict[str, list[int]] = {}
    for name, numbers in held.items() if isinstance(held, dict) else ():
        try:
            kernel, *sizes = name.split(" ")
            config, shape = Config(*numbers), tuple(int(size) for size in sizes)
            if config not in configs.TABLE[card.family][kernel]:
                continue  # the table has changed since
        except (TypeError, ValueError, KeyError) as error:
            ignore(path, error)
            continue
        configs.tuned[kernel, shape] = config
        good[name] = list(config)
    return good


def _wanted(calls: Iterable[Call]) -> list[tuple[str, Shape, tuple[Any, ...], str]]:
    """(kernel, shape, arguments, op), each shape once, of kernels with a choice."""
    found: dict[tuple[str, Shape], tuple[str, Shape, tuple[Any, ...], str]] = {}
    for op, arguments in calls:
        if IMPLEMENTATIONS[op].refuses(*arguments) is not None:
            continue
        configs.asked = []
        try:
            IMPLEMENTATIONS[op].run(*arguments)
            for kernel, shape, choices in configs.asked:
                if choices > 1:
                    found.setdefault((kernel, shape), (kernel, shape, arguments, op))
        finally:
            configs.asked = None
    return list(found.values())


def _keep(card: arch.Card, kept: dict[str, list[int]]) -> None:
    path = cache_folder() / FILE
    put(path, {**(take(path) or {}), _title(card): kept})


def _title(card: arch.Card) -> str:
    return f"{card.name}, triton {arch.version()}"


def _name(kernel: str, shape: Shape) -> str:
    return " ".join([kernel, *map(str, shape)])


def _milliseconds(run: Callable[[], Any]) -> float:
    """The median of some runs, each after the caches of the card were filled with something else."""
    run()  # compiles
    spare = torch.cuda.mem_get_info()[0] > 4 * _FLUSHED
    other = torch.empty(_FLUSHED if spare else 0, dtype=torch.uint8, device="cuda")
    times = []
    for _ in range(_RUNS):
        other.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return float(sorted(times)[len(times) // 2])
