"""Unit-cost shortest paths on counts (:mod:`adagoal.planning.paths`), as UcbExplore, DisCo and GOSPRL plan them.

A problem has a set K of *known* states, in which every action may be played, and a set of targets. Elsewhere the reset
is the only action (the policies "restricted to K" of Lim and Auer 2012). With the rows q of a model,

    V = 0 on the targets,   V(s) = 1 + min{ V(s0), min_a q(s, a) V }  on K,   V(s) = 1 + V(s0)  elsewhere.

*Optimistic rows* (the operator of DisCo and of GOSPRL): q(s'|x) = max{p_hat(s'|x) - beta(s'|x), 0}; what is missing to
one goes to the target, where V = 0. An untried pair is a sure step to the target. The widths are empirical Bernstein,

    beta(s'|x) = 2 sqrt(p_hat (1 - p_hat) l(n) / n) + 6 l(n) / n,    l(n) = c log(2 S A n / delta),

the form of Fruit et al. (2020), which both papers of Tarbouriech et al. cite: recalled, not checked against their text.
*Empirical rows*: q = p_hat, and untried pairs are not played.

*One state for all others* (recalled from DisCo). V is the same in every state outside K that is no target. They count
as one state, with one p_hat and one width: the widths of many rare successors would add up to a shortcut.

*Constants.* "paper" is c = 1. "scaled=c" multiplies every logarithm of a confidence by c, that is, it asks for the
confidence delta^c. Sample numbers are proportional to these logarithms and squared widths too, so that numbers and
widths stay in the proportion that the proofs need, and only the confidence is given up.
"""

from __future__ import annotations

import math

import numpy as np

from adagoal.core.counts import TransitionCounts
from adagoal.core.errors import InputError
from adagoal.core.types import Actions, Bools, Floats
from adagoal.planning.backend import NUMBA_BACKEND, Backend
from adagoal.planning.model import TransitionKernel


def parse_constants(constants: str) -> float:
    """c of ``paper`` or ``scaled=c``."""
    if constants == "paper":
        return 1.0
    word, _, number = str(constants).partition("=")
    try:
        c = float(number)
    except ValueError:
        c = math.nan
    if word != "scaled" or not 0 < c < math.inf:
        raise InputError(f"must be paper or scaled=c with a number c > 0, got {constants!r}", name="constants")
    return c


def empirical_rows(counts: TransitionCounts) -> Floats:
    """[X, W] p_hat in the places of ``counts.successor``."""
    p_hat: Floats = counts.count / np.maximum(counts.n, 1)[:, None]
    return p_hat


def confidence_log(counts: TransitionCounts, c: float, delta: float) -> Floats:
    """[X] l(n) of the module's text."""
    return c * np.log(2.0 * len(counts.n) * np.maximum(counts.n, 1) / delta)


def bernstein_widths(counts: TransitionCounts, c: float, delta: float) -> Floats:
    """[X, W] beta of the module's text, zero where nothing was observed."""
    beta: Floats = np.where(
        counts.count > 0, _bernstein_width(empirical_rows(counts), _log_over_n(counts, c, delta)), 0.0
    )
    return beta


def optimistic_rows(counts: TransitionCounts, c: float, delta: float, alike: Bools | None = None) -> Floats:
    """[X, W] the optimistic rows; all states that are ``alike`` [S] have one probability, and one width."""
    p_hat, rate = empirical_rows(counts), _log_over_n(counts, c, delta)
    q: Floats = np.maximum(p_hat - bernstein_widths(counts, c, delta), 0.0)
    if alike is not None:
        one = alike[counts.successor] & (counts.count > 0)
        together = np.where(one, p_hat, 0.0).sum(1, keepdims=True)
        left = np.maximum(together - _bernstein_width(together, rate), 0.0) / np.maximum(together, 1e-300)
        q = np.where(one, p_hat * left, q)
    return q


def _log_over_n(counts: TransitionCounts, c: float, delta: float) -> Floats:
    """[X, 1] l(n)/n."""
    return (confidence_log(counts, c, delta) / np.maximum(counts.n, 1))[:, None]


def _bernstein_width(p: Floats, rate: Floats) -> Floats:
    width: Floats = 2.0 * np.sqrt(np.maximum(p * (1.0 - p), 0.0) * rate) + 6.0 * rate
    return width


def deviation_spread(counts: TransitionCounts, inside: Bools) -> Floats:
    """[X] (sum over s' of sqrt(p_hat (1 - p_hat)))^2 over the successors in ``inside`` [S]; at most their number."""
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
    backend: Backend = NUMBA_BACKEND,
) -> tuple[Floats, Actions]:
    """V [B, S], from below, up to a residual of ``precision`` and cut at ``cap``; and its greedy policies [B, S].

    One problem for each set of ``targets`` [B, S]. ``untried`` allows pairs never tried.
    """
    usable = np.repeat(known & ~counts.terminal, counts.n_actions) & (untried | (counts.n > 0))
    kernel = TransitionKernel(counts.successor, rows, counts.support, counts.terminal, counts.start)
    return backend.shortest_paths(kernel, usable, targets, precision, cap)
