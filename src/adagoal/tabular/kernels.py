"""The bounding operators of the certified explorer, as compiled sweeps over blocks of goals.

Layout: values are ``[S, B]`` with the B goals of a block innermost, so that one state-action pair is backed up for
all of them with contiguous loads; a :class:`Model` holds the empirical kernel and the radii of every pair.

Bounds on p f for a pair (docs/theory.md):

* *split*: a Kullback-Leibler ball of radius r around p_hat on the observed successors alone (lemma 2), and a mass of
  at most q on all others (lemma 3); holds for all f at once;
* *whole range*: the ball of radius r_low, successors anywhere, for one fixed f per goal (lemma 1).

Closed forms, with m and Var the mean and variance of f under p_hat (lemma 4; ``exact`` solves the
one-dimensional dual instead; without it the sweeps are those of :mod:`adagoal.tabular.closed`):

    Low  = m - 1.02 sqrt(2 r_low Var) - r_low m, with a floor and a ceiling for Var where the levels t of lemma 1 end,
           and at least (1-q) f(s') where s' is the only successor observed
    Up   = (1-q) [m + sqrt(2 r Var) + r (max f - m)] + q top

Every iterate of both operators is a valid bound (lemmas 5 and 6): sweeps run in place, in any order, and may stop
at any time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba
import numpy as np

from adagoal.core.types import Bools, Floats, Ints
from adagoal.tabular import closed

NEWTON_STEPS = 6
NOTHING_KNOWN = 1e3
"""A radius that no bound survives, yet finite: infinity times a variance of zero is not a number."""


class Model(NamedTuple):
    """What the kernels know about the world. X = S * A pairs, K places for successors."""

    successor: Ints
    """[X, K]"""
    p: Floats
    """[X, K] empirical probabilities, from all transitions"""
    p_split: Floats
    """[X, K] those that go with r: from the transitions since the last new successor was found"""
    support: Ints
    """[X] number of successors in use; 0 for a pair never tried"""
    r_low: Floats
    """[X] radius for one fixed function per goal, successors anywhere (lemma 1)"""
    r: Floats
    """[X] radius for all functions at once, on the observed successors (lemma 2)"""
    q: Floats
    """[X] bound on the mass of successors never observed (lemma 3)"""
    quiet: Floats
    """[windows, X] visits of the pairs in each quiet window, 0 outside it (lemma 3b)"""
    quiet_log: float
    """sum_x quiet[w, x] * (unseen mass of x) is at most this, for every window w"""
    terminal: Bools
    """[S]"""
    start: int


@numba.njit(cache=True, nogil=True)
def radii(pairs, count, recent, support, n, settled, logs, branching, p, p_split, r_low, r, q):  # type: ignore[no-untyped-def]
    """Refresh the empirical kernels and the radii of the listed pairs.

    With n transitions in all, n' of them (counts c') since the o-th successor was found, c in all, c0 = c - c' before:

        r_low = [ logs[0] + ln LEVELS ] / n                                                                (lemma 1)
        r     = [ logs[1] + ln max(4, o(o-1) if o > 4) + sum_i c'_i ln(c'_i/n') - ln KT(c) + ln KT(c0) ] / n',
                KT(c) = Gamma(o/2) / Gamma(n + o/2) prod_i Gamma(c_i + 1/2) / Gamma(1/2)                    (lemma 2)
        q     = 1 - exp( -[logs[2] + ln o(o+1)] / n' ), and 0 where o is the known number of successors    (lemma 3)
    """
    for x in pairs:
        total, o = n[x], support[x]
        if total == 0:
            continue
        fresh = total - settled[x]
        regret = math.lgamma(total + o / 2) - math.lgamma(settled[x] + o / 2)
        for k in range(o):
            c = recent[x, k]
            p[x, k] = count[x, k] / total
            p_split[x, k] = c / fresh if fresh > 0 else p[x, k]
            if c > 0:
                regret += c * math.log(c / fresh) - math.lgamma(count[x, k] + 0.5) + math.lgamma(count[x, k] - c + 0.5)
        restart = math.log(4.0 if o <= 4 else o * (o - 1.0))
        r_low[x] = (logs[0] + math.log(closed.LEVELS)) / total
        r[x] = (logs[1] + restart + regret) / fresh if fresh > 0 else NOTHING_KNOWN
        q[x] = 1.0 - math.exp(-(logs[2] + math.log(o * (o + 1.0))) / fresh) if fresh > 0 else 1.0
        if o >= branching:
            q[x] = 0.0


@numba.njit(cache=True, nogil=True)
def _at_level(x, b, model, cap, V, level):  # type: ignore[no-untyped-def]
    """e^{-r_low} exp(sum p ln(V + t)) - t at one of the levels t of lemma 1."""
    t = 0.0 if level == 0 else cap * closed.FINEST * closed.RATIO ** (level - 1.0)
    log_mean = 0.0
    for k in range(model.support[x]):
        w = V[model.successor[x, k], b] + t
        if w <= 0.0:
            return 0.0
        log_mean += model.p[x, k] * math.log(w)
    return math.exp(log_mean - model.r_low[x]) - t


@numba.njit(cache=True, nogil=True)
def low_exact(x, b, model, cap, V, variance, mean):  # type: ignore[no-untyped-def]
    """Low_x(V[:, b]) from the dual: the best level, searched from about where the closed form has it.

    The dual is concave in t, so that going uphill finds the best; any level gives a valid bound.
    """
    finest = cap * closed.FINEST
    t = max(math.sqrt(variance / (2.0 * model.r_low[x])) - mean, finest)
    level = min(1 + int(math.log(t / finest) / math.log(closed.RATIO)), closed.LEVELS - 1)
    best = _at_level(x, b, model, cap, V, level)
    for step in (1, -1):
        i = level + step
        while 0 <= i < closed.LEVELS:
            value = _at_level(x, b, model, cap, V, i)
            if value <= best:
                break
            best = value
            i += step
    return best


@numba.njit(cache=True, nogil=True)
def up_exact(x, b, model, Y, variance, mean, most, top):  # type: ignore[no-untyped-def]
    """Up_x(Y[:, b]) from the dual: (1-q) min_t { most + t - e^{-r} exp(sum p ln(most - Y + t)) } + q top.

    Newton on the optimality condition ln(GM) - ln(HM) = r of the numbers most - Y + t. Any t gives a valid bound.
    """
    r, q = model.r[x], model.q[x]
    if variance <= 0.0:
        return (1.0 - q) * most + q * top
    t = max(math.sqrt(variance / (2.0 * r)) - most + mean, 1e-9)
    for _ in range(NEWTON_STEPS):
        log_mean, inverse, inverse2 = 0.0, 0.0, 0.0
        for k in range(model.support[x]):
            w = 1.0 / (most - Y[model.successor[x, k], b] + t)
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
        log_mean += model.p_split[x, k] * math.log(most - Y[model.successor[x, k], b] + t)
    return (1.0 - q) * (most + t - math.exp(log_mean - r)) + q * top


@numba.njit(cache=True, nogil=True, inline="always")
def _moments(x, s, model, p, F, mean, variance):  # type: ignore[no-untyped-def]
    """Mean and variance of F under p[x]; centred at F[s] against cancellation."""
    B = F.shape[1]
    for b in range(B):
        mean[b] = 0.0
        variance[b] = 0.0
    for k in range(model.support[x]):
        weight = p[x, k]
        row = F[model.successor[x, k]]
        for b in range(B):
            d = row[b] - F[s, b]
            mean[b] += weight * d
            variance[b] += weight * d * d
    for b in range(B):
        variance[b] = max(variance[b] - mean[b] * mean[b], 0.0)
        mean[b] += F[s, b]


@numba.njit(cache=True, nogil=True)
def lower_sweep(order, goal_column, model, cap, exact, V, policy):  # type: ignore[no-untyped-def]
    """V <- max(V, T_low V) over the states of ``order``, policy <- the greedy actions; returns the largest rise.

    T_low V(s) = min{ cap, 1 + V(start), min_a 1 + Low_sa(V) }, 0 at the goal; the reset is action A.
    ``goal_column[s]`` is the column of the block whose goal is s, or -1.
    """
    if not exact:
        return closed.lower_sweep(order, goal_column, model, cap, V, policy)
    B = V.shape[1]
    A = model.support.shape[0] // V.shape[0]
    mean, variance, Q, final = np.empty((A, B)), np.empty((A, B)), np.empty((A, B)), np.empty((A, B), np.bool_)
    rise = 0.0
    for s in order:
        for a in range(0 if model.terminal[s] else A):
            x = s * A + a
            if model.support[x] == 0:
                for b in range(B):
                    Q[a, b] = 1.0
                    final[a, b] = True
                continue
            _moments(x, s, model, model.p, V, mean[a], variance[a])
            r = model.r_low[x]
            sure = 1.0 - model.q[x] if model.support[x] == 1 else 0.0
            for b in range(B):
                Q[a, b] = 1.0 + closed.low(mean[a, b], variance[a, b], r, cap, sure)
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
                low = low_exact(s * A + candidate, b, model, cap, V, variance[candidate, b], mean[candidate, b])
                Q[candidate, b] = max(Q[candidate, b], 1.0 + low)
                final[candidate, b] = True
            policy[s, b] = action
            if goal_column[s] != b and best > V[s, b]:
                rise = max(rise, best - V[s, b])
                V[s, b] = best
    return rise


@numba.njit(cache=True, nogil=True)
def upper_sweep(order, goal_column, model, cap, exact, Y, policy):  # type: ignore[no-untyped-def]
    """Y <- min(Y, T_up Y) over the states of ``order``; where Y falls, the policy takes the action. Returns the fall.

    T_up Y(s) = min{ 1 + Y(start), min_a 1 + Up_sa(Y) }, 0 at the goal. States outside ``order`` (never seen) stand at
    the cap with the reset as their action.
    """
    if not exact:
        return closed.upper_sweep(order, goal_column, model, cap, Y, policy)
    B = Y.shape[1]
    A = model.support.shape[0] // Y.shape[0]
    mean, variance, most, Q = np.empty((A, B)), np.empty((A, B)), np.empty((A, B)), np.empty((A, B))
    top = np.empty(B)
    fall = 0.0
    for b in range(B):
        top[b] = min(cap, 1.0 + Y[model.start, b])
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
            _moments(x, s, model, model.p_split, Y, mean[a], variance[a])
            for b in range(B):
                most[a, b] = 0.0
            for k in range(model.support[x]):
                row = Y[model.successor[x, k]]
                for b in range(B):
                    most[a, b] = max(most[a, b], row[b])
            r, q = model.r[x], model.q[x]
            for b in range(B):
                Q[a, b] = 1.0 + closed.up(mean[a, b], variance[a, b], most[a, b], r, q, top[b])
        for b in range(B):
            if goal_column[s] == b:
                continue
            action = 0
            for a in range(1, A):
                if Q[a, b] < Q[action, b]:
                    action = a
            value = Q[action, b]
            if value < np.inf:
                up = up_exact(
                    s * A + action, b, model, Y, variance[action, b], mean[action, b], most[action, b], top[b]
                )
                value = min(value, 1.0 + up)
            if value < Y[s, b]:
                fall = max(fall, Y[s, b] - value)
                Y[s, b] = value
                policy[s, b] = action
    return fall


@numba.njit(cache=True, nogil=True)
def lower_sweeps(order, goal_column, model, cap, exact, sweeps, tolerance, V, policy):  # type: ignore[no-untyped-def]
    """Sweeps of the lower bounds, forwards and backwards in turn, until they rise by less than the tolerance."""
    backwards = order[::-1].copy()
    for i in range(sweeps):
        way = order if i % 2 == 0 else backwards
        if lower_sweep(way, goal_column, model, cap, exact, V, policy) < tolerance:
            break


@numba.njit(cache=True, nogil=True)
def upper_sweeps(order, goal_column, model, cap, exact, sweeps, tolerance, Y, policy):  # type: ignore[no-untyped-def]
    """The same for the upper bounds (not one function of a sweep: Numba would compile that anew in every process)."""
    backwards = order[::-1].copy()
    for i in range(sweeps):
        way = order if i % 2 == 0 else backwards
        if upper_sweep(way, goal_column, model, cap, exact, Y, policy) < tolerance:
            break
