"""Fills the card in steps and reads it at each: held, driver's free, budget, usage, and what mmswap calls free.

    table = probe(card)      # everything is given back before it returns

A step that would leave the budget is not taken unless `beyond`; the last row is the card with everything freed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from mmswap.card.base import Card
from mmswap.doctor.check import sentence
from mmswap.doctor.memory import budget_of
from mmswap.units import GIB, MIB, format_bytes

SIXTEENTHS = (4, 8, 10, 12, 14, 15, 16)  # of what is free at the start
BEYOND = 63  # of 64 parts of the card: as far as a probe ever goes
GRAIN = 2 * MIB  # an allocator's segment: a step is a whole number of them, on a card of more than some GiB


@dataclass(frozen=True, slots=True)
class Row:
    """Bytes; None where nobody says them.

    Attributes:
        held: what the probe has placed, 0 also at the end.
        driver_free: what the driver calls free.
        budget, usage: of this process, as Windows (or the simulated card) counts.
        free: what mmswap calls free; `over`: how far it is beyond.
        spilled: bytes of this process in host memory, beyond those before the probe.
        sources: what each source of free bytes says.
    """

    held: int
    driver_free: int | None
    budget: int | None
    usage: int | None
    free: int
    over: int
    spilled: int
    sources: dict[str, int | None]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows in order, the last one after everything was freed; why it ended there; whether the bytes came back."""

    rows: tuple[Row, ...]
    ended: str
    freed: bool

    def to_json(self) -> dict[str, Any]:
        return {"rows": [asdict(row) for row in self.rows], "ended": self.ended, "freed": self.freed}


def probe(card: Card, *, beyond: bool = False) -> Table:
    """See the module. An allocation that fails ends the table and is told in `ended`.

    Args:
        beyond: go on where mmswap would stop, up to nearly the whole card.
    """
    if not card.can_swap:
        return Table((), f"nothing to probe: {card.spec} is the host's own memory", True)
    before = card.spilled().bytes
    rows = [_read(card, 0, before)]
    with ExitStack() as placed:
        ended = "every step was taken"
        held = 0
        for target in targets(rows[0].free, card.total(), beyond):
            step = target - held
            free = card.free()
            if step > free.bytes and not beyond:
                ended = (
                    f"stopped at {format_bytes(held)}: the next step of {format_bytes(step)} is more than the "
                    f"{format_bytes(free.bytes)} that are free (--beyond-budget goes on)"
                )
                break
            try:
                fits = placed.enter_context(card.placed(f"probe to {target}", step))
            except Exception as error:
                ended = f"stopped at {format_bytes(held)}: the next step failed with {sentence(error)}"
                break
            if fits is False:
                ended = f"stopped at {format_bytes(held)}: the driver has no {format_bytes(step)} more"
                break
            held = target
            rows.append(_read(card, held, before))
    rows.append(_read(card, 0, before))
    lost = rows[0].free - rows[-1].free
    if lost > max(256 * MIB, card.total() // 64):
        return Table(tuple(rows), f"{ended}; of what was freed, {format_bytes(lost)} have not come back", False)
    return Table(tuple(rows), ended, True)


def targets(free: int, total: int, beyond: bool) -> Iterator[int]:
    """Bytes to be held at each step: parts of what is free, and beyond it two more on the way to the whole card."""
    grain = GRAIN if free >= 4 * GIB else 1
    wanted = [free * part // 16 for part in SIXTEENTHS]
    if beyond:
        edge = total * BEYOND // 64
        wanted += [free + (edge - free) * part // 2 for part in (1, 2) if edge > free]
    yield from (target for target in dict.fromkeys(each // grain * grain for each in wanted) if target > 0)


def _read(card: Card, held: int, before: int) -> Row:
    reading = card.free()
    sources = {source.name: source.bytes for source in card.sources()}
    driver, budget, usage = sources.get("driver"), *_budgeted(card)
    claims = getattr(card, "claims", None)
    if claims is not None:  # a simulated card keeps the books of driver and system alike
        usage = sum(claims.values())
        driver, budget = max(0, card.total() - usage), usage + reading.bytes - reading.over
    spilled = max(0, card.spilled().bytes - before)
    return Row(held, driver, budget, usage, reading.bytes, reading.over, spilled, sources)


def _budgeted(card: Card) -> tuple[int | None, int | None]:
    found = budget_of(card)
    answer = found.memory() if found is not None and not isinstance(found, str) else ""
    return (None, None) if isinstance(answer, str) else (answer.budget, answer.usage)


def lines(table: Table) -> list[str]:
    """The table for people, in MiB."""
    if not table.rows:
        return [table.ended]
    heads = ("held", "driver free", "budget", "usage", "mmswap's free", "over", "spilled")
    cells = [[_mib(each) for each in _figures(row)] for row in table.rows]
    cells[-1][0] = "all freed"
    widths = [max(len(head), *(len(row[column]) for row in cells)) for column, head in enumerate(heads)]
    return ["MiB", _join(heads, widths), *(_join(row, widths) for row in cells), table.ended]


def _figures(row: Row) -> tuple[int | None, ...]:
    return row.held, row.driver_free, row.budget, row.usage, row.free, row.over, row.spilled


def _mib(count: int | None) -> str:
    if count is None:
        return "-"
    return f"{count / MIB:.1f}" if 0 < abs(count) < 64 * MIB else f"{count // MIB}"


def _join(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths)).rstrip()
