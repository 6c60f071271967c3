"""The health of a source's sensors: what is missing at the moment and why, logged once."""

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from estimator_utils.telemetry import stuck_load
from estimator_utils.telemetry.source import Sample, Source

log = logging.getLogger(__name__)

LOG_AGAIN_S = 3600.0
REMIND_S = 86_400.0
NEEDED = ("power_w", "gpu_util")


class Loss(NamedTuple):
    """Since when a field is missing, and the reason that was logged; none while the loss is too fresh."""

    since_s: float
    logged: str = ""


class SensorHealth(dict[str, str]):
    """Fields that a source cannot give at the moment, with the reason.

    A loss and the return are logged, of each field at most once in `LOG_AGAIN_S`, so that a flickering sensor does
    not fill the journal; a loss without which nothing can be estimated again once in `REMIND_S`.
    """

    def __init__(self, source: str) -> None:
        super().__init__()
        self._source = source
        self._losses: dict[str, Loss] = {}
        self._logged_s: dict[str, float] = {}

    def note(self, sample: Sample, reasons: Mapping[str, str]) -> None:
        """Note what a sample lacks; ``reasons`` has one for each field that the source may lack."""
        self.clear()
        for field, reason in reasons.items():
            if getattr(sample, field) is None:
                self[field] = reason
                self._log_loss(field, reason, sample.t_s)
        for field in self._losses.keys() - self.keys():
            loss = self._losses.pop(field)
            if loss.logged:
                log.warning("%s: %s is back after %.0f s", self._source, field, sample.t_s - loss.since_s)

    def _log_loss(self, field: str, reason: str, t_s: float) -> None:
        loss = self._losses.setdefault(field, Loss(t_s))
        pause_s = LOG_AGAIN_S if reason != loss.logged else REMIND_S if field in NEEDED else math.inf
        if t_s - self._logged_s.get(field, -math.inf) < pause_s:
            return
        since = f", for {t_s - loss.since_s:.0f} s now" if t_s > loss.since_s else ""
        log.warning("%s: no %s: %s%s", self._source, field, reason, since)
        self._losses[field], self._logged_s[field] = loss._replace(logged=reason), t_s


class CheckedSource(Source):
    """A source whose samples are checked one by one, and which knows what they lack."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.missing: SensorHealth = SensorHealth(name)
        self._stuck_load = stuck_load.StuckLoad()

    def checked(self, sample: Sample, reasons: Mapping[str, str]) -> Sample:
        """Return the sample, without a GPU load that cannot be believed, and note what it lacks."""
        if self._stuck_load.is_stuck(sample):
            sample, reasons = replace(sample, gpu_util=None), {**reasons, "gpu_util": stuck_load.REASON}
        self.missing.note(sample, reasons)
        return sample
