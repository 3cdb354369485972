"""Solvers of stochastic shortest paths with unit costs: value iteration, VISGO (baselines), and Bayesian ensembles.

Every solver is value iteration in place. The reset, action A, leads to s0. Ties go to the lowest action, and to any
action before the reset.
"""

from __future__ import annotations

import math

import numpy as np

from adagoal.core.compiled_code import compiled, compiled_helper
from adagoal.core.types import Actions, Bools, Floats, Longs
from adagoal.planning.model_arrays import TransitionKernel, goal_holds_state


def solve_shortest_paths(
    kernel: TransitionKernel, usable: Bools, targets: Bools, precision: float, cap: float
) -> tuple[Floats, Actions]:
    """Return V [B, S], from below, up to a residual of ``precision``, and its greedy policy [B, S]; targets [B, S].

        V = 0 on the targets,   V(s) = min{ cap, 1 + V(s0), min_a 1 + q(s, a) V }  elsewhere,

    over the *usable* [X] pairs, with q the rows of the kernel. The mass that a row lacks to one goes to the target.
    """
    zero = np.zeros(len(usable))
    V, policy = _iterate_paths(kernel, usable, targets, zero + 1.0, zero, zero, precision, cap, 5000)
    return V, policy


def solve_visgo(
    kernel: TransitionKernel,
    usable: Bools,
    targets: Bools,
    n: Longs,
    iota: Floats,
    root: float,
    flat: float,
    precision: float,
    cap: float,
) -> tuple[Floats, Actions]:
    """VISGO, value iteration with slight goal optimism (Tarbouriech et al. 2021), for LAE and VALAE.

    Return V [B, S] and its greedy policy [B, S] for the usable pairs [X] and the targets [B, S]. With the empirical
    rows p of n [X] samples each, and iota [X],

        Q(s, a) = max{ 0, 1 + n/(n + 1) p V - max{ root sqrt(Var(p, V) iota / n), flat iota / n } },
        V = 0 on the targets,   V(s) = min{ cap, 1 + V(s0), min_a Q(s, a) }  elsewhere.

    The mass that n/(n + 1) removes goes to the goal. If ``flat`` is at least 2 root^2 times the largest V, the operator
    is monotone (lemma C.2 of Cai et al. 2022), so values rise from zero to its fixed point in any order of states.
    """
    tries = np.maximum(n, 1)
    rate = iota / tries
    bonus = tries / (tries + 1.0), root**2 * rate, flat * rate
    V, policy = _iterate_paths(kernel, usable, targets, *bonus, precision, cap, 20_000)
    return V, policy


@compiled
def _iterate_paths(kernel, usable, targets, kept, weight, flat, precision, cap, sweeps):  # type: ignore[no-untyped-def]
    """Return V [B, S] and its greedy policy [B, S] after at most this many sweeps from zero.

    Q(s, a) = max{ 0, 1 + kept p V - max{ sqrt(weight Var(p, V)), flat } }; kept, weight and flat are [X].
    """
    n_sets, n_states = targets.shape
    n_actions = kernel.support.shape[0] // n_states
    values = np.zeros((n_sets, n_states))
    policy = np.full((n_sets, n_states), n_actions, np.int16)
    for b in range(n_sets):
        V = values[b]
        # Values rise from zero, so they are optimistic if the sweeps end early.
        for _ in range(sweeps):
            change = 0.0
            for s in range(n_states):
                if targets[b, s]:
                    continue
                best, chosen = np.inf, n_actions
                for a in range(n_actions):
                    x = s * n_actions + a
                    if not usable[x]:
                        continue
                    mean, square = 0.0, 0.0
                    for k in range(kernel.support[x]):
                        v = V[kernel.successor[x, k]]
                        mean += kernel.p[x, k] * v
                        square += kernel.p[x, k] * v * v
                    # The clamp is for rounding: the variance of equal values may come out negative, and its root NaN.
                    bonus = max(math.sqrt(weight[x] * max(square - mean * mean, 0.0)), flat[x])
                    q = max(0.0, 1.0 + kept[x] * mean - bonus)
                    if q < best:
                        best, chosen = q, a
                # The reset is last and must be strictly better, so ties go to an action.
                if 1.0 + V[kernel.start] < best:
                    best, chosen = 1.0 + V[kernel.start], n_actions
                best = min(best, cap)
                change = max(change, abs(best - V[s]))
                V[s], policy[b, s] = best, chosen
            if change <= precision:
                break
    return values, policy


@compiled
def improve_ensemble_values(model, targets, tolerance, sweeps, V, greedy):  # type: ignore[no-untyped-def]
    """Improve V [M, S + 1, G] and its greedy policies [M, S, G] in each of M kernels, by sweeps in alternating order.

        V_m = min{ C_m, 1 + V_m(s0), min_a 1 + p_m V_m }  off g,   V_m = 0  on g

    The last state is virtual and keeps its value. A member is swept until it changes by less than the tolerance.
    """
    # Members converge at their own pace, and those that are done are left out.
    change = np.full(V.shape[0], np.inf)
    for i in range(sweeps):
        for m in range(V.shape[0]):
            if change[m] >= tolerance:
                change[m] = _sweep_member(model, m, targets, i % 2 == 1, V[m], greedy[m])
        if change.max() < tolerance:
            break
    return V, greedy


@compiled_helper
def _sweep_member(model, m, targets, backwards, V, greedy):  # type: ignore[no-untyped-def]
    """Sweep V [S + 1, G] of member m once, in place. Return the largest change."""
    successor, p, atom = model.successor, model.p[m], model.atom[m]
    n_states, n_goals = model.terminal.shape[0], targets.size
    n_actions = model.support.shape[0] // n_states
    best, chosen, mean = np.zeros((3, n_goals))
    change = 0.0
    for i in range(n_states):
        s = n_states - 1 - i if backwards else i
        best[:] = V[model.start]
        chosen[:] = n_actions
        # Actions come in descending order and ties replace, so the lowest action wins without a branch.
        for a in range(-1 if model.terminal[s] else n_actions - 1, -1, -1):
            x = s * n_actions + a
            mean[:] = p[x, p.shape[1] - 1] * V[atom[x]]
            for k in range(model.support[x]):
                q, t = p[x, k], successor[x, k]
                for j in range(n_goals):
                    mean[j] += q * V[t, j]
            for j in range(n_goals):
                chosen[j] = a if mean[j] <= best[j] else chosen[j]
                best[j] = mean[j] if mean[j] <= best[j] else best[j]
        for j in range(n_goals):
            value = 0.0 if goal_holds_state(targets.column, s, j) else min(1.0 + best[j], model.caps[m])
            change = max(change, abs(value - V[s, j]))
            V[s, j], greedy[s, j] = value, chosen[j]
    return change
