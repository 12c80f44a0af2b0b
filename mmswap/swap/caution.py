"""How many units more than the plan asks for are evicted, because bytes were spilled. Knows counts, no bytes.

caution = Caution(watch);  caution.look();  plan(..., extra=caution.units)
"""

from __future__ import annotations

from mmswap.card.spill import SpillWatch

CALM = 16  # windows without a spill after which one unit fewer is tried


class Caution:
    """One more unit for each spill, one fewer after a long calm; neither is silent.

    Attributes:
        units: the surplus of the next window.
    """

    def __init__(self, watch: SpillWatch) -> None:
        self.units = 0
        self._watch = watch
        self._calm = 0

    def look(self, ladder: int) -> str:
        """Once before each adaptive window over `ladder` units: what changed, as a clause for the plan's reason."""
        spills = self._watch.unanswered()
        self._calm = 0 if spills else self._calm + 1
        if spills:
            self.units = min(ladder, self.units + spills)
            return ""  # the plan itself says that there are more, and why
        if self.units and self._calm > CALM:
            self.units -= 1
            self._calm = 0
            return f" One unit fewer than before is evicted, because {CALM} windows passed without a spill."
        return ""
