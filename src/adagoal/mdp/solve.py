"""Exact solution of a known model: the shortest expected time to every goal, and the value of a policy.

For a goal g the optimal values solve (definition ``def_VSSP``)

    V*(g) = 0,    V*(s) = 1 + min_a sum_{s'} p(s' | s, a) V*(s')    for s != g,

where the reset, action number A, leads to s0 with certainty and is the only action of a terminal state.

*Infinite values* are decided on the graph, never by size. With the reset, every failure can be retried, so
that all values of g are finite as soon as some path leads from s0 to g; otherwise V*(s) is finite where some
policy reaches g from s with probability one.

*Precision.* Every step costs one, so a Bellman residual is a relative error: if |TV - V| <= r < 1 at every
s != g, then the greedy policy pi of V reaches g with probability one, and

    V / (1 + r)  <=  V*  <=  V^pi  <=  V / (1 - r).

(V >= T_pi V - r says that V falls by 1 - r at every step of pi; V <= TV + r that it falls by at most 1 + r
at every step of any policy.) Sweeps from the number of hops, a lower bound, stop at r <= ``RESIDUAL``; goals
that they leave open are finished by policy iteration with a sparse factorisation.

This is ground truth for tests and audits; learners never import it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.sparse.linalg import splu

from adagoal.core.errors import InputError
from adagoal.core.policy import Policy
from adagoal.core.types import Actions, Bools, Floats, Ints, Longs
from adagoal.mdp import kernels
from adagoal.planning.backend import NUMBA, Backend
from adagoal.planning.exact import improve
from adagoal.planning.model import model_of
from adagoal.worlds.model import TabularMDP

RESIDUAL = 1e-12
"""Bellman residual at which sweeps stop: the relative error of the values."""
SWEEPS = 2000
"""Sweeps after which a goal is left to policy iteration."""
MOST_PATIENCE = 1e14
"""Expected steps beyond which policies are not told apart."""
FACTORISED = 1e5
"""Values up to which a sparse factorisation is trusted."""
MARGIN = 1e-12
"""An action must be better by this relative margin to replace another: ties go to the lowest number."""
FLOAT_ERROR = 1e-9
"""Relative room for rounding when a value is held against a bound."""


def at_most(value: ArrayLike, bound: ArrayLike) -> Bools:
    """value <= bound, up to rounding (``FLOAT_ERROR``)."""
    limit = np.asarray(bound, float)
    result: Bools = np.asarray(value, float) <= limit + FLOAT_ERROR * np.maximum(1.0, np.abs(limit))
    return result


def optimal_values(
    mdp: TabularMDP, goals: Sequence[int] | None = None, *, reset: bool = True, backend: Backend = NUMBA
) -> Floats:
    """V*(s -> g) as [S, G], infinite where no policy reaches g surely; all states are goals unless given.

    ``reset=False`` takes the reset action away (the reset-free problem of ``lemma_exp_sep``).
    """
    targets, model = _goals(mdp, goals), model_of(mdp, reset)
    V: Floats = kernels.hop_counts(model, *_reversed_edges(mdp), targets)
    for column in range(targets.size):
        if not (reset and np.isfinite(V[mdp.start, column])):
            sure = kernels.almost_sure(model, int(targets[column]))
            V[:, column] = np.where(sure, V[:, column], np.inf)
    V, residual = backend.exact(model, targets, V, RESIDUAL, SWEEPS)
    for j in np.flatnonzero(residual > RESIDUAL):
        V[:, j] = _policy_iteration(mdp, V[:, j], int(targets[j]), residual[j], reset)
    return V


def optimal_policy(mdp: TabularMDP, V: Floats, goals: Sequence[int] | None = None, *, reset: bool = True) -> Actions:
    """Greedy actions [S, G] for optimal values V [S, G]; the reset where V is infinite and at the goal.

    The policy reaches its goal with probability one from every state of finite value (see the module's
    text): pairs that never leave their state are not candidates, and ties go to the lowest action.
    """
    targets = _goals(mdp, goals)
    if V.shape != (mdp.n_states, targets.size):
        raise InputError(f"V must have the shape [S, G] = [{mdp.n_states}, {targets.size}], got {list(V.shape)}")
    actions = np.full(V.shape, -1, np.int16)
    improve(model_of(mdp, reset), targets, V, actions, MARGIN, 0.0)
    return actions


def policy_values(mdp: TabularMDP, actions: ArrayLike, goal: int) -> Floats:
    """V^pi(s -> g) [S] of the stationary policy ``actions`` [S], infinite where it may miss the goal."""
    table = _table(mdp, actions, 1)
    (goal,) = _goals(mdp, [goal])
    return _evaluate(mdp, table, int(goal))


def periodic_value(mdp: TabularMDP, actions: ArrayLike, goal: int) -> float:
    """V^pi(s0 -> g) of the policy that plays the H stages of ``actions`` [H, S], resets, and starts again.

    A period reaches g with probability rho and takes T expected steps, the closing reset included where
    it fails: V = T + (1 - rho) V = T / rho. A reset that the table itself chooses does not turn the clock.
    """
    table = _table(mdp, actions, 2)
    (goal,) = _goals(mdp, [goal])
    if goal == mdp.start:
        return 0.0
    steps, success = kernels.one_period(model_of(mdp), goal, table)
    return float(steps / success) if success > 0 else float("inf")


def policy_value(mdp: TabularMDP, policy: Policy, goal: int | None = None) -> float:
    """V^pi(s0 -> g) of a stationary or periodic policy; its own goal unless given."""
    target = policy.goal if goal is None else goal
    if policy.stationary:
        return float(policy_values(mdp, policy.actions[0], target)[mdp.start])
    return periodic_value(mdp, policy.actions, target)


def distances(mdp: TabularMDP, goals: Sequence[int] | None = None, *, reset: bool = True) -> Floats:
    """V*(s0 -> g) as [G]."""
    return np.array(optimal_values(mdp, goals, reset=reset)[mdp.start])


def reachable_set(mdp: TabularMDP, radius: float) -> Longs:
    """G_L: the states g with V*(s0 -> g) <= L, in increasing order."""
    return np.flatnonzero(at_most(distances(mdp), radius))


def d0(mdp: TabularMDP) -> float:
    """D_0 = max_g V*(s0 -> g) (definition ``def_VSSP``)."""
    return float(distances(mdp).max())


def diameter(mdp: TabularMDP, *, reset: bool = True) -> float:
    """D = max_{s, g} V*(s -> g) (definition ``def_VSSP``); at most D_0 + 1 with the reset."""
    return float(optimal_values(mdp, reset=reset).max())


def _policy_iteration(mdp: TabularMDP, V: Floats, goal: int, residual: float, reset: bool) -> Floats:
    """Exact V* [S] from a lower bound V [S] whose infinite entries are right."""
    actions = np.full((mdp.n_states, 1), -1, np.int16)
    improve(model_of(mdp, reset), np.array([goal]), V[:, None].copy(), actions, MARGIN, 0.0)
    if residual > 0.5:  # else the greedy policy is proper, with V^pi <= 2 V
        _start_policy(mdp, actions, goal, np.isfinite(V), reset)
    return _improve_until_best(mdp, actions, goal, np.isfinite(V), reset, 0.0)


def _start_policy(mdp: TabularMDP, actions: Actions, goal: int, finite: Bools, reset: bool) -> None:
    """Make ``actions`` [S, 1] a good proper policy, in place.

    Policy iteration must not start from any proper policy: its values may be too large for arithmetic.
    Let every step be the last with probability 1/K, so that no value exceeds K, and improve; if all values
    are at most K/2, then from every state the goal comes before that end with probability 1/2 at least,
    hence V^pi <= K without it. Otherwise try a larger K.
    """
    patience = 100.0
    while _improve_until_best(mdp, actions, goal, finite, reset, 1 / patience)[finite].max() > patience / 2:
        if patience >= MOST_PATIENCE:
            break
        patience *= 100


def _improve_until_best(
    mdp: TabularMDP, actions: Actions, goal: int, finite: Bools, reset: bool, halt: float
) -> Floats:
    """Howard's policy iteration from ``actions`` [S, 1], which it leaves at their best; the values [S]."""
    best = np.full(mdp.n_states, np.inf)
    while True:
        V = np.where(finite, _evaluate(mdp, actions[:, 0], goal, halt), np.inf)
        if not V[finite].sum() < best[finite].sum() * (1 - RESIDUAL):
            return best if np.isfinite(best[finite]).all() else V
        best = V
        if improve(model_of(mdp, reset), np.array([goal]), V[:, None].copy(), actions, MARGIN, halt) == 0:
            return best


def _evaluate(mdp: TabularMDP, actions: Actions, goal: int, halt: float = 0.0) -> Floats:
    """V^pi [S] of one stationary policy: graph analysis, then one sparse solve over the proper states.

    ``halt`` is the probability with which every step is the last.
    """
    n = mdp.n_states
    with_reset = sparse.vstack(
        [mdp.kernel(), sparse.csr_matrix(([1.0], ([0], [mdp.start])), shape=(1, n))], format="csr"
    )
    resets = mdp.terminal | (actions == mdp.reset_action)
    P = with_reset[np.where(resets, n * mdp.n_actions, np.arange(n) * mdp.n_actions + actions)]
    away = (np.arange(n) != goal).astype(float) * (1 - halt)
    P = sparse.csr_array(sparse.diags_array(away) @ P)
    P.eliminate_zeros()
    proper = np.ones(n, bool) if halt else _proper(P, goal)
    V = np.where(proper, 0.0, np.inf)
    inner = np.flatnonzero(proper & (away > 0))
    if inner.size == 0:
        return V
    P.setdiag(0.0)
    P.eliminate_zeros()
    among = P[inner][:, inner]
    out = halt + P[inner][:, [goal]].toarray()[:, 0]
    V[inner] = _expected_steps(among, out)
    return V


def _proper(P: sparse.csr_array[np.float64, tuple[int, int]], goal: int) -> Bools:
    """[S]: where the chain P, whose goal has an empty row, reaches the goal with probability one."""
    backwards = sparse.csr_array(P.T)
    graph = backwards.indptr.astype(np.int64), backwards.indices.astype(np.int32)
    hopeful = kernels.closure(*graph, np.arange(backwards.shape[0]) == goal)
    missed: Bools = kernels.closure(*graph, ~hopeful)
    return ~missed


def _expected_steps(P: sparse.csr_array[np.float64, tuple[int, int]], out: Floats) -> Floats:
    """Expected steps [n] until the chain that moves by P [n, n] (empty diagonal) ends, which it does with ``out``.

    The relative error of a factorisation grows with the values; where they are large, states are
    eliminated instead, which takes longer and is exact at any size.
    """
    leaving = P.sum(axis=1) + out  # 1 - p(s | s), without cancellation
    system = sparse.csc_matrix(sparse.diags_array(leaving) - P)
    try:
        steps = splu(system, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0).solve(np.ones(out.size))
    except RuntimeError:  # singular to working precision
        steps = np.full(out.size, np.inf)
    if 0 < steps.min() <= steps.max() < FACTORISED:
        return steps
    return kernels.eliminate(P.toarray(), out.copy())


def _reversed_edges(mdp: TabularMDP) -> tuple[Longs, Ints]:
    """The edges of all ordinary actions, backwards, as (indptr [S + 1], sources)."""
    origin = np.repeat(np.arange(mdp.n_states * mdp.n_actions) // mdp.n_actions, np.diff(mdp.indptr))
    usable = ~mdp.terminal[origin]
    edges = sparse.csr_matrix(
        (np.ones(usable.sum()), (mdp.successors[usable], origin[usable])), shape=(mdp.n_states, mdp.n_states)
    )
    return edges.indptr.astype(np.int64), edges.indices.astype(np.int32)


def _goals(mdp: TabularMDP, goals: Sequence[int] | None) -> Longs:
    targets = np.arange(mdp.n_states) if goals is None else np.asarray(goals, np.int64)
    if targets.size and not 0 <= targets.min() <= targets.max() < mdp.n_states:
        raise InputError(f"must be states in 0..{mdp.n_states - 1}", name="goals")
    return targets


def _table(mdp: TabularMDP, actions: ArrayLike, ndim: int) -> Actions:
    table = np.ascontiguousarray(actions, np.int16)
    if table.ndim != ndim or table.shape[-1] != mdp.n_states:
        raise InputError(f"a policy's table must end in S = {mdp.n_states} entries, got the shape {list(table.shape)}")
    if table.size == 0 or not 0 <= table.min() <= table.max() <= mdp.reset_action:
        raise InputError(f"a policy's actions must lie in 0..{mdp.reset_action}")
    return table
