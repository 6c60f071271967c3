"""The registry of datasets: what each one is, where it lies, and how to get it.

The study's records carry no licence: they are fetched from their public place at a pinned commit and checked
against their digests; what this project made itself is bundled under ``data/``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from platformdirs import user_cache_dir

from estimator_utils.datasets import dataset as schema
from estimator_utils.datasets.dataset import DatasetError, Metadata, Trace

if TYPE_CHECKING:  # a board without pandas looks names up and replays traces
    import pandas as pd

BUNDLED = Path(__file__).resolve().parents[2] / "data"
STUDY_URL = (
    "https://raw.githubusercontent.com/williamfowler/verification-games/e7fff84e4779ef2590b56987ec001225430b8836/"
)
STUDY = Metadata(
    name="orin-nano-25w",
    kind="recorded",
    device="NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super",
    rail="VDD_CPU_GPU_CV",
    power_mode="25W",
    precision="fp32",
    gpu_clock_hz=918e6,
    emc_clock_hz=3199e6,
    dram_counter_factor=schema.STUDY_DRAM_COUNTER_FACTOR,
    software="L4T R36.5.0",
    who="the author of the study",
    licence="none stated: fetched, never redistributed",
)
# key: file in the study's repository, sha256, what its metadata says beyond STUDY
_STUDY_FILES: dict[str, tuple[str, str, dict[str, str]]] = {
    "trial1": (
        "eval_results_v2_records.json",
        "e7f21fc442f0bf81cdfe21a5078ebf8acfab68b3dbbc0bec95e978977c453673",
        {"date": "2026-07-07", "precision": "fp32 tf32 fp16 bf16"},
    ),
    "trial2": (
        "eval_results_25w_trial2_records.json",
        "1fa9c4363f17759ade8138530e9995f5d5e0616151dcb49ff0e08c4a74a82e45",
        {"date": "2026-07-14"},
    ),
    "trial3": (
        "eval_results_25w_trial3_records.json",
        "9a3e66054d5846f4d4cee8312465468491d4720386444438ac510a4fb77e365c",
        {},
    ),
    "trace": (
        "writeup/timeseries.json",
        "90c76152d06b1143b8e406e9cfaf7d890629026e61f6cb8e7ff1f55ebce7f4a2",
        {},
    ),
}


@dataclass(frozen=True)
class Entry:
    """A known file: where it lies, or will lie once fetched from ``url``; ``role`` is "table" or "trace"."""

    metadata: Metadata
    path: Path
    sha256: str
    role: str
    url: str | None = None


@dataclass(frozen=True)
class Dataset:
    """A checked runs table (columns of `schema.RUN_COLUMNS`), what it says of itself, and its digest."""

    metadata: Metadata
    runs: pd.DataFrame
    sha256: str


def collections() -> list[str]:
    """Return the names of the collections, the bundled ones first; the first is the default everywhere."""
    return [*(path.parent.name for path in sorted(BUNDLED.glob("*/dataset.json"))), STUDY.name]


def members(collection: str | Path) -> dict[str, Entry]:
    """Return the files of a collection, or of a dataset folder, by their short names (``trial1``, ``trace``).

    Raises
    ------
    DatasetError
        Where it is neither, listing what is known.
    """
    if str(collection) == STUDY.name:
        return _study_members()
    folder = BUNDLED / collection if str(collection) in collections() else Path(collection)
    if not (folder / "dataset.json").is_file():
        _unknown(str(collection))
    about, tables, traces = schema.read_index(folder / "dataset.json")
    entries = {}
    for role, files in (("table", tables), ("trace", traces)):
        for key, file in files.items():
            named = replace(about, name=f"{about.name}-{key}")
            entries[key] = Entry(named, folder / file["path"], file["sha256"], role)
    return entries


def registry() -> dict[str, Entry]:
    """Return every registered file by its full name, ``COLLECTION-KEY``."""
    return {f"{c}-{key}": entry for c in collections() for key, entry in members(c).items()}


def fetch(entry: Entry | str) -> Path:
    """Return the path of an intact registered file, downloading it first where it is not there yet.

    Files lie in the user's cache, or under ``ESTIMATOR_DATA_DIR`` where that is set.

    Raises
    ------
    DatasetError
        Unknown name; a digest that fails; no file and no network.
    """
    if isinstance(entry, str):
        entry = registry().get(entry) or _unknown(entry)
    path, name = entry.path, entry.metadata.name
    if path.exists():
        if (found := schema.sha256(path)) != entry.sha256:
            advice = "restore it with git" if entry.url is None else "delete the file and fetch it again"
            raise DatasetError(f"{path}: digest failed: expected {entry.sha256}, found {found}; {advice}")
        return path
    if entry.url is None:
        raise DatasetError(f"{path}: missing, though its dataset.json names it; restore it with git")
    import pooch  # here alone: importing it costs every user of a file already there half a second

    try:
        pooch.retrieve(entry.url, f"sha256:{entry.sha256}", path.name, path.parent, progressbar=True)
    except ValueError as error:  # pooch has no class of its own for it, and keeps no such file
        raise DatasetError(
            f"{name}: digest failed: what {entry.url} holds is not {entry.sha256}: do not use it; report it"
        ) from error
    except OSError as error:
        raise DatasetError(
            f"{name}: no copy at {path}, and the download of {entry.url} failed ({type(error).__name__}): "
            "connect to a network, or put the file there, or set ESTIMATOR_DATA_DIR"
        ) from error
    return path


def load(
    data: str | Path,
    *,
    device: str | None = None,
    rail: str | None = None,
    power_mode: str | None = None,
    need_truth: bool = True,
) -> Dataset:
    """Load a runs table.

    Parameters
    ----------
    data : str or Path
        A registered name, a CSV with the columns of the runs table, or a file in the study's record format.
    device, rail, power_mode : str, optional
        Declared where the file does not say.
    need_truth : bool
        False for runs whose FLOP are to be estimated.

    Raises
    ------
    DatasetError
        Naming file, row and column, and what to do.
    """
    if entry := registry().get(str(data)):
        if entry.role != "table":
            raise DatasetError(f"{data} is a {entry.role}, not a table of runs")
        path, metadata = fetch(entry), entry.metadata
    elif (path := Path(data)).is_file():
        metadata = metadata_of(path)
    else:
        _unknown(str(data))
    for key, value in (("device", device), ("rail", rail), ("power_mode", power_mode)):
        said = getattr(metadata, key)
        if value is not None and said not in (None, value):
            raise DatasetError(f"{path}: {key} is declared {value!r} but the data say {said!r}")
    metadata = replace(
        metadata,
        device=device or metadata.device,
        rail=rail or metadata.rail,
        power_mode=power_mode or metadata.power_mode,
    )
    from estimator_utils.datasets import runs_table

    return Dataset(metadata, runs_table.read(path, need_truth), schema.sha256(path))


def table(collection: str | Path, key: str) -> Dataset:
    """Load one runs table of a collection or dataset folder, by its short name."""
    from estimator_utils.datasets import runs_table

    entry = _member(collection, key, "table")
    return Dataset(entry.metadata, runs_table.read(fetch(entry)), entry.sha256)


def trials(collection: str | Path) -> list[Dataset]:
    """Load the repeated sweeps of a collection or dataset folder: the tables ``trial1``, ``trial2``, ..."""
    keys = [key for key in members(collection) if key.startswith("trial")]
    return [table(collection, key) for key in keys or ["trial1"]]


def trace(collection: str | Path, key: str = "trace") -> Trace:
    """Load a trace of a collection or dataset folder, by its short name, or one by its full name."""
    if entry := registry().get(str(collection)):
        return schema.read_trace(fetch(entry))
    return schema.read_trace(fetch(_member(collection, key, "trace")))


def metadata_of(path: Path) -> Metadata:
    """Return what is said of a bare file: by the dataset folder it lies in, by its digest, or nothing."""
    digest, known = schema.sha256(path), list(registry().values())
    for folder in (path.parent, path.parent.parent):
        if (folder / "dataset.json").is_file():
            known += members(folder).values()
    said = {entry.sha256: entry.metadata for entry in known}
    return said.get(digest) or Metadata(name=path.name)


def frontier(runs: pd.DataFrame, gate: float = 0.8, precision: str = "fp32") -> pd.DataFrame:
    """Select the runs of one precision (or "all") whose mean GPU utilisation passes the gate.

    Raises
    ------
    DatasetError
        Where a run does not say its utilisation or precision, no run is left, or the gate is no fraction.
    """
    if not 0 <= gate <= 1:
        raise DatasetError(f"the gate is a GPU utilisation from 0 to 1 (0.8 is 80 %), found {gate:g}")
    if unknown := runs.loc[runs.precision.isna(), "run"].tolist():
        raise DatasetError(f"precision is empty in {unknown}: fill in fp32, tf32, fp16 or bf16")
    chosen = runs if precision == "all" else runs[runs.precision == precision]
    if gate > 0:
        if unknown := chosen.loc[chosen.gpu_util.isna(), "run"].tolist():
            raise DatasetError(f"gpu_util is empty in {unknown}: the gate cannot be applied; use --gate 0")
        chosen = chosen[chosen.gpu_util >= gate]
    if chosen.empty:
        raise DatasetError(f"no run of precision {precision} passes the gate of {gate:g}")
    return chosen.reset_index(drop=True)


def _study_members() -> dict[str, Entry]:
    folder = Path(os.environ.get("ESTIMATOR_DATA_DIR") or user_cache_dir("estimator-utils")) / "orin-nano"
    entries = {}
    for key, (file, digest, says) in _STUDY_FILES.items():
        about = replace(STUDY, name=f"{STUDY.name}-{key}", **says)  # type: ignore[arg-type]
        role = "trace" if key == "trace" else "table"
        entries[key] = Entry(about, folder / Path(file).name, digest, role, STUDY_URL + file)
    return entries


def _member(collection: str | Path, key: str, role: str) -> Entry:
    found = {k: entry for k, entry in members(collection).items() if entry.role == role}
    if key not in found:
        raise DatasetError(f"{collection} holds no {role} {key!r}; it holds: {', '.join(found) or 'none'}")
    return found[key]


def _unknown(data: str) -> NoReturn:
    if data in collections():
        tables = [entry.metadata.name for entry in members(data).values() if entry.role == "table"]
        raise DatasetError(f"{data} is a collection: name one of its tables, {', '.join(tables)}")
    known = ", ".join([*registry(), *collections()])
    raise DatasetError(f"{data!r} is neither a file nor a registered dataset; registered: {known}")
