"""``adagoal check``: step an environment before a run, and report its properties, errors and warnings.

The check says whether a run can use the environment, what would void its certificates, and what the run will do. An
environment with goals and continuous actions is checked for training, by the same rules as training itself
(:mod:`adagoal.deep.env_inspection`). That needs no JAX.
"""

from __future__ import annotations

import contextlib
import importlib.util
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike

from adagoal.core import file_formats
from adagoal.core.array_types import Floats
from adagoal.core.environment import TabularEnv
from adagoal.core.errors import EnvironmentFailure, ExitCode, InputError, to_single_line
from adagoal.core.user_code import stdout_to_stderr
from adagoal.core.validation import check_integer
from adagoal.deep import env_inspection, require_deep_extra
from adagoal.deep.config import Config
from adagoal.deep.goal_envs import (
    EnvDimensions,
    EnvSource,
    EpisodeEnd,
    GoalEnv,
    SetGoalFunction,
    register_robotics_envs,
)
from adagoal.envs import env_checker, model_sources, registry
from adagoal.envs.env_backends import EnvBackend
from adagoal.envs.gym_adapter import GymAdapter
from adagoal.envs.model import TabularMDP
from adagoal.envs.simulator import ModelSimulator

DEFAULT_CHECK_STEPS = 2000
TRAINING_PROCESS_BYTES = 800_000_000  # without the replay buffer, measured with JAX on a CPU
MAX_NEW_STATE_SHARE = 0.5  # new states per step of a random walk, above which the check warns
DEFAULT_HORIZON = 100  # steps of an episode without a time limit; also the length of a repeated walk


def _shown(label: str, default: Any = None, format: str = "") -> Any:
    """Declare a property that the text of a check shows under this label, unless it has its default."""
    return field(default=default, metadata={"label": label, "format": format})


@dataclass
class Check:
    """Properties of an environment. None: not tried, or not applicable."""

    env: str
    errors: list[str] = field(default_factory=list)  # why the environment cannot be used
    void: list[str] = field(default_factory=list)  # what would void the certificates of a run
    warnings: list[str] = field(default_factory=list)
    plan: list[str] = field(default_factory=list)  # what a run will do with the environment
    n_actions: int | None = _shown("actions")
    observations: str | None = _shown("observations")
    n_states: int | None = _shown("states declared")  # with a virtual start
    known_model: bool | None = _shown("exact model known")  # so a result can be audited
    fixed_start: bool | None = _shown("fixed start")  # all resets led to one state
    seed_decides: bool | None = _shown("same seed, same steps")  # tried twice
    one_generator: bool | None = _shown("randomness is np_random")  # so a run can be resumed bit for bit
    in_space: bool | None = _shown("observations in space")
    goal_size: int | None = _shown("numbers in a goal")  # if it is goal-conditioned: then it is for training
    reached_within: float | None = _shown("reached within", format="g")  # distance
    takes_goals: bool | None = _shown("accepts goals")
    memory: int | None = None  # bytes that training of the default length needs at most, without rollout workers
    time_limit: int | None = _shown("time limit")
    action_masks: bool | None = _shown("action masks")
    steps: int = _shown("steps tried", 0, ",")
    steps_per_second: float | None = _shown("steps a second", format=",.0f")
    states_met: int | None = _shown("states met")
    ends_met: int | None = _shown("terminal states")  # among the states met
    printed: int = _shown("lines printed", 0)  # by the environment

    @property
    def ok(self) -> bool:
        """Whether a run can use the environment and certify its results."""
        return not (self.errors or self.void)

    @property
    def exit_code(self) -> int:
        """0: fine, 1: certificates would be void, 2: the environment cannot be used."""
        return ExitCode.BAD_INPUT if self.errors else ExitCode.CONTRADICTED if self.void else 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain types for JSON."""
        return {**asdict(self), "ok": self.ok}

    def __str__(self) -> str:
        use = "can explore it" if self.goal_size is None else "can train a policy on it"
        verdict = "cannot use it" if self.errors else f"{use}, but its certificates would be void" if self.void else use
        lines = [f"{self.env}: adagoal {verdict}"]
        for declared in fields(self):
            value = getattr(self, declared.name)
            if declared.metadata and value != declared.default:
                text = ("no", "yes")[value] if isinstance(value, bool) else format(value, declared.metadata["format"])
                lines.append(f"  {declared.metadata['label']:<25}{text}")
        kind = "A run" if self.goal_size is None else "Training"
        parts = ((kind, self.plan), ("warning:", self.warnings), ("void:", self.void), ("error:", self.errors))
        return "\n".join([*lines, *(f"{word} {line}" for word, texts in parts for line in texts)])


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
    """Try an environment as :func:`adagoal.explore` would use it, with random actions.

    A model, or a matrix that defines one, is inspected and not stepped. An environment with goals and continuous
    actions is tried as :func:`adagoal.train` would use it.

    Parameters
    ----------
    env: a name, a model, a matrix or an environment. An environment is reset and stepped: pass one that is not in use.
    env_args, start, start_seed, max_states: as for :func:`adagoal.explore`.
    step_timeout: likewise; with it the check neither compares observations with their space nor looks for action masks.
    set_goal: as for :func:`adagoal.train`.
    steps: number of steps to try.
    seed: of the actions and the environment.

    Examples
    --------
    >>> check = adagoal.check_env("grid")
    >>> check.ok, check.n_states, check.n_actions
    (True, 20, 4)
    """
    check_integer("steps", steps, 1, 10**9)
    check_integer("seed", seed, 0, 2**31 - 1)
    arguments, start_seed = env_args or {}, registry.parse_start_option(start, start_seed)
    registry.check_env_arguments(arguments, start_seed, max_states)
    # A class has ``unwrapped`` too, as a property.
    named = env if isinstance(env, type) else type(getattr(env, "unwrapped", env))
    check = Check(to_single_line(env if isinstance(env, str) else named.__name__, 200))
    # A file, because environments also print from C, past sys.stdout.
    with tempfile.TemporaryFile("w+", errors="replace") as printed:
        with stdout_to_stderr(printed):
            try:
                options = CheckOptions(arguments, start_seed, max_states, step_timeout, steps, seed, set_goal)
                model = model_sources.convert_matrix_argument(env, None, None)
                if isinstance(model, TabularMDP):
                    _check_model(check, model, options)
                elif isinstance(env, str):
                    _check_named_env(check, env, options)
                else:
                    _check_env_object(check, env, env, options)
            # What is wrong with the environment is part of the answer. Other exceptions are bugs and stay visible.
            except InputError as error:
                check.errors.append(str(error))
        printed.seek(0)
        check.printed = sum(1 for _ in printed)
    if check.printed:
        check.warnings.append(f"the environment prints ({check.printed} lines); they go to standard error")
    return check


class CheckOptions(NamedTuple):
    """Arguments of :func:`check_env`."""

    env_args: Mapping[str, Any]
    start_seed: int | str | None
    max_states: int | None
    step_timeout: float | None
    steps: int
    seed: int
    set_goal: SetGoalFunction | None


def _check_named_env(check: Check, name: str, options: CheckOptions) -> None:
    if _is_training_only(name):
        _check_training_env(check, name, options)
        return
    model = registry.make_exact_model(name, options.env_args, options.start_seed)
    is_model = registry.is_model_name(name) or name.endswith(model_sources.MODEL_SUFFIXES)
    made = None if is_model else registry.make_gym_env(name, options.env_args)
    check.warnings += [] if is_model else registry.find_gym_spec(name)[1]
    if model is None:
        assert made is not None
        _check_env_object(check, name, made, options)
        # The check is finished, so errors of close do not matter.
        with contextlib.suppress(Exception, SystemExit):
            made.close()
        return
    # A model with one state more than the environment has a virtual start, because resets draw the start.
    fixed_start = made is None or bool(model.n_states == getattr(made.observation_space, "n", None))
    check.time_limit = None if made is None else env_checker.find_time_limit(made)
    _record_model_properties(check, ModelSimulator(model), fixed_start)


def _check_model(check: Check, model: TabularMDP, options: CheckOptions) -> None:
    check.env = to_single_line(model.name, 200)
    if options.set_goal is not None:
        raise InputError("works for goal-conditioned environments with continuous actions only", "set_goal")
    env, _ = registry.make_single_env(model, *options[:4])
    assert isinstance(env, ModelSimulator)
    _record_model_properties(check, env, fixed_start=True)


def _record_model_properties(check: Check, env: ModelSimulator, fixed_start: bool) -> None:
    model = env.mdp
    check.known_model, check.n_actions, check.n_states = True, model.n_actions, model.n_states
    check.fixed_start, check.action_masks = fixed_start, bool(model.absent.any())
    check.plan += _describe_exploration(check, env)


def _check_env_object(check: Check, named: Any, env: Any, options: CheckOptions) -> None:
    """Step an environment; ``named`` is the name or object that the user gave."""
    space, goal_keys = getattr(env, "observation_space", None), env_inspection.GOAL_OBSERVATION_KEYS
    has_goals = isinstance(space, spaces.Dict) and all(key in space.spaces for key in goal_keys)
    # Goals alone do not decide: an environment with goals and discrete actions can be explored.
    if has_goals and isinstance(env.action_space, spaces.Box):
        _check_training_env(check, named, options)
        return
    if options.set_goal is not None:
        raise InputError("works for goal-conditioned environments with continuous actions only", "set_goal")
    if not isinstance(env, gymnasium.Env):
        raise registry.env_type_error(env)
    check.known_model = registry.make_exact_model(env, {}, options.start_seed) is not None
    check.time_limit, check.observations = env_checker.find_time_limit(env), to_single_line(space, 100)
    inspected = env_checker.InspectedEnv(env, check.env, options.max_states)
    backend: EnvBackend = inspected
    if options.step_timeout is None:
        # Without the wrapper, which is slow and would spoil the measured speed.
        adapter = GymAdapter(env, check.env, options.start_seed, options.max_states)
    else:
        # With a timeout the environment lives in a process of its own, where the wrapper cannot look.
        made, _ = registry.make_single_env(named, *options[:4])
        assert isinstance(made, GymAdapter)
        adapter, backend = made, made.backend
    # A start is certain if it is virtual: every reset leads there by definition. A fixed start is only inferred.
    check.n_actions, check.fixed_start = adapter.n_actions, not adapter.start_is_certain
    check.n_states = None if backend.spaces.declared_states is None else adapter.state_bound
    _step_and_record(check, adapter, backend, options)
    # None: a step failed, so the wrapped environment was not tried to the end.
    if options.step_timeout is None and check.one_generator is not None:
        invalid = inspected.invalid_observation
        check.in_space, check.action_masks = invalid is None, inspected.has_action_mask
        if invalid is not None:
            check.warnings.append(f"the observation {invalid} is not in the observation space")
    check.warnings += adapter.warnings
    check.void += adapter.void_reasons
    check.plan += _describe_exploration(check, adapter)


def _check_training_env(check: Check, named: Any, options: CheckOptions) -> None:
    for name in ("env_args", "start_seed", "max_states", "step_timeout"):
        if getattr(options, name) not in ({}, None):
            raise InputError("is for explorations; this environment is for adagoal train", name)
    _check_goal_env(check, EnvSource.from_argument(named, options.set_goal), options.steps, options.seed)


def _step_and_record(check: Check, adapter: GymAdapter, backend: EnvBackend, options: CheckOptions) -> None:
    """Take random steps and record how the environment behaves."""
    walk = env_checker.run_random_walk(adapter, options.steps, options.seed)
    check.steps, check.states_met, check.ends_met = walk.steps, walk.n_states, walk.n_terminal_states
    check.steps_per_second = walk.steps / max(walk.seconds, 1e-9)
    if walk.failure is not None:
        # A failure in the first step is an error. Later, a transition is missing from the data of a run.
        (check.void if walk.steps else check.errors).append(str(walk.failure))
        return
    try:
        # Both together: None must mean that neither was tried to the end.
        tried = env_checker.is_seed_reproducible(backend), env_checker.uses_only_np_random(backend)
        check.seed_decides, check.one_generator = tried
    except InputError as error:
        check.void.append(str(error))
        return
    if check.n_states is None and walk.n_states > MAX_NEW_STATE_SHARE * walk.steps:
        check.warnings.append(
            f"{walk.n_states:,} states in {walk.steps:,} steps: nearly every observation is new, so a run would "
            "certify little; leave out with a wrapper what does not matter, for instance a clock or a score"
        )
    if not check.seed_decides:
        check.warnings.append("the same seed does not give the same steps, so a run cannot be repeated")
    if not check.one_generator:
        text = "not all randomness comes from np_random, so a resumed run is valid but not the same bit for bit"
        check.warnings.append(text)
        # A void reason, not a warning: repeated draws make the samples of different episodes dependent.
        if isinstance(options.start_seed, int):
            text = "start_seed reseeds another generator at every reset, so all episodes draw the same numbers"
            check.void.append(text)


def _describe_exploration(check: Check, env: TabularEnv) -> list[str]:
    if isinstance(env, ModelSimulator):
        plan = ["simulates the known model, compiled"]
    elif check.n_states is not None:
        plan = ["steps the environment and uses its state numbers"]
    else:
        plan = [f"steps the environment and numbers new states in order, at most {env.state_bound - 1:,} (max_states)"]
    if check.fixed_start:
        plan.append(f"begins at state {env.start}, to which every reset leads")
    else:
        plan.append(f"begins at a virtual start, state {env.start}, from which every action leads to a random start")
    if not env.start_is_certain:
        plan.append("reserves a share of delta for resets that might lead elsewhere")
    if check.action_masks:
        plan.append("leaves out the actions that masks (action_mask in info) rule out")
    if check.time_limit is not None:
        plan.append(f"ignores the time limit of {check.time_limit} steps")
    without_model = "cannot be audited, because no exact model is known; adagoal play works"
    return [*plan, "can be audited" if check.known_model else without_model]


def _is_training_only(name: str) -> bool:
    """Return True for ``point-mass`` and for names of gymnasium-robotics, which only training knows."""
    if name == "point-mass":
        return True
    # A colon names a module, a dot or a slash a file; only plain names can be those of gymnasium-robotics.
    is_unknown = not registry.is_model_name(name) and name not in gymnasium.registry and not set(":./") & set(name)
    if is_unknown and name.startswith(registry.TRAINING_FAMILIES):
        require_deep_extra(name)
    if is_unknown and importlib.util.find_spec("gymnasium_robotics") is not None:
        register_robotics_envs()
    return is_unknown and name in gymnasium.registry


def _check_goal_env(check: Check, source: EnvSource, steps: int, seed: int) -> None:
    """Measure the environment as training does, step it, and describe what training will do with it."""
    env = source.make_env()
    check.observations = to_single_line(env.observation_space, 100)
    check.time_limit = env_inspection.declared_time_limit(env) or None
    if check.time_limit is None:
        text = f"the environment has no time limit: training needs a horizon, here {DEFAULT_HORIZON} steps"
        check.warnings.append(text)
    # A horizon of 0 stands for the time limit of the environment.
    sizes = env_inspection.measure_dimensions(env, source, None if check.time_limit else DEFAULT_HORIZON)
    check.goal_size, check.reached_within, check.takes_goals = sizes.goal, sizes.success, sizes.accepts_goals
    goal_env = GoalEnv(source, sizes)
    try:
        _step_goal_env(check, goal_env, steps, seed)
    except EnvironmentFailure as error:
        check.errors.append(str(error))
    config = Config(source.name).resolve_for_horizon(sizes.horizon, sizes.is_fetch)
    # The replay buffer counts twice: while a checkpoint is written, memory holds a copy.
    check.memory = TRAINING_PROCESS_BYTES + 2 * config.replay_capacity * sizes.episode_bytes
    if check.memory > file_formats.total_memory_bytes():
        check.warnings.append("training needs more memory than this machine has: use fewer steps or a smaller buffer")
    check.plan += _describe_training(check, config, sizes)


def _step_goal_env(check: Check, goal_env: GoalEnv, steps: int, seed: int) -> None:
    """Record the speed, and whether equal seeds give equal steps."""
    # The same actions from the same seed: two walks differ only if the environment has other randomness.
    walks = [_random_walk_observations(goal_env, seed) for _ in range(2)]
    check.seed_decides = np.array_equal(walks[0], walks[1])
    if not check.seed_decides:
        text = "the same seed does not give the same steps, so training cannot be repeated or resumed bit for bit"
        check.warnings.append(text)
    rng, began = np.random.default_rng(seed), time.perf_counter()
    while check.steps < steps:
        goal_env.reset(int(rng.integers(2**31)))
        for _ in range(min(goal_env.sizes.horizon, steps - check.steps)):
            check.steps += 1
            if goal_env.step(rng.uniform(-1.0, 1.0, goal_env.sizes.action))[2] is not EpisodeEnd.CONTINUES:
                break
    check.steps_per_second = check.steps / max(time.perf_counter() - began, 1e-9)


def _random_walk_observations(goal_env: GoalEnv, seed: int) -> Floats:
    """Return the observations ``[n, observation]`` of an episode with random actions."""
    rng = np.random.default_rng(seed)
    observations = [goal_env.reset(seed)[0]]
    for _ in range(min(goal_env.sizes.horizon, DEFAULT_HORIZON)):
        observation, _, end = goal_env.step(rng.uniform(-1.0, 1.0, goal_env.sizes.action))
        observations.append(observation)
        if end is not EpisodeEnd.CONTINUES:
            break
    return np.stack(observations)


def _describe_training(check: Check, config: Config, sizes: EnvDimensions) -> list[str]:
    inputs = f"{sizes.observation} numbers" + (" (with the achieved goal)" if sizes.with_achieved else "")
    return [
        f"uses observations of {inputs}, goals of {sizes.goal} and actions of {sizes.action}",
        f"plays episodes of {sizes.horizon} steps, {config.episodes} in a cycle",
        f"chooses goals within L = {config.radius:g} steps, with the discount {config.gamma:g}",
        f"counts a goal as reached within {sizes.success:g} of it, as compute_reward does",
        f"needs up to {(check.memory or 0) / 1e9:.1f} GB of memory for {config.steps:,} steps, without its workers",
        "sets the goal of the environment"
        if check.takes_goals
        else "cannot set the goal of the environment, and continues if an episode ends at its own goal (see set_goal)",
    ]
