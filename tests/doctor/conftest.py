"""Machines to be examined that are not there."""

from fake_machine import linux, windows

__all__ = ["linux", "windows"]
