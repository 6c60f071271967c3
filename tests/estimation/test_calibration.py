from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator_utils.estimation.calibration import (
    FORMS,
    MUST_AGREE,
    Calibration,
    CalibrationMismatchError,
    Estimate,
    Identity,
    Run,
)
from tests.support import fits
from tests.support.fits import BELONGS

# The study's constants on the day of the memory spoof, and of trial 1; J per counter-TB x 0.0133 = J per true TB.
SHIPPED_1 = fits.equation(1, 5.12, 2.163, 3857.934 * 0.0133)
SHIPPED_2 = fits.equation(2, 6.23, 3.45)
TRIAL_1 = fits.equation(1, 5.6113, 1.4625, 61.468)
TRIAL_1_EQ_2 = fits.equation(2, 5.7230, 3.750)
KNOWN = replace(TRIAL_1, identity=Identity(**BELONGS))

positive = st.floats(0.1, 1e4)
readings = st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1e5), st.floats(0, 100))
eq_1 = st.builds(lambda e, b, p: fits.equation(1, e, p, b), positive, st.floats(0, 1e4), st.floats(0, 50))
eq_2 = st.builds(lambda e, p: fits.equation(2, e, p), positive, st.floats(0, 50))
calibrations = eq_1 | eq_2


def tflop(calibration, *readings):
    return calibration.estimate(Run(*readings)).tflop


def costs(calibration):
    c = calibration.constants
    return c["e_per_tflop_j"], c.get("e_per_tb_j", 0.0), c["p_overhead_w"]


@given(calibrations, st.floats(0, 1e4), st.floats(0, 1e5), st.floats(0, 100))
def test_an_estimate_inverts_the_model(calibration, truth_tflop, duration_s, dram_tb):
    e, b, p = costs(calibration)
    energy_j = e * truth_tflop + p * duration_s + b * dram_tb
    scale = max(1.0, energy_j) / e
    assert tflop(calibration, energy_j, duration_s, dram_tb) == pytest.approx(truth_tflop, abs=1e-12 * scale)


@given(calibrations, st.lists(readings, min_size=1, max_size=6))
def test_estimates_of_the_parts_add_up_to_that_of_the_whole(calibration, parts):
    e, b, p = costs(calibration)
    whole = tflop(calibration, *(math.fsum(part[k] for part in parts) for k in range(3)))
    scale = sum(abs(energy_j) + p * t_s + b * tb for energy_j, t_s, tb in parts)
    total = math.fsum(tflop(calibration, *part) for part in parts)
    assert total == pytest.approx(whole, abs=1e-12 * (1 + scale / e))


def test_an_estimate_is_not_clamped():
    assert tflop(SHIPPED_2, 0.0, 100.0) == pytest.approx(-345 / 6.23)


@pytest.mark.parametrize("dram_tb", [None, math.nan])
def test_eq_1_gives_no_estimate_without_dram_and_eq_2_does_not_need_it(dram_tb):
    assert tflop(SHIPPED_2, 100.0, 10.0, dram_tb) == tflop(SHIPPED_2, 100.0, 10.0, 5.0)
    assert SHIPPED_1.estimate(Run(100.0, 10.0, dram_tb)) == Estimate(None, "eq1", ("dram_tb",))


# The study: energy J, duration s, DRAM TB of the memory spoof (1.78 TFLOP true) and of its control (152.08).
SPOOF = (571.7, 150.8, 0.1911 / 0.0133)
CONTROL = (1504.4, 150.8, 0.0696 / 0.0133)


@pytest.mark.parametrize(
    ("calibration", "readings", "expected", "digits"),
    [
        (SHIPPED_2, SPOOF, 8.26, 2),
        (SHIPPED_1, SPOOF, -96, 0),
        (TRIAL_1_EQ_2, SPOOF, 1.08, 2),
        (TRIAL_1, SPOOF, -94.8, 1),
        (SHIPPED_2, CONTROL, 158.0, 1),
        (SHIPPED_1, CONTROL, 177.7, 1),
    ],
)
def test_the_study_s_memory_spoof_and_control(calibration, readings, expected, digits):
    assert round(tflop(calibration, *readings), digits) == expected


def test_readings_that_agree_are_accepted():
    KNOWN.check(BELONGS)


def without(calibration, item):
    return replace(calibration, identity=replace(calibration.identity, **{item: None}))


@pytest.mark.parametrize("item", MUST_AGREE)
def test_a_calibration_that_does_not_know_what_it_belongs_to_is_refused_and_not_saved(tmp_path, item):
    with pytest.raises(CalibrationMismatchError, match=f"{item} is not known of the calibration: calibrate again"):
        without(KNOWN, item).check(BELONGS)
    with pytest.raises(CalibrationMismatchError, match=f"do not say {item}: declare `{item}`"):
        without(KNOWN, item).save(tmp_path / "c.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("item", MUST_AGREE)
def test_readings_that_say_otherwise_are_refused(item):
    with pytest.raises(CalibrationMismatchError, match=f"^calibration refused: {item} is 'other' .*{BELONGS[item]}"):
        KNOWN.check(BELONGS | {item: "other"})


@pytest.mark.parametrize("item", MUST_AGREE)
@pytest.mark.parametrize("unknown", ["None", "left out"])
def test_what_readings_do_not_say_must_be_declared(item, unknown):
    reported = BELONGS | {item: None} if unknown == "None" else {k: v for k, v in BELONGS.items() if k != item}
    with pytest.raises(CalibrationMismatchError, match=f"declare `{item}`"):
        KNOWN.check(reported)


def test_every_fault_is_named_at_once():
    with pytest.raises(CalibrationMismatchError) as caught:
        KNOWN.check({"device": "x", "rail": "y"})
    assert all(item in str(caught.value) for item in MUST_AGREE)


# Files


@st.composite
def any_calibration(draw):
    """Return a calibration of any estimator."""
    name = draw(st.sampled_from(sorted(FORMS)))
    constants = {constant: draw(positive) for constant in FORMS[name].constants}
    idle_w = draw(st.none() | st.floats(0, 10))
    return Calibration(name, constants, Identity(**BELONGS, idle_power_w=idle_w), draw(st.integers(0, 99)))


@given(any_calibration())
def test_a_file_gives_the_same_calibration_back(tmp_path_factory, calibration):
    path = tmp_path_factory.mktemp("calibration") / "c.json"
    calibration.save(path)
    assert Calibration.load(path) == calibration


@pytest.mark.parametrize("equation", [1, 2])
def test_a_file_of_the_release_before_is_read(tmp_path, equation):
    path = tmp_path / "c.json"
    e_per_tb_j = 61.5 if equation == 1 else None
    former = {"equation": equation, "e_per_tflop_j": 5.6, "p_overhead_w": 1.46, "e_per_tb_j": e_per_tb_j}
    former |= {**BELONGS, "idle_power_w": 0.642, "dataset": "d", "dataset_sha256": "f", "n_runs": 21, "recipe": "r"}
    path.write_text(json.dumps(former))
    identity = Identity(**BELONGS, idle_power_w=0.642, dataset="d", dataset_sha256="f")
    expected = fits.equation(equation, 5.6, 1.46, e_per_tb_j)
    assert Calibration.load(path) == replace(expected, identity=identity, n_runs=21, recipe="r")


def test_a_file_that_is_not_there_is_no_calibration_gone_wrong(tmp_path):
    with pytest.raises(FileNotFoundError):
        Calibration.load(tmp_path / "c.json")


GOOD = {"version": 2, "estimator": "eq2", "constants": {"e_per_tflop_j": 5.0, "p_overhead_w": 1.0}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '"text"',
        "{}",
        '{"equation": 3, "e_per_tflop_j": 5, "p_overhead_w": 1}',
        '{"equation": 2, "e_per_tflop_j": 5, "p_overhead_w": 1, "colour": "red"}',
        '{"equation": 2, "e_per_tflop_j": "5", "p_overhead_w": 1}',
        '{"equation": 2, "e_per_tflop_j": NaN, "p_overhead_w": 1}',
        '{"equation": 2, "e_per_tflop_j": 0, "p_overhead_w": 1}',
        '{"equation": 2, "e_per_tflop_j": 5, "p_overhead_w": null}',
        '{"equation": 1, "e_per_tflop_j": 5, "p_overhead_w": 1}',
        '{"equation": 2, "e_per_tflop_j": 5, "p_overhead_w": 1, "e_per_tb_j": 60}',
        json.dumps(GOOD | {"version": 3}),
        json.dumps(GOOD | {"version": "2"}),
        json.dumps(GOOD | {"estimator": "eq3"}),
        json.dumps(GOOD | {"estimator": "eq1"}),
        json.dumps(GOOD | {"constants": {"e_per_tflop_j": 5.0}}),
        json.dumps(GOOD | {"constants": {"e_per_tflop_j": "5", "p_overhead_w": 1.0}}),
        json.dumps(GOOD | {"constants": [5.0, 1.0]}),
        json.dumps(GOOD | {"identity": {"colour": "red"}}),
        json.dumps(GOOD | {"identity": None}),
        json.dumps(GOOD | {"colour": "red"}),
        b"\xff\xfe",
    ],
)
def test_what_is_not_a_calibration_is_refused_by_name_with_what_to_do(tmp_path, text):
    path = tmp_path / "c.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=r"c\.json is not a calibration: .*; make one with calibrate") as caught:
        Calibration.load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["e_per_tflop_j", "p_overhead_w", "e_per_tb_j", "idle_power_w"])
@pytest.mark.parametrize(
    ("value", "rule"), [(math.nan, "be a finite"), (math.inf, "be a finite"), (True, "be a finite"), (-1.0, "not")]
)
def test_constants_are_finite_and_not_negative(name, value, rule):
    constants, identity = dict(TRIAL_1.constants), Identity()
    if name in constants:
        constants[name] = value
    else:
        identity = Identity(idle_power_w=value)
    with pytest.raises(ValueError, match=f"{name} must {rule}"):
        Calibration("eq1", constants, identity)
