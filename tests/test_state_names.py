"""Names of states and goals in results, and policies that take observations."""

import json
import math
import pickle
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import adagoal
from adagoal.core.errors import InputError
from adagoal.envs import observation_keys, toy_models
from adagoal.envs.simulator import ModelSimulator
from adagoal.runs.result import StateMetadata
from model_env import ModelEnv, PairEnv

GRID = {"rows": 3, "cols": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a grid of nine named cells, started from Python."""
    place = tmp_path_factory.mktemp("names") / "run"
    adagoal.explore("grid", 5.0, 1.0, env_args=GRID, out=place)
    return place


def test_labels_of_states_and_goals(folder):
    result = adagoal.load(folder)
    assert [result.label(s) for s in (0, 4)] == ["(0, 0)", "(1, 1)"]
    assert result.state("(1, 1)") == 4
    assert repr(result).startswith("<Result of grid within 5.0 steps, certified: 9 goals, 0 of them open, after ")
    assert result.certificate("(1, 1)") == result.certificate(4)
    assert result.policy("(1, 1)").goal == 4
    assert result.error("(1, 1)") == result.error(4)
    rows = json.loads((folder / "result.json").read_text())["goals"]
    assert [row["label"] for row in rows] == [result.label(row["goal"]) for row in rows]


def test_python_runs_write_the_view(folder):
    stored = json.loads((folder / "view.json").read_text())
    assert stored["labels"][4] == "(1, 1)"
    assert stored["layout"]["shape"] == [3, 3]


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda r: r.state("(1, 11)"), r"no state is called '\(1, 11\)'; did you mean '\(1, 1\)'"),
        (lambda r: r.certificate("door"), "no goal is called 'door'"),
        (lambda r: r.label(9), r"state 9 is not in 0\.\.8"),
        (lambda r: r.members(1.5), "goal 1.5 is neither a number nor a name"),
        (lambda r: r.policy("(2, 2)").act([1]), r"state \[1\] is neither a number nor a name"),
    ],
)
def test_unknown_names_give_one_line_error(folder, ask, text):
    with pytest.raises(InputError, match=text):
        ask(adagoal.load(folder))


def test_table_and_data_frame(folder, monkeypatch):
    result = adagoal.load(folder)
    rows = result.table()
    in_result = [row for row in rows if row["in_result"]]
    assert sorted(row["goal"] for row in in_result) == result.goals
    assert rows[: len(in_result)] == in_result
    assert [row["lower"] for row in in_result] == sorted(row["lower"] for row in in_result)
    assert list(rows[0]) == ["goal", "label", "states", "lower", "upper", "error", "in_result", "open"]
    assert all(math.isnan(row["error"]) for row in rows if not row["in_result"])
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "pandas", None)
        with pytest.raises(InputError, match=r"a data frame needs pandas: .* install pandas"):
            result.frame()
    frame = pytest.importorskip("pandas") and result.frame()
    assert frame.loc[4, "label"] == "(1, 1)"


def test_ambiguous_name_gives_one_line_error():
    mdp = adagoal.Model.from_dense(np.eye(3)[[1, 2, 0]][:, None], labels=["hall", "room", "room"])
    result = adagoal.explore(mdp, 4.0)
    with pytest.raises(InputError, match=r"2 states are called 'room', the first are \[1, 2\]; give a number"):
        result.state("room")


# --- policies in environments ---


def count_steps(env: Any, policy: Any, there: Any) -> int:
    """Return the steps of a policy from a reset until ``there`` holds."""
    observation, _ = env.reset(seed=5)
    for steps in range(1000):
        if there(env):
            return steps
        action = policy.act(observation)
        observation = env.reset()[0] if action == policy.reset_action else env.step(action)[0]
    raise AssertionError("it never arrived")


@pytest.mark.parametrize("found", [False, True])
def test_act_accepts_observations_of_the_environment(tmp_path, found):
    """Also for states numbered as found, and for a loaded result."""
    mdp = toy_models.chain_model(n_states=6, slip=0.1)
    env = (PairEnv if found else ModelEnv)(mdp)
    adagoal.explore(env, 8.0, 4.0, max_states=20 if found else None, out=tmp_path)
    result = adagoal.load(tmp_path)
    for goal in result.goals[1:]:
        target = int(result.label(goal).strip("[]").split()[-1]) if found else goal
        policy = pickle.loads(pickle.dumps(result.policy(goal)))
        assert 1 <= count_steps(env, policy, lambda env, target=target: env.state == target) < 100
        pickle.dumps(policy)
    never = np.array([9, 9])
    if found:
        assert result.policy(1).act(never) == result.reset_action  # a state that the run has not seen
        with pytest.raises(InputError, match="observations must have the shape"):
            result.policy(1).act(np.array([1, 2, 3]))
    else:
        with pytest.raises(InputError, match="observation 17 is not in"):
            result.policy(1).act(17)
        with pytest.raises(InputError, match="this is not an observation of the environment"):
            result.policy(1).act("left")


def test_act_in_toy_text_and_minigrid(tmp_path):
    result = adagoal.explore("FrozenLake-v1", 4.0, env_args={"is_slippery": False})
    env = gymnasium.make("FrozenLake-v1", is_slippery=False)
    assert count_steps(env, result.policy("(1, 0)"), lambda env: env.unwrapped.s == 4) == 1
    pytest.importorskip("minigrid")
    adagoal.explore("MiniGrid-Empty-5x5-v0", 3.0, goals="keys:cell", out=tmp_path)
    policy = adagoal.load(tmp_path).policy("(1, 3)")
    env = gymnasium.make("MiniGrid-Empty-5x5-v0")
    env.reset()
    for _ in range(2):
        env.step(policy.act(env))
    assert tuple(env.unwrapped.agent_pos) == (3, 1)


def test_policy_without_stored_observations_gives_an_error():
    result = adagoal.explore(ModelSimulator(toy_models.open_grid_model(rows=2, cols=2)), 4.0)
    assert result.policy(3).act("(0, 0)") == result.policy(3)(0)  # a model: labels and numbers
    bare = adagoal.Policy(3, np.zeros((1, 4), np.int16), 4)
    with pytest.raises(InputError, match="did not keep its observations"):
        bare.act(0)


def test_policy_of_an_open_goal_resets_in_unseen_states():
    result = adagoal.explore("chain", 25.0, 1.0, env_args={"n_states": 30, "slip": 0.1}, budget=300)
    beyond = range(int(np.flatnonzero(result.arrays["visits"]).max()) + 2, 30)
    assert len(beyond) > 5
    assert result.open_goals
    for goal in result.goals:
        assert {result.policy(goal)(state) for state in beyond} == {result.reset_action}


class SameLookingEnd(PairEnv):
    """Terminated and live states share one observation."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or self.np_random.random() < 0.3, truncated, info


def test_terminated_and_live_states_with_one_observation_differ():
    result = adagoal.explore(SameLookingEnd(toy_models.chain_model(n_states=3)), 6.0, max_states=20, budget=2000)
    labels = [result.label(s) for s in result.goals]
    assert result.n_states == 1 + 5 < len(result.arrays["visits"])  # three terminated states and two live ones
    with pytest.raises(InputError, match="state 6 is not in"):
        result.label(6)
    assert {"[0 1]", "[0 1] (end)"} <= set(labels)
    assert len(set(labels)) == len(labels)
    assert result.state("[0 1]") != result.state("[0 1] (end)")
    assert result.void == []


# --- keys of observations as JSON ---


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(5),
        spaces.Text(4),
        spaces.MultiDiscrete([3, 4]),
        spaces.Box(0, 9, (2, 2), np.int32),
        spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2,))]),
        spaces.Dict({"b": spaces.Discrete(2), "a": spaces.MultiBinary(3)}),
    ],
)
def test_keys_survive_json(space):
    how = json.loads(json.dumps(observation_keys.describe_space(space)))
    space.seed(1)
    samples = [space.sample() for _ in range(30)]
    digests = [observation_keys.hash_state_key(observation_keys.make_key_reader(how)(sample)) for sample in samples]
    for i, one in enumerate(samples):
        for j, other in enumerate(samples):
            same = all(np.array_equal(a, b) for a, b in zip(flat(one), flat(other), strict=True))
            assert (digests[i] == digests[j]) == same


def flat(sample: Any) -> list[Any]:
    """The parts of a sample."""
    parts = list(sample.values()) if isinstance(sample, dict) else sample
    return list(parts) if isinstance(parts, tuple | list) else [parts]


@pytest.mark.parametrize(
    "space",
    [
        {"kind": "states", "first": "a", "size": 3},
        {"kind": "states", "first": 0},
        {"kind": "magic"},
        {"kind": "array"},
        {},
    ],
)
def test_damaged_view_is_refused(folder, tmp_path, space):
    result = adagoal.load(folder)
    damaged = StateMetadata(result.view.start, result.view.labels, None, space)
    adagoal.Result(**{**vars(result), "view": damaged}).save(tmp_path / "run")
    with pytest.raises(InputError, match=r"view.json"):
        adagoal.load(tmp_path / "run")


def test_unverifiable_assumptions_give_warnings():
    def lines(**given):
        return adagoal.explore(PairEnv(toy_models.chain_model(n_states=4), (0,)), 8.0, budget=3000, **given).warnings

    assert "no state of the goal far was met" in lines(goals={"far": lambda seen: False, "all": lambda seen: True})
    assert "no state of the goal all was met" not in lines(goals={"all": lambda seen: True})
