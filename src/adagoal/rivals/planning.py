"""Unit-cost shortest paths on counts (:mod:`adagoal.planning.paths`), as UcbExplore, DisCo and GOSPRL plan them.

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

import numpy as np

from adagoal.core.counts import Counts
from adagoal.core.errors import InputError
from adagoal.core.types import Actions, Bools, Floats
from adagoal.planning.backend import NUMBA, Backend
from adagoal.planning.model import Kernel


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
        raise InputError(f"must be paper or scaled=c with a number c > 0, got {constants!r}", name="constants")
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
    counts: Counts,
    rows: Floats,
    known: Bools,
    targets: Bools,
    precision: float,
    cap: float,
    untried: bool = True,
    backend: Backend = NUMBA,
) -> tuple[Floats, Actions]:
    """V [B, S], from below, up to a residual of ``precision`` and cut at ``cap``; and its greedy policies [B, S].

    One problem for each set of ``targets`` [B, S]. ``untried`` allows pairs never tried.
    """
    usable = np.repeat(known & ~counts.terminal, counts.n_actions) & (untried | (counts.n > 0))
    kernel = Kernel(counts.successor, rows, counts.support, counts.terminal, counts.start)
    return backend.paths(kernel, usable, targets, precision, cap)
