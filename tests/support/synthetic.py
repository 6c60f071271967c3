"""Made-up runs of an imagined board that obeys Eq. 1 exactly, or with noise on its energy."""

from __future__ import annotations

import numpy as np
import pandas as pd

from estimator_utils.datasets.columns import RUN_COLUMNS

E_PER_TFLOP_J = 6.0
E_PER_TB_J = 50.0
P_OVERHEAD_W = 1.5


def runs(
    n: int = 21,
    seed: int = 0,
    noise: float = 0.0,
    e_per_tflop_j: float = E_PER_TFLOP_J,
    e_per_tb_j: float = E_PER_TB_J,
    p_overhead_w: float = P_OVERHEAD_W,
) -> pd.DataFrame:
    """Return n runs that took 200 to 600 s at 0.5 to 0.9 TFLOP/s and moved 0.01 to 0.05 TB a second.

    Parameters
    ----------
    noise : float
        Standard deviation of the relative error put on the energy.
    """
    rng = np.random.default_rng(seed)
    duration_s = rng.uniform(200, 600, n)
    truth_tflop = duration_s * rng.uniform(0.5, 0.9, n)
    dram_tb = duration_s * rng.uniform(0.01, 0.05, n)
    energy_j = e_per_tflop_j * truth_tflop + e_per_tb_j * dram_tb + p_overhead_w * duration_s
    table = pd.DataFrame(
        {
            "run": [f"run{i}" for i in range(n)],
            "d_model": 256,
            "n_layers": 3,
            "n_heads": 4,
            "d_ff": 512,
            "seq_len": 128,
            "batch_size": 8,
            "steps": rng.integers(900, 4800, n),
            "optimizer": "adamw",
            "precision": "fp32",
            "duration_s": duration_s,
            "idle_power_w": 0.642,
            "energy_net_j": energy_j * (1 + noise * rng.standard_normal(n)),
            "power_peak_w": 9.0,
            "gpu_util": rng.uniform(0.85, 0.98, n),
            "dram_tb": dram_tb,
            "truth_tflop": truth_tflop,
        }
    )
    return table[list(RUN_COLUMNS)]
