"""The real jtop service and client on a played tree, wholly inside a user and mount namespace.

A shell holds the namespace open; the service and its clients are sent into it. Inside, the tree is /sys, /run
is empty (so the socket is a private one, and a jtop of this machine is left alone), and everything else but
``writable`` is read-only: nothing on the host changes. Needs no root, but user namespaces.
"""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

# The service thinks it runs on a board, and keeps its settings in the private /run instead of in the
# installation of Python.
SHIM = """
import os, platform, sys
if os.environ.get("JTOP_SERVICE"):
    platform.machine = lambda: "aarch64"
    sys.base_prefix = "/run/prefix"
"""
INSIDE = """
set -e
mount --bind {writable} {writable}
mount --bind {root} /sys
mount --bind {root}/stat /proc/stat
[ -z {meminfo} ] || mount --bind {meminfo} /proc/meminfo
mount -t tmpfs tmpfs /run
mkdir /run/prefix
(grep -v '^jtop:' /etc/group; echo 'jtop:x:0:') > /run/group
mount --bind /run/group /etc/group
mount -o remount,bind,ro /
echo ready
exec sleep infinity
"""
START_S = 60.0


def why_not():
    """Return why namespaces cannot be used here, or None."""
    for tool in ("unshare", "nsenter", "setpriv", "pgrep"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    probe = "mount -t tmpfs tmpfs /run && mount -o remount,bind,ro /"
    tried = subprocess.run(
        ["unshare", "-Urm", "--propagation", "private", "sh", "-c", probe], capture_output=True, text=True
    )
    return None if tried.returncode == 0 else f"namespaces are forbidden here: {tried.stderr.strip()}"


class Jtop:
    """The namespace; with `start` the service runs in it.

    ``version`` makes the service another release (only its version differs), ``meminfo`` replaces
    /proc/meminfo.
    """

    def __init__(self, root, writable, version=None, meminfo=None):
        self.work = Path(writable).resolve() / "jtop"
        self.work.mkdir(exist_ok=True)
        (self.work / "sitecustomize.py").write_text(SHIM)
        self.service_path = [str(self.work)]
        if version is not None:
            import jtop

            other = self.work / "other"
            shutil.copytree(Path(jtop.__file__).parent, other / "jtop")
            init = other / "jtop/__init__.py"
            init.write_text(init.read_text().replace(jtop.__version__, version))
            self.service_path.append(str(other))
        script = INSIDE.format(
            root=shlex.quote(str(Path(root).resolve())),
            writable=shlex.quote(str(Path(writable).resolve())),
            meminfo=shlex.quote(str(meminfo or "")),
        )
        self.holder = subprocess.Popen(
            ["unshare", "-Urm", "--propagation", "private", "bash", "-c", script], stdout=subprocess.PIPE, text=True
        )
        if self.holder.stdout.readline() != "ready\n":
            raise RuntimeError("the namespace could not be set up: see the error above")
        self.service = None
        enter = ["nsenter", "-t", str(self.holder.pid), "-U", "-m", "--preserve-credentials", "--"]
        self.inside = [*enter, "env", "TMPDIR=/run", "PYTHONDONTWRITEBYTECODE=1"]

    def start(self):
        """Start the service and wait until it is ready."""
        log_path = self.work / "service.log"
        environment = {**os.environ, "JTOP_SERVICE": "True"}
        environment["PYTHONPATH"] = os.pathsep.join([*self.service_path, os.environ.get("PYTHONPATH", "")])
        with log_path.open("w") as log:
            self.service = subprocess.Popen(
                [*self.inside, sys.executable, "-m", "jtop", "--force"],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        deadline_s = time.monotonic() + START_S
        while "service ready" not in log_path.read_text():
            if self.service.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"the jtop service did not start:\n{log_path.read_text()}")
            time.sleep(0.02)
        return self

    def processes(self):
        """Return the service's processes: main, manager, sampler."""
        found = subprocess.run(["pgrep", "-g", str(self.service.pid)], capture_output=True, text=True)
        return [int(pid) for pid in found.stdout.split()]

    def signal(self, number, pids=None):
        """Send a signal to some or all of the service's processes."""
        for pid in self.processes() if pids is None else pids:
            os.kill(pid, number)

    def stop(self):
        """End the service and wait for its exit: a dying one takes the next one's socket away."""
        if self.service is None:
            return
        self.service.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.service.wait(5)
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        self.service.wait()
        subprocess.run([*self.inside, "rm", "-f", "/run/jtop.sock"], check=True)
        self.service = None

    def run(self, *command, **options):
        """Run a command inside and return what `subprocess.run` does."""
        return subprocess.run([*self.inside, *command], **options)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.service is not None:
            self.signal(signal.SIGKILL)
            self.service.wait()
        self.holder.kill()
        self.holder.wait()
        self.holder.stdout.close()
