"""The language model's decode step without the weight of a library around it: parts found by structure, then called
one after another. Knows transformers' modules and our ops; no card, no pictures.

`lean = open_lean(model)` gives a `LeanStep`, or the reason why this model keeps its own forward.
"""

from mmswap.llm.fast.opening import STEPS, open_lean
from mmswap.llm.fast.refused import Refused
from mmswap.llm.fast.state import State
from mmswap.llm.fast.step import LeanStep, Step

__all__ = ["STEPS", "LeanStep", "Refused", "State", "Step", "open_lean"]
