"""Strict reading of text: numbers, lines and stamps of logs, and what power can be true."""

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from estimator_utils.telemetry.source import SourceError

# No board or GPU draws more; drivers' blank values (9.2e18, 1.4e14) lie far above.
POWER_MAX_W = 1e5
_NUMBER = re.compile(r"\s*[+-]?[0-9]{1,18}(?:\.[0-9]{1,18})?\s*", re.ASCII)
# Rails that feed the CPU, the SoC or the whole module are never off; a GPU's own rail may be.
_ALWAYS_ON = re.compile(r"CPU|SOC|IN")


def number(text: str, low: float, high: float) -> float | None:
    r"""Return a plain decimal number within ``[low, high]``, else None.

    >>> number(" 42\n", 0, 100), number("4_2", 0, 100), number("[N/A]", 0, 100), number("101", 0, 100)
    (42.0, None, None, None)
    """
    if not _NUMBER.fullmatch(text):
        return None
    value = float(text)
    return value if low <= value <= high else None


def plausible_power_w(power_w: float | None, rail: str) -> float | None:
    """Return the power, or None where it cannot be true, as 0 W from a rail that is never off."""
    if power_w is None or not -POWER_MAX_W < power_w < POWER_MAX_W:
        return None
    return None if power_w <= 0 and _ALWAYS_ON.search(rail) else power_w


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a log with their ends; SourceError where it cannot be read."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            yield from file
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}") from error


def unix_time_s(stamp: str, form: str) -> float | None:
    """Return the Unix time of a stamp in local time, read as of this machine's zone; None where it is none."""
    try:
        return datetime.strptime(stamp, form).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
