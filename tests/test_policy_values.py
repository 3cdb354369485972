"""Values of given policies, stationary and periodic, against closed forms and simulation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adagoal.core.environment import Policy
from adagoal.core.errors import InputError
from adagoal.envs import toy_models
from adagoal.envs.model import TabularMDP, model_from_rows
from adagoal.exact import solver
from experiments import exact_policies, extra_models
from experiments.exact_policies import optimal_policy


def test_improper_policy_is_infinite_only_where_it_is() -> None:
    # 0 -> 1 -> 2 (goal); 3 loops for ever; 4 leads to 3 or to the goal
    mdp = model_from_rows([{1: 1.0}, {2: 1.0}, {2: 1.0}, {3: 1.0}, {3: 0.5, 2: 0.5}], 1)
    assert solver.policy_values(mdp, [0] * 5, 2).tolist() == [2, 1, 0, math.inf, math.inf]
    assert solver.policy_values(mdp, [0, 0, 0, 1, 0], 2).tolist() == [2, 1, 0, 3, 2.5]


def test_astronomical_values_are_exact() -> None:
    """The policy that moves left reaches the right end after about 10^27 steps; LU factorisation would fail."""
    mdp = toy_models.chain_model(n_states=30, slip=0.1)
    step, expected = 1 / 0.1, 0.0
    for _ in range(29):
        expected += step
        step = (1 + 0.9 * step) / 0.1
    values = solver.policy_values(mdp, np.zeros(30), 29)
    assert expected > 1e27
    np.testing.assert_allclose(values[0], expected, rtol=1e-10)


def unrolled_value(mdp: TabularMDP, actions: NDArray[np.int16], goal: int) -> float:
    """Return the value of a periodic policy as a stationary one on pairs (stage, state); stage H resets."""
    horizon, n = actions.shape
    big = np.zeros(((horizon + 1) * n, (horizon + 1) * n))
    for h in range(horizon + 1):
        for s in range(n):
            action = actions[h, s] if h < horizon else mdp.reset_action
            after = (h + 1) % (horizon + 1)
            successors, probabilities = mdp.row(s, action) if action < mdp.reset_action else ([mdp.start], [1.0])
            big[h * n + s, after * n + np.asarray(successors)] = probabilities
    system = np.eye(len(big)) - big
    for h in range(horizon + 1):
        system[h * n + goal] = 0.0
        system[h * n + goal, h * n + goal] = 1.0
    right = np.array([float(i % n != goal) for i in range(len(big))])
    return float(np.linalg.solve(system, right)[mdp.start])


@pytest.mark.parametrize("seed", range(8))
def test_periodic_value_equals_the_unrolled_chain(seed: int) -> None:
    mdp = toy_models.random_dense(n_states=5, n_actions=2, seed=seed)
    rng = np.random.default_rng(seed)
    actions = rng.integers(0, 3, size=(4, 5)).astype(np.int16)
    actions[0, 0] = 0  # a policy that always resets never leaves the start
    for goal in range(1, 5):
        np.testing.assert_allclose(
            solver.periodic_value(mdp, actions, goal), unrolled_value(mdp, actions, goal), rtol=1e-10
        )
    assert solver.periodic_value(mdp, actions, mdp.start) == 0


def test_periodic_value_closed_forms() -> None:
    chain = toy_models.chain_model(n_states=6)
    for horizon in (5, 9):
        assert solver.periodic_value(chain, np.ones((horizon, 6)), 5) == 5
    assert solver.periodic_value(chain, np.ones((4, 6)), 5) == math.inf
    # the table resets at stage 2 of 4: the clock goes on, so state 2 is reached at stage 4, after 4 steps
    table = np.ones((4, 6))
    table[1] = chain.reset_action
    assert solver.periodic_value(chain, table, 2) == 4
    # each period of two tries succeeds with 1 - 0.9^2 and costs one try, a second with 0.9, a reset with 0.81
    waiting = extra_models.waiting_chain(n_states=2, stay=0.9)
    np.testing.assert_allclose(solver.periodic_value(waiting, np.ones((2, 2)), 1), (1 + 0.9 + 0.81) / 0.19)


def test_periodic_value_agrees_with_playing_the_policy() -> None:
    mdp = toy_models.trap_chain(n_states=5, p=0.2)
    policy = Policy(3, np.ones((5, 5), np.int16), mdp.reset_action)
    rng = np.random.default_rng(0)
    times = []
    for _ in range(20_000):
        policy.restart()
        state, steps = mdp.start, 0
        while state != 3:
            action = policy(state)
            steps += 1
            if action == mdp.reset_action:
                state = mdp.start
            else:
                successors, probabilities = mdp.row(state, action)
                state = int(successors[np.searchsorted(np.cumsum(probabilities), rng.random())])
        times.append(steps)
    error = np.std(times) / math.sqrt(len(times))
    assert abs(np.mean(times) - solver.policy_value(mdp, policy)) < 4 * error


def test_long_period_tends_to_the_stationary_value() -> None:
    mdp = toy_models.two_room_grid()
    V = exact_policies.optimal_values(mdp)
    actions = optimal_policy(mdp, V)
    for goal in (17, 30):
        table = np.repeat(actions[None, :, goal], 4000, axis=0)
        stationary = Policy(goal, actions[None, :, goal], mdp.reset_action)
        np.testing.assert_allclose(solver.periodic_value(mdp, table, goal), V[mdp.start, goal], rtol=1e-10)
        np.testing.assert_allclose(solver.policy_value(mdp, stationary), V[mdp.start, goal], rtol=1e-10)


@pytest.mark.parametrize("seed", range(20))
def test_value_from_the_start_equals_the_value_of_all_states(seed: int) -> None:
    mdp = extra_models.random_traps(n_states=12, n_actions=2, traps=3, branching=2, seed=seed)
    rng = np.random.default_rng(seed)
    for goal in range(12):
        actions = rng.integers(0, 3, size=12).astype(np.int16)
        value = solver.policy_value(mdp, Policy(goal, actions[None], mdp.reset_action))
        np.testing.assert_allclose(value, solver.policy_values(mdp, actions, goal)[mdp.start], rtol=1e-10)
        np.testing.assert_allclose(value, by_a_dense_solve(mdp, actions, goal), rtol=1e-10)


def by_a_dense_solve(mdp: TabularMDP, actions: NDArray[np.int16], goal: int) -> float:
    """Return V^pi(s0 -> g) by one linear system over the states reachable from s0, or infinity."""
    n = mdp.n_states
    p = np.zeros((n, n))
    for s in range(n):
        resets = mdp.terminal[s] or actions[s] == mdp.reset_action
        successors, probabilities = ([mdp.start], [1.0]) if resets else mdp.row(s, int(actions[s]))
        p[s, successors] = probabilities
    p[goal] = 0.0
    leads = np.linalg.matrix_power(np.eye(n) + p, n) > 0
    met = np.flatnonzero(leads[mdp.start])
    if not leads[met, goal].all():
        return math.inf
    cost = (met != goal).astype(float)
    return float(np.linalg.solve(np.eye(met.size) - p[np.ix_(met, met)], cost)[met == mdp.start][0])


@pytest.mark.parametrize("state", [-1, 10, "(0, 1)", (0, 1), 1.5, None])
def test_invalid_state_has_no_action(state: Any) -> None:
    policy = Policy(3, np.ones((1, 10), np.int16), 2)
    assert policy(9) == 1
    with pytest.raises(InputError, match=r"state: must be in 0\.\.9"):
        policy(state)
