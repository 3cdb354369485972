"""Replay buffer, normalisers and values, compared with simple reference implementations."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adagoal.deep import ddpg, ensemble_ddpg, learner, networks, replay_buffer, value_formulas
from adagoal.deep.config import RECIPES, Config
from adagoal.deep.goal_envs import EnvDimensions
from adagoal.deep.networks import NetworkState
from adagoal.deep.rollouts import EpisodeBatch
from adagoal.deep.training_history import TrainingHistory

SIZES = EnvDimensions(observation=3, goal=2, action=2, horizon=6, success=0.1)


def episodes(count: int, start: int) -> EpisodeBatch:
    """Return episodes in which episode e at time t has achieved (e, t)."""
    e, t = np.meshgrid(np.arange(start, start + count), np.arange(7), indexing="ij")
    achieved = np.stack([e, t], -1).astype(np.float32)
    observation = np.concatenate([achieved, achieved[..., :1]], -1)
    goal = np.stack([np.arange(start, start + count), np.full(count, -1)], -1).astype(np.float32)
    length, terminated = np.full(count, 6, np.int32), np.arange(count) % 2 == 0
    return jax.tree.map(jnp.asarray, EpisodeBatch(observation, achieved, achieved[:, :-1], goal, length, terminated))


def filled() -> replay_buffer.ReplayBuffer:
    memory: replay_buffer.ReplayBuffer = jax.tree.map(
        lambda part: part[0], replay_buffer.empty_replay_buffer((1, 8), SIZES)
    )
    for start in (0, 4, 8):
        memory = replay_buffer.add_episodes(memory, episodes(4, start), 0.04)
    return memory


def shares(relabel: float = 0.0, swap_goals: float = 0.0, contact: float = 0.0) -> replay_buffer.BatchShares:
    return replay_buffer.BatchShares(jnp.array(relabel), jnp.array(swap_goals), jnp.array(contact))


def test_swapped_goals_are_those_of_other_episodes() -> None:
    memory = filled()
    contacts = replay_buffer.contact_episodes_first(memory)
    batch = replay_buffer.sample_transitions(
        memory, contacts, jax.random.key(0), 4000, shares(relabel=0.5, swap_goals=0.4), 0.1
    )
    episode, goal = np.asarray(batch.observation[:, 0]), np.asarray(batch.goal)
    swapped = goal[:, 0] != episode
    assert swapped.mean() == pytest.approx(0.4 * 7 / 8, abs=0.03), "one of eight is the same by chance"
    assert set(goal[swapped, 0].astype(int)) == set(range(4, 12))
    assert (goal[swapped, 1] < 0).all(), "goals that were pursued, not achieved"
    assert (goal[:, 1] >= 0).mean() == pytest.approx(0.6 * 0.5, abs=0.03), "hindsight among the others"


def test_an_episode_that_ended_at_its_goal_would_go_on_for_another_goal() -> None:
    """All episodes end after one step; episode 0 at its goal, episode 1 elsewhere."""
    goal = jnp.array([[0.0, 0.0], [9.0, 9.0]])
    achieved = jnp.zeros((2, 7, 2))
    played = EpisodeBatch(
        jnp.zeros((2, 7, 3)).at[1].set(1.0),
        achieved,
        jnp.zeros((2, 6, 2)),
        goal,
        jnp.array([1, 1]),
        jnp.array([True] * 2),
    )
    memory = jax.tree.map(lambda part: part[0], replay_buffer.empty_replay_buffer((1, 2), SIZES))
    memory = replay_buffer.add_episodes(memory, played, 0.04)
    contacts = replay_buffer.contact_episodes_first(memory)
    batch = replay_buffer.sample_transitions(memory, contacts, jax.random.key(0), 500, shares(swap_goals=0.5), 0.1)
    episode, is_far = np.asarray(batch.observation[:, 0]), np.asarray(batch.goal[:, 0]) == 9.0
    assert {(int(e), bool(far)) for e, far in zip(episode, is_far, strict=True)} == set(
        itertools.product((0, 1), (False, True))
    )
    np.testing.assert_array_equal(np.asarray(batch.terminal), (episode == 1) | ~is_far)
    np.testing.assert_array_equal(np.asarray(batch.reward), np.where(is_far, -1.0, 0.0))


def test_hindsight_goals_come_later_from_the_same_episode() -> None:
    memory = filled()
    batch = replay_buffer.sample_transitions(
        memory,
        replay_buffer.contact_episodes_first(memory),
        jax.random.key(0),
        4000,
        shares(relabel=0.8),
        0.1,
    )
    episode, t = np.asarray(batch.observation[:, 0]), np.asarray(batch.observation[:, 1])
    goal = np.asarray(batch.goal)
    np.testing.assert_array_equal(goal[:, 0], episode)
    assert set(episode.astype(int)) == set(range(4, 12)), "the ring forgot the oldest episodes"
    hindsight = goal[:, 1] >= 0
    assert hindsight.mean() == pytest.approx(0.8, abs=0.03)
    assert (goal[hindsight, 1] > t[hindsight]).all()
    assert goal[hindsight, 1].max() == 6
    np.testing.assert_array_equal(np.asarray(batch.next_observation[:, 1]), t + 1)
    np.testing.assert_array_equal(np.asarray(batch.reward), np.where(goal[:, 1] == t + 1, 0.0, -1.0))
    np.testing.assert_array_equal(np.asarray(batch.terminal), (t == 5) & (episode % 2 == 0))
    later = [(goal[hindsight & (t == 2), 1] == k).mean() for k in (3, 4, 5, 6)]
    np.testing.assert_allclose(later, 0.25, atol=0.06)


def test_contact_share_draws_from_episodes_that_moved() -> None:
    memory = filled()._replace(moved=jnp.arange(8) == 5)
    batch = replay_buffer.sample_transitions(
        memory,
        replay_buffer.contact_episodes_first(memory),
        jax.random.key(1),
        4000,
        shares(contact=0.5),
        0.1,
    )
    slot = int(memory.goal[5, 0])
    assert (np.asarray(batch.goal[:, 0]) == slot).mean() == pytest.approx(0.5 + 0.5 / 8, abs=0.04)


def test_normaliser_has_the_weighted_mean_and_deviation() -> None:
    rng = np.random.default_rng(0)
    moments = networks.empty_moments(3)
    parts = [rng.normal(5.0, 2.0, (50, 3)) for _ in range(4)]
    for part in parts:
        moments = networks.merge_moments(moments, jnp.asarray(part), jnp.ones(50))
    moments = networks.merge_moments(moments, jnp.ones((2, 3)), jnp.zeros(2))
    x = np.concatenate(parts)
    np.testing.assert_allclose(moments.mean, x.mean(0), rtol=1e-4)
    np.testing.assert_allclose(networks.moments_deviation(moments), x.std(0), rtol=1e-4)


def fresh(config: Config) -> learner.LearnerState:
    """Return an untrained run."""
    state: learner.LearnerState = jax.tree.map(lambda leaf: leaf[0], learner.init_learner_states([config], SIZES))
    return state


def with_critic_costs(config: Config, costs: np.ndarray) -> learner.LearnerState:
    """Return a run whose critics always return these costs ``[J]``."""
    state = fresh(config)
    name = "ensemble" if config.algorithm == "ddpg" else "critics"
    critics = getattr(state.nets, name)
    online = [(w * 0, b * 0) for w, b in critics.online]
    online[-1] = (online[-1][0], -jnp.asarray(costs, jnp.float32)[:, None])
    return state._replace(nets=state.nets._replace(**{name: critics._replace(online=online)}))


@pytest.mark.parametrize("algorithm", ["critics", "ddpg"])
def test_values_are_in_steps(algorithm: str) -> None:
    config = Config("point-mass", hidden=(8,), members=3, gamma=0.98, algorithm=algorithm).resolve_for_horizon(6)
    ask = (jnp.zeros((2, 3)), jnp.zeros((2, 5, 2)), jax.random.key(0))
    same = np.array([(1 - 0.98 ** (n - 1)) / 0.02 for n in (10.0, 10.0, 10.0)])
    D, E, _ = learner.estimate_goal_values(config, False, with_critic_costs(config, same), *ask)
    np.testing.assert_allclose(D, 10.0, rtol=1e-4)
    np.testing.assert_allclose(E, 0.0, atol=1e-5)
    apart = np.array([(1 - 0.98 ** (n - 1)) / 0.02 for n in (9.9, 10.0, 10.1)])
    _, sigma, _ = learner.estimate_goal_values(config, False, with_critic_costs(config, apart), *ask)
    np.testing.assert_allclose(sigma, apart.std(), rtol=1e-2)


@pytest.mark.parametrize("algorithm", ["critics", "ddpg"])
def test_exported_critics_equal_the_learner(algorithm: str) -> None:
    config = Config("point-mass", hidden=(16, 16), algorithm=algorithm).resolve_for_horizon(6)
    state = fresh(config)
    rng = np.random.default_rng(0)
    o, g = rng.normal(size=(4, 3)).astype(np.float32), rng.normal(size=(4, 2)).astype(np.float32)
    stacked = jax.tree.map(lambda leaf: leaf[None], state)
    (actor,), (critics,) = learner.export_actors(config, stacked), learner.export_critics([config], stacked, [None])
    assert critics is not None
    D = critics(actor.normalise_inputs(o, g), actor(o, g))
    ask = (jnp.asarray(o), jnp.asarray(g)[:, None], jax.random.key(0))
    expected, _, _ = learner.estimate_goal_values(config, False, state, *ask)
    np.testing.assert_allclose(D, expected[:, 0], rtol=1e-4, atol=1e-5)


def test_error_model_covers_nine_episodes_in_ten_and_ranks_their_errors() -> None:
    rng = np.random.default_rng(0)
    D = rng.uniform(1, 30, 4000)
    arrival = D + (1.0 + np.abs(D - 10.0)) * rng.normal(size=4000)  # D is best for goals ten steps away
    taken = np.where(arrival <= 20.0, arrival, np.inf)  # episodes of 20 steps, many without success
    model = value_formulas.ErrorModel.fit(D[:2500], taken[:2500], 20)
    assert (len(model.D), len(model.errors)) == (2000, 2000)
    D, taken, half_width = D[2500:], taken[2500:], model.predict(D[2500:])
    covered = np.where(np.isfinite(taken), np.abs(D - taken) <= half_width, D + half_width >= 20.0)
    assert np.isinf(taken).mean() > 0.2
    assert covered.mean() == pytest.approx(0.9, abs=0.03)
    by_distance = [half_width[np.abs(D - n) < 1.0].mean() for n in (10.0, 6.0, 2.0)]
    assert by_distance == sorted(by_distance)


def test_error_model_of_few_episodes() -> None:
    model = value_formulas.ErrorModel.fit(np.array([3.0, 3.0]), np.array([3.0, 5.0]), 20)
    # each is predicted from the other: 2 steps by one without error, which counts as 0.1, so the factor is 20
    assert model.predict(np.array([1.0, 9.0])).tolist() == [20.0, 20.0]


def test_count_of_steps_to_a_goal() -> None:
    """The distances are those after each step."""
    distances = np.array([[9.0, 9.0, 0.0, 0.0], [9.0, 9.0, 9.0, 9.0], [0.0, 0.0, 0.0, 0.0], [9.0, 0.0, 9.0, 0.0]])
    np.testing.assert_array_equal(value_formulas.first_step_at_goal(distances, 0.1), [3.0, np.inf, 1.0, 2.0])


@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_goal_reached_by_the_nth_step_is_n_steps_away(n: int) -> None:
    """Discounted rewards of the replay buffer, converted to steps, equal the steps taken."""
    e, t = np.zeros((1, 7)), np.arange(7.0)[None]
    achieved = jnp.asarray(np.stack([e, np.minimum(t, n)], -1), jnp.float32)
    goal = jnp.array([[0.0, n]], jnp.float32)
    observation = jnp.asarray(np.stack([t, t, t], -1), jnp.float32)
    played = EpisodeBatch(observation, achieved, jnp.zeros((1, 6, 2)), goal, jnp.array([6]), jnp.array([False]))
    memory = jax.tree.map(lambda part: part[0], replay_buffer.empty_replay_buffer((1, 1), SIZES))
    memory = replay_buffer.add_episodes(memory, played, 0.04)
    batch = replay_buffer.sample_transitions(
        memory, replay_buffer.contact_episodes_first(memory), jax.random.key(0), 500, shares(), 0.1
    )
    reward = dict(zip(np.asarray(batch.observation[:, 0]).astype(int).tolist(), np.asarray(batch.reward), strict=True))
    cost = -sum(0.98**t * float(reward[t]) for t in range(6))
    assert value_formulas.cost_to_steps(np.float64(cost), 0.98) == pytest.approx(n)
    distances = np.linalg.norm(np.asarray(achieved[:, 1:] - goal[:, None]), axis=-1)
    assert value_formulas.first_step_at_goal(distances, 0.1) == n


def test_actor_of_the_workers_equals_the_learner() -> None:
    config = Config("point-mass", hidden=(16, 16)).resolve_for_horizon(6)
    state = fresh(config)
    x, g = np.random.default_rng(0).normal(size=(4, 3)), np.random.default_rng(1).normal(size=(4, 2))
    (actor,) = learner.export_actors(config, jax.tree.map(lambda leaf: leaf[None], state))
    inputs = state.normalisers.network_inputs(jnp.asarray(x), jnp.asarray(g))
    expected = networks.policy_actions(state.nets.actor.online, inputs)
    np.testing.assert_allclose(actor(x, g), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("algorithm", ["critics", "ddpg"])
def test_run_learns_the_same_alone_and_in_a_batch(algorithm: str) -> None:
    small = {"hidden": (16,), "updates": 3, "ensemble_updates": 3, "batch": 16, "ensemble_batch": 16, "buffer": 200}
    configs = [
        Config("point-mass", algorithm=algorithm, seed=seed, relabel=relabel, **small).resolve_for_horizon(6)
        for seed, relabel in ((0, 0.8), (1, 0.5))
    ]
    states = [fresh(c) for c in configs]
    new = jax.tree.map(lambda part: jnp.stack([part, part]), episodes(16, 0))
    both: learner.LearnerState = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    together, _ = learner.compile_cycle(configs, SIZES)(both, learner.per_run_hyperparameters(configs), new)
    one = learner.init_learner_states(configs[1:2], SIZES)
    key = np.array(one.key)
    alone, _ = learner.compile_cycle(configs[1:], SIZES)(
        one, learner.per_run_hyperparameters(configs[1:]), jax.tree.map(lambda part: part[1:], new)
    )
    for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(a[1], b[0], rtol=2e-3, atol=2e-5)
    assert (np.array(alone.key) != key).all(), "the next cycle draws others"


def test_targets_bootstrap_unless_the_episode_terminated() -> None:
    config = Config("point-mass", gamma=0.9)
    none = jnp.zeros((6, 1))
    reward, following = jnp.array([-1.0, -1.0, 0.0, -1.0, 0.0, -1.0]), jnp.array([-2.0, -2.0, -2.0, 3.0, -2.0, -99.0])
    ends = jnp.array([False, True, True, False, False, False])
    y = networks.bellman_targets(config, networks.TransitionBatch(none, none, none, reward, ends), following)
    np.testing.assert_allclose(y, [-2.8, -10.0, 0.0, 0.0, -1.8, -10.0], rtol=1e-5)


@pytest.mark.parametrize("together", [20, 2])
@pytest.mark.parametrize("count", [2, 3, 8, 9])
def test_target_networks_are_updated_at_their_interval(monkeypatch: Any, count: int, together: int) -> None:
    monkeypatch.setattr(networks, "MAX_BATCHES_AT_ONCE", together)
    config = Config("point-mass", target_every=3, target_step=0.25)
    nets = (NetworkState(jnp.array(1.0), jnp.array(0.0), ()), NetworkState(jnp.array(-1.0), jnp.array(2.0), ()))

    def prepare(nets: tuple[NetworkState, ...], numbers: jnp.ndarray) -> Any:
        return numbers, jnp.stack([net.target + 0.0 * numbers for net in nets], 1)

    def update(nets: tuple[NetworkState, ...], given: Any) -> tuple[tuple[NetworkState, ...], jnp.ndarray]:
        i, y = given
        return tuple(net._replace(online=net.online * 1.5 + i + y[k]) for k, net in enumerate(nets)), 1.0 * i

    found, loss = networks.run_updates(config, prepare, update, nets, count)
    for net, learnt in zip(nets, found, strict=True):
        online, target = float(net.online), float(net.target)
        for i in range(count):
            online = online * 1.5 + i + target
            if (i + 1) % 3 == 0:
                target += 0.25 * (online - target)
        assert float(learnt.online) == pytest.approx(online, rel=1e-5)
        assert float(learnt.target) == pytest.approx(target, rel=1e-5)
    assert float(loss) == pytest.approx((count - 1) / 2)


def test_recipe_half_needs_less_than_half_of_the_operations() -> None:
    """A cycle of FetchPush with the recipe ``half``, against DDPG with 160 updates of 1024 and an ensemble with 320."""
    sizes = EnvDimensions(observation=25, goal=3, action=4, horizon=50, success=0.05)

    def operations(update: Any, nets: Any, count: int) -> float:
        obs_goal, flags = jnp.zeros((1, count, 28)), jnp.zeros((1, count))
        batch = networks.TransitionBatch(obs_goal, jnp.zeros((1, count, 4)), obs_goal, flags, flags > 0)
        return float(jax.jit(update).lower(nets, batch).cost_analysis()["flops"])

    def agent_update(module: Any, **given: Any) -> float:
        config = Config("FetchPush-v4", **given).resolve_for_horizon(50)

        def update(nets: Any, batch: networks.TransitionBatch) -> Any:
            y = module.critic_targets(config, nets, batch)[0]
            critic_batch = networks.CriticBatch(batch.obs_goal[0], batch.action[0], y)
            return module.update_agent(config, {"action_l2": jnp.array(1.0)}, nets, critic_batch)

        return operations(update, module.init_networks(config, sizes, np.random.default_rng(0)), config.batch)

    config = Config("FetchPush-v4", algorithm="ddpg").resolve_for_horizon(50)
    nets = ddpg.init_networks(config, sizes, np.random.default_rng(0))

    def ensemble_update(ensemble: NetworkState, batch: networks.TransitionBatch) -> Any:
        shares = ddpg.divide_among_members(config, ensemble, nets.actor.online, batch)
        return ddpg.update_ensemble(config, ensemble, jax.tree.map(lambda x: x[0], shares))

    separate = operations(ensemble_update, nets.ensemble, 3 * 1024)
    together = agent_update(ensemble_ddpg, **RECIPES["half"])
    assert 400 * together < (160 * agent_update(ddpg, algorithm="ddpg") + 320 * separate) / 2


def test_radius_grows_with_the_steps() -> None:
    fixed, growing = Config("point-mass", radius=40, radius_ramp=0), Config("point-mass", radius=40, radius_ramp=1000)
    assert [fixed.next_radius(steps, {}) for steps in (0, 500)] == [40, 40]
    assert [growing.next_radius(steps, {}) for steps in (0, 500, 1000, 5000)] == [10, 25, 40, 40]


def test_radius_grows_while_goals_are_reached() -> None:
    config = Config("point-mass", radius=40, episodes=16)
    assert config.next_radius(0, {}) == 10

    def after(radius: float, success: float) -> float:
        return config.next_radius(0, {"radius": radius, "train_success": success})

    assert after(20, 0.25) == 20, "a quarter of the episodes holds L"
    assert after(20, 0.75) == pytest.approx(20 * math.exp(0.05)), "8 of 160 episodes more"
    assert after(20, 0.0) == pytest.approx(20 * math.exp(-0.025))
    assert (after(10, 0.0), after(40, 1.0)) == (10, 40), "never below a quarter of the radius, nor above it"


def test_a_final_test_does_not_change_the_radius() -> None:
    config = Config("point-mass", radius=40, episodes=16, horizon=6)
    history = TrainingHistory([config], [], [], None, 0.1, goals=[np.zeros((1, 16, 2))])
    history.rows = [{"radius": 20.0, "train_success": 0.75}]
    (before,) = history.next_radii()
    history.add_final_test(1, np.zeros((1, 1, 16, 6)))
    assert history.next_radii() == [before] == [config.next_radius(96, history.rows[0])]


@pytest.mark.parametrize(("steps", "buffer", "held"), [(4000, 1_000_000, 4002), (4000, 1000, 996), (1, 1000, 6)])
def test_replay_buffer_size_follows_the_steps(steps: int, buffer: int, held: int) -> None:
    config = Config("point-mass", steps=steps, buffer=buffer, episodes=1).resolve_for_horizon(SIZES.horizon)
    memory = learner.learner_state_shapes([config, config], SIZES).replay
    assert memory.action.shape[:3] == (2, held // SIZES.horizon, SIZES.horizon)
    taken = sum(array.size * array.dtype.itemsize for array in memory._replace(added=jnp.zeros(0)))
    assert taken == 2 * config.replay_capacity * SIZES.episode_bytes
