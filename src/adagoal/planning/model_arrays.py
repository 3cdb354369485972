"""What the sweeps read and write: named tuples of arrays.

S states, A actions beside the reset, G goals. The pair (s, a) has the number x = s * A + a, one of X = S * A. The reset
is action number A: it leads to ``start``, costs one step, is known, and is the only action of a terminal state. A is
nowhere stored: it is the number of pairs over that of states.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from adagoal.core.linear_mixture import LinearMixture
from adagoal.core.types import Bools, Floats, Ints, Longs
from adagoal.envs.model import TabularMDP

BLOCK_GOALS = 16
"""Goals that are swept together: the values of a state fill four vector registers, and a block stays in the cache."""


class TransitionKernel(NamedTuple):
    """Probabilities of successors, with K places for those of a pair."""

    successor: Ints
    """[X, K]"""
    p: Floats
    """[X, K]"""
    support: Ints
    """[X] places in use; 0 for a pair never tried"""
    terminal: Bools
    """[S]"""
    start: int


class EmpiricalModel(NamedTuple):
    """An empirical kernel, and what is known for sure about the true one (docs/theory.md)."""

    successor: Ints
    """[X, K]"""
    p: Floats
    """[X, K] empirical probabilities, from all transitions"""
    p_split: Floats
    """[X, K] those that go with r: from the transitions since the last new successor was found"""
    support: Ints
    """[X] number of successors in use; 0 for a pair never tried"""
    r_low: Floats
    """[X] radius for one fixed function per goal, successors anywhere (lemma 1)"""
    r: Floats
    """[X] radius for all functions at once, on the observed successors (lemma 2)"""
    q: Floats
    """[X] bound on the mass of successors never observed (lemma 3)"""
    complete: Bools
    """[X] pairs of which all successors are known: q is 0, and lower bounds take r instead of r_low"""
    quiet: Floats
    """[X] visits of the pairs in the quiet window, 0 outside it (lemma 3b)"""
    quiet_log: float
    """sum_x quiet[x] ln(1/(1 - unseen mass of x)) is at most this"""
    terminal: Bools
    """[S]"""
    start: int


class RobustModel(NamedTuple):
    """What is known about a kernel as a set of distributions per pair (:mod:`adagoal.planning.robust_sweeps`)."""

    successor: Ints
    """[X, K]"""
    p: Floats
    """[X, K] the centre: empirical probabilities"""
    low: Floats
    """[X, K]"""
    high: Floats
    """[X, K] low <= p' <= high for every p' of the set"""
    support: Ints
    """[X] places in use; 0 for a pair of which nothing is known"""
    q: Floats
    """[X] the most that p' may give to successors which are not listed"""
    moved: Floats
    """[X] half the largest L1 distance between p and p'; 1 where the ends say it all"""
    terminal: Bools
    """[S]"""
    start: int


class GoalBlock(NamedTuple):
    """Goals whose certified bounds are swept together, and how far."""

    order: Longs
    """[N] the states to sweep, in this order if order matters; those never seen, successors of none, are left out"""
    column: Longs
    """[S, W] the columns of the block whose goals hold s, -1 in places not used; a column may stand for goals that have
    no state yet"""
    cap: float
    """C: values are cut here"""
    exact: bool
    """Whether to solve the one-dimensional duals of lemma 4, instead of their closed forms"""
    sweeps: int
    """At most so many"""
    tolerance: float
    """The change of a sweep that ends it earlier"""


class TargetGoals(NamedTuple):
    """Goals that are planned for together."""

    size: int
    """G"""
    column: Longs
    """[S, W] the columns 0..G-1 whose goals hold s, -1 in places not used"""


class BonusTerms(NamedTuple):
    """The bonuses of the H-stage recursion (:mod:`adagoal.planning.horizon_recursion` has the formulas)."""

    weight: Floats
    """[X] w"""
    flat: Floats
    """[X]"""
    flat_u: Floats
    """[X]"""
    slope: Floats
    """[X]"""
    correction: float
    """c"""


class SparseModel(NamedTuple):
    """A known kernel: row x has the places indptr[x] to indptr[x + 1]."""

    indptr: Longs
    """[X + 1]"""
    successors: Ints
    """[nnz]"""
    probabilities: Floats
    """[nnz]"""
    terminal: Bools
    """[S]"""
    start: int
    reset: bool = True
    """Whether the reset exists (assumption ``assumption_reset``)"""


class EnsembleModel(NamedTuple):
    """M kernels on the same observed successors; what is left of a row goes to one state, its atom."""

    successor: Ints
    """[X, K]"""
    support: Ints
    """[X] places in use"""
    p: Floats
    """[M, X, K + 1] the mass of the successors and, in the last place, of the atom"""
    atom: Ints
    """[M, X] a state, or S: a virtual state beyond all others"""
    terminal: Bools
    """[S]"""
    start: int
    caps: Floats
    """[M] where values are cut"""


class MixtureFeatures(NamedTuple):
    """d known kernels on their common support: p(s' | x) = <theta, features>, with an unknown theta."""

    indptr: Longs
    """[X + 1]"""
    successors: Ints
    """[nnz]"""
    features: Floats
    """[nnz, d]"""
    terminal: Bools
    """[S]"""
    start: int


class ThetaRegion(NamedTuple):
    """Where theta* lies: centre and width of every linear function of it."""

    theta: Floats
    """[d] the centre; <theta, row_sums[x]> = 1"""
    root: Floats
    """[d, k] the radius included: <theta* - theta, v> lies within +-||root^T v||"""
    simplex: bool
    """Whether theta* also lies in the simplex"""


class RidgeEstimates(NamedTuple):
    """One ridge regression per goal, as the H-stage recursion reads it."""

    theta: Floats
    """[G, d]"""
    root: Floats
    """[G, d, d]: ||root^T v|| = beta ||v||_{Sigma^-1}"""


class MixtureBlock(NamedTuple):
    """Goals of a mixture whose bounds are swept together, and how far."""

    targets: TargetGoals
    """B goals"""
    direct: Bools
    """[B, S] where the goal may be reached, without a reset, in less than the cap; elsewhere the reset is best"""
    reachable: Bools
    """[S] where the start may lead"""
    cap: float
    sweeps: int
    tolerance: float


@numba.njit(cache=True, nogil=True)
def goal_holds_state(column, s, b):  # type: ignore[no-untyped-def]
    """Whether the goal of column b holds the state s; column: [S, W]."""
    found = False
    for k in range(column.shape[1]):
        found |= column[s, k] == b
    return found


def to_sparse_model(mdp: TabularMDP, reset: bool = True) -> SparseModel:
    """A known world; ``reset=False`` takes the reset action away."""
    return SparseModel(mdp.indptr, mdp.successors, mdp.probabilities, mdp.terminal, mdp.start, reset)


def features_from_mixture(mixture: LinearMixture) -> MixtureFeatures:
    """The known kernels of a linear mixture."""
    return MixtureFeatures(mixture.indptr, mixture.successors, mixture.features, mixture.terminal, mixture.start)


def pad_kernel(model: SparseModel) -> TransitionKernel:
    """A known kernel with as many places for each pair as the widest one needs."""
    support = np.diff(model.indptr).astype(np.int32)
    places = np.arange(support.max()) < support[:, None]
    successor, p = np.zeros(places.shape, np.int32), np.zeros(places.shape)
    successor[places], p[places] = model.successors, model.probabilities
    return TransitionKernel(successor, p, support, model.terminal, model.start)
