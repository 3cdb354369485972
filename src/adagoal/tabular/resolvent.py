"""How far from optimal a policy can be, from action gaps, not value intervals (docs/theory-sharper.md, lemmas 7 to 9).

For one goal and one policy pi with V^pi <= Y, let W be the expected visits under the *empirical* kernel (W = (I -
P_hat)^{-1} off the goal) and v = W 1. The true value is V^pi = v + W xi exactly, with xi(s) = (p - p_hat) V^pi at the
policy's pairs: whatever is unknown enters through the vector xi. Hence:

* |xi| <= beta, the least solution of  beta = b + K beta: b(s) is the width of one backup of v, K(s, y) the width
  of one backup of W(., y) (seminorms of columns of W: what is common to neighbours cancels);
* V^pi(s0) = v(s0) + sum_y W(s0, y) xi(y): in a quiet window the unseen mass is bounded for all pairs together (lemma
  3b), so that it counts once and not at every step of the way;
* V^pi(s') - V^pi(s) is v(s') - v(s) up to sum_y |W(s', y) - W(s, y)| beta(y): the common error of neighbouring
  states drops out, which pointwise intervals cannot do; this bounds the advantages A(s, a) = Q^pi(s, a) - V^pi(s)
  from below;
* the sub-optimality Z = V^pi - V* satisfies Z <= max_a -A(s, a) + p_sa Z, so that
  Z <- min{ Z, max_a -A_low(s, a) + Up_sa(Z) }, started at Y - V, is an upper bound at every iterate.
"""

from __future__ import annotations

import math

import numba
import numpy as np

ITERATIONS = 100
MOST = 1000.0
"""Empirical values beyond this multiple of the upper bounds give no bound."""


@numba.njit(cache=True, nogil=True)
def _widths(x, model, place, F, sd, span, mean):  # type: ignore[no-untyped-def]
    """Standard deviation, range and mean of every column of F [N, m] over the observed successors of the pair x."""
    columns = F.shape[1]
    origin = F[place[model.successor[x, 0]]]
    low, high = origin.copy(), origin.copy()
    for y in range(columns):
        mean[y] = 0.0
        sd[y] = 0.0
    for k in range(1, model.support[x]):
        weight = model.p_split[x, k]
        row = F[place[model.successor[x, k]]]
        for y in range(columns):
            d = row[y] - origin[y]
            mean[y] += weight * d
            sd[y] += weight * d * d
            low[y] = min(low[y], row[y])
            high[y] = max(high[y], row[y])
    for y in range(columns):
        sd[y] = math.sqrt(max(sd[y] - mean[y] * mean[y], 0.0))
        mean[y] += origin[y]
        span[y] = high[y] - low[y]


@numba.njit(cache=True, nogil=True)
def suboptimality(order, goal, model, V, Y, policy, probe):  # type: ignore[no-untyped-def]
    """Bounds on V^pi(start) - V*(start) and on V^pi(start), for the policy pi [S] to the states of ``goal`` [S].

    V <= V* and V^pi <= Y on the states of ``order``. Also fills ``probe`` [S] with the actions that hold the first
    bound up: where to look next.
    """
    N = len(order)
    A = model.support.shape[0] // V.shape[0]
    place = np.full(V.shape[0], -1)
    pair = np.full(N, -1)  # the policy's pair in every place, -1 at the goal and where it resets
    end = goal[order]  # the places of the goal
    top = 1.0 + Y[model.start]
    for i in range(N):
        s = order[i]
        place[s] = i
        top = max(top, Y[s])
        if not goal[s] and policy[s] != A and not model.terminal[s]:
            pair[i] = s * A + policy[s]
    F = _visits(pair, place, end, model, np.argsort(Y[order], kind="mergesort"), MOST * top)
    if not F[:, N].max() <= MOST * top:  # not proper under the empirical kernel, or hardly so
        return np.inf, np.inf
    b, K, beta = _unknowns(pair, place, model, F, top)
    value = _value(pair, place[model.start], model, F, b, K, beta, top)
    gain = _gains(order, place, end, model, F, beta, top, V, Y, policy)
    return _settle(order, place, end, model, gain, top, V, Y, policy, probe), value


@numba.njit(cache=True, nogil=True)
def _visits(pair, place, end, model, turn, most):  # type: ignore[no-untyped-def]
    """F [N, N + 1]: W, the visits under the empirical kernel, zero at the goal, and in the last column v = W 1.

    States are eliminated in the order ``turn`` [N], those near the goal first, so that few rows meet in a column: zeros
    are skipped, and what is left of a world whose states have few neighbours is a narrow band. Nothing cancels but on
    the diagonal, as I - P_hat has no positive entries elsewhere. A pivot is 1 over visits to its state until a later
    one is met: where there are more than ``most``, v is infinite.
    """
    N, first = len(pair), place[model.start]
    rank = np.empty(N, np.int64)
    for i in range(N):
        rank[turn[i]] = i
    M, W = np.eye(N), np.eye(N)  # both in the order of the turns
    last = np.arange(N)  # of the entries in a row of M
    F = np.zeros((N, N + 1))
    for i in range(N):
        x, at = pair[i], rank[i]
        for k in range(model.support[x] if x >= 0 else 1):
            j = place[model.successor[x, k]] if x >= 0 else first
            if not end[j] and not end[i]:
                M[at, rank[j]] -= model.p_split[x, k] if x >= 0 else 1.0
                last[at] = max(last[at], rank[j])
    for k in range(N):
        if M[k, k] * most < 1.0:
            F[:, N] = np.inf
            return F
        for i in range(k + 1, N):
            if M[i, k] != 0.0:
                factor = M[i, k] / M[k, k]
                for y in range(k + 1, last[k] + 1):
                    M[i, y] -= factor * M[k, y]
                for y in range(k + 1):
                    W[i, y] -= factor * W[k, y]
                last[i] = max(last[i], last[k])
    for k in range(N - 1, -1, -1):
        for j in range(k + 1, last[k] + 1):
            if M[k, j] != 0.0:
                for y in range(N):
                    W[k, y] -= M[k, j] * W[j, y]
        for y in range(N):
            W[k, y] /= M[k, k]
    for i in range(N):
        for y in range(N):
            F[i, y] = W[rank[i], rank[y]] if not end[i] and not end[y] else 0.0
        F[i, N] = F[i, :N].sum()
    return F


@numba.njit(cache=True, nogil=True)
def _unknowns(pair, place, model, F, top):  # type: ignore[no-untyped-def]
    """b [N], K [N, N] and the bounds beta [N] on |xi| of lemma 7."""
    N = len(pair)
    sd, span, mean = np.empty(N + 1), np.empty(N + 1), np.empty(N + 1)
    b, K, beta = np.zeros(N), np.zeros((N, N)), np.zeros(N)
    for i in range(N):
        x = pair[i]
        if x < 0:
            continue
        _widths(x, model, place, F, sd, span, mean)
        r, q = model.r[x], model.q[x]
        b[i] = math.sqrt(2.0 * r) * sd[N] + r * span[N] + q * top
        for y in range(N):
            K[i, y] = math.sqrt(2.0 * r) * sd[y] + r * span[y]
        beta[i] = min((math.sqrt(2.0 * r) + r + q) * top, top)
    for _ in range(ITERATIONS):
        new = np.minimum(beta, b + K @ beta)
        change = np.abs(new - beta).max()
        beta = new
        if change < 1e-6:
            break
    return b, K, beta


@numba.njit(cache=True, nogil=True)
def _value(pair, first, model, F, b, K, beta, top):  # type: ignore[no-untyped-def]
    """The corollary of lemma 7: V^pi(start) = v + W xi, where the pairs of a quiet window share the unseen mass."""
    N = len(pair)
    value, unseen = F[first, N], 0.0
    alone, shared = 0.0, 0.0
    for i in range(N):
        x = pair[i]
        if x < 0:
            continue
        value += F[first, i] * max(b[i] - model.q[x] * top + K[i] @ beta, 0.0)
        unseen += F[first, i] * model.q[x]
        if model.quiet[x] > 0.0:
            shared = max(shared, F[first, i] / model.quiet[x])
        else:
            alone += F[first, i] * model.q[x]
    return value + top * min(unseen, alone + shared * model.quiet_log)


@numba.njit(cache=True, nogil=True)
def _gains(order, place, end, model, F, beta, top, V, Y, policy):  # type: ignore[no-untyped-def]
    """gain [N, A + 1] of lemma 8, the reset last: how much better than the policy an action may be."""
    N, first = len(order), place[model.start]
    A = model.support.shape[0] // len(V)
    v = F[:, N]
    sd, span, mean = np.empty(N + 1), np.empty(N + 1), np.empty(N + 1)
    gain = np.zeros((N, A + 1))
    for i in range(N):
        s = order[i]
        if end[i]:
            continue
        error = 0.0
        for y in range(N):
            error += abs(F[first, y] - F[i, y]) * beta[y]
        gain[i, A] = 0.0 if policy[s] == A else min(v[i] - v[first] + error, Y[s] - V[model.start]) - 1.0
        for a in range(0 if model.terminal[s] else A):
            x = s * A + a
            if policy[s] == a:
                continue
            gain[i, a] = Y[s] - 1.0
            if model.support[x] == 0:
                continue
            _widths(x, model, place, F, sd, span, mean)
            r, q = model.r[x], model.q[x]
            error, spread, reach, size = 0.0, sd[N], span[N], mean[N]
            for y in range(N):
                error += abs(mean[y] - F[i, y]) * beta[y]
                spread += sd[y] * beta[y]
                reach += span[y] * beta[y]
                size += mean[y] * beta[y]
            noise = math.sqrt(2.0 * r) * spread + r * reach + q * min(size, top)
            gain[i, a] = min(gain[i, a], v[i] - mean[N] - 1.0 + error + noise)
    return gain


@numba.njit(cache=True, nogil=True)
def _settle(order, place, end, model, gain, top, V, Y, policy, probe):  # type: ignore[no-untyped-def]
    """Z(start) after the iteration of lemma 9, from Y - V downwards; ``probe`` <- the actions that hold Z up."""
    N, first = len(order), place[model.start]
    A = model.support.shape[0] // len(V)
    Z = np.zeros(N)
    ceiling = top - 1.0
    for i in range(N):
        Z[i] = 0.0 if end[i] else max(Y[order[i]] - V[order[i]], 0.0)
        ceiling = max(ceiling, Z[i])
    for sweep in range(ITERATIONS):
        change = 0.0
        for step in range(N):
            i = step if sweep % 2 == 0 else N - 1 - step
            s = order[i]
            if end[i]:
                continue
            best = gain[i, A] + Z[first]
            action = A
            for a in range(0 if model.terminal[s] else A):
                x = s * A + a
                up = 0.0
                if model.support[x] > 0:
                    m, variance, most = 0.0, 0.0, 0.0
                    for k in range(model.support[x]):
                        z = Z[place[model.successor[x, k]]]
                        m += model.p_split[x, k] * z
                        most = max(most, z)
                    if policy[s] != a and gain[i, a] + (1.0 - model.q[x]) * most <= best:
                        continue  # whatever the variance is
                    for k in range(model.support[x]):
                        variance += model.p_split[x, k] * (Z[place[model.successor[x, k]]] - m) ** 2
                    up = m + math.sqrt(2.0 * model.r[x] * variance) + model.r[x] * (most - m)
                    up = (1.0 - model.q[x]) * min(up, most)
                    if policy[s] == a:
                        up += model.q[x] * ceiling
                if gain[i, a] + up > best:
                    best = gain[i, a] + up
                    action = a
            probe[s] = action
            best = max(best, 0.0)
            if best < Z[i]:
                change = max(change, Z[i] - best)
                Z[i] = best
        if change < 1e-4:
            break
    return Z[first]
