"""Goal rules in Stable-Baselines3: chosen goals are played, stored and rewarded, and help learning."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import DDPG, PPO, SAC, TD3, HerReplayBuffer
from stable_baselines3.common.logger import configure
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecMonitor, VecNormalize

from adagoal import goal_rules as rules
from adagoal.core.array_types import Floats
from adagoal.core.errors import InputError
from adagoal.deep import pointmass  # noqa: F401  (registers the id)
from adagoal.deep.config import DECLARABLE_GOAL_FIELDS, KNOWN_GOAL_FIELDS
from adagoal.sb3 import ChooseGoals, ChosenGoal
from adagoal.sb3.callbacks import RecentStates

WIDE = 4.0
"""Range of the candidate goals; the walls of the point mass are at 1.5."""


def wide(rng: np.random.Generator, n: int) -> Floats:
    return rng.uniform(-WIDE, WIDE, (n, 2))


def point_mass() -> gymnasium.Env[Any, Any]:
    return ChosenGoal(gymnasium.make("PointMass-v0"))


def made(algorithm: Any, seed: int = 0, env: Any = None, critics: int = 2, **given: Any) -> Any:
    torch.set_num_threads(1)
    noise = {} if algorithm is SAC else {"action_noise": NormalActionNoise(np.zeros(2), 0.3 * np.ones(2))}
    return algorithm(
        "MultiInputPolicy",
        env or DummyVecEnv([point_mass] * 4),
        replay_buffer_class=HerReplayBuffer,
        replay_buffer_kwargs={"n_sampled_goal": 4, "goal_selection_strategy": "future"},
        **{
            "policy_kwargs": {"net_arch": [64, 64], "n_critics": critics},
            "buffer_size": 10_000,  # Stable-Baselines3 allocates the buffer at once
            "learning_starts": 120,
            "train_freq": 25,
            "gradient_steps": 2,
            "gamma": 0.96,
            "seed": seed,
        }
        | noise
        | given,
    )


def chooser(rule: Any = "adagoal-proportional", **given: Any) -> ChooseGoals:
    return ChooseGoals(rule, wide, **{"radius": 15.0, "candidates": 50} | given)


# --- the wrapper ---


class IgnoresGoals(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Ignores the chosen goal: shows its start as the goal and ends there."""

    def reset(self, **given: Any) -> Any:
        seen, info = self.env.reset(**given)
        self.home = seen["achieved_goal"].copy()
        return seen | {"desired_goal": self.home}, info

    def step(self, action: Any) -> Any:
        seen, _, _, truncated, info = self.env.step(action)
        there = bool(np.linalg.norm(seen["achieved_goal"] - self.home) <= 0.1)
        return seen | {"desired_goal": self.home}, there - 1.0, there, truncated, info


def test_chosen_goal_is_shown_and_rewarded() -> None:
    env = point_mass()
    start, _ = env.reset(seed=0)
    far, here = start["achieved_goal"] + 0.5, start["achieved_goal"]
    for goal, reward in ((far, -1.0), (here, 0.0)):
        env.reset(seed=0)
        env.set_goal(goal)  # type: ignore[attr-defined]
        seen, found, terminated, _, info = env.step(np.zeros(2))
        np.testing.assert_array_equal(seen["desired_goal"], goal)
        assert (found, info["is_success"], terminated) == (reward, reward + 1.0, False)
    again, _ = env.reset(seed=1)
    seen, *_ = env.step(np.zeros(2))
    np.testing.assert_array_equal(seen["desired_goal"], again["desired_goal"])


def test_end_at_another_goal_is_ignored() -> None:
    env = ChosenGoal(IgnoresGoals(gymnasium.make("PointMass-v0")))
    start, _ = env.reset(seed=0)
    assert env.step(np.zeros(2))[2]
    env.reset(seed=0)
    env.set_goal(start["achieved_goal"] + 0.5)
    assert not env.step(np.zeros(2))[2]


class Rewards(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Changes the rewards of the point-mass (0 at the goal, -1 elsewhere) to ``scale * reward + shift``."""

    def __init__(self, scale: float, shift: float) -> None:
        super().__init__(gymnasium.make("PointMass-v0"))
        self.scale, self.shift = scale, shift

    def step(self, action: Any) -> Any:
        seen, reward, *rest = self.env.step(action)
        return seen, self.scale * reward + self.shift, *rest

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return self.scale * self.env.get_wrapper_attr("compute_reward")(achieved, desired, info) + self.shift


def test_rewards_of_one_at_the_goal_are_shifted() -> None:
    env = ChosenGoal(Rewards(1.0, 1.0))
    start, _ = env.reset(seed=0)
    assert env.step(np.zeros(2))[1] == -1.0  # the goal of the environment
    for goal, reward in ((start["achieved_goal"] + 0.5, -1.0), (start["achieved_goal"], 0.0)):
        env.reset(seed=0)
        env.set_goal(goal)
        _, found, _, _, info = env.step(np.zeros(2))
        assert (found, info["is_success"]) == (reward, reward + 1.0)
    model = made(TD3, env=DummyVecEnv([lambda: ChosenGoal(Rewards(1.0, 1.0))] * 2))
    model.learn(150, callback=chooser())
    batch = model.replay_buffer.sample(500)  # including relabelled ones
    away = torch.linalg.norm(batch.next_observations["achieved_goal"] - batch.observations["desired_goal"], dim=1)
    torch.testing.assert_close(batch.rewards[:, 0], -(away > 0.1).to(batch.rewards.dtype))
    assert (batch.rewards == 0.0).any()


def test_invalid_environments_and_goals_are_refused() -> None:
    with pytest.raises(InputError, match=r"^env: is not goal-conditioned"):
        ChosenGoal(gymnasium.make("CartPole-v1"))
    env = ChosenGoal(gymnasium.make("PointMass-v0"))
    env.reset(seed=0)
    for goal in (np.zeros(3), np.array([np.nan, 0.0])):
        with pytest.raises(InputError, match=r"^goal: "):
            env.set_goal(goal)


def test_function_sets_the_goal() -> None:
    output = []
    env = ChosenGoal(gymnasium.make("PointMass-v0"), lambda env, goal: output.append(goal))
    env.reset(seed=0)
    env.set_goal(np.ones(2))
    np.testing.assert_array_equal(output, [[1.0, 1.0]])


# --- the callback ---


@pytest.mark.parametrize("vector", [DummyVecEnv, SubprocVecEnv])
def test_replay_buffer_contains_the_chosen_goals(vector: Any) -> None:
    env = vector([point_mass] * 2)
    model, callback = made(TD3, env=env), chooser()
    model.learn(150, callback=callback)
    memory = model.replay_buffer
    stored = memory.observations["desired_goal"][: memory.pos]
    following = memory.next_observations["desired_goal"][: memory.pos]
    np.testing.assert_array_equal(stored, following)
    began = [goal for step in range(0, memory.pos, 25) for goal in stored[step]]
    np.testing.assert_allclose(began, callback.chosen_goals[: len(began)], rtol=1e-6)
    assert (stored.reshape(-1, 25, 2, 2) == stored.reshape(-1, 25, 2, 2)[:, :1]).all()
    apart = np.linalg.norm(memory.next_observations["achieved_goal"][: memory.pos] - following, axis=-1)
    np.testing.assert_array_equal(memory.rewards[: memory.pos] == 0.0, apart <= 0.1)
    env.close()


@pytest.mark.parametrize("before", [True, False])
def test_second_learn_keeps_the_goals_of_running_episodes(before: bool) -> None:
    model, callback = made(TD3, env=DummyVecEnv([point_mass] * 2), train_freq=1, learning_starts=1000), chooser()
    model.learn(60, callback=callback if before else None)  # 30 steps each, so episodes are unfinished
    count = len(callback.chosen_goals)
    model.learn(60, callback=callback, reset_num_timesteps=False)
    memory = model.replay_buffer
    goals = memory.observations["desired_goal"][:50].reshape(2, 25, 2, 2)
    assert (goals == goals[:, :1]).all()
    np.testing.assert_allclose(
        memory.observations["desired_goal"][50], callback.chosen_goals[count : count + 2], rtol=1e-6
    )
    assert len(callback.chosen_goals) == count + 2


def test_new_episode_gets_a_goal_in_a_second_learn() -> None:
    model, callback = made(TD3, env=DummyVecEnv([point_mass] * 2), train_freq=1, learning_starts=1000), chooser()
    model.learn(50)  # one episode each
    model.learn(50, callback=callback, reset_num_timesteps=False)
    goals = model.replay_buffer.observations["desired_goal"]
    np.testing.assert_allclose(goals[[25, 25], [0, 1]], callback.chosen_goals[:2], rtol=1e-6)


def test_relabelled_goals_are_rewarded_and_timeouts_are_not_terminal() -> None:
    model = made(TD3)
    model.learn(400, callback=chooser())
    batch = model.replay_buffer.sample(500)
    now, following = batch.observations, batch.next_observations
    torch.testing.assert_close(now["desired_goal"], following["desired_goal"])
    away = torch.linalg.norm(following["achieved_goal"] - now["desired_goal"], dim=1)
    torch.testing.assert_close(batch.rewards[:, 0], -(away > 0.1).to(batch.rewards.dtype))
    assert (away < 1.0).float().mean() > 0.5  # goals of the wide space alone are further away
    assert not batch.dones.any()


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, rule in rules.BUILTIN_RULES.items()
        if rules.required_fields(rule, KNOWN_GOAL_FIELDS) <= DECLARABLE_GOAL_FIELDS
    ],
)
def test_every_rule_can_choose(name: str) -> None:
    callback = chooser(name)
    made(DDPG).learn(200, callback=callback)
    assert len(callback.chosen_goals) == 4 * 3
    assert (np.abs(callback.chosen_goals) <= WIDE).all()


@pytest.mark.parametrize("name", ["mega", "discover"])
def test_goals_from_experience_are_achieved_goals(name: str) -> None:
    callback = chooser(name, radius=1e6)
    model = made(TD3)
    model.learn(200, callback=callback)
    achieved = callback._recent_states.achieved_goals
    for goal in callback.chosen_goals:
        assert np.abs(achieved - goal).max(1).min() < 1e-6


def test_divergence_falls_as_achieved_goals_cover_the_goal_space() -> None:
    rng, memory, found = np.random.default_rng(0), RecentStates(whole=False), []
    wanted = wide(rng, 256)
    for width in (0.5, 2.0, WIDE):
        memory.states = {"achieved_goal": rng.uniform(-width, width, (1000, 2))}
        found.append(memory.goal_divergence(wanted, memory.sample_states(256, rng)["achieved_goal"]))
    assert found[0] > found[1] > found[2]
    assert abs(found[2]) < 0.2


def test_goals_of_the_user_are_not_changed() -> None:
    fixed = wide(np.random.default_rng(0), 50)
    before = fixed.copy()
    made(TD3).learn(100, callback=ChooseGoals("mega", lambda rng, n: fixed, radius=15, candidates=50))
    np.testing.assert_array_equal(fixed, before)


def test_quantile_critics_have_d_and_e() -> None:
    contrib = pytest.importorskip("sb3_contrib")
    callback = chooser()
    model = made(contrib.TQC, critics=3, action_noise=None)
    model.learn(200, callback=callback)
    start = {name: np.repeat(value[:1], 5, 0) for name, value in model._last_obs.items()}
    D, E = callback._distance_and_error(start, wide(np.random.default_rng(0), 5))
    assert D.shape == E.shape == (5,)
    assert (D >= 1).all()
    assert (E > 0).all()
    with torch.no_grad():  # quantiles around -2, -5 and -8
        for centre, critic in zip((-2.0, -5.0, -8.0), model.critic.q_networks, strict=True):
            critic[-1].weight.zero_()
            critic[-1].bias.copy_(centre + torch.linspace(-1.0, 1.0, model.critic.n_quantiles))
    D, E = callback._distance_and_error(start, wide(np.random.default_rng(0), 5))
    np.testing.assert_allclose(0.96 ** (D - 1.0), 1.0 - 0.04 * 5.0, rtol=1e-5)
    np.testing.assert_allclose(E, np.std([2.0, 5.0, 8.0]), rtol=1e-5)


def test_with_ddpg_and_more_critics_d_is_their_mean() -> None:
    callback, model = chooser(), made(DDPG, critics=2)
    model.learn(100, callback=callback)
    start = {name: np.repeat(value[:1], 5, 0) for name, value in model._last_obs.items()}
    with torch.no_grad():
        for value, critic in zip((-3.0, -7.0), model.critic.q_networks, strict=True):
            critic[-1].weight.zero_()
            critic[-1].bias.fill_(value)
    D, E = callback._distance_and_error(start, wide(np.random.default_rng(0), 5))
    np.testing.assert_allclose(0.96 ** (D - 1.0), 1.0 - 0.04 * 5.0, rtol=1e-5)
    np.testing.assert_allclose(E, 2.0, rtol=1e-5)


def test_a_text_gives_the_goals_of_the_environment_and_what_is_chosen_is_logged() -> None:
    callback = ChooseGoals("adagoal-proportional", "scale=4", radius=15.0, candidates=50)
    model = made(TD3)
    logged: dict[str, list[float]] = {}
    model.set_logger(configure(format_strings=[]))
    record_mean = model.logger.record_mean
    model.logger.record_mean = lambda name, value: (logged.setdefault(name, []).append(value), record_mean(name, value))
    model.learn(300, callback=callback)
    chosen = np.array(callback.chosen_goals)
    assert 1.5 < np.abs(chosen).max() <= 4.1  # goals of the environment lie within 1
    assert set(logged) == {"goals/D", "goals/E", "goals/L", "goals/reachable"}
    assert all(len(values) == len(chosen) for values in logged.values())
    assert set(logged["goals/L"]) == {15.0}
    assert all(0.0 <= value <= 1.0 for value in logged["goals/reachable"])
    with pytest.raises(InputError, match=r"^goals: must be env or scale=K\[,air=P\], got 'wide'$"):
        ChooseGoals("unigoal", "wide", radius=3)


def test_model_without_hindsight_gives_a_warning() -> None:
    model = TD3("MultiInputPolicy", DummyVecEnv([point_mass]), learning_starts=100)
    with pytest.warns(UserWarning, match="without hindsight; to have it, give replay_buffer_class=HerReplayBuffer"):
        model.learn(50, callback=chooser())


@pytest.mark.parametrize("algorithm", [DDPG, SAC, TD3, "TQC"])
def test_same_seed_gives_same_goals(algorithm: Any) -> None:
    found = []
    if algorithm == "TQC":
        algorithm = pytest.importorskip("sb3_contrib").TQC
    for _ in range(2):
        callback = chooser(seed=3)
        made(algorithm, seed=5).learn(200, callback=callback)
        found.append(callback.chosen_goals)
    np.testing.assert_array_equal(*found)


def test_bad_input_gives_one_line_error() -> None:
    with pytest.raises(InputError, match=r"^model: this rule needs E"):
        made(DDPG, critics=1).learn(100, callback=chooser())
    made(DDPG, critics=1).learn(100, callback=chooser("unigoal"))
    with pytest.raises(InputError, match=r"^rule: needs attempts, successes, which continuous goals do not have"):
        chooser("goid")
    with pytest.raises(InputError, match=r"^radius: "):
        chooser(radius=0.0)
    with pytest.raises(InputError, match=r"^goals: "):
        ChooseGoals("unigoal", [1.0, 2.0], radius=3)
    for wrong in (np.zeros((3, 3)), lambda rng, n: np.zeros(n), lambda rng, n: np.full((n, 2), np.nan)):
        with pytest.raises(InputError, match=r"^goals: must be drawn as \[n, 2\] finite numbers, got "):
            made(TD3).learn(50, callback=ChooseGoals("unigoal", wrong, radius=3))
    with pytest.raises(InputError, match=r"^env: must be wrapped: .*ChosenGoal"):
        made(TD3, env=DummyVecEnv([lambda: gymnasium.make("PointMass-v0")])).learn(50, callback=chooser())
    for vector in (VecNormalize(DummyVecEnv([point_mass])), VecMonitor(VecNormalize(DummyVecEnv([point_mass])))):
        with pytest.raises(InputError, match=r"^env: VecNormalize"):
            made(TD3, env=vector).learn(50, callback=chooser())
    for scale in (0.5, 100.0):
        with pytest.raises(InputError, match=rf"^env: rewards must be 0 at the goal and -1 elsewhere, got -{scale:g};"):
            made(TD3, env=DummyVecEnv([lambda s=scale: ChosenGoal(Rewards(s, 0.0))])).learn(50, callback=chooser())
    with pytest.raises(InputError, match=r"^gamma: must be a number in \(0, 1\), got 1.0$"):
        made(TD3, gamma=1.0).learn(50, callback=chooser())
    made(TD3, gamma=1.0).learn(50, callback=chooser("unigoal"))
    with pytest.raises(InputError, match=r"^model: PPO has no critics"):
        PPO("MultiInputPolicy", DummyVecEnv([point_mass]), n_steps=16, batch_size=16).learn(16, callback=chooser())


# --- learning ---


def success(model: Any) -> float:
    """Return the share of 100 test goals in [-1, 1]^2 that are reached at the last step."""
    env, held = ChosenGoal(gymnasium.make("PointMass-v0")), 0.0
    for seed, goal in enumerate(np.random.default_rng(9).uniform(-1.0, 1.0, (100, 2))):
        seen, _ = env.reset(seed=seed)
        env.set_goal(goal)
        seen = seen | {"desired_goal": goal}
        for _ in range(25):
            action, _ = model.predict(seen, deterministic=True)
            seen, _, _, _, info = env.step(action)
        held += info["is_success"]
    return held / 100.0


def test_adagoal_learns_at_least_as_well_as_uniform_goals() -> None:
    found = {}
    for rule in ("unigoal", "adagoal-proportional"):
        settings = {"learning_starts": 400, "gradient_steps": 50, "batch_size": 128, "tau": 0.05}
        model = made(TD3, critics=3, **settings)
        model.learn(6000, callback=chooser(rule, candidates=200))
        found[rule] = success(model)
    assert found["adagoal-proportional"] >= max(0.8, found["unigoal"])
