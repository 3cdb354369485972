"""Several walkers of a known model: they play what the definition says, and how many threads there are is no matter."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import adagoal
from adagoal.certified import explorer
from adagoal.certified.explorer import CertifiedExplorer
from adagoal.certified.heuristics import Heuristics, Schedule
from adagoal.core.environment import NO_LIMIT, ExplorationPlan
from adagoal.core.exploration_run import ExplorationRun
from adagoal.core.local_backup import LocalLowerBounds, backup_state
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs import episode_loop, model_families, simulator
from adagoal.envs.simulator import ModelSimulator
from adagoal.exact import solver
from adagoal.goal_rules import BUILTIN_RULES
from adagoal.loop import run_exploration

ALL = ("successor", "count", "recent", "support", "n", "settled", "visits", "seen")
GRID = {"env": "grid", "env_args": {"rows": 4, "cols": 4}, "radius": 15.0, "epsilon": 0.75, "seed": 3}


def no_ball(pairs):
    """Nothing is known about all successors of any pair."""
    return np.zeros(pairs, bool), np.zeros((pairs, 4)), np.zeros(pairs)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Rollouts of a sixteenth of the run are long, and rounds are short."""
    monkeypatch.setattr(explorer, "Heuristics", partial(Heuristics, replan_step_divisor=16))
    monkeypatch.setattr(simulator, "MIN_WALKER_ROLLOUT_STEPS", 1000)
    monkeypatch.setattr(simulator, "MAX_WALKER_ROUND_STEPS", 50)


def rolled(monkeypatch):
    """The steps of every rollout by walkers, from now on."""
    steps, rollout = [], simulator.rollout_with_walkers

    def spy(*args):
        outcome = rollout(*args)
        steps.append(outcome.steps)
        return outcome

    monkeypatch.setattr(simulator, "rollout_with_walkers", spy)
    return steps


def same(one, two):
    assert (one.steps, one.plans, one.certificates) == (two.steps, two.plans, two.certificates)
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, two.arrays[name])


def test_the_number_of_cores_changes_nothing(monkeypatch):
    results, steps = [], rolled(monkeypatch)
    for cores in (1, 4):
        monkeypatch.setattr(simulator.os, "cpu_count", lambda cores=cores: cores)
        results.append(adagoal.explore(**GRID, budget=30_000))
    same(*results)
    assert results[0].steps == 30_000
    assert sum(steps) > 20_000
    assert adagoal.audit(adagoal.explore(**GRID | {"epsilon": 3.0})).ok


def test_steps_that_are_kept_change_nothing(tmp_path: Path):
    plain = adagoal.explore(**GRID, budget=60_000)
    same(plain, adagoal.explore(**GRID, budget=60_000, out=tmp_path, record=True))
    steps = adagoal.transitions(tmp_path)
    assert len(steps["state"]) == plain.steps
    np.testing.assert_array_equal(np.bincount(steps["state"], minlength=16), plain.arrays["visits"])
    assert (steps["next_state"][steps["action"] == plain.reset_action] == 0).all()


def test_a_run_goes_on_as_if_it_had_not_been_interrupted(tmp_path: Path):
    def stop(run):
        return run.steps < 30_000

    first = adagoal.explore(**GRID, budget=60_000, out=tmp_path, observe=stop)
    assert 30_000 <= first.steps < 40_000
    same(adagoal.resume(tmp_path, budget=60_000), adagoal.explore(**GRID, budget=60_000))


class Noting:
    """A walker in Python: counts as they are, bounds of its own."""

    def __init__(self, mdp, cumulative, counts):
        self.mdp, self.cumulative, self.counts, self.moves = mdp, cumulative, counts, []

    def must_reset(self, state):
        return self.mdp.terminal[state]

    def reset_from(self, state):
        self.moves.append((-1 - state, self.mdp.start))
        return self.mdp.start

    def take_action(self, state, action, rng):
        pair, u = state * self.mdp.n_actions + action, rng.random()
        inside = slice(self.mdp.indptr[pair], self.mdp.indptr[pair + 1])
        landed = int(self.mdp.successors[inside][np.argmax(self.cumulative[inside] > u)])
        self.moves.append((pair, landed))
        return landed, episode_loop.NO_EVENT if self.counts.seen[landed] else episode_loop.NEW_STATE

    def backup_and_choose(self, local, state, column):
        c = self.counts
        return int(backup_state(state, column, local, c.successor, c.count, c.support, c.n))


def twin(world, plan, weights, counts, rng, steps):
    """One round, written down once more: walkers in Python, whose moves are counted in their order."""
    V, mdp = plan.policy.V.copy(), world.mdp
    seeds, walked = rng.integers(2**63, size=simulator.N_WALKERS), []
    for seed in seeds:
        mine, place = V.copy(), [mdp.start, -1, 0]
        given = episode_loop.to_python_plan(episode_loop.make_episode_plan(plan, weights, mdp.n_actions, mdp.start))
        stage = Noting(mdp, world._cumulative_probabilities, counts)
        log = np.zeros((episode_loop.MAX_EPISODES_PER_CALL, 2), np.int64)
        given = given._replace(policy=plan.policy._replace(V=mine))
        episode_loop.play_episodes(stage, given, place, np.random.default_rng(seed), steps, log)
        if place[0] != mdp.start:
            stage.reset_from(place[0])
        walked.append((stage.moves, mine))
    for moves, mine in walked:
        counts.add_steps(*np.array(moves).T)
        np.maximum(plan.policy.V, mine, out=plan.policy.V)
    return sum(len(moves) for moves, _ in walked)


@pytest.mark.parametrize("seen", [12, 11])
def test_a_round_against_its_twin(monkeypatch, seen):
    """With two columns, one of which has no weight; and where a state is new."""
    monkeypatch.setattr(simulator, "MAX_WALKER_ROUND_STEPS", 200)
    mdp = model_families.random_sparse(n_states=12, n_actions=2, branching=3, seed=1)
    world, found = ModelSimulator(mdp), []
    for play in (world.rollout, None):
        counts = TransitionCounts(12, 2, mdp.start, width=4)
        for x in range(24):  # as often as it takes for bounds to rise
            states, p = mdp.row(*divmod(x, 2))
            landed = np.repeat(states.astype(np.int64), np.round(3000 * p).astype(int))
            counts.add_steps(np.full(len(landed), x), landed)
        counts.seen[seen:] = False
        V = np.zeros((3, 12))
        local = LocalLowerBounds(
            V, np.full(V.shape, -1, np.int16), False, np.full(24, 0.5), 9.0, *no_ball(24), 12.0, mdp.start, 2
        )
        plan = ExplorationPlan(local, np.array([5, 7, 9]), 50, np.full(24, NO_LIMIT), None, 8 * 200)
        weights, rng = np.array([1.0, 0.0, 2.0]), np.random.default_rng(0)
        if play is not None:
            taken = play(plan, weights, counts, rng, NO_LIMIT, NO_LIMIT).steps
        else:
            taken = twin(world, plan, weights, counts, rng, 199)
        found.append((taken, V, *(getattr(counts, name) for name in ALL)))
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one, two)
    assert found[0][1][[0, 2]].max() > 1.0
    assert counts.seen.all()
    assert (found[0][0] >= 8 * 199) == (seen == 12)


@pytest.mark.parametrize("seed", range(2))
def test_bounds_of_walkers_are_bounds(seed, monkeypatch):
    """Lemma 5 after every rollout, at every state, without any plan; and from any place the way home is a step."""
    mdp = model_families.random_sparse(n_states=8, n_actions=2, seed=seed)
    truth, counts, steps = (
        solver.optimal_values(mdp),
        TransitionCounts(mdp.n_states, mdp.n_actions, mdp.start),
        rolled(monkeypatch),
    )
    estimates = CertifiedExplorer(counts, mdp.n_states, 6.0, 1.0, 0.1)
    monkeypatch.setattr(Schedule, "can_sweep", False)
    run = ExplorationRun(ModelSimulator(mdp), estimates, BUILTIN_RULES["adagoal"], np.random.default_rng(seed))

    def look(run):
        goals = estimates.goal_state[1:]
        assert (estimates.V[:, 1:] <= truth[:, goals] + 1e-9).all()
        assert counts.visits.sum() == run.steps

    run_exploration(run, 90_000, look)
    assert estimates.D[1:].max() > 1.5
    assert sum(steps) > 60_000
    counts._check_consistency()


@pytest.mark.parametrize("shares", [1, 3, 8])
def test_moves_are_counted_alike_in_any_number_of_shares(shares):
    """Rows of different length, with resets, new successors and new states, against one row after the other."""
    rng, S, A = np.random.default_rng(shares), 300, 3
    moves, landed = rng.integers(-S, S * A, (5, 4000)), rng.integers(0, S, (5, 4000))
    landed[moves >= 0] = (moves[moves >= 0] * 7 + rng.integers(4, size=(moves >= 0).sum()) ** 2) % S
    taken = np.array([4000, 17, 0, 3999, 1200])
    one, many = TransitionCounts(S, A, 0), TransitionCounts(S, A, 0)
    for row, steps in enumerate(taken):
        one.add_steps(moves[row, :steps], landed[row, :steps])
    with ThreadPoolExecutor(shares) as threads:
        many.add_step_rows(moves, landed, taken, threads, shares)
    for name in ALL:
        np.testing.assert_array_equal(getattr(one, name), getattr(many, name))
    many._check_consistency()


def test_numbers_drawn_beforehand_are_those_of_the_generator():
    numbers, rng = episode_loop.UniformBuffer(np.empty(10), np.full(1, 10)), np.random.default_rng(4)
    found = []
    for used in (3, 10, 0, 7):
        numbers.refill_used(rng)
        found += numbers.values[:used].tolist()
        numbers.used[0] = used
    np.testing.assert_array_equal(found, np.random.default_rng(4).random(20))


def test_many_columns_are_not_for_walkers():
    """Each walker would copy more than it steps."""
    V = np.zeros((300, 400))
    local = LocalLowerBounds(V, np.full(V.shape, -1, np.int16), False, np.ones(800), 9.0, *no_ball(800), 12.0, 0, 2)
    plan, one = ExplorationPlan(local, np.arange(300), 50, np.full(800, NO_LIMIT)), np.zeros(300)
    one[7] = 1.0
    assert simulator.should_use_walkers(plan, one, 1000, 1000)
    assert not simulator.should_use_walkers(plan, one, 999, 1000)
    assert not simulator.should_use_walkers(plan, one, 1000, 999)
    assert not simulator.should_use_walkers(plan, np.ones(300), 1000, 1000)
