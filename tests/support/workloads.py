"""Small workloads that several tests of the operator's side share."""

from __future__ import annotations

from hypothesis import strategies as st

from estimator_utils.datasets.columns import OPTIMIZERS
from estimator_utils.datasets.precision import PRECISIONS
from estimator_utils.truth.workload import Workload

TINY = Workload(d_model=64, n_layers=2, seq_len=32, batch_size=4, steps=300)
LARGE = Workload(d_model=512, n_layers=6, seq_len=128, batch_size=16, steps=100)

workloads = st.builds(
    lambda heads, width, **rest: Workload(d_model=heads * width, n_heads=heads, **rest),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([16, 32, 64]),
    n_layers=st.integers(1, 3),
    d_ff=st.integers(16, 512),
    seq_len=st.integers(8, 128),
    batch_size=st.integers(1, 16),
    optimizer=st.sampled_from(OPTIMIZERS),
    precision=st.sampled_from(PRECISIONS),
)
