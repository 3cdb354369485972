"""The state of S runs, and its compiled programs: one cycle of learning, goal values, densities, network export.

A cycle adds new episodes to the replay buffer, updates the normalisers, and calls the algorithm's ``learn``
(:mod:`adagoal.deep.algorithms`). Functions act on one run; the ``compile_*`` functions map them over S runs.
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
from adagoal.core.validation import declared_settings, per_run_settings
from adagoal.deep import algorithms, networks, replay_buffer, value_formulas
from adagoal.deep.config import CONTACT_DISTANCE, Config
from adagoal.deep.goal_envs import EnvDimensions
from adagoal.deep.policy import NumpyActor, NumpyCritics
from adagoal.deep.replay_buffer import Experience, Normalisers, ReplayBuffer
from adagoal.deep.rollouts import EpisodeBatch
from adagoal.deep.value_formulas import ErrorModel

# Achieved goals from which the density at a candidate is estimated.
N_DENSITY_POINTS = 512
RunHyperparameters = dict[str, Array]
"""Numbers ``[S]`` that may differ between the runs of one program (:func:`per_run_hyperparameters`)."""

# The implementation is fixed because the default of JAX may change, and with it all results.
wrap_threefry_key = functools.partial(jax.random.wrap_key_data, impl="threefry2x32")


class LearnerState(NamedTuple):
    """Everything that a run has learnt or seen."""

    nets: Any  # of the algorithm
    normalisers: Normalisers
    replay: ReplayBuffer
    key: Array  # random key of the next cycle, as raw words


def per_run_hyperparameters(configs: Sequence[Config]) -> RunHyperparameters:
    """Settings ``[S]`` that are declared ``per_run``, and the shares with which the goal normaliser sees goals."""
    names = [name for name, about in declared_settings(Config).items() if about.per_run and about.kinds == (float,)]
    # a weight, not another program: runs with different normalisers can train together
    achieved = [c.relabel if c.normaliser == "relabelled" else 1.0 for c in configs]
    return {name: jnp.array([float(getattr(c, name)) for c in configs]) for name in names} | {
        "see_achieved": jnp.array(achieved),
        "see_desired": jnp.array([1.0 - share for share in achieved]),
    }


def init_learner_states(configs: Sequence[Config], sizes: EnvDimensions) -> LearnerState:
    """Initial states of S runs with a leading axis S."""
    runs = [_init_run_state(c, sizes, random_stream(c.seed, StreamPurpose.INITIAL_WEIGHTS)) for c in configs]
    # NumPy makes networks and moments. The device makes the replay buffer, so its gigabytes are never copied.
    stacked = jax.device_put(jax.tree.map(lambda *leaves: np.stack(leaves), *runs))
    shape = len(configs), configs[0].replay_capacity
    return LearnerState(**stacked, replay=jax.jit(lambda: replay_buffer.empty_replay_buffer(shape, sizes))())


def learner_state_shapes(configs: Sequence[Config], sizes: EnvDimensions) -> LearnerState:
    """Shapes of :func:`init_learner_states`; no memory is allocated."""

    # NumPy would draw real weights here. A forged checkpoint may ask for any widths, and is checked against the shapes.
    class ZeroGenerator:
        def uniform(self, low: float, high: float, shape: tuple[int, ...]) -> Array:
            return jnp.zeros(shape)

    rng = cast(Any, ZeroGenerator())
    one = jax.eval_shape(lambda: _init_run_state(configs[0], sizes, rng))
    stack = lambda leaf: jnp.broadcast_to(leaf, (len(configs), *leaf.shape))  # noqa: E731
    stacked = jax.eval_shape(lambda parts: jax.tree.map(stack, parts), one)
    shape = len(configs), configs[0].replay_capacity
    return LearnerState(**stacked, replay=jax.eval_shape(lambda: replay_buffer.empty_replay_buffer(shape, sizes)))


def _init_run_state(config: Config, sizes: EnvDimensions, rng: np.random.Generator) -> dict[str, Any]:
    return {
        "nets": algorithms.load_algorithm(config.algorithm).init_networks(config, sizes, rng),
        "normalisers": Normalisers(*(networks.empty_moments(size) for size in (sizes.observation, sizes.goal))),
        "key": jax_key_data(config.seed, StreamPurpose.UPDATES),
    }


def learn_from_cycle(
    config: Config,
    sizes: EnvDimensions,
    needs_values: bool,
    state: LearnerState,
    hyperparameters: RunHyperparameters,
    episodes: EpisodeBatch,
) -> tuple[LearnerState, dict[str, Array]]:
    """Add a cycle's episodes and learn from the whole replay buffer; returns the state and mean losses."""
    replay = replay_buffer.add_episodes(state.replay, episodes, CONTACT_DISTANCE * sizes.success)
    contacts = replay_buffer.contact_episodes_first(replay)
    # four keys whatever the algorithm uses, so the key of the next cycle does not depend on it
    keys = jax.random.split(wrap_threefry_key(state.key), 4)
    normalisers = _update_normalisers(state.normalisers, hyperparameters, episodes)
    experience = Experience(replay, *contacts, normalisers, sizes.success, hyperparameters)
    algorithm = algorithms.load_algorithm(config.algorithm)
    nets, losses = algorithm.learn(config, state.nets, experience, keys[1:], needs_values)
    return LearnerState(nets, normalisers, replay, jax.random.key_data(keys[0])), losses


def _update_normalisers(
    normalisers: Normalisers, hyperparameters: RunHyperparameters, episodes: EpisodeBatch
) -> Normalisers:
    goal = jnp.asarray(episodes.goal)
    observation, achieved = (jnp.asarray(x).reshape(-1, x.shape[-1]) for x in (episodes.observation, episodes.achieved))
    # Entries after the end of an episode repeat its last state. Weight 0, because shapes are fixed.
    steps = jnp.arange(episodes.observation.shape[1])
    played = (steps <= episodes.length[:, None]).astype(jnp.float32)
    weight = played.reshape(-1)
    observations = networks.merge_moments(normalisers.observations, observation, weight)
    goals = networks.merge_moments(normalisers.goals, achieved, weight * hyperparameters["see_achieved"])
    # a pursued goal counts once per step, as the relabelled batches of the reference HER would show it
    goals = networks.merge_moments(goals, goal, played.sum(1) * hyperparameters["see_desired"])
    return Normalisers(observations, goals)


def estimate_goal_values(
    config: Config, with_density: bool, state: LearnerState, start: Array, goal: Array, key: Array
) -> tuple[Array, Array, Array]:
    """D in steps, E, and the density of achieved goals, each ``[B, N]``: starts ``[B, O]``, goals ``[B, N, G]``."""
    starts = jnp.broadcast_to(start[:, None], (*goal.shape[:2], start.shape[-1]))
    algorithm = algorithms.load_algorithm(config.algorithm)
    D, E = algorithm.distance_and_error(config, state.nets, state.normalisers.network_inputs(starts, goal))
    # the other half of the key is free for algorithms whose D and E are random
    density_key = jax.random.split(key)[1]
    return D, E, _achieved_goal_density(state, goal, density_key) if with_density else jnp.zeros(goal.shape[:2])


def _achieved_goal_density(state: LearnerState, goal: Array, key: Array) -> Array:
    """Kernel estimate ``[B, N]`` of the number of episodes that achieved something near each goal."""
    replay = state.replay
    held = jnp.minimum(replay.added, replay.goal.shape[0])
    episode_key, time_key = jax.random.split(key)
    # a sample, because the cost of a candidate grows with the points
    episode = jax.random.randint(episode_key, (N_DENSITY_POINTS,), 0, jnp.maximum(held, 1))
    time = jax.random.randint(time_key, (N_DENSITY_POINTS,), 0, replay.achieved.shape[1])
    return held * _goal_density(state, goal, replay.achieved[episode, time])


def _goal_density(state: LearnerState, goal: Array, points: Array) -> Array:
    """Kernel density ``[...]`` at goals ``[..., G]`` of the sample ``points [M, G]``, in normalised coordinates."""
    moments = state.normalisers.goals
    centres = networks.normalise_vectors(moments, points)
    differences = networks.normalise_vectors(moments, goal)[..., None, :] - centres
    return value_formulas.mean_gaussian_kernel(differences, value_formulas.DENSITY_BANDWIDTH, jnp)


def sample_experience(count: int, state: LearnerState, wanted: Array, key: Array) -> tuple[Array, Array, Array]:
    """Replayed states ``[count, O]``, the goals achieved there ``[count, G]``, and KL(p_wanted || p_achieved).

    The divergence is that of two kernel densities at goals ``wanted [M, G]`` of the goal space.
    """
    replay = state.replay
    held = jnp.maximum(jnp.minimum(replay.added, replay.goal.shape[0]), 1)
    episode_key, time_key = jax.random.split(key)
    episode = jax.random.randint(episode_key, (count,), 0, held)
    time = jax.random.randint(time_key, (count,), 0, replay.length[episode] + 1)
    achieved = replay.achieved[episode, time]
    samples = wanted, achieved[:N_DENSITY_POINTS]
    p_wanted, p_achieved = (_goal_density(state, wanted[None], points)[0] for points in samples)
    return replay.observation[episode, time], achieved, value_formulas.kernel_divergence(p_wanted, p_achieved, jnp)


def export_actors(config: Config, state: LearnerState) -> list[NumpyActor]:
    """Actors of S runs as NumPy arrays; the state has a leading axis S."""
    layers, o_mean, o_std, g_mean, g_std = jax.device_get(compile_actor_export(config.algorithm)(state))
    clip = value_formulas.MAX_NORMALISED_VALUE
    return [
        NumpyActor([(w[i], b[i]) for w, b in layers], o_mean[i], o_std[i], g_mean[i], g_std[i], clip)
        for i in range(len(o_mean))
    ]


def export_critics(
    configs: Sequence[Config], state: LearnerState, error_models: Sequence[ErrorModel | None]
) -> list[NumpyCritics | None]:
    """Critics of S runs as NumPy arrays; None if the algorithm has none that were trained."""
    needs_values = any(config.needs_ensemble for config in configs)
    critics = algorithms.load_algorithm(configs[0].algorithm).critic_layers(state.nets, needs_values)
    if critics is None:
        return [None] * len(configs)
    layers, uses_layer_norm = jax.device_get(critics[0]), critics[1]
    return [
        NumpyCritics([(w[i], b[i]) for w, b in layers], configs[0].gamma, uses_layer_norm, error_models[i])
        for i in range(len(configs))
    ]


def episode_shapes(state: LearnerState, episodes: int) -> EpisodeBatch:
    """Shapes of the episodes that S runs add in a cycle; the state has a leading axis S."""
    stored = EpisodeBatch(**{name: getattr(state.replay, name) for name in replay_buffer.EPISODE_FIELDS})
    shapes: EpisodeBatch = jax.eval_shape(lambda full: jax.tree.map(lambda x: x[:, :episodes], full), stored)
    return shapes


def compile_cycle(configs: Sequence[Config], sizes: EnvDimensions) -> Any:
    """:func:`learn_from_cycle` over S runs: state, hyper-parameters and episodes have a leading axis S."""
    static = _program_config(configs[0]), sizes, any(c.needs_ensemble for c in configs)
    # Donated: the new state reuses the memory of the old one, since two replay buffers may not fit into a GPU.
    return _compile_for_runs(learn_from_cycle, len(configs), 0, *static)


def compile_values(configs: Sequence[Config]) -> Any:
    """:func:`estimate_goal_values` over S runs: starts ``[S, B, O]``, goals ``[S, B, N, G]``, keys ``[S]``."""
    static = _program_config(configs[0]), any(c.needs_density for c in configs)
    return _compile_for_runs(estimate_goal_values, len(configs), (), *static)


def compile_experience(count: int, runs: int) -> Any:
    """:func:`sample_experience` over S runs: wanted goals ``[S, M, G]``, keys ``[S]``."""
    return _compile_for_runs(sample_experience, runs, (), count)


def _program_config(config: Config) -> Config:
    # Settings that are not compiled in get their defaults. Then more runs share a program of the cache below: resuming
    # in the same process compiles nothing.
    others = per_run_settings(Config) | {"steps"}
    defaults: dict[str, Any] = {field.name: field.default for field in fields(Config) if field.name in others}
    return replace(config, env="", **defaults)


@functools.lru_cache(maxsize=24)
def _compile_for_runs(function: Callable[..., Any], runs: int, donated: int | tuple[int, ...], *static: Any) -> Any:
    return jax.jit(vmap_over_runs(functools.partial(function, *static), runs), donate_argnums=donated)


@functools.lru_cache(maxsize=8)
def compile_actor_export(algorithm: str) -> Any:
    """Layers of the actors, and mean and deviation of observations and goals; all with a leading axis S."""

    def export(state: LearnerState) -> Any:
        layers = algorithms.load_algorithm(algorithm).actor_layers(state.nets)
        scales = [(moments.mean, jax.vmap(networks.moments_deviation)(moments)) for moments in state.normalisers]
        return layers, *scales[0], *scales[1]

    return jax.jit(export)


def vmap_over_runs(function: Callable[..., Any], runs: int) -> Callable[..., Any]:
    """``function`` mapped over a leading axis of S runs."""
    if runs > 1:
        return jax.vmap(function)

    def single(*arguments: Any) -> Any:
        # vmap over one run would make batched matrix products, which are slower
        result = function(*jax.tree.map(lambda leaf: leaf[0], arguments))
        return jax.tree.map(lambda leaf: leaf[None], result)

    return single
