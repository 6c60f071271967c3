"""Laws of both methods, of the scaling law and of the Fermi arithmetic."""

import math
from dataclasses import asdict, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator_utils.counting import fermi
from estimator_utils.counting.fermi import TrainingRun
from estimator_utils.counting.tables import CHIPS, THRESHOLDS_FLOP

amount = st.floats(1e-3, 1e30)


@given(amount, st.floats(0.01, 1), amount)
def test_gpu_time_and_utilisation_are_inverse(hours, utilisation, peak):
    flop = fermi.gpu_time_flop(hours, peak, utilisation)
    assert fermi.implied_utilisation(flop, hours, peak) == pytest.approx(utilisation)
    assert fermi.gpu_time_flop(2 * hours, peak, utilisation) == pytest.approx(2 * flop)


@given(st.floats(1e15, 1e30))
def test_the_optimum_spends_the_budget_and_every_other_split_of_it_loses(flop):
    parameters, tokens = fermi.chinchilla_optimum(flop)
    assert fermi.dense_flop(parameters, tokens) == pytest.approx(flop)
    best = fermi.chinchilla_loss(parameters, tokens)
    for factor in (0.5, 0.99, 1.01, 2):
        assert fermi.chinchilla_loss(parameters * factor, tokens / factor) > best


@given(st.floats(1e6, 1e13), st.floats(1e6, 1e15), st.sampled_from([*CHIPS]), st.integers(1, 10**6))
def test_days_times_chips_is_method_2_backwards_on_every_chip(params, tokens, chip, chips):
    answer = fermi.fermi(TrainingRun(params, tokens, chip=chip, chips=chips))
    peak = fermi.tables.peak_flop_per_s(chip)
    assert fermi.gpu_time_flop(answer.days * chips * 24, peak) == pytest.approx(answer.flop)
    assert answer.days_range[0] > answer.days > answer.days_range[-1]


def test_the_defaults_are_gpt_3_on_a100():
    answer = fermi.fermi(TrainingRun())
    assert answer.flop == 6 * 175e9 * 300e9
    assert answer.chip_hours == pytest.approx(answer.flop / (312e12 * 0.3 * 3600))
    assert answer.days == pytest.approx(answer.chip_hours / 1024 / 24)
    assert answer.cost_usd == pytest.approx(2 * answer.chip_hours)
    assert answer.energy_mwh == pytest.approx(answer.chip_hours * 400 * 1.1 / 1e6)
    assert answer.co2_t == pytest.approx(0.429 * answer.energy_mwh)
    assert answer.petaflop_days == pytest.approx(answer.flop / 8.64e19)


def test_the_inputs_answered_with_are_asked_again_to_the_same_answer():
    answer = fermi.fermi(TrainingRun(chip="H100", power_w=500))
    assert answer.inputs == TrainingRun(chip="H100", power_w=500, number_format="bf16", usd_per_chip_hour=2)
    assert fermi.fermi(answer.inputs) == answer


@pytest.mark.parametrize("name", THRESHOLDS_FLOP)
def test_a_threshold_is_passed_only_above_it(name):
    limit = THRESHOLDS_FLOP[name]
    for params, passed in ((limit / 1e14, False), (1.000001 * limit / 1e14, True)):
        answer = fermi.fermi(TrainingRun(params, tokens=1e14, flop_per_param_token=1))
        assert answer.thresholds[name] == {"ratio": pytest.approx(params / (limit / 1e14)), "passed": passed}


def test_what_a_chip_s_row_lacks_stays_unknown_until_it_is_given():
    answer = fermi.fermi(TrainingRun(chip="TPUv4"))
    assert answer.cost_usd is None
    assert answer.energy_mwh is not None
    priced = fermi.fermi(TrainingRun(chip="TPUv4", usd_per_chip_hour=3))
    assert priced.cost_usd == 3 * answer.chip_hours


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TrainingRun(params=0), "`params` must be a positive number, found 0"),
        (lambda: TrainingRun(flop_per_param_token=0), "`flop_per_param_token` must be a positive number"),
        (lambda: TrainingRun(pue=0.5), "`pue` must be 1 or more and `chips` a whole number, found 0.5 and 1024"),
        (lambda: TrainingRun(chips=0.5), "`chips` a whole number, found 1.1 and 0.5"),
        (lambda: TrainingRun(chips=math.nan), "`chips` must be"),
        (lambda: TrainingRun(pue=math.inf), "`pue` must be"),
        (lambda: TrainingRun(power_w=0), "`power_w` must be"),
        (lambda: fermi.fermi(TrainingRun(params=1e300, tokens=1e300)), "`flop` must be a positive number, found inf"),
        (lambda: fermi.fermi(TrainingRun(utilisation=1.01)), "`utilisation` .*at most 1, found 1.01"),
        (lambda: fermi.fermi(TrainingRun(chip="B900")), "unknown `chip` 'B900'"),
        (lambda: fermi.fermi(TrainingRun(number_format="fp4")), "A100 has no peak in 'fp4'"),
        (lambda: fermi.dense_flop(0, 1), "`parameters` must be a positive number, found 0"),
        (lambda: fermi.dense_flop(1, 1, -2), "`per_parameter` must be"),
        (lambda: fermi.gpu_time_flop(1, 1, utilisation=0), "above 0"),
        (lambda: fermi.implied_utilisation(-1, 1, 1), "`flop` must be"),
        (lambda: fermi.chinchilla_optimum(-1), "`flop` must be"),
        (lambda: fermi.chinchilla_loss(1, 0), "`tokens` must be"),
        (lambda: fermi.memory_gb(1, copies=0), "`copies` must be"),
        (lambda: fermi.energy_mwh(1, 0), "`power_w` must be"),
    ],
)
def test_a_number_that_cannot_be_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("field", [f.name for f in fields(TrainingRun) if "str" not in str(f.type)])
@pytest.mark.parametrize("value", [-1.0, 0.0, math.nan, math.inf])
def test_every_quantity_of_a_run_must_be_positive(field, value):
    with pytest.raises(ValueError, match=f"`{field}` must be a positive number"):
        replace(TrainingRun(), **{field: value})


def test_full_utilisation_and_a_facility_without_losses_are_allowed():
    answer = fermi.fermi(TrainingRun(utilisation=1, pue=1))
    assert answer.chip_hours == pytest.approx(3.15e23 / 312e12 / 3600)
    assert asdict(answer)["inputs"]["pue"] == 1
