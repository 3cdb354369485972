"""Local backups: lemma 4 at one state equals a reference implementation, and gives valid lower bounds in whole runs."""

import math

import numpy as np
import pytest

from adagoal.certified.confidence_sets import ConfidenceSets
from adagoal.certified.explorer import CertifiedExplorer
from adagoal.certified.heuristics import Heuristics, Schedule
from adagoal.core.environment import ExplorationPlan
from adagoal.core.exploration_run import ExplorationRun
from adagoal.core.operators import FINEST_LEVEL, NEAREST_LEVEL_FACTOR, LocalLowerBounds, backup_state
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs import toy_models
from adagoal.envs.gym_adapter import GymAdapter
from adagoal.envs.simulator import ModelSimulator
from adagoal.goal_rules import BUILTIN_RULES
from adagoal.loop import run_exploration
from experiments import exact_policies, extra_models
from model_env import ModelEnv
from transition_recording import record_transition

CAP, LOGS = 12.0, 9.0 + 0.3 * np.arange(9)  # the logarithm of every state
SIZES = 10, 5, 40
"""Arguments of a schedule: seen states, columns, transitions."""


def tried(mdp, steps, seed=0):
    """Return the counts of random actions."""
    counts, rng, s = (
        TransitionCounts(mdp.n_states, mdp.n_actions, mdp.start, width=8),
        np.random.default_rng(seed),
        mdp.start,
    )
    for _ in range(steps):
        a = int(rng.integers(mdp.n_actions))
        states, p = mdp.row(s, a)
        landed = int(rng.choice(states, p=p))
        record_transition(counts, s, a, landed)
        counts.seen[landed] = True
        s = landed
    return counts


def local(counts, V, q, probe=None, probing=False, ball=None):
    probe = np.full(V.shape, -1, np.int16) if probe is None else probe
    ball = ball or (np.zeros(len(q), bool), np.zeros(counts.count.shape), np.zeros(len(q)))
    return LocalLowerBounds(V, probe, probing, q, LOGS, *ball, CAP, counts.start, counts.n_actions)


def reference(s, V, counts, q, ball):
    """Return T_low V(s) and its greedy action, by the definition."""
    complete, frequency, radius = ball
    best, action = min(CAP, 1.0 + V[counts.start]), counts.n_actions
    for a in range(counts.n_actions):
        x, value = s * counts.n_actions + a, 1.0
        o, n = counts.support[x], counts.n[x]
        if o > 1 and complete[x]:
            values, p, r = V[counts.successor[x, :o]], frequency[x, :o], radius[x]
            mean = p @ values
            width = math.sqrt(2 * r * (p @ (values - mean) ** 2)) + r * (mean - values.min())
            value += (1 - q[x]) * max(mean - width, values.min())
        elif n and complete[x]:
            seen = math.exp(-LOGS[s] / (n - 1)) if n > 1 else 0.0
            value += max(1 - q[x], seen) * V[counts.successor[x, 0]]
        elif n:
            values, p, r = V[counts.successor[x, :o]], counts.count[x, :o] / n, LOGS[s] / n
            mean = p @ values
            variance = p @ (values - mean) ** 2
            width = max(
                math.sqrt(2 * r * max(variance, 2 * r * (FINEST_LEVEL * CAP) ** 2)), variance * FINEST_LEVEL / CAP
            )
            low = mean * (1 - r) - NEAREST_LEVEL_FACTOR * width
            value += max(low, (1 - q[x]) * mean if o == 1 else 0.0)
        if value < best:
            best, action = value, a
    return max(best, V[s]), action


@pytest.mark.parametrize("steps", [5, 50, 5000])
def test_backup_equals_reference(steps):
    mdp = toy_models.random_sparse(n_states=9, n_actions=3, seed=4)
    counts, rng = tried(mdp, steps), np.random.default_rng(steps)
    q = rng.random(len(counts.n)) ** 3
    some = counts.count * rng.random(counts.count.shape) + 1e-9 * (counts.count > 0)
    p = some / np.maximum(some.sum(axis=1, keepdims=True), 1e-300)
    ball = rng.random(len(q)) < 0.5, p, rng.random(len(q)) ** 3
    for s in range(mdp.n_states):
        V = rng.random((2, mdp.n_states)) * CAP * rng.random()
        value, action = reference(s, V[1].copy(), counts, q, ball)
        before = V.copy()
        found = backup_state(
            s, 1, local(counts, V, q, ball=ball), counts.successor, counts.count, counts.support, counts.n
        )
        assert found == action
        assert V[1, s] == pytest.approx(value, abs=1e-12)
        V[1, s] = before[1, s]
        np.testing.assert_array_equal(V, before)  # nothing else has changed


@pytest.mark.parametrize(("states", "goals"), [(9, 9), (None, 4), (None, math.inf)])
def test_backup_has_the_radii_of_a_plan_at_this_moment(states, goals):
    """Of lemma 1 for every pair, or of lemma 3a for a pair with one successor if goals are discovered."""
    counts = tried(toy_models.random_sparse(n_states=9, n_actions=3, seed=4), 200)
    sets = ConfidenceSets(counts, states, states and states * 3, goals, 0.1, branching=9)
    logs = np.repeat(sets.local_lower_bounds(np.zeros((1, 9)), np.zeros((1, 9)), False, CAP).logs, 3)
    sets.update_radii()
    x = np.flatnonzero((counts.n > 1) & (counts.support == 1 if goals == math.inf else True))
    assert len(x) >= 4
    n, radii = counts.n[x], sets.empirical_model()
    if goals == math.inf:
        np.testing.assert_allclose(1 - np.exp(-logs[x] / (n - 1)), radii.q[x])
    else:
        np.testing.assert_allclose(logs[x] / n, radii.r_low[x])


def test_probing_names_the_action_and_still_backs_up():
    counts = tried(toy_models.open_grid_model(rows=2, cols=2), 30)
    V, probe = np.zeros((1, 4)), np.full((1, 4), -1, np.int16)
    probe[0, 1] = 3
    given = local(counts, V, np.ones(len(counts.n)), probe, probing=True)
    assert backup_state(1, 0, given, counts.successor, counts.count, counts.support, counts.n) == 3
    assert V[0, 1] >= 1.0


@pytest.mark.parametrize("is_declared", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_locally_raised_bounds_hold(seed, is_declared, monkeypatch):
    """Lemma 5 holds after every rollout at every state, in a run without plans."""
    # Without plans, lemma 14 bounds pairs with one successor only.
    mdp = toy_models.random_sparse(n_states=8, n_actions=2, branching=3 if is_declared else 1, seed=seed)
    truth, counts = exact_policies.optimal_values(mdp), TransitionCounts(mdp.n_states, mdp.n_actions, mdp.start)
    estimates = CertifiedExplorer(counts, mdp.n_states if is_declared else None, 6.0, 1.0, 0.1)
    monkeypatch.setattr(Schedule, "can_sweep", False)
    run, looks = (
        ExplorationRun(
            ModelSimulator(mdp), estimates, BUILTIN_RULES["adagoal-proportional"], np.random.default_rng(seed)
        ),
        [],
    )

    def look(run):
        goals = estimates.goal_state[1:]
        assert (estimates.V[:, 1:] <= truth[:, goals] + 1e-9).all()
        looks.append(estimates.D[1:].max())

    run_exploration(run, 90_000, look)
    assert looks[-1] > 1.5  # they have been raised
    assert estimates.plans == 0


@pytest.mark.parametrize("seed", range(3))
def test_bounds_with_known_branching_hold(seed):
    """In a run that counts as large, bounds from plans and local backups hold and are better than lemma 1."""
    mdp, lowest = toy_models.random_sparse(n_states=8, n_actions=2, seed=seed), []
    truth = exact_policies.optimal_values(mdp)
    for dense in (5, 400):
        counts = TransitionCounts(mdp.n_states, mdp.n_actions, mdp.start)
        estimates = CertifiedExplorer(
            counts, mdp.n_states, 60.0, 1.0, 0.1, branching=3, heuristics=Heuristics(max_small_states=dense)
        )
        run = ExplorationRun(
            ModelSimulator(mdp), estimates, BUILTIN_RULES["adagoal-proportional"], np.random.default_rng(seed)
        )
        run_exploration(run, 10_000)
        estimates.finalize(np.ones(len(estimates.D), bool))
        assert estimates.confidence.uses_ball.any() == (dense == 5)
        goals = estimates.goal_state[1:]
        assert (estimates.V[:, 1:] <= truth[:, goals] + 1e-9).all()
        lowest.append(estimates.D[1:].sum())
    assert lowest[0] > 0.9 * lowest[1]


def test_python_and_compiled_backups_are_equal():
    """A Gymnasium environment and the simulator, on a deterministic model: same counts and same bounds, bit for bit."""
    mdp = extra_models.random_deterministic(n_states=10, n_actions=3, seed=1)
    outcomes = []
    for env in (ModelSimulator(mdp), GymAdapter(ModelEnv(mdp), "model")):
        counts = TransitionCounts(mdp.n_states, mdp.n_actions, mdp.start, width=1)
        V = np.zeros((2, mdp.n_states))
        rng = np.random.default_rng(0)
        if isinstance(env, GymAdapter):
            env.reset_with_seed(0)  # else the first rollout draws a seed
        plan = ExplorationPlan(
            local(counts, V, np.full(len(counts.n), 0.5)), np.array([-2, 7]), 50, np.full(len(counts.n), 2**62)
        )
        for _ in range(40):
            env.rollout(plan, np.array([1.0, 0.0]), counts, rng, (50, 10**6))
        outcomes.append((counts.n.copy(), counts.visits.copy(), V))
    for one, two in zip(*outcomes, strict=True):
        np.testing.assert_array_equal(one, two)
    assert outcomes[0][0].sum() > 1000


def test_shared_column_is_not_raised_after_one_of_its_goals_was_found():
    """Column 0 bounds unseen goals; after a discovery it must be copied before it is raised."""
    mdp = extra_models.random_deterministic(n_states=12, n_actions=2, seed=0)
    counts, V = TransitionCounts(mdp.n_states, mdp.n_actions, mdp.start), np.zeros((1, mdp.n_states))
    plan = ExplorationPlan(local(counts, V, np.zeros(len(counts.n))), np.array([-1]), 50, np.full(len(counts.n), 2**62))
    ModelSimulator(mdp).rollout(plan, np.ones(1), counts, np.random.default_rng(0), (1000, 10**6))
    assert counts.seen.sum() == 2


def test_one_sweep_is_free_at_regular_intervals():
    schedule = Schedule(h := Heuristics(cost_per_plan=2e9))
    schedule.update(1e6, *SIZES)
    schedule.buy_sweeps(1)
    assert schedule.sweeps.tokens < 0.0
    assert schedule.can_sweep
    schedule.buy_sweeps(1)
    debt = schedule.sweeps.tokens
    assert not schedule.can_sweep
    other, more = Schedule(h), schedule.replan_interval()
    other.restore(schedule.state())
    for one in (schedule, other):
        one.update(1e6 + more - 1, *SIZES)
        assert not one.can_sweep
    schedule.update(1.1e6, *SIZES)
    assert schedule.can_sweep
    schedule.buy_sweeps(1)
    assert schedule.sweeps.tokens == debt + h.tokens_per_step * 1e5


def test_token_buckets():
    schedule = Schedule(h := Heuristics())
    assert schedule.duals.has_tokens
    schedule.duals.tokens -= 2 * h.dual_capacity
    assert not schedule.duals.has_tokens
    debt = -schedule.duals.tokens
    schedule.update(debt / h.tokens_per_step - 1.0, *SIZES)
    assert not schedule.duals.has_tokens
    schedule.update(debt / h.tokens_per_step + 1.0, *SIZES)
    assert schedule.duals.has_tokens
    schedule.update(1e15, *SIZES)
    assert schedule.state()["tokens"] == [h.sweep_capacity, h.dual_capacity, h.gap_capacity]
    other = Schedule(h)
    other.restore(schedule.state())
    other.update(1e15, *SIZES)
    assert other.state() == schedule.state()
