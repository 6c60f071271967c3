"""The study's own files: JSON of its sweeps' records, and of its trace.

Its DRAM counter counts 0.0133 for one true byte (the study measured a copy of a known amount); everything that
leaves this module is in true bytes. Source: the study's repository, whose field names these are.
"""

import json
from pathlib import Path
from typing import Any

from estimator_utils.datasets.dataset import EVENTS, DatasetError, Trace, trace_of

DRAM_COUNTER_FACTOR = 0.0133
# our column: field of a record's config
_CONFIG = {
    "n_layers": "num_layers",
    "n_heads": "nhead",
    "d_ff": "dim_feedforward",
    **{same: same for same in ("d_model", "seq_len", "batch_size", "steps", "optimizer", "precision")},
}
_DEFAULTS = {"nhead": 4, "dim_feedforward": 512, "optimizer": "adamw", "precision": "fp32"}  # which it leaves out
# our column: field of a record, and how many of its unit are one of ours
READINGS = {
    "duration_s": ("duration_s", 1.0),
    "idle_power_w": ("idle_baseline_mw", 1e3),
    "energy_net_j": ("net_energy_j", 1.0),
    "power_peak_w": ("peak_raw_mw", 1e3),
    "gpu_util": ("avg_gpu_pct", 1e2),
    "dram_tb": ("tb_moved", DRAM_COUNTER_FACTOR),
    "truth_tflop": ("ground_truth_tf", 1.0),
}
_CHANNELS = {
    "power_w": ("power_mw", 1e3),
    "gpu_util": ("gpu_pct", 1e2),
    "dram_bytes_per_s": ("dram_bytes_s", DRAM_COUNTER_FACTOR),
}


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the records of a sweep as rows of the runs table, readings still in the units of `READINGS`.

    Raises
    ------
    DatasetError
        Naming file, row and run.
    """
    try:
        records = list(json.loads(path.read_text(encoding="utf-8"))["records"])
    except (ValueError, KeyError, TypeError) as error:
        found = f"{type(error).__name__}: {error}"
        raise DatasetError(f"{path}: not in the study's record format ({found}); or give a CSV") from error
    rows = []
    for number, record in enumerate(records, start=1):
        try:
            config = _DEFAULTS | record["config"]
            row = {"run": record["label"]} | {column: config[field] for column, field in _CONFIG.items()}
            rows.append(row | {column: record[field] for column, (field, _) in READINGS.items()})
        except (KeyError, TypeError) as error:
            name = record.get("label", "?") if isinstance(record, dict) else "?"
            advice = f"missing {error}; add it, null where it is not known"
            if isinstance(error, TypeError):
                advice = "expected an object with label, config and readings; remove it or correct it"
            where = f"{path}, row {number} ({name})"
            raise DatasetError(f"{where}: not in the study's record format: {advice}") from error
    return rows


def read_trace(path: Path) -> Trace:
    """Read a trace; a channel that was not read at a moment is None there.

    Raises
    ------
    ValueError
        Naming the file.
    """
    try:
        content = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: not a trace in the study's format: {error}") from error
    if missing := {field for field, _ in _CHANNELS.values()} - set(content):
        raise ValueError(f"{path}: missing {sorted(missing)}; expected a trace in the study's format")
    moments: dict[float, list[float | None]] = {}
    for position, (field, unit) in enumerate(_CHANNELS.values(), start=1):
        for t_s, value in content[field]:
            moments.setdefault(t_s, [t_s, None, None, None])[position] = value / unit
    events = {event: content.get("t_" + event.removesuffix("_s")) for event in EVENTS}
    return trace_of([moments[t_s] for t_s in sorted(moments)], events)
