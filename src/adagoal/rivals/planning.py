"""Unit-cost shortest paths on counts: the planner that UcbExplore, DisCo and GOSPRL share.

A problem has a set K of *known* states, in which every action may be played, and a set of targets. Elsewhere the reset
is the only action (the policies "restricted to K" of Lim and Auer 2012). With the rows q of a model,

    V = 0 on the targets,   V(s) = 1 + min{ V(s0), min_a q(s, a) V }  on K,   V(s) = 1 + V(s0)  elsewhere.

*Optimistic rows* (the operator of DisCo and of GOSPRL): q(s'|x) = max{p_hat(s'|x) - beta(s'|x), 0}; what is missing to
one goes to the target, where V = 0. An untried pair is a sure step to the target. The widths are empirical Bernstein,

    beta(s'|x) = 2 sqrt(p_hat (1 - p_hat) l(n) / n) + 6 l(n) / n,    l(n) = c log(2 S A n / delta),

the form of Fruit et al. (2020), which both papers of Tarbouriech et al. cite: recalled, not checked against their text.
*Empirical rows*: q = p_hat, and untried pairs are not played.

*Constants.* "paper" is c = 1. "scaled=c" multiplies every logarithm of a confidence by c, that is, it asks for the
confidence delta^c. Sample numbers are proportional to these logarithms and squared widths too, so that numbers and
widths stay in the proportion that the proofs need, and only the confidence is given up.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from adagoal.core.counts import Counts
from adagoal.core.errors import InputError
from adagoal.core.types import Actions, Bools, Floats

SWEEPS = 5000
"""Sweeps per plan, at most."""


def scale(constants: str) -> float:
    """c of ``paper`` or ``scaled=c``."""
    if constants == "paper":
        return 1.0
    word, _, number = str(constants).partition("=")
    try:
        c = float(number)
    except ValueError:
        c = math.nan
    if word != "scaled" or not 0 < c < math.inf:
        raise InputError(f"--constants: must be paper or scaled=c with a number c > 0, got {constants!r}")
    return c


def empirical(counts: Counts) -> Floats:
    """[X, W] p_hat in the places of ``counts.successor``."""
    p_hat: Floats = counts.count / np.maximum(counts.n, 1)[:, None]
    return p_hat


def log_term(counts: Counts, c: float, delta: float) -> Floats:
    """[X] l(n) of the module's text."""
    return c * np.log(2.0 * len(counts.n) * np.maximum(counts.n, 1) / delta)


def widths(counts: Counts, c: float, delta: float) -> Floats:
    """[X, W] beta of the module's text, zero where nothing was observed."""
    p_hat = empirical(counts)
    rate = (log_term(counts, c, delta) / np.maximum(counts.n, 1))[:, None]
    beta: Floats = np.where(counts.count > 0, 2.0 * np.sqrt(p_hat * (1.0 - p_hat) * rate) + 6.0 * rate, 0.0)
    return beta


def optimistic(counts: Counts, c: float, delta: float) -> Floats:
    """[X, W] the optimistic rows."""
    q: Floats = np.maximum(empirical(counts) - widths(counts, c, delta), 0.0)
    return q


def spread(counts: Counts, inside: Bools) -> Floats:
    """[X] (sum over s' of sqrt(p_hat (1 - p_hat)))^2 over the successors in ``inside`` [S]; at most their number."""
    p_hat = empirical(counts)
    root: Floats = np.where(inside[counts.successor], np.sqrt(p_hat * (1.0 - p_hat)), 0.0).sum(1)
    return root * root


def solve(
    counts: Counts, rows: Floats, known: Bools, target: Bools, precision: float, cap: float, untried: bool = True
) -> tuple[Floats, Actions]:
    """V [S], from below, up to a residual of ``precision`` and cut at ``cap``; and its greedy policy [S].

    ``untried`` allows pairs never tried.
    """
    n_states = counts.n_states
    V, policy = np.zeros(n_states), np.full(n_states, counts.n_actions, np.int16)
    playable = known & ~counts.terminal & ~target
    usable = np.repeat(playable, counts.n_actions) & (untried | (counts.n > 0))
    sweep(counts.successor, rows, counts.support, usable, counts.start, target, precision, cap, SWEEPS, V, policy)
    return V, policy


@numba.njit(cache=True, nogil=True)
def sweep(successor, rows, support, usable, start, target, precision, cap, most, V, policy):  # type: ignore[no-untyped-def]
    """Gauss-Seidel value iteration in place; ties go to the lowest action, and to any action before the reset."""
    n_states = V.shape[0]
    n_actions = support.shape[0] // n_states
    for _ in range(most):
        change = 0.0
        for s in range(n_states):
            if target[s]:
                continue
            best, chosen = np.inf, n_actions
            for a in range(n_actions):
                x = s * n_actions + a
                if usable[x]:
                    q = 1.0
                    for k in range(support[x]):
                        q += rows[x, k] * V[successor[x, k]]
                    if q < best:
                        best, chosen = q, a
            if 1.0 + V[start] < best:
                best, chosen = 1.0 + V[start], n_actions
            best = min(best, cap)
            change = max(change, best - V[s])
            V[s], policy[s] = best, chosen
        if change <= precision:
            break
