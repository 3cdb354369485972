"""Random models for tests and scaling runs. The same arguments give the same model; the start is state 0."""

from __future__ import annotations

import numpy as np

from adagoal.core.checks import check_integer, check_number, check_total_size
from adagoal.core.types import Longs
from adagoal.worlds.model import TabularMDP, model_from_rows

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
