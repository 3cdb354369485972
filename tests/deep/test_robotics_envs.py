"""The fast Fetch step equals Gymnasium-Robotics exactly, and resets depend only on the seed."""

from __future__ import annotations

import numpy as np
import pytest

from adagoal.deep.env_inspection import measure_dimensions
from adagoal.deep.goal_envs import EnvSource, GoalEnv, make_goal_env
from adagoal.deep.robotics_envs import make_fetch_step

FETCH = ["FetchReach-v4", "FetchPush-v4", "FetchPickAndPlace-v4", "FetchSlide-v4"]


@pytest.mark.parametrize("env_id", FETCH)
def test_fast_step_equals_the_environment_step(env_id: str) -> None:
    slow, fast = make_goal_env(env_id), make_goal_env(env_id)
    step = make_fetch_step(fast.unwrapped)
    rng = np.random.default_rng(0)
    for seed in range(2):
        slow.reset(seed=seed)
        fast.reset(seed=seed)
        for _ in range(25):
            action = rng.uniform(-1.2, 1.2, 4).astype(np.float32)
            seen, *_ = slow.step(action)
            observation, achieved = step(action)
            np.testing.assert_array_equal(observation, seen["observation"])
            np.testing.assert_array_equal(achieved, seen["achieved_goal"])


def test_reset_depends_on_the_seed_alone() -> None:
    source = EnvSource("FetchPush-v4")
    sizes = measure_dimensions(source.make_env(), source, 0)
    used, fresh = GoalEnv(source, sizes), GoalEnv(source, sizes)
    used.reset(3)
    for _ in range(20):
        used.step(np.ones(4))
    for env in (used, fresh):
        env.reset(7)
    for _ in range(10):
        a, b = used.step(np.full(4, -0.5)), fresh.step(np.full(4, -0.5))
        np.testing.assert_array_equal(a[0], b[0])


def test_success_distance_equals_the_environment() -> None:
    env = make_goal_env("FetchPush-v4")
    sizes = measure_dimensions(env, EnvSource("FetchPush-v4"), 0)
    assert (sizes.observation, sizes.goal, sizes.action, sizes.horizon) == (25, 3, 4, 50)
    assert sizes.success == pytest.approx(0.05, abs=1e-6)
    rng = np.random.default_rng(0)
    for _ in range(200):
        goal = rng.uniform(0.4, 1.4, 3)
        achieved = goal + rng.uniform(-0.05, 0.05, 3)
        reward = env.unwrapped.compute_reward(achieved, goal, {})
        assert (reward == 0.0) == (np.linalg.norm(achieved - goal) <= sizes.success)
