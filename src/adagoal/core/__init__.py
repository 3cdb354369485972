"""What every room may use: worlds, plans and counts as the loop sees them, errors, checks, types, files."""

from pathlib import Path

from adagoal.core import isolation
from adagoal.core.numba_cache import remove_stale_numba_cache

isolation.prepare_worker()
remove_stale_numba_cache(Path(__file__).parents[1])
