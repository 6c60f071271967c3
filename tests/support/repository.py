"""The repository's own files, as git knows them."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def tracked() -> list[Path]:
    """Return the files that git tracks, or will once they are added."""
    listing = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listing, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("needs git and its checkout, to tell the repository's own files")
    return [path for name in done.stdout.split("\0") if name and (path := ROOT / name).is_file()]
