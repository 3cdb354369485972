"""Robust value iteration: bounds for all goals if every pair has a set of distributions (interval MDPs, L1 balls).

The set of a pair x has a centre p_hat on its observed successors and contains every p' with

    low <= p' <= high on these,    p'(all others) <= q,    half the L1 distance of p' and p_hat <= moved.

With ``moved = 1`` this is an interval MDP; with ``low = 0``, ``high = q = 1`` it is an L1 ball. The extreme values of
p' f over the set come from moving mass from successors of small f to successors of large f (or the other way round)
until the constraints forbid it: an exchange argument shows that no other p' does better. Successors never observed have
the best or worst possible value: 0 for lower bounds, ``top`` for upper ones.

    T_low V(s) = min{ cap, 1 + V(start), min_a 1 + min_p' p' V },    V <- max(V, T_low V)
    T_up  Y(s) = min{ 1 + Y(start),      min_a 1 + max_p' p' Y },    Y <- min(Y, T_up Y)

Both are 0 at the goal. If the true kernel lies in the sets, every iterate is a bound (docs/theory.md, lemmas 5, 6).
"""

from __future__ import annotations

import numpy as np

from adagoal.core.compiled_code import compiled, compiled_helper
from adagoal.planning.model_arrays import goal_holds_state


@compiled_helper
def extreme_mean(x, b, model, F, outside, sign, value, order):  # type: ignore[no-untyped-def]
    """Return the largest (``sign`` = 1) or smallest (-1) p' F[:, b] over the set of x.

    ``outside`` is F at successors never observed. ``value`` and ``order`` [K + 1] are scratch arrays.
    """
    # Insertion sort by value: rows are short, and index o stands for all successors never observed. The sign turns a
    # smallest mean into a largest one, so one loop finds both.
    o = model.support[x]
    total = 0.0
    for k in range(o + 1):
        value[k] = sign * (F[model.successor[x, k], b] if k < o else outside)
        if k < o:
            total += model.p[x, k] * value[k]
        rank = k
        while rank > 0 and value[order[rank - 1]] > value[k]:
            order[rank] = order[rank - 1]
            rank -= 1
        order[rank] = k
    # Mass moves from the smallest values to the largest, until no more may move or both ends meet.
    giver, taker, left = 0, o, model.moved[x]
    gives, takes = _movable_mass(x, order[giver], model, False), _movable_mass(x, order[taker], model, True)
    while giver < taker and left > 0.0:
        mass = min(gives, takes, left)
        total += mass * (value[order[taker]] - value[order[giver]])
        left, gives, takes = left - mass, gives - mass, takes - mass
        if gives <= 0.0:
            giver += 1
            gives = _movable_mass(x, order[giver], model, False)
        if takes <= 0.0:
            taker -= 1
            takes = _movable_mass(x, order[taker], model, True)
    return sign * total


@compiled_helper(inline="always")
def _movable_mass(x, k, model, up):  # type: ignore[no-untyped-def]
    """Return how far the k-th probability may rise (or fall); k = support stands for successors never observed."""
    if k == model.support[x]:
        return model.q[x] if up else 0.0
    return model.high[x, k] - model.p[x, k] if up else model.p[x, k] - model.low[x, k]


@compiled_helper
def robust_lower_sweep(order, model, block, V, policy):  # type: ignore[no-untyped-def]
    """V <- max(V, T_low V) at the states of ``order``, policy <- the greedy actions. Return the largest rise."""
    A = model.support.shape[0] // V.shape[0]
    value, ranking = np.empty(model.p.shape[1] + 1), np.empty(model.p.shape[1] + 1, np.int64)
    rise = 0.0
    for s in order:
        for b in range(V.shape[1]):
            best, action = min(block.cap, 1.0 + V[model.start, b]), A
            for a in range(0 if model.terminal[s] else A):
                x = s * A + a
                # A pair without data may lead to the goal.
                low = extreme_mean(x, b, model, V, 0.0, -1.0, value, ranking) if model.support[x] > 0 else 0.0
                if 1.0 + low < best:
                    best, action = 1.0 + low, a
            policy[s, b] = action
            if best > V[s, b] and not goal_holds_state(block.column, s, b):
                rise = max(rise, best - V[s, b])
                V[s, b] = best
    return rise


@compiled_helper
def robust_upper_sweep(order, model, block, Y, policy):  # type: ignore[no-untyped-def]
    """Y <- min(Y, T_up Y) at the states of ``order``; if Y falls, the policy takes the action. Return the largest fall.

    States outside ``order`` (never seen) stand at the cap, with the reset as their action.
    """
    A = model.support.shape[0] // Y.shape[0]
    value, ranking = np.empty(model.p.shape[1] + 1), np.empty(model.p.shape[1] + 1, np.int64)
    fall = 0.0
    for b in range(Y.shape[1]):
        top = min(block.cap, 1.0 + Y[model.start, b])
        # As in lemma 6: no action is tried before every seen state is at most top.
        for s in order:
            if Y[s, b] > top:
                Y[s, b], policy[s, b] = top, A
        for s in order:
            if model.terminal[s] or goal_holds_state(block.column, s, b):
                continue
            for a in range(A):
                x = s * A + a
                if model.support[x] == 0:
                    continue
                up = 1.0 + extreme_mean(x, b, model, Y, top, 1.0, value, ranking)
                if up < Y[s, b]:
                    fall = max(fall, Y[s, b] - up)
                    Y[s, b], policy[s, b] = up, a
    return fall


@compiled
def improve_robust_bounds(model, block, values, policy, lower):  # type: ignore[no-untyped-def]
    """Raise lower bounds [S, B] with their greedy policy [S, B], or lower upper bounds with the policy they hold for.

    Sweeps in alternating order change both in place, until one changes less than the tolerance.
    """
    backwards = block.order[::-1].copy()
    for i in range(block.sweeps):
        order = block.order if i % 2 == 0 else backwards
        # A flag, and not the sweep as an argument: Numba does not cache functions of functions.
        if lower:
            change = robust_lower_sweep(order, model, block, values, policy)
        else:
            change = robust_upper_sweep(order, model, block, values, policy)
        if change < block.tolerance:
            break
    return values, policy
