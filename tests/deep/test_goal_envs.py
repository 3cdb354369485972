"""Goal-conditioned environments: setting goals, episode ends, supported forms and errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.deep import env_inspection
from adagoal.deep.config import Config
from adagoal.deep.env_inspection import inspect_env, measure_dimensions
from adagoal.deep.goal_envs import (
    EnvDimensions,
    EnvSource,
    EpisodeEnd,
    GoalEnv,
    flatten_numbers,
    make_goal_env,
    unflatten_like,
)
from adagoal.deep.pointmass import PointMass
from adagoal.deep.rollouts import EnvBatch
from adagoal.deep.training import Training


class Line(gymnasium.Env[Any, Any]):
    """A point on a line, moved by up to 1; the episode terminates at the goal or beyond 20."""

    dtype: Any = np.float64
    shape: tuple[int, ...] = (1,)

    def __init__(self) -> None:
        box = spaces.Box(-100, 100, self.shape, self.dtype)
        parts: dict[str, Any] = {"observation": box, "achieved_goal": box, "desired_goal": box}
        self.observation_space = spaces.Dict(parts)
        self.action_space = spaces.Box(-2.0, 6.0, (1,), np.float32)
        self.x, self.hidden = 0.0, 5.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x, self.hidden = 0.0, float(self.np_random.integers(3, 12))
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        self.x += (float(action[0]) - 2.0) / 4.0
        near = abs(self.x - self.hidden) < 0.5
        return self.seen(), float(near) - 1.0, bool(near or self.x > 20), False, {"near": near}

    def form(self, x: float) -> Any:
        return np.full(self.shape, x, self.dtype)

    def seen(self) -> Any:
        here = self.form(self.x)
        return {"observation": here, "achieved_goal": here, "desired_goal": self.form(self.hidden)}

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return -float(np.linalg.norm(np.ravel(achieved) - np.ravel(desired)) >= 0.5)


class Settable(Line):
    def set_goal(self, goal: Any) -> None:
        self.hidden = float(np.ravel(goal)[0])


class Square(Settable):
    shape = (2, 2)


class Nested(Settable):
    """Goals are dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        box = spaces.Box(-100, 100, (1,), np.float64)
        goal = spaces.Dict({"b": box, "a": box})
        parts: dict[str, Any] = {"observation": spaces.Tuple((box, box)), "achieved_goal": goal, "desired_goal": goal}
        self.observation_space = spaces.Dict(parts)

    def seen(self) -> Any:
        both = {"b": self.form(self.x), "a": self.form(0.0)}
        there = {"b": self.form(self.hidden), "a": self.form(0.0)}
        return {"observation": (self.form(self.x), self.form(0.0)), "achieved_goal": both, "desired_goal": there}

    def set_goal(self, goal: Any) -> None:
        self.hidden = float(goal["b"][0])

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return -float(np.linalg.norm(flatten_numbers(achieved) - flatten_numbers(desired)) >= 0.5)


class Whole(Settable):
    """Goals are whole numbers, reached exactly."""

    dtype = np.int64

    def form(self, x: float) -> Any:
        return np.full(self.shape, round(x), self.dtype)

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return -float((achieved != desired).any())


class Elsewhere(Settable):
    """The observation does not contain the achieved goal."""

    def seen(self) -> Any:
        return super().seen() | {"observation": np.zeros(1)}


class Informed(Settable):
    """The reward uses the info only."""

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return float(info["near"]) - 1.0


class Moody(Settable):
    """The reward uses the info too."""

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return super().compute_reward(achieved, desired, info) if not info["near"] else -1.0

    def reset(self, **given: Any) -> Any:
        self.steps = 0
        return super().reset(**given)

    def step(self, action: Any) -> Any:
        self.steps += 1
        seen, reward, _, _, _ = super().step(action)
        return seen, reward, False, False, {"near": self.steps > 5}


class Buttons(Settable):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(0, 5, (1,), np.int64)  # type: ignore[assignment]


class Named(Settable):
    def __init__(self) -> None:
        super().__init__()
        goal = spaces.Text(10)
        here = self.observation_space["observation"]
        self.observation_space = spaces.Dict({"observation": here, "achieved_goal": goal, "desired_goal": goal})


class FetchLike(Settable):
    """Has the attributes of the known families, but belongs to none."""

    maze = task = "tea"
    initial_gripper_xpos, has_object, block_gripper, model = "left", True, True, "teapot"

    def update_target_site_pos(self) -> None:
        raise AssertionError("not a maze")


class Numbered(Line):
    """Stores something other than its goal as ``goal``."""

    def __init__(self, goal: Any) -> None:
        super().__init__()
        self.goal = goal

    def step(self, action: Any) -> Any:
        assert not isinstance(self.goal, np.ndarray)
        return super().step(action)


class Scalar(Line):
    """Stores its goal as a plain number."""

    @property
    def goal(self) -> Any:
        return self.hidden

    @goal.setter
    def goal(self, goal: Any) -> None:
        self.hidden = goal


class Vector(Scalar):
    @property
    def goal(self) -> Any:
        return self.form(self.hidden)

    @goal.setter
    def goal(self, goal: Any) -> None:
        self.hidden = float(goal[0])


def made(kind: Any, **given: Any) -> tuple[EnvSource, EnvDimensions]:
    source = EnvSource.from_argument(kind, **given)
    return source, measure_dimensions(source.make_env(), source, 30)


def end_of(env: GoalEnv, goal: float, steps: int = 30, action: float = 1.0) -> tuple[EpisodeEnd, float]:
    """Move right until the episode ends; return how it ended and the achieved goal."""
    env.reset(1)
    env.set_goal(np.full(env.sizes.goal, goal))
    for _ in range(steps):
        _, achieved, end = env.step(np.full(1, action))
        if end is not EpisodeEnd.CONTINUES:
            break
    return end, float(achieved[-1])


def test_chosen_goal_ends_the_episode() -> None:
    source, sizes = made(Settable)
    assert sizes.accepts_goals
    assert end_of(GoalEnv(source, sizes), 14.0) == (EpisodeEnd.TERMINATED, 14.0)


def test_end_at_a_goal_that_cannot_be_set_is_ignored() -> None:
    source, sizes = made(Line)
    assert not sizes.accepts_goals
    end, achieved = end_of(GoalEnv(source, sizes), 14.0)
    assert (end, achieved) == (EpisodeEnd.TERMINATED, 21.0), "death is an end all the same"


def test_hook_sets_the_goal() -> None:
    def set_goal(env: Any, goal: Any) -> None:
        env.unwrapped.hidden = float(goal[0])

    source, sizes = made(Line, set_goal=set_goal)
    assert end_of(GoalEnv(source, sizes), 14.0) == (EpisodeEnd.TERMINATED, 14.0)
    with pytest.raises(InputError, match=r"^set_goal: object:Line does not show the goal"):
        made(Line, set_goal=lambda env, goal: None)
    with pytest.raises(InputError, match=r"^set_goal: must be a function"):
        made(Line, set_goal=3)


def test_truncation_ends_the_episode_without_termination() -> None:
    source = EnvSource.from_argument(lambda: gymnasium.wrappers.TimeLimit(Settable(), 4))
    sizes = measure_dimensions(source.make_env(), source, 30)
    assert end_of(GoalEnv(source, sizes), 14.0) == (EpisodeEnd.TRUNCATED, 4.0)


@pytest.mark.parametrize("kind", [Square, Nested, Whole])
def test_unusual_shapes_and_types_are_supported(kind: type[Line]) -> None:
    source, sizes = made(kind)
    assert sizes.accepts_goals
    assert sizes.goal == {Square: 4, Nested: 2, Whole: 1}[kind]
    assert sizes.success == pytest.approx(0.0 if kind is Whole else 0.5, abs=1e-5)
    pool = env_inspection.make_goal_sampler(source.make_env(), "train_goals", "env")(np.random.default_rng(0), 5)
    assert pool.shape == (5, sizes.goal)
    end, achieved = end_of(GoalEnv(source, sizes), 14.0)
    assert (end, round(achieved)) == (EpisodeEnd.TERMINATED, 14)


def test_policy_input_includes_the_achieved_goal() -> None:
    source, sizes = made(Elsewhere)
    assert sizes.with_achieved
    env = GoalEnv(source, sizes)
    env.reset(0)
    observation, achieved, _ = env.step(np.ones(1))
    assert observation.tolist() == [0.0, 1.0]
    assert achieved.tolist() == [1.0]
    assert not made(Settable)[1].with_achieved


def test_constant_coordinate_is_not_confused_with_another() -> None:
    """An unmoved box at 0, beside a switch that is 0."""

    class Pushed(Settable):
        def seen(self) -> Any:
            box = self.form(max(self.x - 50.0, 0.0))
            return super().seen() | {"observation": self.form(0.0), "achieved_goal": box}

    class Placed(Pushed):
        """The box has a new position in every episode, which the observation contains."""

        def seen(self) -> Any:
            box = self.form(self.hidden - 3.0)
            return super().seen() | {"observation": box, "achieved_goal": box}

    assert made(Pushed)[1].with_achieved
    assert not made(Placed)[1].with_achieved


@pytest.mark.parametrize("unit", [1.0, 1000.0])
def test_observations_may_have_any_unit(unit: float) -> None:
    class Far(Settable):
        def seen(self) -> Any:
            return super().seen() | {"observation": self.form(unit * self.x)}

    source, sizes = made(Far)
    env = GoalEnv(source, sizes)
    env.reset(0)
    assert env.step(np.ones(1))[0][0] == unit


def test_reward_of_the_outermost_wrapper_is_used() -> None:
    class Wider(gymnasium.Wrapper[Any, Any, Any, Any]):
        def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
            return -float(np.linalg.norm(achieved - desired) >= 2.0)

    assert made(lambda: Wider(Settable()))[1].success == pytest.approx(2.0)
    assert made(lambda: gymnasium.Wrapper(Settable()))[1].success == pytest.approx(0.5)


def test_gentle_ant(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example has at most 30% of the torque, holds actions for two steps, and observes no contact forces."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples" / "train")
    source = EnvSource("gentle_ant:GentleAntMaze_UMaze-v0")
    sizes = measure_dimensions(source.make_env(), source, 0)
    assert (sizes.observation, sizes.action, sizes.horizon, sizes.accepts_goals) == (29, 8, 350, True)
    env = GoalEnv(source, sizes)
    env.reset(0)
    data = env.env.unwrapped.ant_env.data
    before = data.time
    env.step(np.full(8, -1.0))
    np.testing.assert_allclose(data.ctrl, -0.3)
    assert data.time - before == pytest.approx(0.1)


def test_actions_are_in_the_units_of_the_environment() -> None:
    source, sizes = made(Settable)
    assert (sizes.low, sizes.high, sizes.shape) == ((-2.0,), (6.0,), (1,))
    env = GoalEnv(source, sizes)
    env.reset(0)
    assert env.step(np.full(1, -1.0))[1].tolist() == [-1.0]
    assert env.step(np.full(1, 1.0))[1].tolist() == [0.0]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Informed, "does not reward a ball"),
        (Moody, "depends on more than the distance"),
        (Buttons, "bounded Box of real actions"),
        (Named, "achieved_goal must be a Box of numbers"),
    ],
)
def test_unsupported_environments_give_one_line_error(kind: type[Line], words: str) -> None:
    with pytest.raises(InputError, match=words) as raised:
        made(kind)
    assert raised.value.name == "env"
    assert "\n" not in str(raised.value)


def test_reward_that_needs_missing_info_gives_one_line_error() -> None:
    class Greedy(Settable):
        def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
            return info["more"]

    with pytest.raises(EnvironmentFailure, match=r"raised KeyError: 'more'"):
        made(Greedy)


@pytest.mark.parametrize("wrong", [3, None, ["point-mass"]])
def test_non_environments_are_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match=r"^env: must be a name, a Gymnasium environment or a function"):
        EnvSource.from_argument(wrong)


def test_function_that_returns_no_environment_is_refused() -> None:
    with pytest.raises(InputError, match=r"^env: the function must return a Gymnasium environment, not int"):
        EnvSource.from_argument(lambda: 3)


def test_train_and_test_goals_use_different_random_streams() -> None:
    env = PointMass()
    rng = np.random.default_rng(0)
    train, test = (
        env_inspection.make_goal_sampler(env, name, "env")(rng, 2000) for name in ("train_goals", "test_goals")
    )
    assert not {tuple(goal) for goal in train} & {tuple(goal) for goal in test}


@pytest.mark.parametrize(
    "env_id", ["FetchReach-v4", "PointMaze_UMaze-v3", "PointMaze_Medium-v3", "AntMaze_UMaze-v5", "HandReach-v3"]
)
def test_known_families_have_their_settings(env_id: str) -> None:
    source = EnvSource(env_id)
    env = source.make_env()
    sizes = measure_dimensions(env, source, 0)
    assert sizes.accepts_goals
    assert sizes.with_achieved == env_id.startswith("Ant")
    adapter = GoalEnv(source, sizes)
    goal = env_inspection.make_goal_sampler(env, "test_goals", "env")(np.random.default_rng(0), 1)[0]
    adapter.reset(0)
    adapter.set_goal(goal)
    observation, _, end = adapter.step(np.zeros(sizes.action))
    assert (len(observation), end) == (sizes.observation, EpisodeEnd.CONTINUES)
    np.testing.assert_allclose(adapter.env.unwrapped.goal, goal)


@pytest.mark.parametrize(
    ("env", "fetch"),
    [
        ("FetchReach-v4", True),
        ("gymnasium_robotics:FetchReach-v4", True),
        (lambda: gymnasium.Wrapper(make_goal_env("FetchReach-v4")), True),
        ("PointMaze_UMaze-v3", False),
        (FetchLike, False),
    ],
)
def test_settings_depend_on_the_class_not_the_name(env: Any, fetch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Training, "_compile_in_threads", lambda *_: None)
    source = EnvSource.from_argument(env)
    trained = Training([Config(source.name, horizon=5, buffer=5000, batch=8, hidden=(4,), steps=80)], source=source)
    assert trained.sizes.is_fetch == fetch
    assert trained.configs[0].action_l2 == (1.0 if fetch else 0.1)


@pytest.mark.parametrize("env_id", ["PointMaze_UMaze-v3", "PointMaze_Medium_Diverse_GR-v3", "AntMaze_UMaze-v5"])
def test_maze_tests_start_as_the_maze_would_for_the_goal(env_id: str) -> None:
    source = EnvSource(env_id)
    env = source.make_env()
    sizes = replace(measure_dimensions(env, source, 0), horizon=1)
    goals = env_inspection.make_goal_sampler(env, "test_goals", "env")(np.random.default_rng(0), 120)
    slots = EnvBatch([Config(env_id)], [(0, k) for k in range(4)], source, sizes)
    still = {0: lambda observation, goal: np.zeros((len(goal), sizes.action))}
    still[0].action_size = sizes.action  # type: ignore[attr-defined]
    tests = [slots.play_test_round(still, goals[4 * i : 4 * i + 4], 0, i)[0] for i in range(30)]  # type: ignore[arg-type]
    away = np.concatenate([np.linalg.norm(e.achieved[:, 0] - e.goal, axis=-1) for e in tests])
    assert away.min() > sizes.success
    assert away.min() > 0.4 * env.unwrapped.maze.maze_size_scaling
    starts = np.concatenate([e.achieved[:, 0] for e in tests])
    places = np.asarray(env.unwrapped.maze.unique_reset_locations)
    assert len(np.unique(np.linalg.norm(starts[:, None] - places, axis=-1).argmin(1))) == len(places), "all are used"


def test_maze_with_a_single_cell_can_start() -> None:
    source = EnvSource.from_argument(
        lambda: make_goal_env("PointMaze_UMaze-v3", maze_map=[[1, 1, 1, 1], [1, "r", "g", 1], [1, 1, 1, 1]])
    )
    env = GoalEnv(source, measure_dimensions(source.make_env(), source, 0))
    start = np.asarray(env.env.unwrapped.maze.unique_reset_locations)[0]
    _, achieved = env.reset(0, start)
    assert np.linalg.norm(achieved - start) < 0.5


def test_attributes_alone_do_not_define_a_family() -> None:
    found = inspect_env(EnvSource.from_argument(FetchLike), 20, [("train_goals", "env"), ("test_goals", "scale=2")])
    assert found.sizes.accepts_goals, "by set_goal"
    assert found.table_box is None
    assert found.goal_samplers[0](np.random.default_rng(0), 5).shape == (5, 1)
    with pytest.raises(InputError, match=r"^train_goals: air is for Fetch"):
        inspect_env(EnvSource.from_argument(FetchLike), 20, [("train_goals", "air=1")])


@pytest.mark.parametrize("goal", [(3, 4), "left", None])
def test_unrelated_attribute_goal_is_not_changed(goal: Any) -> None:
    source = EnvSource.from_argument(lambda: Numbered(goal))
    sizes = measure_dimensions(source.make_env(), source, 30)
    assert not sizes.accepts_goals
    env = GoalEnv(source, sizes)
    env.reset(0)
    assert env.env.unwrapped.goal == goal


@pytest.mark.parametrize("kind", [Scalar, Vector])
def test_attribute_goal_is_set(kind: type[Line]) -> None:
    source, sizes = made(kind)
    assert sizes.accepts_goals
    assert end_of(GoalEnv(source, sizes), 14.0) == (EpisodeEnd.TERMINATED, 14.0)


def test_nested_spaces_are_flattened_and_restored() -> None:
    value = {"b": np.arange(4.0).reshape(2, 2), "a": (np.array([7], np.int64), {"c": 0.5})}
    vector = flatten_numbers(value)
    assert vector.tolist() == [7.0, 0.5, 0.0, 1.0, 2.0, 3.0]
    again = unflatten_like(value, vector)
    np.testing.assert_array_equal(again["b"], value["b"])
    assert again["a"][0].dtype == np.int64
    assert again["a"][1]["c"] == 0.5
