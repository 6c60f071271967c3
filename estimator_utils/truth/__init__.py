"""Ground truth, the operator's side: the workloads, their training, and their FLOP."""
