"""Everything that is learnt, as one compiled cycle: the algorithm, the value ensemble, the normalisers, the memory.

A cycle adds new episodes to the memory, lets the algorithm (:mod:`adagoal.deep.algorithms`) take its updates from
batches with hindsight goals, and then the ensemble (:mod:`adagoal.deep.networks`) its own.

Functions act on one run; :func:`compile_cycle` and :func:`compile_values` map them over S runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from adagoal.core.random_streams import StreamPurpose, jax_key_data, random_stream
from adagoal.core.types import Floats
from adagoal.deep import algorithms, ensemble_ddpg, networks, replay_buffer
from adagoal.deep.config import CONTACT_DISTANCE, Config
from adagoal.deep.goal_envs import EnvDimensions
from adagoal.deep.networks import CriticBatch, LayerWeights, NetworkState, RunningMoments, TransitionBatch
from adagoal.deep.numpy_networks import NumpyActor, NumpyCritics
from adagoal.deep.replay_buffer import ReplayBuffer
from adagoal.settings.fields import declared_settings, per_run_settings

N_DENSITY_POINTS = 512
"""Achieved goals from which the density at a candidate is estimated."""
DENSITY_BANDWIDTH = 0.3
"""Of the kernel, in standard deviations of the goals."""
RunHyperparameters = dict[str, Array]
"""What may differ between the runs of one program: see :func:`per_run_hyperparameters`."""


class LearnerState(NamedTuple):
    """All that a run has learnt or seen."""

    nets: Any
    """Of the algorithm."""
    ensemble: NetworkState | None
    """None where the algorithm's own critics are one."""
    observations: RunningMoments
    goals: RunningMoments
    replay: ReplayBuffer
    key: Array


def per_run_hyperparameters(configs: Sequence[Config]) -> RunHyperparameters:
    """The numbers ``[S]`` in which S runs may differ, by the name of the setting, and what the goal normaliser sees."""
    share = [c.relabel if c.normaliser == "relabelled" else 1.0 for c in configs]
    running = [c.normaliser != "fixed" for c in configs]
    numbers = [name for name, about in declared_settings(Config).items() if about.per_run and about.kinds == (float,)]
    return {name: jnp.array([float(getattr(c, name)) for c in configs]) for name in numbers} | {
        "see_achieved": jnp.array([s * r for s, r in zip(share, running, strict=True)]),
        "see_desired": jnp.array([(1.0 - s) * r for s, r in zip(share, running, strict=True)]),
    }


def init_learner_states(configs: Sequence[Config], sizes: EnvDimensions, test_goals: Floats) -> LearnerState:
    """Fresh states of S runs, stacked along a leading axis; ``test_goals [S, n, goal]`` set fixed goal normalisers."""
    rngs = [random_stream(config.seed, StreamPurpose.INITIAL_WEIGHTS) for config in configs]
    runs = [_init_run_state(*one) for one in zip(configs, [sizes] * len(configs), test_goals, rngs, strict=True)]
    stacked = jax.device_put(jax.tree.map(lambda *leaves: np.stack(leaves), *runs))
    return LearnerState(**stacked, replay=jax.jit(lambda: _empty_replay_buffers(configs, sizes))())


def learner_state_shapes(configs: Sequence[Config], sizes: EnvDimensions) -> LearnerState:
    """The shapes of :func:`init_learner_states`, for which no memory is taken."""
    one = jax.eval_shape(
        lambda: _init_run_state(configs[0], sizes, np.zeros((1, sizes.goal)), cast(Any, _ZeroGenerator()))
    )
    wide = lambda leaf: jnp.broadcast_to(leaf, (len(configs), *leaf.shape))  # noqa: E731
    stacked = jax.eval_shape(lambda parts: jax.tree.map(wide, parts), one)
    return LearnerState(**stacked, replay=jax.eval_shape(lambda: _empty_replay_buffers(configs, sizes)))


def _empty_replay_buffers(configs: Sequence[Config], sizes: EnvDimensions) -> ReplayBuffer:
    room = (len(configs), configs[0].replay_capacity)
    return replay_buffer.empty_replay_buffer(room, sizes.horizon, sizes.observation, sizes.goal, sizes.action)


class _ZeroGenerator:
    """Stands for a random generator where only shapes are asked for."""

    def uniform(self, low: float, high: float, shape: tuple[int, ...]) -> Array:
        return jnp.zeros(shape)


def _init_run_state(
    config: Config, sizes: EnvDimensions, test_goals: Floats, rng: np.random.Generator
) -> dict[str, Any]:
    """The parts of a fresh state of one run, but for the memory."""
    goals = networks.empty_moments(sizes.goal)
    if config.normaliser == "fixed":
        goals = networks.merge_moments(goals, jnp.asarray(test_goals, jnp.float32), jnp.ones(len(test_goals)))
    algorithm = algorithms.load_algorithm(config.algorithm)
    nets = algorithm.init_networks(config, sizes, rng)
    return {
        "nets": nets,
        "ensemble": networks.init_value_ensemble(config, sizes, rng)
        if algorithm.ensemble_layers(nets) is None
        else None,
        "observations": networks.empty_moments(sizes.observation),
        "goals": goals,
        "key": jax_key_data(config.seed, StreamPurpose.UPDATES),
    }


wrap_threefry_key = functools.partial(jax.random.wrap_key_data, impl="threefry2x32")
"""From the words of :func:`adagoal.core.random_streams.jax_key_data` to a random key, whatever JAX has as its
default."""


def network_inputs(state: LearnerState, observation: Array, goal: Array) -> Array:
    """Normalised network input ``[..., O + G]``."""
    o = networks.normalise_vectors(state.observations, observation)
    return jnp.concatenate([o, networks.normalise_vectors(state.goals, goal)], -1)


def learn_from_cycle(
    config: Config, sizes: EnvDimensions, with_ensemble: bool, state: LearnerState, knob: RunHyperparameters, new: Any
) -> Any:
    """Add a cycle's episodes and learn from the whole memory; returns the state and a dict of mean losses."""
    algorithm = algorithms.load_algorithm(config.algorithm)
    memory = replay_buffer.add_episodes(state.replay, CONTACT_DISTANCE * sizes.success, *new)
    contacts = replay_buffer.contact_episodes_first(memory)
    key, nets_key, update_key, ensemble_key = jax.random.split(wrap_threefry_key(state.key), 4)
    state = _update_normalisers(state, knob, *new)._replace(replay=memory, key=jax.random.key_data(key))

    numbered = jax.vmap(jax.random.fold_in, (None, 0))

    def draw(keys: Array, count: int, relabel: Array) -> TransitionBatch:
        """Batches ``[n, count, ...]``, one for each of the keys."""
        sample = functools.partial(replay_buffer.sample_transitions, memory, contacts)
        batch = jax.vmap(lambda key: sample(key, count, relabel, knob["contact"], sizes.success))(keys)
        og, following = (
            network_inputs(state, batch.observation, batch.goal),
            network_inputs(state, batch.next_observation, batch.goal),
        )
        return TransitionBatch(og, batch.action, following, batch.reward, batch.terminal)

    def lessons(nets: Any, numbers: Array) -> tuple[CriticBatch, Array]:
        batch = draw(numbered(nets_key, numbers), config.batch, knob["relabel"])
        given = CriticBatch(batch.obs_goal, batch.action, algorithm.critic_targets(config, nets, batch))
        return given, numbered(update_key, numbers)

    def improve(nets: Any, given: tuple[CriticBatch, Array]) -> tuple[Any, dict[str, Array]]:
        batch, key = given
        return algorithm.update_networks(config, knob, nets, batch, key)

    nets, losses = networks.run_updates(config, lessons, improve, state.nets, config.updates)
    state = state._replace(nets=nets)

    def shares(members: NetworkState, numbers: Array) -> CriticBatch:
        batch = draw(numbered(ensemble_key, numbers), config.members * config.ensemble_batch, knob["ensemble_relabel"])
        return networks.value_ensemble_batches(config, members, lambda og: algorithm.select_actions(nets, og), batch)

    if with_ensemble and state.ensemble is not None:
        disagree = functools.partial(networks.update_value_ensemble, config)
        members, error = networks.run_updates(config, shares, disagree, state.ensemble, config.ensemble_updates)
        state, losses = state._replace(ensemble=members), losses | error
    return state, losses


def _update_normalisers(
    state: LearnerState,
    knob: RunHyperparameters,
    observation: Array,
    achieved: Array,
    action: Array,
    goal: Array,
    length: Array,
    terminated: Array,
) -> LearnerState:
    """Feed the normalisers with a cycle's episodes ``[B, T + 1, ...]``."""
    real = (jnp.arange(observation.shape[1]) <= length[:, None]).astype(jnp.float32)
    flat = real.reshape(-1)
    seen = networks.merge_moments(state.observations, observation.reshape(-1, observation.shape[-1]), flat)
    goals = networks.merge_moments(state.goals, achieved.reshape(-1, goal.shape[-1]), flat * knob["see_achieved"])
    goals = networks.merge_moments(goals, goal, real.sum(1) * knob["see_desired"])
    return state._replace(observations=seen, goals=goals)


def estimate_goal_values(
    config: Config, with_density: bool, state: LearnerState, start: Array, goal: Array, key: Array
) -> Any:
    """D in steps, sigma, and the density of achieved goals, each ``[B, N]``: starts ``[B, O]``, goals ``[B, N, G]``."""
    og = network_inputs(state, jnp.broadcast_to(start[:, None], (*goal.shape[:2], start.shape[-1])), goal)
    action = algorithms.load_algorithm(config.algorithm).select_actions(state.nets, og)
    layers, normed = value_ensemble_layers(config, state)
    for_actions, for_density = jax.random.split(key)
    D, E = networks.value_ensemble_estimates(
        config, layers, ensemble_ddpg.critic_activation if normed else jax.nn.relu, og, action, for_actions
    )
    return D, E, _achieved_goal_density(state, goal, for_density) if with_density else jnp.zeros(goal.shape[:2])


def value_ensemble_layers(config: Config, state: LearnerState) -> tuple[LayerWeights, bool]:
    """The critics from which D and E are read, stacked along J, and whether their layers are normalised."""
    own = algorithms.load_algorithm(config.algorithm).ensemble_layers(state.nets)
    if own is not None:
        return own, True
    assert state.ensemble is not None
    return state.ensemble.online, False


def _achieved_goal_density(state: LearnerState, goal: Array, key: Array) -> Array:
    """Kernel estimate of how many episodes of the memory achieved something near each goal ``[B, N]``."""
    memory = state.replay
    held = jnp.minimum(memory.added, memory.goal.shape[0])
    for_episode, for_time = jax.random.split(key)
    episode = jax.random.randint(for_episode, (N_DENSITY_POINTS,), 0, jnp.maximum(held, 1))
    time = jax.random.randint(for_time, (N_DENSITY_POINTS,), 0, memory.achieved.shape[1])
    return held * _mean_gaussian_kernel(state, goal, memory.achieved[episode, time])


def _mean_gaussian_kernel(state: LearnerState, goal: Array, near: Array) -> Array:
    """Mean of a Gaussian kernel between each goal ``[B, N, G]`` and the points ``near [M, G]``, both normalised."""
    points = networks.normalise_vectors(state.goals, near)
    apart = ((networks.normalise_vectors(state.goals, goal)[..., None, :] - points) ** 2).sum(-1)
    return jnp.exp(-apart / (2 * DENSITY_BANDWIDTH**2)).mean(-1)


def sample_experience(state: LearnerState, wanted: Array, count: int, key: Array) -> tuple[Array, Array, Array]:
    """States ``[count, O]`` of the memory and what was achieved there ``[count, G]``; and KL(p_wanted || p_achieved).

    The divergence is that of two kernel estimates, at goals ``wanted [M, G]`` of the goal space.
    """
    memory = state.replay
    held = jnp.maximum(jnp.minimum(memory.added, memory.goal.shape[0]), 1)
    for_episode, for_time = jax.random.split(key)
    episode = jax.random.randint(for_episode, (count,), 0, held)
    time = jax.random.randint(for_time, (count,), 0, memory.length[episode] + 1)
    found = memory.achieved[episode, time]
    own, others = (_mean_gaussian_kernel(state, wanted[None], near)[0] for near in (wanted, found[:N_DENSITY_POINTS]))
    return memory.observation[episode, time], found, jnp.mean(jnp.log(own + 1e-12) - jnp.log(others + 1e-12))


def export_actors(config: Config, state: LearnerState) -> list[NumpyActor]:
    """The actors of S runs, from their states stacked along a leading axis, as NumPy arrays."""
    layers, o_mean, o_std, g_mean, g_std = jax.device_get(compile_actor_export(config.algorithm)(state))
    return [
        NumpyActor(
            [(w[i], b[i]) for w, b in layers], o_mean[i], o_std[i], g_mean[i], g_std[i], networks.MAX_NORMALISED_VALUE
        )
        for i in range(len(o_mean))
    ]


def export_critics(
    configs: Sequence[Config], state: LearnerState, factors: Sequence[float | None]
) -> list[NumpyCritics | None]:
    """The critics of S runs as NumPy arrays, with their calibrations; None where a run's goal rule asked for none."""
    layers, normed = value_ensemble_layers(configs[0], state)
    arrays = jax.device_get(layers)
    trained = normed or any(config.needs_ensemble for config in configs)
    return [
        NumpyCritics([(w[i], b[i]) for w, b in arrays], configs[0].gamma, normed, factors[i]) if trained else None
        for i in range(len(configs))
    ]


def episode_shapes(state: LearnerState, episodes: int) -> tuple[Array, ...]:
    """What S runs add to their memories in a cycle, as shapes; ``state`` has a leading axis S."""
    stored = state.replay[: replay_buffer.ReplayBuffer._fields.index("moved")]
    shapes: tuple[Array, ...] = jax.eval_shape(lambda full: tuple(x[:, :episodes] for x in full), stored)
    return shapes


def compile_cycle(configs: Sequence[Config], sizes: EnvDimensions) -> Any:
    """:func:`learn_from_cycle` over S runs: state and episodes with a leading axis S; the old state's memory is
    reused."""
    return _compiled_cycle(_program_config(configs[0]), sizes, any(c.needs_ensemble for c in configs), len(configs))


def compile_values(configs: Sequence[Config]) -> Any:
    """:func:`estimate_goal_values` over S runs: starts ``[S, B, O]``, goals ``[S, B, N, G]``, keys ``[S]``."""
    return _compiled_values(_program_config(configs[0]), any(c.needs_density for c in configs), len(configs))


def compile_experience(
    configs: Sequence[Config], count: int
) -> Callable[[LearnerState, Any, Array], tuple[Array, Array, Array]]:
    """:func:`sample_experience` over S runs: wanted goals ``[S, M, G]``, keys ``[S]``."""
    return _compiled_experience(count, len(configs))


def _program_config(config: Config) -> Config:
    """The settings that a program follows from, with the others at their defaults: trainings in turn share programs."""
    others = per_run_settings(Config) | {"steps"}
    defaults: dict[str, Any] = {field.name: field.default for field in fields(Config) if field.name in others}
    return replace(config, env="", **defaults)


@functools.lru_cache(maxsize=8)
def _compiled_cycle(config: Config, sizes: EnvDimensions, with_ensemble: bool, runs: int) -> Any:
    def one(state: LearnerState, knob: RunHyperparameters, new: Any) -> Any:
        return learn_from_cycle(config, sizes, with_ensemble, state, knob, new)

    return jax.jit(vmap_over_runs(one, runs), donate_argnums=0)


@functools.lru_cache(maxsize=8)
def _compiled_values(config: Config, with_density: bool, runs: int) -> Any:
    def one(state: LearnerState, start: Array, goal: Array, key: Array) -> Any:
        return estimate_goal_values(config, with_density, state, start, goal, key)

    return jax.jit(vmap_over_runs(one, runs))


@functools.lru_cache(maxsize=8)
def compile_actor_export(algorithm: str) -> Any:
    """What :func:`export_actors` takes from the states of S runs."""

    def parts(state: LearnerState) -> Any:
        layers = algorithms.load_algorithm(algorithm).actor_layers(state.nets)
        scaled = [(seen.mean, jax.vmap(networks.moments_deviation)(seen)) for seen in (state.observations, state.goals)]
        return layers, *scaled[0], *scaled[1]

    return jax.jit(parts)


@functools.lru_cache(maxsize=8)
def _compiled_experience(count: int, runs: int) -> Any:
    return jax.jit(vmap_over_runs(lambda state, wanted, key: sample_experience(state, wanted, count, key), runs))


def vmap_over_runs(function: Callable[..., Any], runs: int) -> Callable[..., Any]:
    """``function`` mapped over a leading axis of S runs; a single run is spared the batched matrix products."""
    if runs > 1:
        return jax.vmap(function)

    def alone(*arguments: Any) -> Any:
        found = function(*jax.tree.map(lambda leaf: leaf[0], arguments))
        return jax.tree.map(lambda leaf: leaf[None], found)

    return alone
