"""A finite Markov decision process with a reset, as sparse arrays. Its public name is ``adagoal.Model``.

States are ``0..S-1``, the actions that the environment offers ``0..A-1``. The reset is one more action,
number ``A`` (:attr:`TabularMDP.reset_action`): it leads to ``start`` from every state, with certainty, and costs
one step (assumption ``assumption_reset`` of the paper). In a *terminal* state it is the only action. States may have
different actions: the pair of an *absent* one leads to ``start``, as the reset does, so that nothing is gained by it.

The pair (s, a) has the number ``x = s * A + a``; the successors of x are
``successors[indptr[x]:indptr[x + 1]]`` with the probabilities ``probabilities[...]`` in the same places.

A model is checked when it is made, whatever it is made from: what is wrong is named by state and action, with their
labels where they have any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from adagoal.core.errors import InputError
from adagoal.core.linear_mixture import LinearMixture
from adagoal.core.types import MAX_ACTIONS, Bools, Floats, GridLayout, Ints, Longs

SUM_TOLERANCE = 1e-9
"""How far from one the probabilities of a pair may sum."""
MAX_ROUNDING_ERROR = 0.01
"""What is farther from one than this is no rounding, of whatever type the probabilities were."""


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
    absent: Bools = field(default_factory=lambda: np.zeros(0, bool))
    """[S * A]: pairs that do not exist, as the state does not have the action; empty means none."""
    name: str = "mdp"
    labels: tuple[str, ...] = ()
    """[S] names of states for people, or empty."""
    actions: tuple[str, ...] = ()
    """[S * A] names of the pairs' actions for people, or empty; the same action may have another name elsewhere."""
    sets: Mapping[str, Bools] = field(default_factory=dict, compare=False, repr=False)
    """Named sets of states, each [S]: what the verification community calls the labels of a model."""
    layout: GridLayout | None = None
    mixture: LinearMixture | None = field(default=None, compare=False, repr=False)
    """The known kernels that this model is a mixture of, where it is one; the weights are not kept."""

    def __post_init__(self) -> None:
        if self.n_states < 1 or self.n_actions < 1:
            raise InputError("a model needs at least one state and one action")
        if self.n_actions > MAX_ACTIONS:
            raise InputError(f"the model has {self.n_actions} actions; at most {MAX_ACTIONS} are possible")
        _check_start_state(self.start, self.n_states)
        if self.terminal.size == 0:
            object.__setattr__(self, "terminal", np.zeros(self.n_states, bool))
        pairs = self.n_states * self.n_actions
        if self.absent.size == 0:
            object.__setattr__(self, "absent", np.zeros(pairs, bool))
        sizes = {"terminal": self.n_states, "absent": pairs, "labels": self.n_states, "actions": pairs}
        for name, size in sizes.items():
            if len(getattr(self, name)) not in (0, size):
                raise InputError(f"must be {size} in number, got {len(getattr(self, name))}", name)
        for name, members in self.sets.items():
            if members.shape != (self.n_states,) or members.dtype != bool:
                raise InputError(f"{name!r} must be {self.n_states} booleans, one per state", "sets")
        if self.indptr.shape != (pairs + 1,) or self.indptr[0] != 0 or self.indptr[-1] != len(self.successors):
            raise InputError("indptr must have S * A + 1 entries, from 0 to the number of successors")
        if len(self.probabilities) != len(self.successors) or (np.diff(self.indptr) < 0).any():
            raise InputError("indptr, successors and probabilities do not fit together")
        self._check_distributions()

    def _check_distributions(self) -> None:
        """Every row is a distribution over the states; the first that is not is named."""
        wrong = np.flatnonzero(~((self.probabilities > 0) & np.isfinite(self.probabilities)))
        if len(wrong):
            pair = int(np.searchsorted(self.indptr, wrong[0], "right")) - 1
            raise InputError(f"{self.pair_name(pair)}: {self.probabilities[wrong[0]]:g} is not a probability")
        wrong = np.flatnonzero((self.successors < 0) | (self.successors >= self.n_states))
        if len(wrong):
            pair = int(np.searchsorted(self.indptr, wrong[0], "right")) - 1
            raise InputError(f"{self.pair_name(pair)}: there is no state {self.successors[wrong[0]]}")
        sums = np.zeros(len(self.indptr) - 1)
        filled = np.diff(self.indptr) > 0  # reduceat takes an empty row for its neighbour
        if filled.any():
            sums[filled] = np.add.reduceat(self.probabilities, self.indptr[:-1][filled])
        wrong = np.flatnonzero(np.abs(sums - 1) > SUM_TOLERANCE)
        if len(wrong):
            text = f"the probabilities sum to {sums[wrong[0]]:.12g}, not to one"
            if abs(sums[wrong[0]] - 1) <= MAX_ROUNDING_ERROR:
                text += "; where that is rounding, divide them by their sum: P / P.sum(-1, keepdims=True)"
            raise InputError(f"{self.pair_name(int(wrong[0]))}: {text}")
        alone = (np.diff(self.indptr) == 1) & (self.successors[self.indptr[:-1]] == self.start)
        wrong = np.flatnonzero(self.absent & ~alone)
        if len(wrong):
            raise InputError(f"{self.pair_name(int(wrong[0]))}: an absent action must lead to the start")

    @staticmethod
    def from_dense(P: ArrayLike, **facts: Any) -> TabularMDP:
        """A model from an array P[s, a, s']; ``facts`` are those of :func:`model_from_matrix`."""
        try:
            given = np.asarray(P)
            if np.iscomplexobj(given):
                raise TypeError("these are complex")
            dense = np.asarray(given, float)
        except (TypeError, ValueError) as error:
            raise InputError(f"must be an array of numbers P[s, a, s'] ({error})", "P") from None
        if dense.ndim != 3 or dense.shape[0] != dense.shape[2] or dense.size == 0:
            by_action = dense.ndim == 3 and dense.shape[1] == dense.shape[2] and dense.size
            hint = "; an array [A, S, S] must be transposed: np.transpose(P, (1, 0, 2))" if by_action else ""
            raise InputError(f"must have the shape [S, A, S], got {list(dense.shape)}{hint}", "P")
        n_states, n_actions, _ = dense.shape
        matrix = _correct_rounding(sparse.csr_matrix(dense.reshape(-1, n_states)), given.dtype)
        return model_from_matrix(matrix, n_states, n_actions, **facts)

    @staticmethod
    def from_sparse(P: Sequence[Any], **facts: Any) -> TabularMDP:
        """A model from SciPy's sparse matrices, one [S, S] per action; ``facts`` are those of
        :func:`model_from_matrix`."""
        if not isinstance(P, Sequence) or len(P) == 0 or not all(sparse.issparse(p) for p in P):
            raise InputError("must be a list of sparse matrices, one [S, S] per action, also where there is one", "P")
        n_states, n_actions = P[0].shape[0], len(P)
        for action, p in enumerate(P):
            if p.shape != (n_states, n_states):
                raise InputError(f"action {action}: must have the shape [S, S], got {list(p.shape)}", "P")
        by_action = sparse.csr_matrix(sparse.vstack(P, format="csr", dtype=float))
        order = np.arange(n_states * n_actions).reshape(n_actions, n_states).T.ravel()
        matrix = _correct_rounding(by_action[order], *(p.dtype for p in P))
        return model_from_matrix(matrix, n_states, n_actions, **facts)

    @staticmethod
    def load(path: str | Path, **constants: Any) -> TabularMDP:
        """The model in a file: one that :meth:`save` wrote, or of a verification tool, with values for its constants.

        Nothing in the file is executed, and all of it is checked.
        """
        from adagoal.envs import model_sources

        return model_sources.read_model_file(str(path), constants)

    def save(self, path: str | Path) -> Path:
        """Write the model into one ``.npz``, atomically."""
        from adagoal.envs import model_sources

        return model_sources.save_model(self, Path(path))

    def states(self, label: str) -> list[int]:
        """The states that a label means: those of the set of that name, or the one state with that name."""
        if label in self.sets:
            return [int(s) for s in np.flatnonzero(self.sets[label])]
        found = [s for s, name in enumerate(self.labels) if name == label]
        if not found:
            known = ", ".join(self.sets) or "none"
            raise InputError(f"{self.name} has no state and no set of states called {label!r} (sets: {known})", "label")
        return found

    def pair_name(self, pair: int) -> str:
        """State and action of a pair in words, for messages."""
        state, action = divmod(pair, self.n_actions)
        state_name = f" ({self.labels[state]})" if self.labels else ""
        action_name = f" ({self.actions[pair]})" if self.actions else ""
        return f"state {state}{state_name}, action {action}{action_name}"

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


Model = TabularMDP
"""The public name."""


def model_from_rows(rows: Sequence[Mapping[int, float]], n_actions: int, **facts: Any) -> TabularMDP:
    """A model from one mapping {successor: probability} per pair, in the order of x = s * A + a."""
    indptr = np.cumsum([0, *(len(row) for row in rows)])
    successors = np.array([s for row in rows for s in row], np.int32)
    probabilities = np.array([p for row in rows for p in row.values()], float)
    matrix = sparse.csr_matrix((probabilities, successors, indptr), shape=(len(rows), len(rows) // n_actions))
    return model_from_matrix(matrix, len(rows) // n_actions, n_actions, **facts)


def model_from_matrix(
    matrix: sparse.csr_matrix,
    n_states: int,
    n_actions: int,
    *,
    start: int = 0,
    terminal: ArrayLike | None = None,
    action_mask: ArrayLike | None = None,
    actions: Sequence[str] = (),
    labels: Sequence[str] = (),
    sets: Mapping[str, ArrayLike] | None = None,
    **facts: Any,
) -> TabularMDP:
    """A model from a sparse matrix [S * A, S] and the other fields of :class:`TabularMDP`.

    ``terminal`` are states, or booleans [S]; their rows may be empty, since nothing but the reset is possible there.
    ``sets`` are names, each with states or booleans [S].
    ``action_mask`` [S, A] says which actions the states have (1) and which not (0), as Gymnasium's masks do; the rows
    of the latter are not looked at. ``actions`` are A names, which are then the same everywhere, or S * A.
    """
    _check_start_state(start, n_states)
    if not isinstance(sets, Mapping | None):
        raise InputError(f"must be names with states, got {sets!r}", "sets")
    ends, absent = _state_mask(terminal, n_states, "terminal"), _absent_pairs(action_mask, n_states, n_actions)
    matrix = matrix.copy()
    matrix.sum_duplicates()
    matrix.data[np.repeat(absent, np.diff(matrix.indptr))] = 0.0
    matrix.eliminate_zeros()
    empty = np.flatnonzero(absent | (np.repeat(ends, n_actions) & (np.diff(matrix.indptr) == 0)))
    if len(empty):
        there = (np.ones(len(empty)), (empty, np.where(absent[empty], start, empty // n_actions)))
        matrix = sparse.csr_matrix(matrix + sparse.csr_matrix(there, shape=matrix.shape))
    return TabularMDP(
        n_states,
        n_actions,
        matrix.indptr.astype(np.int64),
        matrix.indices.astype(np.int32),
        matrix.data.astype(float),
        start=start,
        terminal=ends,
        absent=absent,
        labels=tuple(map(str, labels)),
        actions=tuple(map(str, actions)) * (n_states if len(actions) == n_actions else 1),
        sets={name: _state_mask(members, n_states, "sets", f"{name!r} ") for name, members in (sets or {}).items()},
        **facts,
    )


def _correct_rounding(matrix: sparse.csr_matrix, *given: np.dtype[Any]) -> sparse.csr_matrix:
    """The probabilities that were meant, where they came in types with a rounding of their own.

    Entries that rounding has made negative are zero. Rows of a type shorter than float64 are divided by their sum,
    where that is one as far as the type can tell.
    """
    double = float(np.finfo(float).eps)
    eps = max([double, *(float(np.finfo(kind).eps) for kind in given if kind.kind == "f")])
    matrix.data[(matrix.data < 0) & (matrix.data >= -4 * eps)] = 0.0
    if eps > double:
        lengths, sums = np.diff(matrix.indptr), np.asarray(matrix.sum(axis=1)).ravel()
        close = np.abs(sums - 1) <= np.minimum(4 * eps * lengths, MAX_ROUNDING_ERROR)
        matrix.data /= np.repeat(np.where(close, sums, 1.0), lengths)
    return matrix


def _absent_pairs(action_mask: ArrayLike | None, n_states: int, n_actions: int) -> Bools:
    """[S * A] the pairs that a mask [S, A] leaves out."""
    if action_mask is None:
        return np.zeros(n_states * n_actions, bool)
    given = np.asarray(action_mask)
    if given.shape != (n_states, n_actions) or not np.isin(given, (0, 1)).all():
        raise InputError(f"must have the shape [{n_states}, {n_actions}] and hold 0 and 1 only", "action_mask")
    return ~given.astype(bool).ravel()


def _check_start_state(start: Any, n_states: int) -> None:
    """The start is one state."""
    whole = isinstance(start, int | np.integer) and not isinstance(start, bool)
    if not whole or not 0 <= start < n_states:
        raise InputError(f"must be one state in 0..{n_states - 1}, got {start!r}", "start")


def _state_mask(states: ArrayLike | None, n_states: int, argument: str, which: str = "") -> Bools:
    """[S] where a state is among the given ones (numbers, or booleans already); ``which`` of an argument's parts."""
    try:
        given = np.atleast_1d(np.asarray([] if states is None else states))
        if given.dtype == bool and given.shape == (n_states,):
            return given
        if given.dtype == bool and given.size:
            raise ValueError
        numbers = given.astype(np.int64)
        if (numbers != given).any() or given.ndim != 1 or ((numbers < 0) | (numbers >= n_states)).any():
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        text = f"{which}must be states in 0..{n_states - 1}, or {n_states} booleans, got {states!r}"
        raise InputError(text, argument) from None
    mask = np.zeros(n_states, bool)
    mask[numbers] = True
    return mask
