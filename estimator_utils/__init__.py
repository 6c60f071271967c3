"""Estimate the FLOP of a training run from a board's power and memory readings."""

__version__ = "0.1.0"
