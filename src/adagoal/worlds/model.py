"""A finite Markov decision process with a reset, as sparse arrays.

States are ``0..S-1``, the actions that the environment offers ``0..A-1``. The reset is one more action,
number ``A`` (:attr:`TabularMDP.reset_action`): it leads to ``start`` from every state, with certainty, and costs
one step (assumption ``assumption_reset`` of the paper). In a *terminal* state it is the only action.

The pair (s, a) has the number ``x = s * A + a``; the successors of x are
``successors[indptr[x]:indptr[x + 1]]`` with the probabilities ``probabilities[...]`` in the same places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from adagoal.core.errors import InputError
from adagoal.core.layout import Layout
from adagoal.core.mixture import LinearMixture
from adagoal.core.types import Bools, Floats, Ints, Longs


@dataclass(frozen=True)
class TabularMDP:
    """A known transition kernel p(s' | s, a) with a start state; see the module's text for the layout."""

    n_states: int
    n_actions: int
    indptr: Longs
    """[S * A + 1]"""
    successors: Ints
    """[nnz]"""
    probabilities: Floats
    """[nnz], positive, each row sums to one"""
    start: int = 0
    terminal: Bools = field(default_factory=lambda: np.zeros(0, bool))
    """[S]: where the reset is the only action; empty means nowhere."""
    name: str = "mdp"
    labels: tuple[str, ...] = ()
    """[S] names of states for people, or empty."""
    layout: Layout | None = None
    mixture: LinearMixture | None = field(default=None, compare=False, repr=False)
    """The known kernels that this model is a mixture of, where it is one; the weights are not kept."""

    def __post_init__(self) -> None:
        if self.n_states < 1 or self.n_actions < 1:
            raise InputError("a model needs at least one state and one action")
        if not 0 <= self.start < self.n_states:
            raise InputError(f"start state {self.start} outside 0..{self.n_states - 1}")
        if self.indptr.shape != (self.n_states * self.n_actions + 1,):
            raise InputError("indptr must have S * A + 1 entries")
        if self.probabilities.size and not (np.isfinite(self.probabilities).all() and self.probabilities.min() > 0):
            raise InputError("probabilities must be positive and finite")
        if self.successors.size and not (0 <= self.successors.min() <= self.successors.max() < self.n_states):
            raise InputError("a successor lies outside the state space")
        sums = np.add.reduceat(self.probabilities, self.indptr[:-1]) if self.probabilities.size else np.zeros(1)
        if (np.diff(self.indptr) < 1).any() or np.abs(sums - 1).max() > 1e-9:
            raise InputError("the probabilities of every state-action pair must sum to one")
        if self.terminal.size == 0:
            object.__setattr__(self, "terminal", np.zeros(self.n_states, bool))

    @property
    def reset_action(self) -> int:
        """The number of the reset action."""
        return self.n_actions

    def row(self, state: int, action: int) -> tuple[Ints, Floats]:
        """Successors and probabilities of one pair."""
        span = slice(self.indptr[x := state * self.n_actions + action], self.indptr[x + 1])
        return self.successors[span], self.probabilities[span]

    def kernel(self) -> sparse.csr_matrix:
        """p as a sparse matrix [S * A, S]."""
        return sparse.csr_matrix(
            (self.probabilities, self.successors, self.indptr), shape=(self.n_states * self.n_actions, self.n_states)
        )


def from_dense(p: ArrayLike, **kwargs: object) -> TabularMDP:
    """A model from an array p[s, a, s']."""
    dense = np.asarray(p, float)
    if dense.ndim != 3 or dense.shape[0] != dense.shape[2]:
        raise InputError("p must have the shape [S, A, S]")
    n_states, n_actions, _ = dense.shape
    matrix = sparse.csr_matrix(dense.reshape(n_states * n_actions, n_states))
    return _from_csr(matrix, n_states, n_actions, kwargs)


def from_rows(rows: Sequence[Mapping[int, float]], n_actions: int, **kwargs: object) -> TabularMDP:
    """A model from one mapping {successor: probability} per pair, in the order of x = s * A + a."""
    indptr = np.cumsum([0, *(len(row) for row in rows)])
    successors = np.array([s for row in rows for s in row], np.int32)
    probabilities = np.array([p for row in rows for p in row.values()], float)
    matrix = sparse.csr_matrix((probabilities, successors, indptr), shape=(len(rows), len(rows) // n_actions))
    return _from_csr(matrix, len(rows) // n_actions, n_actions, kwargs)


def _from_csr(matrix: sparse.csr_matrix, n_states: int, n_actions: int, kwargs: dict[str, object]) -> TabularMDP:
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return TabularMDP(
        n_states,
        n_actions,
        matrix.indptr.astype(np.int64),
        matrix.indices.astype(np.int32),
        matrix.data.astype(float),
        **kwargs,  # type: ignore[arg-type]
    )
