"""Certificates of Stable-Baselines3 models, and training that stops when its policy is certified."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecNormalize

import adagoal
from adagoal.certification.policies import find_policy
from adagoal.core.errors import InputError, Status
from adagoal.sb3 import StopWhenCertified

CARTPOLE: dict[str, Any] = {
    "starts": {"x": (-1.0, 1.0), "theta": (-0.1, 0.1)},
    "criterion": "survive:20",
    "halvings": 2,
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("algorithm", "env", "settings"),
    [
        (PPO, "CartPole-v1", {"n_steps": 8, "batch_size": 8}),
        (A2C, "Pendulum-v1", {"use_sde": True}),
        (DQN, "CartPole-v1", {"buffer_size": 100}),
        (SAC, "Pendulum-v1", {"buffer_size": 100}),
        (TD3, "Pendulum-v1", {"buffer_size": 100, "policy_kwargs": {"net_arch": [8]}}),
    ],
)
def test_model_and_its_file_act_like_predict(algorithm: Any, env: str, settings: Any, tmp_path: Path) -> None:
    model = algorithm("MlpPolicy", env, seed=0, **settings)
    model.save(tmp_path / "model.zip")
    space = gymnasium.make(env).observation_space
    seen = [space.sample().clip(-5, 5) for _ in range(5)]
    expected = model.predict(np.stack(seen), deterministic=True)[0]
    for given in (model, str(tmp_path / "model.zip"), tmp_path / "model.zip"):
        np.testing.assert_array_equal(np.stack(find_policy(given).make()(seen, [])), expected)


def test_vec_normalize_statistics_are_part_of_the_policy() -> None:
    venv = VecNormalize(make_vec_env("Pendulum-v1"))
    model = PPO("MlpPolicy", venv, n_steps=64, seed=0, device="cpu").learn(64)
    before = find_policy(model)
    seen = np.array([0.5, 0.5, 3.0], np.float32)
    expected = model.predict(venv.normalize_obs(seen[None]), deterministic=True)[0]
    np.testing.assert_allclose(np.stack(before.make()([seen], [])), expected, rtol=1e-6)
    model.learn(64)
    assert find_policy(model).fingerprint != before.fingerprint


def test_file_is_certified_with_any_number_of_workers(tmp_path: Path) -> None:
    PPO("MlpPolicy", "CartPole-v1", seed=0, device="cpu").save(tmp_path / "model.zip")
    found = [adagoal.certify(tmp_path / "model.zip", "CartPole-v1", workers=n, **CARTPOLE).to_dict() for n in (1, 2)]
    assert found[0] == found[1]


def test_invalid_model_gives_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "model.zip").write_bytes(b"PK")
    with pytest.raises(InputError, match=r"^policy: .*model.zip is not a model of Stable-Baselines3"):
        adagoal.certify(tmp_path / "model.zip", "CartPole-v1", workers=1, **CARTPOLE)
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as file:
        file.writestr("data", "{}")
        file.writestr("policy.pth", "no weights")
    with pytest.raises(InputError, match=r"^policy: the model cannot be loaded") as caught:
        adagoal.certify(tmp_path / "model.zip", "CartPole-v1", workers=1, **CARTPOLE)
    assert "\n" not in str(caught.value)
    PPO("MlpPolicy", "Pendulum-v1", device="cpu").save(tmp_path / "other.zip")
    with pytest.raises(
        InputError, match=r"^policy: the model has observations of shape \(3,\), the environment has shape"
    ):
        adagoal.certify(tmp_path / "other.zip", "CartPole-v1", workers=1, **CARTPOLE)
    unit = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    scaled = gymnasium.wrappers.TransformAction(gymnasium.make("Pendulum-v1"), lambda action: 2.0 * action, unit)
    model = PPO("MlpPolicy", scaled, device="cpu")
    given: Any = {"starts": {"theta": (0.0, 1.0)}, "criterion": "return:-10", "workers": 1}
    with pytest.raises(
        InputError, match=r"^policy: the model has actions of Box\(-1.0, 1.0.*; give the environment with"
    ):
        adagoal.certify(model, "Pendulum-v1", **given)
    for part in (model.policy, model.predict):
        with pytest.raises(InputError, match=r"^policy: must be the model of Stable-Baselines3 itself"):
            adagoal.certify(part, "Pendulum-v1", **given)


def test_environment_of_a_model_is_accepted() -> None:
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=64, seed=0, device="cpu")
    found = adagoal.certify(model, Monitor(gymnasium.make("CartPole-v1")), workers=2, **CARTPOLE)
    assert found.rollouts > 0


def test_training_stops_when_the_policy_is_certified() -> None:
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=256, seed=0, device="cpu")
    stop = StopWhenCertified("CartPole-v1", every=2_000, delta=0.2, success=0.9, slack=0.2, **CARTPOLE)
    model.learn(60_000, callback=stop)
    assert stop.is_certified
    assert model.num_timesteps < 60_000
    assert [each.claim.delta for each in stop.certificates] == [
        pytest.approx(0.2 / (k * (k + 1))) for k in range(1, len(stop.certificates) + 1)
    ]
    assert stop.certificates[-1].status is Status.CERTIFIED
    assert [each.about["seed"] for each in stop.certificates] == list(range(1, len(stop.certificates) + 1))


def test_uncertified_policy_trains_to_the_end() -> None:
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=64, seed=0, device="cpu")
    stop = StopWhenCertified("CartPole-v1", every=100, **CARTPOLE | {"criterion": "survive:200"})
    model.learn(256, callback=stop)
    assert (model.num_timesteps, len(stop.certificates), stop.is_certified) == (256, 2, False)


def test_second_training_counts_on_from_the_attempts_of_the_first() -> None:
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=100, batch_size=50, seed=0, device="cpu")
    stop = StopWhenCertified("CartPole-v1", every=100, delta=0.1, **CARTPOLE | {"criterion": "survive:200"})
    for _ in range(2):  # the steps of the second training begin at 0 again
        model.learn(200, callback=stop)
    assert [round(0.1 / found.claim.delta) for found in stop.certificates] == [2, 6, 12, 20]


@pytest.mark.parametrize(
    ("given", "name"), [({"every": 0}, "every"), ({"delta": 1.0}, "delta"), ({"versus": 0}, "versus")]
)
def test_bad_input_of_the_callback_gives_one_line_error(given: Any, name: str) -> None:
    with pytest.raises(InputError, match=f"^{name}: "):
        StopWhenCertified("CartPole-v1", **given)
