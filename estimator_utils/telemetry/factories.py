"""The sources there are, by name.

======================  ================================================================
``sysfs[:ROOT]``        the files of a Jetson; ROOT stands for /sys
``jtop``                the jtop service, read every 0.5 s; it has no DRAM
``tegrastats[:FILE]``   the program, or its log; ``FILE#SECONDS`` between undated lines
``smi:FILE``            a CSV log of nvidia-smi; ``FILE#GPU`` chooses one of several
``replay:DATA``         a recorded or virtual trace
``auto``                the first of sysfs, tegrastats and jtop that really gives power
======================  ================================================================
"""

from collections.abc import Callable

from estimator_utils.telemetry.jtop import Jtop
from estimator_utils.telemetry.replay import open_replay
from estimator_utils.telemetry.smi import SmiLog
from estimator_utils.telemetry.source import DEFAULT_RAIL, PERIOD_S, Source, SourceError
from estimator_utils.telemetry.sysfs import SYS, Sysfs
from estimator_utils.telemetry.tegrastats import Tegrastats, TegrastatsLog
from estimator_utils.telemetry.text import number

FORMS = "sysfs[:ROOT], jtop, tegrastats[:FILE[#SECONDS]], smi:FILE[#GPU], replay:DATA or auto"


def open_source(name: str, rail: str = DEFAULT_RAIL, period_s: float = PERIOD_S) -> Source:
    """Open a source by its name.

    Parameters
    ----------
    name : str
        As in the table of this module.
    rail : str
        The rail whose power is read, by its label; never another one instead.
    period_s : s
        How often a replay is polled; the pace of other sources is their reader's.

    Raises
    ------
    SourceError
        Where the name is unknown, or what it names cannot be read.
    """
    kind, _, what = name.partition(":")
    path, _, part = what.partition("#")
    step_s = number(part or "1", 0.01, 3600)
    factories: dict[str, Callable[[], Source | None]] = {  # None where the name has too much or too little
        "sysfs": lambda: Sysfs(what or SYS, rail),
        "jtop": lambda: None if what else Jtop(rail),
        "tegrastats": lambda: _tegrastats(path, rail, step_s) if step_s else None,
        "smi": lambda: SmiLog(path, part) if path else None,
        "replay": lambda: open_replay(what, period_s) if what else None,
        "auto": lambda: None if what else _first_with_power(rail),
    }
    source = factories.get(kind, lambda: None)()
    if source is None:
        raise SourceError(f"expected a source {FORMS}, found {name!r}")
    return source


def _tegrastats(path: str, rail: str, step_s: float) -> Source:
    return TegrastatsLog(path, rail, step_s) if path else Tegrastats(rail)


def _first_with_power(rail: str) -> Source:
    """Open the first source that answers a query with power; that its library can be imported is not enough."""
    tried = []
    for name in ("sysfs", "tegrastats", "jtop"):
        try:
            source = open_source(name, rail)
        except SourceError as error:
            tried.append(f"{name}: {error}")
            continue
        if source.read().power_w:
            return source
        tried.append(f"{name}: {source.missing.get('power_w', 'no power')}")
        source.close()
    raise SourceError("no source gives power here\n" + "\n".join(tried))
