"""Bootstrap intervals over workloads: the laws of a percentile interval."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator_utils.estimation.bootstrap import interval

few = settings(max_examples=25)
values = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=12)


def ends(x, seed=0, **how) -> np.ndarray:
    return np.stack(interval(x, np.random.default_rng(seed), n_draws=200, **how))


@few
@given(values)
def test_an_interval_lies_within_the_values_and_in_order(x):
    low, high = ends(x)
    assert min(x) - 1e-9 <= low <= high <= max(x) + 1e-9


@few
@given(values, st.floats(-100, 100), st.floats(0.01, 100))
def test_shifting_and_scaling_the_values_shifts_and_scales_the_interval(x, shift, scale):
    assert ends(scale * np.array(x) + shift) == pytest.approx(scale * ends(x) + shift, rel=1e-9, abs=1e-6)


@few
@given(st.floats(-1e3, 1e3), st.integers(1, 9))
def test_values_without_spread_have_an_interval_without_width(value, n):
    assert ends([value] * n) == pytest.approx(np.full(2, value))


def test_the_generator_alone_decides():
    x = np.random.default_rng(1).normal(size=30)
    assert np.array_equal(ends(x, seed=3), ends(x, seed=3))
    assert not np.array_equal(ends(x, seed=3), ends(x, seed=4))


def test_further_axes_share_the_draws_of_the_first():
    """What is drawn is the workload, with all that is known of it."""
    x = np.random.default_rng(1).normal(size=(12, 2, 3))
    found = ends(x)
    assert found.shape == (2, 2, 3)
    assert found[:, 1, 2] == pytest.approx(ends(x[:, 1, 2]))


def test_the_mean_of_many_values_varies_as_theory_says():
    x = np.random.default_rng(1).normal(5.0, 2.0, size=400)
    low, high = interval(x, np.random.default_rng(0))
    half_width = 1.96 * x.std() / np.sqrt(len(x))
    assert (low, high) == pytest.approx((x.mean() - half_width, x.mean() + half_width), abs=0.1 * half_width)


def test_another_statistic_is_taken_over_the_draws():
    x = np.random.default_rng(1).normal(size=(12, 2))
    mean = ends(x, statistic=lambda draws: draws.mean(axis=1))
    assert mean == pytest.approx(ends(x))
    worst = ends(x, statistic=lambda draws: np.abs(draws).max(axis=(1, 2)))
    assert worst[1] == np.abs(x).max()
