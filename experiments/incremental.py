"""The incrementally reachable set of a known model (Lim and Auer 2012, definition 5): ground truth for tests.

A policy is *restricted to* a set K if it resets in every state outside K. For a partial order on the states, the set
S_L of that order holds s0, and every s that some policy restricted to the members before s reaches from s0 within L
expected steps; the incrementally reachable set is the union over all orders. A state that can be added to K can be
added to every larger K, so that adding states until none is left to add gives the union.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from adagoal.core.array_types import Bools, Floats, Longs
from adagoal.envs.model import TabularMDP
from adagoal.exact import solver


def restricted(mdp: TabularMDP, known: Bools) -> TabularMDP:
    """The model in which the reset is the only action outside ``known`` [S]."""
    return replace(mdp, terminal=mdp.terminal | ~known)


def restricted_distances(mdp: TabularMDP, known: Bools, within: float = np.inf) -> Floats:
    """V*_K(s0 -> g) [S]: the best expected time of a policy restricted to K; infinite where it is not ``within``."""
    return solver.optimal_distances(restricted(mdp, known), within=within)


def incremental_set(mdp: TabularMDP, radius: float) -> Longs:
    """The incrementally L-reachable states, in increasing order; a subset of G_L."""
    known = np.arange(mdp.n_states) == mdp.start
    while True:
        more = known | np.isfinite(restricted_distances(mdp, known, radius))
        if (more == known).all():
            return np.flatnonzero(known)
        known = more
