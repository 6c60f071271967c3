"""One task (a workload, or a copy in memory) in a process of its own, and the readings while it runs.

Operator's side.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from estimator_utils.telemetry import Sample, Source, polls
from estimator_utils.truth.workload import Workload, training_step

COPY_BYTES = 1 << 28  # many times any cache
SAY_S = 1.0


class TrainingError(RuntimeError):
    """A task failed, or its process ended before it."""


def watch(
    source: Source, task: dict[str, Any], period_s: float, show: Callable[[float], None]
) -> tuple[list[Sample], dict[str, Any], dict[str, Any]]:
    """Run a task in a child; return the readings from the last before its start to the first after its end.

    The edges lie between two readings each, so the trapezoid takes half of either interval, as `sessions` does.

    Parameters
    ----------
    task : dict
        ``device``, and ``workload`` to train it, or ``copy_s`` to copy in memory for so long.
    show : callable
        Given the share that is done, now and then.

    Returns
    -------
    samples : list of Sample
    start, end : dict
        What the child said then; ``t_s`` is monotonic. At its end a copy says the ``bytes`` that it moved.

    Raises
    ------
    TrainingError
        Where the child ended before its task.
    """
    # The server forks a fresh process a task, with torch imported (optimizers import dynamo) and CUDA untouched.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch._dynamo"])
    ours, theirs = context.Pipe()
    child = context.Process(target=_child, args=(task, theirs), daemon=True)
    child.start()
    theirs.close()
    samples: list[Sample] = []
    said: dict[str, dict[str, Any]] = {}
    try:
        for sample in polls(source, period_s):
            has_ended = not child.is_alive()
            with contextlib.suppress(EOFError, ConnectionResetError):
                while ours.poll():
                    event, more = ours.recv()
                    said[event] = more
                    show(more.get("share", 0.0))
            if "start" not in said:
                samples.clear()
            samples.append(sample)
            if "end" in said and sample.t_s >= said["end"]["t_s"]:
                break
            if "error" in said or (has_ended and "end" not in said):
                reason = said.get("error", {}).get("text", f"its process ended with status {child.exitcode}")
                raise TrainingError(f"{task} failed: {reason}")
    finally:
        child.kill()
        child.join()
        ours.close()
    first = max(k for k, s in enumerate(samples) if s.t_s <= said["start"]["t_s"] or k == 0)
    return samples[first:], said["start"], said["end"]


def _child(task: dict[str, Any], parent: Any) -> None:
    """Do the task, saying when it starts and ends; end with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    device = task["device"]

    def end_with_parent() -> None:
        with contextlib.suppress(EOFError, OSError):
            parent.recv()  # nothing ever comes
        os._exit(1)

    def say(event: str, **more: Any) -> None:
        if device == "cuda" and event != "step":
            torch.cuda.synchronize()
        parent.send((event, {"t_s": time.monotonic(), **more}))

    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        if "workload" in task:
            _train(task["workload"], device, say)
        else:
            _copy(task["copy_s"], device, say)
    except Exception as error:  # whatever it is, the parent tells it
        say("error", text=f"{type(error).__name__}: {error}")
    os._exit(0)


def _train(workload: Workload, device: str, say: Callable[..., None]) -> None:
    step = training_step(workload, device)
    say("start")
    said_s = time.monotonic()
    for done in range(1, workload.steps + 1):
        step()
        if time.monotonic() - said_s > SAY_S:
            said_s = time.monotonic()
            say("step", share=done / workload.steps)
    say("end", share=1.0)


def _copy(copy_s: float, device: str, say: Callable[..., None]) -> None:
    here, there = (torch.ones(COPY_BYTES, dtype=torch.uint8, device=device) for _ in range(2))
    copies = 0
    say("start")
    end_s = time.monotonic() + copy_s
    while time.monotonic() < end_s:
        there.copy_(here)
        if device == "cuda":
            torch.cuda.synchronize()
        copies += 1
    say("end", bytes=2 * COPY_BYTES * copies)  # each byte is read once and written once
