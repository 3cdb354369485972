"""One sweep of the certified bounds over all goals: backups a second, beside NumPy, SciPy and the memory's speed.

    python benchmarks/sweep.py

A backup is one (s, a, g) of one bound: the lower and the upper bound of all goals are 2 S A G backups. The package
sweeps as its planner does, several times per block of goals, on two threads with half of the blocks each. NumPy and
SciPy compute the same closed forms from the same empirical model, all states at once (Jacobi) where the package's
sweeps are in place (Gauss-Seidel): the work per backup is the same, and single states are checked against each
other. Best of several repetitions, in processor time, divided by the number of threads: what the cores do when nobody
else uses them.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from adagoal.certified import sweeps
from adagoal.core import operators
from adagoal.envs import toy_models
from adagoal.envs.model import TabularMDP
from adagoal.planning.model_arrays import EmpiricalModel, GoalBlock

Floats = NDArray[np.float64]
CAP = 42.0
SAMPLES = 1000
"""Visits of every pair in the empirical model."""
THREADS = 2
SWEEPS = 10
"""Sweeps of a block at a time; the planner makes up to 20."""
BLOCKS = (16, 32)
"""Goals swept together; the planner takes 16."""


def empirical(mdp: TabularMDP) -> EmpiricalModel:
    """The model of the sweeps after ``SAMPLES`` visits of every pair."""
    rng = np.random.default_rng(0)
    pairs, width = mdp.n_states * mdp.n_actions, int(np.diff(mdp.indptr).max())
    successor, p, support = np.zeros((pairs, width), np.int32), np.zeros((pairs, width)), np.zeros(pairs, np.int32)
    for x in range(pairs):
        row = slice(mdp.indptr[x], mdp.indptr[x + 1])
        counts = rng.multinomial(SAMPLES, mdp.probabilities[row])
        support[x] = (counts > 0).sum()
        successor[x, : support[x]] = mdp.successors[row][counts > 0]
        p[x, : support[x]] = counts[counts > 0] / SAMPLES
    radius, none = np.full(pairs, 0.01), np.zeros(pairs)
    return EmpiricalModel(
        successor, p, p, support, radius, radius, 0.1 * radius, none > 0.0, none[None], 0.0, mdp.terminal, mdp.start
    )


class Blocks:
    """The bounds of all goals, in blocks, as the planner keeps them while it sweeps."""

    def __init__(self, states: int, model: EmpiricalModel, size: int) -> None:
        self.model, self.order = model, np.arange(states)
        self.blocks = []
        for first in range(0, states, size):
            goals = np.arange(first, min(first + size, states))
            V, Y = np.zeros((states, len(goals))), np.full((states, len(goals)), CAP)
            Y[goals, np.arange(len(goals))] = 0.0
            column = np.full((states, 1), -1)
            column[goals, 0] = np.arange(len(goals))
            self.blocks.append((column, V, Y, np.zeros(V.shape, np.int16), np.zeros(V.shape, np.int16)))

    def sweep(self, pool: ThreadPoolExecutor) -> None:
        """Both bounds of all goals, ``SWEEPS`` times."""
        list(pool.map(self.sweep_all, range(THREADS), [THREADS] * THREADS))

    def sweep_all(self, first: int = 0, stride: int = 1) -> None:
        """The same on one thread, or a thread's share of it."""
        for column, V, Y, optimistic, best in self.blocks[first::stride]:
            block = GoalBlock(self.order, column, CAP, exact=False, sweeps=SWEEPS, tolerance=-1.0)
            sweeps.improve_lower_bounds(self.model, block, V, optimistic)
            sweeps.improve_upper_bounds(self.model, block, Y, best)


def matrix(model: EmpiricalModel) -> sparse.csr_matrix:
    """p_hat as a sparse matrix [X, S]."""
    inside = np.arange(model.p.shape[1]) < model.support[:, None]
    indptr = np.concatenate([[0], np.cumsum(model.support)])
    return sparse.csr_matrix(
        (model.p[inside], model.successor[inside], indptr), shape=(len(model.p), len(model.terminal))
    )


def with_scipy(model: EmpiricalModel, p: sparse.csr_matrix, V: Floats, Y: Floats) -> tuple[Floats, Floats]:
    """The same operators with sparse products."""
    return _closed_forms(model, V, Y, (p @ V, p @ (V * V)), (p @ Y, p @ (Y * Y)), _most(model, Y))


def with_numpy(model: EmpiricalModel, p: sparse.csr_matrix, V: Floats, Y: Floats) -> tuple[Floats, Floats]:
    """The same operators with one gather per place of the successors."""
    moments = []
    for F in (V, Y):
        mean, square = np.zeros((2, len(model.p), F.shape[1]))
        for k in range(model.p.shape[1]):
            near, weight = F[model.successor[:, k]], model.p[:, k, None]
            mean += weight * near
            square += weight * near * near
        moments.append((mean, square))
    return _closed_forms(model, V, Y, moments[0], moments[1], _most(model, Y))


def _most(model: EmpiricalModel, Y: Floats) -> Floats:
    """[X, G] the largest value over the successors."""
    most = Y[model.successor[:, 0]]
    for k in range(1, model.p.shape[1]):
        most = np.maximum(most, np.where(model.support[:, None] > k, Y[model.successor[:, k]], 0.0))
    return most


def _closed_forms(
    model: EmpiricalModel, V: Floats, Y: Floats, low: tuple[Floats, Floats], up: tuple[Floats, Floats], most: Floats
) -> tuple[Floats, Floats]:
    r, q = model.r[:, None], model.q[:, None]
    sure = np.where(model.support[:, None] == 1, 1.0 - q, 0.0)
    mean, variance = low[0], np.maximum(low[1] - low[0] ** 2, 0.0)
    finest, coarsest = operators.FINEST_LEVEL * CAP, CAP / operators.FINEST_LEVEL
    deviation = np.maximum(np.sqrt(2.0 * r * np.maximum(variance, 2.0 * r * finest**2)), variance / coarsest)
    Q = 1.0 + np.maximum(mean * (1.0 - r) - operators.NEAREST_LEVEL_FACTOR * deviation, sure * mean)
    lower = np.minimum(np.minimum(CAP, 1.0 + V[model.start]), Q.reshape(len(V), -1, V.shape[1]).min(axis=1))
    mean, deviation = up[0], np.sqrt(2.0 * r * np.maximum(up[1] - up[0] ** 2, 0.0))
    top = np.minimum(CAP, 1.0 + Y[model.start])
    Q = 1.0 + (1.0 - q) * np.minimum(mean + deviation + r * (most - mean), most) + q * top
    upper = np.minimum(top, Q.reshape(len(Y), -1, Y.shape[1]).min(axis=1))
    for bound in (lower, upper):
        np.fill_diagonal(bound, 0.0)
    return np.maximum(V, lower), np.minimum(Y, upper)


def fastest(work: Callable[[], object], threads: int = 1, clock: Callable[[], float] = time.process_time) -> float:
    """Seconds of the fastest of the repetitions that fit into a while."""
    work()
    best, end = np.inf, time.perf_counter() + 3.0
    while time.perf_counter() < end:
        began = clock()
        work()
        best = min(best, (clock() - began) / threads)
    return float(best)


def bandwidth() -> float:
    """Bytes a second that two threads move when they add two arrays far larger than the cache into a third."""
    a, b, c = np.ones((3, THREADS, 8_000_000))
    with ThreadPoolExecutor(THREADS) as pool:
        add = lambda: list(pool.map(lambda i: np.add(a[i], b[i], out=c[i]), range(THREADS)))  # noqa: E731
        seconds = fastest(add, clock=time.perf_counter)
    return float(3 * a.nbytes / seconds)


def agree(model: EmpiricalModel, p: sparse.csr_matrix, states: int) -> None:
    """The package, SciPy and NumPy give the same backup of a state, on bounds half way."""
    blocks = Blocks(states, model, states)
    column, V, Y, optimistic, best = blocks.blocks[0]
    blocks.sweep_all()
    np.minimum(Y, 1.0 + Y[model.start], out=Y)
    twins = [twin(model, p, V, Y) for twin in (with_scipy, with_numpy)]
    for s in range(0, states, max(1, states // 20)):
        low, up, order = V.copy(), Y.copy(), np.array([s])
        block = GoalBlock(order, column, CAP, exact=False, sweeps=1, tolerance=0.0)
        sweeps.improve_lower_bounds(model, block, low, optimistic)
        sweeps.improve_upper_bounds(model, block, up, best)
        assert all(np.allclose(twin[0][s], low[s]) and np.allclose(twin[1][s], up[s]) for twin in twins)


def rates(mdp: TabularMDP, pool: ThreadPoolExecutor) -> tuple[list[float], float]:
    """Backups a second of the package, of SciPy and of NumPy, and bytes of successors read by the package."""
    states, backups, model = mdp.n_states, 2 * mdp.n_states**2 * mdp.n_actions, empirical(mdp)
    p = matrix(model)
    agree(model, p, states)
    seconds = [fastest(functools.partial(Blocks(states, model, size).sweep, pool), THREADS) / SWEEPS for size in BLOCKS]
    V, Y = np.zeros((states, states)), np.full((states, states), CAP)
    seconds += [fastest(functools.partial(twin, model, p, V, Y)) for twin in (with_scipy, with_numpy)]
    return [backups / s for s in seconds], backups * 8 * float(model.support.mean()) / min(seconds)


def main() -> None:
    speed = bandwidth()
    print(f"memory: {speed / 1e9:.1f} GB/s on {THREADS} threads (a = b + c)\n")
    names = (*(f"blocks {size}" for size in BLOCKS), "SciPy", "NumPy")
    print(f"{'backups a second':<24} {'states':>6} {'pairs':>6} " + " ".join(f"{name:>10}" for name in names))
    for mdp in (
        toy_models.two_room_grid(),
        toy_models.random_maze(rows=23, cols=22),
        toy_models.random_sparse(n_states=500),
    ):
        with ThreadPoolExecutor(THREADS) as pool:
            found, read = rates(mdp, pool)
        numbers = " ".join(f"{rate:10.2e}" for rate in found)
        print(f"{mdp.name:<24} {mdp.n_states:>6} {mdp.n_states * mdp.n_actions:>6} {numbers}")
        print(
            f"{'':<24} an (s, a, g) counted once for both bounds: {max(found) / 2:.2e}; values of successors read: "
            f"{read / 1e9:.0f} GB/s, {read / speed:.1f} times the memory's speed"
        )


if __name__ == "__main__":
    main()
