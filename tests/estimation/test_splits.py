"""Which runs calibrate and which are held out: disjoint, exhaustive, repeatable."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator_utils.estimation.splits import Splits, draw, leave_one_out, random_splits, study_splits

sizes = st.integers(2, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n - 1)))


def seeded_splits(n_runs: int, n_train: int | None = None, n_splits: int = 200) -> Splits:
    return random_splits(n_runs, np.random.default_rng(5), n_train, n_splits)


makers = pytest.mark.parametrize("make", [study_splits, seeded_splits])


@makers
@given(sizes, st.integers(1, 20))
def test_splits_are_disjoint_exhaustive_and_repeatable(make, size, n_splits):
    n_runs, n_train = size
    splits = make(n_runs, n_train, n_splits)
    assert splits.train.shape == (n_splits, n_train)
    assert splits.test.shape == (n_splits, n_runs - n_train)
    for train, test in zip(*splits, strict=True):
        assert sorted([*train, *test]) == list(range(n_runs))
    assert all(np.array_equal(a, b) for a, b in zip(splits, make(n_runs, n_train, n_splits), strict=True))


def test_the_study_s_splits_are_its_own_shuffles():
    names = [f"run{i}" for i in range(21)]
    splits = study_splits(21)
    assert splits.train.shape == (200, 14)
    for i in (0, 1, 117, 199):
        shuffled = list(names)
        random.Random(1000 + i).shuffle(shuffled)
        assert [names[j] for j in splits.train[i]] == shuffled[:14]
        assert [names[j] for j in splits.test[i]] == shuffled[14:]


def test_more_splits_begin_with_the_same_ones():
    assert np.array_equal(study_splits(21, n_splits=300).test[:200], study_splits(21).test)


def test_seeded_splits_follow_their_generator():
    other = random_splits(21, np.random.default_rng(6))
    assert not np.array_equal(seeded_splits(21).train, other.train)
    assert len({tuple(sorted(test)) for test in other.test}) > 190


@given(st.integers(2, 30))
def test_leave_one_out_holds_out_each_run_once(n):
    splits = leave_one_out(n)
    assert splits.test.ravel().tolist() == list(range(n))
    assert splits.train.shape == (n, n - 1)
    assert all(i not in train for i, train in enumerate(splits.train))


@makers
@pytest.mark.parametrize("n_train", [21, 22, 0, -1])
def test_n_train_must_leave_runs_to_hold_out(make, n_train):
    with pytest.raises(ValueError, match=f"`n_train` must lie between 1 and 20, .*; found {n_train}"):
        make(21, n_train)


@makers
@pytest.mark.parametrize("n_splits", [0, -5])
def test_no_splits_at_all_are_refused(make, n_splits):
    with pytest.raises(ValueError, match="`n_splits` must be 1 or more"):
        make(21, 14, n_splits)


def test_drawing_gives_the_study_s_splits_or_with_a_seed_random_ones():
    study, seeded = draw(21, 14, 5), draw(21, 14, 5, seed=5)
    assert np.array_equal(study.train, study_splits(21, 14, 5).train)
    assert np.array_equal(seeded.train, random_splits(21, np.random.default_rng(5), 14, 5).train)
    assert len(draw(21, seed=0).train) == 200
    with pytest.raises(ValueError, match="`seed` must be 0 or more, found -1"):
        draw(21, seed=-1)
