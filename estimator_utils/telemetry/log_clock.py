"""The time of logs in local time."""

import logging

log = logging.getLogger(__name__)

DST_S = 3600.0
PAUSE_S = 60.0  # no usual step is as long


class LogClock:
    """Time that never falls, from the wall stamps of a log in local time without a zone.

    A stamp that falls, or jumps by the hour of daylight saving, is a step of the clock and not of time:
    ``t_s`` goes on by the usual step and ``wall_s - t_s`` changes, which a reader can see.
    """

    def __init__(self, name: str, step_s: float = 1.0) -> None:
        self._name, self._step_s, self._t_s = name, step_s, -step_s
        self._last_s: float | None = None

    def __call__(self, wall_s: float | None) -> float:
        """Return seconds since the first line, from its stamp or, without one, from the usual step."""
        step_s = self._step_s
        if wall_s is not None and self._last_s is not None:
            step_s = wall_s - self._last_s
            if step_s < 0 or abs(step_s - DST_S - self._step_s) <= 2 + self._step_s:
                log.warning("%s: its clock was stepped by %+.0f s", self._name, step_s - self._step_s)
                step_s = self._step_s
            elif 0 < step_s < PAUSE_S:
                self._step_s = step_s
        self._last_s = self._last_s if wall_s is None else wall_s
        self._t_s += step_s
        return self._t_s
