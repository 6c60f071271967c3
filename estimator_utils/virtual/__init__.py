"""A board in software, the operator's side: kernels of a step, a timeline, and the readings they would give."""
