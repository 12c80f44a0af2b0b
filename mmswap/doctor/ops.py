"""The op table on this card: for each op the backend that computes it, why no faster one, and whether it is right.

One op is one step: on a real card it is called in the process that may be taken down.
"""

from __future__ import annotations

from mmswap.card.base import Card
from mmswap.doctor.check import Check
from mmswap.doctor.patient import Patient

PREFIX = "op "


def names(card: Card) -> list[str]:
    """The steps of a card."""
    from mmswap.llm.ops.trial import ops_on

    return [PREFIX + op for op in ops_on(card.device)]


def check(name: str, patient: Patient) -> Check:
    """One op, called as decode calls it, in the dtype that models mostly have on such a card.

    Raises:
        Exception: whatever the backend raises; the step becomes a line all the same.
    """
    import torch

    from mmswap.llm.ops.trial import RIGHT, trial

    assert patient.card is not None
    device = patient.card.device
    dtype = torch.bfloat16 if device.type == "cpu" else torch.float16
    row, off = trial(name.removeprefix(PREFIX), device, dtype)
    reason = "; ".join(f"{backend}: {why}" for backend, why in row.refused)
    facts = {"backend": row.backend, "refused": dict(row.refused), "off": off}
    if not off <= RIGHT[dtype]:
        value = f"{row.backend}: wrong results, off by {off:.2g} of the largest value"
        return Check(name, "broken", value, reason, "use --backend reference, and report this page", facts)
    right = "" if row.backend == "reference" else f", right within {off:.1g}" if off else ", equal to the reference"
    return Check(name, "ok", row.backend + right, reason, facts=facts)
