"""Decides and moves memory: live bytes, peaks, plans, units, windows. Knows modules and bytes, not images or tokens."""
