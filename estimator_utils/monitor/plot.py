"""A drawing of one session in a monitor's log."""

from __future__ import annotations

from pathlib import Path

from estimator_utils.monitor.log import read_session


def plot_session(path: str | Path, session: int, output: str | Path) -> None:
    """Draw power, GPU load and DRAM traffic of one session into a PNG, PDF or SVG file."""
    import matplotlib.pyplot as plt
    import numpy as np

    row, samples = read_session(path, session)
    t_s = np.array([sample["t_s"] for sample in samples]) - row["start_s"]
    channels = (
        ("power_w", 1.0, f"{row['rail'] or 'rail'} power (W)"),
        ("gpu_util", 100.0, "GPU load (%)"),
        ("dram_bytes_per_s", 1e-9, "DRAM traffic (GB/s)"),
    )
    figure, axes = plt.subplots(len(channels), 1, sharex=True, figsize=(7, 5), layout="constrained")
    for axis, (field, scale, label) in zip(axes, channels, strict=True):
        values = np.array([sample[field] for sample in samples], dtype=float) * scale
        axis.plot(t_s, values, linewidth=0.8)
        axis.axvspan(0, row["end_s"] - row["start_s"], alpha=0.15)
        axis.set_ylabel(label)
    axes[0].axhline(row["idle_power_w"], linestyle="--", linewidth=0.8, color="grey")
    estimate = "no estimate" if row["estimate_tflop"] is None else f"{row['estimate_tflop']:.4g} TFLOP"
    stamp = " (simulated)" if row["data"] == "simulated" else ""
    axes[0].set_title(f"Session {session}{stamp}: {row['duration_s']:.1f} s, {estimate}")
    axes[-1].set_xlabel("time since the first busy poll (s)")
    figure.savefig(output, dpi=150)
    plt.close(figure)
