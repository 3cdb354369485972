"""Linear mixture models (definition ``def_linearmixture``): p(s' | s, a) = sum_i theta_i phi_i(s' | s, a).

The d kernels phi_i are known and theta is not: there are d candidate simulators, and the environment is a mixture of
them. The kernels may be signed measures; ||theta||_2 <= B.

All kernels are stored on the union of their supports: the pair x = s * A + a has the possible successors
``successors[indptr[x]:indptr[x + 1]]``, and the same entries of ``features`` hold their vectors phi(s' | x) in R^d. So
no array has the size d x S x A x S.

A :class:`LinearMixture` does not contain theta; :mod:`adagoal.envs.mixture_models` builds environments from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from adagoal.core.array_types import Bools, Floats, Ints, Longs
from adagoal.core.errors import InputError
from adagoal.core.validation import check_integer, check_number

if TYPE_CHECKING:  # functions import SciPy: it takes a tenth of a second, and many commands never need it
    from scipy import sparse

ROW_SUM_TOLERANCE = 1e-9  # rounding error that sums of probabilities may have


@dataclass(frozen=True)
class LinearMixture:
    """d kernels over S states and A actions, stored on the union of their supports (nnz entries)."""

    n_states: int
    n_actions: int
    indptr: Longs  # [X + 1]
    successors: Ints  # [nnz], row by row
    features: Floats  # [nnz, d]: phi_i(s' | x)
    B: float  # upper bound on ||theta||_2
    start: int = 0
    terminal: Bools = field(default_factory=lambda: np.zeros(0, bool))  # [S]: states with the reset as only action

    def __post_init__(self) -> None:
        if self.terminal.size == 0:
            object.__setattr__(self, "terminal", np.zeros(self.n_states, bool))
        check_number("B", self.B, 0, math.inf, closed="()")

    @property
    def d(self) -> int:
        """Number of kernels."""
        return int(self.features.shape[1])

    @cached_property
    def pair_of_entry(self) -> Longs:
        """The pair x of every entry [nnz]."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))

    @cached_property
    def row_sums(self) -> Floats:
        """Sums of phi_i(. | x) over the successors [X, d]; <theta, row_sums[x]> = 1 for every pair."""
        return np.add.reduceat(self.features, self.indptr[:-1], axis=0)

    @cached_property
    def has_probability_kernels(self) -> bool:
        """Whether every phi_i(. | x) is a probability distribution."""
        return bool(self.features.min() >= 0 and np.abs(self.row_sums - 1).max() <= ROW_SUM_TOLERANCE)

    @cached_property
    def distinct_features(self) -> tuple[Longs, Floats]:
        """(index [nnz], vectors [K, d]): the distinct feature vectors, and the index of the vector of every entry."""
        vectors, index = np.unique(self.features, axis=0, return_inverse=True)
        return index.ravel(), vectors

    @cached_property
    def pair_families(self) -> Longs:
        """Family of every pair [X]: two pairs with the same feature vectors, whatever their successors, share one."""
        index, vectors = self.distinct_features
        # Random 64-bit keys make the sum over a row a hash of its vectors that ignores their order.
        keys = np.random.default_rng(0).integers(2**63, size=len(vectors), dtype=np.uint64)
        return np.unique(np.add.reduceat(keys[index], self.indptr[:-1]), return_inverse=True)[1].ravel()

    @cached_property
    def entry_classes(self) -> Longs:
        """Class of every entry [nnz]: entries with the same vector and the same family of pairs share one."""
        index, vectors = self.distinct_features
        family = self.pair_families[self.pair_of_entry]
        classes: Longs = np.unique(family * len(vectors) + index, return_inverse=True)[1]
        return classes.ravel()

    def sum_over_successors(self, total: Longs) -> Longs:
        """Sums [X] of counts [nnz] over the successors of every pair."""
        return np.add.reduceat(total, self.indptr[:-1])

    @cached_property
    def theta_parametrisation(self) -> tuple[Floats, Floats]:
        """(theta0 [d], N [d, k]): the theta with <theta, row_sums[x]> = 1 are theta0 + N z, N orthonormal.

        theta0 has the least norm. If the kernels are distributions, theta0 = (1/d, ..., 1/d) and k = d - 1.
        """
        # Rows that differ by rounding errors become one, so the matrix to decompose is mostly tiny, not [X, d].
        K = np.unique(np.round(self.row_sums, 12), axis=0)
        # With at least d rows the decomposition has all d right singular vectors, also those of the null space.
        square = np.concatenate([K, np.zeros((max(self.d - len(K), 0), self.d))])
        u, sizes, v = np.linalg.svd(square, full_matrices=False)
        rank = int((sizes > 1e-9 * sizes[0]).sum()) if sizes[0] > 0 else 0
        theta0 = v[:rank].T @ ((u[: len(K), :rank].T @ np.ones(len(K))) / sizes[:rank])
        if np.abs(K @ theta0 - 1).max() > 1e-6:
            raise InputError("features: no theta makes every row sum to one")
        norm = float(np.linalg.norm(theta0))
        if norm > self.B * (1 + ROW_SUM_TOLERANCE):
            raise InputError(f"B: {self.B:g} is too small: every theta whose rows sum to one has a norm >= {norm:.4g}")
        return theta0, np.ascontiguousarray(v[rank:].T)

    def mixture_kernel(self, theta: Floats) -> sparse.csr_matrix:
        """Return sum_i theta_i phi_i as a sparse matrix [X, S]."""
        from scipy import sparse

        return sparse.csr_matrix(
            (self.features @ theta, self.successors, self.indptr), shape=(len(self.indptr) - 1, self.n_states)
        )

    def phi(self, f: Floats, pairs: Longs | None = None) -> Floats:
        """phi_f(x) = sum_s' phi(s' | x) f(s') for f [S], as an array [X, d], or for the given pairs only."""
        if pairs is None:
            return np.add.reduceat(self.features * f[self.successors][:, None], self.indptr[:-1], axis=0)
        sizes = self.indptr[pairs + 1] - self.indptr[pairs]
        ends = np.cumsum(sizes)
        entries = np.repeat(self.indptr[pairs] - (ends - sizes), sizes) + np.arange(ends[-1] if len(ends) else 0)
        terms = self.features[entries] * f[self.successors[entries]][:, None]
        return np.add.reduceat(terms, ends - sizes, axis=0) if len(pairs) else np.zeros((0, self.d))


def mixture_from_kernels(
    kernels: Sequence[Any], n_actions: int, B: float | None = None, start: int = 0, terminal: Bools | None = None
) -> LinearMixture:
    """Make a mixture from d matrices [S * A, S], dense or sparse, possibly signed; B is 1 unless given."""
    if kernels is None or len(kernels) == 0:
        raise InputError("kernels: a mixture needs d >= 1 of them, got none")
    matrices = [_to_sparse_matrix(k, i) for i, k in enumerate(kernels)]
    pairs, n_states = matrices[0].shape
    check_integer("n_actions", n_actions, 1, max(pairs, 1))
    if pairs != n_states * n_actions:
        raise InputError(f"kernels: must be [S * A, S] matrices, got {[pairs, n_states]} with A = {n_actions}")
    for i, m in enumerate(matrices):
        if m.shape != (pairs, n_states):
            raise InputError(f"kernels: number {i} has the shape {list(m.shape)}, number 0 has {[pairs, n_states]}")
        if not np.isfinite(m.data).all():
            raise InputError(f"kernels: number {i} holds entries that are not finite")
    check_integer("start", start, 0, n_states - 1)
    if terminal is not None and np.shape(terminal) != (n_states,):
        raise InputError(f"terminal: must have S = {n_states} entries, got the shape {list(np.shape(terminal))}")
    # Absolute values, because entries of signed kernels could cancel.
    union = sum((abs(m) for m in matrices[1:]), abs(matrices[0])).tocsr()
    union.sum_duplicates()
    union.eliminate_zeros()
    # For an empty row np.add.reduceat would return an entry of the next one instead of 0.
    if (np.diff(union.indptr) == 0).any():
        raise InputError(f"kernels: the pair {int(np.argmin(np.diff(union.indptr)))} has no successor in any of them")
    # sum_duplicates has sorted every row, so a binary search finds the place of every number.
    keys = np.repeat(np.arange(pairs), np.diff(union.indptr)) * n_states + union.indices
    features = np.zeros((len(keys), len(matrices)))
    for i, m in enumerate(matrices):
        m.sum_duplicates()
        m.eliminate_zeros()
        own = np.repeat(np.arange(pairs), np.diff(m.indptr)) * n_states + m.indices
        features[np.searchsorted(keys, own), i] = m.data
    return LinearMixture(
        *(n_states, n_actions, union.indptr.astype(np.int64), union.indices.astype(np.int32), features),
        B=1.0 if B is None else B,
        start=start,
        terminal=np.zeros(n_states, bool) if terminal is None else np.asarray(terminal, bool),
    )


def _to_sparse_matrix(kernel: Any, i: int) -> sparse.csr_matrix:
    from scipy import sparse

    try:
        return sparse.csr_matrix(kernel, dtype=float)
    except (TypeError, ValueError):
        raise InputError(f"kernels: number {i} is not a matrix of numbers") from None
