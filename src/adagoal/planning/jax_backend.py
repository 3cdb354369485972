"""The planner on a GPU, through JAX (extra ``gpu``): the certified bounds, and the values of a known model."""

from __future__ import annotations

import jax

from adagoal.planning import jax_bounds, jax_exact
from adagoal.planning.backend import NUMBA_BACKEND

JAX_BACKEND = NUMBA_BACKEND._replace(
    lower_bounds=jax_bounds.improve_lower_bounds_jax,
    upper_bounds=jax_bounds.improve_upper_bounds_jax,
    exact_values=jax_exact.run_value_iteration_jax,
    block_size=256,
    min_block_values=2**21,
    relative_cost=0.5,
)
"""Sweeps on JAX's first device, whatever that is: the processor, where the tests are run. Smaller blocks are left to
Numba: their transfer costs more than their sweeps, and code is compiled for every size."""


def has_jax_gpu() -> bool:
    """Whether that is a GPU."""
    return bool(jax.default_backend() == "gpu")
