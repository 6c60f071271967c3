from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator_utils.estimation.calibration import Calibration, CalibrationMismatchError

# The study's constants on the day of the memory spoof, and of trial 1; J per counter-TB x 0.0133 = J per true TB.
SHIPPED_1 = Calibration(1, 5.12, 2.163, e_per_tb_j=3857.934 * 0.0133)
SHIPPED_2 = Calibration(2, 6.23, 3.45)
TRIAL_1 = Calibration(1, 5.6113, 1.4625, e_per_tb_j=61.468)
TRIAL_1_EQ_2 = Calibration(2, 5.7230, 3.750)
BELONGS = {"device": "a board", "rail": "VDD", "power_mode": "25W", "precision": "fp32"}
IDENTITY = tuple(BELONGS)

positive = st.floats(0.1, 1e4)
readings = st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1e5), st.floats(0, 100))
eq_1 = st.builds(lambda e, b, p: Calibration(1, e, p, e_per_tb_j=b), positive, st.floats(0, 1e4), st.floats(0, 50))
eq_2 = st.builds(lambda e, p: Calibration(2, e, p), positive, st.floats(0, 50))
calibrations = eq_1 | eq_2


@given(calibrations, st.floats(0, 1e4), st.floats(0, 1e5), st.floats(0, 100))
def test_an_estimate_inverts_the_model(calibration, truth_tflop, duration_s, dram_tb):
    energy_j = calibration.e_per_tflop_j * truth_tflop + calibration.p_overhead_w * duration_s
    energy_j += (calibration.e_per_tb_j or 0.0) * dram_tb
    scale = max(1.0, energy_j) / calibration.e_per_tflop_j
    assert calibration.estimate_tflop(energy_j, duration_s, dram_tb) == pytest.approx(
        truth_tflop, abs=1e-12 * scale
    )


@given(calibrations, st.lists(readings, min_size=1, max_size=6))
def test_estimates_of_the_parts_add_up_to_that_of_the_whole(calibration, parts):
    whole = calibration.estimate_tflop(*(math.fsum(part[k] for part in parts) for k in range(3)))
    estimates = [calibration.estimate_tflop(*part) for part in parts]
    scale = sum(abs(e) + calibration.p_overhead_w * t + (calibration.e_per_tb_j or 0) * b for e, t, b in parts)
    assert math.fsum(estimates) == pytest.approx(whole, abs=1e-12 * (1 + scale / calibration.e_per_tflop_j))


def test_an_estimate_is_not_clamped():
    assert SHIPPED_2.estimate_tflop(0.0, 100.0) == pytest.approx(-345 / 6.23)


@pytest.mark.parametrize("dram_tb", [None, math.nan])
def test_eq_1_refuses_missing_dram_and_eq_2_does_not_need_it(dram_tb):
    assert SHIPPED_2.estimate_tflop(100.0, 10.0, dram_tb) == SHIPPED_2.estimate_tflop(100.0, 10.0, 5.0)
    with pytest.raises(ValueError, match=r"missing: use an Eq\. 2 calibration"):
        SHIPPED_1.estimate_tflop(100.0, 10.0, dram_tb)


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
    assert round(calibration.estimate_tflop(*readings), digits) == expected


def test_readings_that_say_the_same_are_accepted():
    replace(TRIAL_1, **BELONGS).check(**BELONGS)


@pytest.mark.parametrize("item", IDENTITY)
def test_a_calibration_that_does_not_say_is_refused(item):
    silent = replace(TRIAL_1, **BELONGS | {item: None})
    with pytest.raises(CalibrationMismatchError, match=f"{item} is not said by the calibration: calibrate again"):
        silent.check(**BELONGS)
    with pytest.raises(CalibrationMismatchError, match=f"do not say {item}: declare it with --"):
        silent.check_said()
    replace(TRIAL_1, **BELONGS).check_said()


@pytest.mark.parametrize("item", IDENTITY)
def test_readings_that_say_otherwise_are_refused(item):
    with pytest.raises(
        CalibrationMismatchError, match=f"^calibration refused: {item} is 'other' .*{BELONGS[item]}"
    ):
        replace(TRIAL_1, **BELONGS).check(**BELONGS | {item: "other"})


@pytest.mark.parametrize("item", IDENTITY)
@pytest.mark.parametrize("unsaid", ["None", "left out"])
def test_what_readings_do_not_say_must_be_declared(item, unsaid):
    said = BELONGS | {item: None} if unsaid == "None" else {k: v for k, v in BELONGS.items() if k != item}
    with pytest.raises(CalibrationMismatchError, match=f"declare it with --{item.replace('_', '-')}"):
        replace(TRIAL_1, **BELONGS).check(**said)


def test_every_fault_is_named_at_once():
    with pytest.raises(CalibrationMismatchError) as caught:
        replace(TRIAL_1, **BELONGS).check(device="x", rail="y")
    assert all(item in str(caught.value) for item in IDENTITY)


@given(st.builds(replace, calibrations, idle_power_w=st.none() | st.floats(0, 10), device=st.none() | st.text()))
def test_json_gives_the_same_calibration_back(tmp_path_factory, calibration):
    path = tmp_path_factory.mktemp("calibration") / "c.json"
    calibration.save(path)
    assert Calibration.load(path) == calibration


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
        b"\xff\xfe",
    ],
)
def test_what_is_not_a_calibration_is_refused_by_name_with_what_to_do(tmp_path, text):
    path = tmp_path / "c.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=r"c\.json is not a calibration: .*calibrate -o"):
        Calibration.load(path)


@pytest.mark.parametrize("name", ["e_per_tflop_j", "p_overhead_w", "e_per_tb_j", "idle_power_w"])
@pytest.mark.parametrize(
    ("value", "rule"), [(math.nan, "a finite"), (math.inf, "a finite"), (True, "a finite"), (-1.0, "not")]
)
def test_constants_are_finite_and_not_negative(name, value, rule):
    with pytest.raises(ValueError, match=f"{name} must {'be ' if rule != 'not' else ''}{rule}"):
        replace(TRIAL_1, **{name: value})


def test_a_calibration_carries_what_design_says():
    carried = {field.name for field in fields(Calibration)}
    assert carried >= {*IDENTITY, "idle_power_w", "dataset_sha256", "recipe"}
