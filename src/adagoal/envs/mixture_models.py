"""Linear mixtures of known models: built-in ones (grids, inventory, weather, tree), and ``mixture`` for your own.

The weights theta are contained in the model's probabilities only. A learner receives the
:class:`~adagoal.core.linear_mixture.LinearMixture`, which does not hold them. The same arguments give the same model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from numpy.typing import ArrayLike

from adagoal.core.array_types import Floats, Longs
from adagoal.core.environment import GridLayout
from adagoal.core.errors import InputError
from adagoal.core.linear_mixture import ROW_SUM_TOLERANCE, LinearMixture, mixture_from_kernels
from adagoal.core.validation import check_integer, check_number, check_total_size
from adagoal.envs.gym_adapter import GymAdapter
from adagoal.envs.model import TabularMDP
from adagoal.envs.simulator import ModelSimulator
from adagoal.envs.toy_models import MAX_CELLS

# Functions import SciPy: it takes a tenth of a second, and many commands never need it.
if TYPE_CHECKING:
    from scipy import sparse

MixtureCandidate = str | TabularMDP | ModelSimulator | gymnasium.Env[Any, Any]


def windy_mixture(
    *, shape: str = "8x8", d: int = 4, strength: float = 0.5, theta: Sequence[float] | None = None, signed: bool = False
) -> TabularMDP:
    """A grid in 2 or more dimensions with d wind regimes: calm, a wind in each direction, stronger winds.

    In regime i >= 1 a step goes with the wind, one cell in one of the 2 n directions, with probability ``strength``;
    otherwise it goes in the direction of the action. Regimes beyond 2 n blow two cells far, and so on. With ``signed``
    the kernels are calm and the differences wind - calm, which are signed measures, and theta = (1, ...). The start is
    in the middle.
    """
    cells, moves = _parse_grid_shape(shape, d)
    check_integer("d", d, 1, 1 + 4 * len(moves))
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
        # The same true model: sum_i w_i k_i = (sum_i w_i) k_0 + sum_{i>0} w_i (k_i - k_0).
        kernels = kernels[:1] + [k - kernels[0] for k in kernels[1:]]
        weights = np.concatenate([[weights.sum()], weights[1:]])
    return _build_grid_mixture(f"mixture-windy-{shape}", kernels, weights, cells, len(moves))


def slippery_mixture(*, shape: str = "8x8", d: int = 3, theta: Sequence[float] | None = None) -> TabularMDP:
    """A grid with d levels of friction: on level i a move goes i cells far."""
    cells, moves = _parse_grid_shape(shape, d)
    check_integer("d", d, 2, 20)
    kernels = [_grid_transition_kernel(cells, [[(1.0, i * move)] for move in moves]) for i in range(d)]
    weights = np.full(d, 0.2 / (d - 1)) if theta is None else parse_mixture_weights(theta, d)
    if theta is None:
        weights[1] = 0.8
    return _build_grid_mixture(f"mixture-slippery-{shape}", kernels, weights, cells, len(moves))


def inventory_mixture(
    *, capacity: int = 49, d: int = 3, orders: int = 4, theta: Sequence[float] | None = None
) -> TabularMDP:
    """An inventory of 0..capacity items, orders of 0..orders-1 a day, d demand regimes (Poisson, mean 1, 2, 4...).

    The inventory is half full at the start.
    """
    from scipy import sparse
    from scipy.stats import poisson

    check_integer("capacity", capacity, 1, 99_999)
    check_integer("d", d, 1, 8)
    check_integer("orders", orders, 2, 100)
    # Beyond four times the largest mean the tail is negligible.
    n_demands = 4 * 2 ** (d - 1) + 10
    check_total_size("capacity, orders, demands", capacity + 1, orders, n_demands)
    stock, order, demand = np.meshgrid(np.arange(capacity + 1), np.arange(orders), np.arange(n_demands), indexing="ij")
    next_stock = np.maximum(np.minimum(stock + order, capacity) - demand, 0).ravel()
    pair = (stock * orders + order).ravel()
    kernels, shape = [], ((capacity + 1) * orders, capacity + 1)
    for i in range(d):
        share = poisson.pmf(np.arange(n_demands), 2.0**i)
        # Divided by the sum, because the tail is cut off.
        probability = np.broadcast_to(share / share.sum(), stock.shape).ravel()
        kernels.append(sparse.csr_matrix((probability, (pair, next_stock)), shape=shape))
    features = mixture_from_kernels(kernels, orders, start=(capacity + 1) // 2)
    return model_from_mixture(features, _default_weights(theta, d), "mixture-inventory")


def weather_mixture(
    *, shape: str = "8x8", d: int = 4, strength: float = 0.5, seed: int = 0, theta: Sequence[float] | None = None
) -> TabularMDP:
    """A grid with d weather maps: calm, then maps with a random wind in every cell.

    On map i >= 1 a step goes with the wind of its cell, one cell far, with probability ``strength``; otherwise it goes
    in the direction of the action. Unlike in :func:`windy_mixture`, all winds are equally strong. The start is in the
    middle.
    """
    cells, moves = _parse_grid_shape(shape, d)
    check_integer("seed", seed, 0, 2**31)
    check_number("strength", strength, 0, 1, closed="(]")
    winds = moves[np.random.default_rng(seed).integers(len(moves), size=(d - 1, len(cells)))]
    calm = _grid_transition_kernel(cells, [[(1.0, move)] for move in moves])
    windy = [_grid_transition_kernel(cells, [[(1.0 - strength, move), (strength, w)] for move in moves]) for w in winds]
    weights = _default_weights(theta, d)
    return _build_grid_mixture(f"mixture-weather-{shape}", [calm, *windy], weights, cells, len(moves))


def tree_mixture(
    *, rooms: int = 85, doors: int = 4, d: int = 4, strength: float = 0.5, theta: Sequence[float] | None = None
) -> TabularMDP:
    """A tree of rooms, each with ``doors`` doors to rooms below; in d regimes the doors are exchanged.

    In regime i >= 1 a step goes through the i-th next door with probability ``strength``, and otherwise through the
    chosen one. Door a of room s leads to room ``doors`` s + 1 + a, or nowhere if that room does not exist. The start is
    the root, room 0.
    """
    from scipy import sparse

    check_integer("rooms", rooms, 2, MAX_CELLS)
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
    """Return theta as an array; by default the weights decrease linearly."""
    decreasing = np.arange(d, 0, -1.0)
    return decreasing / decreasing.sum() if theta is None else parse_mixture_weights(theta, d)


def _parse_grid_shape(shape: str, d: int) -> tuple[Longs, Longs]:
    """Return the cells [S, n] of a box such as 8x8 or 10x10x10, and its moves [2 n, n] (2-d: up, right, down, left)."""
    try:
        sides = [int(side) for side in shape.split("x")]
    except (ValueError, AttributeError):
        raise InputError(f"shape: must look like 8x8 or 10x10x10, got {shape!r}") from None
    if len(sides) < 2 or min(sides) < 2 or math.prod(sides) > MAX_CELLS:
        raise InputError(f"shape: needs 2 or more sides of 2 or more cells, at most {MAX_CELLS} cells, got {shape!r}")
    cells = np.stack(np.meshgrid(*(np.arange(side) for side in sides), indexing="ij"), axis=-1).reshape(-1, len(sides))
    unit = np.eye(len(sides), dtype=np.int64)
    moves = np.stack([-unit[0], unit[1], unit[0], -unit[1], *(sign * e for e in unit[2:] for sign in (1, -1))])
    check_integer("d", d, 1, 100)
    check_total_size("cells, actions, d", len(cells), len(moves), d)
    return cells, moves


def _grid_transition_kernel(cells: Longs, outcomes: list[list[tuple[float, Longs]]]) -> sparse.csr_matrix:
    """Return the kernel [S * A, S] of actions with several outcomes (probability, move); walls cut a move short.

    A move is the same for all cells [n], or one for each [S, n].
    """
    from scipy import sparse

    S, A, last = len(cells), len(outcomes), cells.max(axis=0)
    strides = np.concatenate([np.cumprod((last + 1)[::-1])[-2::-1], [1]])
    matrix = sparse.csr_matrix((S * A, S))
    for action, action_outcomes in enumerate(outcomes):
        for probability, move in action_outcomes:
            target = np.clip(cells + move, 0, last) @ strides
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


def mixture_from_models(models: Sequence[TabularMDP], B: float | None = None) -> LinearMixture:
    """Make a mixture of d known models with the same states, actions, start and terminal states."""
    if len(models) == 0:
        raise InputError("kernels: a mixture needs d >= 1 models, got none")
    first = models[0]
    for i, m in enumerate(models):
        if (m.n_states, m.n_actions, m.start) != (first.n_states, first.n_actions, first.start):
            raise InputError(
                f"kernels: number {i} has {m.n_states} states, {m.n_actions} actions and the start {m.start}, "
                f"number 0 has {first.n_states}, {first.n_actions} and {first.start}"
            )
        if not np.array_equal(m.terminal, first.terminal):
            raise InputError(f"kernels: number {i} has other terminal states than number 0; they must be the same")
    return mixture_from_kernels([m.kernel() for m in models], first.n_actions, B, first.start, first.terminal)


def parse_mixture_weights(theta: ArrayLike, d: int) -> Floats:
    """Return theta as an array [d] of finite numbers."""
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
    """Return the true model sum_i theta_i phi_i, which carries the mixture but not theta."""
    weights = parse_mixture_weights(theta, features.d)
    norm = float(np.linalg.norm(weights))
    if norm > features.B * (1 + ROW_SUM_TOLERANCE):
        raise InputError(f"B: must be at least the norm {norm:g} of theta, got {features.B:g}")
    matrix = features.mixture_kernel(weights)
    sums = np.asarray(matrix.sum(axis=1)).ravel()
    worst = int(np.argmax(np.abs(sums - 1)))
    if abs(sums[worst] - 1) > ROW_SUM_TOLERANCE:
        raise InputError(f"theta: the features of the pair {worst} sum to {sums[worst]:g} at theta, not to one")
    if matrix.data.min() < -ROW_SUM_TOLERANCE:
        bad = int(features.pair_of_entry[np.argmin(matrix.data)])
        raise InputError(f"theta: the features give the pair {bad} a negative probability at theta")
    # Rounding errors of signed kernels would be tiny probabilities, or negative ones.
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


def mixture(
    envs: Sequence[MixtureCandidate],
    theta: ArrayLike | None = None,
    *,
    world: MixtureCandidate | None = None,
    B: float | None = None,
) -> ModelSimulator | GymAdapter:
    """Return an environment with the kernel sum_i theta_i p_i; the learner knows the p_i, those of ``envs``, not theta.

    Parameters
    ----------
    envs: names, models, or environments whose model is known (built-in and toy-text ones), all over the same states.
    theta: the true weights, hidden in the simulator.
    world: the real environment, instead of theta. An environment object is stepped, and its model need not be known; if
        it is not a mixture of ``envs``, the run detects it.
    B: a bound on the norm of theta; by default 1, which holds for weights that are probabilities.

    Examples
    --------
    >>> env = adagoal.mixture(["chain", "chain"], [0.3, 0.7])
    >>> adagoal.explore(env, radius=2).goals
    [0, 1, 2]
    """
    if isinstance(envs, str) or not isinstance(envs, Sequence):
        raise InputError(f"mixture: envs must be a list of environments, got {envs!r}")
    if (theta is None) == (world is None):
        raise InputError("mixture: give either theta, or the world that is a mixture of the environments, not both")
    from adagoal.envs import registry  # it imports this module

    models = [_require_exact_model(env, f"number {i}") for i, env in enumerate(envs)]
    features = mixture_from_models(models, B)
    if theta is not None:
        return ModelSimulator(model_from_mixture(features, theta, "mixture", models[0].labels, models[0].layout))
    # Raises here, before the first step of the run, if B is too small.
    _ = features.theta_parametrisation
    if isinstance(world, gymnasium.Env):
        stepped = registry.make_single_env(world, {}, None, None)[0]
        assert isinstance(stepped, GymAdapter)
        shape = stepped.state_bound, stepped.n_actions, stepped.start
        if shape != (features.n_states, features.n_actions, features.start):
            raise InputError(
                f"mixture: the world has {shape[0]} states, {shape[1]} actions and the start {shape[2]}, "
                f"the environments have {features.n_states}, {features.n_actions} and {features.start}"
            )
        stepped.mixture = features
        return stepped
    assert world is not None
    true_model = _require_exact_model(world, "the world")
    # Raises unless states, actions, start and terminal states agree. Whether the world is a mixture is for the run to
    # find out.
    mixture_from_models([true_model, models[0]])
    return ModelSimulator(replace(true_model, mixture=features))


def _require_exact_model(env: MixtureCandidate, which: str) -> TabularMDP:
    from adagoal.envs import registry

    model = env if isinstance(env, TabularMDP) else registry.make_exact_model(env, {}, None)
    if model is None:
        text = f"mixture: the exact model of {which}, {env}, is not known; use built-in or toy-text environments"
        raise InputError(text)
    return model
