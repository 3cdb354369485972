"""What every package may use: environments, plans and counts as the loop sees them, errors, checks, types, files."""

from pathlib import Path

from adagoal.core import processes
from adagoal.core.compiled_code import remove_stale_numba_cache

processes.prepare_worker()
remove_stale_numba_cache(Path(__file__).parents[1])
