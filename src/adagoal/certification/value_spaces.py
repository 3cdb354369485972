"""What a certification varies (a box, a list or a sampler of goals or starts), and how it is halved into cells."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from adagoal.core.array_types import Bools, Floats, Longs
from adagoal.core.errors import EnvironmentFailure, InputError, describe_user_exception

ValueSampler = Callable[[np.random.Generator, int], Floats]
"""``sample(rng, n) -> [n, V]``: draw goals or starts."""


class CellTree:
    """A space in cells: a tree of halvings that a sample ``[n, V]`` of its values fixes before the first rollout.

    The root is the whole space. A cell is halved across its widest side, measured in ``units`` [V], at the median of
    the sample, so the cells of a level hold about the same share of the values. The root has index 1, and cell i is
    halved into 2i and 2i + 1. A cell whose values are all equal cannot be halved. ``lowest`` [V] is the lowest corner
    of the space, if it is not that of the sample.
    """

    def __init__(
        self, sample: Floats, halvings: int, units: Floats | float = 1.0, lowest: Floats | None = None
    ) -> None:
        size = 2 ** (halvings + 1)
        self._units = units
        self.low, self.high = (np.zeros((size, sample.shape[1])) for _ in range(2))
        """Corners ``[cells, V]``; the outer ones are those of the sample."""
        self.share = np.zeros(size)
        """Share of the sample in every cell ``[cells]``; 0 for indices without a cell."""
        self._split_axis = np.full(size, -1)  # -1: the cell cannot be halved
        self._split_value = np.zeros(size)
        self.low[1], self.high[1] = sample.min(0) if lowest is None else lowest, sample.max(0)
        members: dict[int, Floats] = {1: sample}
        for cell in range(1, size):
            values = members.pop(cell, None)
            if values is None:
                continue
            self.share[cell] = len(values) / len(sample)
            if 2 * cell < size and np.ptp(values, 0).max() > 0.0:
                below = self._split_cell(cell, values)
                members[2 * cell], members[2 * cell + 1] = values[below], values[~below]

    def _split_cell(self, cell: int, values: Floats) -> Bools:
        """Halve a cell; returns which of its values lie in the first half."""
        axis = int((np.ptp(values, 0) / self._units).argmax())
        # Between two different values, as near to the median as possible: many values may share a coordinate, and a cut
        # at the median itself could leave one half empty.
        distinct, times = np.unique(values[:, axis], return_counts=True)
        cut = float(distinct[int(np.abs(np.cumsum(times)[:-1] - len(values) / 2).argmin())])
        self._split_axis[cell], self._split_value[cell] = axis, cut
        for half in (2 * cell, 2 * cell + 1):
            self.low[half], self.high[half] = self.low[cell], self.high[cell]
        self.high[2 * cell, axis] = self.low[2 * cell + 1, axis] = cut
        return np.asarray(values[:, axis] <= cut)

    def digest(self) -> str:
        """SHA-256 of all cells; a resumed certification needs the same ones."""
        return hashlib.sha256(self.low.tobytes() + self.high.tobytes()).hexdigest()

    def level_of_cell(self, cell: int) -> int:
        """Number of halvings that made the cell."""
        return int(cell).bit_length() - 1

    def can_be_split(self, cell: int) -> bool:
        """Whether the cell has halves."""
        return bool(self._split_axis[cell] >= 0)

    def cells_on_level(self, level: int) -> list[int]:
        """The cells of a level, and those above it that cannot be halved."""
        cells = [1]
        for _ in range(level):
            cells = [c for cell in cells for c in ((2 * cell, 2 * cell + 1) if self.can_be_split(cell) else (cell,))]
        return cells

    def find_cells(self, values: Floats, level: int) -> Longs:
        """The cells ``[n]`` of a level that hold the values ``[n, V]``; or the one above, if that is not halved."""
        cells = np.full(len(values), 1)
        for _ in range(level):
            axes = self._split_axis[cells]
            beyond = values[np.arange(len(values)), axes] > self._split_value[cells]
            cells = np.where(axes < 0, cells, 2 * cells + beyond)
        return cells

    def draw_values_in_cell(self, cell: int, count: int, sample: ValueSampler, rng: np.random.Generator) -> Floats:
        """Values ``[count, V]`` of a cell by rejection: draw from the space, drop what lies in other cells."""
        drawn = np.zeros((0, self.low.shape[1]))
        while len(drawn) < count:
            missing = count - len(drawn)
            # half as many again as needed, so one draw is usually enough; bounded for the memory
            values = sample(rng, min(1_000_000, int(1.5 * missing / self.share[cell]) + 16))
            drawn = np.concatenate([drawn, values[self.find_cells(values, self.level_of_cell(cell)) == cell]])
        return drawn[:count]


TREE_SAMPLE_BITS = 15  # 2^15 values fix the cells, as in the engine


@dataclass(frozen=True)
class ValueSpace:
    """A distribution of values ``[V]``, and the values that fix its cells."""

    sample: ValueSampler
    names: tuple[str, ...] | None  # of the coordinates, if the user gave names
    text: str  # for the certificate
    tree_values: Floats  # [n, V]
    units: Floats  # the extent of every coordinate, by which the sides of a cell are compared [V]
    lowest: Floats | None = None  # corner of a box [V]

    @classmethod
    def from_sampler(cls, sample: ValueSampler, names: tuple[str, ...] | None, text: str) -> ValueSpace:
        """Return the space of a function that draws values."""
        # Not a stream of the certification: values that shaped the cells must not be played.
        values = sample(np.random.default_rng(1), 2**12)
        return cls(sample, names, text, values, _extent(values))

    def make_tree(self, halvings: int) -> CellTree:
        """Return the cells."""
        return CellTree(self.tree_values, halvings, self.units, self.lowest)

    def split_names(self, value: Floats) -> Any:
        """Return a value in the form of the user: a dictionary if the coordinates have names."""
        return value if self.names is None else dict(zip(self.names, value.tolist(), strict=True))


def make_value_space(argument: str, given: Any) -> ValueSpace:
    """Make the space of the argument ``goals`` or ``starts``.

    A box is a dictionary ``{name: (low, high)}``, its text ``name=low:high,...``, a pair ``(low, high)`` of arrays or a
    ``gymnasium.spaces.Box``. The values of a list or array ``[n, V]`` are drawn equally often. A function ``f(rng)``
    draws one value.
    """
    if isinstance(given, str):
        given = parse_box(argument, given)
    if isinstance(given, Mapping) and given:
        ends = [_parse_numbers(argument, given[name], (2,)) for name in given]
        return _make_box(argument, np.array(ends).T, tuple(map(str, given)))
    if isinstance(given, spaces.Box):
        return _make_box(argument, np.stack([given.low.ravel(), given.high.ravel()]).astype(np.float64), None)
    if isinstance(given, tuple) and len(given) == 2:
        low, high = (np.atleast_1d(_parse_numbers(argument, end)) for end in given)
        if low.ndim != 1 or low.shape != high.shape:
            raise InputError(f"low and high must have the same size, got {low.shape} and {high.shape}", argument)
        return _make_box(argument, np.stack([low, high]), None)
    if callable(given):
        return _make_sampled(argument, given)
    if isinstance(given, Sequence | np.ndarray) and not isinstance(given, str) and len(given):
        names = _names_of(given[0])
        values = _parse_rows(argument, given, names)
        values = values[:, None] if values.ndim == 1 else values.reshape(len(values), -1)
        digest = hashlib.sha256(values.tobytes()).hexdigest()[:16]

        def draw(rng: np.random.Generator, n: int) -> Floats:
            return np.asarray(values[rng.integers(len(values), size=n)])

        return ValueSpace(draw, names, f"{len(values)} values, {digest}", values, _extent(values))
    raise InputError("must be a box {'x': (-2, 2)} or (low, high), a list of values, or a function f(rng)", argument)


def parse_box(argument: str, text: str) -> dict[str, tuple[float, float]] | tuple[list[float], list[float]]:
    """Parse ``x=-2:2,theta=-0.2:0.2``, or ``-2:2,-0.2:0.2`` without names.

    >>> parse_box("starts", "x=-2:2,theta=-0.2:0.2")
    {'x': (-2.0, 2.0), 'theta': (-0.2, 0.2)}
    """
    parts = [part.rpartition("=") for part in text.split(",")]
    try:
        ends = [tuple(float(end) for end in interval.split(":")) for _, _, interval in parts]
        pairs = [(low, high) for low, high in ends]
    except ValueError:
        raise InputError(f"must look like x=-2:2,theta=-0.2:0.2, got {text!r}", argument) from None
    names = [name.strip() for name, _, _ in parts]
    if not any(names):
        return [low for low, _ in pairs], [high for _, high in pairs]
    if not all(names) or len({*names}) < len(names):
        raise InputError(f"every interval needs a name of its own, got {text!r}", argument)
    return dict(zip(names, pairs, strict=True))


def _make_box(argument: str, ends: Floats, names: tuple[str, ...] | None) -> ValueSpace:
    low, high = ends
    if not (np.isfinite(ends).all() and (low <= high).all()):
        raise InputError(f"low must be at most high, and both finite, got {low.tolist()} and {high.tolist()}", argument)
    V = len(low)
    # A lattice cuts a box at its exact middles; the last lattice point of every half is its upper end.
    side = 2 ** (TREE_SAMPLE_BITS // V)
    axes = [np.linspace(a, b, side + 1)[1:] for a, b in ends.T]
    lattice = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], 1)
    texts = [f"{a:.15g}:{b:.15g}" for a, b in ends.T]
    text = ",".join([f"{name}={part}" for name, part in zip(names, texts, strict=True)] if names else texts)

    def draw(rng: np.random.Generator, n: int) -> Floats:
        return rng.uniform(low, high, (n, V))

    # with more than 15 coordinates the lattice would be a single point
    tree_values = lattice if side > 1 else draw(np.random.default_rng(1), 2**TREE_SAMPLE_BITS)
    return ValueSpace(draw, names, text, tree_values, _extent(ends), low)


def _make_sampled(argument: str, function: Any) -> ValueSpace:
    def call(rng: np.random.Generator) -> Any:
        try:
            return function(rng)
        except (Exception, SystemExit) as error:
            raise EnvironmentFailure(f"the function raised {describe_user_exception(error)}", argument) from error

    names = _names_of(call(np.random.default_rng(0)))

    def draw(rng: np.random.Generator, n: int) -> Floats:
        return _parse_rows(argument, [call(rng) for _ in range(n)], names).reshape(n, -1)

    return ValueSpace.from_sampler(draw, names, getattr(function, "__qualname__", "function"))


def _names_of(value: Any) -> tuple[str, ...] | None:
    return tuple(map(str, value)) if isinstance(value, Mapping) else None


def _parse_rows(argument: str, rows: Any, names: tuple[str, ...] | None) -> Floats:
    """Return values as numbers; all must have the names of the first one."""
    wrong = next((row for row in rows if {*(_names_of(row) or ())} != {*(names or ())}), None)
    if wrong is not None:
        raise InputError(f"must all have the entries {names or 'of a list'}, got {str(wrong)[:60]}", argument)
    return _parse_numbers(argument, [[row[name] for name in names] for row in rows] if names else rows)


def _extent(values: Floats) -> Floats:
    size = np.ptp(values, 0)
    # a coordinate that does not vary is never cut, whatever its unit
    return np.where(size > 0.0, size, 1.0)


def _parse_numbers(argument: str, value: Any, shape: tuple[int, ...] | None = None) -> Floats:
    try:
        numbers = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        numbers = np.full(1, np.nan)
    if not np.isfinite(numbers).all() or (shape is not None and numbers.shape != shape):
        raise InputError(f"must be finite numbers{' low, high' if shape else ''}, got {str(value)[:60]}", argument)
    return numbers
