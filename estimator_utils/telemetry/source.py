from estimator_utils.telemetry import *  # noqa
from estimator_utils.telemetry import Sample, Source, SourceError, polls, IDENTITY_KEYS, DEFAULT_RAIL, PERIOD_S  # noqa

Source.fingerprint = Source.head
