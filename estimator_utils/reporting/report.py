"""What a notebook puts out: figures in one style, computed captions, and results that the README quotes.

Everything goes under one folder: the repository for the committed notebooks, ``build/DATASET`` otherwise.
"""

import fcntl
import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import matplotlib.pyplot as plt
from IPython.display import Image, Markdown, display
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from estimator_utils.datasets import registry
from estimator_utils.datasets.locations import PACKAGE

STYLE = Path(__file__).with_name("estimator.mplstyle")
WIDTH_IN = 3.5
BAND_PCT = 10.0  # the study's limit of a good estimate, drawn as a grey band
OUTPUT = "ESTIMATOR_OUTPUT"  # environment variable: folder of a notebook's output, set by the runner
VERSIONS = ("torch", "numpy", "pandas", "statsmodels", "matplotlib", "seaborn")


def build_folder() -> Path:
    """Return where output goes by default: ``build`` of the repository, or of the working directory elsewhere."""
    repository = PACKAGE.parent
    return (repository if (repository / "notebooks").is_dir() else Path.cwd()) / "build"


class Report:
    """The output of one notebook on one collection.

    Parameters
    ----------
    number : str
        Of the notebook, such as "05": begins the names of its figures, and is the key of its results.
    dataset : str
        Collection, or dataset folder.

    Attributes
    ----------
    kind : {"recorded", "simulated"}
        Of the collection's data.
    """

    def __init__(self, number: str, dataset: str) -> None:
        self.number, self.dataset = number, dataset
        self._members = registry.members(dataset)
        self.kind = next(iter(self._members.values())).metadata.kind
        plt.style.use(str(STYLE))

    @property
    def folder(self) -> Path:
        """Folder of all output."""
        chosen = os.environ.get(OUTPUT)
        return Path(chosen) if chosen else build_folder() / Path(self.dataset).name

    def say(self, text: str) -> None:
        """Show Markdown, so that prose carries computed numbers."""
        display(Markdown(text))

    def figure(
        self, figure: Figure, name: str, caption: str, alt: str, of: Literal["data", "simulated", "published"] = "data"
    ) -> None:
        """Save a figure as PNG and PDF without dates, and show it with its caption.

        Parameters
        ----------
        figure : matplotlib.figure.Figure
            Closed afterwards.
        name : str
            File name without number and suffix.
        caption, alt : str
            Computed caption, and what a reader who cannot see the picture should know.
        of : str
            What is drawn: the collection's data, simulated ones, or published figures. Simulated data are stamped.
        """
        kind = self.kind if of == "data" else of
        if kind == "simulated":
            figure.text(0.995, 0.5, "simulated", rotation=90, ha="right", va="center", color="0.2", fontsize=9)
            figure.get_layout_engine().set(rect=(0, 0, 0.965, 1))  # type: ignore[union-attr, call-arg]
        path = self.folder / "figures" / f"{self.number}_{name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        png, pdf = f"{path}.png", f"{path}.pdf"
        figure.savefig(png, metadata={"Software": None})
        figure.savefig(pdf, metadata={"CreationDate": None, "Creator": None, "Producer": None})
        plt.close(figure)
        display(Image(filename=png, width=round(figure.get_size_inches()[0] * 150), alt=alt))
        self.say(f"**{path.name}.** {caption} *({kind}{'' if of == 'published' else ' data'})*")

    def results(self, **values: Any) -> None:
        """Write results, floats rounded to six significant digits, into ``data/derived/results.json``.

        Six digits, since the last ones differ between processors. Safe with notebooks running side by side.
        """
        path = self.folder / "data" / "derived" / "results.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            results = json.loads(file.read() or "{}")
            results[self.number] = {"dataset": self.dataset, "kind": self.kind} | _rounded(values)
            file.truncate(0)
            file.write(json.dumps(results, indent=2, sort_keys=True) + "\n")

    def footer(self) -> None:
        """Show what the numbers came from: data with digests, and versions of what computed them."""
        rows = [f"| {key} | {e.metadata.kind} | `{e.sha256[:16]}` |" for key, e in self._members.items()]
        versions = ", ".join(f"{name} {version(name).split('+')[0]}" for name in VERSIONS)
        minor = ".".join(platform.python_version_tuple()[:2])
        table = "\n".join(["| file | kind | sha256 |", "|---|---|---|", *rows])
        self.say(f"**Provenance.** Collection `{Path(self.dataset).name}`; Python {minor}, {versions}.\n\n{table}")


def met(condition: bool) -> str:
    """Say whether an expectation was met."""
    return "met" if condition else "not met"


def error_band(axes: Axes, horizontal: bool = True) -> None:
    """Draw the band of errors below 10 % in grey, and the line of no error."""
    span, line = (axes.axhspan, axes.axhline) if horizontal else (axes.axvspan, axes.axvline)
    span(-BAND_PCT, BAND_PCT, color="0.92", zorder=0)
    line(0, color="0.6", linewidth=0.6, zorder=1)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if hasattr(value, "item"):  # a number of numpy's: a count stays a count
        value = value.item()
    if isinstance(value, bool | int | str) or value is None:
        return value
    return float(f"{float(value):.6g}")
