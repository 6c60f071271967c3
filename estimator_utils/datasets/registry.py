"""The registry of data sets: what each one is, where it lies, and how to get it.

An entry is a JSON file under ``data/registry``, so that a data set is added without code. It is either
``{"bundled": FOLDER}``, a dataset folder of ``data/``, or what a ``dataset.json`` holds, with ``url`` and
``folder`` besides: each file is fetched from below ``url`` (``fetch`` where its path there differs), checked
against its digest, and kept in ``folder`` of the place of fetched data. What the entry of a file says wins over
what its collection says.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NoReturn

from estimator_utils.datasets import dataset, study_format
from estimator_utils.datasets.dataset import Dataset, DatasetError, Metadata, Trace, sha256
from estimator_utils.datasets.locations import data_folder, fetched_folder


@dataclass(frozen=True)
class Entry:
    """A known file: where it lies, or will lie once fetched from ``url``; ``role`` is "table" or "trace"."""

    metadata: Metadata
    path: Path
    sha256: str
    role: str
    url: str | None = None


def _registered() -> dict[str, dict[str, Any]]:
    """Return the entries by name, the bundled ones first."""
    paths = sorted((data_folder() / "registry").glob("*.json"))
    entries = {path.stem: dict(json.loads(path.read_text(encoding="utf-8"))) for path in paths}
    return dict(sorted(entries.items(), key=lambda item: "url" in item[1]))


def collections() -> list[str]:
    """Return the names of the collections, the bundled ones first; the first is the default everywhere."""
    return list(_registered())


def members(collection: str | Path) -> dict[str, Entry]:
    """Return the files of a collection, or of a dataset folder, by their short names (``trial1``, ``trace``).

    Raises
    ------
    DatasetError
        Where it is neither, listing what is known.
    """
    registered = _registered().get(str(collection))
    if registered is not None and "url" in registered:
        return _entries(registered, fetched_folder() / registered["folder"])
    folder = Path(collection) if registered is None else data_folder() / registered["bundled"]
    if not (folder / "dataset.json").is_file():
        _refuse_unknown(str(collection))
    about, tables, traces = dataset.read_index(folder / "dataset.json")
    return _entries({**vars(about), "tables": tables, "traces": traces}, folder)


def _entries(index: dict[str, Any], folder: Path) -> dict[str, Entry]:
    about = {f.name: index.get(f.name) for f in fields(Metadata)}
    entries = {}
    for role in ("table", "trace"):
        for key, file in index[f"{role}s"].items():
            own = {name: file[name] for name in about.keys() & file.keys()}
            metadata = Metadata(**about | own | {"name": f"{index['name']}-{key}"})
            url = index["url"] + file.get("fetch", file["path"]) if "url" in index else None
            entries[key] = Entry(metadata, folder / file["path"], file["sha256"], role, url)
    return entries


def registry() -> dict[str, Entry]:
    """Return every registered file by its full name, ``COLLECTION-KEY``."""
    return {entry.metadata.name: entry for name in collections() for entry in members(name).values()}


def fetch(entry: Entry | str) -> Path:
    """Return the path of an intact registered file, downloading it first where it is not there yet.

    Raises
    ------
    DatasetError
        Unknown name; a digest that fails; no file and no network.
    """
    if isinstance(entry, str):
        entry = registry().get(entry) or _refuse_unknown(entry)
    path, name = entry.path, entry.metadata.name
    if path.exists():
        if (digest := sha256(path)) != entry.sha256:
            advice = "restore it with git" if entry.url is None else "delete the file and fetch it again"
            raise DatasetError(f"{path}: digest failed: expected {entry.sha256}, found {digest}; {advice}")
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


def load(data: str | Path, declared: Mapping[str, str | None] | None = None, need_truth: bool = True) -> Dataset:
    """Load a runs table.

    Parameters
    ----------
    data : str or Path
        A registered name, a CSV with the columns of the runs table, or a file in the study's record format.
    declared : mapping, optional
        ``device``, ``rail``, ``power_mode``, where the file does not say.
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
        _refuse_unknown(str(data))
    for name, value in (declared or {}).items():
        if value is not None and (reported := getattr(metadata, name)) not in (None, value):
            raise DatasetError(f"{path}: {name} is declared {value!r} but the data say {reported!r}")
        metadata = metadata if value is None else replace(metadata, **{name: value})  # type: ignore[arg-type]
    from estimator_utils.datasets import runs_table  # needs pandas, which a board has not

    return Dataset(metadata, runs_table.read(path, need_truth), sha256(path))


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
    entry = registry().get(str(collection)) or _member(collection, key, "trace")
    return read_trace(fetch(entry))


def read_trace(path: Path) -> Trace:
    """Read a trace: a CSV, or a JSON file in the study's format; ValueError where it is neither."""
    return study_format.read_trace(path) if path.suffix == ".json" else dataset.read_trace(path)


def metadata_of(path: Path) -> Metadata:
    """Return what is known of a bare file: by the dataset folder it lies in, by its digest, or nothing."""
    known = list(registry().values())
    for folder in (path.parent, path.parent.parent):
        if (folder / "dataset.json").is_file():
            known += members(folder).values()
    by_digest = {entry.sha256: entry.metadata for entry in known}
    return by_digest.get(sha256(path)) or Metadata(name=path.name)


def _member(collection: str | Path, key: str, role: str) -> Entry:
    held = {k: entry for k, entry in members(collection).items() if entry.role == role}
    if key not in held:
        raise DatasetError(f"{collection} holds no {role} {key!r}; it holds: {', '.join(held) or 'none'}")
    return held[key]


def _refuse_unknown(data: str) -> NoReturn:
    if data in collections():
        tables = [entry.metadata.name for entry in members(data).values() if entry.role == "table"]
        raise DatasetError(f"{data} is a collection: name one of its tables, {', '.join(tables)}")
    known = ", ".join([*registry(), *collections()])
    raise DatasetError(f"{data!r} is neither a file nor a registered dataset; registered: {known}")
