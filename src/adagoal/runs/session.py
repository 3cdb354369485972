"""A run from its setting to its result: the radius curriculum, checkpoints, interrupts."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from adagoal import methods
from adagoal.core.counts import Counts
from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.core.files import alone_in, write_arrays
from adagoal.core.run import Attempts, Growing, Observer, Run
from adagoal.core.status import Status
from adagoal.core.types import Longs
from adagoal.core.world import World
from adagoal.goals import Rule
from adagoal.runs.result import Certificate, Result, load
from adagoal.runs.setting import UNLIMITED, Setting, check, growth
from adagoal.worlds import storage

CHECKPOINT = "checkpoint.npz"
CHECKPOINT_SECONDS = 10.0
FIRST_RADIUS = 2.0
"""Where a curriculum begins."""


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
        method = methods.get(setting.method)
        if setting.growing and not method.grows:
            raise InputError(f"{setting.radius} is not available with the method {setting.method}", "radius")
        counts = Counts(world.initial_states, world.n_actions, world.start)
        first = FIRST_RADIUS if setting.growing else float(setting.radius)
        problem = methods.Problem(world, counts, first, setting.epsilon, setting.delta, _goals(setting, world))
        estimates = methods.build(setting.method, problem, setting.method_args)
        if setting.growing:
            cast(Growing, estimates).set_radius(first, 1)
        return Session(setting, Run(world, estimates, rule, np.random.default_rng(setting.seed)))

    # --- running ------------------------------------------------------------------------------------------------

    def finish(self, folder: Path | None, observe: Observer | None) -> Result:
        """Run to the end, a budget or an interrupt; save and return the result.

        Whatever is raised on the way, what was learnt is saved first. An error of the user's own code is told in one
        line; an exception of ours is raised unchanged.
        """
        with alone_in(folder):
            if folder is not None:
                storage.keep(self.run.world, folder)
                self.save(folder)
            status, failure = Status.INTERRUPTED, None
            with self._catch_signals():
                try:
                    status = self._stages(self._after_rollout(folder, observe))
                except KeyboardInterrupt:
                    pass
                except Exception as error:
                    failure = error
            result = self._result(status)
            if folder is not None:
                self.save(folder)
                result.save(folder)
        if failure is None:
            return result
        kept = "" if folder is None else f"what had been learnt is in {folder}"
        if isinstance(failure, InputError) and kept:
            raise type(failure)(f"{failure.reason}; {kept}", failure.name) from failure
        if kept:
            failure.add_note(kept)
        raise failure

    def _after_rollout(self, folder: Path | None, observe: Observer | None) -> Observer:
        """Tell the user's observer, save now and then, and say whether to go on."""
        self._saved = time.monotonic()

        def after(run: Run) -> bool:
            wanted = True
            if observe is not None:
                try:
                    wanted = observe(run) is not False
                except Exception as error:
                    text = f"the function raised {type(error).__name__}: {error}"
                    raise EnvironmentFailure(text, "observe") from error
            if folder is not None and run.world.settled and time.monotonic() - self._saved > CHECKPOINT_SECONDS:
                self.save(folder)
            return wanted and not self._stop

        return after

    def _stages(self, observe: Observer) -> Status:
        """One radius, or the curriculum L = 2, 4, 8, ... (label ``cor_UB_increasingL``), or another factor."""
        loop, estimates = methods.get(self.setting.method).loop, self.run.estimates
        budget = UNLIMITED if self.setting.budget is None else self.setting.budget
        while True:
            status = loop(self.run, budget, observe)
            if status is not Status.CERTIFIED or not self.setting.growing:
                return status
            self.certified = self._answer(status)
            if ((estimates.D <= estimates.L) | np.isinf(estimates.D)).all():
                return status  # every goal is certified or out of reach: no larger radius has more to say
            self._enlarge()

    def _enlarge(self) -> None:
        """The next stage of a curriculum."""
        estimates = cast(Growing, self.run.estimates)
        self.stage += 1
        estimates.set_radius(growth(str(self.setting.radius)) * estimates.L, self.stage)

    # --- the result ---------------------------------------------------------------------------------------------

    def _result(self, status: Status) -> Result:
        """The answer as it stands, or that of the last finished stage of a curriculum; void where a check failed."""
        run, estimates = self.run, self.run.estimates
        if status is not Status.CERTIFIED and self.certified is not None:
            result = replace(
                self.certified,
                status=status,
                steps=run.steps,
                episodes=len(run.episode_goals),
                plans=estimates.plans,
                wall_seconds=run.seconds,
            )
        else:
            result = self._answer(status)
        if estimates.guarantee and run.world.void:
            result = replace(result, status=Status.VOID, certified_radius=None, void=list(run.world.void))
        return result

    def _answer(self, status: Status) -> Result:
        run, estimates = self.run, self.run.estimates
        seen = [int(g) for g in estimates.goals if estimates.goal_state[estimates.column[g]] >= 0]
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
            certificates={g: Certificate(*estimates.bounds(g)) for g in seen},
            errors={g: float(estimates.E[estimates.column[g]]) for g in chosen},
            open_goals=[g for g in chosen if still[estimates.column[g]]],
            guarantee=estimates.guarantee,
            steps=run.steps,
            episodes=len(run.episode_goals),
            plans=estimates.plans,
            wall_seconds=run.seconds,
            reset_action=run.world.n_actions,
            warnings=[*run.world.warnings, *([] if estimates.guarantee else run.world.void)],
            void=[],
            model=storage.own(run.world),
            arrays={
                "policy": np.stack(policies) if policies else empty,
                "policy_goals": np.array(chosen, np.int64),
                "episode_goals": np.array(run.episode_goals, np.int32),
                "episode_reached": np.array(run.episode_reached, bool),
                "trace": np.array(run.trace, float).reshape(-1, 4),
                "visits": run.counts.visits.copy(),
                **estimates.extras(),
            },
        )

    # --- checkpoints: everything from which the run goes on bit for bit -------------------------------------------

    def save(self, folder: Path) -> None:
        """Write a checkpoint, after the answer of the last finished stage, which a later stage needs."""
        run = self.run
        if self.certified is not None:
            self.certified.save(folder / "certified")
        arrays, facts = run.estimates.state()
        seen, place = run.world.state()
        named = _under("estimates", arrays) | _under("counts", run.counts.state()) | _under("world", seen)
        named |= {f"attempts.{k}": getattr(run.attempts, k) for k in Attempts.ARRAYS}
        named |= {"episode_goals": np.array(run.episode_goals, np.int32), "trace": np.array(run.trace, float)}
        named |= {"episode_reached": np.array(run.episode_reached, bool)}
        state = {
            "setting": {**self.setting.__dict__},
            "estimates": facts,
            "rng": run.rng.bit_generator.state,
            "world": place,
            "steps": run.steps,
            "seconds": run.seconds,
            "stage": self.stage,
        }
        write_arrays(folder / CHECKPOINT, named, state, compress=False)
        self._saved = time.monotonic()

    def restore(self, folder: Path, arrays: dict[str, Any], facts: dict[str, Any]) -> None:
        """Back to a checkpoint."""
        run = self.run
        if facts["stage"] > 1:
            self.certified = load(folder / "certified")
        run.counts.restore(_part("counts", arrays))
        while self.stage < facts["stage"]:
            self._enlarge()
        run.estimates.restore(_part("estimates", arrays), facts["estimates"])
        for name in Attempts.ARRAYS:
            setattr(run.attempts, name, np.array(arrays[f"attempts.{name}"]))
        run.episode_goals = arrays["episode_goals"].tolist()
        run.episode_reached = arrays["episode_reached"].tolist()
        run.trace = [(int(s), int(e), float(m), int(o)) for s, e, m, o in arrays["trace"].reshape(-1, 4)]
        run.rng.bit_generator.state = facts["rng"]
        run.world.restore(_part("world", arrays), facts["world"])
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


def _goals(setting: Setting, world: World) -> Longs | None:
    """The goal space as states, checked against the world."""
    if world.initial_states < world.state_bound:
        found = "the states of this environment are numbered as they are found"
        if setting.goal_space is not None:
            raise InputError(f"{found}, so goals cannot be named in advance", "goal_space")
        if str(setting.radius).startswith("all"):
            raise InputError(f'{found}; use "auto" with a budget instead of "all"', "radius")
    if setting.goal_space is None:
        return None
    whole = all(isinstance(g, int) and not isinstance(g, bool) and abs(g) < 2**62 for g in setting.goal_space)
    goals = np.unique(np.asarray(setting.goal_space if whole else [], np.int64))
    if len(goals) == 0 or goals.min() < 0 or goals.max() >= world.state_bound:
        raise InputError(f"goals must be states in 0..{world.state_bound - 1}, at least one", "goal_space")
    return goals


def _under(prefix: str, arrays: dict[str, Any]) -> dict[str, Any]:
    return {f"{prefix}.{name}": array for name, array in arrays.items()}


def _part(prefix: str, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(f"{prefix}."): a for name, a in arrays.items() if name.startswith(f"{prefix}.")}
