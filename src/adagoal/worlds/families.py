"""Ready-made mixture worlds: true models that carry their :class:`~adagoal.core.mixture.LinearMixture`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import sparse

from adagoal.core.checks import check_integer, check_number, check_total_size
from adagoal.core.errors import InputError
from adagoal.core.layout import GridLayout
from adagoal.core.mixture import mixture_from_kernels
from adagoal.core.types import Floats, Longs
from adagoal.worlds.combine import model_from_mixture, parse_mixture_weights
from adagoal.worlds.model import TabularMDP

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
