"""Certified probabilities of reaching goals within k steps."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest

import adagoal
from adagoal.core.errors import Status
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs import toy_models
from adagoal.envs.model import model_from_rows
from adagoal.exact.audit import largest_probabilities, policy_probability
from adagoal.planning.model_arrays import EmpiricalModel
from adagoal.planning.robust_bounds import HorizonGoals, bound_probabilities
from adagoal.tabular.reach_probabilities import RestartedBalls
from experiments import probabilities
from transition_recording import record_transition

LAKE: dict[str, Any] = {"env": "FrozenLake-v1", "within": 20, "probability": 0.6, "epsilon": 0.2, "seed": 1}


def run(**changes: Any) -> adagoal.Result:
    return adagoal.explore(**{**LAKE, **changes})


def test_frozen_lake_is_certified_and_audited():
    result = run()
    assert result.status is Status.CERTIFIED
    assert adagoal.audit(result).ok
    for goal in result.goals:
        lower, upper = result.certificate(goal)
        assert 0.4 <= lower <= upper <= lower + 0.2
    assert "within 20 steps with probability at least 0.6" in result._repr_html_()


def test_policy_has_one_table_per_step():
    result = run()
    policy = result.policy(result.goals[-1])
    assert policy.actions.shape == (20, 16)
    assert [policy(0) for _ in range(3)] == [policy(0, step) for step in range(3)]
    assert policy(0, 20) == result.reset_action, "the attempt is over"
    policy.restart()
    assert policy(5) == result.reset_action, "a hole: the policy gives up"
    assert policy(0) == policy(0, 0), "and the next attempt begins"


def brute_force(mdp, goal, within, avoid):
    """Return the largest probability, computed state by state from the definition."""
    S, A = mdp.n_states, mdp.n_actions
    h = [float(s == goal and not avoid[s]) for s in range(S)]
    for _ in range(within):
        new = []
        for s in range(S):
            if s == goal and not avoid[s]:
                new.append(1.0)
            elif avoid[s] or mdp.terminal[s]:
                new.append(0.0)
            else:
                pairs = [mdp.row(s, a) for a in range(A) if not mdp.absent[s * A + a]]
                new.append(max((sum(p * h[y] for y, p in zip(*row, strict=True)) for row in pairs), default=0.0))
        h = new
    return h[mdp.start]


@pytest.mark.parametrize("seed", range(5))
def test_exact_solver_equals_the_definition(seed):
    mdp = toy_models.random_sparse(n_states=7, n_actions=3, seed=seed, branching=3)
    avoid = np.arange(7) == 3
    found = largest_probabilities(mdp, range(7), 6, avoid)
    assert found == pytest.approx([brute_force(mdp, g, 6, avoid) for g in range(7)], abs=1e-12)


def known_sets(mdp):
    """Return confidence sets of radius 0 around the true kernel."""
    S, A = mdp.n_states, mdp.n_actions
    K = int(np.diff(mdp.indptr).max())
    successor, p = np.zeros((S * A, K), np.int32), np.zeros((S * A, K))
    for x in range(S * A):
        states, probabilities_ = mdp.row(*divmod(x, A))
        successor[x, : len(states)], p[x, : len(states)] = states, probabilities_
    support, zero = np.diff(mdp.indptr).astype(np.int32), np.zeros(S * A)
    return EmpiricalModel(successor, p, p, support, zero, zero, zero, zero > 0, zero, 0.0, mdp.terminal, mdp.start)


@pytest.mark.parametrize("seed", range(5))
def test_both_bounds_are_exact_without_uncertainty(seed):
    mdp = toy_models.random_sparse(n_states=7, n_actions=3, seed=seed, branching=3)
    avoid = np.arange(7) == 3
    goals = HorizonGoals(np.arange(7)[:, None], np.arange(7), mdp.terminal | avoid, avoid, mdp.absent, -1.0)
    explore, proven = np.zeros((2, 6, 7, 7), np.int16)
    U, W = bound_probabilities(known_sets(mdp), goals, explore, proven)
    truth = largest_probabilities(mdp, range(7), 6, avoid)
    assert pytest.approx(truth, abs=1e-12) == U
    assert pytest.approx(truth, abs=1e-12) == W
    values = [policy_probability(mdp, proven[:, :, g], g, avoid) for g in range(7)]
    assert values == pytest.approx(truth, abs=1e-12)


def masked_model(rare):
    """Return a model: the start leads to goal 2, or with probability ``rare`` to 1, where action 0 is masked."""
    first = {2: 1.0 - rare, 1: rare}
    rows = [first, first, {0: 1.0}, {0: 1.0}, {2: 1.0}, {2: 1.0}]
    return model_from_rows(rows, 2, start=0, action_mask=[[1, 1], [0, 1], [1, 1]])


def test_masked_action_gives_up():
    table, avoid = np.zeros((3, 3), np.int16), np.zeros(3, bool)
    assert policy_probability(masked_model(0.5), table, 2, avoid) == 0.5
    table[:, 1] = 1
    assert policy_probability(masked_model(0.5), table, 2, avoid) == 0.75


def test_policies_give_up_in_unseen_states():
    result = adagoal.explore(masked_model(1e-9), within=3, probability=0.8, epsilon=0.1, goals=[2], seed=0)
    assert result.status is Status.CERTIFIED
    assert result.arrays["visits"][1] == 0
    assert (result.policy(2).actions[:, 1] == result.reset_action).all()


def test_audit_reports_probabilities():
    result = run(budget=5_000)
    right, wrong = (str(adagoal.audit(one)) for one in (run(), replace(result, goals=[])))
    assert "All 11 policies are within epsilon = 0.2 of the best probability within 20 steps (C1)." in right
    assert "No goal with probability at least 0.6 is missing, and none below probability 0.4 was returned" in right
    assert "goals are missing with probability at least 0.6, or returned below probability 0.4." in wrong


def test_labels_of_exported_goals_take_precedence(tmp_path):
    rows = [{1: 1.0}, {2: 0.5, 3: 0.5}, *[{3: 1.0}] * 6]
    danger = np.arange(4) == 1
    model = replace(model_from_rows(rows, 2), sets=dict.fromkeys(("goal_3", "avoid", "danger"), danger))
    adagoal.explore(model, within=3, probability=0.4, epsilon=0.1, goals=[3], out=tmp_path)
    text = adagoal.export(tmp_path, "drn")[0].read_text()
    labels = {int(line.split()[1]): line.split()[2:] for line in text.splitlines() if line.startswith("state ")}
    assert [state for state, names in labels.items() if "goal_3" in names] == [3, 4], "3 and anything"
    assert [state for state, names in labels.items() if "danger" in names] == [1]
    assert not any("avoid" in names for names in labels.values())


@pytest.mark.parametrize("method", ["certified", "intervals"])
def test_rounding_drops_no_goal_of_probability_one(method):
    rows = [{1: 0.3, 2: 0.3, 3: 0.4}, {4: 0.5, 5: 0.25, 6: 0.25}, {4: 0.1, 5: 0.45, 6: 0.45}, {4: 0.2, 5: 0.2, 6: 0.6}]
    model = model_from_rows([*rows, *[{7: 1.0}] * 4], 1, start=0)
    setting = {"within": 3, "probability": 1.0, "epsilon": 0.3, "goals": [7], "method": method}
    results = [adagoal.explore(model, **setting, seed=seed) for seed in range(20)]
    assert all(adagoal.audit(result).ok for result in results)
    assert [result.goals for result in results] == [[7]] * 20
    assert [result.certificate(7).upper for result in results] == [1.0] * 20


def divergence_missed(rng, p, n, weaken=1.0):
    """Return whether the ball of one pair ever excludes p in n transitions."""
    counts = TransitionCounts(len(p), 1, 0, width=len(p))
    sets = RestartedBalls(counts, len(p), 1, 1, 0.3, len(p))
    for t, successor in enumerate(rng.choice(len(p), n, p=p)):
        record_transition(counts, 0, 0, int(successor))
        if t % 7:
            continue
        sets.update()
        model = sets.model()
        o = model.support[0]
        centre, truth = model.p_split[0, :o], p[model.successor[0, :o]]
        if truth.sum() < 1.0 - weaken * model.q[0] - 1e-12:
            return True
        used = centre > 0
        if (centre[used] * np.log(centre[used] / (truth / truth.sum())[used])).sum() > weaken * model.r[0] + 1e-12:
            return True
    return False


def test_restarted_balls_hold_and_weakened_ones_fail():
    rng = np.random.default_rng(0)
    for p in (np.array([0.5, 0.5]), np.array([0.8, 0.15, 0.05])):
        assert np.mean([divergence_missed(rng, p, 3000) for _ in range(40)]) <= 0.15
        assert np.mean([divergence_missed(rng, p, 3000, weaken=0.2) for _ in range(40)]) > 0.4


def test_restart_makes_the_ball_smaller():
    counts = TransitionCounts(3, 1, 0)
    sets, plain = (RestartedBalls(counts, 3, 3, 3, 0.1, 3) for _ in range(2))
    rng = np.random.default_rng(0)
    for successor in rng.choice(3, 50_000, p=[0.2, 0.3, 0.5]):
        record_transition(counts, 0, 0, int(successor))
        if counts.n[0] % 50 == 0:
            sets.update()
    plain.update()  # one update at the end: no restart yet
    assert sets.restarts[0, 0] >= 2
    assert sets.model().r[0] < 0.95 * plain.model().r[0]


@pytest.mark.parametrize("family", probabilities.FAMILIES)
@pytest.mark.parametrize("seed", range(3))
def test_no_claim_is_false(family, seed):
    record = probabilities.run_task(probabilities.Task(family, "adagoal", 0.01, seed), budget=20_000)
    assert not probabilities.broken(record)


def test_weakened_bounds_are_detected():
    records = [probabilities.run_task(task, budget=20_000) for task in probabilities.tasks(0, 28, 0)]
    assert sum(map(probabilities.broken, records)) >= 10
    assert {kind for record in records for kind in record["first_miss"]} == {"lower", "upper"}


@pytest.mark.parametrize("bound", ["betting", "clopper-pearson"])
def test_intervals_bound_probabilities_too(bound):
    result = run(method="intervals", method_args={"bound": bound}, probability=0.9, within=10)
    assert result.status is Status.CERTIFIED
    assert adagoal.audit(result).ok


def test_states_to_avoid_lower_the_probability():
    free, avoiding = run(goals=[14]), run(goals=[14], avoid=[9])
    truth = [row.optimal for result in (free, avoiding) for row in adagoal.audit(result).rows]
    assert truth[1] < truth[0]
    assert adagoal.audit(avoiding).ok
    by_label = run(goals=[14], avoid="(2, 1)")
    assert by_label.certificates == avoiding.certificates


def test_labels_of_sets_can_be_avoided():
    rows = [{1: 1.0}, {2: 0.5, 3: 0.5}, *[{3: 1.0}] * 6]
    model = replace(model_from_rows(rows, 2), sets={"danger": np.arange(4) == 1})
    result = adagoal.explore(model, within=3, probability=0.4, epsilon=0.1, avoid="danger", goals=[3])
    assert adagoal.audit(result).ok


class Walk(gymnasium.Env):
    """A walk on 0..4 with undeclared states; moves fail with probability 0.2, and 4 ends the episode."""

    observation_space = gymnasium.spaces.MultiDiscrete([5])
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 1
        return np.array([self.place]), {}

    def step(self, action):
        if self.np_random.random() < 0.8:
            self.place = max(self.place + 2 * int(action) - 1, 0)
        return np.array([self.place]), 0.0, self.place == 4, False, {}


def test_states_numbered_as_found(tmp_path):
    """The start is inferred from resets, the number of states is unknown, and the policy is played."""
    setting = {"within": 4, "probability": 0.5, "epsilon": 0.25, "max_states": 10, "seed": 0}
    result = adagoal.explore(Walk(), **setting, out=tmp_path)
    assert result.status is Status.CERTIFIED
    rows = [{0: 1.0}, {0: 0.8, 1: 0.2}, {1: 0.8, 2: 0.2}, {2: 0.8, 3: 0.2}, {4: 1.0}]
    up = [{0: 0.2, 1: 0.8}, {1: 0.2, 2: 0.8}, {2: 0.2, 3: 0.8}, {3: 0.2, 4: 0.8}, {4: 1.0}]
    model = model_from_rows([row for pair in zip(rows, up, strict=True) for row in pair], 2, start=1)
    truth = largest_probabilities(model, range(5), 4, np.zeros(5, bool))
    for goal, (lower, upper) in result.certificates.items():
        place = int(result.goal_label(goal).replace("start", "1").strip("[] (end)"))
        assert lower <= truth[place] + 1e-9
        assert truth[place] <= upper + 1e-9
    assert all(trial.agrees for trial in adagoal.play(tmp_path, episodes=50, env=Walk()))


@pytest.mark.parametrize("method", ["certified", "intervals"])
def test_goals_are_found_in_states_numbered_as_found(tmp_path, method):
    setting = {"within": 4, "probability": 0.5, "epsilon": 0.25, "max_states": 10, "seed": 0, "method": method}
    goals = {"goals": lambda x: ("left", "start", "right", "right", "end")[x[0]]}
    result = adagoal.explore(Walk(), **setting, **goals)
    assert result.status is Status.CERTIFIED
    assert {result.goal_label(goal) for goal in result.goals} == {"left", "start", "right", "end"}
    lower, upper = result.certificate("right")
    assert lower <= 1 - 0.2**4 <= upper
    adagoal.explore(Walk(), **setting, **goals, budget=1, out=tmp_path)
    parts = [adagoal.resume(tmp_path, budget, env=Walk(), **goals) for budget in (2, 3, 5, 8, 100, 100_000)]
    assert parts[-1].status is Status.CERTIFIED
    assert sorted(parts[-1].goal_names) == sorted(result.goal_names)


@pytest.mark.parametrize("max_states", [10, 100])
def test_labels_of_states_numbered_as_found_can_be_avoided(max_states):
    setting = {"within": 4, "probability": 0.3, "epsilon": 0.25, "max_states": max_states, "seed": 0}
    misspelt = adagoal.explore(Walk(), **setting, avoid=["lava", "[0]"])
    assert misspelt.status is Status.CERTIFIED
    assert [line for line in misspelt.warnings if "avoid" in line] == ["avoid: no state was called 'lava'"]
    assert [misspelt.label(state) for state in np.flatnonzero(misspelt.arrays["avoided"])] == ["[0]"]
    goals = {"four": lambda x: x[0] == 4}
    for label in ("[4]", "[4] (end)"):
        ending = adagoal.explore(Walk(), **setting, avoid=label, goals=goals)
        assert ending.goals == []
        assert ending.certificate("four").lower == 0.0
        assert not any("avoid" in line for line in ending.warnings)
    for label in ("[1]", "start"):
        with pytest.raises(adagoal.InputError, match="avoid: the start is among the states to avoid"):
            adagoal.explore(Walk(), **setting, avoid=label)
    with pytest.raises(adagoal.InputError, match=r"avoid: .* so numbers cannot name them in advance; use labels"):
        adagoal.explore(Walk(), **setting, avoid=[2])


class RandomStart(gymnasium.Env):
    """The first state is 0 or 5. In 0, action 0 leads to 3 or 4; action 1 leads over 2 and 5 to 3."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, numbered=True):
        spaces = gymnasium.spaces
        self.observation_space = spaces.Discrete(6) if numbered else spaces.MultiDiscrete([6])

    def observation(self):
        return self.state if isinstance(self.observation_space, gymnasium.spaces.Discrete) else np.array([self.state])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = 0 if self.np_random.random() < 0.7 else 5
        return self.observation(), {}

    def step(self, action):
        if self.state == 0:
            self.state = 2 if action else 3 if self.np_random.random() < 0.6 else 4
        else:
            self.state = {2: 5, 5: 3, 3: 3, 4: 4}[self.state]
        return self.observation(), 0.0, False, False, {}


@pytest.mark.parametrize("numbered", [True, False])
def test_random_first_observation_takes_one_step(numbered, tmp_path):
    """Three steps including the draw: from 0 only action 0 is fast enough."""
    setting = {"within": 3, "probability": 0.5, "epsilon": 0.1, "seed": 0, "max_states": None if numbered else 10}
    goals = [3, 5] if numbered else {"three": lambda x: x[0] == 3}
    explored = adagoal.explore(RandomStart(numbered), **setting, goals=goals, out=tmp_path)
    assert explored.status is Status.CERTIFIED
    for result in (explored, adagoal.load(tmp_path)):
        goal, env, reached = result.goals[0], RandomStart(numbered), 0
        policy = result.policy(goal)
        for episode in range(400):
            observation, _ = env.reset(seed=episode)
            # The draw was the first step. Without restart(): giving up after the last step starts the next attempt.
            for _ in range(2):
                if (action := policy.act(observation)) == policy.reset_action:
                    break
                observation, *_ = env.step(action)
            reached += env.state == 3
            if action != policy.reset_action:
                assert policy.act(observation) == policy.reset_action
        lower, upper = result.certificate(goal)
        assert lower - 0.05 < reached / 400 < upper + 0.05
    # Giving up after an unseen observation starts the next attempt, too.
    state = policy.find(RandomStart(numbered).reset(seed=1)[0])
    policy(state)
    find, policy.find = policy.find, lambda observation: None
    assert policy.act(None) == policy.reset_action
    policy.find = find
    assert policy(state) == policy(state, 1)
    assert policy(state) == policy(state, 2)


def test_resume_equals_uninterrupted_run(tmp_path, monkeypatch):
    whole, count = run(), 0

    def crash(_):
        nonlocal count
        count += 1
        if count == 40:
            raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr("adagoal.runs.run_folder.save_interval_elapsed", lambda since, cost: True)
        with pytest.raises(SystemExit):
            run(out=tmp_path, observe=crash)
    again = adagoal.resume(tmp_path)
    assert again.to_dict() | {"wall_seconds": 0} == whole.to_dict() | {"wall_seconds": 0}
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(array, again.arrays[name])
    loaded = adagoal.load(tmp_path)
    assert loaded.setting == whole.setting
    assert loaded.measure.threshold == 0.6
    assert {p.name for p in adagoal.export(tmp_path, "drn")} >= {"certified.drn", "properties.props"}


def test_budget_keeps_certified_bounds():
    result = run(budget=5_000)
    assert result.status is Status.BUDGET
    assert result.open_goals
    assert adagoal.audit(result).certificates


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"probability": 0}, r"probability: must be a number in \(0, 1\], got 0"),
        ({"probability": 1.5}, r"probability: must be a number in \(0, 1\], got 1.5"),
        ({"probability": None}, "within: needs a probability"),
        ({"within": 0}, "within: must be a whole number in 1..100000, got 0"),
        ({"within": None}, "radius: missing; give the number of steps to look"),
        ({"radius": 5}, "within: cannot be combined with radius"),
        ({"within": None, "radius": 5}, "probability: needs the number of steps"),
        ({"epsilon": 1.0}, "epsilon: must be below 1"),
        ({"epsilon": 0.6}, "epsilon: must be below the probability 0.6, got 0.6"),
        ({"avoid": [0]}, "avoid: the start is among the states to avoid"),
        ({"avoid": [5], "goals": [5]}, "avoid: all states of goal 5 are to be avoided; leave it out"),
        ({"avoid": [99]}, "avoid: must be one or more states in 0..15, got 99"),
        ({"avoid": ["lava"]}, "avoid: .* called 'lava'"),
        ({"avoid": [1.5]}, "avoid: must be states"),
        ({"method": "ucbvi"}, "method: ucbvi does not bound probabilities"),
    ],
)
def test_bad_input_gives_one_line_error(changes, message):
    with pytest.raises(adagoal.InputError, match=message) as caught:
        run(**changes)
    assert "\n" not in str(caught.value)


WALK = """
mdp
module walk
  x : [0..4] init 1;
  [brisk] x < 4 -> 0.7 : (x' = x + 1) + 0.3 : (x' = max(x - 1, 0));
  [careful] x > 0 & x < 4 -> 0.5 : (x' = x + 1) + 0.5 : true;
endmodule
label "finished" = x = 4;
label "edge" = x = 0;
"""


@pytest.mark.skipif(importlib.util.find_spec("stormpy") is None, reason="stormpy is not installed (the extra storm)")
def test_storm_agrees_on_the_program_and_on_the_exported_intervals(tmp_path):
    import stormpy

    (tmp_path / "walk.prism").write_text(WALK)
    program = stormpy.parse_prism_program(tmp_path / "walk.prism")
    built = stormpy.build_model(program, options=stormpy.BuilderOptions(build_full=True))
    question = stormpy.parse_property('Pmax=? [ !"edge" U<=6 "finished" ]')
    exact = stormpy.model_checking(built, question).get_value(built.initial_states[0])
    setting: dict[str, Any] = {"within": 6, "probability": 0.3, "epsilon": 0.1, "goals": ["finished"], "avoid": "edge"}
    result = adagoal.explore(str(tmp_path / "walk.prism"), **setting, out=tmp_path / "run")
    assert [row.optimal for row in adagoal.audit(result).rows] == pytest.approx([exact], abs=1e-9)
    lower, upper = result.certificate("finished")
    assert lower <= exact <= upper
    folder = adagoal.export(tmp_path / "run", "drn")[0].parent
    assert (folder / "properties.props").read_text() == 'Pmax=? [ !"avoid" U<=6 "goal_0" ];\n'
    asked = stormpy.parse_property((folder / "properties.props").read_text().strip(";\n"))
    modes = stormpy.UncertaintyResolutionMode
    for name in ("certified", "graph-preserving"):
        intervals = stormpy.build_model_from_drn[stormpy.Interval](str(folder / f"{name}.drn"))
        low, high = (
            stormpy.model_checking(intervals, asked, uncertainty_resolution_mode=mode).get_value(0)
            for mode in (modes.ROBUST, modes.COOPERATIVE)
        )
        assert low <= exact <= high


def test_goal_that_contains_a_known_start_has_probability_one():
    assert run(goals=[0]).certificates == {0: (1.0, 1.0)}


@pytest.mark.parametrize("goals", [{"here": lambda x: x[0] == 1}, None])
def test_goal_that_contains_an_inferred_start_is_as_certain_as_the_reset(goals):
    setting = {"within": 2, "probability": 0.9, "epsilon": 0.1, "max_states": 10, "goals": goals}
    result = adagoal.explore(Walk(), **setting)
    assert result.status is Status.CERTIFIED
    assert 0 in result.goals
    resets = result.arrays["visits"].sum() - result.arrays["moves_count"].sum()
    lower, upper = result.certificate(0)
    assert 0.9 <= lower == pytest.approx((0.05 * 0.1) ** (1 / resets))
    assert upper == 1.0
