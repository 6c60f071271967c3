"""A pool of processes that an interruption ends at once."""

import multiprocessing
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager


@contextmanager
def process_pool(n: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of ``n`` new Python processes, which ignore Ctrl-C: this process ends them."""
    before, spawn = set(multiprocessing.active_children()), multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n, spawn, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        try:
            yield pool
        except KeyboardInterrupt:  # leaving the pool would wait for all of its work
            for child in set(multiprocessing.active_children()) - before:
                child.kill()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
