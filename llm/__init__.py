"""The language model: its parts, its prefill and decode loop, sampling and text."""
