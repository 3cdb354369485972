"""Bounds through another goal (lemma 13)."""

from functools import partial

import numpy as np
import pytest

import adagoal
from adagoal.certified import explorer, sweeps
from adagoal.certified.confidence_sets import ConfidenceSets
from adagoal.certified.goal_table import NO_KNOWN_PATH, shorten_hop_counts
from adagoal.certified.heuristics import Heuristics
from adagoal.certified.sweeps import improve_by_neighbours
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs import toy_models
from adagoal.envs.simulator import ModelSimulator
from adagoal.exact import solver
from adagoal.loop import run_exploration
from adagoal.planning.model_arrays import GoalBlock
from experiments import exact_policies
from experiments.exact_policies import optimal_policy
from test_certified import check_bounds, start

GRID = toy_models.open_grid_model(rows=5, cols=6, slip=0.2)
CAP = 60.0


def ideal(mdp):
    """Return the empirical model after 10^9 tries of every pair."""
    counts = TransitionCounts(mdp.n_states, mdp.n_actions, mdp.start, width=4)
    for x in range(mdp.n_states * mdp.n_actions):
        states, p = mdp.row(*divmod(x, mdp.n_actions))
        counts.successor[x, : len(states)], counts.support[x] = states, len(states)
        counts.count[x, : len(states)] = counts.recent[x, : len(states)] = np.round(1e9 * p)
        counts.n[x] = counts.count[x].sum()
    confidence = ConfidenceSets(counts, mdp.n_states, len(counts.n), mdp.n_states, delta=0.1, branching=4)
    confidence.update_radii()
    return confidence.empirical_model()


def test_bounds_by_a_neighbour_equal_exact_values():
    """Column 1 has exact bounds, column 2 only those near its goal; the triangle inequality gives the rest."""
    truth = exact_policies.optimal_values(GRID)
    h, g = 20, 21
    column, goal_state = np.zeros(GRID.n_states, np.int64), np.array([-1, h, g])
    column[[h, g]] = 1, 2
    V, Y = np.zeros((3, GRID.n_states)), np.full((3, GRID.n_states), CAP)
    best = np.full((3, GRID.n_states), GRID.n_actions, np.int16)
    V[1] = Y[1] = truth[:, h]
    best[1] = optimal_policy(GRID, truth)[:, h]
    near = np.flatnonzero(truth[:, g] <= 3.0)  # farther states stay at the cap
    at = np.full((GRID.n_states, 1), -1)
    at[g] = 0
    Y[2, g] = 0.0
    swept = sweeps.improve_upper_bounds(
        ideal(GRID), GoalBlock(near, at, CAP, False, 200, 1e-9), Y[2][:, None], best[2][:, None]
    )
    Y[2], best[2] = swept[0][:, 0], swept[1][:, 0]
    assert Y[2, GRID.start] == CAP
    assert h in near
    order = np.arange(GRID.n_states)
    improve_by_neighbours(np.array([2]), goal_state, column, order, ideal(GRID), CAP, 1.0, V, Y, best)
    assert (V[2] <= truth[:, g]).all()
    assert V[2, GRID.start] > truth[GRID.start, g] - 4.0
    assert (Y[2] >= solver.policy_values(GRID, best[2], g) - 1e-9).all()
    assert Y[2, GRID.start] < CAP / 2
    before = V.copy(), Y.copy()
    improve_by_neighbours(np.array([2]), goal_state, column, order, ideal(GRID), CAP, 1.0, V, Y, best)
    assert np.array_equal(before, (V, Y))  # a second call changes nothing


@pytest.mark.parametrize("seed", range(20))
def test_bounds_by_a_neighbour_hold_with_inexact_bounds(seed):
    """The lower bound of h at g is loose; the lemma must subtract the upper bound from g to h."""
    rng, truth, order = np.random.default_rng(seed), exact_policies.optimal_values(GRID), np.arange(GRID.n_states)
    g = int(rng.integers(1, GRID.n_states))
    model = ideal(GRID)
    h = int(rng.choice([s for s in np.unique(model.successor[4 * g : 4 * g + 4]) if s not in (g, GRID.start)]))
    column, goal_state = np.zeros(GRID.n_states, np.int64), np.array([-1, h, g])
    column[[h, g]] = 1, 2
    V, Y = np.zeros((3, GRID.n_states)), np.full((3, GRID.n_states), CAP)
    best = np.full((3, GRID.n_states), GRID.n_actions, np.int16)
    best[1:] = optimal_policy(GRID, truth)[:, [h, g]].T
    V[1] = truth[:, h] * np.where(order == g, rng.random(), 1.0)
    Y[1] = truth[:, h] * rng.uniform(1.0, 1.2)  # 1 + p Y <= Y still
    Y[2] = truth[:, g] * rng.uniform(1.5, 2.0)
    improve_by_neighbours(np.array([2]), goal_state, column, order, model, CAP, 1e-3, V, Y, best)
    assert (V[2] <= truth[:, g]).all()
    assert (Y[2] >= solver.policy_values(GRID, best[2], g) - 1e-9).all()
    assert V[2].any()


def test_bounds_hold_in_a_run(monkeypatch):
    taken = []

    def counted(*args):
        before = args[-3].sum(), args[-2].sum()
        improve_by_neighbours(*args)
        taken.append((args[-3].sum() > before[0], args[-2].sum() < before[1]))

    rare = {"sweep_capacity": 0.0, "dual_capacity": 0.0, "gap_capacity": 0.0, "tokens_per_step": 1.0}  # plans
    given = partial(Heuristics, max_small_states=0, min_triangle_gain=0.01, **rare)
    monkeypatch.setattr(explorer, "Heuristics", given)
    monkeypatch.setattr(explorer, "improve_by_neighbours", counted)
    mdp = toy_models.open_grid_model(rows=12, cols=12)
    truth, run, looks = exact_policies.optimal_values(mdp), start(mdp, 40.0, 2.0), {"next": 1}

    def look(run):
        if run.steps >= looks["next"]:
            check_bounds(run, mdp, truth, 40.0)
            looks["next"] = int(2 * run.steps) + 1

    run_exploration(run, 3 * 10**6, look)
    assert np.array(taken).any(axis=0).all()  # of both kinds


@pytest.mark.slow
def test_large_grid_is_certified():
    mdp = toy_models.open_grid_model(rows=25, cols=25)
    result = adagoal.explore(ModelSimulator(mdp), 65.0, 6.5, seed=3, method_args={"branching": 4})
    assert result.status == "certified"
    assert len(result.goals) == 625
    assert adagoal.audit(result, mdp).ok


def test_incremental_hop_counts_equal_a_search():
    """The result does not depend on the order in which edges are found."""
    rng = np.random.default_rng(0)
    S, A, K = 40, 2, 3
    successor, support = rng.integers(0, S, (S * A, K)).astype(np.int32), np.zeros(S * A, np.int32)
    hops, known = np.full(S, NO_KNOWN_PATH), np.zeros(S * A, np.int64)
    for x in rng.permutation(np.repeat(np.arange(S * A), K)):
        support[x] += 1
        shorten_hop_counts(hops, known, 5, successor, support)
        want, ring, reached = np.full(S, NO_KNOWN_PATH), [5], 0
        while ring:
            want[ring] = reached
            seen = {int(y) for s in ring for z in range(s * A, s * A + A) for y in successor[z, : support[z]]}
            ring, reached = [y for y in seen if want[y] == NO_KNOWN_PATH], reached + 1
        assert np.array_equal(hops, want)
