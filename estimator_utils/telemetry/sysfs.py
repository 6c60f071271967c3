"""A Jetson's own files under /sys: power, GPU load and clocks for anybody, DRAM for root.

Paths of L4T 32 to 39, as jetson-stats 7.2 and tegrastats use them. Nothing is kept open: a driver that is
loaded again puts its files elsewhere.
"""

import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from estimator_utils.telemetry.health import CheckedSource
from estimator_utils.telemetry.source import DEFAULT_RAIL, Sample, product
from estimator_utils.telemetry.text import number, plausible_power_w

SYS = Path("/sys")
# 128 bits, two transfers a cycle: true bytes a cycle of the memory clock. Orin Nano 8GB; derived from the
# bus, not calibrated on a board. The 4GB module (p3767-0004) has half the bus and is left out.
ORIN_NANO_BYTES_PER_CYCLE = 32
# In the folder of an INA3221: where its rails are named, and beside it the files in mV and mA of that channel.
RAIL_LAYOUTS = (
    ("hwmon/*/in[123]_label", "in{}_input", "curr{}_input"),  # L4T 34 and later
    ("iio:device*/rail_name_[0-9]", "in_voltage{}_input", "in_current{}_input"),  # 32
)
GPU_NAMES = ("gv11b", "gp10b", "ga10b", "gb10b", "gpu")
GPU_FOLDERS = (
    "devices/platform/bus@0/17000000.gpu",  # L4T 36, 39
    "devices/platform/17000000.ga10b",
    "devices/17000000.ga10b",  # 34, 35
    "devices/17000000.gv11b",
    "devices/17000000.gp10b",
    "devices/platform/gpu.0",
    "devices/gpu.0",  # 32
)
EMC_RATE_FILES = (
    "kernel/debug/bpmp/debug/clk/emc/rate",
    "class/devfreq/bwmgr/cur_freq",  # Thor
    "kernel/debug/clk/emc/clk_rate",  # before Xavier
)
EMC_MAX_FILES = ("kernel/debug/bpmp/debug/clk/emc/max_rate", "class/devfreq/bwmgr/max_freq")
# Active cycles of the memory clock per ms, kHz (NVIDIA's driver tegra-cactmon-mc-all).
EMC_ACTIVITY_FILES = (
    "kernel/debug/cactmon/mc_all",  # 36 and later
    "kernel/debug/bpmp/debug/actmon/mc_all_avg_activity",
    "kernel/actmon_avg_activity/mc_all",  # 35 and older
)
SEARCH_AGAIN_S = 30.0
ROOT_ONLY = (
    "for root only: run as root, or give a systemd service AmbientCapabilities=CAP_DAC_READ_SEARCH;"
    " power and GPU load need neither"
)


def read_text(path: Path) -> str | None:
    """Return the content of a small text file, or None."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip("\0 \n")
    except OSError:
        return None


def read_number(path: str | Path | None, low: float = 0, high: float = 1e12) -> float | None:
    """Return the number in a file of /sys, or None where it cannot be read or holds anything else."""
    if path is None:
        return None
    try:  # an open() file would cost half as much again; six of these are a poll
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:  # the INA3221 waits for a conversion here, and may answer ENODATA, EAGAIN or ETIMEDOUT
            text = os.read(file, 64)
        finally:
            os.close(file)
    except OSError:
        return None
    return number(text.decode("ascii", "replace"), low, high)


def model(root: Path) -> str | None:
    """Return the name of the board."""
    return read_text(root / "firmware/devicetree/base/model") or None


def bytes_per_cycle(root: Path) -> int | None:
    """Return the bytes that one cycle of the memory clock moves, where that is known of the board."""
    if "Orin Nano" not in (model(root) or ""):
        return None
    modules = read_text(root / "firmware/devicetree/base/compatible") or ""
    return None if "p3767-0004" in modules else ORIN_NANO_BYTES_PER_CYCLE


def power_mode(root: Path) -> str | None:
    """Return the name of the nvpmodel mode, from its status and configuration beside /sys."""
    status = read_text(root.parent / "var/lib/nvpmodel/status") or ""
    table = read_text(root.parent / "etc/nvpmodel.conf") or ""
    if not (mode := re.search(r"pmode:\s*(\d+)", status)):
        return None
    names = re.findall(r"^\s*<\s*POWER_MODEL\s+ID=(\d+)\s+NAME=(\S+)\s*>", table, re.MULTILINE)
    return {int(key): name for key, name in names}.get(int(mode.group(1)))


def find_rails(root: Path) -> list[tuple[str, Path, Path]]:
    """Return each rail of the INA3221 monitors by its label, with its files of voltage (mV) and current (mA).

    Only this allow-list of drivers: ``power_supply`` and UCSI are no rails, the INA238 of Thor also measures
    what hangs behind its shunt. Unconnected channels and channel 7, a sum of shunt voltages, are skipped.
    """
    rails = []
    for device in sorted((root / "bus/i2c/devices").glob("*")):
        if "ina3221" not in (read_text(device / "name") or "").lower():
            continue
        for labels, *names in RAIL_LAYOUTS:
            for label in device.glob(labels):
                channel = re.sub(r"\D", "", label.name)
                volt, current = (label.with_name(name.format(channel)) for name in names)
                if (rail := read_text(label)) and "NC" not in rail:
                    rails.append((rail, volt, current))
    return rails


def read_power_w(volt: Path, current: Path) -> float | None:
    """Return a rail's power from its files in mV and mA."""
    return product(read_number(volt, 0, 1e5), read_number(current, -1e6, 1e6), 1e-6)


def find_gpu(root: Path) -> tuple[str | None, str | None]:
    """Return the file of the GPU's load and the devfreq folder of its clock."""
    for devfreq in sorted((root / "class/devfreq").glob("*")):
        if read_text(devfreq / "device/of_node/name") in GPU_NAMES:
            return os.path.realpath(devfreq / "device/load"), os.path.realpath(devfreq)
    for folder in GPU_FOLDERS:
        if (root / folder / "load").exists():
            clocks = sorted((root / folder / "devfreq").glob("*"))
            return str(root / folder / "load"), str(clocks[0]) if clocks else None
    return None, None


def find_readable(root: Path, files: Iterable[str]) -> tuple[str | None, str]:
    """Return the first of several files that can be read, or None and why there is none."""
    reason = f"found none of {', '.join(files)} under {root}: is debugfs mounted?"
    for file in files:
        try:  # os.access would look at the real user and overlook a capability
            (root / file).open("rb").close()
            return str(root / file), f"{root / file} holds no number"
        except PermissionError:
            reason = f"{root / file} is {ROOT_ONLY}"
        except OSError:
            continue
    return None, reason


class Sysfs(CheckedSource):
    """Readings from the files of a Jetson under ``root``, which stands for /sys.

    Raises
    ------
    SourceError
        Where no rail of that name can be found: another rail is never taken instead.
    """

    live = True

    def __init__(self, root: str | Path = SYS, rail: str = DEFAULT_RAIL) -> None:
        super().__init__("sysfs" if str(root) == str(SYS) else f"sysfs:{root}", rail)
        self._root = Path(root)
        self._search()
        if not self._rails:
            self._refuse(f"no INA3221 power monitor under {root}/bus/i2c/devices: is this a Jetson?")
        self._require_rail([name for name, *_ in self._rails])

    def _search(self) -> None:
        self._rails = find_rails(self._root)
        self._power = [files for name, *files in self._rails if name == self._rail]
        self._load, devfreq = find_gpu(self._root)
        self._clock, self._clock_max = devfreq and f"{devfreq}/cur_freq", devfreq and f"{devfreq}/max_freq"
        self._rate, no_rate = find_readable(self._root, EMC_RATE_FILES)
        self._activity, no_activity = find_readable(self._root, EMC_ACTIVITY_FILES)
        self._bytes_per_cycle = bytes_per_cycle(self._root)
        unknown = "bytes a memory cycle are known for the Orin Nano 8GB only"
        self._reasons = {
            "power_w": f"rail {self._rail} under {self._root}/bus/i2c/devices gives nothing or 0 W",
            "gpu_util": f"no GPU load under {self._root}/class/devfreq and older paths: try tegrastats",
            "gpu_clock_hz": f"no GPU clock under {self._root}/class/devfreq",
            "emc_clock_hz": no_rate,
            "dram_activity": no_activity if self._rate else no_rate,
            "dram_bytes_per_s": no_activity if self._bytes_per_cycle else unknown,
        }
        self._searched_s = time.monotonic()

    def identity(self) -> dict[str, Any]:
        """Return the board's model, its power mode and the highest clocks the mode allows."""
        return super().identity() | {
            "device": model(self._root),
            "power_mode": power_mode(self._root),
            "gpu_clock_hz": read_number(self._clock_max, 1),
            "emc_clock_hz": read_number(find_readable(self._root, EMC_MAX_FILES)[0], 1),
        }

    def read(self) -> Sample:
        """Return one poll; it is stamped in the middle of the reading of power."""
        before_s = time.monotonic()
        power_w = read_power_w(*self._power[0]) if len(self._power) == 1 else None
        t_s, wall_s = (before_s + time.monotonic()) / 2, time.time()
        load = read_number(self._load, 0, 1000)
        rate_hz = read_number(self._rate, 1)
        active_hz = product(read_number(self._activity), 1000)
        sample = Sample(
            t_s=t_s,
            wall_s=wall_s,
            power_w=plausible_power_w(power_w, self._rail),
            gpu_util=None if load is None else load / 1000,
            dram_activity=None if active_hz is None or rate_hz is None else active_hz / rate_hz,
            dram_bytes_per_s=product(active_hz, self._bytes_per_cycle),
            gpu_clock_hz=read_number(self._clock, 1),
            emc_clock_hz=rate_hz,
            source=self.name,
        )
        sample = self.checked(sample, self._reasons)
        if self.missing and t_s - self._searched_s > SEARCH_AGAIN_S:
            self._search()
        return sample
