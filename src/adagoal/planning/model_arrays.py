"""Inputs of the compiled planners as named tuples of arrays: models, confidence sets, goals and mixture features.

There are S states, A actions besides the reset, and G goals. The pair (s, a) has the number x = s * A + a, one of
X = S * A. The reset is action A: it leads to ``start``, costs one step, is known, and is the only action of a terminal
state. A is not stored: it is the number of pairs divided by the number of states.
"""

from __future__ import annotations

from typing import NamedTuple

from adagoal.core.array_types import Bools, Floats, Ints, Longs
from adagoal.core.compiled_code import compiled_helper
from adagoal.core.linear_mixture import LinearMixture
from adagoal.envs.model import TabularMDP

# Goals that are swept together: the values of a state fill four vector registers, and a block stays in the cache.
BLOCK_GOALS = 16


# All classes here are named tuples, because Numba does not know dataclasses.
class TransitionKernel(NamedTuple):
    """Probabilities of successors in padded rows of K entries."""

    successor: Ints  # [X, K]
    p: Floats  # [X, K]
    support: Ints  # [X] entries in use; 0 for a pair never tried
    terminal: Bools  # [S]
    start: int


class EmpiricalModel(NamedTuple):
    """An empirical kernel and its distance from the true one (docs/theory.md, lemmas 1 to 3)."""

    successor: Ints  # [X, K]
    p: Floats  # [X, K] frequencies in all transitions
    p_split: Floats  # [X, K] the centre for r: frequencies since the last new successor
    support: Ints  # [X] observed successors; 0 for a pair never tried
    r_low: Floats  # [X] radius for one fixed function per goal, successors anywhere (lemma 1)
    r: Floats  # [X] radius for all functions at once, on the observed successors (lemma 2)
    q: Floats  # [X] bound on the mass of successors never observed (lemma 3)
    uses_ball: Bools  # [X] pairs whose lower bounds use r instead of r_low
    window_visits: Floats  # [X] visits inside the window, 0 outside (lemma 3b)
    window_log: float  # sum_x window_visits[x] ln(1/(1 - unseen mass of x)) is at most this
    terminal: Bools  # [S]
    start: int


class RobustModel(NamedTuple):
    """A set of distributions per pair (:mod:`adagoal.planning.robust_bounds`)."""

    successor: Ints  # [X, K]
    p: Floats  # [X, K] the centre: frequencies
    low: Floats  # [X, K]
    high: Floats  # [X, K] low <= p' <= high for every p' of the set
    support: Ints  # [X] entries in use; 0 for a pair without data
    q: Floats  # [X] largest mass of successors that are not listed
    moved: Floats  # [X] half the largest L1 distance between p and p'; 1 without such a constraint
    terminal: Bools  # [S]
    start: int


class GoalBlock(NamedTuple):
    """Goals whose bounds are swept together, and when to stop."""

    order: Longs  # [N] the seen states, in the order of the sweep
    column: Longs  # [S, W] the columns of the block whose goals contain s, -1 in unused entries
    cap: float  # C: values are cut here
    exact: bool  # solve the duals of lemma 4 instead of using their closed forms
    sweeps: int  # largest number of sweeps
    tolerance: float  # a sweep with smaller changes is the last


class TargetGoals(NamedTuple):
    """Goals that are planned together."""

    size: int  # G
    column: Longs  # [S, W] the columns 0..G-1 whose goals contain s, -1 in unused entries


class BonusTerms(NamedTuple):
    """The bonuses of the H-stage recursion (:mod:`adagoal.tabular.ucbvi` has the formulas)."""

    weight: Floats  # [X] w
    flat: Floats  # [X]
    flat_u: Floats  # [X]
    slope: Floats  # [X]
    correction: float  # c


class SparseModel(NamedTuple):
    """A known kernel in CSR form: row x has the entries indptr[x] to indptr[x + 1]."""

    indptr: Longs  # [X + 1]
    successors: Ints  # [nnz]
    probabilities: Floats  # [nnz]
    terminal: Bools  # [S]
    start: int
    reset: bool = True  # whether the reset exists (``assumption_reset``)


class EnsembleModel(NamedTuple):
    """M kernels on the same observed successors; the remaining mass of a row goes to one state, its atom."""

    successor: Ints  # [X, K]
    support: Ints  # [X] entries in use
    p: Floats  # [M, X, K + 1] the mass of the successors and, in the last entry, of the atom
    atom: Ints  # [M, X] a state, or S for a virtual state
    terminal: Bools  # [S]
    start: int
    caps: Floats  # [M] where values are cut


class MixtureFeatures(NamedTuple):
    """d known kernels on their common support: p(s' | x) = <theta, features> with unknown theta."""

    indptr: Longs  # [X + 1]
    successors: Ints  # [nnz]
    features: Floats  # [nnz, d]
    terminal: Bools  # [S]
    start: int


class ThetaRegion(NamedTuple):
    """Confidence region of theta*: centre and width of every linear function."""

    theta: Floats  # [d] the centre; <theta, row_sums[x]> = 1
    root: Floats  # [d, k] |<theta* - theta, v>| <= ||root^T v||
    simplex: bool  # whether theta* also lies in the simplex


class RidgeEstimates(NamedTuple):
    """One ridge regression per goal, for the H-stage recursion."""

    theta: Floats  # [G, d]
    root: Floats  # [G, d, d]: ||root^T v|| = beta ||v||_{Sigma^-1}


class MixtureBlock(NamedTuple):
    """Goals of a mixture whose bounds are swept together, and when to stop."""

    targets: TargetGoals  # B goals
    direct: Bools  # [B, S] states that may reach the goal below the cap without a reset
    reachable: Bools  # [S] states that the start may reach
    cap: float
    sweeps: int
    tolerance: float


@compiled_helper
def goal_holds_state(column, s, b):  # type: ignore[no-untyped-def]
    """Return whether the goal of column b contains the state s; column: [S, W]."""
    inside = False
    for k in range(column.shape[1]):
        inside |= column[s, k] == b
    return inside


def to_sparse_model(mdp: TabularMDP, reset: bool = True) -> SparseModel:
    """Return the arrays of a known model; ``reset=False`` removes the reset action."""
    return SparseModel(mdp.indptr, mdp.successors, mdp.probabilities, mdp.terminal, mdp.start, reset)


def features_from_mixture(mixture: LinearMixture) -> MixtureFeatures:
    """Return the known kernels of a linear mixture."""
    return MixtureFeatures(mixture.indptr, mixture.successors, mixture.features, mixture.terminal, mixture.start)
