"""``TabularMDP``, public as ``adagoal.Model``: a finite Markov decision process with a reset, as sparse arrays.

States are ``0..S-1`` and actions ``0..A-1``. The reset is one more action, number ``A``
(:attr:`TabularMDP.reset_action`). It leads from every state to ``start``, with certainty, and costs one step
(``assumption_reset`` of the paper). In a *terminal* state it is the only action. States may have different actions: the
pair of an *absent* action leads to ``start``, as the reset does.

The pair (s, a) has the number ``x = s * A + a``. The successors of x are ``successors[indptr[x]:indptr[x + 1]]``, and
``probabilities`` has their probabilities at the same indices.

Every model is checked when it is made. An error names the state and the action, with their labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from adagoal.core.array_types import MAX_ACTIONS, Bools, Floats, Ints, Longs
from adagoal.core.environment import GridLayout
from adagoal.core.errors import InputError
from adagoal.core.linear_mixture import LinearMixture

if TYPE_CHECKING:  # functions import SciPy: it takes a tenth of a second, and many commands never need it
    from scipy import sparse

SUM_TOLERANCE = 1e-9  # how far from one the probabilities of a pair may sum
# A sum that is farther from one is a mistake, not rounding, whatever the type: the check must not repair it.
MAX_ROUNDING_ERROR = 0.01


@dataclass(frozen=True)
class TabularMDP:
    """A known transition kernel p(s' | s, a) with a start state."""

    n_states: int
    n_actions: int
    indptr: Longs  # [S * A + 1]
    successors: Ints  # [nnz]
    probabilities: Floats  # [nnz], positive, each row sums to one
    start: int = 0
    terminal: Bools = field(default_factory=lambda: np.zeros(0, bool))  # [S], or empty: no state is terminal
    absent: Bools = field(default_factory=lambda: np.zeros(0, bool))  # [S * A], or empty: no pair is absent
    name: str = "mdp"
    labels: tuple[str, ...] = ()  # [S] names of states, or empty
    actions: tuple[str, ...] = ()  # [S * A] names of the actions of all pairs, or empty
    # Named sets of states, each [S]. Model checkers call them labels.
    sets: Mapping[str, Bools] = field(default_factory=dict, compare=False, repr=False)
    layout: GridLayout | None = None
    # The known kernels of which this model is a mixture. The weights are not stored: a learner must not see them.
    mixture: LinearMixture | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.n_states < 1 or self.n_actions < 1:
            sizes_text = f"{self.n_states} and {self.n_actions}"
            raise InputError(f"a model needs at least one state and one action, got {sizes_text}")
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
                raise InputError(f"must have {size} entries, got {len(getattr(self, name))}", name)
        for name, members in self.sets.items():
            if members.shape != (self.n_states,) or members.dtype != bool:
                raise InputError(f"{name!r} must be {self.n_states} booleans, one per state", "sets")
        if self.indptr.shape != (pairs + 1,) or self.indptr[0] != 0 or self.indptr[-1] != len(self.successors):
            raise InputError("indptr must have S * A + 1 entries, from 0 to the number of successors")
        if len(self.probabilities) != len(self.successors) or (np.diff(self.indptr) < 0).any():
            raise InputError("indptr must not decrease, and successors and probabilities must have the same length")
        self._check_distributions()

    def _check_distributions(self) -> None:
        """Check that every row is a distribution over the states; the error names the first pair that is not."""
        wrong = np.flatnonzero(~((self.probabilities > 0) & np.isfinite(self.probabilities)))
        if len(wrong):
            pair = int(np.searchsorted(self.indptr, wrong[0], "right")) - 1
            raise InputError(f"{self.pair_name(pair)}: {self.probabilities[wrong[0]]:g} is not a probability")
        wrong = np.flatnonzero((self.successors < 0) | (self.successors >= self.n_states))
        if len(wrong):
            pair = int(np.searchsorted(self.indptr, wrong[0], "right")) - 1
            successor = self.successors[wrong[0]]
            raise InputError(f"{self.pair_name(pair)}: successors must be in 0..{self.n_states - 1}, got {successor}")
        sums = np.zeros(len(self.indptr) - 1)
        # For an empty row, reduceat would return an entry of the next one.
        nonempty = np.diff(self.indptr) > 0
        if nonempty.any():
            sums[nonempty] = np.add.reduceat(self.probabilities, self.indptr[:-1][nonempty])
        wrong = np.flatnonzero(np.abs(sums - 1) > SUM_TOLERANCE)
        if len(wrong):
            text = f"the probabilities sum to {sums[wrong[0]]:.12g}, not to one"
            if abs(sums[wrong[0]] - 1) <= MAX_ROUNDING_ERROR:
                text += "; if that is rounding, divide them by their sum: P / P.sum(-1, keepdims=True)"
            raise InputError(f"{self.pair_name(int(wrong[0]))}: {text}")
        leads_to_start = (np.diff(self.indptr) == 1) & (self.successors[self.indptr[:-1]] == self.start)
        wrong = np.flatnonzero(self.absent & ~leads_to_start)
        if len(wrong):
            raise InputError(f"{self.pair_name(int(wrong[0]))}: an absent action must lead to the start")

    @staticmethod
    def from_dense(P: ArrayLike, **facts: Any) -> TabularMDP:
        """Make a model from an array P[s, a, s']; ``facts`` are those of :func:`model_from_matrix`."""
        from scipy import sparse

        try:
            array = np.asarray(P)
            if np.iscomplexobj(array):
                raise TypeError("these are complex")
            dense = np.asarray(array, float)
        except (TypeError, ValueError) as error:
            raise InputError(f"must be an array of numbers P[s, a, s'] ({error})", "P") from None
        if dense.ndim != 3 or dense.shape[0] != dense.shape[2] or dense.size == 0:
            by_action = dense.ndim == 3 and dense.shape[1] == dense.shape[2] and dense.size
            hint = "; an array [A, S, S] must be transposed: np.transpose(P, (1, 0, 2))" if by_action else ""
            raise InputError(f"must have the shape [S, A, S], got {list(dense.shape)}{hint}", "P")
        n_states, n_actions, _ = dense.shape
        matrix = _correct_rounding(sparse.csr_matrix(dense.reshape(-1, n_states)), array.dtype)
        return model_from_matrix(matrix, n_states, n_actions, **facts)

    @staticmethod
    def from_sparse(P: Sequence[Any], **facts: Any) -> TabularMDP:
        """Make a model from SciPy's sparse matrices, one [S, S] per action.

        ``facts`` are those of :func:`model_from_matrix`.
        """
        from scipy import sparse

        if not isinstance(P, Sequence) or len(P) == 0 or not all(sparse.issparse(p) for p in P):
            raise InputError("must be a list of sparse matrices, one [S, S] per action, even for one action", "P")
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
        """Read a model from a file of :meth:`save` or of a model checker, with values for its constants.

        Reading checks the whole file and executes nothing in it.
        """
        from adagoal.envs import model_sources

        return model_sources.read_model_file(str(path), constants)

    def save(self, path: str | Path) -> Path:
        """Write the model into one ``.npz``, atomically."""
        from adagoal.envs import model_sources

        return model_sources.save_model(self, Path(path))

    def states(self, label: str) -> list[int]:
        """Return the states of the set with this name, or the states with this name."""
        if label in self.sets:
            return [int(s) for s in np.flatnonzero(self.sets[label])]
        states = [s for s, name in enumerate(self.labels) if name == label]
        if not states:
            known = ", ".join(self.sets) or "none"
            raise InputError(f"{self.name} has no state and no set of states called {label!r} (sets: {known})", "label")
        return states

    def pair_name(self, pair: int) -> str:
        """Return state and action of a pair in words, for messages."""
        state, action = divmod(pair, self.n_actions)
        state_name = f" ({self.labels[state]})" if self.labels else ""
        action_name = f" ({self.actions[pair]})" if self.actions else ""
        return f"state {state}{state_name}, action {action}{action_name}"

    @property
    def reset_action(self) -> int:
        """The number of the reset action."""
        return self.n_actions

    def row(self, state: int, action: int) -> tuple[Ints, Floats]:
        """Return successors and probabilities of one pair."""
        span = slice(self.indptr[x := state * self.n_actions + action], self.indptr[x + 1])
        return self.successors[span], self.probabilities[span]

    def kernel(self) -> sparse.csr_matrix:
        """Return p as a sparse matrix [S * A, S]."""
        from scipy import sparse

        shape = self.n_states * self.n_actions, self.n_states
        return sparse.csr_matrix((self.probabilities, self.successors, self.indptr), shape=shape)


Model = TabularMDP


def model_from_rows(rows: Sequence[Mapping[int, float]], n_actions: int, **facts: Any) -> TabularMDP:
    """Make a model from one mapping {successor: probability} per pair, in the order of x = s * A + a."""
    n_states = len(rows) // n_actions
    pairs = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    successors = np.array([s for row in rows for s in row], np.int64)
    if len(wrong := np.flatnonzero((successors < 0) | (successors >= n_states))):
        raise InputError(f"successors must be in 0..{n_states - 1}, got {successors[wrong[0]]}")
    probabilities = np.array([p for row in rows for p in row.values()], float)
    return _model_from_cells(pairs * n_states + successors, probabilities, n_states, n_actions, **facts)


def model_from_matrix(matrix: sparse.csr_matrix, n_states: int, n_actions: int, **facts: Any) -> TabularMDP:
    """Make a model from a sparse matrix [S * A, S] and the facts of :func:`_model_from_cells`."""
    # A copy: the matrix of the caller must not change.
    matrix = matrix.copy()
    matrix.sum_duplicates()
    entries = matrix.tocoo(copy=False)
    cells = entries.row.astype(np.int64)
    cells *= n_states
    cells += entries.col
    return _model_from_cells(cells, entries.data, n_states, n_actions, **facts)


def _model_from_cells(
    cells: Longs,
    probabilities: Floats,
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
    """Make a model from entries, each with its cell x * S + s', and the other fields of :class:`TabularMDP`.

    ``terminal`` are states, or booleans [S]; their rows may be empty, because the reset is the only action there.
    ``action_mask`` [S, A] is 1 for the actions that a state has and 0 for absent ones, whose rows are ignored.
    ``actions`` are A names for all states, or S * A names. ``sets`` are names, each with states or booleans [S].
    """
    _check_start_state(start, n_states)
    if not isinstance(sets, Mapping | None):
        raise InputError(f"must be names with states, got {sets!r}", "sets")
    is_terminal, absent = _state_mask(terminal, n_states, "terminal"), _absent_pairs(action_mask, n_states, n_actions)
    if (cells[1:] <= cells[:-1]).any():
        # Sort the entries, and add up those of the same pair and successor.
        cells, places = np.unique(cells, return_inverse=True)
        probabilities = np.bincount(places, probabilities, len(cells)).astype(float)
    kept = (probabilities != 0.0) & ~absent[cells // n_states]
    cells, probabilities = cells[kept], probabilities[kept]
    lengths = np.bincount(cells // n_states, minlength=n_states * n_actions)
    empty = np.flatnonzero(absent | (np.repeat(is_terminal, n_actions) & (lengths == 0)))
    if len(empty):
        # Kernels need a successor in every row: absent pairs lead to the start, empty rows of terminal states to
        # themselves.
        cells = np.append(cells, empty * n_states + np.where(absent[empty], start, empty // n_actions))
        order = np.argsort(cells)
        cells, probabilities = cells[order], np.append(probabilities, np.ones(len(empty)))[order]
        lengths[empty] = 1
    return TabularMDP(
        n_states,
        n_actions,
        np.append(0, np.cumsum(lengths)),
        (cells % n_states).astype(np.int32),
        probabilities.astype(float),
        start=start,
        terminal=is_terminal,
        absent=absent,
        labels=tuple(map(str, labels)),
        actions=tuple(map(str, actions)) * (n_states if len(actions) == n_actions else 1),
        sets={name: _state_mask(members, n_states, "sets", f"{name!r} ") for name, members in (sets or {}).items()},
        **facts,
    )


def _correct_rounding(matrix: sparse.csr_matrix, *dtypes: np.dtype[Any]) -> sparse.csr_matrix:
    """Undo the rounding of probabilities that were given in one of these types.

    Slightly negative entries become zero. Rows of a type shorter than float64 are divided by their sum, if that is one
    within the precision of the type.
    """
    double = float(np.finfo(float).eps)
    eps = max([double, *(float(np.finfo(dtype).eps) for dtype in dtypes if dtype.kind == "f")])
    matrix.data[(matrix.data < 0) & (matrix.data >= -4 * eps)] = 0.0
    if eps > double:
        lengths, sums = np.diff(matrix.indptr), np.asarray(matrix.sum(axis=1)).ravel()
        close = np.abs(sums - 1) <= np.minimum(4 * eps * lengths, MAX_ROUNDING_ERROR)
        matrix.data /= np.repeat(np.where(close, sums, 1.0), lengths)
    return matrix


def _absent_pairs(action_mask: ArrayLike | None, n_states: int, n_actions: int) -> Bools:
    """[S * A] the pairs that a mask [S, A] makes absent."""
    if action_mask is None:
        return np.zeros(n_states * n_actions, bool)
    mask = np.asarray(action_mask)
    if mask.shape != (n_states, n_actions) or not np.isin(mask, (0, 1)).all():
        raise InputError(
            f"must have the shape [{n_states}, {n_actions}] and hold 0 and 1 only, got the shape {list(mask.shape)}",
            "action_mask",
        )
    return ~mask.astype(bool).ravel()


def _check_start_state(start: Any, n_states: int) -> None:
    # A boolean is an int in Python, but True is not a state.
    is_integer = isinstance(start, int | np.integer) and not isinstance(start, bool)
    if not is_integer or not 0 <= start < n_states:
        raise InputError(f"must be one state in 0..{n_states - 1}, got {start!r}", "start")


def _state_mask(states: ArrayLike | None, n_states: int, argument: str, part: str = "") -> Bools:
    """[S] whether a state is among ``states`` (numbers, or booleans [S]); ``part`` names the part of an argument."""
    try:
        array = np.atleast_1d(np.asarray([] if states is None else states))
        if array.dtype == bool and array.shape == (n_states,):
            return array
        if array.dtype == bool and array.size:
            raise ValueError
        numbers = array.astype(np.int64)
        if (numbers != array).any() or array.ndim != 1 or ((numbers < 0) | (numbers >= n_states)).any():
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        text = f"{part}must be states in 0..{n_states - 1}, or {n_states} booleans, got {states!r}"
        raise InputError(text, argument) from None
    mask = np.zeros(n_states, bool)
    mask[numbers] = True
    return mask
