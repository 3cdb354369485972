"""Backward recursion over k steps: bounds on the largest probability of reaching a goal, for many goals at once.

With t steps left, for a goal g and states that are neither in g nor to be avoided (docs/theory-more.md, lemma P2):

    U_0 = W_0 = 1 on g and 0 elsewhere
    U_t(s) = max_a Up(U_{t-1}),    Up  = (1-q) min{ max f, m + sqrt(2 r Var) + r (max f - m) } + q
    W_t(s) = max_a Low(W_{t-1}),   Low = (1-q) max{ min f, m - sqrt(2 r Var) - r (m - min f) }

U and W are 1 on g at every stage, and 0 in states to avoid and in terminal states outside g. A pair never tried has
Up = 1 and Low = 0. For sets of kernels given by intervals, Up and Low are the extreme means over the set.

Goals are innermost, so every inner loop is a vector operation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba.extending import overload

from adagoal.core.compiled_code import compiled
from adagoal.core.operators import VECTOR_MATH_OPTIONS, closed_form_low_in_ball, closed_form_up
from adagoal.core.types import Bools, Longs
from adagoal.planning.robust_sweeps import extreme_mean


class HorizonGoals(NamedTuple):
    """Goals that are planned together."""

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
