"""What people see of sessions: a line, the live view, a drawing."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from estimator_utils.estimation.calibration import FORMS
from estimator_utils.monitor.log import read_session
from estimator_utils.monitor.monitor import Monitor
from estimator_utils.telemetry.source import Sample


def with_unit(value: float | None, unit: str) -> str:
    """Return a reading as text; a missing one is said to be unknown."""
    return f"{unit} unknown" if value is None else f"{value:.4g} {unit}"


def session_line(row: Mapping[str, Any]) -> str:
    """Return one line about a session, from its row of the log."""
    anomalies = row["anomalies"] if isinstance(row["anomalies"], str) else "; ".join(row["anomalies"])
    remarks = [
        "simulated" if row["data"] == "simulated" else "",
        f"{row['gaps']} gaps of {row['gap_s']:.0f} s in all" if row["gaps"] else "",
        anomalies,
        row["note"],
        row["warning"],
    ]
    began_s = row["start_wall_s"]
    began = f" began {datetime.fromtimestamp(began_s):%Y-%m-%d %H:%M:%S}," if began_s else ""
    by = f" ({FORMS[row['estimator']].label})" if row["estimator"] in FORMS else ""
    return (
        f"{row['record_type']}{began} {row['start_s']:.1f} to {row['end_s']:.1f} s: {row['duration_s']:.1f} s,"
        f" {with_unit(row['energy_net_j'], 'J')}, {with_unit(row['dram_tb'], 'TB')},"
        f" {with_unit(row['estimate_tflop'], 'TFLOP')}{by}" + "".join(f"; {remark}" for remark in remarks if remark)
    )


def view_line(monitor: Monitor, sample: Sample) -> str:
    """Return the live view: readings, and the session so far."""
    util = None if sample.gpu_util is None else 100 * sample.gpu_util
    traffic = None if sample.dram_bytes_per_s is None else sample.dram_bytes_per_s / 1e9
    text = f"{with_unit(sample.power_w, 'W')}  GPU {with_unit(util, '%')}  DRAM {with_unit(traffic, 'GB/s')}  "
    session = monitor.detector.session()
    if session is None:
        return text + "waiting for a workload"
    estimate, _ = monitor.estimate(session)
    tflop = None if estimate is None else estimate.tflop
    by = "" if estimate is None else f" ({FORMS[estimate.estimator].label})"
    return text + f"running {session.duration_s:.0f} s, {with_unit(tflop, 'TFLOP')} so far{by}"


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
