"""Shipped data: peak models of well-known checkpoints, KV calibration. Read with importlib.resources."""
