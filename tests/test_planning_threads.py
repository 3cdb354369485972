"""Planning in several threads gives the same result as in one."""

import ctypes
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

import adagoal
from adagoal.certified import confidence_sets, explorer, goal_table, heuristics
from adagoal.certified.heuristics import Heuristics
from adagoal.certified.sweeps import gather_block
from adagoal.core.compiled_code import run_jobs_in_threads
from adagoal.planning.model_arrays import BLOCK_GOALS


def explored(monkeypatch, cores):
    """Explore a small model with the settings of a very large one."""
    sizes, sweep = [], explorer.CertifiedExplorer._sweep_columns

    def spy(self, columns, exact, work):
        sizes.append((math.ceil(len(columns) / BLOCK_GOALS), exact))
        sweep(self, columns, exact, work)

    with monkeypatch.context() as patch:
        given = partial(
            Heuristics,
            min_threaded_work=1e4,
            min_split_work=1e4,
            tokens_per_step=1e5,
            max_blocks_per_plan=3,
            max_small_states=10,
        )
        patch.setattr(explorer, "Heuristics", given)
        patch.setattr(confidence_sets.ConfidenceSets, "pairs_per_job", 100)
        patch.setattr(goal_table.GoalTable, "reserved_values", 2000)  # twenty columns at first
        patch.setattr(heuristics.os, "cpu_count", lambda: cores)
        patch.setattr(explorer.CertifiedExplorer, "_sweep_columns", spy)
        result = adagoal.explore("grid", radius=40, epsilon=8, budget=10_000, seed=3, env_args={"rows": 10, "cols": 10})
    assert max(size for size, exact in sizes if not exact) == 3
    assert max(size for size, exact in sizes if exact) > 1
    return result


def test_number_of_threads_does_not_change_the_result(monkeypatch):
    one, four = explored(monkeypatch, 1), explored(monkeypatch, 4)
    assert (one.steps, one.plans, one.certificates) == (four.steps, four.plans, four.certificates)
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, four.arrays[name])


def test_parallel_gaps_do_not_change_the_result(monkeypatch):
    results, jobs = [], []

    def counted(these, threads):
        jobs.append(len([job for job in these if job.func.__name__ == "improve_by_gaps"]) if threads else 0)
        run_jobs_in_threads(these, threads)

    monkeypatch.setattr("adagoal.certified.heuristics.run_jobs_in_threads", counted)
    for least in (np.inf, 0.0):
        monkeypatch.setattr(explorer, "Heuristics", partial(Heuristics, min_threaded_work=least))
        results.append(adagoal.explore("grid", radius=4, epsilon=1.0, seed=3, env_args={"rows": 3, "cols": 3}))
        assert (max(jobs) > 1) == (least == 0.0)
    one, two = results
    assert (one.steps, one.plans, one.certificates) == (two.steps, two.plans, two.certificates)
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, two.arrays[name], err_msg=name)


def test_error_is_raised_after_the_other_jobs_ended():
    """Code that catches the error can read the tables, because no thread writes to them."""
    begun, done = threading.Event(), []

    def slow():
        begun.wait()
        time.sleep(0.05)
        done.append(True)

    def wrong():
        begun.set()
        raise KeyError("one")

    with ThreadPoolExecutor(2) as threads:
        with pytest.raises(KeyError):
            run_jobs_in_threads([wrong, slow], threads)
        assert done == [True]


def test_gathered_block_has_no_uninitialised_memory():
    perturb = getattr(ctypes.CDLL(None), "mallopt", None)
    if perturb is None:
        pytest.skip("only glibc fills fresh memory on request")
    values, policy = np.ones((20, 500)), np.ones((20, 500), np.int16)
    order, block = np.array([0, 3, 499]), np.arange(16)
    gather_block(values, policy, order, block)  # compiles
    assert perturb(-6, 165)  # M_PERTURB
    try:
        parts = gather_block(values, policy, order, block)
    finally:
        perturb(-6, 0)
    for part in parts:
        assert (part[order] == 1).all()
        assert not np.delete(part, order, axis=0).any()
