"""TD3 with an ensemble: every critic follows its own target, the actor climbs their mean, and a GPU plays it back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.vec_env import DummyVecEnv
from test_sb3_goal_rules import Rewards, chooser, made, wide

from adagoal.core.errors import InputError
from adagoal.sb3 import EnsembleTD3, NormalisedFeatures

SMALL = {"net_arch": [16, 16]}


def filled(**given: Any) -> Any:
    """A model that has played and learnt a little."""
    return made(EnsembleTD3, policy_kwargs=SMALL, **given).learn(300, callback=chooser())


def test_it_has_three_critics_and_normalised_features_unless_told_otherwise() -> None:
    model = made(EnsembleTD3, policy_kwargs=SMALL)
    assert model.critic.n_critics == 3
    assert [tuple(weight.shape) for weight in model.critic.weights] == [(3, 10, 16), (3, 16, 16), (3, 16, 1)]
    assert isinstance(model.critic.features_extractor, NormalisedFeatures)
    assert made(EnsembleTD3, policy_kwargs=SMALL | {"n_critics": 5}).critic.n_critics == 5


def test_the_ensemble_is_so_many_networks_with_normalised_layers() -> None:
    model = filled()
    model.policy.set_training_mode(False)
    batch = {name: values.float() for name, values in model._sample_batch(7).items()}
    now = {name.removeprefix("now."): values for name, values in batch.items() if name.startswith("now.")}
    found = torch.cat(model.critic(now, batch["action"]), 1)
    x = torch.cat([model.critic.features_extractor(now), batch["action"]], 1)
    for j in range(3):
        y = x
        for i, (weight, bias) in enumerate(zip(model.critic.weights, model.critic.biases, strict=True)):
            y = y @ weight[j] + bias[j]
            if i < 2:
                y = torch.relu((y - y.mean(1, keepdim=True)) / (y.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt())
        torch.testing.assert_close(found[:, j], y[:, 0])
    torch.testing.assert_close(model.critic.q1_forward(now, batch["action"])[:, 0], found.mean(1))


def test_every_critic_follows_its_own_target_within_bounds() -> None:
    model = filled(learning_rate=0.0, tau=1.0)
    with torch.no_grad():  # far from each other, and the last beyond what is possible
        model.critic_target.biases[-1].copy_(torch.tensor([-10.0, -20.0, -1000.0])[:, None, None])
        for weight in model.critic_target.weights[-1:]:
            weight.zero_()
        model.critic.weights[-1].zero_()
        model.critic.biases[-1].zero_()
    batch = model._sample_batch(20)
    _, found = model._update_networks(batch)
    floor, gamma, reward = -1.0 / (1.0 - model.gamma), model.gamma, batch["reward"]
    y = [(reward + gamma * follows).clamp(floor, 0.0) for follows in (-10.0, -20.0, -1000.0)]
    torch.testing.assert_close(found, sum((each**2).mean() for each in y))


def test_a_penalty_keeps_actions_small() -> None:
    def size(penalty: float) -> float:
        model = made(EnsembleTD3, policy_kwargs=SMALL, action_penalty=penalty, gradient_steps=20)
        model.learn(1000, callback=chooser())
        batch = model._sample_batch(200)
        now = {name.removeprefix("now."): values for name, values in batch.items() if name.startswith("now.")}
        with torch.no_grad():
            return float((model.actor(now) ** 2).mean())

    assert size(100.0) < 0.01 < size(0.0)


def test_so_many_actions_are_random_and_the_memory_knows() -> None:
    model = made(EnsembleTD3, policy_kwargs=SMALL, random_actions=0.5, action_noise=None, seed=1)
    model.learn(400, callback=chooser())
    seen = {name: np.repeat(value, 500, 0) for name, value in model._last_obs.items()}
    model._last_obs, own = seen, model.predict(seen, deterministic=True)[0]
    action, stored = model._sample_action(0, None, 2000)
    other = (np.abs(action - own) > 1e-6).any(1)
    assert 0.45 < other.mean() < 0.55
    np.testing.assert_allclose(stored, model.policy.scale_action(action), atol=1e-6)
    assert np.abs(action[other]).mean() == pytest.approx(0.5, abs=0.05)  # uniform in [-1, 1]


def test_every_batch_has_its_share_of_hindsight(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made(EnsembleTD3, policy_kwargs=SMALL).learn(200, callback=chooser())
    order = {"action": torch.arange(40.0)[:, None]}
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(model, "_sample_batch", lambda count: order)
    monkeypatch.setattr(model, "_learn_from_batch", lambda batch: seen.append(batch["action"][:, 0]) or torch.zeros(2))
    model.train(4, 10)
    assert [int((batch < 8).sum()) for batch in seen] == [2] * 4  # a fifth is real, and comes first
    np.testing.assert_array_equal(np.sort(torch.cat(seen)), np.arange(40))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("action_penalty", -1.0),
        ("action_penalty", float("nan")),
        ("random_actions", 1.1),
        ("random_actions", "often"),
        ("gamma", 1.0),
    ],
)
def test_settings_that_make_no_sense_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=name):
        made(EnsembleTD3, policy_kwargs=SMALL, **{name: value})


def test_rewards_of_one_at_the_goal_are_refused() -> None:
    model = made(EnsembleTD3, policy_kwargs=SMALL, env=DummyVecEnv([lambda: Rewards(-1.0, 0.0)]))
    with pytest.raises(InputError, match=r"^env: rewards must be 0 at the goal and -1 elsewhere, got 1; .*ChosenGoal"):
        model.learn(50)


def test_it_can_be_kept(tmp_path: Path) -> None:
    model = filled()
    model.save(tmp_path / "model")
    again = EnsembleTD3.load(tmp_path / "model", env=model.get_env())
    assert again.action_penalty == model.action_penalty
    seen = model._last_obs
    np.testing.assert_array_equal(
        again.predict(seen, deterministic=True)[0], model.predict(seen, deterministic=True)[0]
    )


def test_to_choose_goals_teaches_the_normaliser_nothing() -> None:
    model, callback = made(EnsembleTD3, policy_kwargs=SMALL), chooser()
    model.learn(50, callback=callback)  # before the first update
    start = {name: np.repeat(value[:1], 5, 0) for name, value in model._last_obs.items()}
    callback._distance_and_error(start, wide(np.random.default_rng(0), 5))
    assert float(model.critic.features_extractor.running_weight) == 0.0
    assert float(model.actor.features_extractor.running_weight) == 0.0


def test_a_model_of_another_device_learns_on() -> None:
    model = filled()
    state = model.get_parameters()
    for group in state["actor.optimizer"]["param_groups"] + state["critic.optimizer"]["param_groups"]:
        group["capturable"] = True  # as a GPU leaves it
    model.set_parameters(state)
    model.train(2, 20)


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@gpu
def test_a_recorded_update_is_the_update() -> None:
    models = [filled(device="cuda") for _ in range(2)]
    models[1]._learn_from_batch = models[1]._update_networks
    batches = [models[0]._sample_batch(models[0].batch_size) for _ in range(5)]
    for model in models:
        assert model._recorded is not None
        for batch in batches:
            model._learn_from_batch(batch)
    for one, other in zip(models[0].policy.parameters(), models[1].policy.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@gpu
def test_batches_of_another_size_are_recorded_anew() -> None:
    model = filled(device="cuda")
    before = [weight.detach().clone() for weight in model.actor.parameters()]
    model.train(3, 64)
    assert len(model._recorded[1]["action"]) == 64
    assert not all(torch.equal(one, other) for one, other in zip(before, model.actor.parameters(), strict=True))


@gpu
@pytest.mark.parametrize(("first", "then"), [("cuda", "cpu"), ("cpu", "cuda"), ("cuda", "cuda")])
def test_a_kept_model_learns_on_elsewhere(first: str, then: str, tmp_path: Path) -> None:
    model = filled(device=first)
    model.save(tmp_path / "model")
    again = EnsembleTD3.load(tmp_path / "model", env=model.get_env(), device=then)
    again.learn(300, callback=chooser())
    assert again.device.type == then
    assert all(torch.isfinite(weight).all() for weight in again.policy.parameters())
