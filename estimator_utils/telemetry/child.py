"""A program that is read line by line, as a child process."""

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from subprocess import DEVNULL, PIPE, Popen
from typing import Generic, TypeVar

BACKOFF_S = (1.0, 60.0)
CLOSE_S = 5.0  # for a reader whose pipe a descendant in a session of its own holds open

Message = TypeVar("Message")


class Child(Generic[Message]):
    """A child process that writes lines, started again with back-off when it ends or falls silent.

    A thread reads it, parses each line (None: no message), and keeps the latest message, stamped as it comes. The
    child's standard input stays open as long as the parent lives, so that it can end with it.

    Attributes
    ----------
    reason : str
        Why it failed last.
    failures : int
        How often it ended, fell silent, could not be started or wrote what cannot be parsed.
    """

    def __init__(self, command: Sequence[str], parse: Callable[[str], Message | None], silence_s: float) -> None:
        self.reason, self.failures = "it writes no line", 0
        self._command, self._parse, self._silence_s = list(command), parse, silence_s
        self._process: Popen[str] | None = None
        self._latest: tuple[float, float, Message] | None = None
        self._line_s, self._pause_s = time.monotonic(), BACKOFF_S[0]
        self._changed, self._closed = threading.Condition(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def latest(self, wait_s: float) -> tuple[float, float, Message | None]:
        """Return monotonic and wall time of the latest message, and the message; each is given once.

        Waits for one up to ``wait_s``, or until the child fails: then the time is now, the message None, and
        ``reason`` has the reason.
        """
        with self._changed:
            failures = self.failures
            self._changed.wait_for(lambda: self._latest or self.failures > failures, wait_s)
            latest, self._latest = self._latest, None
            if self._process is not None and self._is_silent():
                _kill(self._process)
            return latest or (time.monotonic(), time.time(), None)

    def _is_silent(self) -> bool:
        return time.monotonic() > self._line_s + self._silence_s

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                reason = self._run_once()
            except OSError as error:
                reason = f"cannot start {self._command[0]}: {error.strerror}"
            except Exception as error:  # otherwise the thread would end, and no line be read any more
                reason = f"its reader failed: {type(error).__name__}: {error}"
            with self._changed:
                self.reason, self.failures = reason, self.failures + 1
                self._changed.notify()
            self._closed.wait(self._pause_s)
            self._pause_s = min(2 * self._pause_s, BACKOFF_S[1])

    def _run_once(self) -> str:
        """Run the process to its end; return why it ended."""
        with Popen(
            self._command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, text=True, errors="replace", start_new_session=True
        ) as process:
            self._line_s, self._process = time.monotonic(), process
            try:
                if self._closed.is_set():
                    return "closed"
                for line in process.stdout or ():
                    self._on_line(line)
            finally:
                self._process = None
                _kill(process)
        name = os.path.basename(self._command[0])
        return f"silent for {self._silence_s:g} s" if self._is_silent() else f"{name} ended"

    def _on_line(self, line: str) -> None:
        self._line_s = time.monotonic()
        is_whole = line.endswith("\n")  # of a program that was killed it may be cut inside of a number
        if is_whole and (message := self._parse(line)) is not None:
            with self._changed:
                self._latest = self._line_s, time.time(), message
                self._changed.notify()
            self._pause_s = BACKOFF_S[0]

    def close(self) -> None:
        """End the process; it may be closed again."""
        self._closed.set()
        if (process := self._process) is not None:
            _kill(process)
        self._thread.join(CLOSE_S)


def _kill(process: Popen[str]) -> None:
    """Kill a process that is not waited for yet, and its children, which may hold its pipe open."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
