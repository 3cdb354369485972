"""The planner on a GPU, through JAX (extra ``gpu``): the certified bounds, and the values of a known model."""

from __future__ import annotations

import jax

from adagoal.planning import jax_bounds, jax_exact
from adagoal.planning.backend import NUMBA

JAX = NUMBA._replace(
    lower=jax_bounds.lower, upper=jax_bounds.upper, exact=jax_exact.exact, block=256, least=2**21, price=0.5
)
"""Sweeps on JAX's first device, whatever that is: the processor, where the tests are run. Smaller blocks are left to
Numba: their transfer costs more than their sweeps, and code is compiled for every size."""


def gpu() -> bool:
    """Whether that is a GPU."""
    return bool(jax.default_backend() == "gpu")
