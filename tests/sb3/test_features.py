"""Normalisation inside the networks: moments of observations and goals, shared with target networks."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DDPG, TD3
from test_sb3_goal_rules import chooser, made, wide

from adagoal.sb3 import NormalisedFeatures


def box(size: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (size,))


def test_moments_are_those_of_all_training_batches() -> None:
    rng = np.random.default_rng(0)
    extractor = NormalisedFeatures(spaces.Dict(observation=box(3), achieved_goal=box(2), desired_goal=box(2)))
    batches = [
        {"observation": rng.normal(5, 2, (40, 3)), "achieved_goal": rng.normal(-1, 0.1, (40, 2))} for _ in range(3)
    ]
    for batch in batches:
        batch["desired_goal"] = batch["achieved_goal"] + 0.2
        seen = {key: torch.as_tensor(value, dtype=torch.float32) for key, value in batch.items()}
        extractor.train()(seen)
    found = extractor.eval()(seen).numpy()
    every = {key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]}
    mean, scale = ({key: f(value, 0) for key, value in every.items()} for f in (np.mean, np.std))
    for key, part in (("observation", found[:, :3]), ("achieved_goal", found[:, 3:5])):
        np.testing.assert_allclose(part, (batches[-1][key] - mean[key]) / scale[key], rtol=1e-3, atol=1e-3)
    desired = (batches[-1]["desired_goal"] - mean["achieved_goal"]) / scale["achieved_goal"]
    np.testing.assert_allclose(found[:, 5:], desired.clip(-5, 5), rtol=1e-3, atol=1e-3)


def test_features_are_unchanged_before_the_first_batch() -> None:
    extractor = NormalisedFeatures(spaces.Dict(observation=box(1), achieved_goal=box(1), desired_goal=box(1))).eval()
    seen = {key: torch.full((2, 1), 0.5) for key in ("observation", "achieved_goal", "desired_goal")}
    np.testing.assert_array_equal(extractor(seen), np.full((2, 3), 0.5))


@pytest.mark.parametrize("algorithm", [DDPG, TD3, "TQC"])
def test_target_networks_use_the_same_normaliser(algorithm: Any) -> None:
    if algorithm == "TQC":
        algorithm = pytest.importorskip("sb3_contrib").TQC
    features = {"features_extractor_class": NormalisedFeatures, "net_arch": [16], "n_critics": 2}
    model = made(algorithm, policy_kwargs=features).learn(400, callback=chooser())
    own, target = model.critic.features_extractor, model.critic_target.features_extractor
    assert float(own.running_weight) > 100
    np.testing.assert_array_equal(own.running_mean, target.running_mean)
    np.testing.assert_array_equal(own.running_squares, target.running_squares)


def test_radius_function_is_called_at_every_choice() -> None:
    asked: list[int] = []

    def radius(steps: int) -> float:
        asked.append(steps)
        return 1.0 + steps

    made(TD3).learn(200, callback=chooser(radius=radius))
    assert asked[0] == 0
    assert asked == sorted(asked)
    assert asked[-1] > 100


def test_sb3_imports_no_jax() -> None:
    code = "import sys; from adagoal.sb3 import ChooseGoals, NormalisedFeatures; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_to_choose_goals_teaches_the_normaliser_nothing() -> None:
    networks = {"net_arch": [16, 16], "n_critics": 2, "features_extractor_class": NormalisedFeatures}
    model, callback = made(TD3, policy_kwargs=networks), chooser()
    model.learn(50, callback=callback)  # before the first update
    start = {name: np.repeat(value[:1], 5, 0) for name, value in model._last_obs.items()}
    callback._distance_and_error(start, wide(np.random.default_rng(0), 5))
    assert float(model.critic.features_extractor.running_weight) == 0.0
    assert float(model.actor.features_extractor.running_weight) == 0.0
