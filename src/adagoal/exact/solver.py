"""Exact solution of a known model: the shortest expected time to every goal, and the value of a policy.

For a goal g, a set of states and often a single one, the optimal values solve (definition ``def_VSSP``)

    V* = 0 on g,    V*(s) = 1 + min_a sum_{s'} p(s' | s, a) V*(s')    elsewhere.

The reset, action number A, leads to s0 with certainty and is the only action of a terminal state.

*Infinite values* are found on the graph, never by size. Every failure can be retried by a reset, so all values of g are
finite as soon as some path leads from s0 to g.

*Precision.* Every step costs one, so a Bellman residual is a relative error: if |TV - V| <= r < 1 at every s outside g,
then the greedy policy pi of V reaches g with probability one, and

    V / (1 + r)  <=  V*  <=  V^pi  <=  V / (1 - r).

(V >= T_pi V - r says that V falls by 1 - r at every step of pi; V <= TV + r that it falls by at most 1 + r at every
step of any policy.) Sweeps start from the number of hops and stop at r <= MAX_RESIDUAL. Policy iteration with a sparse
factorisation finishes the goals that do not get there. A stationary policy is a model with one action, so the same
holds for its values.

This is ground truth for tests and audits; learners never import it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from adagoal.core.array_types import Actions, Bools, Floats, Ints, Longs
from adagoal.core.compiled_code import compiled
from adagoal.core.environment import Policy
from adagoal.core.errors import InputError
from adagoal.core.goal_space import membership_mask, memberships_from_sets
from adagoal.envs.model import TabularMDP
from adagoal.planning.model_arrays import SparseModel, TargetGoals, to_sparse_model
from adagoal.planning.value_iteration import improve_policy, run_value_iteration

# Functions import SciPy: it takes a tenth of a second, and many commands never need it.
if TYPE_CHECKING:
    from scipy import sparse

# A state, or several: the goal is reached when any of them is.
GoalStates = int | Collection[int]
# Bellman residual at which sweeps stop: the relative error of the values.
MAX_RESIDUAL = 1e-12
# Sweeps over all actions. Goals that need more are left to policy iteration.
MAX_IMPROVEMENT_SWEEPS = 300
# Relative tolerance of comparisons between a value and a bound: for rounding only.
FLOAT_ERROR = 1e-9


def is_at_most(value: ArrayLike, bound: ArrayLike) -> Bools:
    """Return value <= bound, up to rounding (``FLOAT_ERROR``)."""
    limit = np.asarray(bound, float)
    result: Bools = np.asarray(value, float) <= limit + FLOAT_ERROR * np.maximum(1.0, np.abs(limit))
    return result


def policy_values(mdp: TabularMDP, actions: ArrayLike, goal: GoalStates) -> Floats:
    """V^pi(s -> g) [S] of the stationary policy ``actions`` [S], infinite if it may miss the goal."""
    table, members = _check_policy_table(mdp, actions, 1), goal_state_mask(mdp, goal)
    chain = _policy_chain(to_sparse_model(mdp), table, members)
    return _evaluate_chain(chain, members, _almost_sure_hops(chain, members))


def periodic_value(mdp: TabularMDP, actions: ArrayLike, goal: GoalStates) -> float:
    """V^pi(s0 -> g) of the policy that plays the H stages of ``actions`` [H, S], resets, and starts again.

    A period reaches g with probability rho and takes T expected steps, including the closing reset if it fails:
    V = T + (1 - rho) V = T / rho. A reset that the table itself chooses does not change the clock.
    """
    table, members = _check_policy_table(mdp, actions, 2), goal_state_mask(mdp, goal)
    if members[mdp.start]:
        return 0.0
    steps, success = evaluate_one_period(to_sparse_model(mdp), members, table)
    return float(steps / success) if success > 0 else float("inf")


def policy_value(mdp: TabularMDP, policy: Policy, goal: GoalStates | None = None) -> float:
    """V^pi(s0 -> g) of a stationary or periodic policy; g is its own goal unless given."""
    target = policy.goal if goal is None else goal
    if not policy.stationary:
        return periodic_value(mdp, policy.actions, target)
    members = goal_state_mask(mdp, target)
    chain = _policy_chain(to_sparse_model(mdp), _check_policy_table(mdp, policy.actions[0], 1), members)
    reached = breadth_first_hops(chain.indptr, chain.successors, np.array([mdp.start]), np.inf) < np.inf
    # Other states do not matter to s0. Infinite hops exclude them from the sweeps.
    hops = np.where(reached, _almost_sure_hops(chain, members), np.inf)
    return float(_evaluate_chain(chain, members, hops)[mdp.start])


def optimal_distances(mdp: TabularMDP, goals: Sequence[GoalStates] | None = None, *, within: float = np.inf) -> Floats:
    """V*(s0 -> g) as [G] if it is at most ``within``, up to rounding; infinite if it is more.

    Goals with more hops from s0 are skipped. For the others, every state may be left for good at a cost C > within + 1,
    which changes no value that is returned: let W be the values of that problem. If W(s0) <= C - 1, the reset is
    nowhere worse than leaving, hence W = V*; otherwise V*(s0) >= W(s0) > C - 1. States that are at least C hops from
    the goal, most of them in a large model, all have the value min(C, 1 + W(s0)), and no sweep visits them.
    """
    model, targets = to_sparse_model(mdp), to_target_goals(mdp, goals)
    cap = 2.0 + within * (1.0 + 2.0 * FLOAT_ERROR)
    backwards = reversed_edges(model)
    # This ignores which states are terminal. The hops may be too few, so no near goal is skipped.
    forwards = np.ascontiguousarray(mdp.indptr[:: mdp.n_actions]), mdp.successors
    reach = breadth_first_hops(*forwards, np.array([mdp.start]), cap) < np.inf
    near = np.unique(targets.column[reach])
    best = np.full(targets.size, np.inf)
    # Goals whose values in all states are in memory at the same time.
    block_size = 256
    for block in np.array_split(near[near >= 0], range(block_size, len(near), block_size)):
        V = hop_counts_to_goals(model, *backwards, select_targets(targets, block), cap)
        reached = V[mdp.start] < cap
        goal = block[reached]
        best[goal] = solve_all_goals(model, select_targets(targets, goal), V[:, reached], cap)[mdp.start]
    return np.where(is_at_most(best, within), best, np.inf)


def solve_all_goals(model: SparseModel, targets: TargetGoals, V: Floats, cap: float) -> Floats:
    """V* [S, G] from the hops V [S, G], whose infinite entries are exact; values above the cap need not be."""
    V, residual = run_value_iteration(model, targets, V, cap, MAX_RESIDUAL, MAX_IMPROVEMENT_SWEEPS)
    for j in np.flatnonzero(residual > MAX_RESIDUAL):
        V[:, j] = _policy_iteration(model, V[:, j], membership_mask(targets.column, int(j)), residual[j])
    return V


def _policy_iteration(model: SparseModel, V: Floats, goal: Bools, residual: float) -> Floats:
    """Exact V* [S] from values V [S] whose infinite entries are exact."""
    actions = np.full((V.size, 1), -1, np.int16)
    improve_policy(model, single_goal_column(goal), V[:, None].copy(), actions, 0.0)
    # For smaller residuals the greedy policy is proper, with V^pi <= V / (1 - r) <= 2 V.
    if residual > 0.5:
        _make_policy_proper(model, actions, goal, np.isfinite(V))
    return _improve_until_best(model, actions, goal, np.isfinite(V), 0.0)


def _make_policy_proper(model: SparseModel, actions: Actions, goal: Bools, finite: Bools) -> None:
    """Make ``actions`` [S, 1] a good proper policy, in place.

    Not every proper policy can start policy iteration: its values may be too large for arithmetic. Let every step be
    the last with probability 1/K, so no value exceeds K, and improve. If all values are at most K/2, then from every
    state the goal comes before that end with probability at least 1/2, hence V^pi <= K without it. Otherwise try a
    larger K, up to 1e14, where rounding hides the differences between policies.
    """
    for K in (1e2, 1e4, 1e6, 1e8, 1e10, 1e12, 1e14):
        if not _improve_until_best(model, actions, goal, finite, 1 / K)[finite].max() > K / 2:
            break


def _improve_until_best(model: SparseModel, actions: Actions, goal: Bools, finite: Bools, halt: float) -> Floats:
    """Howard's policy iteration: improve ``actions`` [S, 1] in place, and return the values [S]."""
    best = np.full(finite.size, np.inf)
    while True:
        chain = _policy_chain(model, actions[:, 0], goal)
        sure = np.ones(finite.size, bool) if halt else np.isfinite(_almost_sure_hops(chain, goal))
        V = np.where(finite, _solve_by_factorisation(chain, goal, sure, halt), np.inf)
        # Rounding may stop the descent before the policy repeats. "not <" also ends it if a sum is not a number.
        if not V[finite].sum() < best[finite].sum() * (1 - MAX_RESIDUAL):
            return best if np.isfinite(best[finite]).all() else V
        best = V
        if improve_policy(model, single_goal_column(goal), V[:, None].copy(), actions, halt) == 0:
            return best


def _policy_chain(model: SparseModel, actions: Actions, goal: Bools) -> SparseModel:
    """A stationary policy [S] as a model with one action and no reset; the rows of ``goal`` [S] are empty."""
    n_states, A = actions.size, (model.indptr.size - 1) // actions.size
    resets = ~goal & (model.terminal | (actions == A))
    pairs = np.arange(n_states) * A + np.minimum(actions, A - 1)
    length = np.where(goal, 0, np.where(resets, 1, np.diff(model.indptr)[pairs]))
    indptr = np.concatenate([[0], np.cumsum(length)])
    entries = np.repeat(model.indptr[pairs] - indptr[:-1], length) + np.arange(indptr[-1])
    # The row of a reset has the length one of another row, whose entry is replaced.
    to_start = np.repeat(resets, length)
    successors = np.where(to_start, model.start, model.successors[entries]).astype(np.int32)
    probabilities = np.where(to_start, 1.0, model.probabilities[entries])
    return SparseModel(indptr, successors, probabilities, np.zeros(n_states, bool), model.start, False)


def _almost_sure_hops(chain: SparseModel, goal: Bools) -> Floats:
    """Hops to the goal [S], infinite if the chain may miss it."""
    backwards = reversed_edges(chain)
    hops = breadth_first_hops(*backwards, np.flatnonzero(goal), np.inf)
    may_miss = breadth_first_hops(*backwards, np.flatnonzero(hops == np.inf), np.inf) < np.inf
    return np.where(may_miss, np.inf, hops)


def _evaluate_chain(chain: SparseModel, goal: Bools, hops: Floats) -> Floats:
    """V^pi [S] of a chain, infinite if ``hops`` [S] are; elsewhere it must reach the goal surely."""
    targets, V = TargetGoals(1, single_goal_column(goal)), hops[:, None].copy()
    V, residual = run_value_iteration(chain, targets, V, np.inf, MAX_RESIDUAL, MAX_IMPROVEMENT_SWEEPS)
    return V[:, 0] if residual[0] <= MAX_RESIDUAL else _solve_by_factorisation(chain, goal, np.isfinite(hops))


def _solve_by_factorisation(chain: SparseModel, goal: Bools, sure: Bools, halt: float = 0.0) -> Floats:
    """V^pi [S] of a chain by one sparse solve over the states ``sure`` [S]; infinite elsewhere.

    Every step is the last with probability ``halt``.
    """
    from scipy import sparse

    V = np.where(sure, 0.0, np.inf)
    inner = np.flatnonzero(sure & ~goal)
    if inner.size == 0:
        return V
    P = sparse.csr_array((chain.probabilities * (1 - halt), chain.successors, chain.indptr), shape=(sure.size,) * 2)
    # Self-loops are eliminated: the probability of leaving is summed below and not subtracted from one.
    P.setdiag(0.0)
    P.eliminate_zeros()
    out = halt + P[inner][:, np.flatnonzero(goal)].toarray().sum(axis=1)
    V[inner] = _expected_steps(P[inner][:, inner], out)
    return V


def _expected_steps(P: sparse.csr_array[np.float64, tuple[int, int]], out: Floats) -> Floats:
    """Expected steps [n] of a chain that moves by P [n, n] (empty diagonal) and ends with probability ``out`` [n].

    The relative error of a factorisation grows with the values. If they are large, states are eliminated instead, which
    takes longer and is exact at any size.
    """
    from scipy import sparse
    from scipy.sparse.linalg import splu

    leaving = P.sum(axis=1) + out  # 1 - p(s | s), without cancellation
    system = sparse.csc_matrix(sparse.diags_array(leaving) - P)
    # No pivoting: the diagonal is at least the sum of the other entries of its row.
    try:
        steps = splu(system, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0).solve(np.ones(out.size))
    except RuntimeError:  # singular to working precision
        steps = np.full(out.size, np.inf)
    if 0 < steps.min() <= steps.max() < 1e5:
        return steps
    return eliminate_states(P.toarray(), out.copy())


def _check_policy_table(mdp: TabularMDP, actions: ArrayLike, ndim: int) -> Actions:
    table = np.ascontiguousarray(actions, np.int16)
    if table.ndim != ndim or table.shape[-1] != mdp.n_states:
        raise InputError(f"a policy's table must end in S = {mdp.n_states} entries, got the shape {list(table.shape)}")
    if table.size == 0 or not 0 <= table.min() <= table.max() <= mdp.reset_action:
        raise InputError(f"a policy's actions must lie in 0..{mdp.reset_action}")
    return table


def to_target_goals(mdp: TabularMDP, goals: Sequence[GoalStates] | None) -> TargetGoals:
    """Return goals with one column each; all states unless given."""
    if goals is None:
        return TargetGoals(mdp.n_states, np.arange(mdp.n_states)[:, None])
    sets = [list(goal) if isinstance(goal, Collection) else [goal] for goal in goals]
    if not all(0 <= state < mdp.n_states for members in sets for state in members):
        raise InputError(f"must be states in 0..{mdp.n_states - 1}, got {sets}", name="goals")
    return TargetGoals(len(sets), memberships_from_sets(sets, mdp.n_states))


def goal_state_mask(mdp: TabularMDP, goal: GoalStates) -> Bools:
    """The states of one goal, as a mask [S]."""
    return membership_mask(to_target_goals(mdp, [goal]).column, 0)


def select_targets(targets: TargetGoals, goals: Longs) -> TargetGoals:
    """Return some of the goals, with columns in their order."""
    # The last entry maps unused entries, -1, to themselves.
    column = np.full(targets.size + 1, -1)
    column[goals] = np.arange(goals.size)
    return TargetGoals(goals.size, column[targets.column])


def single_goal_column(goal: Bools) -> Longs:
    """Columns [S, 1]: 0 in the states of ``goal`` [S], -1 elsewhere."""
    return np.where(goal, 0, -1)[:, None]


def reversed_edges(model: SparseModel) -> tuple[Longs, Ints]:
    """Predecessors of every state, by all actions but the reset, as (indptr [S + 1], sources)."""
    from scipy import sparse

    n_states = model.terminal.size
    rows = model.indptr[:: (model.indptr.size - 1) // n_states]  # one row per state: its actions are adjacent
    leaves = ~np.repeat(model.terminal, np.diff(rows))
    source = np.repeat(np.arange(n_states), np.diff(rows))[leaves]
    # Equal edges are added up.
    edges = sparse.csr_array((np.ones(source.size, bool), (model.successors[leaves], source)), shape=(n_states,) * 2)
    return edges.indptr.astype(np.int64), edges.indices.astype(np.int32)


@compiled
def breadth_first_hops(indptr: Longs, neighbours: Ints, sources: Longs, limit: float) -> Floats:
    """Fewest edges from any of the sources [S]; infinite if no path has at most ``limit`` of them."""
    distance = np.full(indptr.size - 1, np.inf)
    queue = np.empty(distance.size, np.int32)
    for i in range(sources.size):
        distance[sources[i]], queue[i] = 0.0, sources[i]
    head, tail = 0, sources.size
    while head < tail and distance[queue[head]] < limit:
        state = queue[head]
        head += 1
        for k in range(indptr[state], indptr[state + 1]):
            if distance[neighbours[k]] == np.inf:
                distance[neighbours[k]] = distance[state] + 1.0
                queue[tail] = neighbours[k]
                tail += 1
    return distance


@compiled
def hop_counts_to_goals(model: SparseModel, indptr: Longs, sources: Ints, targets: TargetGoals, limit: float) -> Floats:
    """Fewest steps from s to g [S, G], directly or after an immediate reset: a lower bound on V*.

    Infinite if no path without a reset has at most ``limit`` steps. ``indptr`` and ``sources`` are the
    :func:`reversed_edges`.
    """
    counts = np.empty((indptr.size - 1, targets.size))
    states = np.empty(indptr.size - 1, np.int64)  # of one goal
    for g in range(targets.size):
        n = 0
        for s in range(targets.column.shape[0]):
            for k in range(targets.column.shape[1]):
                if targets.column[s, k] == g:
                    states[n] = s
                    n += 1
        distance = breadth_first_hops(indptr, sources, states[:n], limit)
        # States without a short path stay infinite, although they may reset: no sweep visits them.
        by_reset = 1.0 + distance[model.start] if model.reset else np.inf
        for s in range(distance.size):
            counts[s, g] = min(distance[s], by_reset) if distance[s] < np.inf else np.inf
    return counts


@compiled
def eliminate_states(p: Floats, out: Floats) -> Floats:
    """Expected steps [n] of a chain that moves by p [n, n] (diagonal ignored) and ends with probability ``out`` [n].

    Elimination of states without subtractions (Grassmann, Taksar, Heyman 1985): every entry of the result is accurate
    to a few units of rounding, however large it is. Overwrites its arguments.
    """
    n = out.size
    cost = np.ones(n)
    leaving = np.empty(n)
    for k in range(n - 1, -1, -1):
        # not 1 - p[k, k], which would cancel
        leaving[k] = p[k, :k].sum() + out[k]
        for i in range(k):
            if p[i, k] > 0.0:
                share = p[i, k] / leaving[k]
                for j in range(k):
                    if j != i:
                        p[i, j] += share * p[k, j]
                out[i] += share * out[k]
                cost[i] += share * cost[k]
    for k in range(n):
        cost[k] = (cost[k] + (p[k, :k] * cost[:k]).sum()) / leaving[k]
    return cost


@compiled
def evaluate_one_period(model: SparseModel, goal: Bools, actions: Actions) -> tuple[float, float]:
    """Play H stages of a policy [H, S] and the closing reset: (expected steps, probability of the goal)."""
    indptr, start = model.indptr, model.start
    horizon, n_states = actions.shape
    n_actions = (indptr.size - 1) // n_states
    mass = np.zeros(n_states)
    mass[start] = 1.0
    steps = success = 0.0
    # Forward: the distribution of the state, without the mass that has reached the goal.
    for h in range(horizon):
        moved = np.zeros(n_states)
        for s in range(n_states):
            if mass[s] == 0.0:
                continue
            steps += mass[s]
            a = actions[h, s]
            if model.terminal[s] or a == n_actions:
                moved[start] += mass[s]
            else:
                for k in range(indptr[s * n_actions + a], indptr[s * n_actions + a + 1]):
                    moved[model.successors[k]] += mass[s] * model.probabilities[k]
        success += moved[goal].sum()
        moved[goal] = 0.0
        mass = moved
    return steps + mass.sum(), success
