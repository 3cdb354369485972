"""Explore an environment, resume a run, audit a result."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from numpy.typing import ArrayLike, NDArray

from adagoal import goal_rules, parallel
from adagoal.core import processes, transition_data
from adagoal.core.argument_checks import check_folder_path
from adagoal.core.environment import TabularEnv
from adagoal.core.errors import OBJECT_ENV_PREFIX, InputError
from adagoal.core.exploration_run import RunObserver
from adagoal.core.goal_space import StoredLabeler
from adagoal.envs import env_factory, model_sources, registry
from adagoal.envs.gym_adapter import GymAdapter
from adagoal.envs.indexed_env import StartSeed
from adagoal.envs.model import TabularMDP
from adagoal.envs.parallel_env import ParallelEnv
from adagoal.envs.simulator import ModelSimulator
from adagoal.exact.audit import Audit, audit_policies
from adagoal.runs.exploration_schemas import EXPLORATION_KIND, RUN_CHECKPOINT_SCHEMA
from adagoal.runs.exploration_session import CHECKPOINT_FILE, STAGE_RESULT_FILES, TRANSITIONS_FILE, ExplorationSession
from adagoal.runs.folder_reader import SavedRun, no_run, read_saved_run, warn_about_damage
from adagoal.runs.progress_display import ExplorationProgress, observe_with_display
from adagoal.runs.result import (
    Result,
    load_result,
    read_result_files,
    read_stored_model,
    refuse_different_run,
    require_exploration,
)
from adagoal.runs.run_folder import RunFolder, open_locked_folder
from adagoal.settings.exploration import ExecutionOptions, ExplorationSettings
from adagoal.settings.fields import check_arguments, document_settings
from adagoal.settings.goal_spec import GoalsArgument as Goals
from adagoal.settings.goal_spec import parse_goals, resolve_goals_on_resume

EnvArgument = env_factory.EnvLike | env_factory.GymVectorEnv
"""What there is to explore."""
EnvOverride = EnvArgument | None
"""The environment of a run, given again; None where the run knows it."""


@document_settings(ExplorationSettings, ExecutionOptions)
def explore(
    env: EnvArgument | ArrayLike | Sequence[Any],
    radius: float | str,
    epsilon: float = 1.0,
    delta: float = 0.1,
    *,
    method: str = "certified",
    goal_rule: str | goal_rules.GoalRule = "adagoal",
    budget: int | None = None,
    seed: int = 0,
    goals: Goals | None = None,
    start: int | str | None = None,
    terminal: ArrayLike | None = None,
    env_args: dict[str, Any] | None = None,
    method_args: dict[str, Any] | None = None,
    start_seed: int | str | None = None,
    max_states: int | None = None,
    workers: int = 1,
    engine: str = "local",
    address: str | None = None,
    device: str = "cpu",
    step_timeout: float | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    record: bool = False,
    progress: bool = False,
    observe: RunObserver | None = None,
) -> Result:
    """Find the goals that can be reached within ``radius`` steps, a policy for each, and certificates.

    Ctrl-C and SIGTERM end the run, not the program: the result so far is returned, with the status "interrupted".

    Parameters
    ----------
    goals: what counts as a goal (docs/goals.md); every state by default. A list of states or labels; a function of the
        observation, whose equal values are one goal and None is no goal; {"name": predicate, ...}; "keys:0,1" for
        entries of the observation; or "FILE.py:NAME". A goal is reached when any of its states is reached.
    start, terminal: for a matrix P[s, a, s'] or a list of sparse matrices as ``env``: the start state (0 by default),
        and the states in which the reset is the only action. For a Gymnasium environment, start="random" declares that
        every reset draws the start state.
    progress: show a progress display on standard error.
    observe: called with the run after every rollout; the run ends if it returns False.
    """
    # absolute now, because the environment may change the current folder
    out_path = None if out is None else check_folder_path("out", out)
    start_seed = registry.parse_start_option(start, start_seed)
    env_argument: EnvArgument = model_sources.convert_matrix_argument(env, start, terminal)
    goal_spec = parse_goals(goals)
    with _open_env(env_argument, env_args or {}, start_seed, max_states, step_timeout, workers, engine, address) as (
        world,
        name,
    ):
        setting = ExplorationSettings(
            env=name,
            env_args=env_args or {},
            method=method,
            method_args=method_args or {},
            goal_rule=goal_rule if isinstance(goal_rule, str) else getattr(goal_rule, "__name__", "custom"),
            radius=radius,
            epsilon=epsilon,
            delta=delta,
            seed=seed,
            budget=budget,
            goal_space=goal_spec.states,
            goal_sets=goal_spec.description,
            start_seed=start_seed,
            max_states=max_states,
            workers=world.n_workers if isinstance(world, ParallelEnv) else 1,
            device=device,
        )
        session = ExplorationSession.from_settings(setting, world, goal_rules.resolve_rule(goal_rule), goal_spec.code)
        if record:
            if out_path is None:
                raise InputError("needs a folder for the steps; give out as well", "record")
            if not isinstance(world, ModelSimulator | GymAdapter | ParallelEnv):
                raise InputError(f"{name} is an environment of your own class, which does not record steps", "record")
            session.record_transitions()
        with observe_with_display(ExplorationProgress(setting.budget) if progress else None, observe) as observer:
            if out_path is None:
                return session.run_to_end(None, observer)
            with open_locked_folder(out_path, EXPLORATION_KIND) as folder:
                if not overwrite:
                    _refuse_to_lose_run(folder, session, callable(goal_rule))
                folder.start_new_run()
                return session.run_to_end(folder, observer)


@contextlib.contextmanager
def _open_env(
    env: EnvArgument,
    env_args: dict[str, Any],
    start_seed: StartSeed,
    max_states: int | None,
    step_timeout: float | None,
    workers: int,
    engine: str,
    address: str | None,
) -> Iterator[tuple[TabularEnv, str]]:
    """A world and its name in results; its workers, if there are any, end with the block."""
    check_arguments(ExplorationSettings, workers=workers)
    with parallel.open_worker_factory(engine, address) as hire:
        world, name = env_factory.make_env(env, env_args, start_seed, max_states, step_timeout, workers, hire)
        try:
            yield world, name
        finally:
            if isinstance(world, ParallelEnv):
                world.close()


def _refuse_to_lose_run(folder: RunFolder, session: ExplorationSession, own_rule: bool) -> None:
    """A run may be begun again once it is finished; any other one in the folder is not touched.

    Nor is one that may be another: of an object, or a function, nobody can tell whether it is the one of last time.
    """
    if folder.saved_run is None:
        return
    setting, model = session.setting, model_sources.find_user_model(session.run.env)
    if not refuse_different_run(folder.saved_run, setting, model):
        go_on = f"adagoal resume {quote(str(folder.path))}"
        raise InputError(f"{folder.path} holds this run, unfinished; use {go_on}, or overwrite it", "out")
    own = {
        "an environment object": setting.env.startswith(OBJECT_ENV_PREFIX) and model is None,
        "goals that are functions": not {"function", "predicates"}.isdisjoint(setting.goal_sets or ()),
        "a goal rule that is a function": own_rule,
    }
    if unknown := [name for name, given in own.items() if given]:
        text = f"{folder.path} holds a finished run with {unknown[0]}, perhaps another one; give another folder"
        raise InputError(f"{text}, or overwrite it", "out")


def resume(
    path: str | Path,
    budget: int | None = None,
    *,
    env: EnvOverride = None,
    goal_rule: str | goal_rules.GoalRule | None = None,
    goals: Goals | None = None,
    trust: bool = False,
    step_timeout: float | None = None,
    engine: str = "local",
    address: str | None = None,
    progress: bool = False,
    observe: RunObserver | None = None,
) -> Result:
    """Go on with a run that was killed, interrupted, or ran out of budget; the result is as if it had not stopped.

    (A budget ends a rollout where an unbroken run would have gone on, so that after a budget the plans come at other
    moments: as valid, not the same numbers.)
    A run on an environment object, or with a rule or goals that are functions, needs the same ones again. Code that
    only the folder names (an environment ``module:Id``, a rule ``FILE.py:FUNCTION``, goals ``FILE.py:NAME``) is not run
    unless ``trust`` says so.
    The workers of a run live where ``engine`` and ``address`` say now: that changes no number.
    """
    processes.exit_if_reimported()  # before the folder, which the run that began this process holds
    with open_locked_folder(require_run_folder(path), EXPLORATION_KIND) as folder, contextlib.ExitStack() as stack:
        if folder.saved_run is None:
            raise no_run(folder.path)
        where = step_timeout, engine, address
        session = _restore_session(folder.saved_run, budget, env, goal_rule, goals, trust, where, stack)
        _continue_recording(session, folder.saved_run)
        with observe_with_display(ExplorationProgress(session.setting.budget) if progress else None, observe) as told:
            return session.run_to_end(folder, told)


@contextlib.contextmanager
def open_restored_session(
    folder: Path,
    env: EnvOverride,
    trust: bool,
    step_timeout: float | None = None,
) -> Iterator[ExplorationSession]:
    """The session of a folder, where its checkpoint left it, to look at: no goal rule, and no code of its goals.

    Its workers end with the block.
    """
    rule, none, where = (lambda known: known.E), StoredLabeler(), (step_timeout, "local", None)
    with contextlib.ExitStack() as stack:
        yield read_saved_run(
            require_run_folder(folder),
            lambda saved: _restore_session(saved, None, env, rule, none, trust, where, stack),
        )


def _restore_session(
    saved: SavedRun,
    budget: int | None,
    env: EnvOverride,
    goal_rule: str | goal_rules.GoalRule | None,
    goals: Goals | None,
    trust: bool,
    where: tuple[float | None, str, str | None],
    stack: contextlib.ExitStack,
) -> ExplorationSession:
    require_exploration(saved)
    state = saved.checkpoint_files()
    arrays, facts = state.load_arrays(CHECKPOINT_FILE, fact_rules=RUN_CHECKPOINT_SCHEMA)
    certified = read_result_files(state, *STAGE_RESULT_FILES) if facts["stage"] > 1 else None
    warn_about_damage(saved)
    setting = ExplorationSettings(**{**facts["setting"], "goal_space": _tuple_or_none(facts["setting"]["goal_space"])})
    setting = setting if budget is None else replace(setting, budget=budget)
    again = resolve_env(setting, env, read_stored_model(saved.result_files()), trust)
    goal_rule = goal_rules.require_trusted_rule(setting.goal_rule, trust) if goal_rule is None else goal_rule
    arguments = setting.env_args if isinstance(again, str) else {}
    step_timeout, engine, address = where
    given = again, arguments, setting.start_seed, setting.max_states, step_timeout, setting.workers
    world, name = stack.enter_context(_open_env(*given, engine, address))
    if name != setting.env and env is not None:
        raise InputError(f"the run in {saved.path} is on {setting.env}, not on {name}", "env")
    look = isinstance(goals, StoredLabeler)
    code = StoredLabeler(facts["goal_names"] or ()) if look else resolve_goals_on_resume(setting, goals, trust)
    session = ExplorationSession.from_settings(setting, world, goal_rules.resolve_rule(goal_rule), code)
    try:
        session.restore(arrays, facts, certified)
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{state.candidate_paths[CHECKPOINT_FILE][0]}: damaged, or not of this run ({error})"
        ) from None
    return session


def _continue_recording(session: ExplorationSession, saved: SavedRun) -> None:
    """A run that keeps its steps goes on doing so."""
    if TRANSITIONS_FILE not in saved.result_files():
        return
    try:
        session.record_transitions(_read_transitions(saved, session.run.counts.n_states, session.run.env.n_actions))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{saved.path / TRANSITIONS_FILE}: not of this run ({error})") from None


def _read_transitions(saved: SavedRun, n_states: int, n_actions: int) -> dict[str, NDArray[Any]]:
    return saved.result_files().load_arrays(
        TRANSITIONS_FILE, transition_data.TRANSITION_LOG_SCHEMA, {"S": n_states, "A": n_actions}
    )[0]


def transitions(path: str | Path) -> dict[str, NDArray[Any]]:
    """The steps of a run that was told to ``record`` them: arrays [N] ``state``, ``action`` and ``next_state``.

    The reset is the action ``result.reset_action``. Steps are in the order in which they were taken.
    """

    def stored(saved: SavedRun) -> dict[str, NDArray[Any]]:
        result = load_result(saved.path)
        if TRANSITIONS_FILE not in saved.result_files():
            raise InputError(f"{saved.path}: the run was not told to record its steps", "folder")
        return _read_transitions(saved, len(result.arrays["visits"]), result.reset_action)

    return read_saved_run(require_run_folder(path), stored)


def require_run_folder(path: str | Path) -> Path:
    """The folder of a run."""
    folder = check_folder_path("folder", path)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder", "folder")
    return folder


def resolve_env(setting: ExplorationSettings, env: EnvOverride, own: TabularMDP | None, trust: bool) -> EnvArgument:
    """The environment of a run: what is given again, the model that the run keeps, or else what its setting names."""
    if env is not None:
        return env
    return own if own is not None else registry.require_trusted_env(setting.env, trust)


def audit(result: Result, env: EnvOverride = None, *, trust: bool = False) -> Audit:
    """Check a result exactly against the known model: the conditions C1 and C2, and every certificate.

    ``env`` is a model, an environment whose model is known (built-in or toy-text), or a name; without it the
    environment is built again from the result's setting, if its code is installed or ``trust`` allows to run it.
    """
    setting = result.setting
    again = resolve_env(setting, env, result.model, trust)
    model = registry.make_exact_model(
        env_factory.first_env_of_vector(again), setting.env_args if isinstance(again, str) else {}, setting.start_seed
    )
    if model is None:
        name = setting.env if env is None else env
        raise InputError(f"audit: no exact model is known of {name}; it takes a built-in or a toy-text environment")
    sizes = result.arrays["policy"].shape[2], result.reset_action
    if sizes != (model.n_states, model.n_actions) and result.goals:
        raise InputError(
            f"audit: the result is about {sizes[0]} states and {sizes[1]} actions, "
            f"the model has {model.n_states} and {model.n_actions}"
        )
    proven = result.certificates if result.guarantee else {}  # a method without a guarantee has estimates, not bounds
    lower, upper = ({g: c[i] for g, c in proven.items()} for i in (0, 1))
    return audit_policies(
        *(model, result.goals, {g: result.policy(g) for g in result.goals}, result.radius, setting.epsilon),
        goal_space=setting.goal_space if result.goal_names is None else None,
        lower=lower,
        upper=upper,
        sets=None if result.goal_names is None else {g: result.members(g) for g in range(len(result.goal_names))},
        names=result.goal_names or (),
    )


def _tuple_or_none(values: list[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(values)
