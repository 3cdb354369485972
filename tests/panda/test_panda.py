"""Training in panda-gym: the chosen goal is set and shown, and Reach is learnt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adagoal
from adagoal.deep import env_inspection
from adagoal.deep.goal_envs import EnvSource

REACH = "panda_gym:PandaReach-v3"


@pytest.mark.parametrize("task", ["Reach", "Push", "Slide", "PickAndPlace", "Stack"])
def test_the_chosen_goal_is_set_and_its_marker_moved(task: str) -> None:
    source = EnvSource(f"panda_gym:Panda{task}-v3")
    env = source.make_env()
    assert env_inspection.measure_dimensions(env, source, 0).accepts_goals
    seen, _ = env.reset(seed=0)
    goal = seen["desired_goal"] + 0.05
    set_goal: Any = source.find_goal_setter(env)
    set_goal(goal)
    shown, *_ = env.step(np.zeros(env.action_space.shape, np.float32))
    np.testing.assert_allclose(shown["desired_goal"], goal)
    names = ("target1", "target2") if task == "Stack" else ("target",)
    sim: Any = env.unwrapped.sim
    np.testing.assert_allclose(np.concatenate([sim.get_base_position(name) for name in names]), goal, atol=1e-6)
    env.close()


def test_goals_that_are_rotations_are_refused() -> None:
    with pytest.raises(adagoal.InputError, match=r"^env: panda_gym:PandaFlip-v3 "):
        adagoal.train("panda_gym:PandaFlip-v3", workers=1)


def test_reach_is_learnt() -> None:
    result = adagoal.train(REACH, steps=4000, seed=8000, workers=1)
    assert result.evaluate(100).summary()["success"] >= 0.95
