"""The backward recursion of AdaGoal-UCBVI over H stages, for all goals at once (label ``subsect_choices``).

One pass from stage H to stage 1 computes for every goal g, with p = p_hat and left = H - h + 1,

    Q~(s, a) = clip(1 - 3 sqrt(w Var_p V~) - b - c p(V_ - V~) + p V~,  1, left)
    Q_(s, a) = clip(1 + 3 sqrt(w Var_p V~) + b + c p(V_ - V~) + p V_,  1, left)
    U(s, a)  = clip(    6 sqrt(w Var_p V~) + b' + (1 + 3c) p U(., pi),  0, left)

and V~(s) = min_a Q~(s, a) with its argmin pi(s), V_(s) = min_a Q_(s, a). All three are 0 on g, at every stage.
The reset, action A, is known: it has 1 + V~(s0), 1 + V_(s0) and U(s0, pi) of the next stage. It is the only action of a
terminal state. Ties go to the lowest action.

The bonuses b = flat + left * slope and b' = flat_u + 2 left * slope of a pair cover every variant of the paper:

    literal     w = beta* / n,  flat = 14 H^2 beta / n,  flat_u = 36 H^2 beta / n,  slope = 0,  c = 1/H
    simplified  w = 0,          flat = sqrt(1/n),        flat_u = 2 sqrt(1/n),      slope = 1/n,  c = 0

An infinite flat (n = 0) sends Q~ to its lower clip, Q_ and U to their upper one. With c = 0, V_ and the variance are
not computed.

Values are [S, goals of a block] with goals innermost: every inner loop is a vector operation, and a block stays in the
cache for all H stages.
"""

from __future__ import annotations

import numpy as np

from adagoal.core.compiled_code import compiled, compiled_helper


@compiled(error_model="numpy")
def plan_finite_horizon(kernel, bonus, targets, horizon):  # type: ignore[no-untyped-def]
    """Return the policies pi [H, S, G], V~_1(s0) [G] and U_1(s0, pi) [G]."""
    start, n_states = kernel.start, kernel.terminal.shape[0]
    n_actions = kernel.support.shape[0] // n_states
    policy = np.empty((horizon, n_states, targets.size), np.int16)
    distance, error = np.empty(targets.size), np.empty(targets.size)
    # Goals planned together: three values of two stages for all states must fit the cache.
    block_size = 64
    for first in range(0, targets.size, block_size):
        width = min(block_size, targets.size - first)
        values = np.zeros((2, 3, n_states, width))  # V~, V_ and U(., pi), of this stage and of the next
        mean, chosen = np.zeros((4, width)), np.zeros(width)
        for h in range(horizon - 1, -1, -1):
            left = float(horizon - h)
            # Only two stages are in memory, and they take turns.
            after, now = values[(h + 1) % 2], values[h % 2]
            for s in range(n_states):
                best, worst, gap = now[0, s], now[1, s], now[2, s]
                best[:], worst[:], gap[:] = 1.0 + after[0, start], 1.0 + after[1, start], after[2, start]
                chosen[:] = n_actions
                for a in range(-1 if kernel.terminal[s] else n_actions - 1, -1, -1):
                    x = s * n_actions + a
                    _stage_moments(x, kernel, after, bonus.correction > 0, mean)
                    _take_better_action(x, a, bonus, left, mean, best, worst, gap, chosen)
                # Goals are few per state, so they are zeroed afterwards: the loops above have no test for them.
                for k in range(targets.column.shape[1]):
                    j = targets.column[s, k] - first
                    if 0 <= j < width:
                        best[j] = worst[j] = gap[j] = 0.0
                for j in range(width):
                    policy[h, s, first + j] = chosen[j]
        distance[first : first + width] = values[0, 0, start]
        error[first : first + width] = values[0, 2, start]
    return policy, distance, error


@compiled_helper
def _stage_moments(x, kernel, values, pessimistic, out):  # type: ignore[no-untyped-def]
    """Write into out [4, G] the means of V~, V_ and U under p, and the variance of V~."""
    # two passes, because the one-pass variance cancels
    out[:] = 0.0
    for k in range(kernel.support[x]):
        s, q = kernel.successor[x, k], kernel.p[x, k]
        for j in range(out.shape[1]):
            out[0, j] += q * values[0, s, j]
            out[2, j] += q * values[2, s, j]
    if not pessimistic:
        return
    for k in range(kernel.support[x]):
        s, q = kernel.successor[x, k], kernel.p[x, k]
        for j in range(out.shape[1]):
            out[1, j] += q * values[1, s, j]
            out[3, j] += q * (values[0, s, j] - out[0, j]) ** 2


@compiled_helper(error_model="numpy")
def _take_better_action(x, action, bonus, left, mean, best, worst, gap, chosen):  # type: ignore[no-untyped-def]
    """Take the action of the pair x for goals whose Q~ is at most the best so far; mean [4, G], the others [G]."""
    # Actions come in descending order and ties replace, so the lowest action wins. Selections instead of branches
    # keep the loop vectorised.
    weight, correction = bonus.weight[x], bonus.correction
    flat, flat_u = bonus.flat[x] + left * bonus.slope[x], bonus.flat_u[x] + 2.0 * left * bonus.slope[x]
    for j in range(best.shape[0]):
        root = np.sqrt(weight * mean[3, j])
        b = 3.0 * root + flat + correction * (mean[1, j] - mean[0, j])
        q = _clip_value(1.0 - b + mean[0, j], 1.0, left)
        r = _clip_value(1.0 + b + mean[1, j], 1.0, left)
        u = _clip_value(6.0 * root + flat_u + (1.0 + 3.0 * correction) * mean[2, j], 0.0, left)
        worst[j] = r if r < worst[j] else worst[j]
        gap[j] = u if q <= best[j] else gap[j]
        chosen[j] = action if q <= best[j] else chosen[j]
        best[j] = q if q <= best[j] else best[j]


@compiled_helper
def _clip_value(x, low, high):  # type: ignore[no-untyped-def]
    # selections instead of branches, as above
    y = x if x < high else high
    return y if y > low else low
