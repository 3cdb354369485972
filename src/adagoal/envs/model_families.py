"""Random models for tests and scaling runs. The same arguments give the same model; the start is state 0."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from adagoal.core.argument_checks import check_integer, check_number, check_total_size
from adagoal.core.errors import InputError
from adagoal.core.linear_mixture import ROW_SUM_TOLERANCE, LinearMixture, mixture_from_kernels
from adagoal.core.types import Floats, GridLayout, Longs
from adagoal.envs.model import TabularMDP, model_from_rows

MOST_DENSE = 2_000
MOST_STATES = 100_000
Row = dict[int, float]


def random_dense(*, n_states: int = 10, n_actions: int = 3, seed: int = 0) -> TabularMDP:
    """Every pair leads everywhere, with probabilities uniform on the simplex."""
    rng = _make_generator(n_states, n_actions, seed, MOST_DENSE)
    check_total_size("n_states twice, n_actions", n_states, n_states, n_actions)
    p = rng.dirichlet(np.ones(n_states), size=(n_states, n_actions))
    return TabularMDP.from_dense(p, name="random-dense")


def random_sparse(*, n_states: int = 20, n_actions: int = 3, branching: int = 3, seed: int = 0) -> TabularMDP:
    """Every pair leads to ``branching`` states drawn at random, with probabilities uniform on the simplex."""
    rng = _make_generator(n_states, n_actions, seed)
    check_integer("branching", branching, 1, n_states)
    rows = [
        _random_distribution(rng, rng.choice(n_states, branching, replace=False)) for _ in range(n_states * n_actions)
    ]
    return model_from_rows(rows, n_actions, name="random-sparse")


def random_deterministic(*, n_states: int = 20, n_actions: int = 3, seed: int = 0) -> TabularMDP:
    """Every pair leads to one state drawn at random; all states can be reached from s0 (action 0, a random cycle)."""
    rng = _make_generator(n_states, n_actions, seed)
    targets = rng.integers(n_states, size=(n_states, n_actions))
    order = np.concatenate([[0], 1 + rng.permutation(n_states - 1)])
    targets[order, 0] = np.roll(order, -1)
    rows = [{int(target): 1.0} for target in targets.ravel()]
    return model_from_rows(rows, n_actions, name="random-deterministic")


def random_traps(
    *, n_states: int = 20, n_actions: int = 3, traps: int = 4, branching: int = 3, seed: int = 0
) -> TabularMDP:
    """A sparse model whose last ``traps`` states form a region that nothing but the reset leaves.

    Every pair outside draws its successors from all states, every pair inside from the region.
    """
    rng = _make_generator(n_states, n_actions, seed)
    check_integer("traps", traps, 1, n_states - 1)
    check_integer("branching", branching, 1, n_states)
    sizes = np.repeat([n_states, traps], [(n_states - traps) * n_actions, traps * n_actions])
    rows = [
        _random_distribution(rng, n_states - size + rng.choice(size, min(branching, size), replace=False))
        for size in sizes.tolist()
    ]
    return model_from_rows(rows, n_actions, name="random-traps")


def random_unreachable(
    *, n_states: int = 20, n_actions: int = 3, hidden: int = 5, branching: int = 3, seed: int = 0
) -> TabularMDP:
    """A sparse model whose last ``hidden`` states cannot be reached from s0, though they lead to the others."""
    rng = _make_generator(n_states, n_actions, seed)
    check_integer("hidden", hidden, 1, n_states - 1)
    check_integer("branching", branching, 1, n_states)
    highs = np.repeat([n_states - hidden, n_states], [(n_states - hidden) * n_actions, hidden * n_actions])
    rows = [_random_distribution(rng, rng.choice(high, min(branching, high), replace=False)) for high in highs.tolist()]
    return model_from_rows(rows, n_actions, name="random-unreachable")


def random_waiting(
    *, n_states: int = 20, n_actions: int = 3, stay: float = 0.99, branching: int = 3, seed: int = 0
) -> TabularMDP:
    """A sparse model where half of the states, s0 never among them, keep the agent with probability ``stay``."""
    check_number("stay", stay, 0, 1, closed="[)")
    base = random_sparse(n_states=n_states, n_actions=n_actions, branching=branching, seed=seed)
    rng = np.random.default_rng([seed, 1])
    slow = np.concatenate([[False], rng.random(n_states - 1) < 0.5])
    rows = []
    for s in range(n_states):
        for a in range(n_actions):
            successors, probabilities = base.row(s, a)
            row = dict(zip(successors.tolist(), probabilities.tolist(), strict=True))
            if slow[s]:
                row = {target: p * (1 - stay) for target, p in row.items()}
                row[s] = row.get(s, 0.0) + stay
            rows.append({target: p for target, p in row.items() if p > 0})
    return model_from_rows(rows, n_actions, name="random-waiting")


def random_rare_exits(
    *, n_states: int = 20, n_actions: int = 3, rare: int = 4, p: float = 0.001, branching: int = 3, seed: int = 0
) -> TabularMDP:
    """A sparse model on the first states; each of the last ``rare`` is entered from one pair, with probability p."""
    rng = _make_generator(n_states, n_actions, seed)
    check_integer("rare", rare, 1, n_states - 1)
    check_number("p", p, 0, 1, closed="(]")
    check_integer("branching", branching, 1, n_states)
    common = n_states - rare
    check_integer("rare", rare, 1, common * n_actions)
    rows = [
        _random_distribution(rng, rng.choice(common, min(branching, common), replace=False))
        for _ in range(n_states * n_actions)
    ]
    for exit_state, pair in enumerate(rng.choice(common * n_actions, rare, replace=False).tolist(), start=common):
        rows[pair] = {target: (1 - p) * q for target, q in rows[pair].items() if p < 1} | {exit_state: p}
    return model_from_rows(rows, n_actions, name="random-rare-exits")


def _random_distribution(rng: np.random.Generator, successors: Longs) -> Row:
    probabilities = rng.dirichlet(np.ones(successors.size))
    return dict(zip(successors.tolist(), probabilities.tolist(), strict=True))


def _make_generator(n_states: int, n_actions: int, seed: int, most: int = MOST_STATES) -> np.random.Generator:
    """The arguments that all generators share, checked, and their source of randomness."""
    check_integer("n_states", n_states, 2, most)
    check_integer("n_actions", n_actions, 1, 1_000)
    check_total_size("n_states, n_actions", n_states, n_actions)
    check_integer("seed", seed, 0, 2**63 - 1)
    return np.random.default_rng(seed)


# Ready-made mixture worlds: true models that carry their :class:`~adagoal.core.linear_mixture.LinearMixture`.


MOST_CELLS = 1_000_000


def windy_mixture(
    *, shape: str = "8x8", d: int = 4, strength: float = 0.5, theta: Sequence[float] | None = None, signed: bool = False
) -> TabularMDP:
    """A grid in 2 or more dimensions with d wind regimes: calm, then a wind along each direction, then stronger gusts.

    In regime i >= 1 a step goes with the wind, one cell in one of the 2 n directions, with probability ``strength``,
    and where the action wants it otherwise; regimes beyond 2 n blow two cells far, and so on. With ``signed`` the
    kernels are calm and the differences wind - calm, which are signed measures, and theta = (1, ...). The start is in
    the middle.
    """
    cells, moves = _parse_grid_shape(shape)
    check_integer("d", d, 1, 1 + 4 * len(moves))
    check_total_size("cells, actions, d", len(cells), len(moves), d)
    check_number("strength", strength, 0, 1, closed="(]")
    if not isinstance(signed, bool):
        raise InputError(f"signed: must be true or false, got {signed!r}")

    def regime(i: int, action: int) -> list[tuple[float, Longs]]:
        if i == 0:
            return [(1.0, moves[action])]
        length, direction = divmod(i - 1, len(moves))
        return [(1.0 - strength, moves[action]), (strength, (1 + length) * moves[direction])]

    kernels = [_grid_transition_kernel(cells, [regime(i, a) for a in range(len(moves))]) for i in range(d)]
    weights = _default_weights(theta, d)
    if signed:
        kernels = kernels[:1] + [k - kernels[0] for k in kernels[1:]]
        weights = np.concatenate([[weights.sum()], weights[1:]])
    return _build_grid_mixture(f"mixture-windy-{shape}", kernels, weights, cells, len(moves))


def slippery_mixture(*, shape: str = "8x8", d: int = 3, theta: Sequence[float] | None = None) -> TabularMDP:
    """A grid with d friction levels: on level i a move carries i cells far, from stuck (0) to ice (d - 1)."""
    cells, moves = _parse_grid_shape(shape)
    check_integer("d", d, 2, 20)
    check_total_size("cells, actions, d", len(cells), len(moves), d)
    kernels = [_grid_transition_kernel(cells, [[(1.0, i * move)] for move in moves]) for i in range(d)]
    weights = np.full(d, 0.2 / (d - 1)) if theta is None else parse_mixture_weights(theta, d)
    if theta is None:
        weights[1] = 0.8
    return _build_grid_mixture(f"mixture-slippery-{shape}", kernels, weights, cells, len(moves))


def inventory_mixture(
    *, capacity: int = 49, d: int = 3, orders: int = 4, theta: Sequence[float] | None = None
) -> TabularMDP:
    """A stock of 0..capacity pieces, an order of 0..orders-1 a day, and d demand regimes, Poisson of mean 1, 2, 4...

    The start is half full.
    """
    check_integer("capacity", capacity, 1, 99_999)
    check_integer("d", d, 1, 8)
    check_integer("orders", orders, 2, 100)
    most = 4 * 2 ** (d - 1) + 10
    check_total_size("capacity, orders, demands", capacity + 1, orders, most)
    stock, order, demand = np.meshgrid(np.arange(capacity + 1), np.arange(orders), np.arange(most), indexing="ij")
    after = np.maximum(np.minimum(stock + order, capacity) - demand, 0).ravel()
    pair = (stock * orders + order).ravel()
    factorial = np.array([math.lgamma(j + 1.0) for j in range(most)])
    kernels = []
    for i in range(d):
        law = np.exp(np.arange(most) * math.log(2.0**i) - 2.0**i - factorial)
        probability = np.broadcast_to(law / law.sum(), stock.shape).ravel()
        kernels.append(sparse.csr_matrix((probability, (pair, after)), shape=((capacity + 1) * orders, capacity + 1)))
    features = mixture_from_kernels(kernels, orders, start=(capacity + 1) // 2)
    return model_from_mixture(features, _default_weights(theta, d), "mixture-inventory")


def weather_mixture(
    *, shape: str = "8x8", d: int = 4, strength: float = 0.5, seed: int = 0, theta: Sequence[float] | None = None
) -> TabularMDP:
    """A grid under d weather maps: calm, then maps with a wind of their own in every cell, drawn with the seed.

    On map i >= 1 a step goes with the wind of its cell, one cell far, with probability ``strength``, and where the
    action wants it otherwise. However many the maps, no wind is stronger than another. The start is in the middle.
    """
    cells, moves = _parse_grid_shape(shape)
    check_integer("d", d, 1, 100)
    check_total_size("cells, actions, d", len(cells), len(moves), d)
    check_integer("seed", seed, 0, 2**31)
    check_number("strength", strength, 0, 1, closed="(]")
    winds = moves[np.random.default_rng(seed).integers(len(moves), size=(d - 1, len(cells)))]
    calm = _grid_transition_kernel(cells, [[(1.0, move)] for move in moves])
    windy = [_grid_transition_kernel(cells, [[(1.0 - strength, move), (strength, w)] for move in moves]) for w in winds]
    return _build_grid_mixture(
        f"mixture-weather-{shape}", [calm, *windy], _default_weights(theta, d), cells, len(moves)
    )


def tree_mixture(
    *, rooms: int = 85, doors: int = 4, d: int = 4, strength: float = 0.5, theta: Sequence[float] | None = None
) -> TabularMDP:
    """A tree of rooms with as many doors onwards from each, and d ways in which the doors are mixed up.

    In regime i >= 1 a step goes through the i-th next door with probability ``strength``, and through the chosen one
    otherwise. Door a of room s leads to room ``doors`` s + 1 + a, or nowhere if there is no such room. The start is the
    root, room 0.
    """
    check_integer("rooms", rooms, 2, MOST_CELLS)
    check_integer("doors", doors, 2, 100)
    check_integer("d", d, 1, doors)
    check_total_size("rooms, doors, d", rooms, doors, d)
    check_number("strength", strength, 0, 1, closed="(]")
    pair = np.arange(rooms * doors)

    def through(offset: int) -> sparse.csr_matrix:
        room = pair // doors * doors + 1 + (pair + offset) % doors
        room = np.where(room < rooms, room, pair // doors)
        return sparse.csr_matrix((np.ones(len(pair)), (pair, room)), shape=(len(pair), rooms))

    kernels = [through(0)] + [(1.0 - strength) * through(0) + strength * through(i) for i in range(1, d)]
    return model_from_mixture(mixture_from_kernels(kernels, doors), _default_weights(theta, d), "mixture-tree")


def _default_weights(theta: Sequence[float] | None, d: int) -> Floats:
    """The given ones, or falling from the first to the last kernel."""
    falling = np.arange(d, 0, -1.0)
    return falling / falling.sum() if theta is None else parse_mixture_weights(theta, d)


def _parse_grid_shape(shape: str) -> tuple[Longs, Longs]:
    """The cells [S, n] of a box such as 8x8 or 10x10x10, and its moves [2 n, n] (up, right, down, left in two)."""
    try:
        sides = [int(side) for side in shape.split("x")]
    except (ValueError, AttributeError):
        raise InputError(f"shape: must look like 8x8 or 10x10x10, got {shape!r}") from None
    if len(sides) < 2 or min(sides) < 2 or math.prod(sides) > MOST_CELLS:
        raise InputError(f"shape: needs 2 or more sides of 2 or more cells, at most {MOST_CELLS} cells, got {shape!r}")
    cells = np.stack(np.meshgrid(*(np.arange(side) for side in sides), indexing="ij"), axis=-1).reshape(-1, len(sides))
    unit = np.eye(len(sides), dtype=np.int64)
    moves = np.stack([-unit[0], unit[1], unit[0], -unit[1], *(sign * e for e in unit[2:] for sign in (1, -1))])
    return cells, moves


def _grid_transition_kernel(cells: Longs, outcomes: list[list[tuple[float, Longs]]]) -> sparse.csr_matrix:
    """[S * A, S]: each action leads by one of its (probability, move) outcomes, as far as the walls allow.

    A move is one for all cells [n], or one for each [S, n].
    """
    S, A, last = len(cells), len(outcomes), cells.max(axis=0)
    place = np.concatenate([np.cumprod((last + 1)[::-1])[-2::-1], [1]])
    matrix = sparse.csr_matrix((S * A, S))
    for action, possible in enumerate(outcomes):
        for probability, move in possible:
            target = np.clip(cells + move, 0, last) @ place
            rows = np.arange(S) * A + action
            matrix = matrix + sparse.csr_matrix((np.full(S, probability), (rows, target)), shape=matrix.shape)
    return matrix


def _build_grid_mixture(
    name: str, kernels: list[sparse.csr_matrix], theta: Floats, cells: Longs, n_actions: int
) -> TabularMDP:
    sides = cells.max(axis=0) + 1
    start = int(np.flatnonzero((cells == sides // 2).all(axis=1))[0])
    B = max(1.0, math.ceil(10 * float(np.linalg.norm(theta))) / 10)
    flat = len(sides) == 2
    layout = GridLayout((int(sides[0]), int(sides[1])), cells, np.zeros(sides, bool)) if flat else None
    labels = tuple(str(tuple(cell)) for cell in cells.tolist())
    return model_from_mixture(mixture_from_kernels(kernels, n_actions, B, start), theta, name, labels, layout)


# The true model of a mixture, which carries the :class:`~adagoal.core.linear_mixture.LinearMixture` that a learner is
# told.
#
# The weights theta are in the model's probabilities only: nothing that a learner is given holds them.


def mixture_from_models(models: Sequence[TabularMDP], B: float | None = None) -> LinearMixture:
    """A mixture of d known models over the same states, actions, start and ends."""
    if len(models) == 0:
        raise InputError("kernels: a mixture needs d >= 1 of them, got none")
    first = models[0]
    for i, m in enumerate(models):
        if (m.n_states, m.n_actions, m.start) != (first.n_states, first.n_actions, first.start):
            raise InputError(
                f"kernels: number {i} has {m.n_states} states, {m.n_actions} actions and the start {m.start}, "
                f"number 0 has {first.n_states}, {first.n_actions} and {first.start}"
            )
        if not np.array_equal(m.terminal, first.terminal):
            raise InputError(f"kernels: number {i} ends in other states than number 0")
    return mixture_from_kernels([m.kernel() for m in models], first.n_actions, B, first.start, first.terminal)


def parse_mixture_weights(theta: ArrayLike, d: int) -> Floats:
    """theta as an array [d] of finite numbers."""
    try:
        weights = np.asarray(theta, float)
    except (TypeError, ValueError):
        weights = np.zeros(0)
    if weights.shape != (d,) or not np.isfinite(weights).all():
        raise InputError(f"theta: must be a list of d = {d} finite numbers, got {theta!r}")
    return weights


def model_from_mixture(
    features: LinearMixture,
    theta: ArrayLike,
    name: str = "mixture",
    labels: tuple[str, ...] = (),
    layout: GridLayout | None = None,
) -> TabularMDP:
    """The true model sum_i theta_i phi_i, which carries the mixture; theta itself is not kept."""
    weights = parse_mixture_weights(theta, features.d)
    norm = float(np.linalg.norm(weights))
    if norm > features.B * (1 + ROW_SUM_TOLERANCE):
        raise InputError(f"B: {features.B:g} is smaller than the norm {norm:g} of theta")
    matrix = features.mixture_kernel(weights)
    sums = np.asarray(matrix.sum(axis=1)).ravel()
    worst = int(np.argmax(np.abs(sums - 1)))
    if abs(sums[worst] - 1) > ROW_SUM_TOLERANCE:
        raise InputError(f"theta: the features of the pair {worst} sum to {sums[worst]:g} at theta, not to one")
    if matrix.data.min() < -ROW_SUM_TOLERANCE:
        bad = int(features.pair_of_entry[np.argmin(matrix.data)])
        raise InputError(f"theta: the features give the pair {bad} a negative probability at theta")
    matrix.data[matrix.data < 1e-15] = 0.0
    matrix.eliminate_zeros()
    return TabularMDP(
        *(features.n_states, features.n_actions, matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32)),
        probabilities=matrix.data / np.repeat(np.asarray(matrix.sum(axis=1)).ravel(), np.diff(matrix.indptr)),
        start=features.start,
        terminal=features.terminal,
        name=name,
        labels=labels,
        layout=layout,
        mixture=features,
    )
