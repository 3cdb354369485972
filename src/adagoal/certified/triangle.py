"""The triangle inequality: bounds by way of a neighbouring goal (docs/theory-sharper.md, lemma 13).

An agent that reaches g can continue to h, and the other way round:

    V*_g(s) >= V*_h(s) - V*_h(g)      so   V_g <- max{ V_g, V_h - Y_h(g) }      is a lower bound, and
    V*_g(s) <= V*_h(s) + V*_g(h)      so   Y_g <- min{ Y_g, Y_h + Y_g(h) }      is an upper bound,

the latter for the policy of h where it is smaller, and for the policy of g elsewhere. A sweep propagates information
one transition at a time; this copies a neighbouring goal's whole bound in O(S). With 10,000 states it saves most of the
sweeps.
"""

from __future__ import annotations

import numpy as np

from adagoal.core.compiled_code import compiled


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
