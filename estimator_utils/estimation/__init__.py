"""From readings to TFLOP: fits, what a fit belongs to, and how well it predicts held-out runs."""
