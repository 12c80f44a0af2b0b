"""What one check found, and how a check is run so that it can neither end the page nor hold it up.

    found = guarded("triton", triton.installed, limit=10)      # always Checks, whatever the function does

Knows no card and no torch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

State = Literal["ok", "note", "broken", "unknown"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the page.

    Attributes:
        name: stable, for programs.
        state: `ok`; `note`: works, with a restriction; `broken`: stops mmswap from working; `unknown`: no answer.
        value: what was found, for people.
        reason: where the value came from, or why there is none.
        advice: what would help.
        facts: the same for programs; sizes in bytes.
    """

    name: str
    state: State
    value: str
    reason: str = ""
    advice: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As one object without the name, which is the key that it stands under."""
        return {
            "state": self.state,
            "value": self.value,
            "reason": self.reason,
            "advice": self.advice,
            **({"facts": dict(self.facts)} if self.facts else {}),
        }

    @classmethod
    def of_json(cls, name: str, found: Mapping[str, Any]) -> Check:
        """The other way round."""
        return cls(name, found["state"], found["value"], found["reason"], found["advice"], found.get("facts", {}))


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What came of a call: its value, or the error it raised, or neither because it was still running."""

    value: T | None = None
    error: BaseException | None = None
    late: bool = False


def attempt(call: Callable[[], T], limit: float) -> Outcome[T]:
    """Runs `call` in a thread of its own and waits for it for at most `limit` seconds; never raises what it raises.

    A call that is late is left behind: its thread does not keep the process alive.
    """
    box: list[Outcome[T]] = []

    def run() -> None:
        try:
            box.append(Outcome(value=call()))
        except BaseException as error:  # SystemExit of a broken module is a finding, too
            box.append(Outcome(error=error))

    thread = threading.Thread(target=run, daemon=True, name="mmswap doctor")
    thread.start()
    thread.join(limit)
    return box[0] if box else Outcome(late=True)


def guarded(name: str, call: Callable[[], Check | Iterable[Check]], limit: float) -> tuple[Check, ...]:
    """The checks of `call`; or one line, under `name`, which says why there are none."""

    def listed() -> tuple[Check, ...]:
        found = call()
        return (found,) if isinstance(found, Check) else tuple(found)

    outcome = attempt(listed, limit)
    if outcome.late:
        return (Check(name, "unknown", "no answer", f"it did not end within {limit:g} s"),)
    if outcome.error is not None:
        return (Check(name, "unknown", "failed", sentence(outcome.error)),)
    return outcome.value or ()


def sentence(error: BaseException) -> str:
    """Type and first line of an error, at most 300 characters."""
    lines = str(error).strip().splitlines()
    text = lines[0].strip() if lines else ""
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__
