"""The incrementally reachable set equals its definition, and known answers on some models."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from adagoal.envs import toy_models
from adagoal.envs.model import TabularMDP
from adagoal.exact import solver
from experiments import extra_models
from experiments.exact_policies import reachable_set
from experiments.incremental import incremental_set, restricted_distances


def time_within(mdp: TabularMDP, known: set[int], goal: int) -> float:
    """Return V*_K(s0 -> goal) by value iteration on a dense array."""
    S, A = mdp.n_states, mdp.n_actions
    p = mdp.kernel().toarray().reshape(S, A, S)
    V = np.zeros(S)
    for _ in range(3000):
        Q = np.full(S, 1.0 + V[mdp.start])
        for s in known - {goal}:
            if not mdp.terminal[s]:
                Q[s] = min(Q[s], (1.0 + p[s] @ V).min())
        Q[goal] = 0.0
        if np.array_equal(Q, V) or V[mdp.start] > 100.0:  # far beyond every radius
            break
        V = Q
    return float(V[mdp.start])


def by_definition(mdp: TabularMDP, radius: float) -> set[int]:
    """Return the union over all total orders; a partial order extends to a total one, which allows no less."""
    times: dict[tuple[frozenset[int], int], float] = {}
    found: set[int] = set()
    others = [s for s in range(mdp.n_states) if s != mdp.start]
    for order in itertools.permutations(others):
        known = {mdp.start}
        for s in order:
            key = frozenset(known), s
            if key not in times:
                times[key] = time_within(mdp, known, s)
            if times[key] <= radius + 1e-9:
                known.add(s)
        found |= known
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("radius", [2.5, 4.0])
def test_set_equals_its_definition(seed: int, radius: float) -> None:
    mdp = toy_models.random_sparse(n_states=5, n_actions=2, branching=2, seed=seed)
    assert set(incremental_set(mdp, radius).tolist()) == by_definition(mdp, radius)


def test_fan_is_reliably_but_not_incrementally_reachable() -> None:
    mdp = toy_models.fan_model(n_middle=10)
    assert reachable_set(mdp, 4.0).tolist() == [0, 11]
    assert incremental_set(mdp, 4.0).tolist() == [0]
    assert incremental_set(mdp, 19.0).size == 12  # a middle state takes 2n - 1 = 19


@pytest.mark.parametrize("seed", range(5))
def test_set_is_a_subset_of_the_reachable_set_and_equal_if_deterministic(seed: int) -> None:
    sure = extra_models.random_deterministic(n_states=12, n_actions=2, seed=seed)
    assert incremental_set(sure, 4.0).tolist() == reachable_set(sure, 4.0).tolist()
    traps = extra_models.random_traps(n_states=12, n_actions=2, seed=seed)
    assert set(incremental_set(traps, 5.0).tolist()) <= set(reachable_set(traps, 5.0).tolist())


def test_restricted_policies_take_longer() -> None:
    mdp = toy_models.random_sparse(n_states=8, n_actions=2, seed=3)
    free, only_start = restricted_distances(mdp, np.ones(8, bool)), restricted_distances(mdp, np.arange(8) == 0)
    np.testing.assert_allclose(free, solver.optimal_distances(mdp))
    assert (only_start >= free * (1 - 1e-9)).all()
