"""The bounding operators of the certified explorer, as compiled sweeps over blocks of goals.

Layout: values are ``[S, B]`` with the B goals of a block innermost, so that one state-action pair is backed up for
all of them with contiguous loads; a :class:`Model` holds the empirical kernel and the radii of every pair.

Two valid bounds on p f are at hand for every pair, and each backup takes the tighter one (docs/theory.md):

* *whole range*: the Kullback-Leibler ball of radius r around p_hat, successors anywhere (lemmas 1 and 2);
* *split*: the ball on the observed successors alone, and a mass of at most q for all others (lemma 3).

Closed forms, with m and Var the mean and variance of f under p_hat (lemma 4; ``exact`` solves the
one-dimensional dual instead):

    Low  = max{ m - sqrt(2 r Var) - r m,                (1-q) [m - sqrt(2 r Var) - r (m - min f)] }
    Up   = min{ m + sqrt(2 r Var) + r (top - m),        (1-q) [m + sqrt(2 r Var) + r (max f - m)] + q top }

Every iterate of both operators is a valid bound (lemmas 5 and 6): sweeps run in place, in any order, and may stop
at any time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

NEWTON_STEPS = 3


class Model(NamedTuple):
    """What the kernels know about the world. X = S * A pairs, K places for successors."""

    successor: NDArray[np.int32]
    """[X, K]"""
    p: NDArray[np.float64]
    """[X, K] empirical probabilities"""
    support: NDArray[np.int32]
    """[X] number of successors in use; 0 for a pair never tried"""
    r_low: NDArray[np.float64]
    """[X] radius for one fixed function (lemma 1) or for all (lemma 2), whichever is smaller"""
    r: NDArray[np.float64]
    """[X] radius for all functions at once (lemma 2)"""
    q: NDArray[np.float64]
    """[X] bound on the mass of successors never observed (lemma 3)"""
    terminal: NDArray[np.bool_]
    """[S]"""
    start: int


@numba.njit(cache=True, nogil=True)
def radii(pairs, count, support, n, settled, log_fixed, log_kernel, branching, states, p, r_low, r, q):  # type: ignore[no-untyped-def]
    """Refresh the empirical kernel and the radii of the listed pairs (lemmas 1 to 3).

    fixed:  [ log_fixed  + ln( sqrt(pi) Gamma(n+1) / Gamma(n+1/2) ) ] / n
    all:    [ log_kernel + sum_i c_i ln p_i - ln M ] / n, with M the mixture over supports of size m (prior
    proportional to 1/(m(m+1)), uniform over the sets of that size, m <= branching) of Krichevsky-Trofimov
    mixtures. The sum over m stops once its terms are negligible, which can only enlarge the radius.
    unseen: q = 1 - exp( -[log_kernel + ln(o(o+1))] / n' ), n' visits since the o-th successor was found (lemma 3).
    """
    half = math.lgamma(0.5)
    for x in pairs:
        total, o = n[x], support[x]
        if total == 0:
            continue
        fixed = (log_fixed + half + math.lgamma(total + 1.0) - math.lgamma(total + 0.5)) / total
        fit, product = 0.0, 0.0
        for k in range(o):
            p[x, k] = count[x, k] / total
            fit += count[x, k] * math.log(p[x, k])
            product += math.lgamma(count[x, k] + 0.5) - half
        peak, mixture = -np.inf, 0.0
        for m in range(o, max(branching, o) + 1):
            # ln of w_m C(S-o, m-o) / C(S, m): the prior of the sets of size m that hold the o observed successors
            prior = -math.log(m * (m + 1.0))
            prior += math.lgamma(states - o + 1.0) - math.lgamma(m - o + 1.0)
            prior += math.lgamma(m + 1.0) - math.lgamma(states + 1.0)
            term = prior + math.lgamma(m / 2) - math.lgamma(total + m / 2)
            if term > peak:
                mixture = mixture * math.exp(peak - term) + 1.0
                peak = term
            else:
                mixture += math.exp(term - peak)
                if term < peak - 12.0:
                    break
        r[x] = (log_kernel + fit - product - peak - math.log(mixture)) / total
        r_low[x] = min(fixed, r[x])
        quiet = total - settled[x]
        q[x] = 1.0 - math.exp(-(log_kernel + math.log(o * (o + 1.0))) / quiet) if quiet > 0 else 1.0


@numba.njit(cache=True, nogil=True)
def _geometric(x, b, model, F, base, sign, r, t):  # type: ignore[no-untyped-def]
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
            log_mean -= model.p[x, k] * math.log(w)
            inverse += model.p[x, k] * w
            inverse2 += model.p[x, k] * w * w
        residual = log_mean + math.log(inverse) - r
        slope = inverse - inverse2 / inverse
        if slope >= -1e-300 or abs(residual) < 1e-3 * r:
            break
        t = max(t - residual / slope, smallest, 0.3 * t)
    log_mean = 0.0
    for k in range(model.support[x]):
        log_mean += model.p[x, k] * math.log(sign * (F[model.successor[x, k], b] - base) + t)
    return math.exp(log_mean - r) - t


@numba.njit(cache=True, nogil=True)
def low_exact(x, b, model, V, variance, mean, least):  # type: ignore[no-untyped-def]
    """Low_x(V[:, b]) from the duals of both bounds."""
    guess = math.sqrt(variance / (2.0 * model.r_low[x])) - mean
    value = _geometric(x, b, model, V, 0.0, 1.0, model.r_low[x], guess)
    guess = math.sqrt(variance / (2.0 * model.r[x])) - mean + least
    split = least if variance <= 0.0 else least + _geometric(x, b, model, V, least, 1.0, model.r[x], guess)
    return max(value, (1.0 - model.q[x]) * split)


@numba.njit(cache=True, nogil=True)
def up_exact(x, b, model, Y, variance, mean, most, top):  # type: ignore[no-untyped-def]
    """Up_x(Y[:, b]) from the duals of both bounds."""
    guess = math.sqrt(variance / (2.0 * model.r[x])) - top + mean
    value = top - _geometric(x, b, model, Y, top, -1.0, model.r[x], guess)
    guess = math.sqrt(variance / (2.0 * model.r[x])) - most + mean
    split = most if variance <= 0.0 else most - _geometric(x, b, model, Y, most, -1.0, model.r[x], guess)
    return min(value, (1.0 - model.q[x]) * split + model.q[x] * top)


@numba.njit(cache=True, nogil=True, inline="always")
def _moments(x, s, model, F, mean, variance, least, most):  # type: ignore[no-untyped-def]
    """Mean, variance, least and greatest value of F over the successors of x; centred at F[s] against cancellation."""
    B = F.shape[1]
    for b in range(B):
        mean[b] = 0.0
        variance[b] = 0.0
        least[b] = np.inf
        most[b] = -np.inf
    for k in range(model.support[x]):
        weight = model.p[x, k]
        row = F[model.successor[x, k]]
        for b in range(B):
            d = row[b] - F[s, b]
            mean[b] += weight * d
            variance[b] += weight * d * d
            least[b] = min(least[b], row[b])
            most[b] = max(most[b], row[b])
    for b in range(B):
        variance[b] = max(variance[b] - mean[b] * mean[b], 0.0)
        mean[b] += F[s, b]


@numba.njit(cache=True, nogil=True)
def lower_sweep(order, goal_column, model, cap, exact, V, policy):  # type: ignore[no-untyped-def]
    """V <- max(V, T_low V) over the states of ``order``, policy <- the greedy actions; returns the largest rise.

    T_low V(s) = min{ cap, 1 + V(start), min_a 1 + Low_sa(V) }, 0 at the goal; the reset is action A.
    ``goal_column[s]`` is the column of the block whose goal is s, or -1.
    """
    B = V.shape[1]
    A = model.support.shape[0] // V.shape[0]
    mean, variance, least, most = np.empty((A, B)), np.empty((A, B)), np.empty((A, B)), np.empty((A, B))
    Q, final = np.empty((A, B)), np.empty((A, B), np.bool_)
    rise = 0.0
    for s in order:
        for a in range(0 if model.terminal[s] else A):
            x = s * A + a
            if model.support[x] == 0:
                for b in range(B):
                    Q[a, b] = 1.0
                    final[a, b] = True
                continue
            _moments(x, s, model, V, mean[a], variance[a], least[a], most[a])
            r_low, r, keep = model.r_low[x], model.r[x], 1.0 - model.q[x]
            for b in range(B):
                m = mean[a, b]
                whole = m * (1.0 - r_low) - math.sqrt(2.0 * r_low * variance[a, b])
                split = m - math.sqrt(2.0 * r * variance[a, b]) - r * (m - least[a, b])
                Q[a, b] = 1.0 + max(0.0, max(whole, keep * max(split, least[a, b])))
                final[a, b] = not exact
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
                value = low_exact(
                    s * A + candidate, b, model, V, variance[candidate, b], mean[candidate, b], least[candidate, b]
                )
                Q[candidate, b] = max(Q[candidate, b], 1.0 + value)
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
    B = Y.shape[1]
    A = model.support.shape[0] // Y.shape[0]
    mean, variance, least, most = np.empty((A, B)), np.empty((A, B)), np.empty((A, B)), np.empty((A, B))
    Q, top = np.empty((A, B)), np.empty(B)
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
            _moments(x, s, model, Y, mean[a], variance[a], least[a], most[a])
            r, q = model.r[x], model.q[x]
            for b in range(B):
                m = mean[a, b]
                first = m + math.sqrt(2.0 * r * variance[a, b])
                split = min(first + r * (most[a, b] - m), most[a, b])
                Q[a, b] = 1.0 + min(first + r * (top[b] - m), (1.0 - q) * split + q * top[b])
        for b in range(B):
            if goal_column[s] == b:
                continue
            action = 0
            for a in range(1, A):
                if Q[a, b] < Q[action, b]:
                    action = a
            value = Q[action, b]
            if exact and value < np.inf:
                up = up_exact(s * A + action, b, model, Y, variance[action, b], mean[action, b], most[action, b], top[b])
                value = min(value, 1.0 + up)
            if value < Y[s, b]:
                fall = max(fall, Y[s, b] - value)
                Y[s, b] = value
                policy[s, b] = action
    return fall
