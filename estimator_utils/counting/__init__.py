"""Estimates without a sensor, the operator's side: FLOP counted from sizes, or from GPU time, and Fermi arithmetic."""
