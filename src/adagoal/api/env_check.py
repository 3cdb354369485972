"""Try an environment before a run: can it be used, would something void a certificate, and what will the run do?"""

from __future__ import annotations

import contextlib
import importlib.util
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike

from adagoal.api.check_result import Check
from adagoal.core import file_formats
from adagoal.core.argument_checks import check_integer
from adagoal.core.environment import TabularEnv
from adagoal.core.errors import EnvironmentFailure, InputError, to_single_line
from adagoal.core.types import Floats
from adagoal.core.user_code import stdout_to_stderr
from adagoal.deep import env_inspection
from adagoal.deep.config import Config
from adagoal.deep.goal_envs import (
    POINT_MASS_NAME,
    EnvDimensions,
    EnvSource,
    EpisodeEnd,
    GoalEnv,
    SetGoalFunction,
    register_robotics_envs,
)
from adagoal.envs import env_checker, model_sources, registry
from adagoal.envs.env_backends import EnvBackend, InProcessEnv
from adagoal.envs.gym_adapter import GymAdapter
from adagoal.envs.model import TabularMDP
from adagoal.envs.simulator import ModelSimulator

DEFAULT_CHECK_STEPS = 2000


def check_env(
    env: str | gymnasium.Env[Any, Any] | TabularMDP | ArrayLike | Sequence[Any],
    *,
    env_args: Mapping[str, Any] | None = None,
    start: str | None = None,
    start_seed: int | str | None = None,
    max_states: int | None = None,
    step_timeout: float | None = None,
    set_goal: SetGoalFunction | None = None,
    steps: int = DEFAULT_CHECK_STEPS,
    seed: int = 0,
) -> Check:
    """Try an environment, as :func:`adagoal.explore` would use it, for some ``steps`` with random actions.

    A model, or a matrix that makes one, is looked at and not stepped.
    A goal-conditioned one with real actions is tried as :func:`adagoal.train` would use it; ``set_goal`` is that of
    ``train``. An environment object is reset and stepped, so give one that is not in use. ``step_timeout`` is that of
    ``explore``; with it observations are not compared with their space, and action masks not looked for.
    """
    check_integer("steps", steps, 1, 10**9)
    check_integer("seed", seed, 0, 2**31 - 1)
    arguments, start_seed = env_args or {}, registry.parse_start_option(start, start_seed)
    registry.check_env_arguments(arguments, start_seed, max_states)
    check = Check(to_single_line(env if isinstance(env, str) else type(getattr(env, "unwrapped", env)).__name__, 200))
    with tempfile.TemporaryFile("w+", errors="replace") as printed:
        with stdout_to_stderr(printed):
            try:
                given = CheckOptions(arguments, start_seed, max_states, step_timeout, steps, seed, set_goal)
                brought = model_sources.convert_matrix_argument(env, None, None)
                if isinstance(brought, TabularMDP):
                    _check_model(check, brought, given)
                else:
                    _check_named_env(check, env, given) if isinstance(env, str) else _check_env_object(
                        check, env, env, given
                    )
            except InputError as error:
                check.errors.append(str(error))
        printed.seek(0)
        check.printed = sum(1 for _ in printed)
    if check.printed:
        check.warnings.append(f"it prints ({check.printed} lines); that goes to standard error")
    return check


class CheckOptions(NamedTuple):
    """What was said about the environment and the trial."""

    env_args: Mapping[str, Any]
    start_seed: int | str | None
    max_states: int | None
    step_timeout: float | None
    steps: int
    seed: int
    set_goal: SetGoalFunction | None


def _check_named_env(check: Check, name: str, given: CheckOptions) -> None:
    """A model is simulated, anything else is made and stepped."""
    if is_training_only_env(name):
        _check_training_env(check, name, given)
        return
    model = registry.make_exact_model(name, given.env_args, given.start_seed)
    own = registry.is_model_name(name) or name.endswith(model_sources.MODEL_SUFFIXES)
    made = None if own else registry.make_gym_env(name, given.env_args)
    check.warnings += [] if own else registry.find_gym_spec(name)[1]
    if model is None:
        assert made is not None
        _check_env_object(check, name, made, given)
        with contextlib.suppress(Exception, SystemExit):  # what it raises then is of no interest to anybody
            made.close()
        return
    fixed_start = made is None or bool(model.n_states == getattr(made.observation_space, "n", None))
    check.time_limit = None if made is None else env_checker.find_time_limit(made)
    _record_model_facts(check, ModelSimulator(model), fixed_start)


def _check_model(check: Check, model: TabularMDP, given: CheckOptions) -> None:
    """A model that the user brings, with what was said about it."""
    check.env = to_single_line(model.name, 200)
    if given.set_goal is not None:
        raise InputError("is for goal-conditioned environments with real actions", "set_goal")
    world, _ = registry.make_single_env(model, *given[:4])
    assert isinstance(world, ModelSimulator)
    _record_model_facts(check, world, fixed_start=True)


def _record_model_facts(check: Check, world: ModelSimulator, fixed_start: bool) -> None:
    """What a known model says by itself."""
    model = world.mdp
    check.known_model, check.n_actions, check.n_states = True, model.n_actions, model.n_states
    check.fixed_start, check.action_masks = fixed_start, bool(model.absent.any())
    check.plan += _describe_exploration(check, world)


def _check_env_object(check: Check, named: Any, env: Any, given: CheckOptions) -> None:
    """Step an environment as it is; ``named`` is how the user gave it."""
    if is_goal_conditioned(env):
        _check_training_env(check, named, given)
        return
    if given.set_goal is not None:
        raise InputError("is for goal-conditioned environments with real actions", "set_goal")
    if not isinstance(env, gymnasium.Env):
        raise InputError(
            f"must be a name, a file, a matrix, a Model or a Gymnasium environment, not {type(env).__name__}", "env"
        )
    check.known_model = registry.make_exact_model(env, {}, given.start_seed) is not None
    check.time_limit, check.observations = env_checker.find_time_limit(env), to_single_line(env.observation_space, 100)
    watched = env_checker.InspectionWrapper(env)
    body: EnvBackend = InProcessEnv(watched, check.env, given.max_states)
    if given.step_timeout is None:
        world = GymAdapter(env, check.env, given.start_seed, given.max_states)  # not watched, as that takes time
    else:
        made, _ = registry.make_single_env(named, *given[:4])
        assert isinstance(made, GymAdapter)
        world, body = made, made.backend
    check.n_actions, check.fixed_start = world.n_actions, not world.start_is_certain
    check.n_states = None if body.spaces.declared_states is None else world.state_bound
    _step_and_record(check, world, body, given)
    if given.step_timeout is None and check.one_generator is not None:
        _record_space_and_masks(check, watched.findings)
    check.warnings += world.warnings
    check.void += world.void_reasons
    check.plan += _describe_exploration(check, world)


def _check_training_env(check: Check, named: Any, given: CheckOptions) -> None:
    """A goal-conditioned environment; ``named`` is how the user gave it."""
    for name in ("env_args", "start_seed", "max_states", "step_timeout"):
        if getattr(given, name) not in ({}, None):
            raise InputError("is for explorations; this environment is for trainings", name)
    check_goal_env(check, EnvSource.from_argument(named, given.set_goal), given.steps, given.seed)


def _step_and_record(check: Check, world: GymAdapter, body: EnvBackend, given: CheckOptions) -> None:
    """Everything that an environment does when it is stepped."""
    found = env_checker.run_random_walk(world, given.steps, given.seed)
    check.steps, check.states_met, check.ends_met = found.steps, found.n_states, found.n_terminal_states
    check.steps_per_second = found.steps / max(found.seconds, 1e-9)
    if found.failure is not None:
        (check.void if found.steps else check.errors).append(str(found.failure))
        return
    try:
        check.seed_decides, check.one_generator = (
            env_checker.is_seed_reproducible(body),
            env_checker.uses_only_np_random(body),
        )
    except InputError as error:
        check.void.append(str(error))
        return
    if not check.seed_decides:
        check.warnings.append("the same seed does not give the same steps, so a run cannot be repeated")
    if not check.one_generator:
        check.warnings.append(
            "not all randomness comes from np_random, so a resumed run is valid but not the same bit for bit"
        )
        if isinstance(given.start_seed, int):
            check.void.append(
                "start_seed seeds a generator of its own at every reset: all episodes draw the same numbers"
            )


def _record_space_and_masks(check: Check, seen: env_checker.EnvFindings) -> None:
    """What it showed beside its states."""
    check.in_space, check.action_masks = seen.invalid_observation is None, seen.has_action_mask
    if seen.invalid_observation is not None:
        check.warnings.append(f"the observation {seen.invalid_observation} does not lie in its space")


def _describe_exploration(check: Check, world: TabularEnv) -> list[str]:
    """What a run will do."""
    if isinstance(world, ModelSimulator):
        plan = ["simulates the known model, compiled"]
    elif check.n_states is not None:
        plan = ["steps the environment and numbers states as it does"]
    else:
        plan = [f"steps the environment and numbers states as they are met, at most {world.state_bound:,} (max_states)"]
    if check.fixed_start:
        plan.append(f"begins at state {world.start}, to which every reset leads")
    else:
        plan.append(f"begins at a virtual start, state {world.start}, where every action draws a start of its own")
    if not world.start_is_certain:
        plan.append("keeps a share of delta for resets that might lead elsewhere")
    if check.action_masks:
        plan.append("leaves out the actions that masks (action_mask in info) rule out")
    if check.time_limit is not None:
        plan.append(f"ignores the time limit of {check.time_limit} steps")
    plan.append("can be audited" if check.known_model else "cannot be audited, as no exact model is known, but played")
    return plan


# Try a goal-conditioned environment before a training: spaces, resets, reward, goals, seeds, speed. Needs no JAX.
#
# What :mod:`adagoal.deep.env_inspection` refuses, a training refuses in the same words.


TRAINING_PROCESS_BYTES = 800_000_000
"""Bytes of a training process without its replay buffer, as measured with JAX on a CPU."""
REPLAY_BUFFER_COPIES = 2
"""Copies of the replay buffer: a checkpoint holds the second."""
REPEATED_WALK_STEPS = 100
"""Steps of a walk that is repeated."""


def is_training_only_env(name: str) -> bool:
    """Whether a name means something to trainings alone: ``point-mass``, and what gymnasium-robotics registers."""
    if name == POINT_MASS_NAME:
        return True
    unknown = not registry.is_model_name(name) and name not in gymnasium.registry and not set(":./") & set(name)
    if unknown and importlib.util.find_spec("gymnasium_robotics") is not None:
        register_robotics_envs()
    return unknown and name in gymnasium.registry


def is_goal_conditioned(env: Any) -> bool:
    """Whether an environment is for trainings: goals to choose, and real actions."""
    space = getattr(env, "observation_space", None)
    keys = isinstance(space, spaces.Dict) and all(key in space.spaces for key in env_inspection.GOAL_OBSERVATION_KEYS)
    return keys and isinstance(env.action_space, spaces.Box)


def check_goal_env(check: Check, source: EnvSource, steps: int, seed: int) -> None:
    """Measure the environment as a training does, step it, and say what a training will do with it."""
    env = source.make_env()
    check.observations = to_single_line(env.observation_space, 100)
    check.time_limit = env_inspection.declared_time_limit(env) or None
    if check.time_limit is None:
        check.warnings.append(
            f"it has no time limit of its own: a training needs a horizon, here {REPEATED_WALK_STEPS} steps"
        )
    sizes = env_inspection.measure_dimensions(env, source, 0 if check.time_limit else REPEATED_WALK_STEPS)
    check.goal_size, check.reached_within, check.takes_goals = sizes.goal, sizes.success, sizes.accepts_goals
    world = GoalEnv(source, sizes)
    try:
        _step_goal_env(check, world, steps, seed)
    except EnvironmentFailure as error:
        check.errors.append(str(error))
    config = Config(source.name).resolve_for_horizon(sizes.horizon, sizes.is_fetch)
    check.memory = TRAINING_PROCESS_BYTES + REPLAY_BUFFER_COPIES * config.replay_capacity * sizes.episode_bytes
    if check.memory > file_formats.total_memory_bytes():
        check.warnings.append(
            "a training takes more memory than this machine has: give fewer steps or a smaller buffer"
        )
    check.plan += _describe_training(check, config, sizes)


def _step_goal_env(check: Check, world: GoalEnv, steps: int, seed: int) -> None:
    """Speed, and whether a seed decides what happens."""
    walks = [_random_walk_observations(world, seed) for _ in range(2)]
    check.seed_decides = np.array_equal(walks[0], walks[1])
    if not check.seed_decides:
        check.warnings.append(
            "the same seed does not give the same steps, so a training cannot be repeated or resumed bit for bit"
        )
    rng, began = np.random.default_rng(seed), time.perf_counter()
    while check.steps < steps:
        world.reset(int(rng.integers(2**31)))
        for _ in range(min(world.sizes.horizon, steps - check.steps)):
            check.steps += 1
            if world.step(rng.uniform(-1.0, 1.0, world.sizes.action))[2] is not EpisodeEnd.CONTINUES:
                break
    check.steps_per_second = check.steps / max(time.perf_counter() - began, 1e-9)


def _random_walk_observations(world: GoalEnv, seed: int) -> Floats:
    """What is seen ``[n, observation]`` with random actions."""
    rng = np.random.default_rng(seed)
    seen = [world.reset(seed)[0]]
    for _ in range(min(world.sizes.horizon, REPEATED_WALK_STEPS)):
        observation, _, end = world.step(rng.uniform(-1.0, 1.0, world.sizes.action))
        seen.append(observation)
        if end is not EpisodeEnd.CONTINUES:
            break
    return np.stack(seen)


def _describe_training(check: Check, config: Config, sizes: EnvDimensions) -> list[str]:
    """What a training with the settings that are not given will do."""
    seen = f"{sizes.observation} numbers" + (", the achieved goal among them," if sizes.with_achieved else "")
    return [
        f"sees {seen} and a goal of {sizes.goal}, and answers with {sizes.action}",
        f"plays episodes of {sizes.horizon} steps, {config.episodes} in a cycle",
        f"asks for goals within L = {config.radius:g} steps, and discounts with {config.gamma:g}",
        f"counts a goal as reached within {sizes.success:g} of it, as compute_reward does",
        f"takes up to {(check.memory or 0) / 1e9:.1f} GB of memory for {config.steps:,} steps, beside its workers",
        "tells the environment its goal"
        if check.takes_goals
        else "cannot tell the environment its goal, and goes on where that ends an episode at its own (see set_goal)",
    ]
