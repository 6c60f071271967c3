"""Every notebook, executed: ``make verify`` runs this after ``make reproduce``, whose results it reads.

On the bundled data the results are the golden ones; where the study's records are, the committed notebooks are
executed again and say what they said, numbers and text. Pictures are not compared: fonts differ by machine.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest

from estimator_utils.reporting import runner
from tests.support import golden

ROOT = Path(__file__).resolve().parent.parent
STUDY = "orin-nano-25w"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
pytestmark = pytest.mark.notebooks

_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


def results(folder: Path) -> dict:
    return json.loads((folder / "data" / "derived" / "results.json").read_text(encoding="utf-8"))


def said(path: Path) -> list[str]:
    """Return the text outputs of a notebook, provenance apart: versions and digests are not its story."""
    texts = []
    for cell in nbformat.read(path, as_version=4).cells:
        for out in cell.get("outputs", []):
            data = out.get("data", {})
            text = data.get("text/markdown") or data.get("text/plain") or out.get("text", "")
            if "image/png" not in data and not text.startswith("**Provenance"):
                texts.append(text)
    return texts


def same_text(before: str, after: str) -> bool:
    """Tell whether two texts agree: words exactly, numbers to 1e-6 or to the last digit that is printed."""
    if _NUMBER.sub("#", before) != _NUMBER.sub("#", after):
        return False
    for a, b in zip(_NUMBER.findall(before), _NUMBER.findall(after), strict=True):
        x, y = (float(text.replace(",", "")) for text in (a, b))
        digits = len(a.partition("e")[0].partition(".")[2])
        unit = 10.0**-digits * (10.0 ** int(a.partition("e")[2] or 0))
        if abs(x - y) > max(1e-6 * abs(x), 1.01 * unit if digits else 0):
            return False
    return True


def test_the_bundled_data_give_the_golden_results():
    expected = json.loads((golden.GOLDEN / "results.json").read_text(encoding="utf-8"))
    assert golden.differences(expected, results(ROOT / "build" / "orin-nano-virtual")) == []


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("recorded")
    runner.execute_all({"dataset": STUDY}, output)
    return output


@pytest.mark.recorded
def test_the_records_give_the_committed_results(recorded):
    assert golden.differences(results(ROOT), results(recorded)) == []


@pytest.mark.recorded
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_committed_notebook_says_again_what_it_said(recorded, path):
    before, after = said(path), said(recorded / path.name)
    assert len(before) == len(after)
    assert [(a, b) for a, b in zip(before, after, strict=True) if not same_text(a, b)] == []


def test_texts_differ_by_a_word_or_by_more_than_the_last_digit():
    assert same_text("4.478 % of 1,400", "4.479 % of 1,400")
    assert not same_text("4.478 %", "4.480 %")
    assert not same_text("118 of 200", "119 of 200")
    assert not same_text("met", "not met")
    assert not same_text("3.0e5", "3.3e5")
