"""Low and Up: bounds on the mean of a function after one step (docs/theory.md, lemma 4), and backups of one state.

The events of lemmas 1 to 3 bound the unknown distribution p of the successors of a pair. Lemma 4 turns them into
bounds on the mean p f. With m and Var the mean and variance of f over the observed successors, C the cap, and the
radii r_low (lemma 1), r (lemma 2) and the unseen mass q (lemma 3),

    Low  = m - r_low m - 1.02 max{ sqrt(2 r_low max(Var, 2 r_low (0.01 C)^2)), 0.01 Var/C },
           and at least (1-q) f(s') if s' is the only observed successor
    Low  = (1-q) max{ min f, m - sqrt(2 r Var) - r (m - min f) }      in the ball of lemma 2
    Up   = (1-q) min{ max f, m + sqrt(2 r Var) + r (max f - m) } + q top

These are the closed forms. The ``solve_*`` functions search the one-dimensional dual of lemma 4 instead, at about
twenty times the cost. The closed forms also accept :class:`~adagoal.certified.simd_lanes.SimdLanes`, sixteen goals at
once.

A *local backup* raises the lower bounds at one state, which the agent does at every step (lemma 5):

    V(s) <- max{ V(s), min{ C, 1 + V(s0), min_a 1 + Low_sa(V) } }

It is why this module lies in ``core``: the episode loop of ``envs`` calls it. :mod:`adagoal.certified.sweeps` uses the
same Low for many goals at once.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from adagoal.core.array_types import Actions, Bools, Floats
from adagoal.core.compiled_code import compiled, compiled_helper

# The levels t of lemma 1: 0, then from FINEST_LEVEL * C to C / FINEST_LEVEL with this ratio. All levels together cost
# ln(N_LEVELS) in the radius; a larger ratio costs more in the width (NEAREST_LEVEL_FACTOR).
FINEST_LEVEL, LEVEL_RATIO = 1e-2, 1.5
N_LEVELS = 2 + math.ceil(-2.0 * math.log(FINEST_LEVEL) / math.log(LEVEL_RATIO))
# Price of the nearest level: r t + Var/(2t) is at most this multiple of its least value sqrt(2 r Var).
NEAREST_LEVEL_FACTOR = (math.sqrt(LEVEL_RATIO) + 1.0 / math.sqrt(LEVEL_RATIO)) / 2.0
# No value is NaN, so min and max are single instructions. Sums are not reordered: results must not depend on how the
# compiler vectorises a loop.
VECTOR_MATH_OPTIONS: dict[str, Any] = {
    "error_model": "numpy",
    "fastmath": {"nnan", "nsz"},
}
FAST_SUM_OPTIONS: dict[str, Any] = VECTOR_MATH_OPTIONS | {"fastmath": {"nnan", "nsz", "reassoc"}}  # sums in any order


@compiled_helper(**VECTOR_MATH_OPTIONS)
def closed_form_low(mean, variance, r, cap, sure):  # type: ignore[no-untyped-def]
    """Low from lemma 1 with radius r; ``sure`` is 1 - q if the pair has a single successor and 0 otherwise."""
    width = math.sqrt(2.0 * r * NEAREST_LEVEL_FACTOR**2 * max(variance, 2.0 * r * (FINEST_LEVEL * cap) ** 2))
    # The last level matters only for tiny radii: elsewhere no variance of numbers in [0, C] is large enough.
    if 8.0 * r < FINEST_LEVEL**2:
        width = max(width, variance * (NEAREST_LEVEL_FACTOR * FINEST_LEVEL / cap))
    return max(mean * (1.0 - r) - width, sure * mean)


@compiled_helper(**VECTOR_MATH_OPTIONS)
def closed_form_low_in_ball(mean, variance, least, r, q):  # type: ignore[no-untyped-def]
    """Low from lemmas 2 and 3, for any function; ``least`` is the smallest value of an observed successor."""
    return (1.0 - q) * max(mean - math.sqrt(2.0 * r * variance) - r * (mean - least), least)


@compiled_helper(**VECTOR_MATH_OPTIONS, forceinline=True)
def closed_form_up(mean, variance, most, r, q, top):  # type: ignore[no-untyped-def]
    """Up; ``most`` is the largest value of an observed successor, ``top`` bounds the value of all others."""
    return (1.0 - q) * min(mean + math.sqrt(2.0 * r * variance) + r * (most - mean), most) + q * top


@compiled_helper(**FAST_SUM_OPTIONS, forceinline=True)
def ball_width(r, deviation, span):  # type: ignore[no-untyped-def]
    """Bound on |p f - p_hat f| in the ball of lemma 2, for f with this standard deviation and range.

    It is linear in both, so lemmas 7 and 8 can add it up over functions.
    """
    return math.sqrt(2.0 * r) * deviation + r * span


@compiled_helper
def _dual_at_level(x, b, model, cap, V, level):  # type: ignore[no-untyped-def]
    """f(t) = e^{-r_low} exp(sum p ln(V + t)) - t at one of the levels t of lemma 1, and its slope f'(t)."""
    t = 0.0 if level == 0 else cap * FINEST_LEVEL * LEVEL_RATIO ** (level - 1.0)
    log_mean, inverse = 0.0, 0.0
    for k in range(model.support[x]):
        w = V[model.successor[x, k], b] + t
        # Only at t = 0, where the geometric mean is 0. The positive slope sends the search to larger levels.
        if w <= 0.0:
            return 0.0, 1.0
        log_mean += model.p[x, k] * math.log(w)
        inverse += model.p[x, k] / w
    value = math.exp(log_mean - model.r_low[x])
    return value - t, value * inverse - 1.0


@compiled_helper
def solve_low_dual(x, b, model, cap, V, variance, mean):  # type: ignore[no-untyped-def]
    """Low of V[:, b] from the dual of lemma 1: the best level, searched from the level of the closed form."""
    # Lemma 1 holds for the fixed set of levels only; a continuous t would need lemma 2. The dual is concave in t, so
    # going uphill finds the best level.
    finest = cap * FINEST_LEVEL
    t = max(math.sqrt(variance / (2.0 * model.r_low[x])) - mean, finest)
    level = min(1 + int(math.log(t / finest) / math.log(LEVEL_RATIO)), N_LEVELS - 1)
    best, slope = _dual_at_level(x, b, model, cap, V, level)
    step = 1 if slope > 0.0 else -1
    i = level + step
    while 0 <= i < N_LEVELS:
        value, slope = _dual_at_level(x, b, model, cap, V, i)
        if value <= best:
            break
        best = value
        i += step
        if step * slope <= 0.0:
            break
    return best


@compiled_helper
def solve_low_dual_in_ball(x, b, model, V, variance, mean, least):  # type: ignore[no-untyped-def]
    """Low of V[:, b] from the dual of lemma 2; ``least`` is the smallest value of an observed successor."""
    above = 0.0 if variance <= 0.0 else _maximise_dual(x, b, model, V, variance, mean - least, least, 1.0)
    return (1.0 - model.q[x]) * (least + max(above, 0.0))


@compiled_helper
def solve_up_dual(x, b, model, Y, variance, mean, most, top):  # type: ignore[no-untyped-def]
    """Up of Y[:, b] from the dual: (1-q) min_t { most + t - e^{-r} exp(sum p ln(most - Y + t)) } + q top."""
    q = model.q[x]
    if variance <= 0.0:
        return (1.0 - q) * most + q * top
    return (1.0 - q) * (most - _maximise_dual(x, b, model, Y, variance, most - mean, most, -1.0)) + q * top


@compiled_helper
def _maximise_dual(x, b, model, F, variance, mean, edge, sign):  # type: ignore[no-untyped-def]
    """max_t { e^{-r} exp(sum p ln(w + t)) - t } with w = sign (F - edge) >= 0, which has this variance and mean.

    Newton on the optimality condition ln(GM) - ln(HM) = r of the numbers w + t.
    """
    r = model.r[x]
    t = max(math.sqrt(variance / (2.0 * r)) - mean, 1e-9)
    # A few steps are enough: the closed form starts near the solution, and lemma 2 makes every t > 0 valid.
    for _ in range(6):
        log_mean, inverse, inverse2 = 0.0, 0.0, 0.0
        for k in range(model.support[x]):
            w = 1.0 / (sign * (F[model.successor[x, k], b] - edge) + t)
            log_mean -= model.p_split[x, k] * math.log(w)
            inverse += model.p_split[x, k] * w
            inverse2 += model.p_split[x, k] * w * w
        residual = log_mean + math.log(inverse) - r
        slope = inverse - inverse2 / inverse
        # The slope is 0 if all numbers are equal, and the step would divide by it.
        if slope >= -1e-300 or abs(residual) < 1e-3 * r:
            break
        # A full step may leave the domain: at t = 0 the number of the edge itself is 0, and its logarithm infinite.
        t = max(t - residual / slope, 1e-9, 0.3 * t)
    log_mean = 0.0
    for k in range(model.support[x]):
        log_mean += model.p_split[x, k] * math.log(sign * (F[model.successor[x, k], b] - edge) + t)
    return math.exp(log_mean - r) - t


class LocalLowerBounds(NamedTuple):
    """Lower bounds that an episode raises and follows, one row per column of estimates."""

    V: Floats  # [columns, S] lower bounds, 0 at the goal
    probe: Actions  # [columns, S] actions that replace the greedy ones while probing, -1: none
    probing: bool
    q: Floats  # [X] bounds on the mass of successors never observed
    # [S] l: the radius of lemma 1 of a pair with n tries is l/n. By lemma 3a, a pair that uses a ball and has one
    # successor has unseen mass at most 1 - exp(-l/(n - 1)).
    logs: Floats
    uses_ball: Bools  # [X] pairs whose bounds use lemma 2 instead of lemma 1
    p: Floats  # [X, K] frequencies of these pairs at the last plan
    r: Floats  # [X] radii of these pairs at the last plan
    cap: float  # C
    start: int
    n_actions: int  # A


@compiled_helper(**VECTOR_MATH_OPTIONS)
def _greedy_backup(state, V, local, successor, count, support, n):  # type: ignore[no-untyped-def]
    """Return T_low V(s) for the bounds V [S] of one column, off its goal, and the greedy action; A is the reset."""
    # n and the successors are those of the moment, because lemma 1 holds for all n at once. The bound q may be that of
    # the last plan, because the set of observed successors only grows; so may p and r, by lemma 2.
    # Unsigned indices: for signed ones Numba adds a test for negative numbers to every access.
    s, A = np.uintp(state), np.uintp(local.n_actions)
    best, action, log = min(local.cap, 1.0 + V[local.start]), np.int64(A), local.logs[s]
    for a in range(local.n_actions):
        x = s * A + np.uintp(a)
        value = 1.0
        # Absent pairs are stored as the reset, with one successor and no tries. The radius l/n would divide by 0.
        if n[x] == 0 and support[x] == 1:
            continue
        if support[x] == 1 and local.uses_ball[x]:
            # The first try found the successor, so n - 1 tries came since. With none the bound is exp(-inf) = 0.
            sure = max(1.0 - local.q[x], math.exp(-log / (n[x] - 1.0)))
            value += sure * V[np.uintp(successor[x, 0])]
        elif support[x] == 1:
            value += closed_form_low(V[np.uintp(successor[x, 0])], 0.0, log / n[x], local.cap, 1.0 - local.q[x])
        elif support[x] > 1 and local.uses_ball[x]:
            # Differences from V(s) are small, so mean(d^2) - mean(d)^2 loses fewer digits. It may still come out
            # negative, hence the max with 0 before the square root.
            m, square, own, least = 0.0, 0.0, V[s], np.inf
            # Successors that were found since the last plan have p = 0, and p may be narrower than the support. The
            # bound holds for the successors of the last plan, with their q.
            for k in range(min(support[x], local.p.shape[1])):
                d = V[np.uintp(successor[x, k])] - own
                m += local.p[x, k] * d
                square += local.p[x, k] * d * d
                least = min(least, d)
            value += closed_form_low_in_ball(m + own, max(square - m * m, 0.0), least + own, local.r[x], local.q[x])
        elif support[x] > 1:
            m, square, own, scale = 0.0, 0.0, V[s], 1.0 / n[x]
            for k in range(support[x]):
                d = V[np.uintp(successor[x, k])] - own
                m += count[x, k] * d
                square += count[x, k] * d * d
            m, square = m * scale, square * scale
            value += closed_form_low(m + own, max(square - m * m, 0.0), log * scale, local.cap, 0.0)
        if value < best:
            best, action = value, np.int64(a)
    return best, action


@compiled(**VECTOR_MATH_OPTIONS)
def backup_state(state, column, local, successor, count, support, n):  # type: ignore[no-untyped-def]
    """Raise V at a state and return the action to take, A for the reset. The state is neither a goal nor terminal."""
    V = local.V[column]
    best, action = _greedy_backup(state, V, local, successor, count, support, n)
    # Only upwards: both numbers are lower bounds, so the larger one is, and D never falls.
    if best > V[state]:
        V[state] = best
    if local.probing and local.probe[column, state] >= 0:
        return np.int64(local.probe[column, state])
    return action


@compiled(**VECTOR_MATH_OPTIONS)
def greedy_action_table(columns, states, local, successor, count, support, n):  # type: ignore[no-untyped-def]
    """Return [1, S, columns]: the actions of :func:`backup_state` in these states, for workers in other processes."""
    # Workers count nothing, so they cannot back up bounds on the way.
    actions = np.zeros((1, local.V.shape[1], len(columns)), np.int16)
    for j in range(len(columns)):
        column = columns[j]
        for s in states:
            action = _greedy_backup(s, local.V[column], local, successor, count, support, n)[1]
            probed = local.probing and local.probe[column, s] >= 0
            actions[0, s, j] = local.probe[column, s] if probed else action
    return actions
