"""Goal spaces, and goals chosen from them through the rules of adagoal.goal_rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adagoal import goal_rules
from adagoal.core.errors import InputError
from adagoal.deep import env_inspection
from adagoal.deep.goal_envs import make_goal_env
from adagoal.deep.value_formulas import make_goal_info


def test_fetch_goals_are_those_of_the_environment() -> None:
    env = make_goal_env("FetchPickAndPlace-v4")
    env.reset(seed=0)
    own = np.stack([env.unwrapped._sample_goal() for _ in range(4000)])
    ours = env_inspection.make_goal_sampler(env, "train_goals", "env")(np.random.default_rng(0), 4000)
    np.testing.assert_allclose(ours.mean(0), own.mean(0), atol=0.01)
    np.testing.assert_allclose(ours.std(0), own.std(0), atol=0.01)
    assert (ours[:, 2] > ours[:, 2].min()).mean() == pytest.approx(0.5, abs=0.04)


def test_stretched_space_covers_the_test_space_as_in_the_paper() -> None:
    env = make_goal_env("FetchPush-v4")
    test = env_inspection.bounding_box(env_inspection.make_goal_sampler(env, "test_goals", "env"))
    train = env_inspection.make_goal_sampler(env, "train_goals", "scale=10")(np.random.default_rng(0), 50_000)
    assert env_inspection.is_inside_box(test, train).mean() == pytest.approx(0.01, abs=0.002)
    np.testing.assert_allclose(np.ptp(train[:, :2], 0), 3.0, atol=0.01)
    assert np.ptp(train[:, 2]) == 0.0


def test_goals_in_the_air_are_an_option() -> None:
    env = make_goal_env("FetchPickAndPlace-v4")
    flat = env_inspection.make_goal_sampler(env, "train_goals", "scale=5,air=0")(np.random.default_rng(0), 1000)
    assert np.ptp(flat[:, 2]) == 0.0


def test_maze_goals() -> None:
    env = make_goal_env("PointMaze_UMaze-v3")
    env.reset(seed=0)
    space = env_inspection.make_goal_sampler(env, "train_goals", "env")
    own = np.stack([env.reset(seed=s)[0]["desired_goal"] for s in range(300)])
    box = env_inspection.bounding_box(space)
    assert env_inspection.is_inside_box(box, own).all()


@pytest.mark.parametrize("text", ["scale", "scale=x", "size=3", "scale=0", "air=2", "scale=2;air=1", 3])
def test_bad_goal_spaces_give_one_line_error(text: Any) -> None:
    with pytest.raises(InputError, match=r"^train_goals: "):
        env_inspection.parse_goal_space("train_goals", text)


def test_rules_use_the_radius() -> None:
    D, E = np.array([5.0, 60.0, 30.0]), np.array([1.0, 9.0, 3.0])
    seen = make_goal_info(D, E, np.zeros(3), 40.0, {})
    np.testing.assert_array_equal(goal_rules.resolve_rule("adagoal")(seen), [0, 0, 1])
    np.testing.assert_array_equal(goal_rules.resolve_rule("adagoal-proportional")(seen), [1, 0, 3])
    np.testing.assert_array_equal(goal_rules.resolve_rule("proportional")(seen), E)
    np.testing.assert_array_equal(goal_rules.resolve_rule("unigoal")(seen), [1, 1, 1])
