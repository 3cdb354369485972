"""How far a policy is from optimal, from its action gaps (docs/theory-sharper.md, lemmas 7 to 9).

For one goal and one policy pi with V^pi <= Y, let W be the expected visits under the *empirical* kernel (W = (I -
P_hat)^{-1} off the goal) and v = W 1. The true value is exactly V^pi = v + W xi, with xi(s) = (p - p_hat) V^pi at the
policy's pairs: everything unknown enters through the vector xi. Hence:

* |xi| <= beta, the least solution of  beta = b + K beta: b(s) is the width of one backup of v, K(s, y) the width
  of one backup of W(., y) (seminorms of columns of W: what is common to neighbours cancels) (lemma 7);
* V^pi(s0) = v(s0) + sum_y W(s0, y) xi(y): the window of lemma 3b bounds the unseen mass of all its pairs together, so
  it counts once and not at every step (corollary of lemma 7);
* V^pi(s') - V^pi(s) is v(s') - v(s) up to sum_y |W(s', y) - W(s, y)| beta(y): the common error of neighbouring
  states cancels, which pointwise intervals cannot do; this bounds the advantages A(s, a) = Q^pi(s, a) - V^pi(s)
  from below (lemma 8);
* the sub-optimality Z = V^pi - V* satisfies Z <= max_a -A(s, a) + p_sa Z. So every iterate of
  Z <- min{ Z, max_a -A_low(s, a) + Up_sa(Z) } from Z = Y - V is an upper bound (lemma 9).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from adagoal.core.array_types import Bools, Floats, Longs
from adagoal.core.compiled_code import compiled, compiled_helper
from adagoal.core.operators import FAST_SUM_OPTIONS, VECTOR_MATH_OPTIONS, ball_width, closed_form_up

# Iterations of lemma 7 and sweeps of lemma 9. Every iterate is a bound, so stopping early is safe.
MAX_GAP_ITERATIONS = 100
# Policies whose empirical value exceeds this multiple of their upper bound get no bound: W is ill-conditioned.
MAX_VALUE_RATIO = 1000.0


class PolicyChain(NamedTuple):
    """The policy under the empirical kernel, on the N seen states."""

    row_of: Longs  # [S] index of every state among the N, -1 for others
    is_goal: Bools  # [N] the goal
    pair: Longs  # [N] the policy's pair, -1 at the goal and at resets
    F: Floats  # [N, N + 1] the visits W, and the value v in the last column
    beta: Floats  # [N] bounds on |xi|
    observed_beta: Floats  # [N] the part of beta due to the observed successors
    masses: Floats  # [3, N] bounds on the unseen mass (_unseen_masses)
    top: float  # bound on V^pi everywhere
    Z: Floats  # [N] bounds on the sub-optimality (lemma 9)


@compiled
def bound_suboptimality(order, goal, model, V, Y, policy, all_seen, rival):  # type: ignore[no-untyped-def]
    """Return bounds on V^pi(start) - V*(start), on V^pi(start) and on V^pi everywhere, and the :class:`PolicyChain`.

    ``policy`` [S] is pi and leads to ``goal`` [S]; V <= V* and V^pi <= Y at the states of ``order``. ``all_seen`` says
    that no other states exist. ``rival`` [S] becomes the policy that attains the first bound: together with the chain
    it tells where more tries would lower that bound. All bounds are infinite if the policy is not proper under the
    empirical kernel.
    """
    N, A = len(order), model.support.shape[0] // len(V)
    row_of, pair, end = np.full(len(V), -1), np.full(N, -1), goal[order]
    top = 1.0 + Y[model.start]
    for i in range(N):
        s = order[i]
        row_of[s] = i
        top = max(top, Y[s])
        if not goal[s] and policy[s] != A and not model.terminal[s]:
            pair[i] = s * A + policy[s]
    F = _expected_visits(pair, row_of, end, model, _order_nearest_first(order, Y), MAX_VALUE_RATIO * top)
    # "not <=" and not ">", because it is also true for NaN
    if not F[:, N].max() <= MAX_VALUE_RATIO * top:
        none = np.zeros(N)
        return np.inf, np.inf, np.inf, PolicyChain(row_of, end, pair, F, none, none, np.zeros((3, N)), top, none)
    beta, seen = _estimation_errors(pair, row_of, model, F, top)
    chain = PolicyChain(row_of, end, pair, F, beta, seen, _unseen_masses(pair, model), top, np.zeros(N))
    value, most = _value_bounds(order, chain, model, Y)
    gain = _action_gains(order, chain, model, V, Y, policy)
    gap = _iterate_suboptimality(order, chain, model, gain, 0.0 if all_seen else top - 1.0, V, Y, policy, rival)
    return gap, value, most, chain


@compiled_helper
def _order_nearest_first(order, Y):  # type: ignore[no-untyped-def]
    """Return [N] the indices of ``order`` sorted by Y."""
    # by insertion, because Numba takes a second to compile its own sort
    turn = np.arange(len(order))
    for i in range(len(order)):
        k = i
        while k > 0 and Y[order[turn[k - 1]]] > Y[order[i]]:
            turn[k] = turn[k - 1]
            k -= 1
        turn[k] = i
    return turn


@compiled_helper
def _expected_visits(pair, row_of, end, model, turn, most):  # type: ignore[no-untyped-def]
    """Return F [N, N + 1]: the visits W under the empirical kernel, zero at the goal, and v = W 1 in the last column.

    v is infinite if a state is visited more than ``most`` times.
    """
    # Gauss elimination in the order ``turn`` [N], nearest to the goal first. If states have few neighbours, the matrix
    # is a narrow band then, and zeros are skipped. No pivoting: I - P_hat has no positive entries off the diagonal, so
    # nothing cancels elsewhere. A pivot is 1 over the visits to its state before a later one.
    N, first = len(pair), row_of[model.start]
    rank = np.empty(N, np.int64)
    for i in range(N):
        rank[turn[i]] = i
    M, W = np.eye(N), np.eye(N)  # rows and columns in the order of elimination
    last = np.arange(N)  # last nonzero entry of every row of M
    F = np.zeros((N, N + 1))
    for i in range(N):
        x, at = pair[i], rank[i]
        for k in range(model.support[x] if x >= 0 else 1):
            j = row_of[model.successor[x, k]] if x >= 0 else first
            if not end[j] and not end[i]:
                M[at, rank[j]] -= model.p_split[x, k] if x >= 0 else 1.0
                last[at] = max(last[at], rank[j])
    for k in range(N):
        if M[k, k] * most < 1.0:
            F[0, N] = np.inf
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


@compiled_helper
def _estimation_errors(pair, row_of, model, F, top):  # type: ignore[no-untyped-def]
    """Return the bounds beta [N] on |xi| of lemma 7, and their part b + K beta on the observed successors."""
    N = len(pair)
    sd, span, mean = np.empty(N + 1), np.empty(N + 1), np.empty(N + 1)
    b, unseen, K, beta = np.zeros(N), np.zeros(N), np.zeros((N, N)), np.zeros(N)
    for i in range(N):
        x = pair[i]
        if x < 0:
            continue
        column_moments(x, model, row_of, F, sd, span, mean)
        r, q = model.r[x], model.q[x]
        b[i] = ball_width(r, sd[N], span[N])
        unseen[i] = q * top
        for y in range(N):
            K[i, y] = ball_width(r, sd[y], span[y])
        # The iteration of lemma 7 may start here: sd and span of V^pi are at most top.
        beta[i] = min((ball_width(r, 1.0, 1.0) + q) * top, top)
    for _ in range(MAX_GAP_ITERATIONS):
        new = np.minimum(beta, b + unseen + K @ beta)
        change = np.abs(new - beta).max()
        beta = new
        if change < 1e-6:
            break
    return beta, np.maximum(b + K @ beta, 0.0)


@compiled_helper
def _unseen_masses(pair, model):  # type: ignore[no-untyped-def]
    """Return [3, N]: q of the policy's pairs; q outside the window and 0 inside; 1/visits inside and 0 outside."""
    masses = np.zeros((3, len(pair)))
    for i in range(len(pair)):
        x = pair[i]
        if x >= 0:
            masses[0, i] = model.q[x]
            if model.window_visits[x] > 0.0:
                masses[2, i] = 1.0 / model.window_visits[x]
            else:
                masses[1, i] = model.q[x]
    return masses


@compiled_helper
def _value_bounds(order, chain, model, Y):  # type: ignore[no-untyped-def]
    """Return bounds on V^pi(start) and on V^pi everywhere (corollary of lemma 7)."""
    N, first = len(order), chain.row_of[model.start]
    value, most, none = np.inf, 0.0, np.zeros(N)
    for i in range(N):
        bound = min(chain.F[i, N] + weighted_error(chain.F[i, :N], none, chain, model.window_log), Y[order[i]])
        most = max(most, bound)
        if i == first:
            value = bound
    # In states never seen the policy resets.
    return value, max(most, 1.0 + value)


@compiled_helper
def _action_gains(order, chain, model, V, Y, policy):  # type: ignore[no-untyped-def]
    """Return the gains [N, A + 1] of lemma 8: how much better than the policy each action may be, the reset last."""
    row_of, F = chain.row_of, chain.F
    N, A, first = len(order), model.support.shape[0] // len(V), row_of[model.start]
    v = F[:, N]
    sd, span, mean = np.empty(N + 1), np.empty(N + 1), np.empty(N + 1)
    gain = np.zeros((N, A + 1))
    for i in range(N):
        s = order[i]
        if chain.is_goal[i]:
            continue
        if policy[s] != A:
            off = weighted_error(F[first, :N], F[i, :N], chain, model.window_log)
            gain[i, A] = min(v[i] - v[first] + off, Y[s] - V[model.start]) - 1.0
        for a in range(0 if model.terminal[s] else A):
            x = s * A + a
            if policy[s] == a:
                continue
            # Lemma 8 has this bound for pairs never tried, too.
            gain[i, a] = Y[s] - 1.0
            if model.support[x] == 0:
                continue
            column_moments(x, model, row_of, F, sd, span, mean)
            off = weighted_error(mean[:N], F[i, :N], chain, model.window_log)
            off += advantage_noise(model.r[x], model.q[x], chain.top, chain.beta, sd, span, mean)
            gain[i, a] = min(gain[i, a], v[i] - mean[N] - 1.0 + off)
    return gain


@compiled_helper
def _iterate_suboptimality(order, chain, model, gain, elsewhere, V, Y, policy, rival):  # type: ignore[no-untyped-def]
    """Return Z(start) of lemma 9, iterated from Y - V downwards; write Z into the chain and its argmax into ``rival``.

    ``elsewhere`` bounds the sub-optimality in states never seen.
    """
    row_of, end, Z = chain.row_of, chain.is_goal, chain.Z
    N, A, first = len(order), model.support.shape[0] // len(V), row_of[model.start]
    for i in range(N):
        Z[i] = 0.0 if end[i] else max(Y[order[i]] - V[order[i]], 0.0)
    # The ceiling falls with Z, so it is taken anew in every sweep.
    for sweep in range(MAX_GAP_ITERATIONS):
        ceiling, change = max(elsewhere, Z.max()), 0.0
        for step in range(N):
            i = step if sweep % 2 == 0 else N - 1 - step
            s = order[i]
            if end[i]:
                continue
            best, action = gain[i, A] + Z[first], A
            for a in range(0 if model.terminal[s] else A):
                x = s * A + a
                up = 0.0
                if model.support[x] > 0:
                    m, variance, most = 0.0, 0.0, 0.0
                    for k in range(model.support[x]):
                        z = Z[row_of[model.successor[x, k]]]
                        m += model.p_split[x, k] * z
                        most = max(most, z)
                    # Not the argmax for any variance: this saves most of the second pass.
                    if policy[s] != a and gain[i, a] + (1.0 - model.q[x]) * most <= best:
                        continue
                    for k in range(model.support[x]):
                        variance += model.p_split[x, k] * (Z[row_of[model.successor[x, k]]] - m) ** 2
                    # Other actions pay nothing for their unseen mass here: lemma 9 only uses V* >= 0 there.
                    up = closed_form_up(m, variance, most, model.r[x], model.q[x], ceiling if policy[s] == a else 0.0)
                if gain[i, a] + up > best:
                    best, action = gain[i, a] + up, a
            rival[s] = action
            best = max(best, 0.0)
            if best < Z[i]:
                change = max(change, Z[i] - best)
                Z[i] = best
        if change < 1e-4:
            break
    return Z[first]


@compiled_helper(**VECTOR_MATH_OPTIONS)
def column_moments(x, model, row_of, F, sd, span, mean):  # type: ignore[no-untyped-def]
    """Standard deviation, range and mean of every column of F [N, m] over the observed successors of the pair x."""
    # Values are taken relative to the first successor: the variance of large, nearly equal numbers would cancel.
    first = np.uintp(row_of[model.successor[x, 0]])
    low, high = np.zeros(F.shape[1]), np.zeros(F.shape[1])
    mean[:], sd[:] = 0.0, 0.0
    for k in range(1, model.support[x]):
        i, w = np.uintp(row_of[model.successor[x, k]]), model.p_split[x, k]
        for y in range(F.shape[1]):
            d = F[i, y] - F[first, y]
            mean[y] += w * d
            sd[y] += w * d * d
            low[y], high[y] = min(low[y], d), max(high[y], d)
    for y in range(F.shape[1]):
        sd[y] = math.sqrt(max(sd[y] - mean[y] * mean[y], 0.0))
        mean[y] += F[first, y]
        span[y] = high[y] - low[y]


@compiled_helper(**FAST_SUM_OPTIONS)
def weighted_error(one, other, chain, window_log):  # type: ignore[no-untyped-def]
    """Return a bound on sum_y weights(y) |xi(y)| with weights = |one - other|, both [N].

    Observed successors add sum_y weights(y) seen(y). The others add top sum_y weights(y) q_y, and the pairs in the
    window share their unseen mass (lemma 3b).
    """
    seen, each, alone, shared = 0.0, 0.0, 0.0, 0.0
    for y in range(len(one)):
        weight = abs(one[y] - other[y])
        seen += weight * chain.observed_beta[y]
        each += weight * chain.masses[0, y]
        alone += weight * chain.masses[1, y]
        shared = max(shared, weight * chain.masses[2, y])
    return seen + chain.top * min(each, alone + shared * window_log)


@compiled_helper(**FAST_SUM_OPTIONS)
def advantage_noise(r, q, top, beta, sd, span, mean):  # type: ignore[no-untyped-def]
    """Return the error of the advantage in lemma 8 that is due to this pair, from moments [N + 1], the value last."""
    N = len(beta)
    spread, reach, size = sd[N], span[N], mean[N]
    for y in range(N):
        spread += sd[y] * beta[y]
        reach += span[y] * beta[y]
        size += mean[y] * beta[y]
    return ball_width(r, spread, reach) + q * min(size, top)
