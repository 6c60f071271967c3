"""One task (a workload, or a copy in memory) in a process of its own, and the readings while it runs."""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import NamedTuple

import torch

from estimator_utils.telemetry.source import Sample, Source, polls
from estimator_utils.truth.training import training_step
from estimator_utils.truth.workload import Workload

COPY_BYTES = 1 << 28  # many times any cache
REPORT_S = 1.0  # between two reports of progress


class TrainingError(RuntimeError):
    """A task failed, or its process ended before it."""


class Event(NamedTuple):
    """What a task reports: a start, a step, an end or an error.

    Attributes
    ----------
    name : {"start", "step", "end", "error"}
    t_s : float
        Monotonic.
    share : float
        Of the task that is done.
    n_bytes : int
        That a copy moved, at its end.
    text : str
        Of an error.
    """

    name: str
    t_s: float
    share: float = 0.0
    n_bytes: int = 0
    text: str = ""


@dataclass(frozen=True)
class Train:
    """Train a workload."""

    workload: Workload
    device: str

    def run(self, report: Callable[..., None]) -> None:
        """Train; ``report`` takes the fields of an `Event` but its time."""
        step = training_step(self.workload, self.device)
        report("start")
        reported_s = time.monotonic()
        for done in range(1, self.workload.steps + 1):
            step()
            if time.monotonic() - reported_s > REPORT_S:
                reported_s = time.monotonic()
                report("step", share=done / self.workload.steps)
        report("end", share=1.0)


@dataclass(frozen=True)
class Copy:
    """Copy in memory for some seconds."""

    duration_s: float
    device: str

    def run(self, report: Callable[..., None]) -> None:
        """Copy; at its end the bytes are reported."""
        here, there = (torch.ones(COPY_BYTES, dtype=torch.uint8, device=self.device) for _ in range(2))
        copies = 0
        report("start")
        end_s = time.monotonic() + self.duration_s
        while time.monotonic() < end_s:
            there.copy_(here)
            if self.device == "cuda":
                torch.cuda.synchronize()
            copies += 1
        report("end", n_bytes=2 * COPY_BYTES * copies)  # each byte is read once and written once


class Watched(NamedTuple):
    """The readings from the last before a task's start to the first after its end, and these two events.

    The edges lie between two readings each, so the trapezoid takes half of either interval, as for sessions.
    """

    samples: list[Sample]
    start: Event
    end: Event


def run_task(
    source: Source, task: Train | Copy, period_s: float, on_progress: Callable[[float], None] = lambda share: None
) -> Watched:
    """Run a task in a child, reading ``source`` every ``period_s``.

    ``on_progress`` is given the share that is done, now and then.

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
    events: dict[str, Event] = {}
    try:
        for sample in polls(source, period_s):
            has_ended = not child.is_alive()
            with contextlib.suppress(EOFError, ConnectionResetError):
                while ours.poll():
                    event = Event(*ours.recv())
                    events[event.name] = event
                    on_progress(event.share)
            if "start" not in events:
                samples.clear()
            samples.append(sample)
            if "end" in events and sample.t_s >= events["end"].t_s:
                break
            if "error" in events or (has_ended and "end" not in events):
                ended = f"its process ended with status {child.exitcode}"
                raise TrainingError(f"{task} failed: {events['error'].text if 'error' in events else ended}")
    finally:
        child.kill()
        child.join()
        ours.close()
    first = max(k for k, s in enumerate(samples) if s.t_s <= events["start"].t_s or k == 0)
    return Watched(samples[first:], events["start"], events["end"])


def _child(task: Train | Copy, parent: Connection) -> None:
    """Do the task, reporting when it starts and ends; end with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process

    def end_with_parent() -> None:
        with contextlib.suppress(EOFError, OSError):
            parent.recv()  # the parent sends nothing: this returns when it is gone
        os._exit(1)

    def report(name: str, share: float = 0.0, n_bytes: int = 0, text: str = "") -> None:
        if task.device == "cuda" and name != "step":
            torch.cuda.synchronize()
        parent.send(tuple(Event(name, time.monotonic(), share, n_bytes, text)))

    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        task.run(report)
    except Exception as error:  # whatever it is, the parent reports it
        report("error", text=f"{type(error).__name__}: {error}")
    os._exit(0)
