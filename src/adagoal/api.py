"""The front door: explore an environment, go on with a run, audit a result."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium
import numpy as np

from adagoal import goals as goal_rules
from adagoal import methods
from adagoal.envs import registry
from adagoal.envs.world import World
from adagoal.errors import InputError
from adagoal.loop import Attempts, Run
from adagoal.loop import explore as run_loop
from adagoal.mdp.audit import Audit, audit_policies
from adagoal.mdp.model import TabularMDP
from adagoal.result import Certificate, Result, Setting
from adagoal.storage import read_arrays, write_arrays
from adagoal.tabular.counts import Counts

CHECKPOINT = "checkpoint.npz"
CHECKPOINT_SECONDS = 10.0
UNLIMITED = 2**62
Observer = Callable[[Run], None]


def explore(
    env: str | gymnasium.Env[Any, Any] | World,
    radius: float | str,
    epsilon: float = 1.0,
    delta: float = 0.1,
    *,
    method: str = "certified",
    goal_rule: str | goal_rules.Rule = "adagoal",
    budget: int | None = None,
    seed: int = 0,
    goal_space: list[int] | None = None,
    env_args: dict[str, Any] | None = None,
    method_args: dict[str, Any] | None = None,
    start_seed: int | None = None,
    max_states: int | None = None,
    out: str | Path | None = None,
    observe: Observer | None = None,
) -> Result:
    """Find the goals that can be reached within ``radius`` steps, a policy for each, and certificates.

    Parameters
    ----------
    env: a built-in name, a Gymnasium id, a Gymnasium environment with discrete actions, or a World.
    radius: L >= 1, in expected steps from the start; "auto" doubles it until the budget is spent, "all" until every
        goal is certified.
    epsilon, delta: accuracy in steps, and the probability with which the answer may be wrong.
    method, method_args, goal_rule: how uncertainty is measured, and which goal to try next.
    budget: stop after this many environment steps (resets count), with everything learnt so far.
    goal_space: the states to consider as goals; all by default.
    start_seed: draw the start state with this seed at every reset (for environments with a random start).
    max_states: a bound on the number of states, for environments that do not declare it.
    out: a folder for checkpoints and the result; a run that was killed goes on with :func:`resume`.
    observe: called after every rollout, for progress displays.
    """
    world, name = registry.make_world(env, env_args or {}, start_seed, max_states)
    setting = Setting(
        *(name, env_args or {}, method, method_args or {}),
        goal_rule=goal_rule if isinstance(goal_rule, str) else getattr(goal_rule, "__name__", "custom"),
        **{"radius": radius, "epsilon": epsilon, "delta": delta, "seed": seed, "budget": budget},
        goal_space=None if goal_space is None else tuple(goal_space),
        **{"start_seed": start_seed, "max_states": max_states},
    )
    session = _Session.start(setting, world, goal_rules.get(goal_rule))
    return session.finish(Path(out) if out is not None else None, observe)


def resume(path: str | Path, budget: int | None = None, observe: Observer | None = None) -> Result:
    """Go on with a run that was killed, interrupted, or ran out of budget; the result is as if it had not stopped."""
    folder = Path(path)
    arrays, facts = read_arrays(folder / CHECKPOINT)
    try:
        setting = Setting(**{**facts["setting"], "goal_space": _tuple(facts["setting"]["goal_space"])})
        setting = setting if budget is None else replace(setting, budget=budget)
        world, _ = registry.make_world(setting.env, setting.env_args, setting.start_seed, setting.max_states)
        session = _Session.start(setting, world, goal_rules.get(setting.goal_rule))
        session.restore(arrays, facts)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{folder / CHECKPOINT}: damaged or incomplete ({error})") from None
    return session.finish(folder, observe)


def audit(result: Result, env: str | gymnasium.Env[Any, Any] | World | TabularMDP | None = None) -> Audit:
    """Check a result exactly against the known model: the conditions C1 and C2, and every certificate.

    ``env`` is a model, an environment whose model is known (built-in or toy-text), or a name; without it the
    environment is built again from the result's setting.
    """
    setting = result.setting
    if isinstance(env, TabularMDP):
        model: TabularMDP | None = env
    else:
        known = env is None or isinstance(env, str)
        arguments, start_seed = (setting.env_args, setting.start_seed) if known else ({}, setting.start_seed)
        model = registry.make_model(setting.env if env is None else env, arguments, start_seed)
    if model is None:
        name = setting.env if env is None else env
        raise InputError(f"audit: no exact model is known of {name}; it takes a built-in or a toy-text environment")
    sizes = result.arrays["policy"].shape[2], result.reset_action
    if sizes != (model.n_states, model.n_actions) and result.goals:
        raise InputError(
            f"audit: the result is about {sizes[0]} states and {sizes[1]} actions, "
            f"the model has {model.n_states} and {model.n_actions}"
        )
    lower, upper = ({g: c[i] for g, c in result.certificates.items()} for i in (0, 1))
    return audit_policies(
        *(model, result.goals, {g: result.policy(g) for g in result.goals}, result.radius, setting.epsilon),
        goal_space=setting.goal_space,
        lower=lower,
        upper=upper,
    )


@dataclass
class _Session:
    """A run with its setting, its stage in the radius curriculum, and its checkpoints."""

    setting: Setting
    run: Run
    stage: int = 1
    certified: Result | None = None
    """The answer for the largest radius certified so far, in a curriculum."""
    _stop: bool = False
    _saved: float = 0.0

    @staticmethod
    def start(setting: Setting, world: World, rule: goal_rules.Rule) -> _Session:
        _check(setting)
        goals = None
        if setting.goal_space is not None:
            goals = np.unique(np.asarray(setting.goal_space, np.int64))
            if len(goals) == 0 or goals.min() < 0 or goals.max() >= world.state_bound:
                raise InputError(f"--goal: goals must be states in 0..{world.state_bound - 1}, at least one")
        counts = Counts(world.initial_states, world.n_actions, world.start)
        first = 2.0 if isinstance(setting.radius, str) else float(setting.radius)
        problem = methods.Problem(world, counts, first, setting.epsilon, setting.delta, goals)
        estimates = methods.build(setting.method, problem, setting.method_args)
        if isinstance(setting.radius, str) and not hasattr(estimates, "set_radius"):
            raise InputError(f"--radius {setting.radius}: not available with --method {setting.method}; give a number")
        return _Session(setting, Run(world, estimates, rule, np.random.default_rng(setting.seed)))

    def finish(self, folder: Path | None, observe: Observer | None) -> Result:
        """Run to the end, a budget or an interrupt; save and return the result."""
        budget = UNLIMITED if self.setting.budget is None else self.setting.budget
        self._saved = time.monotonic()

        def after_rollout(run: Run) -> None:
            if observe is not None:
                observe(run)
            if folder is not None and run.world.settled and time.monotonic() - self._saved > CHECKPOINT_SECONDS:
                self.save(folder)
            if self._stop:
                raise KeyboardInterrupt

        problem: str | None = None
        with self._catch_signals():
            try:
                status = self._stages(budget, after_rollout)
            except KeyboardInterrupt:
                status = "interrupted"
            except InputError:
                raise
            except Exception as error:
                status, problem = "interrupted", f"{type(error).__name__}: {error}"
        result = self._result(status)
        if folder is not None:
            self.save(folder)
            result.save(folder)
        if problem is not None:
            kept = "" if folder is None else f"; what had been learnt is in {folder}"
            raise InputError(f"the environment {self.setting.env} raised {problem}{kept}")
        return result

    def _stages(self, budget: int, observe: Observer) -> str:
        """One radius, or the curriculum L = 2, 4, 8, ... (label ``cor_UB_increasingL``)."""
        estimates: Any = self.run.estimates
        while True:
            status = run_loop(self.run, budget, observe)
            if status != "certified" or not isinstance(self.setting.radius, str):
                return status if estimates.guarantee or status != "certified" else "stopped"
            self.certified = self._result("certified")
            if not (estimates.D[1:] > estimates.L).any() and np.isinf(estimates.D[0]):
                return "certified"  # every goal is certified: no larger radius has more to say
            self.stage += 1
            estimates.set_radius(2.0 * estimates.L, self.stage)

    def _result(self, status: str) -> Result:
        run, estimates = self.run, self.run.estimates
        steps = {"steps": run.steps, "episodes": len(run.episode_goals), "plans": estimates.plans}
        if status != "certified" and self.certified is not None:
            return replace(self.certified, status=status, **steps, wall_seconds=run.seconds)
        seen = [int(g) for g in estimates.goals if estimates.goal_state[estimates.column[g]] >= 0]
        certificates = {g: Certificate(*estimates.bounds(g)) for g in seen}
        chosen = [g for g in seen if estimates.D[estimates.column[g]] <= estimates.L]
        still = run.open_columns()
        policies = [estimates.policy(g) for g in chosen]
        empty = np.zeros((0, 1, run.counts.n_states), np.int16)
        return Result(
            setting=self.setting,
            status=status,
            radius=float(estimates.L),
            goals=chosen,
            certificates=certificates,
            errors={g: float(estimates.E[estimates.column[g]]) for g in chosen},
            open_goals=[g for g in chosen if still[estimates.column[g]]],
            guarantee=estimates.guarantee,
            **steps,
            wall_seconds=run.seconds,
            reset_action=run.world.n_actions,
            warnings=list(getattr(run.world, "warnings", [])),
            arrays={
                "policy": np.stack(policies) if policies else empty,
                "policy_goals": np.array(chosen, np.int64),
                "episode_goals": np.array(run.episode_goals, np.int32),
                "episode_reached": np.array(run.episode_reached, bool),
                "trace": np.array(run.trace, float).reshape(-1, 4),
                "visits": run.counts.visits,
            },
        )

    # --- checkpoints: everything from which the run goes on bit for bit ---

    def save(self, folder: Path) -> None:
        run = self.run
        arrays, facts = run.estimates.state()
        named = {f"estimates.{k}": v for k, v in arrays.items()}
        named |= {f"counts.{k}": v for k, v in run.counts.state().items()}
        named |= {f"attempts.{k}": getattr(run.attempts, k) for k in Attempts.ARRAYS}
        named |= {"episode_goals": np.array(run.episode_goals, np.int32), "trace": np.array(run.trace, float)}
        named |= {"episode_reached": np.array(run.episode_reached, bool)}
        state = {
            "setting": {**self.setting.__dict__},
            "estimates": facts,
            "rng": run.rng.bit_generator.state,
            "world": run.world.snapshot(),
            "steps": run.steps,
            "seconds": run.seconds,
            "stage": self.stage,
        }
        write_arrays(folder / CHECKPOINT, named, state, compress=False)
        if self.certified is not None:
            self.certified.save(folder / "certified")
        self._saved = time.monotonic()

    def restore(self, arrays: dict[str, Any], facts: dict[str, Any]) -> None:
        run = self.run
        run.counts.restore({k: arrays[f"counts.{k}"] for k in Counts.ARRAYS})
        for stage in range(2, facts["stage"] + 1):
            run.estimates.set_radius(2.0 * run.estimates.L, stage)  # type: ignore[attr-defined]
        self.stage = facts["stage"]
        part = {k.removeprefix("estimates."): v for k, v in arrays.items() if k.startswith("estimates.")}
        run.estimates.restore(part, facts["estimates"])
        for name in Attempts.ARRAYS:
            setattr(run.attempts, name, np.array(arrays[f"attempts.{name}"]))
        run.episode_goals = arrays["episode_goals"].tolist()
        run.episode_reached = arrays["episode_reached"].tolist()
        run.trace = [(int(s), int(e), float(m), int(o)) for s, e, m, o in arrays["trace"].reshape(-1, 4)]
        run.rng.bit_generator.state = facts["rng"]
        run.world.restore(facts["world"])
        run.steps, run.seconds = facts["steps"], facts["seconds"]

    @contextlib.contextmanager
    def _catch_signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the run after the current rollout; a second Ctrl-C ends it at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: FrameType | None) -> None:
            if self._stop:
                raise KeyboardInterrupt
            self._stop = True

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _check(setting: Setting) -> None:
    """Ranges of what the user gave."""
    L = setting.radius
    if isinstance(L, str):
        if L not in ("auto", "all"):
            raise InputError(f"--radius: {L!r} is neither a number >= 1 nor auto nor all")
        if L == "auto" and setting.budget is None:
            raise InputError("--radius auto: needs --budget, the number of steps after which to stop enlarging it")
    elif not (math.isfinite(L) and L >= 1):
        raise InputError(f"--radius: must be a finite number >= 1, got {L}")
    if not (math.isfinite(setting.epsilon) and setting.epsilon > 0):
        raise InputError(f"--epsilon: must be a finite number > 0, got {setting.epsilon}")
    if not 0 < setting.delta < 1:
        raise InputError(f"--delta: must lie strictly between 0 and 1, got {setting.delta}")
    if setting.budget is not None and setting.budget < 1:
        raise InputError(f"--budget: must be at least 1 step, got {setting.budget}")
    if setting.seed < 0:
        raise InputError(f"--seed: must be a whole number >= 0, got {setting.seed}")


def _tuple(values: list[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(values)
