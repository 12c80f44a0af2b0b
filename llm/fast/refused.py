"""Why a part of a model keeps its own forward: one clause that can follow "because"."""

from __future__ import annotations


class Refused(Exception):
    """This part is not understood, or does not compute what was expected of it; the message says which and why."""
