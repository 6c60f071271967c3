from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread

from estimator_utils.reporting import report as figures


@pytest.fixture
def output(tmp_path, monkeypatch) -> Path:
    """Let figures and results go to a folder of this test, in the project's style."""
    monkeypatch.setenv("ESTIMATOR_OUTPUT", str(tmp_path))
    with plt.style.context(str(figures.STYLE)):
        yield tmp_path
    plt.close("all")


def drawing():
    figure, axes = plt.subplots()
    axes.plot([1, 2, 3], [2, 1, 3])
    axes.set_xlabel("x (1)")
    return figure


@pytest.mark.parametrize("kind", ["recorded", "simulated"])
def test_saving_twice_gives_the_same_bytes(output, kind):
    for name in ("a", "b"):
        figures.save(drawing(), name, "bench", kind, "A caption.", "An alt text.")
    for suffix in ("png", "pdf"):
        first, second = ((output / "figures" / f"{name}.{suffix}").read_bytes() for name in ("a", "b"))
        assert first == second
        assert b"CreationDate" not in first
        assert b"Matplotlib" not in first


def test_a_figure_has_its_final_size_and_is_closed(output):
    figure = drawing()
    figures.save(figure, "a", "bench", "recorded", "A caption.", "An alt text.")
    assert imread(output / "figures" / "a.png").shape[1] == pytest.approx(figures.WIDTH_IN * 200, abs=1)
    assert not plt.fignum_exists(figure.number)


def test_simulated_data_are_stamped_in_the_picture_and_recorded_ones_are_not(output):
    pictures = {}
    for kind in ("recorded", "simulated", None):
        figure = drawing()
        figures.save(figure, str(kind), "bench", kind, "A caption.", "An alt text.")
        assert ("simulated" in [text.get_text() for text in figure.texts]) == (kind == "simulated")
        pictures[kind] = imread(output / "figures" / f"{kind}.png")
    assert np.array_equal(pictures["recorded"], pictures[None])
    margin = pictures["simulated"][:, -40:, :3]
    assert (margin < 0.9).any(), "the stamp must be visible at the edge"


def test_the_caption_and_the_alt_text_are_shown(output, capsys, monkeypatch):
    shown = []
    monkeypatch.setattr(figures, "display", shown.append)
    figures.save(drawing(), "fig_1", "bench", "recorded", "21 runs.", "A rising line.")
    picture, caption = shown
    assert picture.alt == "A rising line."
    assert caption.data == "**fig_1.** 21 runs."


def test_output_goes_where_the_runner_says_or_else_into_build(output, monkeypatch):
    assert figures.output_dir("bench") == output
    monkeypatch.delenv("ESTIMATOR_OUTPUT")
    assert figures.output_dir("far/away/bench") == figures.REPOSITORY / "build" / "bench"


def test_the_style_is_the_project_s():
    with plt.style.context({}):
        figures.use_style()
        assert plt.rcParams["figure.figsize"][0] == figures.WIDTH_IN
        assert plt.rcParams["font.size"] == 8


@pytest.mark.parametrize("horizontal", [True, False])
def test_the_band_of_good_errors_is_ten_per_cent(horizontal):
    figure, axes = plt.subplots()
    figures.error_band(axes, horizontal)
    limits = axes.dataLim.intervaly if horizontal else axes.dataLim.intervalx
    assert tuple(limits) == (-10, 10)
    plt.close(figure)


# Results


def results(output: Path) -> dict:
    return json.loads((output / "data" / "derived" / "results.json").read_text())


def test_results_are_kept_by_notebook_and_replaced_whole(output):
    figures.save_results("05", "bench", {"a": 1.0, "old": 2})
    figures.save_results("06", "bench", {"b": None})
    figures.save_results("05", "bench", {"a": 3.0})
    assert results(output) == {"05": {"dataset": "bench", "a": 3.0}, "06": {"dataset": "bench", "b": None}}


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_are_rounded_to_six_significant_digits(value):
    rounded = figures._rounded({"x": [value]})["x"][0]
    assert rounded == float(f"{value:.6g}")
    assert figures._rounded(rounded) == rounded


def test_counts_flags_and_texts_are_kept_whole():
    values = {"n": 12345678, "numpy": np.int64(12345678), "ok": True, "flag": np.bool_(True), "none": None, "t": "x"}
    kept = figures._rounded(values)
    assert kept == {"n": 12345678, "numpy": 12345678, "ok": True, "flag": True, "none": None, "t": "x"}
    assert [type(v) for v in kept.values()] == [int, int, bool, bool, type(None), str]


def test_results_do_not_depend_on_their_order(output):
    written = []
    for keys in ("ab", "ba"):
        figures.save_results("05", "bench", dict.fromkeys(keys, 1))
        written.append((output / "data" / "derived" / "results.json").read_bytes())
    assert written[0] == written[1]


def test_notebooks_side_by_side_do_not_lose_each_other_s_results(output):
    with ThreadPoolExecutor(8) as writers:  # the lock belongs to the open file, so threads contend as processes do
        list(writers.map(lambda i: figures.save_results(f"{i:02}", "bench", {"i": i}), range(40)))
    assert {key: value["i"] for key, value in results(output).items()} == {f"{i:02}": i for i in range(40)}
