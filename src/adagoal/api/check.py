"""Try an environment before a run: can it be used, would something void a certificate, and what will the run do?"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
from numpy.typing import ArrayLike

from adagoal.api import check_goals
from adagoal.api.checked import Check
from adagoal.core.checks import check_integer
from adagoal.core.errors import InputError
from adagoal.core.streams import stdout_to_stderr
from adagoal.core.text import to_single_line
from adagoal.core.world import TabularEnv
from adagoal.deep.aiming import SetGoalFunction
from adagoal.deep.envs import EnvSource
from adagoal.worlds import matrices, probe, registry
from adagoal.worlds.body import EnvBackend, InProcessEnv
from adagoal.worlds.gym import GymAdapter
from adagoal.worlds.model import TabularMDP
from adagoal.worlds.simulator import ModelSimulator

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
                brought = matrices.convert_matrix_argument(env, None, None)
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
    if check_goals.is_training_only_env(name):
        _check_training_env(check, name, given)
        return
    model = registry.make_exact_model(name, given.env_args, given.start_seed)
    own = registry.is_model_name(name) or name.endswith(matrices.MODEL_SUFFIXES)
    made = None if own else registry.make_gym_env(name, given.env_args)
    check.warnings += [] if own else registry.find_gym_spec(name)[1]
    if model is None:
        assert made is not None
        _check_env_object(check, name, made, given)
        with contextlib.suppress(Exception, SystemExit):  # what it raises then is of no interest to anybody
            made.close()
        return
    fixed_start = made is None or bool(model.n_states == getattr(made.observation_space, "n", None))
    check.time_limit = None if made is None else probe.find_time_limit(made)
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
    if check_goals.is_goal_conditioned(env):
        _check_training_env(check, named, given)
        return
    if given.set_goal is not None:
        raise InputError("is for goal-conditioned environments with real actions", "set_goal")
    if not isinstance(env, gymnasium.Env):
        raise InputError(
            f"must be a name, a file, a matrix, a Model or a Gymnasium environment, not {type(env).__name__}", "env"
        )
    check.known_model = registry.make_exact_model(env, {}, given.start_seed) is not None
    check.time_limit, check.observations = probe.find_time_limit(env), to_single_line(env.observation_space, 100)
    watched = probe.InspectionWrapper(env)
    body: EnvBackend = InProcessEnv(watched, check.env, given.max_states)
    if given.step_timeout is None:
        world = GymAdapter(env, check.env, given.start_seed, given.max_states)  # not watched, as that takes time
    else:
        made, _ = registry.make_single_env(named, *given[:4])
        assert isinstance(made, GymAdapter)
        world, body = made, made.backend
    check.n_actions, check.fixed_start = world.n_actions, not world.start_is_certain
    check.n_states = None if body.facts.declared_states is None else world.state_bound
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
    check_goals.check_goal_env(check, EnvSource.from_argument(named, given.set_goal), given.steps, given.seed)


def _step_and_record(check: Check, world: GymAdapter, body: EnvBackend, given: CheckOptions) -> None:
    """Everything that an environment does when it is stepped."""
    found = probe.run_random_walk(world, given.steps, given.seed)
    check.steps, check.states_met, check.ends_met = found.steps, found.n_states, found.n_terminal_states
    check.steps_per_second = found.steps / max(found.seconds, 1e-9)
    if found.failure is not None:
        (check.void if found.steps else check.errors).append(str(found.failure))
        return
    try:
        check.seed_decides, check.one_generator = probe.is_seed_reproducible(body), probe.uses_only_np_random(body)
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


def _record_space_and_masks(check: Check, seen: probe.EnvFindings) -> None:
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
