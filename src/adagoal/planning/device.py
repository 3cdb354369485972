"""Which backend plans on which device."""

from __future__ import annotations

from collections.abc import Callable

from adagoal.core import programs
from adagoal.planning.backend import NUMBA_BACKEND, Backend

DEVICES = ("cpu", "gpu")


def select_backend(device: str, note: Callable[[str], None]) -> Backend:
    """The backend of a device; where there is no GPU, that of the processor, which is noted in one line."""
    if device == "cpu":
        return NUMBA_BACKEND
    try:
        from adagoal.planning.jax_backend import JAX_BACKEND, has_jax_gpu
    except ImportError:
        note("planned on the processor: a GPU needs JAX with CUDA, the extra gpu")
        return NUMBA_BACKEND
    if has_jax_gpu():
        programs.enable_jax_cache()
        return JAX_BACKEND
    note("planned on the processor: JAX found no GPU")
    return NUMBA_BACKEND
