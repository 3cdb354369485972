"""A run from its setting to its result: the radius curriculum, checkpoints, interrupts."""

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

import numpy as np

from adagoal import methods
from adagoal.core.checks import number
from adagoal.core.world import World
from adagoal.core.errors import InputError
from adagoal.goals import Rule
from adagoal.core.run import Attempts, Observer, Run
from adagoal.core.status import Status
from adagoal.loop import explore as run_loop
from adagoal.runs.result import Certificate, Result, Setting, load
from adagoal.rivals.explorer import Explorer, follow
from adagoal.core.files import alone_in, write_arrays
from adagoal.core.counts import Counts

CHECKPOINT = "checkpoint.npz"
CHECKPOINT_SECONDS = 10.0
UNLIMITED = 2**62


@dataclass
class Session:
    """A run with its setting, its stage in the radius curriculum, and its checkpoints."""

    setting: Setting
    run: Run
    stage: int = 1
    certified: Result | None = None
    """The answer for the largest radius certified so far, in a curriculum."""
    _stop: bool = False
    _saved: float = 0.0

    @staticmethod
    def start(setting: Setting, world: World, rule: Rule) -> Session:
        """A fresh run of the setting."""
        check(setting)
        goals = None
        if world.initial_states < world.state_bound:
            found = "the states of this environment are numbered as they are found"
            if setting.goal_space is not None:
                raise InputError(f"--goal: {found}, so goals cannot be named in advance")
            if str(setting.radius).startswith("all"):
                raise InputError(f"--radius all: {found}; use --radius auto with a --budget")
        if setting.goal_space is not None:
            whole = all(isinstance(g, int) and not isinstance(g, bool) for g in setting.goal_space)
            goals = np.unique(np.asarray(setting.goal_space if whole else [], np.int64))
            if len(goals) == 0 or goals.min() < 0 or goals.max() >= world.state_bound:
                raise InputError(f"--goal: goals must be states in 0..{world.state_bound - 1}, at least one")
        counts = Counts(world.initial_states, world.n_actions, world.start)
        first = 2.0 if isinstance(setting.radius, str) else float(setting.radius)
        problem = methods.Problem(world, counts, first, setting.epsilon, setting.delta, goals)
        estimates = methods.build(setting.method, problem, setting.method_args)
        if isinstance(setting.radius, str):
            if not hasattr(estimates, "set_radius"):
                raise InputError(f"--radius {setting.radius}: not available with --method {setting.method}")
            estimates.set_radius(first, 1)
        return Session(setting, Run(world, estimates, rule, np.random.default_rng(setting.seed)))

    def finish(self, folder: Path | None, observe: Observer | None) -> Result:
        """Run to the end, a budget or an interrupt; save and return the result."""
        with alone_in(folder):
            return self._finish(folder, observe)

    def _finish(self, folder: Path | None, observe: Observer | None) -> Result:
        budget = UNLIMITED if self.setting.budget is None else self.setting.budget
        self._saved = time.monotonic()
        if folder is not None:
            self.save(folder)

        def after_rollout(run: Run) -> bool:
            wanted = True
            if observe is not None:
                try:
                    wanted = observe(run) is not False
                except Exception as error:
                    raise InputError(f"observe: the function raised {type(error).__name__}: {error}") from error
            if folder is not None and run.world.settled and time.monotonic() - self._saved > CHECKPOINT_SECONDS:
                self.save(folder)
            return wanted and not self._stop

        problem: InputError | None = None
        with self._catch_signals():
            try:
                status = self._stages(budget, after_rollout)
            except KeyboardInterrupt:
                status = Status.INTERRUPTED
            except InputError as error:
                status, problem = Status.INTERRUPTED, error
            except Exception as error:
                text = f"{self.setting.env} raised {type(error).__name__}: {error}"
                status, problem = Status.INTERRUPTED, InputError(f"the environment {text}")
        result = self._result(status)
        if folder is not None:
            self.save(folder)
            result.save(folder)
        if problem is not None:
            raise problem if folder is None else InputError(f"{problem}; what had been learnt is in {folder}")
        return result

    def _stages(self, budget: int, observe: Observer) -> Status:
        """One radius, or the curriculum L = 2, 4, 8, ... (label ``cor_UB_increasingL``), or another factor."""
        estimates: Any = self.run.estimates
        while True:
            if isinstance(estimates, Explorer):
                status = follow(self.run, estimates, budget, observe)
            else:
                status = run_loop(self.run, budget, observe)
            if status is not Status.CERTIFIED or not isinstance(self.setting.radius, str):
                return status
            self.certified = self._result(status)
            if ((estimates.D <= estimates.L) | np.isinf(estimates.D)).all():
                return status  # every goal is certified or out of reach: no larger radius has more to say
            self.stage += 1
            estimates.set_radius(growth(self.setting.radius) * estimates.L, self.stage)

    def _result(self, status: Status) -> Result:
        run, estimates = self.run, self.run.estimates
        if status is not Status.CERTIFIED and self.certified is not None:
            return replace(
                self.certified,
                status=status,
                steps=run.steps,
                episodes=len(run.episode_goals),
                plans=estimates.plans,
                wall_seconds=run.seconds,
            )
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
            certified_radius=float(estimates.L) if status is Status.CERTIFIED else None,
            goals=chosen,
            certificates=certificates,
            errors={g: float(estimates.E[estimates.column[g]]) for g in chosen},
            open_goals=[g for g in chosen if still[estimates.column[g]]],
            guarantee=estimates.guarantee,
            steps=run.steps,
            episodes=len(run.episode_goals),
            plans=estimates.plans,
            wall_seconds=run.seconds,
            reset_action=run.world.n_actions,
            warnings=list(run.world.warnings),
            arrays={
                "policy": np.stack(policies) if policies else empty,
                "policy_goals": np.array(chosen, np.int64),
                "episode_goals": np.array(run.episode_goals, np.int32),
                "episode_reached": np.array(run.episode_reached, bool),
                "trace": np.array(run.trace, float).reshape(-1, 4),
                "visits": run.counts.visits,
                **getattr(estimates, "extras", dict)(),
            },
        )

    # --- checkpoints: everything from which the run goes on bit for bit ---

    def save(self, folder: Path) -> None:
        """Write a checkpoint, after the answer of the last finished stage, which a later stage needs."""
        run = self.run
        if self.certified is not None:
            self.certified.save(folder / "certified")
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
        self._saved = time.monotonic()

    def restore(self, folder: Path, arrays: dict[str, Any], facts: dict[str, Any]) -> None:
        """Back to a checkpoint."""
        run: Any = self.run
        if facts["stage"] > 1:
            self.certified = load(folder / "certified")
        run.counts.restore({k: arrays[f"counts.{k}"] for k in Counts.ARRAYS})
        for stage in range(2, facts["stage"] + 1):
            run.estimates.set_radius(growth(str(self.setting.radius)) * run.estimates.L, stage)
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


def growth(radius: str) -> float:
    """The factor of a curriculum: 2 for "auto" and "all", f for "auto:f" and "all:f"."""
    name, _, factor = radius.partition(":")
    try:
        value = float(factor or 2)
    except ValueError:
        value = math.nan
    if name not in ("auto", "all") or not 1 < value <= 100:
        raise InputError(
            f"--radius: {radius!r} is neither a number >= 1 nor auto, all, auto:F or all:F with a factor F in (1, 100]"
        )
    return value


def check(setting: Setting) -> None:
    """Types and ranges of what the user gave."""
    whole, real = "a whole number", "a number"
    kinds = {"epsilon": real, "delta": real, "seed": whole, "budget": whole} | (
        {} if isinstance(setting.radius, str) else {"radius": real}
    )
    for name, kind in kinds.items():
        value = getattr(setting, name)
        right = isinstance(value, int if kind == whole else int | float)
        if isinstance(value, bool) or not (right or (name == "budget" and value is None)):
            raise InputError(f"--{name}: must be {kind}, got {value!r}")
    L = setting.radius
    if isinstance(L, str):
        growth(L)
        if L.startswith("auto") and setting.budget is None:
            raise InputError("--radius auto: needs --budget, the number of steps after which to stop enlarging it")
    else:
        number("--radius", L, 1, 1e9)
    number("--epsilon", setting.epsilon, 1e-9, 1e9)
    number("--delta", setting.delta, 1e-300, 1, closed="[)")
    if setting.budget is not None and not 1 <= setting.budget <= UNLIMITED:
        raise InputError(f"--budget: must be at least 1 step and at most {UNLIMITED:.1e}, got {setting.budget}")
    if setting.seed < 0:
        raise InputError(f"--seed: must be a whole number >= 0, got {setting.seed}")
