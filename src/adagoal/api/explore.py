"""Explore an environment, resume an exploration, read its steps, and audit its result."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from numpy.typing import ArrayLike, NDArray

from adagoal import goal_rules, parallel
from adagoal.core import transition_data
from adagoal.core.argument_checks import check_folder_path, to_python_scalar
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
from adagoal.parallel import safe_start
from adagoal.runs.exploration_session import CHECKPOINT_FILE, STAGE_RESULT_FILES, TRANSITIONS_FILE, ExplorationSession
from adagoal.runs.exploration_settings import EXPLORATION_KIND, RUN_CHECKPOINT_SCHEMA, ExplorationSettings
from adagoal.runs.folder_reader import SavedRun, no_run, read_saved_run, require_run_folder
from adagoal.runs.goal_spec import GoalsArgument as Goals
from adagoal.runs.goal_spec import parse_goals, resolve_goals_on_resume
from adagoal.runs.progress_display import ExplorationProgress, observe_with_display
from adagoal.runs.result import (
    Result,
    load_result,
    read_result_files,
    read_stored_model,
    refuse_different_run,
    require_exploration,
    settings_from_json,
)
from adagoal.runs.run_folder import RunFolder, open_locked_folder

EnvArgument = env_factory.EnvLike | env_factory.GymVectorEnv
EnvOverride = EnvArgument | None  # the environment of a run, given again; None if the folder names it


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
    goal_space: Sequence[int] | None = None,
    start: int | str | None = None,
    terminal: ArrayLike | None = None,
    env_args: dict[str, Any] | None = None,
    method_args: dict[str, Any] | None = None,
    start_seed: int | str | None = None,
    max_states: int | None = None,
    workers: int = 1,
    engine: str = "local",
    address: str | None = None,
    step_timeout: float | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    record: bool = False,
    progress: bool = False,
    observe: RunObserver | None = None,
) -> Result:
    """Find the goals that can be reached within ``radius`` steps, a policy for each, and certificates.

    Parameters
    ----------
    env: a built-in name, a Gymnasium id, a Gymnasium environment with discrete actions, or a World; or a model
        (docs/models.md): a matrix P[s, a, s'], a list of sparse matrices (one per action), a Model, or a file of one.
    start, terminal: of a matrix, the start state (0 by default) and the states in which the reset is the only action.
        Of a Gymnasium environment, start="random" declares that every reset draws the first state anew; otherwise a few
        resets decide whether the start counts as fixed.
    radius: L >= 1, in expected steps from the start; "auto" doubles it until the budget is spent, "all" until every
        goal is certified.
    epsilon, delta: accuracy in steps, and the probability with which the answer may be wrong.
    method, method_args, goal_rule: how uncertainty is measured, and which goal to try next.
    budget: stop after this many environment steps (resets count), with everything learnt so far.
    goals: what to consider as goals (docs/goals.md), every state by default: a list of states or of labels; a function
        observation -> goal or None, so that states with the same value are one goal; {"name": predicate, ...};
        "keys:0,1" for entries of the observation; or "FILE.py:NAME". A goal is reached when any of its states is.
    goal_space: the older name of ``goals``, for states.
    start_seed: draw the start state with this seed at every reset (for environments with a random start).
    max_states: a bound on the number of states, for environments that do not declare it; above the number of integer
        observations, an observation that ends the episode is another state than the same one that does not.
    workers: number of copies of the environment, given by its name, that play each plan in parallel: in processes of
        this machine or, with engine="ray", of a Ray cluster (at ``address``). A Gymnasium vector environment is one
        worker per environment. The run follows from the seed and the number of workers. A script needs the guard
        ``if __name__ == "__main__":`` around the call, because every worker imports it.
    step_timeout: step the environment in a process of its own, and give up where a step takes longer (in seconds).
    out: folder for checkpoints and the result; :func:`adagoal.resume` continues a run that was killed.
    overwrite: whether the folder may hold an unfinished run or one of another setting, which is then replaced in the
        moment in which the new one has its first checkpoint.
    record: keep every step in the folder as plain arrays, which :func:`transitions` reads (10 bytes a step).
    progress: show how far the run is, on standard error: live on a terminal, a line every ten seconds elsewhere.
    observe: called with the run after every rollout; where it returns False, the run ends.

    Ctrl-C and SIGTERM end the run at hand, not the program: what was learnt is returned, with the status "interrupted".
    """
    out = None if out is None else check_folder_path("out", out)  # now, because the environment may change the folder
    start_seed = registry.parse_start_option(start, start_seed)
    given: EnvArgument = model_sources.convert_matrix_argument(env, start, terminal)
    if goal_space is not None:
        warnings.warn("goal_space is now called goals", DeprecationWarning, stacklevel=2)
        if goals is not None:
            raise InputError("is the older name of goals: give one of the two", "goal_space")
    wanted = parse_goals(goal_space if goals is None else goals)
    with _open_env(given, env_args or {}, start_seed, max_states, step_timeout, workers, engine, address) as (
        world,
        name,
    ):
        setting = ExplorationSettings(
            env=name,
            env_args=env_args or {},
            method=method,
            method_args=method_args or {},
            goal_rule=goal_rule if isinstance(goal_rule, str) else getattr(goal_rule, "__name__", "custom"),
            radius=to_python_scalar(radius),
            epsilon=to_python_scalar(epsilon),
            delta=to_python_scalar(delta),
            seed=to_python_scalar(seed),
            budget=_to_whole_number(budget),
            goal_space=wanted.states,
            goal_sets=wanted.description,
            start_seed=to_python_scalar(start_seed),
            max_states=to_python_scalar(max_states),
            workers=world.n_workers if isinstance(world, ParallelEnv) else 1,
        )
        session = ExplorationSession.from_settings(setting, world, goal_rules.resolve_rule(goal_rule), wanted.code)
        if record:
            if out is None:
                raise InputError("needs a folder for the steps: give out as well", "record")
            if not isinstance(world, ModelSimulator | GymAdapter | ParallelEnv):
                raise InputError(f"{name} is a world of your own, which does not keep its steps", "record")
            session.record_transitions()
        with observe_with_display(ExplorationProgress(setting.budget) if progress else None, observe) as observer:
            if out is None:
                return session.run_to_end(None, observer)
            with open_locked_folder(out, EXPLORATION_KIND) as folder:
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
    """Make an environment; return it with its name in results. Its workers end with the block."""
    env_factory.check_worker_count(workers)
    with parallel.open_workers(engine, address) as make_worker:
        made, name = env_factory.make_env(env, env_args, start_seed, max_states, step_timeout, workers, make_worker)
        try:
            yield made, name
        finally:
            if isinstance(made, ParallelEnv):
                made.close()


def _refuse_to_lose_run(folder: RunFolder, session: ExplorationSession, own_rule: bool) -> None:
    """Refuse a folder with another or an unfinished run. A finished run with the same settings may be repeated.

    Objects and functions cannot be compared with those of last time, so a finished run with some is refused too.
    """
    if folder.saved_run is None:
        return
    setting, model = session.setting, model_sources.find_user_model(session.run.env)
    if not refuse_different_run(folder.saved_run, setting, model):
        command = f"adagoal resume {quote(str(folder.path))}"
        raise InputError(f"{folder.path} holds this run, unfinished; use {command}, or overwrite it", "out")
    incomparable = {
        "an environment object": setting.env.startswith(OBJECT_ENV_PREFIX) and model is None,
        "goals that are functions": not {"function", "predicates"}.isdisjoint(setting.goal_sets or ()),
        "a goal rule that is a function": own_rule,
    }
    if names := [name for name, given in incomparable.items() if given]:
        text = f"{folder.path} holds a finished run with {names[0]}, perhaps another one; give another folder"
        raise InputError(f"{text}, or overwrite it", "out")


def resume_exploration(
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
    """Resume an exploration; see :func:`adagoal.resume` for the arguments."""
    safe_start.exit_if_reimported()  # before the lock, which the run that started this process holds
    with open_locked_folder(require_run_folder(path), EXPLORATION_KIND) as folder, contextlib.ExitStack() as stack:
        saved = folder.saved_run
        if saved is None:
            raise no_run(folder.path)
        placement = step_timeout, engine, address
        session = _restore_session(saved, budget, env, goal_rule, goals, trust, placement, stack)
        if TRANSITIONS_FILE in saved.result_files():  # a run that records its steps goes on recording
            steps = _read_transitions(saved, session.run.counts.n_states, session.run.env.n_actions)
            with _report_misfit(saved.path / TRANSITIONS_FILE, "not of this run"):
                session.record_transitions(steps)
        display = ExplorationProgress(session.setting.budget) if progress else None
        with observe_with_display(display, observe) as observer:
            return session.run_to_end(folder, observer)


@contextlib.contextmanager
def open_restored_session(
    folder: Path,
    env: EnvOverride,
    trust: bool,
    step_timeout: float | None = None,
) -> Iterator[ExplorationSession]:
    """Open the last checkpoint of a folder for inspection, without its goal rule and the code of its goals.

    Its workers end with the block.
    """
    rule, placement = (lambda known: known.E), (step_timeout, "local", None)
    with contextlib.ExitStack() as stack:
        yield read_saved_run(
            require_run_folder(folder),
            lambda saved: _restore_session(saved, None, env, rule, StoredLabeler(), trust, placement, stack),
        )


def _restore_session(
    saved: SavedRun,
    budget: int | None,
    env: EnvOverride,
    goal_rule: str | goal_rules.GoalRule | None,
    goals: Goals | None,
    trust: bool,
    placement: tuple[float | None, str, str | None],
    stack: contextlib.ExitStack,
) -> ExplorationSession:
    """Restore the last checkpoint; ``placement`` is step_timeout, engine and address of the environment."""
    require_exploration(saved)
    checkpoint = saved.checkpoint_files()
    arrays, facts = checkpoint.load_arrays(CHECKPOINT_FILE, facts_schema=RUN_CHECKPOINT_SCHEMA)
    certified = read_result_files(checkpoint, *STAGE_RESULT_FILES) if facts["stage"] > 1 else None
    saved.warn_about_damage()
    setting = settings_from_json(facts["setting"])
    setting = setting if budget is None else replace(setting, budget=_to_whole_number(budget))
    source = resolve_env(setting, env, read_stored_model(saved.result_files()), trust)
    goal_rule = goal_rules.require_trusted_rule(setting.goal_rule, trust) if goal_rule is None else goal_rule
    env_args = setting.env_args if isinstance(source, str) else {}
    step_timeout, engine, address = placement
    given = source, env_args, setting.start_seed, setting.max_states, step_timeout, setting.workers
    made, name = stack.enter_context(_open_env(*given, engine, address))
    if name != setting.env and env is not None:
        raise InputError(f"the run in {saved.path} is on {setting.env}, not on {name}", "env")
    if isinstance(goals, StoredLabeler):
        code: Any = StoredLabeler(facts["goal_names"] or ())
    else:
        code = resolve_goals_on_resume(setting, goals, trust)
    session = ExplorationSession.from_settings(setting, made, goal_rules.resolve_rule(goal_rule), code)
    with _report_misfit(checkpoint.candidate_paths[CHECKPOINT_FILE][0], "damaged, or not of this run"):
        session.restore(arrays, facts, certified)
    return session


@contextlib.contextmanager
def _report_misfit(path: Path, problem: str) -> Iterator[None]:
    """Turn a ``ValueError`` about the content of a file into one line that names it."""
    try:
        yield
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{path}: {problem} ({error})") from None


def _read_transitions(saved: SavedRun, n_states: int, n_actions: int) -> dict[str, NDArray[Any]]:
    sizes = {"S": n_states, "A": n_actions}
    return saved.result_files().load_arrays(TRANSITIONS_FILE, transition_data.TRANSITION_LOG_SCHEMA, sizes)[0]


def transitions(path: str | Path) -> dict[str, NDArray[Any]]:
    """Return the steps of a run with ``record=True``: arrays [N] ``state``, ``action`` and ``next_state``.

    The reset is the action ``result.reset_action``. Steps are in the order in which they were taken.
    """

    def load_steps(saved: SavedRun) -> dict[str, NDArray[Any]]:
        result = load_result(saved.path)
        if TRANSITIONS_FILE not in saved.result_files():
            raise InputError(f"{saved.path}: the run did not record its steps; explore with record=True", "folder")
        return _read_transitions(saved, len(result.arrays["visits"]), result.reset_action)

    return read_saved_run(require_run_folder(path), load_steps)


def resolve_env(setting: ExplorationSettings, env: EnvOverride, own: TabularMDP | None, trust: bool) -> EnvArgument:
    """Return the environment of a run: ``env`` if it is given again, its own model, or what its settings name."""
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


def _to_whole_number(budget: Any) -> Any:
    value = to_python_scalar(budget)
    return int(value) if isinstance(value, float) and value.is_integer() else value  # 1e6 is a whole number too
