"""A played board whose GPU is busy while a training process below this one really uses the CPU."""

import os
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from tests.support.player import Board

TICK_S = 0.05
HOLD_S = 0.2  # a process that waits for its turn on a busy machine is not idle
BUSY = {"power_w": 8.0, "gpu_util": 0.95, "dram_bytes_per_s": 4e10}
IDLE = {"power_w": 0.64, "gpu_util": 0.0, "dram_bytes_per_s": 1e9}


def training_processes():
    """CPU ticks of each process below this one that trains or copies, by its number."""
    parents, ticks = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            command = (stat.parent / "cmdline").read_bytes()
            cells = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it has just ended
        parents[int(stat.parent.name)] = int(cells[1])
        if b"estimator_utils.recording.task" in command:
            ticks[int(stat.parent.name)] = int(cells[11]) + int(cells[12])

    def below(pid):
        return pid == os.getpid() or (pid in parents and below(parents[pid]))

    return {pid: used for pid, used in ticks.items() if below(pid)}


@contextmanager
def coupled_board(root):
    """Keep the tree under ``root`` going until the block ends."""
    board, stop = Board(root), threading.Event()

    def follow():
        before, busy_s = {}, 0.0
        while not stop.wait(TICK_S):
            now = training_processes()
            if any(used > before.get(pid, used) for pid, used in now.items()):
                busy_s = time.monotonic()
            board.set(**(BUSY if time.monotonic() - busy_s < HOLD_S else IDLE))
            before = now

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield board
    finally:
        stop.set()
        thread.join()
