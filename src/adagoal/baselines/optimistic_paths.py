"""Unit-cost shortest paths on counts, as UcbExplore, DisCo and GOSPRL plan them.

A problem has a set K of *known* states, in which every action may be played, and a set of targets. In all other states
the reset is the only action (the policies "restricted to K" of Lim and Auer 2012). With the rows q of a model,

    V = 0 on the targets,   V(s) = 1 + min{ V(s0), min_a q(s, a) V }  on K,   V(s) = 1 + V(s0)  elsewhere.

*Optimistic rows* (the operator of DisCo and of GOSPRL): q(s'|x) = max{p_hat(s'|x) - beta(s'|x), 0}; the missing mass
goes to the target, where V = 0. An untried pair leads surely to the target. The widths are empirical Bernstein,

    beta(s'|x) = 2 sqrt(p_hat (1 - p_hat) l(n) / n) + 6 l(n) / n,    l(n) = c log(2 S A n / delta),

in the form of Fruit et al. (2020), which both papers of Tarbouriech et al. cite: recalled, not checked against their
text. *Empirical rows*: q = p_hat, and untried pairs are not played.

*One state for all others* (recalled from DisCo): see :func:`optimistic_rows`.
"""

from __future__ import annotations

import numpy as np

from adagoal.core.transition_data import TransitionCounts
from adagoal.core.types import Actions, Bools, Floats
from adagoal.planning.model_arrays import TransitionKernel
from adagoal.planning.shortest_paths import solve_shortest_paths


def empirical_rows(counts: TransitionCounts) -> Floats:
    """p_hat [X, W] of the entries of ``counts.successor``."""
    p_hat: Floats = counts.count / np.maximum(counts.n, 1)[:, None]
    return p_hat


def confidence_log(counts: TransitionCounts, c: float, delta: float) -> Floats:
    """l(n) [X]."""
    return c * np.log(2.0 * len(counts.n) * np.maximum(counts.n, 1) / delta)


def bernstein_widths(counts: TransitionCounts, c: float, delta: float) -> Floats:
    """beta [X, W], zero for successors that were not observed."""
    widths = _bernstein_width(empirical_rows(counts), _log_over_n(counts, c, delta))
    beta: Floats = np.where(counts.count > 0, widths, 0.0)
    return beta


def optimistic_rows(counts: TransitionCounts, c: float, delta: float, merged: Bools | None = None) -> Floats:
    """Optimistic rows q [X, W]; the states of ``merged`` [S] share one probability and one width."""
    p_hat, rate = empirical_rows(counts), _log_over_n(counts, c, delta)
    q: Floats = np.maximum(p_hat - bernstein_widths(counts, c, delta), 0.0)
    if merged is not None:
        # V is the same in every state outside K that is no target. These states count as one, with one p_hat and one
        # width: the widths of many rare successors would add up to a shortcut.
        inside = merged[counts.successor] & (counts.count > 0)
        together = np.where(inside, p_hat, 0.0).sum(1, keepdims=True)
        # Scale the merged states by the same factor: then their sum is the one optimistic probability.
        left = np.maximum(together - _bernstein_width(together, rate), 0.0) / np.maximum(together, 1e-300)
        q = np.where(inside, p_hat * left, q)
    return q


def _log_over_n(counts: TransitionCounts, c: float, delta: float) -> Floats:
    return (confidence_log(counts, c, delta) / np.maximum(counts.n, 1))[:, None]


def _bernstein_width(p: Floats, rate: Floats) -> Floats:
    # A merged p may exceed one by rounding, and its root would be NaN.
    width: Floats = 2.0 * np.sqrt(np.maximum(p * (1.0 - p), 0.0) * rate) + 6.0 * rate
    return width


def deviation_spread(counts: TransitionCounts, inside: Bools) -> Floats:
    """(sum over s' of sqrt(p_hat (1 - p_hat)))^2 [X] over the successors in ``inside`` [S]; at most their number."""
    p_hat = empirical_rows(counts)
    root: Floats = np.where(inside[counts.successor], np.sqrt(p_hat * (1.0 - p_hat)), 0.0).sum(1)
    return root * root


def solve_restricted_paths(
    counts: TransitionCounts,
    rows: Floats,
    known: Bools,
    targets: Bools,
    precision: float,
    cap: float,
    untried: bool = True,
) -> tuple[Floats, Actions]:
    """Solve one problem for each set of ``targets`` [B, S]: values V [B, S] and greedy policies [B, S].

    V is computed from below, up to a residual of ``precision``, and cut at ``cap``. ``untried`` allows untried pairs.
    """
    usable = np.repeat(known & ~counts.terminal, counts.n_actions) & (untried | (counts.n > 0))
    kernel = TransitionKernel(counts.successor, rows, counts.support, counts.terminal, counts.start)
    return solve_shortest_paths(kernel, usable, targets, precision, cap)
