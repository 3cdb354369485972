"""The probing policy: where to try next to lower the bound of the action gaps. No lemma depends on it.

The bound of :mod:`adagoal.certified.gaps` is a sum of gains along the *rival*, the policy that attains it: about
sum_x w_x gain(x) with the rival's visits w. A gain is uncertain for two reasons, and both shrink like 1/n or faster:
the pair x itself, and the policy's own pairs y, through the visits |p_hat_x W(., y) - W(s, y)|. Every pair on the
rival's way also adds the uncertainty of its successor. So one more try of a pair lowers the bound by about the pair's
part of it, divided by its tries. These amounts are rewards. The probing policy collects most of them, discounted, in
the empirical model: it goes from one pair worth a try to the next, and resets only if that is shorter.
"""

from __future__ import annotations

import math

import numpy as np

from adagoal.certified.gaps import bound_suboptimality, column_moments
from adagoal.certified.goal_table import GoalTable
from adagoal.core.compiled_code import compiled, compiled_helper
from adagoal.planning.model_arrays import EmpiricalModel


def improve_by_gaps(
    table: GoalTable, j: int, model: EmpiricalModel, all_seen: bool, horizon: float, max_sweeps: int
) -> None:
    """Record the policy of Y of column j if its action gaps leave a smaller error, and plan where to probe them.

    ``all_seen``, ``horizon`` and ``max_sweeps`` are those of the two functions that this calls.
    """
    # Jobs of several goals run at the same time: nothing of another column is read or written here.
    V, Y, policy = (np.ascontiguousarray(a[:, j]) for a in (table.V, table.Y, table.best))
    order, actions = table.seen_states, np.full(len(V), -1, np.int16)
    goal = table.space.states_of_goal(table.goal_state[j])
    gap, value, most, chain = bound_suboptimality(order, goal, model, V, Y, policy, all_seen, actions)
    if np.isfinite(gap):
        plan_probing_actions(order, chain, model, actions, horizon, max_sweeps)
    table.probing[:, j] = actions
    # Lemma 10 needs V^pi <= C everywhere.
    if most <= table.cap:
        table.record_policy(j, value, gap)


@compiled
def plan_probing_actions(order, chain, model, rival, horizon, max_sweeps):  # type: ignore[no-untyped-def]
    """Replace ``rival`` [S], an action of every seen state, by the probing actions; -1 if no pair is worth a try.

    The rival and the chain are those of :func:`bound_suboptimality`; action A is the reset.
    The policy looks ahead ``horizon`` times as far as the longest way to the goal.
    """
    row_of, end = chain.row_of, chain.is_goal
    N, A, first = len(order), model.support.shape[0] // len(rival), row_of[model.start]
    discount = 1.0 - 1.0 / (horizon * chain.top)
    reward = _probing_rewards(order, chain, model, rival, discount)
    u = np.zeros(N)
    # Forwards and backwards in turn: a sweep in place carries values along its order only.
    for sweep in range(max_sweeps):
        change = 0.0
        for step in range(N):
            i = step if sweep % 2 == 0 else N - 1 - step
            s = order[i]
            best, action = discount * u[first], A
            for a in range(0 if model.terminal[s] or end[i] else A):
                x = s * A + a
                value = reward[i, a]
                for k in range(model.support[x]):
                    value += discount * model.p_split[x, k] * u[row_of[model.successor[x, k]]]
                if value > best:
                    best, action = value, a
            rival[s] = action
            change = max(change, abs(best - u[i]))
            u[i] = best
        # A nearly best policy probes as well.
        if change <= 1e-3 * u[first]:
            break
    if u[first] <= 0.0:
        for s in order:
            rival[s] = -1


@compiled_helper
def _rival_visits(order, chain, model, rival, discount):  # type: ignore[no-untyped-def]
    """Return [N] the discounted visits of the rival from the start, in the empirical model."""
    row_of, end = chain.row_of, chain.is_goal
    N, A, first = len(order), model.support.shape[0] // len(rival), row_of[model.start]
    M, visits = np.eye(N), np.zeros(N)
    visits[first] = 1.0
    for i in range(N):
        a = rival[order[i]]
        if end[i]:
            continue
        if a == A or model.terminal[order[i]]:
            M[first, i] -= discount
            continue
        x = order[i] * A + a
        for k in range(model.support[x]):
            M[row_of[model.successor[x, k]], i] -= discount * model.p_split[x, k]
    _solve_linear_system(M, visits)
    return visits


@compiled_helper
def _solve_linear_system(M, b):  # type: ignore[no-untyped-def]
    """b [N] <- M^{-1} b; M [N, N] is overwritten."""
    # No pivoting: M is diagonally dominant by columns. Most entries are zero and are skipped. np.linalg.solve would
    # take Numba two seconds to compile.
    N = len(b)
    for k in range(N):
        for i in range(k + 1, N):
            if M[i, k] != 0.0:
                factor = M[i, k] / M[k, k]
                for j in range(k + 1, N):
                    M[i, j] -= factor * M[k, j]
                b[i] -= factor * b[k]
    for k in range(N - 1, -1, -1):
        for j in range(k + 1, N):
            b[k] -= M[k, j] * b[j]
        b[k] /= M[k, k]


@compiled_helper
def _future_uncertainty(x, chain, model):  # type: ignore[no-untyped-def]
    """Return the derivative of the width of the pair x, for the mean of Z, with respect to ln r."""
    # One try more lowers ln r by about 1/n. The derivative of sqrt(2 r Var) is half of it, hence 0.5 under the root.
    mean, square, most = 0.0, 0.0, 0.0
    for k in range(model.support[x]):
        z = chain.Z[chain.row_of[model.successor[x, k]]]
        mean += model.p_split[x, k] * z
        square += model.p_split[x, k] * z * z
        most = max(most, z)
    return math.sqrt(0.5 * model.r[x] * max(square - mean * mean, 0.0)) + model.r[x] * (most - mean)


@compiled_helper
def _probing_rewards(order, chain, model, rival, discount):  # type: ignore[no-untyped-def]
    """Return [N, A] how much one more try of each pair lowers the bound, up to a common factor."""
    F, beta, top, ceiling = chain.F, chain.beta, chain.top, chain.Z.max()
    N, A, first = len(order), model.support.shape[0] // len(rival), chain.row_of[model.start]
    w = _rival_visits(order, chain, model, rival, discount)
    reward, need = np.zeros((N, A)), np.zeros(N)
    sd, span, mean = np.empty(N + 1), np.empty(N + 1), np.empty(N + 1)
    for i in range(N):
        s = order[i]
        a = rival[s]
        if chain.is_goal[i] or model.terminal[s] or (a == A and chain.pair[i] < 0):
            continue
        if a == A:
            need += w[i] * np.abs(F[first, :N] - F[i, :N])
            continue
        x = s * A + a
        if model.support[x] == 0:
            reward[i, a] += w[i] * top
            continue
        r, q = model.r[x], model.q[x]
        if x == chain.pair[i]:
            reward[i, a] += w[i] * (_future_uncertainty(x, chain, model) + q * ceiling) * r
            continue
        column_moments(x, model, chain.row_of, F, sd, span, mean)
        need += w[i] * np.abs(mean[:N] - F[i, :N])
        noise = math.sqrt(0.5 * r) * (sd[N] + sd[:N] @ beta) + r * (span[N] + span[:N] @ beta) + q * min(mean[N], top)
        # The radius r is about a constant divided by the tries.
        reward[i, a] += w[i] * (noise + _future_uncertainty(x, chain, model)) * r
    for i in range(N):
        x = chain.pair[i]
        if x >= 0:
            reward[i, x - order[i] * A] += need[i] * (0.5 * chain.observed_beta[i] + model.q[x] * top) * model.r[x]
    return reward
