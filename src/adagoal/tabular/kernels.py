"""The bounding operators of the certified explorer, as compiled sweeps over blocks of goals.

Layout: values are ``[S, B]`` with the B goals of a block innermost, so that one state-action pair is backed up for
all of them with contiguous loads; a :class:`Model` holds the empirical kernel and the radii of every pair.

Bounds on p f for a pair (docs/theory.md):

* *split*: a Kullback-Leibler ball of radius r around p_hat on the observed successors alone (lemma 2), and a mass of
  at most q on all others (lemma 3); holds for all f at once;
* *whole range*: the ball of radius r_low, successors anywhere, for one fixed f per goal (lemma 1).

Closed forms, with m and Var the mean and variance of f under p_hat (lemma 4; ``exact`` solves the
one-dimensional dual instead; without it the sweeps are those of :mod:`adagoal.tabular.closed`):

    Low  = m - sqrt(2 r_low Var) - r_low m, and at least (1-q) f(s') where s' is the only successor observed
    Up   = (1-q) [m + sqrt(2 r Var) + r (max f - m)] + q top

Every iterate of both operators is a valid bound (lemmas 5 and 6): sweeps run in place, in any order, and may stop
at any time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from adagoal.tabular import closed

NEWTON_STEPS = 6
NOTHING_KNOWN = 1e3
"""A radius that no bound survives, yet finite: infinity times a variance of zero is not a number."""


class Model(NamedTuple):
    """What the kernels know about the world. X = S * A pairs, K places for successors."""

    successor: NDArray[np.int32]
    """[X, K]"""
    p: NDArray[np.float64]
    """[X, K] empirical probabilities, from all transitions"""
    p_split: NDArray[np.float64]
    """[X, K] those that go with r: from the transitions since the last new successor was found"""
    support: NDArray[np.int32]
    """[X] number of successors in use; 0 for a pair never tried"""
    r_low: NDArray[np.float64]
    """[X] radius for one fixed function per goal, successors anywhere (lemma 1)"""
    r: NDArray[np.float64]
    """[X] radius for all functions at once, on the observed successors (lemma 2)"""
    q: NDArray[np.float64]
    """[X] bound on the mass of successors never observed (lemma 3)"""
    quiet: NDArray[np.float64]
    """[X] visits in the quiet window, 0 where there is none (lemma 3b)"""
    quiet_log: float
    """sum_x quiet_x * (unseen mass of x) is at most this"""
    terminal: NDArray[np.bool_]
    """[S]"""
    start: int


@numba.njit(cache=True, nogil=True)
def radii(pairs, count, recent, support, n, settled, log_fixed, log_pair, branching, p, p_split, r_low, r, q):  # type: ignore[no-untyped-def]
    """Refresh the empirical kernels and the radii of the listed pairs.

    With n transitions in all, n' of them (counts c) since the o-th successor was found, restart = ln(o(o+1)):

        r_low = [ log_fixed + ln( sqrt(pi) Gamma(n+1) / Gamma(n+1/2) ) ] / n                                  (lemma 1)
        r     = [ log_pair + restart + sum_i c_i ln(c_i/n') - ln KT(c) ] / n',
                KT(c) = Gamma(o/2) / Gamma(n' + o/2) prod_i Gamma(c_i + 1/2) / Gamma(1/2)                     (lemma 2)
        q     = 1 - exp( -[log_pair + restart] / n' ), and 0 where o is the known number of successors       (lemma 3)
    """
    half = math.lgamma(0.5)
    for x in pairs:
        total, o = n[x], support[x]
        if total == 0:
            continue
        r_low[x] = (log_fixed + half + math.lgamma(total + 1.0) - math.lgamma(total + 0.5)) / total
        quiet = total - settled[x]
        price = log_pair + math.log(o * (o + 1.0))
        regret = math.lgamma(quiet + o / 2) - math.lgamma(o / 2)
        for k in range(o):
            c = recent[x, k]
            p[x, k] = count[x, k] / total
            p_split[x, k] = c / quiet if quiet > 0 else p[x, k]
            if c > 0:
                regret += c * math.log(c / quiet) + half - math.lgamma(c + 0.5)
        r[x] = (price + regret) / quiet if quiet > 0 else NOTHING_KNOWN
        q[x] = 1.0 - math.exp(-price / quiet) if quiet > 0 else 1.0
        if o >= branching:
            q[x] = 0.0


@numba.njit(cache=True, nogil=True)
def _geometric(x, b, model, p, F, base, sign, r, t):  # type: ignore[no-untyped-def]
    """max_t  e^{-r} exp(sum p ln(w + t)) - t  for the numbers w = sign (F - base) >= 0, started at t.

    Newton on the optimality condition ln(GM) - ln(HM) = r of the numbers w + t. Any t gives a valid bound.
    """
    least = np.inf
    for k in range(model.support[x]):
        least = min(least, sign * (F[model.successor[x, k], b] - base))
    smallest = max(1e-9 - least, 0.0)
    t = max(t, smallest)
    for _ in range(NEWTON_STEPS):
        log_mean, inverse, inverse2 = 0.0, 0.0, 0.0
        for k in range(model.support[x]):
            w = 1.0 / (sign * (F[model.successor[x, k], b] - base) + t)
            log_mean -= p[x, k] * math.log(w)
            inverse += p[x, k] * w
            inverse2 += p[x, k] * w * w
        residual = log_mean + math.log(inverse) - r
        slope = inverse - inverse2 / inverse
        if slope >= -1e-300 or abs(residual) < 1e-3 * r:
            break
        t = max(t - residual / slope, smallest, 0.3 * t)
    log_mean = 0.0
    for k in range(model.support[x]):
        log_mean += p[x, k] * math.log(sign * (F[model.successor[x, k], b] - base) + t)
    return math.exp(log_mean - r) - t


@numba.njit(cache=True, nogil=True)
def low_exact(x, b, model, V, variance, mean):  # type: ignore[no-untyped-def]
    """Low_x(V[:, b]) from the dual of the whole-range bound."""
    guess = math.sqrt(variance / (2.0 * model.r_low[x])) - mean
    return _geometric(x, b, model, model.p, V, 0.0, 1.0, model.r_low[x], guess)


@numba.njit(cache=True, nogil=True)
def up_exact(x, b, model, Y, variance, mean, most, top):  # type: ignore[no-untyped-def]
    """Up_x(Y[:, b]) from the dual."""
    guess = math.sqrt(variance / (2.0 * model.r[x])) - most + mean
    split = most if variance <= 0.0 else most - _geometric(x, b, model, model.p_split, Y, most, -1.0, model.r[x], guess)
    return (1.0 - model.q[x]) * split + model.q[x] * top


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
                m = mean[a, b]
                Q[a, b] = 1.0 + max(m * (1.0 - r) - math.sqrt(2.0 * r * variance[a, b]), sure * m)
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
                low = low_exact(s * A + candidate, b, model, V, variance[candidate, b], mean[candidate, b])
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
                m = mean[a, b]
                split = m + math.sqrt(2.0 * r * variance[a, b]) + r * (most[a, b] - m)
                Q[a, b] = 1.0 + (1.0 - q) * min(split, most[a, b]) + q * top[b]
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
