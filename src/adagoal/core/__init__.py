"""What every package may use: environments, plans and counts as the loop sees them, errors, checks, types, files."""

from pathlib import Path

from adagoal.core import safe_imports
from adagoal.core.compiled_code import remove_stale_numba_cache

safe_imports.prepare_worker()
remove_stale_numba_cache(Path(__file__).parents[1])
