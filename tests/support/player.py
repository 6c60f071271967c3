"""A tree of files that plays /sys of an Orin Nano in its 25 W mode, and a player that runs traces through it.

Shape and values follow what public reports and drivers say of the board (L4T 36.4; with ``release`` also the
older layouts). Nothing here was taken from a board. As a program: ``python -m tests.support.player TRACE ROOT
[SPEED]``.
"""

import os
import sys
import threading
import time
from pathlib import Path

from estimator_utils.datasets.registry import read_trace

RAILS = ("VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC")
MODEL = "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super"
GPU_MAX_HZ, GPU_IDLE_HZ, EMC_HZ = 918_000_000, 306_000_000, 3_199_000_000
BYTES_PER_CYCLE = 32  # 128 bits, twice a cycle
RAIL_MV, STEP_MA = 5072, 8  # a multiple of the 8 mV step; 40 uV over 5 mOhm
STEP_W = RAIL_MV * STEP_MA * 1e-6
SOC_MA = 288  # VDD_SOC, about 1.5 W
REST_MA = 520  # what VDD_IN has more than the two other rails: memory, conversion

GPU_FOLDER = {36: "devices/platform/bus@0/17000000.gpu", 35: "devices/17000000.ga10b", 32: "devices/gpu.0"}
ACTIVITY = {
    36: "kernel/debug/cactmon/mc_all",
    35: "kernel/debug/bpmp/debug/actmon/mc_all_avg_activity",
    32: "kernel/actmon_avg_activity/mc_all",
}
EMC_FOLDER = {36: "kernel/debug/bpmp/debug/clk/emc", 35: "kernel/debug/bpmp/debug/clk/emc", 32: ""}
I2C = "bus/i2c/devices/1-0040"


class Board:
    """The tree under ``root``; `set` changes its readings, each file by replacing it in one step."""

    def __init__(self, root, release=36):
        self.root, self.release = Path(root), release
        self._written = {}
        gpu = GPU_FOLDER[release]
        self.load = f"{gpu}/load"
        self.activity = ACTIVITY[release]
        self.rate = f"{EMC_FOLDER[release]}/rate" if EMC_FOLDER[release] else "kernel/debug/clk/emc/clk_rate"
        devfreq = f"{gpu}/devfreq/{gpu.rsplit('/', 1)[1]}"
        self.clock = f"{devfreq}/cur_freq"
        self._build_power()
        self._build_gpu(gpu, devfreq)
        self._build_rest()
        self.set(power_w=0.642, gpu_util=0.0, dram_bytes_per_s=0.0)

    def current(self, channel):
        """Return the file of a rail's current in mA; channels count from 1."""
        if self.release == 32:
            return f"{I2C}/iio:device0/in_current{channel - 1}_input"
        return f"{I2C}/hwmon/hwmon1/curr{channel}_input"

    def put(self, path, value, end="\n"):
        """Write a file as a whole: a reader sees the old value or the new one."""
        file = self.root / path
        if self._written.get(path) == value:
            return
        if path not in self._written:
            file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_name(file.name + ".new")
        new.write_text(f"{value}{end}")
        os.replace(new, file)
        self._written[path] = value

    def remove(self, path):
        """Take a file away."""
        (self.root / path).unlink()
        self._written.pop(path, None)

    def set(self, power_w=None, gpu_util=None, dram_bytes_per_s=None):
        """Show readings as the board's drivers would; None leaves the old one standing."""
        if power_w is not None:
            current_ma = round(power_w * 1e6 / RAIL_MV / STEP_MA) * STEP_MA
            for channel, milliampere in ((2, current_ma), (3, SOC_MA), (1, current_ma + SOC_MA + REST_MA)):
                self.put(self.current(channel), milliampere)
                if self.release == 32:
                    power = f"{I2C}/iio:device0/in_power{channel - 1}_input"
                    self.put(power, RAIL_MV * milliampere // 1000)
        if gpu_util is not None:
            self.put(self.load, round(1000 * gpu_util))
            self.put(self.clock, GPU_MAX_HZ if gpu_util > 0 else GPU_IDLE_HZ)
        if dram_bytes_per_s is not None:
            self.put(self.activity, round(dram_bytes_per_s / BYTES_PER_CYCLE / 1000))

    def _build_power(self):
        self.put(f"{I2C}/name", "ina3221")
        for channel, rail in enumerate(RAILS, 1):
            if self.release == 32:
                folder = f"{I2C}/iio:device0"
                self.put(f"{folder}/rail_name_{channel - 1}", rail)
                self.put(f"{folder}/in_voltage{channel - 1}_input", RAIL_MV)
                continue
            folder = f"{I2C}/hwmon/hwmon1"
            self.put(f"{folder}/in{channel}_label", rail)
            self.put(f"{folder}/in{channel}_input", RAIL_MV)
            for limit in ("max", "crit"):
                self.put(f"{folder}/curr{channel}_{limit}", 32760)
                self.put(f"{folder}/curr{channel}_{limit}_alarm", 0)
        if self.release != 32:
            self.put(f"{folder}/in7_label", "sum of shunt voltages")
            self.put(f"{folder}/in7_input", 10)

    def _build_gpu(self, gpu, devfreq):
        self.put(f"{gpu}/of_node/name", "ga10b" if self.release == 35 else "gpu", end="\0")
        for name, value in (("railgate_enable", 1), ("tpc_pg_mask", 252), ("enable_3d_scaling", 1)):
            self.put(f"{gpu}/{name}", value)
        self.put(f"{gpu}/power/control", "auto")
        self.put(f"{devfreq}/min_freq", GPU_IDLE_HZ)
        self.put(f"{devfreq}/max_freq", GPU_MAX_HZ)
        self.put(f"{devfreq}/governor", "nvhost_podgov")
        if self.release != 32:
            link(self.root / devfreq / "device", "../..")
            up = "../../"
            link(self.root / "class/devfreq" / Path(devfreq).name, up + devfreq)

    def _build_rest(self):
        self.put(self.rate, EMC_HZ)
        if EMC_FOLDER[self.release]:
            for name, value in (("max_rate", EMC_HZ), ("min_rate", 204_000_000), ("mrq_rate_locked", 0)):
                self.put(f"{EMC_FOLDER[self.release]}/{name}", value)
        for gpc in (0, 1):
            self.put(f"kernel/debug/bpmp/debug/clk/nafll_gpc{gpc}/pto_counter", GPU_IDLE_HZ)
        cpus = range(6)
        for name in ("online", "possible", "present"):
            self.put(f"devices/system/cpu/{name}", "0-5")
        for cpu in cpus:
            folder = f"devices/system/cpu/cpu{cpu}"
            self.put(f"{folder}/online", 1)
            self.put(f"{folder}/cpufreq/scaling_governor", "schedutil")
            for kind in ("scaling", "cpuinfo"):
                for edge, hertz in (("min", 729_600), ("max", 1_728_000), ("cur", 1_344_000)):
                    self.put(f"{folder}/cpufreq/{kind}_{edge}_freq", hertz)
        busy = "600 0 60 6000 0 0 0 0 0 0"
        self.put("stat", "\n".join([f"cpu  {busy}", *(f"cpu{cpu} {busy}" for cpu in cpus)]), end="")
        for zone, (name, millidegree) in enumerate((("cpu", 47500), ("gpu", 46800), ("soc0", 46000), ("tj", 48000))):
            self.put(f"devices/virtual/thermal/thermal_zone{zone}/type", f"{name}-thermal")
            self.put(f"devices/virtual/thermal/thermal_zone{zone}/temp", millidegree)
        for folder in ("class/hwmon", "class/power_supply"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        self.put("devices/virtual/dmi/id/product_name", "played Orin Nano")
        self.put("firmware/devicetree/base/model", MODEL, end="\0")
        self.put("firmware/devicetree/base/serial-number", "0", end="\0")
        # Beside /sys: the power mode
        self.put("../var/lib/nvpmodel/status", "pmode:0001")
        modes = "\n".join(f"< POWER_MODEL ID={k} NAME={name} >" for k, name in enumerate(("15W", "25W", "MAXN_SUPER")))
        self.put("../etc/nvpmodel.conf", modes)


def link(path, target):
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_symlink():
        path.symlink_to(target)


def play(trace, root, speed=1.0):
    """Let a trace run through the tree under ``root``, ``speed`` times faster than it was recorded.

    A channel keeps its last reading where the trace has none at that moment. Returns the monotonic time at
    which the trace's clock was 0.
    """
    player = Player(trace, root, speed)
    player.run()
    return player.start_s


class Player(threading.Thread):
    """`play` in the background: it begins with the block and is stopped at its end.

    ``start_s`` is the monotonic time at which the trace's clock is 0.
    """

    def __init__(self, trace, root, speed=1.0):
        super().__init__(daemon=True)
        self.trace, self.board, self.speed = trace, Board(root), speed
        self.start_s = None
        self._stop_now = threading.Event()

    def run(self):
        """Show each row at its time."""
        trace = self.trace
        self.start_s = time.monotonic() - trace.t_s[0] / self.speed
        for t_s, *row in zip(trace.t_s, trace.power_w, trace.gpu_util, trace.dram_bytes_per_s, strict=True):
            if self._stop_now.wait(max(0.0, self.start_s + t_s / self.speed - time.monotonic())):
                return
            self.board.set(*row)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *error):
        self._stop_now.set()
        self.join()


if __name__ == "__main__":
    play(read_trace(sys.argv[1]), sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else 1.0)
