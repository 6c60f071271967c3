"""Where things lie: the bundled data, and the place of data that are fetched."""

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def bundled(folder: str) -> Path:
    """Return a top-level folder of the project: ``data`` or ``notebooks``.

    A wheel holds it inside the package; in a clone or an editable install it lies beside it.
    """
    inside = PACKAGE / folder
    return inside if inside.is_dir() else PACKAGE.parent / folder


def data_folder() -> Path:
    """Return the folder of the bundled data."""
    return bundled("data")


def fetched_folder() -> Path:
    """Return where fetched data lie: ``ESTIMATOR_DATA_DIR``, or else the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("ESTIMATOR_DATA_DIR") or Path(cache) / "estimator-utils")
