"""The jtop service, read through its own client (extra ``jetson``, AGPL-3.0) in a child process.

The client blocks for ever on a hung service, ends without an error on a hung sampler, and fails when one
process connects twice. So it runs in a child that a watchdog starts again; only text comes from there.
Run as a program, this module is that child, and writes one JSON object a line: ``board`` at first, then
``reading`` or, where that is stale, ``lost``, and ``error`` at the end.
"""

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from estimator_utils.telemetry.child import Child
from estimator_utils.telemetry.health import CheckedSource
from estimator_utils.telemetry.source import DEFAULT_RAIL, IDENTITY_KEYS, Sample
from estimator_utils.telemetry.text import plausible_power_w

OPEN_S = 15.0  # for connecting and a first reading: jtop starts to sample with its first client
SILENCE_S = 8.0
# Memory and temperatures of a live board move within this time; else old data is served (jetson_stats #380).
STALE_S = 30.0
HINTS = {
    "can't access": "sudo usermod -aG jtop $USER, then log in again",
    "No module named": "pip install 'estimator-utils[jetson]'",
}
NO_DRAM = dict.fromkeys(
    ("dram_activity", "dram_bytes_per_s"),
    "jtop's share of the EMC is always 0 on Orin (jetson_stats #715): use sysfs as root",
)

# The fields of a sample, or why there are none.
Reading = tuple[dict[str, float | None], str]


class Jtop(CheckedSource):
    """Power of one rail, GPU load and clocks from the jtop service; it has no DRAM traffic.

    ``launch`` goes before the child's command, to run it elsewhere (in a namespace, say).

    Raises
    ------
    SourceError
        Where the service cannot be reached, or has no such rail.
    """

    live = True

    def __init__(
        self, rail: str = DEFAULT_RAIL, interval_s: float = 0.5, launch: Sequence[str] = (), stale_s: float = STALE_S
    ) -> None:
        super().__init__("jtop", rail)
        self._wait_s = min(3 * interval_s + 0.2, 2.0)
        self._board: dict[str, Any] = {}
        self._error = ""
        self._reasons = {
            "power_w": f"the rail {rail} is gone; jtop's total is not taken instead",
            "gpu_util": "jtop gives no load, or a 0 where NVML does not answer",
            "gpu_clock_hz": "jtop gives no clock of the GPU",
            "emc_clock_hz": "jtop gives no clock of the EMC",
        }
        task = json.dumps([rail, interval_s, stale_s])
        self._child = Child([*launch, sys.executable, "-m", __name__, task], self._parse, SILENCE_S)
        deadline_s = time.monotonic() + OPEN_S
        while not (self._board or self._error or self._child.failures) and time.monotonic() < deadline_s:
            time.sleep(0.05)
            self._child.latest(0)  # ends a silent child
        if not self._board:
            self._refuse(self._error or self._child.reason)
        self._require_rail(self._board["rails"])

    def _parse(self, line: str) -> Reading | None:
        """Return a reading; keep what else the child writes: of the board at first, and why it ends."""
        message = json.loads(line)
        self._board = message.get("board", self._board)
        self._error = message.get("error", "")
        is_reading = "reading" in message or "lost" in message
        return (message.get("reading", {}), message.get("lost", "")) if is_reading else None

    def identity(self) -> dict[str, Any]:
        """Return what the service reports of its board."""
        return super().identity() | {key: self._board.get(key) for key in IDENTITY_KEYS if key != "rail"}

    def read(self) -> Sample:
        """Return the latest reading, stamped as it came, or after a while only the time."""
        t_s, wall_s, message = self._child.latest(self._wait_s)
        reading, lost = message or ({}, f"no new reading: {self._error or self._child.reason}")
        reasons = dict.fromkeys(self._reasons, lost) if lost else self._reasons
        return self.checked(Sample(t_s, wall_s, source=self.name, **reading), reasons | NO_DRAM)

    def close(self) -> None:
        """End the child."""
        self._child.close()


def _connect(interval_s: float) -> Any:
    """Return a connected client that reads no more often than the service gives.

    The first client of a service fixes its rate; another whose own time-out, three times its interval, is
    shorter than that would end at once.
    """
    from multiprocessing.managers import BaseProxy

    from jtop import jtop

    while True:
        BaseProxy._address_to_local.clear()  # else BrokenPipeError: jetson_stats #601
        client = jtop(interval=interval_s)
        client.start()
        if client.interval <= interval_s:
            return client
        client.close()
        interval_s = client.interval


def _value(part: Any, *path: str, scale: float = 1.0, low: float = -math.inf, high: float = 1e12) -> float | None:
    """Return a number of jtop's answer, scaled; None where this board, release or moment lacks it."""
    try:
        for key in path:
            part = part[key]
    except (KeyError, TypeError):
        return None
    if isinstance(part, bool) or not isinstance(part, (int, float)) or not low <= part * scale <= high:
        return None
    return part * scale


def _rails(client: Any) -> dict[str, Any]:
    """Return the rails by name; the total is one only where jtop names its rail."""
    total = client.power.get("tot", {})
    return dict(client.power.get("rail", {})) | ({total["name"]: total} if "name" in total else {})


def _gpu(client: Any) -> dict[str, Any]:
    """Return the first GPU: two of the same load are one (jetson_stats #362)."""
    return dict(next(iter(client.gpu.values()), {}))


def _serve(rail: str, interval_s: float, stale_s: float, send: Callable[[str, object], None]) -> None:
    """Send the board, then each reading of the service, until it gives no more."""
    client = _connect(interval_s)
    board = {
        "rails": sorted(_rails(client)),
        "device": client.board.get("hardware", {}).get("Model"),
        "power_mode": client.nvpmodel.name if client.nvpmodel else None,
        "gpu_clock_hz": _value(_gpu(client), "freq", "max", scale=1e3),
        "emc_clock_hz": _value(client.memory, "EMC", "max", scale=1e3),
    }
    send("board", board)
    uptime, before, moved_s = client.uptime, "", time.monotonic()
    while client.ok():
        if client.uptime <= uptime:  # the last of the previous client, or nothing new
            continue
        uptime, gpu = client.uptime, _gpu(client)
        now = repr((client.power, gpu, client.memory, client.temperature))
        if now != before:
            before, moved_s = now, time.monotonic()
        if time.monotonic() - moved_s > stale_s:
            send("lost", f"the service gives the same for {stale_s:g} s")
            continue
        # through NVML a load of 0 may stand for no answer, and clocks are in MHz
        nvml = gpu.get("freq", {}).get("governor") == "nvml"
        load = _value(gpu, "status", "load", scale=1e-2, high=1.0)
        reading = {
            "power_w": plausible_power_w(_value(_rails(client), rail, "power", scale=1e-3), rail),
            "gpu_util": None if nvml and not load else load,
            "gpu_clock_hz": None if nvml else _value(gpu, "freq", "cur", scale=1e3, low=1.0),
            # for a rate that it cannot read jtop gives 1 kHz
            "emc_clock_hz": _value(client.memory, "EMC", "cur", scale=1e3, low=1e4),
        }
        send("reading", reading)
    raise TimeoutError("its sampler is silent")


def _main() -> None:
    """Be the child: one JSON object a line, until the service or the parent ends."""
    lines = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # whatever jtop prints goes elsewhere

    def end_with_parent() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    def send(kind: str, message: object) -> None:
        lines.write(json.dumps({kind: message}, default=str) + "\n")

    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        rail, interval_s, stale_s = json.loads(sys.argv[1])
        _serve(rail, interval_s, stale_s, send)
    except Exception as error:  # whatever ends the client is sent to the parent, which decides
        text = f"{type(error).__name__}: {error}"
        hints = [hint for sign, hint in HINTS.items() if sign in text]
        send("error", " ".join([*text.split(), *(f"({hint})" for hint in hints)]))
    os._exit(1)  # not waiting for the client's threads


if __name__ == "__main__":
    _main()
