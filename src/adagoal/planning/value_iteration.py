"""Value iteration on a known model, one goal after the other, and greedy actions for many goals.

A pair (s, a) that stays in s with probability p_ss is eliminated exactly: it leaves after 1 / (1 - p_ss) expected
steps, so

    Q(s, a) = (1 + sum_{s' != s} p(s' | s, a) V(s')) / sum_{s' != s} p(s' | s, a),

with the leaving probability summed, not subtracted from one: nothing cancels if it is tiny.

*Order.* A sweep updates values in place, from the goal outwards, so one sweep reaches all states; later sweeps only
correct for steps that lead away. States are renumbered for every goal in that order, the order of their initial values:
a sweep then reads memory once from front to back.

*Evaluation.* A sweep over all actions (improvement) is followed by a few over the chosen actions (evaluation), at a
fraction of the cost. Only improvements measure the Bellman residual and end the iteration.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from adagoal.core.array_types import Actions, Floats, Ints, Longs
from adagoal.core.compiled_code import compiled, compiled_helper
from adagoal.planning.model_arrays import SparseModel, TargetGoals, goal_holds_state

EVALUATION_SWEEPS = 5  # after each improvement
# Rows are padded to a multiple of this, so action_value can unroll its loop.
ROW_MULTIPLE = 4
# NumPy's error model has no test before a division. No divisor is zero here.
NUMBA_OPTIONS: dict[str, Any] = {"error_model": "numpy"}


class RenumberedRows(NamedTuple):
    """The states of one goal, renumbered: 0 is the goal, then 1 to n - 1; the pair (i, a) has the number i * A + a.

    The number n stands for all other states, in which the reset, or leaving for good, is best.
    """

    indptr: Longs  # [n A + 1]
    successors: Ints  # [entries] new numbers
    weights: Floats  # [entries] p(s' | s, a) / leaving probability; 0 in padding
    costs: Floats  # [n A] 1 / leaving probability


def run_value_iteration(
    model: SparseModel, targets: TargetGoals, V: Floats, cap: float, tolerance: float, sweeps: int
) -> tuple[Floats, Floats]:
    """Return V [S, G] after value iteration from V, and a bound [G] on each goal's Bellman residual.

    A goal is finished when its residual is at most ``tolerance``. Every state may be left for good at the cost ``cap``.
    States whose initial V is not below the cap are not swept: leaving or the reset is best there.
    """
    V, residual = np.ascontiguousarray(V), np.zeros(targets.size)
    size = 16  # goals of one thread at a time

    def solve(first: int) -> None:
        last = min(first + size, targets.size)
        _solve_goal_range(model, targets.column, V, residual, first, last, cap, tolerance, sweeps)

    # Goals share no values, so the result does not depend on the number of threads.
    if targets.size <= size:
        solve(0)
    else:
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            list(threads.map(solve, range(0, targets.size, size)))
    return V, residual


@compiled(**NUMBA_OPTIONS)
def _solve_goal_range(model, column, V, residual, first, last, cap, tolerance, sweeps):  # type: ignore[no-untyped-def]
    """Solve the goals ``first`` to ``last``: columns of V [S, G] and entries of the residuals [G], in place."""
    n_states, n_pairs = V.shape[0], model.indptr.size - 1
    order, new_index = np.empty(n_states, np.int32), np.empty(n_states, np.int32)
    n_entries = model.successors.size + (ROW_MULTIPLE - 1) * n_pairs
    rows = RenumberedRows(
        np.zeros(n_pairs + 1, np.int64), np.zeros(n_entries, np.int32), np.zeros(n_entries), np.empty(n_pairs)
    )
    values, policy = np.empty(n_states + 1), np.empty(n_states, np.int16)
    for g in range(first, last):
        n = order_outwards(column, g, V[:, g], cap, order, new_index)
        renumber_rows(model, order[:n], new_index, rows)
        values[0] = 0.0
        for i in range(1, n):
            values[i] = V[order[i], g]
        start = new_index[model.start] if model.reset else n
        own = values[: n + 1]
        residual[g] = iterate_goal_values(rows, n_pairs // n_states, start, own, policy, cap, tolerance, sweeps)
        for s in range(n_states):
            V[s, g] = values[new_index[s]]


@compiled(**NUMBA_OPTIONS)
def order_outwards(column: Longs, g: int, V: Floats, cap: float, order: Ints, new_index: Ints) -> int:
    """Number the goal g and the states with values below the cap by increasing value, up to fractions of a step.

    Return how many there are, n; order[:n] are the states, ``new_index`` [S] their new numbers, n for all others. All
    states of the goal share the number 0, and ``order`` has one of them.
    """
    # A counting sort by whole steps: fractions of a step do not matter for the sweeps.
    n_states = V.size
    # A goal may have no state. Then number 0 stands for some row that nothing leads to.
    order[0] = 0
    begin = np.zeros(n_states + 2, np.int64)
    for s in range(n_states):
        if V[s] < cap and not goal_holds_state(column, s, g):
            begin[int(min(V[s], n_states)) + 1] += 1
    begin[0] = 1
    for level in range(n_states + 1):
        begin[level + 1] += begin[level]
    n = int(begin[n_states + 1])
    for s in range(n_states):
        if goal_holds_state(column, s, g):
            order[0] = s
            new_index[s] = 0
        elif V[s] < cap:
            level = int(min(V[s], n_states))
            new_index[s] = begin[level]
            order[begin[level]] = s
            begin[level] += 1
        else:
            new_index[s] = n
    return n


@compiled(**NUMBA_OPTIONS)
def renumber_rows(model: SparseModel, order: Ints, new_index: Ints, rows: RenumberedRows) -> None:
    """Write the rows of the states of ``order``, without self-loops."""
    # Unsigned indices: Numba would test signed ones for counting from the end.
    A = np.uintp((model.indptr.size - 1) // new_index.size)
    pair, end = np.uintp(0), np.uintp(0)
    for state in order:
        s = np.uintp(state)
        for x in range(s * A, (s + np.uintp(1)) * A):
            begin, leaving = end, 0.0
            last = model.indptr[x] if model.terminal[s] else model.indptr[x + np.uintp(1)]
            for k in range(np.uintp(model.indptr[x]), np.uintp(last)):
                if model.successors[k] != state:
                    leaving += model.probabilities[k]
                    rows.successors[end] = new_index[np.uintp(model.successors[k])]
                    rows.weights[end] = model.probabilities[k]
                    end += np.uintp(1)
            rows.costs[pair] = 1.0 / leaving if leaving > 0.0 else np.inf
            for k in range(begin, end):
                rows.weights[k] *= rows.costs[pair]
            # Padding points to the goal, whose value is 0: weight 0 times an infinite value would be NaN.
            while (end - begin) % np.uintp(ROW_MULTIPLE) != 0:
                rows.successors[end] = 0
                rows.weights[end] = 0.0
                end += np.uintp(1)
            pair += np.uintp(1)
            rows.indptr[pair] = end


@compiled_helper(**NUMBA_OPTIONS)
def action_value(rows: RenumberedRows, x: int, V: Floats) -> float:
    """Return Q of a pair; the loop is unrolled by ROW_MULTIPLE."""
    q, k, end = float(rows.costs[x]), np.uintp(rows.indptr[x]), np.uintp(rows.indptr[x + np.uintp(1)])
    while k < end:
        q += (
            rows.weights[k] * V[np.uintp(rows.successors[k])]
            + rows.weights[k + np.uintp(1)] * V[np.uintp(rows.successors[k + np.uintp(1)])]
            + rows.weights[k + np.uintp(2)] * V[np.uintp(rows.successors[k + np.uintp(2)])]
            + rows.weights[k + np.uintp(3)] * V[np.uintp(rows.successors[k + np.uintp(3)])]
        )
        k += np.uintp(ROW_MULTIPLE)
    return q


@compiled(**NUMBA_OPTIONS)
def iterate_goal_values(rows, n_actions, start, V, policy, cap, tolerance, sweeps):  # type: ignore[no-untyped-def]
    """Run Gauss-Seidel value iteration on V [n + 1] in place. Return the largest change of the last improvement.

    That change bounds the Bellman residual of V, because no value that an update has read moved by more afterwards.
    ``start`` is where the reset leads, or n if the reset is no better than leaving for good. The last entry of V is the
    value of both, and action A in ``policy`` [n], the chosen actions, stands for both.
    """
    A, n = np.uintp(n_actions), np.uintp(V.size - 1)
    V[n] = cap if start == n else min(cap, 1.0 + V[start])
    change = np.inf
    for _ in range(sweeps):
        change = 0.0
        for i in range(np.uintp(1), n):
            # A reset in the start leads nowhere new.
            best, choice = cap if i == start else V[n], n_actions
            for a in range(A):
                q = action_value(rows, i * A + a, V)
                choice = int(a) if q < best else choice
                best = q if q < best else best
            if abs(best - V[i]) > change:
                change = abs(best - V[i])
            V[i] = best
            policy[i] = choice
            if i == start:
                V[n] = min(cap, 1.0 + best)
        if change <= tolerance:
            break
        for _ in range(EVALUATION_SWEEPS):
            for i in range(np.uintp(1), n):
                if policy[i] < n_actions:
                    V[i] = action_value(rows, i * A + np.uintp(policy[i]), V)
                else:
                    V[i] = cap if i == start else V[n]
                if i == start:
                    V[n] = min(cap, 1.0 + V[start])
    return change


@compiled
def improve_policy(model: SparseModel, column: Longs, V: Floats, actions: Actions, halt: float) -> int:
    """Write greedy actions [S, G] with respect to V [S, G], in place. Return how many changed.

    An action is replaced only by one that is better by the relative margin 1e-12; an action of -1 by any. The reset is
    written where V is infinite, and in the states of the goal. ``halt`` is the probability that a step is the last
    (see ``_make_policy_proper`` in :mod:`adagoal.exact.solver`).
    """
    # Without a margin rounding errors could make two equal actions replace each other for ever.
    margin = 1e-12
    indptr, successors, probabilities, start = model.indptr, model.successors, model.probabilities, model.start
    n_states, n_goals = V.shape
    n_actions = (indptr.size - 1) // n_states
    q = np.empty(n_actions + 1)
    changed = 0
    for s in range(n_states):
        for g in range(n_goals):
            if V[s, g] == np.inf or goal_holds_state(column, s, g):
                actions[s, g] = n_actions
                continue
            q[n_actions] = 1.0 + (1.0 - halt) * V[start, g] if model.reset and s != start else np.inf
            for a in range(n_actions):
                # Self-loops are eliminated as above, so a pair that never leaves its state is infinite.
                cost, leaving = 1.0, halt
                for k in range(indptr[s * n_actions + a], indptr[s * n_actions + a + 1]):
                    if successors[k] != s:
                        leaving += (1.0 - halt) * probabilities[k]
                        cost += (1.0 - halt) * probabilities[k] * V[successors[k], g]
                q[a] = cost / leaving if leaving > 0.0 and not model.terminal[s] else np.inf
            choice = actions[s, g]
            best = q[choice] if choice >= 0 else np.inf
            for a in range(n_actions + 1):
                if q[a] < best * (1.0 - margin):
                    choice, best = a, q[a]
            changed += choice != actions[s, g]
            actions[s, g] = choice
    return changed
