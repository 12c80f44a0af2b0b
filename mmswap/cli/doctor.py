"""`mmswap doctor`: prints the page that mmswap.doctor writes, line by line as it is found, or as JSON at its end."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmswap import __version__
from mmswap.cli.options import CARDS, Json
from mmswap.errors import OptionError

if TYPE_CHECKING:
    from mmswap.doctor import Discreet, Patient

Say = Callable[[Iterable[str]], None]
PROBE_LIMIT = 300.0  # seconds


def doctor(
    card: Annotated[str, typer.Option(metavar="CARD", help=f"{CARDS}.")] = "auto",
    probe: Annotated[
        bool, typer.Option("--probe", help="Fill the card in steps, print what each source says, free everything.")
    ] = False,
    beyond_budget: Annotated[
        bool, typer.Option("--beyond-budget", help="Let --probe go on where mmswap would stop.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Load the carried model and ask it something, too.")] = False,
    as_json: Json = False,
) -> None:
    """Print one page about this machine, for a bug report.

    Exit code 0 when it could look, 1 when something is broken that stops mmswap from working.
    """
    if beyond_budget and not probe:
        raise OptionError("--beyond-budget belongs to --probe: give both.")
    with _unlogged():
        broken = _write(card, probe, beyond=beyond_budget, full=full, as_json=as_json)
    if broken:
        raise typer.Exit(1)


def _write(card: str, wants_probe: bool, *, beyond: bool, full: bool, as_json: bool) -> bool:
    """The page; whether something is broken."""
    from mmswap.doctor import Discreet, Page, Patient, Surroundings, examine

    discreet = Discreet.of_this_machine()
    page = Page(__version__)
    say = _silent if as_json else _print
    patient = Patient(Surroundings.real(), card)
    say([page.head()])
    for section, check in examine(patient, full=full):
        say(page.add(section, discreet.check(check)))
    table = _probed(patient, say, discreet, beyond=beyond) if wants_probe else None
    say(page.foot())
    if as_json:
        found = {**page.to_json(), "probe": table}
        print(json.dumps(found, ensure_ascii=(sys.stdout.encoding or "").lower() not in ("utf-8", "utf8")))
    return bool(page.named("broken"))


def _probed(patient: Patient, say: Say, discreet: Discreet, *, beyond: bool) -> Any:
    """Prints the table and returns it for JSON; None where no card could be opened."""
    from mmswap.doctor.check import attempt, sentence

    if patient.card is None:
        say(["", "probe", "  no card is open"])
        return None
    from mmswap.doctor.probe import lines, probe

    card = patient.card
    outcome = attempt(lambda: probe(card, beyond=beyond), PROBE_LIMIT)
    if outcome.value is None:
        why = sentence(outcome.error) if outcome.error else f"it did not end within {PROBE_LIMIT:g} s"
        say(["", "probe", f"  {discreet.text(why)}"])
        return {"rows": [], "ended": discreet.text(why), "freed": False}
    say(["", "probe", *(f"  {discreet.text(line)}" for line in lines(outcome.value))])
    return discreet.tree(outcome.value.to_json())


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, flush=True)


def _silent(lines: Iterable[str]) -> None:
    """Lines are made all the same: the page collects the checks as it makes them."""
    list(lines)


@contextmanager
def _unlogged() -> Iterator[None]:
    """Whatever is logged stands on the page, with its reason."""
    log = logging.getLogger("mmswap")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)
