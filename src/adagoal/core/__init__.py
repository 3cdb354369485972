"""Shared by every package: settings, environments, plans, counts, goals, random streams, errors, checks and files."""

from pathlib import Path

from adagoal.core import user_code
from adagoal.core.compiled_code import remove_stale_numba_cache

user_code.prepare_worker()
remove_stale_numba_cache(Path(__file__).parents[1])
