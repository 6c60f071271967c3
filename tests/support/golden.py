"""What the commands answer on the bundled, simulated data: kept under ``tests/golden``, and asked again.

``python -m tests.support.golden`` writes the answers anew; a commit that does so says which numbers moved.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from estimator_utils.cli.main import main

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
TABLES = tuple(f"orin-nano-virtual-trial{n}" for n in (1, 2, 3))
COMMANDS = {
    **{f"calibrate {t} --equation {e}": () for t in TABLES for e in (1, 2)},
    **{f"evaluate {t} --equation {e}": () for t in TABLES for e in (1, 2)},
    "calibrate orin-nano-virtual-trial1 --equation 2 --precision tf32 --gate 0": (),
    "calibrate orin-nano-virtual-trial1 --equation 2 --overhead-max-w 12": (),
    "evaluate orin-nano-virtual-trial1 --equation 1 --seed 3 --n-splits 50 --n-train 10": (),
    **{f"estimate {t}": ("--calibration", "eq1.json") for t in TABLES},
    "estimate orin-nano-virtual-further --gate 0": ("--calibration", "eq2.json"),
    "workload --d-model 384 --batch-size 16 --steps 9000 --count-only": (),
    "workload --d-model 64 --n-heads 8 --optimizer sgd --attention-backward 2 --count-only": (),
    "fermi": (),
    "fermi --params 70e9 --tokens 15e12 --chip H100 --chips 16384 --utilisation 0.4": (),
    "fermi --chip TPUv4 --params 540e9 --tokens 780e9": (),
}
REPLAYS = ("trace", "spoof", "long")


def ask(*words: object) -> Any:
    """Run a command with ``--json`` in this process; return its answer, a list where it has several lines."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*map(str, words), "--json"]) == 0, words
    answers = [json.loads(line) for line in out.getvalue().splitlines()]
    return answers[0] if len(answers) == 1 else answers


def answers(folder: Path) -> dict[str, Any]:
    """Ask every command; ``folder`` is for calibrations and logs."""
    for equation in (1, 2):
        ask("calibrate", TABLES[0], "--equation", equation, "-o", folder / f"eq{equation}.json")
    found = {}
    for command, more in COMMANDS.items():
        words = [folder / word if word.endswith(".json") else word for word in (*command.split(), *more)]
        found[command] = ask(*words)
    for name in REPLAYS:
        source, log = f"replay:orin-nano-virtual-{name}", folder / f"{name}.sqlite"
        words = ["--calibration", folder / "eq1.json", "--fallback", folder / "eq2.json", "--merge-gap", 30]
        found[f"monitor {source}"] = ask("monitor", "--source", source, *words, "--log", log, "--speed", 0)
        found[f"sessions of {source}"] = ask("sessions", log)
        found[f"samples of {source}"] = samples(log)
    return found


def samples(log: Path) -> dict[str, Any]:
    """Return the number of logged polls, and the sum of each column of numbers."""
    with contextlib.closing(sqlite3.connect(log)) as connection:
        rows = connection.execute("SELECT * FROM samples")
        names = [column[0] for column in rows.description]
        table = list(zip(*rows, strict=True))
    sums = {
        name: math.fsum(v for v in column if v is not None)
        for name, column in zip(names, table, strict=True)
        if name != "source"
    }
    return {"n": len(table[0]), **sums}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of nested JSON with its path."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, f"{path}/{key}")
    else:
        yield path, value


def differences(expected: Any, found: Any, relative: float = 1e-6) -> list[str]:
    """Return where two JSON values differ: numbers by more than ``relative``, anything else at all."""
    before, after = dict(leaves(expected)), dict(leaves(found))
    faults = [f"{path}: only in one of the two" for path in sorted(before.keys() ^ after.keys())]
    for path in sorted(before.keys() & after.keys()):
        a, b = before[path], after[path]
        numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (a, b))
        if not (math.isclose(a, b, rel_tol=relative, abs_tol=1e-12) if numbers else a == b):
            faults.append(f"{path}: {a!r} before, {b!r} now")
    return faults


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        text = json.dumps(answers(Path(scratch)), indent=1, sort_keys=True)
    (GOLDEN / "commands.json").write_text(text + "\n", encoding="utf-8")
