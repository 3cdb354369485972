"""The worlds of the coverage experiment: random models of many kinds, and adversarial ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from adagoal.envs import toy_models
from adagoal.envs.model import TabularMDP, model_from_rows
from adagoal.exact import solver
from experiments import extra_models

FAMILIES = (
    *("sparse", "dense", "deterministic", "waiting", "rare exits", "traps", "extreme", "exactly-L", "surprises"),
    *("rivals", "every-step"),
)
RIVAL = 1
"""The pair of the family ``rivals`` that is better than it looks: action 1 in the start."""


class Case(NamedTuple):
    """A world with its radius and accuracy."""

    mdp: TabularMDP
    L: float
    epsilon: float


def extreme(n_states: int, n_actions: int, seed: int) -> TabularMDP:
    """Every pair leads to one state, and with a probability p in 1e-6..1e-1 to another one; action 0 is a cycle."""
    rng = np.random.default_rng(seed)
    rows = []
    for s in range(n_states):
        for a in range(n_actions):
            usual = (s + 1) % n_states if a == 0 else int(rng.integers(n_states))
            p = 10 ** rng.uniform(-6, -1)
            rows.append({usual: 1 - p, (usual + 1 + int(rng.integers(n_states - 1))) % n_states: p})
    return model_from_rows(rows, n_actions, name="extreme")


def surprises(seed: int) -> Case:
    """A corridor of n hops that looks deterministic, and one pair with a rare successor, where it hurts most.

    Both actions go on. The rare successor is the end, from the first state; or a trap that only the reset leaves, right
    before the end; or again the end, from the first state, where the action otherwise stays. The bound log/m on its
    probability q, after m tries of every pair, falls below q before the end is certified. From then on lemma 12 is
    wrong, unless the rare successor was seen before; bounds that are any narrower are wrong more often.
    """
    rng, kind = np.random.default_rng([seed, 13]), seed % 3
    n, A, epsilon = int(rng.integers(8, 11)) + 6 * (kind == 2), 2, 0.5
    q = float((0.3, 0.3, 1.2)[kind] / n * rng.uniform(1.0, 1.6))
    rows = [{x // A + 1: 1.0} for x in range(A * n)] + [{0: 1.0}] * A
    if kind == 0:
        rows[0] = {1: 1.0 - q, n: q}
    elif kind == 1:
        rows[A * (n - 1)], rows[-1] = {n: 1.0 - q, n + 1: q}, {n + 1: 1.0}
        rows += [{n + 1: 1.0}] * A
    else:
        rows[1] = {0: 1.0 - q, n: q}
    return Case(model_from_rows(rows, A, name="surprises"), float(n), epsilon)


def rivals(seed: int) -> Case:
    """Return a corridor to the goal and a second action in the start that is better than it looks.

    The second action leads to the goal with a small probability q. Until that happens, it goes on as the first action
    does, or stays. The state before the goal is left with probability 1/2 only. Both ways lead through it, so its
    uncertainty cancels in the gap (lemmas 7 to 9) but not in the bounds on the values. If the rival is tried rarely and
    all other pairs often, the gap rests on the bound on q alone, and is false as soon as that bound falls below q.
    """
    rng = np.random.default_rng([seed, 17])
    n, A, epsilon = int(rng.integers(4, 7)), 2, 0.5
    value, lost = 2.0 * n - 1.0, float(rng.uniform(1.2, 1.8)) * epsilon
    rows = [{x // A + 1: 1.0} for x in range(A * n)] + [{0: 1.0}] * A
    rows[A * (n - 1)], rows[A * (n - 1) + 1] = {1: 0.5, n: 0.5}, {0: 1.0}
    if seed % 2:
        q = 1.0 / (value - lost)  # the rival stays, and takes 1/q steps
        rows[RIVAL] = {0: 1.0 - q, n: q}
    else:
        q = lost / (value - 1.0)  # the rival goes on, and takes 1 + (1 - q) (value - 1) steps
        rows[RIVAL] = {1: 1.0 - q, n: q}
    return Case(model_from_rows(rows, A, name="rivals"), value + 3.0, epsilon)


def case(family: str, seed: int) -> Case:
    """The random world of a run: 4 to 12 states, 2 or 3 actions, L in 3..8, epsilon in 0.5..2."""
    rng = np.random.default_rng([seed, 7])
    S, A, L = int(rng.integers(4, 13)), int(rng.integers(2, 4)), float(rng.uniform(3, 8))
    epsilon = float(rng.choice([0.5, 1.0, 2.0]))
    size: dict[str, Any] = {"n_states": S, "n_actions": A, "seed": seed}
    some = min(S, int(rng.integers(1, 4)))
    if family == "every-step":
        small: dict[str, Any] = {"n_states": int(rng.integers(4, 6)), "n_actions": 2, "seed": seed}
        kinds: tuple[Callable[[], TabularMDP], ...] = (
            lambda: extra_models.random_deterministic(**small),
            lambda: extreme(**small),
            lambda: extra_models.random_waiting(**small, stay=0.1),
        )
        return Case(kinds[rng.integers(3)](), float(rng.uniform(3, 5)), 2.0)
    if family == "surprises":
        return surprises(seed)
    if family == "rivals":
        return rivals(seed)
    if family == "exactly-L":
        return _on_the_edge(toy_models.random_sparse(**size, branching=some), L, epsilon)
    builders: dict[str, Callable[[], TabularMDP]] = {
        "sparse": lambda: toy_models.random_sparse(**size, branching=some),
        "dense": lambda: toy_models.random_dense(**size),
        "deterministic": lambda: extra_models.random_deterministic(**size),
        "waiting": lambda: extra_models.random_waiting(**size, stay=rng.uniform(0.5, 0.95), branching=some),
        "rare exits": lambda: extra_models.random_rare_exits(
            **size, rare=int(rng.integers(1, 3)), p=10 ** rng.uniform(-3, -1), branching=min(some, S - 2)
        ),
        "traps": lambda: extra_models.random_traps(**size, traps=int(rng.integers(1, S // 2 + 1)), branching=some),
        "extreme": lambda: extreme(S, A, seed),
    }
    return Case(builders[family](), L, epsilon)


def _on_the_edge(mdp: TabularMDP, L: float, epsilon: float) -> Case:
    """L on the nearest V*, and L + epsilon on the next one if that leaves an epsilon between 0.5 and 2."""
    distance = solver.optimal_distances(mdp)
    known = np.unique(distance[np.isfinite(distance) & (distance >= 1)])
    if not len(known):
        return Case(mdp, L, epsilon)
    L = float(known[np.argmin(np.abs(known - L))])
    beyond = known[(known >= L + 0.5) & (known <= L + 2.0)] - L
    return Case(mdp, L, float(beyond[0]) if len(beyond) else epsilon)
