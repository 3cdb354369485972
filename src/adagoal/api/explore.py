"""Explore an environment, resume a run, read the steps of an exploration, and audit its result."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adagoal import goal_rules
from adagoal.api.certify_data import DATA_WARNING, begin_with_data
from adagoal.core import transition_data
from adagoal.core.array_types import Longs
from adagoal.core.environment import Policy, TabularEnv
from adagoal.core.errors import OBJECT_ENV_PREFIX, InputError, RunWarning
from adagoal.core.exploration_run import RunObserver
from adagoal.core.goal_space import StoredLabeler
from adagoal.core.goal_spec import GoalsArgument as Goals
from adagoal.core.goal_spec import avoided_states, parse_avoid, parse_goals, resolve_goals_on_resume
from adagoal.core.run_settings import ExecutionOptions, ExplorationSettings
from adagoal.core.user_code import is_file_spec
from adagoal.core.validation import check_arguments, check_folder_path, document_settings, refuse_unknown_arguments
from adagoal.envs import model_sources, registry
from adagoal.envs.gym_adapter import GymAdapter, StartSeed
from adagoal.envs.model import TabularMDP
from adagoal.envs.parallel_env import ParallelEnv
from adagoal.envs.recorded_transitions import EVENT_START
from adagoal.envs.simulator import ModelSimulator
from adagoal.exact.audit import Audit, audit_policies, audit_probabilities
from adagoal.parallel import engines
from adagoal.parallel.worker_process import exit_if_reimported
from adagoal.runs.exploration_session import ExplorationSession
from adagoal.runs.load_result import (
    RUN_CHECKPOINT_SCHEMA,
    load_result,
    read_result_files,
    read_stored_model,
    refuse_different_run,
    require_exploration,
    settings_from_json,
)
from adagoal.runs.progress_display import ExplorationProgress, observe_with_display
from adagoal.runs.result import Result, find_model_states, numbers_states_as_met
from adagoal.runs.result_text import exploration_resume_command
from adagoal.runs.run_folder import (
    RunFolder,
    RunKind,
    SavedRun,
    is_training_folder,
    missing_run_error,
    open_locked_folder,
    read_saved_run,
    require_run_folder,
)

if TYPE_CHECKING:
    from adagoal.deep.rollouts import RolloutFactory
    from adagoal.runs.train_result import TrainResult

EnvArgument = registry.EnvLike | registry.GymVectorEnv
EnvOverride = EnvArgument | None  # the environment of a run, given again; None if the folder names it


@refuse_unknown_arguments
@document_settings(ExplorationSettings, ExecutionOptions)
def explore(
    env: EnvArgument | ArrayLike | Sequence[Any],
    radius: float | str | None = None,
    epsilon: float = 1.0,
    delta: float = 0.1,
    *,
    within: int | None = None,
    probability: float | None = None,
    avoid: int | str | Sequence[int | str] | None = None,
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
    step_timeout: float | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    record: bool = False,
    data: Any = None,
    progress: bool | None = None,
    observe: RunObserver | None = None,
) -> Result:
    """Find the goals that can be reached within ``radius`` steps, a policy for each, and certificates.

    With ``within`` and ``probability``, find those that can be reached with this probability in this many steps.

    Ctrl-C and SIGTERM end the run, not the program: the result so far is returned, with the status "interrupted".

    Parameters
    ----------
    goals: what counts as a goal (docs/goals.md); every state by default. A list of states or labels; a function of the
        observation, whose equal values are one goal and None is no goal; {"name": predicate, ...}; "keys:0,1" for
        entries of the observation; or "FILE.py:NAME". For PRISM and JANI programs a label may be an expression over
        variables, and the only label a file of properties. A goal is reached when any of its states is reached.
    avoid: with ``within``: states, or labels of states or of sets of states, that must not be entered on the way.
    start, terminal: for a matrix P[s, a, s'] or a list of sparse matrices as ``env``: the start state (0 by default),
        and the states in which the reset is the only action. For a Gymnasium environment, start="random" declares that
        every reset draws the start state.
    data: recorded transitions of the environment, counted before the first step, in any form that
        :func:`certify_data` reads. States and actions are numbers or labels of the environment.
    progress: show a progress display on standard error; by default in notebooks only.
    observe: called with the run after every rollout; the run ends if it returns False.

    Examples
    --------
    >>> result = adagoal.explore("grid", radius=3, env_args={"rows": 2, "cols": 2}, seed=0)
    >>> str(result.status), result.goals
    ('certified', [0, 1, 2, 3])
    """
    # Absolute now, because the environment may change the current folder.
    out_path = None if out is None else check_folder_path("out", out)
    start_seed = registry.parse_start_option(start, start_seed)
    env_argument: EnvArgument = model_sources.convert_matrix_argument(env, start, terminal)
    # Before the environment is made, so wrong goals are refused before workers start.
    goal_spec, avoided = parse_goals(goals), parse_avoid(avoid)
    if radius is None and within is None:
        raise InputError("missing; give the number of steps to look, for instance radius=20", "radius")
    if radius is not None and within is not None:
        raise InputError("cannot be combined with radius; leave one out", "within")
    check_arguments(ExplorationSettings, within=within)
    L: Any = radius if within is None else within
    with _open_env(env_argument, env_args or {}, start_seed, max_states, step_timeout, workers, engine, address) as (
        world,
        name,
    ):
        goal_sets, model_source = goal_spec.description, (world, env_argument, env_args or {})
        if goal_sets is not None and "labels" in goal_sets:
            goal_sets = {"labels": model_sources.add_described_sets(*model_source, goal_sets["labels"], "goals")}
        model_sources.add_described_sets(*model_source, avoided or (), "avoid")
        setting = ExplorationSettings(
            env=name,
            env_args=env_args or {},
            method=method,
            method_args=method_args or {},
            goal_rule=goal_rule if isinstance(goal_rule, str) else getattr(goal_rule, "__name__", "custom"),
            radius=L,
            within=within,
            probability=probability,
            avoid=avoided,
            epsilon=epsilon,
            delta=delta,
            seed=seed,
            budget=budget,
            goal_space=goal_spec.states,
            goal_sets=goal_sets,
            start_seed=start_seed,
            max_states=max_states,
            workers=world.n_workers if isinstance(world, ParallelEnv) else 1,
        )
        _number_large_model(world, setting)
        session = ExplorationSession.from_settings(setting, world, goal_rules.resolve_rule(goal_rule), goal_spec.code)
        if record:
            if out_path is None:
                raise InputError("needs a folder for the steps; give out as well", "record")
            if not isinstance(world, ModelSimulator | GymAdapter | ParallelEnv):
                raise InputError(f"{name} is a TabularEnv of your own, which records no steps; leave it out", "record")
            if data is not None:
                raise InputError("cannot be combined with data: the log would lack them; leave one out", "record")
            session.record_transitions()
        if data is not None:
            if within is not None:
                raise InputError("cannot be combined with within; leave one out", "data")
            begin_with_data(session, data)
        with observe_with_display(lambda: ExplorationProgress(setting.budget), progress, observe) as observer:
            if out_path is None:
                return session.run_to_end(None, observer)
            with open_locked_folder(out_path, RunKind.EXPLORATION) as folder:
                saved = None if overwrite else _find_same_run(folder, session, callable(goal_rule))
                # The steps of a run are not part of its settings, so a run that records them is always played.
                if saved is not None and not record:
                    text = f"{folder.path} already contains this finished run; overwrite=True runs it again"
                    warnings.warn(text, RunWarning, stacklevel=3)
                    return saved
                folder.start_new_run()
                return session.run_to_end(folder, observer)


def _number_large_model(env: TabularEnv, setting: ExplorationSettings) -> None:
    """Number the states of a large model as they are met, if the settings do not name states or need all of them."""
    names_states = setting.goal_space is not None or setting.goal_sets is not None
    needs_all_states = setting.method != "certified" or str(setting.radius).startswith("all")
    # States to avoid may be numbers of the model.
    needs_all_states |= setting.within is not None
    if isinstance(env, ModelSimulator) and not names_states and not needs_all_states:
        env.number_states_if_large()


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
    check_arguments(ExplorationSettings, workers=workers)
    with engines.open_workers(engine, address) as make_worker:
        made, name = registry.make_env(env, env_args, start_seed, max_states, step_timeout, workers, make_worker)
        try:
            yield made, name
        finally:
            if isinstance(made, ParallelEnv):
                made.close()


def _find_same_run(folder: RunFolder, session: ExplorationSession, own_rule: bool) -> Result | None:
    """Return the result in a folder if it is a finished run with the same settings; refuse to lose any other run.

    Objects and functions cannot be compared with those of last time, so a finished run with some is refused. Files and
    modules that the user names may have changed since, so a finished run with some may be repeated: None.
    """
    if folder.saved_run is None:
        return None
    setting, model = session.setting, model_sources.find_user_model(session.run.env)
    if not refuse_different_run(folder.saved_run, setting, model):
        command = exploration_resume_command(folder.path, setting, model is not None)
        raise InputError(f"{folder.path} holds this run, unfinished; resume it with {command}, or overwrite it", "out")
    incomparable = {
        "an environment object": setting.env.startswith(OBJECT_ENV_PREFIX) and model is None,
        "goals that are functions": not {"function", "predicates"}.isdisjoint(setting.goal_sets or ()),
        "a goal rule that is a function": own_rule,
        "recorded data": session.run.counts.n.any()
        or any(DATA_WARNING in line for line in load_result(folder.path).warnings),
    }
    if names := [name for name, given in incomparable.items() if given]:
        text = f"{folder.path} holds a finished run with {names[0]}, which may differ; give another folder"
        raise InputError(f"{text}, or overwrite it", "out")
    names_file = "path" in setting.env_args or is_file_spec(setting.goal_rule) or "file" in (setting.goal_sets or ())
    # a model was compared above, whatever its name
    names_module = model is None and ":" in setting.env
    result = None if names_file or names_module else load_result(folder.path)
    # a smaller budget would have ended the run earlier
    return result if result is not None and result.steps <= (setting.budget or result.steps) else None


def resume(
    path: str | Path,
    budget: int | None = None,
    *,
    env: EnvOverride = None,
    goal_rule: str | goal_rules.GoalRule | None = None,
    trust: bool = False,
    step_timeout: float | None = None,
    progress: bool | None = None,
    observe: Callable[[Any], bool | None] | None = None,
    goals: Goals | None = None,
    engine: str | None = None,
    address: str | None = None,
    set_goal: Callable[[Any, Any], None] | None = None,
    workers: int | None = None,
    minutes: float | None = None,
    checkpoint_every: int | None = None,
    tensorboard: str | Path | None = None,
    make_rollouts: RolloutFactory | None = None,
) -> Result | TrainResult:
    """Resume a run that was killed, interrupted or ran out of budget. The result is as if it had not stopped.

    One exception: the budget of an exploration ends a rollout early, so a run that continues after it plans at other
    moments. Its result is as valid, with other numbers.

    Parameters
    ----------
    path: the folder of the run.
    budget: new limit on the steps, those done included; by default the old one.
    env, goal_rule, goals, set_goal: what the run was given as an object or a function must be given again. Code that
        only the folder names (an environment ``module:Id``, a rule ``FILE.py:FUNCTION``, goals ``FILE.py:NAME``) runs
        if it is named again here, or with ``trust``.
    step_timeout, progress, observe: as for :func:`adagoal.explore` and :func:`adagoal.train`.
    engine, address: for explorations, where the workers run; they change no number.
    workers, minutes, checkpoint_every, tensorboard, make_rollouts: for training runs, as for :func:`adagoal.train`.

    Examples
    --------
    >>> short = adagoal.explore("chain", radius=2, env_args={"n_states": 3}, budget=20, out="runs/chain")
    >>> str(short.status), str(adagoal.resume("runs/chain", budget=10_000).status)
    ('budget', 'certified')
    """
    folder = require_run_folder(path)
    of_explorations = {"goals": goals, "engine": engine, "address": address}
    of_training: dict[str, Any] = {"set_goal": set_goal, "workers": workers, "minutes": minutes}
    of_training |= {"checkpoint_every": checkpoint_every, "tensorboard": tensorboard, "make_rollouts": make_rollouts}
    # Options of the other kind are refused: ignoring them would leave the caller with a run that was not asked for.
    if is_training_folder(folder):
        from adagoal.api.train import resume_training

        _refuse_options(of_explorations, "is for explorations; this run is training")
        given = {name: value for name, value in of_training.items() if value is not None}
        given |= {"env": env, "goal_rule": goal_rule, "trust": trust, "step_timeout": step_timeout}
        return resume_training(folder, budget, progress=progress, observe=observe, **given)
    _refuse_options(of_training, "is for training runs; this is an exploration")
    # Before the lock, which the run that started this process holds.
    exit_if_reimported()
    with open_locked_folder(folder, RunKind.EXPLORATION) as held, contextlib.ExitStack() as stack:
        saved = held.saved_run
        if saved is None:
            raise missing_run_error(held.path)
        placement = step_timeout, engine or "local", address
        session = _restore_session(saved, budget, env, goal_rule, goals, trust, placement, stack)
        # A run that records its steps must go on recording: a log with a gap would no longer match the counts.
        if session.transitions_file in saved.result_files():
            steps = _read_transitions(saved, session.run.counts.n_states, session.run.env.n_actions)
            with _report_misfit(saved.path / session.transitions_file, "not of this run"):
                session.record_transitions(steps)
        with observe_with_display(lambda: ExplorationProgress(session.setting.budget), progress, observe) as observer:
            return session.run_to_end(held, observer)


def _refuse_options(options: dict[str, Any], reason: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise InputError(reason, name)


@contextlib.contextmanager
def open_restored_session(
    folder: Path, env: EnvOverride, trust: bool, step_timeout: float | None = None
) -> Iterator[ExplorationSession]:
    """Open the last checkpoint of a folder for inspection, without its goal rule and the code of its goals.

    Its workers end with the block.
    """
    # The rule is never called, because no goal is chosen. It only keeps the code of the folder's rule from running.
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
    arrays, facts = checkpoint.load_arrays(ExplorationSession.checkpoint_file, facts_schema=RUN_CHECKPOINT_SCHEMA)
    # From the second stage on, a run that ends early returns the result of the stage before.
    certified = read_result_files(checkpoint, *ExplorationSession.stage_files) if facts["stage"] > 1 else None
    saved.warn_about_damage()
    setting = settings_from_json(facts["setting"])
    setting = setting if budget is None else replace(setting, budget=budget)
    source = resolve_env(setting, env, read_stored_model(saved.result_files()), trust)
    if goal_rule is None:
        goal_rule = goal_rules.require_trusted_rule(setting.goal_rule, trust)
    elif not isinstance(goals, StoredLabeler):
        goal_rules.require_same_rule(setting.goal_rule, goal_rule)
    # An object was made with its arguments already.
    env_args = setting.env_args if isinstance(source, str) else {}
    step_timeout, engine, address = placement
    given = source, env_args, setting.start_seed, setting.max_states, step_timeout, setting.workers
    made, name = stack.enter_context(_open_env(*given, engine, address))
    if name != setting.env and env is not None:
        raise InputError(f"the run in {saved.path} is on {setting.env}, not on {name}", "env")
    # For inspection the names in the checkpoint suffice, and the code behind the goals need not be trusted.
    if isinstance(goals, StoredLabeler):
        code: Any = StoredLabeler(facts["goal_names"] or ())
    else:
        code = resolve_goals_on_resume(setting, goals, trust)
    _number_large_model(made, setting)
    session = ExplorationSession.from_settings(setting, made, goal_rules.resolve_rule(goal_rule), code)
    with _report_misfit(checkpoint.candidate_paths[session.checkpoint_file][0], "damaged, or not of this run"):
        session.restore(arrays, facts, certified)
    return session


@contextlib.contextmanager
def _report_misfit(path: Path, problem: str) -> Iterator[None]:
    """Turn a ``ValueError`` about the content of a file into one line that names it."""
    try:
        yield
    # InputError is a ValueError too, and names its argument already.
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{path}: {problem} ({error})") from None


def _read_transitions(saved: SavedRun, n_states: int, n_actions: int) -> dict[str, NDArray[Any]]:
    name, schema = ExplorationSession.transitions_file, transition_data.TransitionLog.ARRAY_SCHEMA
    return saved.result_files().load_arrays(name, schema, {"S": n_states, "A": n_actions})[0]


def transitions(path: str | Path) -> dict[str, NDArray[Any]]:
    """Return the steps of a run with ``record=True``: arrays [N] ``state``, ``action`` and ``next_state``.

    The reset is the action ``result.reset_action``. Steps are in the order in which they were taken.

    Parameters
    ----------
    path: the folder of the run.

    Examples
    --------
    >>> result = adagoal.explore("chain", radius=2, env_args={"n_states": 3}, out="runs/chain", record=True)
    >>> len(adagoal.transitions("runs/chain")["state"]) == result.steps
    True
    """

    def load_steps(saved: SavedRun) -> dict[str, NDArray[Any]]:
        result = load_result(saved.path)
        if ExplorationSession.transitions_file not in saved.result_files():
            raise InputError(f"{saved.path}: the run did not record its steps; explore with record=True", "folder")
        return _read_transitions(saved, len(result.arrays["visits"]), result.reset_action)

    return read_saved_run(require_run_folder(path), load_steps)


def resolve_env(setting: ExplorationSettings, env: EnvOverride, own: TabularMDP | None, trust: bool) -> EnvArgument:
    """Return the environment of a run: ``env`` if it is given again, its own model, or what its settings name."""
    if env is not None:
        return env
    return own if own is not None else registry.require_trusted_env(setting.env, trust)


def audit(result: Result | str | Path, env: EnvOverride = None, *, trust: bool = False) -> Audit:
    """Check a result exactly against the known model: the conditions C1 and C2, and every certificate.

    Parameters
    ----------
    result: the result of an exploration, or its folder.
    env: a model, an environment whose model is known (built-in or toy-text), or a name. By default the environment is
        built again from the result's setting, if its code is installed.
    trust: run the code that the setting names.

    Examples
    --------
    >>> audit = adagoal.audit(result)
    >>> audit.c1, audit.c2, audit.certificates
    (True, True, True)
    """
    if not isinstance(result, Result):
        result = load_result(result)
    setting = result.setting
    again = resolve_env(setting, env, result.model, trust)
    model = registry.make_exact_model(
        registry.first_env_of_vector(again), setting.env_args if isinstance(again, str) else {}, setting.start_seed
    )
    if model is None:
        name = setting.env if env is None else env
        raise InputError(f"audit: the exact model of {name} is not known; use a built-in or a toy-text environment")
    states, actions = _find_numbers_in_model(result, model)
    are_sets, names = result.goal_names is not None, result.goal_names or ()
    policies = {}
    for goal in result.goals:
        # The policy of a certificate resets in states that the run or the data do not have.
        own = result.policy(goal).actions
        table = np.full((len(own), model.n_states), model.n_actions, np.int16)
        table[:, states] = actions[own[:, : len(states)]]
        number = goal if are_sets else int(states[goal])
        policies[number] = Policy(number, table, model.n_actions)
    chosen = None if are_sets or setting.goal_space is None else states[list(setting.goal_space)].tolist()
    if setting.within is not None and setting.probability is not None:
        numbers = range(len(names)) if are_sets else chosen or range(model.n_states)
        return audit_probabilities(
            *(model, policies, policies, setting.within, setting.probability, setting.epsilon),
            avoid=avoided_states(setting.avoid or (), model.n_states, model.labels, model.sets),
            certificates=result.certificates,
            space={g: result.members(g) if are_sets else g for g in numbers},
            names=names,
        )
    # A method without a guarantee has estimates, not bounds that an audit could refute.
    proven = {g if are_sets else int(states[g]): c for g, c in result.certificates.items() if result.guarantee}
    listed = result.certificates if result.is_from_data else range(len(names))
    return audit_policies(
        *(model, policies, policies, result.radius, setting.epsilon),
        goal_space=chosen,
        lower={g: c.lower for g, c in proven.items()},
        upper={g: c.upper for g, c in proven.items()},
        sets={g: states[result.members(g)].tolist() for g in listed} if are_sets else None,
        names=names,
    )


def _find_numbers_in_model(result: Result, model: TabularMDP) -> tuple[Longs, Longs]:
    """Return the numbers in a model of the states of a result, and of its actions with the reset."""
    labels, names, start = result.view.labels, result.view.actions, result.view.start or 0
    if result.is_from_data:
        if len(labels) != result.n_states or len(names) != result.reset_action:
            raise InputError("audit: the result does not name all states and actions of its data")
        states = [_find_in_model(label, model.labels, model.n_states, "state", model) for label in labels]
        actions = [_find_in_model(name, (), model.n_actions, "action", model) for name in names]
        if states[start] != model.start:
            text = f"the data start in {labels[start]}, the model in state {model.start}; give another env"
            raise InputError(f"audit: {text}")
        return np.array(states), np.array([*actions, model.n_actions])
    n_states, n_actions = result.arrays["policy"].shape[2], result.reset_action
    as_met = numbers_states_as_met(result)
    if n_actions != model.n_actions or not (as_met or n_states == model.n_states):
        raise InputError(
            f"audit: the result is about {n_states} states and {n_actions} actions, "
            f"the model has {model.n_states} and {model.n_actions}; give the environment of the run"
        )
    found = find_model_states(result, n_states=model.n_states) if as_met else np.arange(n_states)
    return found, np.arange(n_actions + 1)


def _find_in_model(name: str, labels: Sequence[str], size: int, kind: str, model: TabularMDP) -> int:
    """Return the number of a state or action of the data in a model: that of its label, or the number itself."""
    if name in labels:
        return list(labels).index(name)
    if name == EVENT_START:
        return model.start
    if name.isdecimal() and int(name) < size:
        return int(name)
    raise InputError(f"audit: {model.name} has no {kind} {name!r}, which the data have; give another env")
