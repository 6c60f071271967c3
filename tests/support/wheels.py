"""Build the distributions, and install the wheel into new environments, without a network.

What an environment's extras ask for is linked in from the environment that runs the tests, by the names that
requirements lead to: what they do not lead to is truly not there.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.repository import ROOT, tracked


def build(folder: Path) -> tuple[Path, Path]:
    """Build the source distribution of a copy of the tracked files, and the wheel of that; return their paths."""
    for path in tracked():  # a copy: building leaves files behind, and takes in what earlier builds left
        copy = folder / "source" / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, folder / "source", cwd=folder)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def distributions(requirements: Iterable[Requirement]) -> list[importlib.metadata.Distribution]:
    """Return the installed distributions that requirements lead to, those of these and so on."""
    waiting, seen = list(requirements), set()
    found = {}
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        found[name] = importlib.metadata.distribution(name)
        for extra in {"", *requirement.extras} - {extra for other, extra in seen if other == name}:
            seen.add((name, extra))
            for asked in map(Requirement, found[name].requires or ()):
                if asked.marker is None or asked.marker.evaluate({"extra": extra}):
                    waiting.append(asked)
    return list(found.values())


def environment(folder: Path, wheel: Path, requirements: Iterable[Requirement]) -> Path:
    """Make an environment of a wheel and of what requirements lead to; return it."""
    venv.create(folder, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", folder / "bin" / "python"]
    call(*pip, "install", "--quiet", "--no-index", "--no-deps", wheel, cwd=folder)
    (site,) = folder.glob("lib/python*/site-packages")
    for distribution in distributions(requirements):
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (site / top).is_symlink():
                (site / top).symlink_to(str(distribution.locate_file(top)))
    return folder


def call(*words: str | Path, cwd: Path) -> str:
    """Run a program as if this repository and its settings were not there; return what it prints."""
    ours = ("PYTHON", "ESTIMATOR_", "VIRTUAL_ENV", "JUPYTER")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environ |= {"HOME": str(cwd), "PIP_NO_INDEX": "1"}
    done = subprocess.run([*map(str, words)], cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout
