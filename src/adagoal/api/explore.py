"""The front door: explore an environment, go on with a run, audit a result."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from numpy.typing import ArrayLike, NDArray

from adagoal import engines
from adagoal import goals as goal_rules
from adagoal.core import guard, trail
from adagoal.core.checks import folder_path, native
from adagoal.core.errors import InputError
from adagoal.core.run import Observer
from adagoal.core.sorters import Stored
from adagoal.core.text import OBJECT
from adagoal.core.world import World
from adagoal.mdp.audit import Audit, audit_policies
from adagoal.runs import schemas
from adagoal.runs.asked import Given as Goals
from adagoal.runs.asked import asked, given_again
from adagoal.runs.display import watching
from adagoal.runs.folder import Folder, hold
from adagoal.runs.progress import Progress
from adagoal.runs.result import (
    Result,
    load,
    must_be_exploration,
    read_result,
    refuse_another,
    stored_model,
)
from adagoal.runs.saved import Saved, no_run, read, tell
from adagoal.runs.schemas import KIND
from adagoal.runs.session import CHECKPOINT, STAGE, STEPS, Session
from adagoal.runs.setting import Setting
from adagoal.worlds import many, matrices, registry, storage
from adagoal.worlds.adapter import StartSeed
from adagoal.worlds.crew import CrewWorld
from adagoal.worlds.gym import GymWorld
from adagoal.worlds.model import TabularMDP
from adagoal.worlds.simulator import ModelWorld

Given = many.Single | many.Vector
"""What there is to explore."""
Again = Given | None
"""The environment of a run, given again; None where the run knows it."""


def explore(
    env: Given | ArrayLike | Sequence[Any],
    radius: float | str,
    epsilon: float = 1.0,
    delta: float = 0.1,
    *,
    method: str = "certified",
    goal_rule: str | goal_rules.Rule = "adagoal",
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
    device: str = "cpu",
    step_timeout: float | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    record: bool = False,
    progress: bool = False,
    observe: Observer | None = None,
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
    workers: so many copies of the environment, given by its name, play each plan at once, in processes of this machine
        or, with engine="ray", of a Ray cluster (at ``address``); a vector of Gymnasium's is as many workers as it has
        environments. The run follows from the seed and the number of workers. A script needs the guard
        ``if __name__ == "__main__":`` around the call, because every worker imports it.
    device: "gpu" plans on a GPU (extra gpu, method certified); without one the run says so and uses the processor.
    step_timeout: step the environment in a process of its own, and give up where a step takes longer (in seconds).
    out: a folder for checkpoints and the result; a run that was killed goes on with :func:`resume`.
    overwrite: whether the folder may hold an unfinished run or one of another setting, which is then replaced in the
        moment in which the new one has its first checkpoint.
    record: keep every step in the folder as plain arrays, which :func:`transitions` reads (10 bytes a step).
    progress: show how far the run is, on standard error: live on a terminal, a line every ten seconds elsewhere.
    observe: called with the run after every rollout; where it returns False, the run ends.

    Ctrl-C and SIGTERM end the run at hand, not the program: what was learnt is returned, with the status "interrupted".
    """
    place = None if out is None else folder_path("out", out)  # now, because the environment may change the folder
    start_seed = registry.start_of(start, start_seed)
    given: Given = matrices.with_matrix(env, start, terminal)
    if goal_space is not None:
        warnings.warn("goal_space is now called goals", DeprecationWarning, stacklevel=2)
        if goals is not None:
            raise InputError("is the older name of goals: give one of the two", "goal_space")
    wanted = asked(goal_space if goals is None else goals)
    with _made(given, env_args or {}, start_seed, max_states, step_timeout, workers, engine, address) as (world, name):
        setting = Setting(
            env=name,
            env_args=env_args or {},
            method=method,
            method_args=method_args or {},
            goal_rule=goal_rule if isinstance(goal_rule, str) else getattr(goal_rule, "__name__", "custom"),
            radius=native(radius),
            epsilon=native(epsilon),
            delta=native(delta),
            seed=native(seed),
            budget=_whole(budget),
            goal_space=wanted.states,
            goal_sets=wanted.spec,
            start_seed=native(start_seed),
            max_states=native(max_states),
            workers=world.size if isinstance(world, CrewWorld) else 1,
            device=device,
        )
        session = Session.start(setting, world, goal_rules.get(goal_rule), wanted.code)
        if record:
            if out is None:
                raise InputError("needs a folder for the steps: give out as well", "record")
            if not isinstance(world, ModelWorld | GymWorld | CrewWorld):
                raise InputError(f"{name} is a world of your own, which does not keep its steps", "record")
            session.record()
        with watching(Progress(setting.budget) if progress else None, observe) as told:
            if place is None:
                return session.finish(None, told)
            with hold(place, KIND) as folder:
                if not overwrite:
                    _lose_nothing(folder, session, callable(goal_rule))
                folder.fresh()
                return session.finish(folder, told)


@contextlib.contextmanager
def _made(
    env: Given,
    env_args: dict[str, Any],
    start_seed: StartSeed,
    max_states: int | None,
    step_timeout: float | None,
    workers: int,
    engine: str,
    address: str | None,
) -> Iterator[tuple[World, str]]:
    """A world and its name in results; its workers, if there are any, end with the block."""
    many.check(workers)
    with engines.hiring(engine, address) as hire:
        world, name = many.make_world(env, env_args, start_seed, max_states, step_timeout, workers, hire)
        try:
            yield world, name
        finally:
            if isinstance(world, CrewWorld):
                world.close()


def _lose_nothing(folder: Folder, session: Session, own_rule: bool) -> None:
    """A run may be begun again once it is finished; any other one in the folder is not touched.

    Nor is one that may be another: of an object, or a function, nobody can tell whether it is the one of last time.
    """
    if folder.saved is None:
        return
    setting, model = session.setting, storage.own(session.run.world)
    if not refuse_another(folder.saved, setting, model):
        go_on = f"adagoal resume {quote(str(folder.path))}"
        raise InputError(f"{folder.path} holds this run, unfinished; use {go_on}, or overwrite it", "out")
    own = {
        "an environment object": setting.env.startswith(OBJECT) and model is None,
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
    env: Again = None,
    goal_rule: str | goal_rules.Rule | None = None,
    goals: Goals | None = None,
    trust: bool = False,
    step_timeout: float | None = None,
    engine: str = "local",
    address: str | None = None,
    progress: bool = False,
    observe: Observer | None = None,
) -> Result:
    """Go on with a run that was killed, interrupted, or ran out of budget; the result is as if it had not stopped.

    (A budget ends a rollout where an unbroken run would have gone on, so that after a budget the plans come at other
    moments: as valid, not the same numbers.)
    A run on an environment object, or with a rule or goals that are functions, needs the same ones again. Code that
    only the folder names (an environment ``module:Id``, a rule ``FILE.py:FUNCTION``, goals ``FILE.py:NAME``) is not run
    unless ``trust`` says so.
    The workers of a run live where ``engine`` and ``address`` say now: that changes no number.
    """
    guard.stop_if_imported()  # before the folder, which the run that began this process holds
    with hold(must_exist(path), KIND) as folder, contextlib.ExitStack() as stack:
        if folder.saved is None:
            raise no_run(folder.path)
        where = step_timeout, engine, address
        session = _restored(folder.saved, budget, env, goal_rule, goals, trust, where, stack)
        _go_on_recording(session, folder.saved)
        with watching(Progress(session.setting.budget) if progress else None, observe) as told:
            return session.finish(folder, told)


@contextlib.contextmanager
def restored(
    folder: Path,
    env: Again,
    trust: bool,
    step_timeout: float | None = None,
) -> Iterator[Session]:
    """The session of a folder, where its checkpoint left it, to look at: no goal rule, and no code of its goals.

    Its workers end with the block.
    """
    rule, none, where = (lambda known: known.E), Stored(), (step_timeout, "local", None)
    with contextlib.ExitStack() as stack:
        yield read(must_exist(folder), lambda saved: _restored(saved, None, env, rule, none, trust, where, stack))


def _restored(
    saved: Saved,
    budget: int | None,
    env: Again,
    goal_rule: str | goal_rules.Rule | None,
    goals: Goals | None,
    trust: bool,
    where: tuple[float | None, str, str | None],
    stack: contextlib.ExitStack,
) -> Session:
    must_be_exploration(saved)
    state = saved.state()
    arrays, facts = state.arrays(CHECKPOINT, fact_rules=schemas.CHECKPOINT)
    certified = read_result(state, *STAGE) if facts["stage"] > 1 else None
    tell(saved)
    setting = Setting(**{**facts["setting"], "goal_space": _tuple(facts["setting"]["goal_space"])})
    setting = setting if budget is None else replace(setting, budget=_whole(budget))
    again = environment(setting, env, stored_model(saved.results()), trust)
    goal_rule = goal_rules.installed(setting.goal_rule, trust) if goal_rule is None else goal_rule
    arguments = setting.env_args if isinstance(again, str) else {}
    step_timeout, engine, address = where
    given = again, arguments, setting.start_seed, setting.max_states, step_timeout, setting.workers
    world, name = stack.enter_context(_made(*given, engine, address))
    if name != setting.env and env is not None:
        raise InputError(f"the run in {saved.path} is on {setting.env}, not on {name}", "env")
    look = isinstance(goals, Stored)
    code = Stored(facts["goal_names"] or ()) if look else given_again(setting, goals, trust)
    session = Session.start(setting, world, goal_rules.get(goal_rule), code)
    try:
        session.restore(arrays, facts, certified)
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{state.places[CHECKPOINT][0]}: damaged, or not of this run ({error})") from None
    return session


def _go_on_recording(session: Session, saved: Saved) -> None:
    """A run that keeps its steps goes on doing so."""
    if STEPS not in saved.results():
        return
    try:
        session.record(_steps(saved, session.run.counts.n_states, session.run.world.n_actions))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{saved.path / STEPS}: not of this run ({error})") from None


def _steps(saved: Saved, n_states: int, n_actions: int) -> dict[str, NDArray[Any]]:
    return saved.results().arrays(STEPS, trail.SCHEMA, {"S": n_states, "A": n_actions})[0]


def transitions(path: str | Path) -> dict[str, NDArray[Any]]:
    """The steps of a run that was told to ``record`` them: arrays [N] ``state``, ``action`` and ``next_state``.

    The reset is the action ``result.reset_action``. Steps are in the order in which they were taken.
    """

    def stored(saved: Saved) -> dict[str, NDArray[Any]]:
        result = load(saved.path)
        if STEPS not in saved.results():
            raise InputError(f"{saved.path}: the run was not told to record its steps", "folder")
        return _steps(saved, len(result.arrays["visits"]), result.reset_action)

    return read(must_exist(path), stored)


def must_exist(path: str | Path) -> Path:
    """The folder of a run."""
    folder = folder_path("folder", path)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder", "folder")
    return folder


def environment(setting: Setting, env: Again, own: TabularMDP | None, trust: bool) -> Given:
    """The environment of a run: what is given again, the model that the run keeps, or else what its setting names."""
    if env is not None:
        return env
    return own if own is not None else registry.installed(setting.env, trust)


def audit(result: Result, env: Again = None, *, trust: bool = False) -> Audit:
    """Check a result exactly against the known model: the conditions C1 and C2, and every certificate.

    ``env`` is a model, an environment whose model is known (built-in or toy-text), or a name; without it the
    environment is built again from the result's setting, if its code is installed or ``trust`` allows to run it.
    """
    setting = result.setting
    again = environment(setting, env, result.model, trust)
    model = registry.make_model(
        many.single(again), setting.env_args if isinstance(again, str) else {}, setting.start_seed
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


def _tuple(values: list[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(values)


def _whole(budget: Any) -> Any:
    """1e6 is a whole number too."""
    value = native(budget)
    return int(value) if isinstance(value, float) and value.is_integer() else value
