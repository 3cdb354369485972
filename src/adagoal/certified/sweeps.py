"""Improve the bounds of blocks of goals: by sweeps (lemmas 5 and 6), and by way of neighbouring goals (lemma 13).

*Sweeps* (docs/theory.md):

    T_low V(s) = min{ C, 1 + V(s0), min_a 1 + Low_sa(V) },    V <- max(V, T_low V)
    T_up  Y(s) = min{ 1 + Y(s0),    min_a 1 + Up_sa(Y)  },    Y <- min(Y, T_up Y)

Both are 0 at the goal. Low and Up are those of :mod:`adagoal.core.operators`. Every iterate is a valid bound, so sweeps
run in place, in any order, and may stop at any time.

Values are [S, B] with the B goals of a block innermost: one pair is backed up for all of them with contiguous loads.
Most sweeps use the closed forms, for sixteen goals at a time (:mod:`adagoal.certified.simd_lanes`); a block is filled
up to a multiple of sixteen columns. Sweeps with exact duals visit one goal after the other.

No two blocks share a goal, and a lower bound never reads an upper bound. So the result does not depend on the number of
threads, nor on their order.

*Neighbouring goals* (docs/theory-sharper.md). An agent that reaches g can continue to h, and the other way round:

    V*_g(s) >= V*_h(s) - V*_h(g)      so   V_g <- max{ V_g, V_h - Y_h(g) }      is a lower bound, and
    V*_g(s) <= V*_h(s) + V*_g(h)      so   Y_g <- min{ Y_g, Y_h + Y_g(h) }      is an upper bound,

the latter for the policy of h where it is smaller, and for the policy of g elsewhere. A sweep propagates information
one transition at a time; this copies a neighbouring goal's whole bound in O(S). With 10,000 states it saves most of the
sweeps.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from adagoal.certified.simd_lanes import (
    N_LANES,
    broadcast_lanes,
    largest_lane,
    load_lanes,
    replace_lane,
    select_where_less,
    store_lanes,
)
from adagoal.core.array_types import Actions, Floats, Longs
from adagoal.core.compiled_code import compiled, compiled_helper
from adagoal.core.operators import (
    VECTOR_MATH_OPTIONS,
    closed_form_low,
    closed_form_low_in_ball,
    closed_form_up,
    solve_low_dual,
    solve_low_dual_in_ball,
    solve_up_dual,
)
from adagoal.planning.model_arrays import EmpiricalModel, GoalBlock, goal_holds_state

# (model, block, values [S, B], policy [S, B]) -> both improved; it may overwrite its arguments
BoundSweep = Callable[[EmpiricalModel, GoalBlock, Floats, Actions], tuple[Floats, Actions]]


def sweep_block(
    sweep: BoundSweep, model: EmpiricalModel, given: GoalBlock, block: Longs, values: Floats, policy: Actions
) -> None:
    """Improve the columns ``block`` of two tables [columns, S] by sweeps of one bound."""
    value_part, policy_part = sweep(model, given, *gather_block(values, policy, given.order, block))
    scatter_block(value_part, policy_part, given.order, block, values, policy)


@compiled
def gather_block(values, policy, order, block):  # type: ignore[no-untyped-def]
    """Return the columns of a block of two tables [columns, S] as two parts [S, B], zero outside ``order``."""
    # The zeros are never written back. Sweeps on whole arrays read them, so memory must not be left uninitialised.
    shape = values.shape[1], len(block)
    value_part, policy_part = np.zeros(shape, values.dtype), np.zeros(shape, policy.dtype)
    for s in order:
        for b in range(len(block)):
            value_part[s, b], policy_part[s, b] = values[block[b], s], policy[block[b], s]
    return value_part, policy_part


@compiled
def scatter_block(value_part, policy_part, order, block, values, policy):  # type: ignore[no-untyped-def]
    """Write the parts back at the states of ``order``."""
    for b in range(len(block)):
        for s in order:
            values[block[b], s], policy[block[b], s] = value_part[s, b], policy_part[s, b]


def improve_lower_bounds(model, block, V, policy):  # type: ignore[no-untyped-def]
    """Raise V [S, B], with its greedy policy [S, B], by sweeps in alternating order (lemma 5).

    Both are changed in place. Sweeps end when they raise V by less than the tolerance.
    """
    return _repeat_sweeps(model, block, V, policy, True)


def improve_upper_bounds(model, block, Y, policy):  # type: ignore[no-untyped-def]
    """Lower Y [S, B], with the policy [S, B] that it holds for, in the same way (lemma 6)."""
    return _repeat_sweeps(model, block, Y, policy, False)


@compiled
def _repeat_sweeps(model, block, values, policy, lower):  # type: ignore[no-untyped-def]
    # Columns that fill up a block stand at the cap or at 0, so they never move and never prolong the sweeps.
    backwards, multiple = block.order[::-1].copy(), 1 if block.exact else N_LANES
    wide, actions = _pad_columns(values, multiple, block.cap if lower else 0.0), _pad_columns(policy, multiple, 0)
    for i in range(block.sweeps):
        order = block.order if i % 2 == 0 else backwards
        # A flag, and not the sweep as an argument: Numba does not cache functions of functions.
        if lower:
            change = lower_bound_sweep(order, model, block, wide, actions)
        else:
            change = upper_bound_sweep(order, model, block, wide, actions)
        if change < block.tolerance:
            break
    _copy_columns_back(wide, values)
    _copy_columns_back(actions, policy)
    return values, policy


@compiled_helper
def _pad_columns(table, multiple, value):  # type: ignore[no-untyped-def]
    """Return the table [S, B], or a copy filled up to a multiple of columns with this value."""
    B = table.shape[1]
    if B % multiple == 0:
        return table
    wide = np.empty((table.shape[0], B + multiple - B % multiple), table.dtype)
    for s in range(wide.shape[0]):
        for b in range(wide.shape[1]):
            wide[s, b] = table[s, b] if b < B else value
    return wide


@compiled_helper
def _copy_columns_back(wide, table):  # type: ignore[no-untyped-def]
    # a loop, because slice assignments take Numba seconds to compile
    if wide.shape[1] != table.shape[1]:
        for s in range(table.shape[0]):
            for b in range(table.shape[1]):
                table[s, b] = wide[s, b]


@compiled_helper
def lower_bound_sweep(order, model, block, V, policy):  # type: ignore[no-untyped-def]
    """V <- max(V, T_low V) at the states of ``order``, policy <- the greedy actions, A for the reset.

    Return the largest rise.
    """
    if not block.exact:
        return closed_form_lower_sweep(order, model, block, V, policy)
    B, cap = V.shape[1], block.cap
    A = model.support.shape[0] // V.shape[0]
    mean, variance, Q = np.empty((A, B)), np.empty((A, B)), np.empty((A, B))
    least, most = np.empty((A, B)), np.empty((A, B))
    final = np.empty((A, B), np.bool_)
    rise = 0.0
    for s in order:
        for a in range(0 if model.terminal[s] else A):
            x = s * A + a
            # A pair never tried may lead to the goal: Low is 0.
            if model.support[x] == 0:
                for b in range(B):
                    Q[a, b], final[a, b] = 1.0, True
                continue
            if model.uses_ball[x]:
                _successor_moments(x, s, model, model.p_split, V, mean[a], variance[a], least[a], most[a])
                for b in range(B):
                    value = closed_form_low_in_ball(mean[a, b], variance[a, b], least[a, b], model.r[x], model.q[x])
                    Q[a, b], final[a, b] = 1.0 + value, False
                continue
            _successor_moments(x, s, model, model.p, V, mean[a], variance[a], least[a], most[a])
            r = model.r_low[x]
            sure = 1.0 - model.q[x] if model.support[x] == 1 else 0.0
            for b in range(B):
                Q[a, b] = 1.0 + closed_form_low(mean[a, b], variance[a, b], r, cap, sure)
                final[a, b] = sure > 0.0
        for b in range(B):
            best, action = min(cap, 1.0 + V[model.start, b]), A
            # The closed form lies below the dual. So only the action of smallest closed form is solved, again and again
            # until the smallest value is a solved one: most duals are never needed.
            while not model.terminal[s]:
                candidate = 0
                for a in range(1, A):
                    if Q[a, b] < Q[candidate, b]:
                        candidate = a
                if Q[candidate, b] >= best:
                    break
                if final[candidate, b]:
                    best, action = Q[candidate, b], candidate
                    break
                x, var, m = s * A + candidate, variance[candidate, b], mean[candidate, b]
                if model.uses_ball[x]:
                    low = solve_low_dual_in_ball(x, b, model, V, var, m, least[candidate, b])
                else:
                    low = solve_low_dual(x, b, model, cap, V, var, m)
                Q[candidate, b] = max(Q[candidate, b], 1.0 + low)
                final[candidate, b] = True
            policy[s, b] = action
            if best > V[s, b] and not goal_holds_state(block.column, s, b):
                rise = max(rise, best - V[s, b])
                V[s, b] = best
    return rise


@compiled_helper
def upper_bound_sweep(order, model, block, Y, policy):  # type: ignore[no-untyped-def]
    """Y <- min(Y, T_up Y) at the states of ``order``; if Y falls, the policy takes the action. Return the largest fall.

    States outside ``order`` (never seen) stand at the cap, with the reset as their action.
    """
    if not block.exact:
        return closed_form_upper_sweep(order, model, block, Y, policy)
    B = Y.shape[1]
    A = model.support.shape[0] // Y.shape[0]
    # Initialised, because it is read for pairs never tried, too.
    mean = np.zeros((A, B))
    variance, Q = np.empty((A, B)), np.empty((A, B))
    least, most = np.empty((A, B)), np.empty((A, B))
    top = np.empty(B)
    fall = 0.0
    for b in range(B):
        top[b] = min(block.cap, 1.0 + Y[model.start, b])
    # Part 1 of a round of lemma 6: before any action is tried, every seen state is at most top.
    for s in order:
        for b in range(B):
            if Y[s, b] > top[b]:
                Y[s, b], policy[s, b] = top[b], A
    for s in order:
        if model.terminal[s]:
            continue
        for a in range(A):
            x = s * A + a
            if model.support[x] == 0:
                for b in range(B):
                    Q[a, b] = np.inf
                continue
            _successor_moments(x, s, model, model.p_split, Y, mean[a], variance[a], least[a], most[a])
            r, q = model.r[x], model.q[x]
            for b in range(B):
                Q[a, b] = 1.0 + closed_form_up(mean[a, b], variance[a, b], most[a, b], r, q, top[b])
        for b in range(B):
            if goal_holds_state(block.column, s, b):
                continue
            action = 0
            for a in range(1, A):
                if Q[a, b] < Q[action, b]:
                    action = a
            value = Q[action, b]
            x = s * A + action
            # No dual lies below the empirical mean, so some need not be solved.
            floor = 1.0 + (1.0 - model.q[x]) * mean[action, b] + model.q[x] * top[b]
            if value < np.inf and floor < Y[s, b]:
                up = solve_up_dual(x, b, model, Y, variance[action, b], mean[action, b], most[action, b], top[b])
                value = min(value, 1.0 + up)
            if value < Y[s, b]:
                fall = max(fall, Y[s, b] - value)
                Y[s, b], policy[s, b] = value, action
    return fall


@compiled_helper(inline="always")
def _successor_moments(x, s, model, p, F, mean, variance, least, most):  # type: ignore[no-untyped-def]
    """Mean, variance, smallest and largest value [B] of F [S, B] under p[x], centred at F[s] against cancellation."""
    B = F.shape[1]
    for b in range(B):
        mean[b], variance[b], least[b], most[b] = 0.0, 0.0, np.inf, 0.0
    for k in range(model.support[x]):
        weight = p[x, k]
        row = F[model.successor[x, k]]
        for b in range(B):
            d = row[b] - F[s, b]
            mean[b] += weight * d
            variance[b] += weight * d * d
            least[b], most[b] = min(least[b], row[b]), max(most[b], row[b])
    for b in range(B):
        variance[b] = max(variance[b] - mean[b] * mean[b], 0.0)
        mean[b] += F[s, b]


@compiled_helper(**VECTOR_MATH_OPTIONS)
def closed_form_lower_sweep(order, model, block, V, policy):  # type: ignore[no-untyped-def]
    """The same as :func:`lower_bound_sweep` with closed forms, for blocks of a multiple of N_LANES goals."""
    # Unsigned indices: Numba would test signed ones for counting from the end.
    B, cap, column, step = np.uintp(V.shape[1]), block.cap, block.column, np.uintp(N_LANES)
    A = np.uintp(model.support.shape[0] // V.shape[0])
    rise = broadcast_lanes(0.0)
    for state in order:
        s = np.uintp(state)
        for first in range(np.uintp(0), B, step):
            own = load_lanes(V, s, first)
            best, action = min(cap, 1.0 + load_lanes(V, model.start, first)), broadcast_lanes(A)
            for a in range(np.uintp(0) if model.terminal[s] else A):
                value = _lower_backup(s * A + a, first, model, cap, V)
                action = select_where_less(value, best, a, action)
                best = min(value, best)
            # Unused entries are -1, which is a huge unsigned number and no lane.
            for k in range(column.shape[1]):
                lane = np.uintp(column[s, k]) - first
                if lane < step:
                    best = replace_lane(best, lane, 0.0)
            store_lanes(policy, s, first, action)
            rise = max(rise, best - own)
            store_lanes(V, s, first, max(own, best))
    return largest_lane(rise)


@compiled_helper(**VECTOR_MATH_OPTIONS, forceinline=True)
def _lower_backup(x, first, model, cap, V):  # type: ignore[no-untyped-def]
    """Return 1 + Low_x(V) for the goals from ``first`` on."""
    support = model.support[x]
    if support == 0:
        return broadcast_lanes(1.0)
    if support == 1:
        only, sure = load_lanes(V, model.successor[x, 0], first), 1.0 - model.q[x]
        return 1.0 + closed_form_low(only, broadcast_lanes(0.0), model.r_low[x], cap, sure)
    if model.uses_ball[x]:
        mean, variance, least, _ = _lane_moments(x, first, model, model.p_split, V)
        return 1.0 + closed_form_low_in_ball(mean, variance, least, model.r[x], model.q[x])
    mean, variance, _, _ = _lane_moments(x, first, model, model.p, V)
    return 1.0 + closed_form_low(mean, variance, model.r_low[x], cap, 0.0)


@compiled_helper(**VECTOR_MATH_OPTIONS)
def closed_form_upper_sweep(order, model, block, Y, policy):  # type: ignore[no-untyped-def]
    """The same as :func:`upper_bound_sweep` with closed forms, for blocks of a multiple of N_LANES goals."""
    B, column, step = np.uintp(Y.shape[1]), block.column, np.uintp(N_LANES)
    A = np.uintp(model.support.shape[0] // Y.shape[0])
    top = np.minimum(block.cap, 1.0 + Y[model.start : model.start + 1])
    fall = broadcast_lanes(0.0)
    # A round of lemma 6 has two parts: no action may be tried before every seen state is at most top.
    for state in order:
        s = np.uintp(state)
        for first in range(np.uintp(0), B, step):
            own, most = load_lanes(Y, s, first), load_lanes(top, 0, first)
            store_lanes(policy, s, first, select_where_less(most, own, A, load_lanes(policy, s, first)))
            store_lanes(Y, s, first, min(own, most))
    for state in order:
        s = np.uintp(state)
        for first in range(np.uintp(0), np.uintp(0) if model.terminal[s] else B, step):
            own, most = load_lanes(Y, s, first), load_lanes(top, 0, first)
            best, action = own, load_lanes(policy, s, first)
            for a in range(A):
                x = s * A + a
                if model.support[x] > 0:
                    mean, variance, _, furthest = _lane_moments(x, first, model, model.p_split, Y)
                    value = 1.0 + closed_form_up(mean, variance, furthest, model.r[x], model.q[x], most)
                    action = select_where_less(value, best, a, action)
                    best = min(value, best)
            for k in range(column.shape[1]):
                lane = np.uintp(column[s, k]) - first
                if lane < step:
                    best = replace_lane(best, lane, Y[s, first + lane])
                    action = replace_lane(action, lane, policy[s, first + lane])
            store_lanes(policy, s, first, action)
            fall = max(fall, own - best)
            store_lanes(Y, s, first, best)
    return largest_lane(fall)


@compiled_helper(**VECTOR_MATH_OPTIONS, forceinline=True)
def _lane_moments(x, first, model, weight, F):  # type: ignore[no-untyped-def]
    """Mean, variance, smallest and largest value of F [S, B] over the successors of a pair with weights [X, K].

    For the goals from ``first`` on, centred at the first successor against cancellation.
    """
    centre = load_lanes(F, model.successor[x, 0], first)
    mean, square, least, most = broadcast_lanes(0.0), broadcast_lanes(0.0), centre, centre
    for k in range(1, model.support[x]):
        value = load_lanes(F, model.successor[x, k], first)
        distance = value - centre
        part = distance * weight[x, k]
        mean, square = mean + part, square + part * distance
        least, most = min(least, value), max(most, value)
    return centre + mean, max(square - mean * mean, 0.0), least, most


@compiled
def improve_by_neighbours(block, goal_state, column, order, model, cap, least, V, Y, best):  # type: ignore[no-untyped-def]
    """Improve the columns of ``block`` by their neighbours if that improves the start by ``least`` or more.

    Goals are states: ``goal_state`` [columns], -1 for column 0, and ``column`` [S] is the column of every goal. V, Y
    and ``best`` [columns, S] are changed at the states of ``order``. Neighbours of g are its observed successors.
    """
    A, start = len(model.support) // V.shape[1], model.start
    # Sums are rounded outwards: adding 1 to the bits of a positive float gives the next larger one.
    values = np.empty(len(order))
    bits = values.view(np.int64)
    for j in block:
        g = goal_state[j]
        if g < 0:
            continue
        below, above, gain, loss = 0, 0, least, least
        for x in range(g * A, (g + 1) * A):
            for k in range(model.support[x]):
                h = model.successor[x, k]
                i = column[h]
                # Lemma 13 needs a goal h with a column of its own, and Y_h(s0) <= C - 1.
                if i == 0 or i == j or Y[i, start] > cap - 1.0:
                    continue
                rise = V[i, start] - Y[i, g] - V[j, start]
                if rise > gain:
                    below, gain = i, rise
                whole = Y[i, start] + Y[j, h]
                if whole < cap - 1.0 and Y[j, start] - whole > loss:
                    above, loss = i, Y[j, start] - whole
        if below > 0:
            back = Y[below, g]
            for i in range(len(order)):
                values[i] = V[below, order[i]] - back
            # Negative values are rounded up by this, but they are below V >= 0 and never taken.
            bits -= 1
            for i in range(len(order)):
                s = order[i]
                if values[i] > V[j, s] and s != g:
                    V[j, s] = values[i]
        if above > 0:
            onward = Y[j, goal_state[above]]
            for i in range(len(order)):
                values[i] = Y[above, order[i]] + onward
            bits += 1
            for i in range(len(order)):
                s = order[i]
                # never true at g, where Y is 0
                if values[i] < Y[j, s]:
                    Y[j, s], best[j, s] = values[i], best[above, s]
