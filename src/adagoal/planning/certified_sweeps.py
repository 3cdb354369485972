"""The bounding operators of the certified explorer, as compiled sweeps over blocks of goals.

Layout: values are ``[S, B]`` with the B goals of a block innermost, so that one state-action pair is backed up for
all of them with contiguous loads; an :class:`~adagoal.planning.model_arrays.EmpiricalModel` model holds the radii of
every pair.

Bounds on p f for a pair (docs/theory.md):

* *split*: a Kullback-Leibler ball of radius r around p_hat on the observed successors alone (lemma 2), and a mass of
  at most q on all others (lemma 3); holds for all f at once;
* *whole range*: the ball of radius r_low, successors anywhere, for one fixed f per goal (lemma 1).

Closed forms, with m and Var the mean and variance of f under p_hat (lemma 4; ``exact`` solves the
one-dimensional dual instead; without it the sweeps are those of :mod:`adagoal.planning.simd_sweeps`):

    Low  = m - 1.02 sqrt(2 r_low Var) - r_low m, with a floor and a ceiling for Var where the levels t of lemma 1 end,
           and at least (1-q) f(s') where s' is the only successor observed
    Up   = (1-q) [m + sqrt(2 r Var) + r (max f - m)] + q top

Every iterate of both operators is a valid bound (lemmas 5 and 6): sweeps run in place, in any order, and may stop
at any time.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from adagoal.core import local_backup
from adagoal.planning import simd_sweeps
from adagoal.planning.model_arrays import goal_holds_state
from adagoal.planning.simd_sweeps import N_LANES

DUAL_NEWTON_STEPS = 6


@numba.njit(cache=True, nogil=True)
def _dual_at_level(x, b, model, cap, V, level):  # type: ignore[no-untyped-def]
    """f(t) = e^{-r_low} exp(sum p ln(V + t)) - t at one of the levels t of lemma 1, and its slope f'(t)."""
    t = 0.0 if level == 0 else cap * local_backup.FINEST_LEVEL * local_backup.LEVEL_RATIO ** (level - 1.0)
    log_mean, inverse = 0.0, 0.0
    for k in range(model.support[x]):
        w = V[model.successor[x, k], b] + t
        if w <= 0.0:
            return 0.0, 1.0
        log_mean += model.p[x, k] * math.log(w)
        inverse += model.p[x, k] / w
    value = math.exp(log_mean - model.r_low[x])
    return value - t, value * inverse - 1.0


@numba.njit(cache=True, nogil=True)
def solve_low_dual(x, b, model, cap, V, variance, mean):  # type: ignore[no-untyped-def]
    """Low_x(V[:, b]) from the dual: the best level, searched from about where the closed form has it.

    The dual is concave in t, so that going uphill finds the best; any level gives a valid bound.
    """
    finest = cap * local_backup.FINEST_LEVEL
    t = max(math.sqrt(variance / (2.0 * model.r_low[x])) - mean, finest)
    level = min(1 + int(math.log(t / finest) / math.log(local_backup.LEVEL_RATIO)), local_backup.N_LEVELS - 1)
    best, slope = _dual_at_level(x, b, model, cap, V, level)
    step = 1 if slope > 0.0 else -1
    i = level + step
    while 0 <= i < local_backup.N_LEVELS:
        value, slope = _dual_at_level(x, b, model, cap, V, i)
        if value <= best:
            break
        best = value
        i += step
        if step * slope <= 0.0:
            break
    return best


@numba.njit(cache=True, nogil=True)
def solve_up_dual(x, b, model, Y, variance, mean, most, top):  # type: ignore[no-untyped-def]
    """Up_x(Y[:, b]) from the dual: (1-q) min_t { most + t - e^{-r} exp(sum p ln(most - Y + t)) } + q top.

    Newton on the optimality condition ln(GM) - ln(HM) = r of the numbers most - Y + t. Any t gives a valid bound.
    """
    q = model.q[x]
    if variance <= 0.0:
        return (1.0 - q) * most + q * top
    return (1.0 - q) * (most - _maximise_dual(x, b, model, Y, variance, most - mean, most, -1.0)) + q * top


@numba.njit(cache=True, nogil=True)
def solve_complete_dual(x, b, model, V, variance, mean, least):  # type: ignore[no-untyped-def]
    """Low_x(V[:, b]) from the dual, where all successors are known; ``least`` is the smallest value of them."""
    above = 0.0 if variance <= 0.0 else _maximise_dual(x, b, model, V, variance, mean - least, least, 1.0)
    return least + max(above, 0.0)


@numba.njit(cache=True, nogil=True)
def _maximise_dual(x, b, model, F, variance, mean, edge, sign):  # type: ignore[no-untyped-def]
    """max_t { e^{-r} exp(sum p ln(w + t)) - t } with w = sign (F - edge) >= 0, of this variance and mean."""
    r = model.r[x]
    t = max(math.sqrt(variance / (2.0 * r)) - mean, 1e-9)
    for _ in range(DUAL_NEWTON_STEPS):
        log_mean, inverse, inverse2 = 0.0, 0.0, 0.0
        for k in range(model.support[x]):
            w = 1.0 / (sign * (F[model.successor[x, k], b] - edge) + t)
            log_mean -= model.p_split[x, k] * math.log(w)
            inverse += model.p_split[x, k] * w
            inverse2 += model.p_split[x, k] * w * w
        residual = log_mean + math.log(inverse) - r
        slope = inverse - inverse2 / inverse
        if slope >= -1e-300 or abs(residual) < 1e-3 * r:
            break
        t = max(t - residual / slope, 1e-9, 0.3 * t)
    log_mean = 0.0
    for k in range(model.support[x]):
        log_mean += model.p_split[x, k] * math.log(sign * (F[model.successor[x, k], b] - edge) + t)
    return math.exp(log_mean - r) - t


@numba.njit(cache=True, nogil=True, inline="always")
def _successor_moments(x, s, model, p, F, mean, variance, least, most):  # type: ignore[no-untyped-def]
    """Mean, variance, smallest and largest value of F under p[x]; centred at F[s] against cancellation."""
    B = F.shape[1]
    for b in range(B):
        mean[b], variance[b], least[b], most[b] = 0.0, 0.0, np.inf, 0.0
    for k in range(model.support[x]):
        weight = p[x, k]
        row = F[model.successor[x, k]]
        for b in range(B):
            d = row[b] - F[s, b]
            mean[b] += weight * d
            variance[b] += weight * d * d
            least[b], most[b] = min(least[b], row[b]), max(most[b], row[b])
    for b in range(B):
        variance[b] = max(variance[b] - mean[b] * mean[b], 0.0)
        mean[b] += F[s, b]


@numba.njit(cache=True, nogil=True)
def lower_bound_sweep(order, model, block, V, policy):  # type: ignore[no-untyped-def]
    """V <- max(V, T_low V) over the states of ``order``, policy <- the greedy actions; returns the largest rise.

    T_low V(s) = min{ cap, 1 + V(start), min_a 1 + Low_sa(V) }, 0 at the goal; the reset is action A.
    """
    if not block.exact:
        return simd_sweeps.closed_form_lower_sweep(order, model, block, V, policy)
    B, cap = V.shape[1], block.cap
    A = model.support.shape[0] // V.shape[0]
    mean, variance, Q = np.empty((A, B)), np.empty((A, B)), np.empty((A, B))
    least, most = np.empty((A, B)), np.empty((A, B))
    final = np.empty((A, B), np.bool_)
    rise = 0.0
    for s in order:
        for a in range(0 if model.terminal[s] else A):
            x = s * A + a
            if model.support[x] == 0:
                for b in range(B):
                    Q[a, b] = 1.0
                    final[a, b] = True
                continue
            if model.complete[x]:
                _successor_moments(x, s, model, model.p_split, V, mean[a], variance[a], least[a], most[a])
                for b in range(B):
                    value = local_backup.closed_form_low_complete(mean[a, b], variance[a, b], least[a, b], model.r[x])
                    Q[a, b], final[a, b] = 1.0 + value, False
                continue
            _successor_moments(x, s, model, model.p, V, mean[a], variance[a], least[a], most[a])
            r = model.r_low[x]
            sure = 1.0 - model.q[x] if model.support[x] == 1 else 0.0
            for b in range(B):
                Q[a, b] = 1.0 + local_backup.closed_form_low(mean[a, b], variance[a, b], r, cap, sure)
                final[a, b] = sure > 0.0
        for b in range(B):
            best = min(cap, 1.0 + V[model.start, b])
            action = A
            while not model.terminal[s]:
                candidate = 0
                for a in range(1, A):
                    if Q[a, b] < Q[candidate, b]:
                        candidate = a
                if Q[candidate, b] >= best:
                    break
                if final[candidate, b]:
                    best = Q[candidate, b]
                    action = candidate
                    break
                x, var, m = s * A + candidate, variance[candidate, b], mean[candidate, b]
                if model.complete[x]:
                    low = solve_complete_dual(x, b, model, V, var, m, least[candidate, b])
                else:
                    low = solve_low_dual(x, b, model, cap, V, var, m)
                Q[candidate, b] = max(Q[candidate, b], 1.0 + low)
                final[candidate, b] = True
            policy[s, b] = action
            if best > V[s, b] and not goal_holds_state(block.column, s, b):
                rise = max(rise, best - V[s, b])
                V[s, b] = best
    return rise


@numba.njit(cache=True, nogil=True)
def upper_bound_sweep(order, model, block, Y, policy):  # type: ignore[no-untyped-def]
    """Y <- min(Y, T_up Y) over the states of ``order``; where Y falls, the policy takes the action. Returns the fall.

    T_up Y(s) = min{ 1 + Y(start), min_a 1 + Up_sa(Y) }, 0 at the goal. States outside ``order`` (never seen) stand at
    the cap with the reset as their action.
    """
    if not block.exact:
        return simd_sweeps.closed_form_upper_sweep(order, model, block, Y, policy)
    B = Y.shape[1]
    A = model.support.shape[0] // Y.shape[0]
    mean = np.zeros((A, B))  # also read for pairs never tried
    variance, Q = np.empty((A, B)), np.empty((A, B))
    least, most = np.empty((A, B)), np.empty((A, B))
    top = np.empty(B)
    fall = 0.0
    for b in range(B):
        top[b] = min(block.cap, 1.0 + Y[model.start, b])
    for s in order:
        for b in range(B):
            if Y[s, b] > top[b]:
                Y[s, b] = top[b]
                policy[s, b] = A
    for s in order:
        if model.terminal[s]:
            continue
        for a in range(A):
            x = s * A + a
            if model.support[x] == 0:
                for b in range(B):
                    Q[a, b] = np.inf
                continue
            _successor_moments(x, s, model, model.p_split, Y, mean[a], variance[a], least[a], most[a])
            r, q = model.r[x], model.q[x]
            for b in range(B):
                Q[a, b] = 1.0 + simd_sweeps.closed_form_up(mean[a, b], variance[a, b], most[a, b], r, q, top[b])
        for b in range(B):
            if goal_holds_state(block.column, s, b):
                continue
            action = 0
            for a in range(1, A):
                if Q[a, b] < Q[action, b]:
                    action = a
            value = Q[action, b]
            x = s * A + action
            floor = 1.0 + (1.0 - model.q[x]) * mean[action, b] + model.q[x] * top[b]  # what no dual is below
            if value < np.inf and floor < Y[s, b]:
                up = solve_up_dual(x, b, model, Y, variance[action, b], mean[action, b], most[action, b], top[b])
                value = min(value, 1.0 + up)
            if value < Y[s, b]:
                fall = max(fall, Y[s, b] - value)
                Y[s, b] = value
                policy[s, b] = action
    return fall


@numba.njit(cache=True, nogil=True)
def _pad_columns(table, multiple, value):  # type: ignore[no-untyped-def]
    """The table [S, B], or a copy with columns of this value up to a multiple of columns."""
    B = table.shape[1]
    if B % multiple == 0:
        return table
    wide = np.empty((table.shape[0], B + multiple - B % multiple), table.dtype)
    for s in range(wide.shape[0]):
        for b in range(wide.shape[1]):
            wide[s, b] = table[s, b] if b < B else value
    return wide


@numba.njit(cache=True, nogil=True)
def _copy_columns_back(wide, table):  # type: ignore[no-untyped-def]
    """Put the columns of the copy back into the table (a loop: slices take Numba seconds to compile)."""
    if wide.shape[1] != table.shape[1]:
        for s in range(table.shape[0]):
            for b in range(table.shape[1]):
                table[s, b] = wide[s, b]


@numba.njit(cache=True, nogil=True)
def improve_lower_bounds(model, block, V, policy):  # type: ignore[no-untyped-def]
    """V and its greedy policy after sweeps forwards and backwards in turn, until they rise by less than the tolerance.

    V and policy: [S, B], changed in place. Columns at the cap, which fill up a block, never rise.
    """
    backwards, multiple = block.order[::-1].copy(), 1 if block.exact else N_LANES
    wide, actions = _pad_columns(V, multiple, block.cap), _pad_columns(policy, multiple, 0)
    for i in range(block.sweeps):
        order = block.order if i % 2 == 0 else backwards
        if lower_bound_sweep(order, model, block, wide, actions) < block.tolerance:
            break
    _copy_columns_back(wide, V)
    _copy_columns_back(actions, policy)
    return V, policy


@numba.njit(cache=True, nogil=True)
def improve_upper_bounds(model, block, Y, policy):  # type: ignore[no-untyped-def]
    """The same for upper bounds (not one function of a sweep: Numba would compile that anew in every process)."""
    backwards, multiple = block.order[::-1].copy(), 1 if block.exact else N_LANES
    wide, actions = _pad_columns(Y, multiple, 0.0), _pad_columns(policy, multiple, 0)
    for i in range(block.sweeps):
        order = block.order if i % 2 == 0 else backwards
        if upper_bound_sweep(order, model, block, wide, actions) < block.tolerance:
            break
    _copy_columns_back(wide, Y)
    _copy_columns_back(actions, policy)
    return Y, policy
