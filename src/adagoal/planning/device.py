"""Which backend plans on which device."""

from __future__ import annotations

from collections.abc import Callable

from adagoal.core import programs
from adagoal.planning.backend import NUMBA, Backend

DEVICES = ("cpu", "gpu")


def backend(device: str, note: Callable[[str], None]) -> Backend:
    """The backend of a device; where there is no GPU, that of the processor, which is noted in one line."""
    if device == "cpu":
        return NUMBA
    try:
        from adagoal.planning.jax_backend import JAX, gpu
    except ImportError:
        note("planned on the processor: a GPU needs JAX with CUDA, the extra gpu")
        return NUMBA
    if gpu():
        programs.keep()
        return JAX
    note("planned on the processor: JAX found no GPU")
    return NUMBA
