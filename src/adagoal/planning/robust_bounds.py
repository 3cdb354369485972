"""Bounds from sets of distributions, for many goals at once: on expected steps, and on probabilities in k steps.

**Steps** (interval MDPs, L1 balls). The set of a pair x has a centre p_hat on its observed successors and contains
every p' with

    low <= p' <= high on these,    p'(all others) <= q,    half the L1 distance of p' and p_hat <= moved.

With ``moved = 1`` this is an interval MDP; with ``low = 0``, ``high = q = 1`` it is an L1 ball. The extreme values of
p' f over the set come from moving mass from successors of small f to successors of large f (or the other way round)
until the constraints forbid it: an exchange argument shows that no other p' does better. Successors never observed have
the best or worst possible value: 0 for lower bounds, ``top`` for upper ones. Value iteration computes

    T_low V(s) = min{ cap, 1 + V(start), min_a 1 + min_p' p' V },    V <- max(V, T_low V)
    T_up  Y(s) = min{ 1 + Y(start),      min_a 1 + max_p' p' Y },    Y <- min(Y, T_up Y)

Both are 0 at the goal. If the true kernel lies in the sets, every iterate is a bound (docs/theory.md, lemmas 5, 6).

**Probabilities** of reaching a goal g within k steps, by backward recursion. With t steps left, in states that are
neither in g nor to be avoided (docs/theory-more.md, lemma P2):

    U_0 = W_0 = 1 on g and 0 elsewhere
    U_t(s) = max_a Up(U_{t-1}),    Up  = (1-q) min{ max f, m + sqrt(2 r Var) + r (max f - m) } + q
    W_t(s) = max_a Low(W_{t-1}),   Low = (1-q) max{ min f, m - sqrt(2 r Var) - r (m - min f) }

Here m and Var are the mean and the variance of f, r is the radius of a ball, and q bounds the unseen mass. For the sets
above instead of balls, Up and Low are the extreme means. A pair never tried has Up = 1 and Low = 0. U and W are 1 on g
at every stage, and 0 in states to avoid and in terminal states outside g. Goals are innermost, so every inner loop is a
vector operation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba.extending import overload

from adagoal.core.array_types import Bools, Longs
from adagoal.core.compiled_code import compiled, compiled_helper
from adagoal.core.operators import VECTOR_MATH_OPTIONS, closed_form_low_in_ball, closed_form_up
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


class HorizonGoals(NamedTuple):
    """Goals whose probabilities are bounded together."""

    column: Longs  # [S, W] the columns 0..B-1 whose goals contain s, -1 in unused entries
    order: Longs  # [N] the states that were seen
    dead: Bools  # [S] states in which an episode is lost: terminal, or to be avoided
    avoided: Bools  # [S] states that do not even count as reached
    absent: Bools  # [X] pairs that do not exist
    enough: float  # U - W below which exploration has nothing to gain


def pair_bounds(x, model, up, low, out):  # type: ignore[no-untyped-def]
    """Write Up of ``up`` [S, B] and Low of ``low`` [S, B] for the pair x into out [4 + 4, B], rows 0 and 1."""
    raise NotImplementedError  # Numba replaces it by one of the two overloads


@overload(pair_bounds, jit_options=VECTOR_MATH_OPTIONS)  # type: ignore[arg-type]
def _choose_pair_bounds(x, model, up, low, out):  # type: ignore[no-untyped-def]
    # Chosen while compiling, by the kind of model: an EmpiricalModel has balls, a RobustModel intervals.
    return _ball_bounds if "p_split" in model.fields else _interval_bounds


def _ball_bounds(x, model, up, low, out):  # type: ignore[no-untyped-def]
    B, r, q, o = up.shape[1], model.r[x], model.q[x], model.support[x]
    # Rows: 0, 1 the results; 2, 3 means; 4, 5 variances; 6 the largest of ``up``; 7 the smallest of ``low``.
    for j in range(B):
        out[2, j] = out[3, j] = out[4, j] = out[5, j] = out[6, j] = 0.0
        out[7, j] = 1.0
    for k in range(o):
        s, p = model.successor[x, k], model.p_split[x, k]
        for j in range(B):
            out[2, j] += p * up[s, j]
            out[3, j] += p * low[s, j]
            out[6, j] = max(out[6, j], up[s, j])
            out[7, j] = min(out[7, j], low[s, j])
    # Two passes, because the one-pass variance cancels.
    for k in range(o):
        s, p = model.successor[x, k], model.p_split[x, k]
        for j in range(B):
            out[4, j] += p * (up[s, j] - out[2, j]) ** 2
            out[5, j] += p * (low[s, j] - out[3, j]) ** 2
    for j in range(B):
        out[0, j] = closed_form_up(out[2, j], out[4, j], out[6, j], r, q, 1.0)
        out[1, j] = closed_form_low_in_ball(out[3, j], out[5, j], out[7, j], r, q)


def _interval_bounds(x, model, up, low, out):  # type: ignore[no-untyped-def]
    value, order = np.empty(model.support[x] + 1), np.empty(model.support[x] + 1, np.int64)
    for j in range(up.shape[1]):
        out[0, j] = extreme_mean(x, j, model, up, 1.0, 1.0, value, order)
        out[1, j] = extreme_mean(x, j, model, low, 0.0, -1.0, value, order)


@compiled(error_model="numpy")
def bound_probabilities(model, goals, explore, proven):  # type: ignore[no-untyped-def]
    """Fill the policies ``explore`` (of U) and ``proven`` (of W), each [k, S, B]; return U_k and W_k at the start [B].

    The reset, action A, stands for giving up: in lost states, and for ``explore`` where U - W is at most ``enough``.
    """
    horizon, S, B = explore.shape
    A = model.support.shape[0] // S
    values = np.zeros((2, 2, S, B))  # of this stage and of the next: U, W
    best, out = np.empty((2, B)), np.empty((8, B))
    choice = np.empty((2, B), np.int16)
    for stage in range(horizon, -1, -1):
        after, now = values[(stage + 1) % 2], values[stage % 2]
        for s in goals.order:
            best[:], choice[:] = 0.0, A
            if stage < horizon and not goals.dead[s]:
                for a in range(A):
                    x = s * A + a
                    if goals.absent[x]:
                        continue
                    if model.support[x] == 0:
                        out[0], out[1] = 1.0, 0.0
                    else:
                        pair_bounds(x, model, after[0], after[1], out)  # type: ignore[no-untyped-call]
                    for j in range(B):
                        # Where nothing is proved, the policy follows the optimistic one.
                        if out[0, j] > best[0, j]:
                            best[0, j], choice[0, j] = out[0, j], a
                            if best[1, j] == 0.0:
                                choice[1, j] = a
                        if out[1, j] > best[1, j]:
                            best[1, j], choice[1, j] = out[1, j], a
            now[0, s], now[1, s] = best[0], best[1]
            if not goals.avoided[s]:
                for k in range(goals.column.shape[1]):
                    if goals.column[s, k] >= 0:
                        now[0, s, goals.column[s, k]] = now[1, s, goals.column[s, k]] = 1.0
            if stage < horizon:
                for j in range(B):
                    proven[stage, s, j] = choice[1, j]
                    settled = best[0, j] - best[1, j] <= goals.enough and not (stage == 0 and s == model.start)
                    explore[stage, s, j] = A if settled else choice[0, j]
    return values[0, 0, model.start].copy(), values[0, 1, model.start].copy()
