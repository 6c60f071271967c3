"""A calibration sweep on a board: where readings and the workload's truth meet."""
