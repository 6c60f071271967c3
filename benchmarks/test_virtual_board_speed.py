"""A virtual sweep and how its time grows, beside a board that walks through every step in plain Python."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from estimator_utils.truth.workload import Workload, read_sweep
from estimator_utils.virtual import board as virtual_board
from estimator_utils.virtual import kernels as virtual_kernels
from estimator_utils.virtual.orin_nano import FITTED
from estimator_utils.virtual.timeline import timeline

FASTER = 100  # times than the board that it stands for
ONE = Workload(d_model=256, n_layers=3, seq_len=128, batch_size=8, steps=2000)


def seconds(call: Callable[[], object], rounds: int = 3) -> float:
    times = []
    for _ in range(rounds):
        virtual_kernels._step_kernels.cache_clear()
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def walk(workload: Workload) -> float:
    """Return the duration of a run, s, by walking through the kernels of every step: the competitor."""
    line = timeline(virtual_kernels.step_kernels(workload), FITTED)
    starts, lengths = line.start_s.tolist(), line.kernel_s.tolist()
    now_s = 0.0
    for _ in range(workload.steps):
        end_s = 0.0
        for start, length in zip(starts, lengths, strict=True):
            end_s = max(end_s, start) + length
        now_s += end_s
    return now_s


def test_the_whole_sweep(benchmark):
    """26 runs of minutes each, dispatched anew."""

    def sweep() -> list[virtual_board.VirtualRun]:
        virtual_kernels._step_kernels.cache_clear()
        return virtual_board.simulate_sweep(read_sweep("study"), seed=1)

    runs = benchmark.pedantic(sweep, rounds=1)
    assert len(runs) == 26
    simulated_s = sum(run.row["duration_s"] for run in runs)
    benchmark.extra_info["simulated_s"] = simulated_s
    assert simulated_s > FASTER * benchmark.stats.stats.max


def test_it_agrees_with_the_plain_walk_and_outruns_it(benchmark):
    run = benchmark.pedantic(
        lambda: virtual_board.simulate(ONE, 0, virtual_board.Conditions(spread=0.0)), rounds=3, warmup_rounds=1
    )
    started = time.perf_counter()
    duration_s = walk(ONE)
    benchmark.extra_info["plain_walk_s"] = time.perf_counter() - started
    assert run.row["duration_s"] == pytest.approx(duration_s)
    assert benchmark.stats.stats.min < benchmark.extra_info["plain_walk_s"]


@pytest.mark.parametrize(("name", "times"), [("n_layers", 8), ("steps", 100)])
def test_time_grows_no_faster_than_layers_and_steps(benchmark, name, times):
    large = replace(ONE, **{name: times * getattr(ONE, name)})
    one_s = seconds(lambda: virtual_board.simulate(ONE))
    benchmark.pedantic(lambda: seconds(lambda: virtual_board.simulate(large), rounds=1), rounds=3)
    benchmark.extra_info["one_s"] = one_s
    assert benchmark.stats.stats.min < 1.5 * times * one_s  # linear or better, whatever else the machine does
