"""The health of a source's sensors: what is missing at the moment and why, logged once."""

import logging
import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from estimator_utils.telemetry import stuck_load
from estimator_utils.telemetry.source import Sample, Source, SourceError

log = logging.getLogger(__name__)

LOG_AGAIN_S = 3600.0
REMIND_S = 86_400.0
NEEDED = ("power_w", "gpu_util")  # without these nothing can be estimated


@dataclass
class _Loss:
    """Since when a field is missing (None: it is there), the reason that was logged, and when one was logged last."""

    since_s: float | None = None
    reason: str = ""
    logged_s: float = -math.inf


class SensorHealth:
    """Since when each field of a source is missing, for the log.

    A loss and the return are logged, of each field at most once in `LOG_AGAIN_S`, so that a flickering sensor does
    not fill the journal; a loss of what is `NEEDED` again once in `REMIND_S`.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._losses: defaultdict[str, _Loss] = defaultdict(_Loss)

    def update(self, missing: Mapping[str, str], t_s: float) -> None:
        """Take the fields that are missing at a moment, each with the reason."""
        for field, reason in missing.items():
            self._log_loss(field, reason, t_s)
        for field, loss in self._losses.items():
            if field not in missing and loss.since_s is not None:
                if loss.reason:
                    log.warning("%s: %s is back after %.0f s", self._source, field, t_s - loss.since_s)
                loss.since_s, loss.reason = None, ""

    def _log_loss(self, field: str, reason: str, t_s: float) -> None:
        loss = self._losses[field]
        loss.since_s = t_s if loss.since_s is None else loss.since_s
        pause_s = LOG_AGAIN_S if reason != loss.reason else REMIND_S if field in NEEDED else math.inf
        if t_s - loss.logged_s >= pause_s:
            since = f", for {t_s - loss.since_s:.0f} s now" if t_s > loss.since_s else ""
            log.warning("%s: no %s: %s%s", self._source, field, reason, since)
            loss.reason, loss.logged_s = reason, t_s


class CheckedSource(Source):
    """A source of sensors, which fail: keeps `missing`, logs losses, and takes a stuck load out of its samples.

    ``rail`` is the one whose power it reads.
    """

    def __init__(self, name: str, rail: str) -> None:
        self.name, self.missing, self._rail = name, {}, rail
        self._health, self._stuck_load = SensorHealth(name), stuck_load.StuckLoad()

    def identity(self) -> dict[str, Any]:
        """Return the rail; a source that can read more adds it."""
        return super().identity() | {"rail": self._rail}

    def _refuse(self, reason: str) -> NoReturn:
        self.close()
        raise SourceError(f"{self.name}: {reason}")

    def _require_rail(self, rails: Collection[str]) -> None:
        """Refuse a rail that the board has not, or has twice: another one is never taken instead."""
        if (count := list(rails).count(self._rail)) != 1:
            found = f"found {count}; the board has {sorted(set(rails))}: name one as `rail`"
            self._refuse(f"expected one rail {self._rail!r}, {found}")

    def checked(self, sample: Sample, reasons: Mapping[str, str]) -> Sample:
        """Return a sample, without its load where that is stuck, and note what it lacks.

        ``reasons`` has one for each field that the source may lack.
        """
        if self._stuck_load.is_stuck(sample):
            sample, reasons = replace(sample, gpu_util=None), {**reasons, "gpu_util": stuck_load.REASON}
        self.missing = {field: reason for field, reason in reasons.items() if getattr(sample, field) is None}
        self._health.update(self.missing, sample.t_s)
        return sample
