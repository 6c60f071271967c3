"""What a notebook puts out: figures in one style, computed captions, and results that the README quotes.

Everything goes under one folder: the repository for the committed notebooks, ``build/DATASET`` otherwise.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from IPython.display import Image, Markdown, display
from matplotlib.axes import Axes
from matplotlib.figure import Figure

REPOSITORY = Path(__file__).resolve().parents[2]
STYLE = Path(__file__).with_name("estimator.mplstyle")
WIDTH_IN = 3.5
BAND_PCT = 10.0  # the study's limit of a good estimate, drawn as a grey band


def use_style() -> None:
    """Apply the project's matplotlib style."""
    plt.style.use(str(STYLE))


def output_dir(dataset: str) -> Path:
    """Return the folder of a notebook's output: ``ESTIMATOR_OUTPUT``, set by the runner, or ``build/DATASET``."""
    chosen = os.environ.get("ESTIMATOR_OUTPUT")
    return Path(chosen) if chosen else REPOSITORY / "build" / Path(dataset).name


def save(figure: Figure, name: str, dataset: str, kind: str | None, caption: str, alt: str) -> None:
    """Save a figure as PNG and PDF without dates, and show it with its caption.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        Closed afterwards.
    name : str
        File name without suffix.
    dataset : str
        Collection that the notebook runs on.
    kind : {"recorded", "simulated", None}
        Of the data drawn; simulated data are stamped in the picture. None: neither, such as published tables.
    caption, alt : str
        Computed caption, and what a reader who cannot see the picture should know.
    """
    if kind == "simulated":
        figure.text(0.995, 0.5, "simulated", rotation=90, ha="right", va="center", color="0.2", fontsize=9)
        figure.get_layout_engine().set(rect=(0, 0, 0.965, 1))  # type: ignore[union-attr, call-arg]
    folder = output_dir(dataset) / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", metadata={"Software": None})
    figure.savefig(folder / f"{name}.pdf", metadata={"CreationDate": None, "Creator": None, "Producer": None})
    plt.close(figure)
    inches = figure.get_size_inches()[0]
    display(Image(filename=str(folder / f"{name}.png"), width=round(inches * 150), alt=alt))
    say(f"**{name}.** {caption}")


def say(text: str) -> None:
    """Show Markdown, so that prose carries computed numbers."""
    display(Markdown(text))


def error_band(axes: Axes, horizontal: bool = True) -> None:
    """Draw the band of errors below 10 % in grey, and the line of no error."""
    span, line = (axes.axhspan, axes.axhline) if horizontal else (axes.axvspan, axes.axvline)
    span(-BAND_PCT, BAND_PCT, color="0.92", zorder=0)
    line(0, color="0.6", linewidth=0.6, zorder=1)


def method_diagram() -> Figure:
    """Draw the method, after the study's figure 1: calibration above, deployment below."""
    columns = (
        ("workloads\nof known FLOP", "unknown\nworkload"),
        ("sensors", "sensors"),
        ("fit", "Eq. 1 or Eq. 2"),
    )
    figure, axes = plt.subplots(figsize=(WIDTH_IN, 1.9))

    def arrow(start: tuple[float, float], end: tuple[float, float], **style: Any) -> None:
        axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": "0.3", "linewidth": 0.8} | style)

    for row, (phase, colour) in enumerate((("calibration", "C0"), ("deployment", "C1"))):
        y = 1.4 - 1.4 * row
        axes.text(-0.55, y + 0.72, phase, color=colour, fontsize=7)
        for x, names in enumerate(columns):
            box = {"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": colour}
            axes.text(x, y, names[row], ha="center", va="center", fontsize=6.5, bbox=box)
        arrow((0.38, y), (0.76, y))
        arrow((1.24, y), (1.62 if row else 1.86, y))
        axes.text(1.45, y + 0.14, "E, TB, t", ha="center", fontsize=6)
    arrow((2, 1.15), (2, 0.25))
    axes.text(2.05, 0.7, "constants", va="center", fontsize=6)
    arrow((2.38, 0), (2.7, 0))
    axes.text(2.75, 0, "TFLOP", va="center", fontsize=6.5)
    axes.plot((0, 0, 2), (1.7, 2, 2), color="C0", linewidth=0.8)
    arrow((2, 2.02), (2, 1.62), color="C0")
    axes.text(1, 2.06, "TFLOP, counted", ha="center", fontsize=6, color="C0")
    axes.set(xlim=(-0.6, 3.15), ylim=(-0.4, 2.35))
    axes.axis("off")
    return figure


def save_results(notebook: str, dataset: str, values: dict[str, Any]) -> None:
    """Write a notebook's results, floats rounded to six significant digits, into ``data/derived/results.json``.

    Six digits, since the last ones differ between processors. Safe with notebooks running side by side.
    """
    path = output_dir(dataset) / "data" / "derived" / "results.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        results = json.loads(file.read() or "{}")
        results[notebook] = {"dataset": dataset} | _rounded(values)
        file.truncate(0)
        file.write(json.dumps(results, indent=2, sort_keys=True) + "\n")


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    if hasattr(value, "item"):  # a number of numpy's: a count stays a count
        value = value.item()
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    return float(f"{float(value):.6g}")
