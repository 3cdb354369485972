"""The bounding operators of the certified explorer, as compiled sweeps over blocks of goals.

Layout: values are ``[S, B]`` with the goals of a block innermost, so that one state-action pair is backed up for all of
them with contiguous loads. The empirical kernel is ``p[x, k]`` over the first ``support[x]`` places of
``successor[x]``. Radii are per pair. Every iterate of both operators is a valid bound (docs/theory.md, lemmas 4
and 5), so sweeps run in place, in any order, and may stop at any time.
"""

from __future__ import annotations

import math

import numba
import numpy as np

NEWTON_STEPS = 3


@numba.njit(cache=True, nogil=True)
def radii(pairs, count, support, n, log_fixed, log_kernel, bound, states, p, r_fixed, r_kernel):  # type: ignore[no-untyped-def]
    """Refresh the empirical kernel and both radii of the listed pairs (lemmas 1 and 2).

    r_fixed  = [ log_fixed  + ln( sqrt(pi) Gamma(n+1) / Gamma(n+1/2) ) ] / n
    r_kernel = [ log_kernel + sum_i c_i ln p_i - ln M ] / n, with M the mixture over supports of size m (prior
    proportional to 1/(m(m+1)), uniform over the sets of that size, m <= bound) of Krichevsky-Trofimov mixtures. The
    sum over m stops once its terms are negligible, which can only enlarge the radius.
    """
    half = math.lgamma(0.5)
    for x in pairs:
        total, o = n[x], support[x]
        if total == 0:
            continue
        r_fixed[x] = (log_fixed + half + math.lgamma(total + 1.0) - math.lgamma(total + 0.5)) / total
        fit, product = 0.0, 0.0
        for k in range(o):
            p[x, k] = count[x, k] / total
            fit += count[x, k] * math.log(p[x, k])
            product += math.lgamma(count[x, k] + 0.5) - half
        peak, mixture = -np.inf, 0.0
        for m in range(o, max(bound, o) + 1):
            # ln [ w_m * C(S-o, m-o) / C(S, m) ]: w_m = 1/(m(m+1)); the sets of size m that hold the o observed ones
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
        r_kernel[x] = (log_kernel + fit - product - peak - math.log(mixture)) / total


@numba.njit(cache=True, nogil=True, inline="always")
def _moments(x, s, successor, p, support, V, mean, square):  # type: ignore[no-untyped-def]
    """Mean and variance of V under p[x], into ``mean`` and ``square``; centred at V[s] against cancellation."""
    B = V.shape[1]
    for b in range(B):
        mean[b] = 0.0
        square[b] = 0.0
    for k in range(support[x]):
        weight = p[x, k]
        row = V[successor[x, k]]
        for b in range(B):
            d = row[b] - V[s, b]
            mean[b] += weight * d
            square[b] += weight * d * d
    for b in range(B):
        square[b] = max(square[b] - mean[b] * mean[b], 0.0)
        mean[b] += V[s, b]


@numba.njit(cache=True, nogil=True)
def low_exact(x, b, successor, p, support, V, r, t):  # type: ignore[no-untyped-def]
    """Low_x(V) = max_t e^{-r} exp(sum p ln(V + t)) - t from a starting point t; any t gives a valid bound (lemma 3).

    Newton on the optimality condition ln(GM) - ln(HM) = r of the numbers V + t.
    """
    floor = np.inf
    for k in range(support[x]):
        floor = min(floor, V[successor[x, k], b])
    smallest = 1e-9 - floor if floor < 1e-9 else 0.0
    t = max(t, smallest)
    for _ in range(NEWTON_STEPS):
        log_mean, inverse, inverse2 = 0.0, 0.0, 0.0
        for k in range(support[x]):
            w = 1.0 / (V[successor[x, k], b] + t)
            log_mean -= p[x, k] * math.log(w)
            inverse += p[x, k] * w
            inverse2 += p[x, k] * w * w
        residual = log_mean + math.log(inverse) - r
        slope = inverse - inverse2 / inverse
        if slope >= -1e-300 or abs(residual) < 1e-3 * r:
            break
        t = max(t - residual / slope, smallest, 0.3 * t)
    log_mean = 0.0
    for k in range(support[x]):
        log_mean += p[x, k] * math.log(V[successor[x, k], b] + t)
    return math.exp(log_mean - r) - t


@numba.njit(cache=True, nogil=True)
def up_exact(x, b, successor, p, support, Y, top, r, t):  # type: ignore[no-untyped-def]
    """Up_x(Y) = min_t top + t - e^{-r} exp(sum p ln(top + t - Y)), top >= max Y; the mirror image of :func:`low_exact`."""
    floor = np.inf
    for k in range(support[x]):
        floor = min(floor, top - Y[successor[x, k], b])
    smallest = 1e-9 - floor if floor < 1e-9 else 0.0
    t = max(t, smallest)
    for _ in range(NEWTON_STEPS):
        log_mean, inverse, inverse2 = 0.0, 0.0, 0.0
        for k in range(support[x]):
            w = 1.0 / (top - Y[successor[x, k], b] + t)
            log_mean -= p[x, k] * math.log(w)
            inverse += p[x, k] * w
            inverse2 += p[x, k] * w * w
        residual = log_mean + math.log(inverse) - r
        slope = inverse - inverse2 / inverse
        if slope >= -1e-300 or abs(residual) < 1e-3 * r:
            break
        t = max(t - residual / slope, smallest, 0.3 * t)
    log_mean = 0.0
    for k in range(support[x]):
        log_mean += p[x, k] * math.log(top - Y[successor[x, k], b] + t)
    return top + t - math.exp(log_mean - r)


@numba.njit(cache=True, nogil=True)
def lower_sweep(order, goal_column, successor, p, support, r_low, terminal, start, cap, exact, V, policy, Q, spread):  # type: ignore[no-untyped-def]
    """V <- max(V, T_low V) over the states of ``order``; policy <- the greedy actions. Returns the largest rise.

    T_low V(s) = min{ cap, 1 + V(start), min_a 1 + Low_sa(V) }, 0 at the goal.
    Low is the closed form  m - sqrt(2 r Var) - r m  or, with ``exact``, the dual of lemma 3.
    Scratch: Q, spread [A, B].
    """
    B = V.shape[1]
    A = Q.shape[0]
    rise = 0.0
    for s in order:
        if not terminal[s]:
            for a in range(A):
                x = s * A + a
                if support[x] == 0:
                    for b in range(B):
                        Q[a, b] = 1.0
                        spread[a, b] = -1.0
                    continue
                _moments(x, s, successor, p, support, V, Q[a], spread[a])
                r = r_low[x]
                for b in range(B):
                    low = Q[a, b] * (1.0 - r) - math.sqrt(2.0 * r * spread[a, b])
                    Q[a, b] = 1.0 + max(low, 0.0)
        for b in range(B):
            best = min(cap, 1.0 + V[start, b])
            action = A
            if not terminal[s]:
                while True:
                    candidate = 0
                    for a in range(1, A):
                        if Q[a, b] < Q[candidate, b]:
                            candidate = a
                    if Q[candidate, b] >= best:
                        break
                    if exact and spread[candidate, b] >= 0.0:
                        x = s * A + candidate
                        guess = math.sqrt(spread[candidate, b] / (2.0 * r_low[x])) - Q[candidate, b]
                        value = low_exact(x, b, successor, p, support, V, r_low[x], guess)
                        Q[candidate, b] = max(Q[candidate, b], 1.0 + value)
                        spread[candidate, b] = -1.0
                        continue
                    best = Q[candidate, b]
                    action = candidate
                    break
            if goal_column[s] == b:
                best = 0.0
            policy[s, b] = action
            if best > V[s, b]:
                rise = max(rise, best - V[s, b])
                V[s, b] = best
    return rise


@numba.njit(cache=True, nogil=True)
def upper_sweep(order, goal_column, successor, p, support, r_up, terminal, start, cap, exact, Y, policy, Q, spread, top):  # type: ignore[no-untyped-def]
    """Y <- min(Y, T_up Y) over the states of ``order``; where Y falls, the policy takes the action. Returns the fall.

    T_up Y(s) = min{ 1 + Y(start), min_a 1 + Up_sa(Y) }, 0 at the goal.
    Up is the closed form  m + sqrt(2 r Var) + r (top - m)  or, with ``exact``, the dual. Scratch: Q, spread [A, B]; top [B].
    """
    B = Y.shape[1]
    A = Q.shape[0]
    fall = 0.0
    for b in range(B):
        top[b] = min(cap, 1.0 + Y[start, b])
    for s in order:
        for b in range(B):
            if Y[s, b] > top[b]:
                Y[s, b] = top[b]
                policy[s, b] = A
    for s in order:
        if terminal[s]:
            continue
        for a in range(A):
            x = s * A + a
            if support[x] == 0:
                for b in range(B):
                    Q[a, b] = np.inf
                continue
            _moments(x, s, successor, p, support, Y, Q[a], spread[a])
            r = r_up[x]
            for b in range(B):
                m = Q[a, b]
                Q[a, b] = 1.0 + m + math.sqrt(2.0 * r * spread[a, b]) + r * (top[b] - m)
        for b in range(B):
            if goal_column[s] == b:
                continue
            candidate = 0
            for a in range(1, A):
                if Q[a, b] < Q[candidate, b]:
                    candidate = a
            value = Q[candidate, b]
            if exact and value < np.inf:
                x = s * A + candidate
                guess = math.sqrt(spread[candidate, b] / (2.0 * r_up[x])) - top[b] + value - 1.0
                value = min(value, 1.0 + up_exact(x, b, successor, p, support, Y, top[b], r_up[x], guess))
            if value < Y[s, b]:
                fall = max(fall, Y[s, b] - value)
                Y[s, b] = value
                policy[s, b] = candidate
    return fall
