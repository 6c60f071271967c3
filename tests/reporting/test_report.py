from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread

from estimator_utils.datasets import registry
from estimator_utils.datasets.dataset import Metadata, write_dataset
from estimator_utils.reporting import report as report_module
from estimator_utils.reporting.report import WIDTH_IN, Report, error_band
from tests.support import synthetic

RECORDED, SIMULATED = "orin-nano-25w", "orin-nano-virtual"


@pytest.fixture
def output(tmp_path, monkeypatch) -> Iterator[Path]:
    """Let figures and results go to a folder of this test."""
    monkeypatch.setenv("ESTIMATOR_OUTPUT", str(tmp_path))
    with plt.style.context({}):
        yield tmp_path
    plt.close("all")


def drawing():
    figure, axes = plt.subplots()
    axes.plot([1, 2, 3], [2, 1, 3])
    axes.set_xlabel("x (1)")
    return figure


@pytest.mark.parametrize("dataset", [RECORDED, SIMULATED])
def test_saving_twice_gives_the_same_bytes(output, dataset):
    for name in ("a", "b"):
        Report("05", dataset).figure(drawing(), name, "A caption.", "An alt text.")
    for suffix in ("png", "pdf"):
        first, second = ((output / "figures" / f"05_{name}.{suffix}").read_bytes() for name in ("a", "b"))
        assert first == second
        assert b"CreationDate" not in first
        assert b"Matplotlib" not in first


def test_a_figure_has_its_final_size_in_the_project_s_style_and_is_closed(output):
    report = Report("05", RECORDED)
    assert plt.rcParams["figure.figsize"][0] == WIDTH_IN
    assert plt.rcParams["font.size"] == 8
    figure = drawing()
    report.figure(figure, "a", "A caption.", "An alt text.")
    assert imread(output / "figures" / "05_a.png").shape[1] == pytest.approx(WIDTH_IN * 200, abs=1)
    assert not plt.fignum_exists(figure.number)


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Any:
    """Return the picture of the drawing without a stamp."""
    folder = tmp_path_factory.mktemp("plain")
    with pytest.MonkeyPatch.context() as patch, plt.style.context({}):
        patch.setenv("ESTIMATOR_OUTPUT", str(folder))
        Report("05", RECORDED).figure(drawing(), "fig", "21 runs.", "A rising line.")
    return imread(folder / "figures" / "05_fig.png")


@pytest.mark.parametrize(
    ("dataset", "of", "said"),
    [
        (RECORDED, "data", "recorded data"),
        (RECORDED, "simulated", "simulated data"),
        (RECORDED, "published", "published"),
        (SIMULATED, "data", "simulated data"),
        (SIMULATED, "published", "published"),
    ],
)
def test_the_caption_says_what_is_drawn_and_simulated_data_alone_are_stamped(
    output, monkeypatch, plain, dataset, of, said
):
    shown: list[Any] = []
    monkeypatch.setattr(report_module, "display", shown.append)
    report, is_stamped = Report("05", dataset), said == "simulated data"
    figure = drawing()
    report.figure(figure, "fig", "21 runs.", "A rising line.", of)
    shown_picture, caption = shown
    assert shown_picture.alt == "A rising line."
    assert caption.data == f"**05_fig.** 21 runs. *({said})*"
    assert ("simulated" in [text.get_text() for text in figure.texts]) == is_stamped
    changed = plain != imread(output / "figures" / "05_fig.png")
    assert changed.any() == is_stamped
    assert changed.any(axis=(0, 2))[-40:].any() == is_stamped, "the stamp must be visible at the edge"


def test_output_goes_where_the_runner_says_or_else_into_build(output, monkeypatch):
    assert Report("05", SIMULATED).folder == output
    monkeypatch.delenv("ESTIMATOR_OUTPUT")
    assert Report("05", SIMULATED).folder == Path(__file__).resolve().parents[2] / "build" / SIMULATED


def test_the_footer_names_every_file_with_its_digest_and_the_versions(monkeypatch):
    shown: list[Any] = []
    monkeypatch.setattr(report_module, "display", shown.append)
    Report("05", SIMULATED).footer()
    for key, entry in registry.members(SIMULATED).items():
        assert f"| {key} | simulated | `{entry.sha256[:16]}` |" in shown[0].data
    assert f"numpy {np.__version__}" in shown[0].data
    assert f"Collection `{SIMULATED}`" in shown[0].data


def test_the_footer_of_a_folder_names_no_path(tmp_path, monkeypatch):
    write_dataset(tmp_path, Metadata("bench", kind="simulated"), {"trial1": synthetic.runs(3).to_dict("records")}, {})
    shown: list[Any] = []
    monkeypatch.setattr(report_module, "display", shown.append)
    Report("05", str(tmp_path)).footer()
    assert f"Collection `{tmp_path.name}`" in shown[0].data
    assert str(tmp_path) not in shown[0].data


@pytest.mark.parametrize("horizontal", [True, False])
def test_the_band_of_good_errors_is_ten_per_cent(horizontal):
    figure, axes = plt.subplots()
    error_band(axes, horizontal)
    limits = axes.dataLim.intervaly if horizontal else axes.dataLim.intervalx
    assert tuple(limits) == (-10, 10)
    plt.close(figure)


# Results


def results(output: Path) -> dict:
    return json.loads((output / "data" / "derived" / "results.json").read_text())


def test_results_are_kept_by_notebook_and_replaced_whole(output):
    Report("05", SIMULATED).results(a=1.0, old=2)
    Report("06", SIMULATED).results(b=None)
    Report("05", SIMULATED).results(a=3.0)
    about = {"dataset": SIMULATED, "kind": "simulated"}
    assert results(output) == {"05": {**about, "a": 3.0}, "06": {**about, "b": None}}


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_are_rounded_to_six_significant_digits(value):
    rounded = report_module._rounded({"x": [value]})["x"][0]
    assert rounded == float(f"{value:.6g}")
    assert report_module._rounded(rounded) == rounded


def test_counts_flags_and_texts_are_kept_whole():
    values = {"n": 12345678, "numpy": np.int64(12345678), "ok": True, "flag": np.bool_(True), "none": None, "t": "x"}
    kept = report_module._rounded(values)
    assert kept == {"n": 12345678, "numpy": 12345678, "ok": True, "flag": True, "none": None, "t": "x"}
    assert [type(v) for v in kept.values()] == [int, int, bool, bool, type(None), str]


def test_results_do_not_depend_on_their_order(output):
    written = []
    for keys in ("ab", "ba"):
        Report("05", SIMULATED).results(**dict.fromkeys(keys, 1))
        written.append((output / "data" / "derived" / "results.json").read_bytes())
    assert written[0] == written[1]


def test_notebooks_side_by_side_do_not_lose_each_other_s_results(output):
    with ThreadPoolExecutor(8) as writers:  # the lock belongs to the open file, so threads contend as processes do
        list(writers.map(lambda i: Report(f"{i:02}", SIMULATED).results(i=i), range(40)))
    assert {key: value["i"] for key, value in results(output).items()} == {f"{i:02}": i for i in range(40)}
