"""Where planning happens: the sweeps over all goals, as functions on whole arrays.

A :class:`Backend` is a tuple of functions. Learners and the exact solver are given one and ask it for values; they know
nothing of the loops inside. Another backend, say for a GPU, is one file with some of these functions, and the rest of
this one: ``NUMBA._replace(lower=..., upper=..., exact=..., stages=...)``.

Contract: named tuples of arrays in (:mod:`adagoal.planning.model`), arrays out. Values and policies that a function is
given to improve belong to it from then on: it may overwrite them, and only what it returns counts. Bounds are valid at
every iterate, so that a backend is free in the order of its backups and may stop anywhere; the stages and the values
of :func:`exact` do not depend on an order up to rounding and the tolerance. Functions are called from several threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from adagoal.core.types import Actions, Bools, Floats, Longs
from adagoal.planning import bounds, ensemble, exact, mixtures, paths, robust, stages, visgo
from adagoal.planning.model import (
    Ambiguous,
    Block,
    Bonus,
    Empirical,
    Features,
    Kernel,
    Members,
    Reach,
    Region,
    Ridge,
    Sparse,
    Targets,
)


class Backend(NamedTuple):
    """One way to plan for many goals at once."""

    lower: Callable[[Empirical, Block, Floats, Actions], tuple[Floats, Actions]]
    """(model, block, V [S, B], policy [S, B]): raised lower bounds and their greedy policy (lemma 5)"""
    upper: Callable[[Empirical, Block, Floats, Actions], tuple[Floats, Actions]]
    """(model, block, Y [S, B], policy [S, B]): lowered upper bounds and the policy that they hold for (lemma 6)"""
    robust_lower: Callable[[Ambiguous, Block, Floats, Actions], tuple[Floats, Actions]]
    """The same as ``lower`` for the best kernel of a set"""
    robust_upper: Callable[[Ambiguous, Block, Floats, Actions], tuple[Floats, Actions]]
    """The same as ``upper`` for the worst kernel of a set"""
    exact: Callable[[Sparse, Targets, Floats, float, float, int], tuple[Floats, Floats]]
    """(model, targets, V [S, G], cap, tolerance, sweeps): values of a known model, and each goal's residual [G];
    every state may be left for good at the cost ``cap``; where V is not below it, that or the reset is best"""
    stages: Callable[[Kernel, Bonus, Targets, int], tuple[Actions, Floats, Floats]]
    """(kernel, bonus, targets, H): policy [H, S, G], distance D [G] and error U [G] of AdaGoal-UCBVI"""
    paths: Callable[[Kernel, Bools, Bools, float, float], tuple[Floats, Actions]]
    """(kernel, usable [X], targets [B, S], precision, cap): values [B, S] and policies [B, S] to sets of states"""
    visgo: Callable[[Kernel, Longs, Floats, Bools, Longs, float, float, float, float], tuple[Floats, Actions]]
    """(kernel, n [X], iota [X], usable [X], goals [B], root, flat, precision, cap): values and policies [B, S]"""
    ensemble: Callable[[Members, Targets, float, int, Floats, Actions], tuple[Floats, Actions]]
    """(members, targets, tolerance, sweeps, V [M, S + 1, G], greedy [M, S, G]): both, improved in every member"""
    mixture_bounds: Callable[
        [Features, Region, Reach, Floats, Floats, Actions, Actions], tuple[Floats, Floats, Actions, Actions]
    ]
    """(features, region, reach, V, Y, greedy, policy), all [B, S]: both bounds of a linear mixture, improved"""
    mixture_stages: Callable[[Features, Ridge, Ridge, Targets, int], tuple[Actions, Floats, Floats]]
    """(features, value, error, targets, H): policy [H, S, G], V and U [2, S, G] of stages 1 and 2, of UCRL.VTR"""
    block: int
    """How many goals a lazy plan brings up to date together: ``lower``, ``upper`` (robust or not) and
    ``ensemble`` get so many"""
    least: int = 0
    """Values of a block from which on it pays to plan here and not on the processor"""
    price: float = 1.0
    """What a plan of ``lower`` and ``upper`` costs beside one of the processor (:mod:`adagoal.tabular.schedule`)"""


NUMBA = Backend(
    lower=bounds.lower,
    upper=bounds.upper,
    robust_lower=robust.lower,
    robust_upper=robust.upper,
    exact=exact.exact,
    stages=stages.stages,
    paths=paths.paths,
    visgo=visgo.visgo,
    ensemble=ensemble.ensemble,
    mixture_bounds=mixtures.bounds,
    mixture_stages=mixtures.stages,
    block=16,  # what the cache holds
)
"""Compiled loops on the processor."""
