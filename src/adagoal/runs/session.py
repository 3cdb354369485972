"""A run from its setting to its result: the radius curriculum, checkpoints, interrupts."""

from __future__ import annotations

import contextlib
import math
import warnings
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from adagoal import methods
from adagoal.core.counts import Counts
from adagoal.core.errors import FolderWarning, InputError, RunWarning
from adagoal.core.files import Content, arrays_content
from adagoal.core.generator import put_back
from adagoal.core.past import Past
from adagoal.core.run import Attempts, Growing, Observer, Run, Waiting
from adagoal.core.schema import check_arrays
from adagoal.core.status import Status
from adagoal.core.trail import Trail
from adagoal.core.usercode import wanted
from adagoal.core.world import World
from adagoal.goals import Rule
from adagoal.planning import device
from adagoal.runs import asked
from adagoal.runs.answer import answer
from adagoal.runs.asked import Code
from adagoal.runs.folder import Folder, save_last
from adagoal.runs.result import Result, contradicted
from adagoal.runs.schemas import HISTORY
from adagoal.runs.setting import UNLIMITED, Setting, check, growth
from adagoal.runs.signals import Stop, stop_on_signals
from adagoal.runs.view import View
from adagoal.worlds import storage

CHECKPOINT = "checkpoint.npz"
STAGE = ("certified.json", "certified.npz")
"""The answer of the last finished stage of a curriculum, beside the checkpoint."""
STEPS = "transitions.npz"
"""Every step of the run, where it keeps them (:mod:`adagoal.core.trail`)."""
FIRST_RADIUS = 2.0
"""Where a curriculum begins."""
FRUITLESS = 3
"""Stages without a new goal after which a curriculum to all goals says that it may not end."""


@dataclass
class Session:
    """A run with its setting, its stage in the radius curriculum, and its checkpoints."""

    setting: Setting
    run: Run
    stage: int = 1
    certified: Result | None = None
    """The answer for the largest radius certified so far, in a curriculum."""
    _kept: Result | None = None
    """The one that is in the folder already."""
    _begun: bool = False
    """Whether the folder has a checkpoint of this session, and with it the world."""

    @staticmethod
    def start(setting: Setting, world: World, rule: Rule, goals: Code | None = None) -> Session:
        """A fresh run of the setting; ``goals`` is the code of goals that are sets, where the setting asks for it."""
        check(setting)
        method = methods.get(setting.method)
        if setting.growing and not method.grows:
            raise InputError(f"{setting.radius} is not available with the method {setting.method}", "radius")
        counts = Counts(world.initial_states, world.n_actions, world.start)
        first = FIRST_RADIUS if setting.growing else float(setting.radius)
        if setting.device != "cpu" and not method.on_device:
            able = ", ".join(name for name, method in methods.METHODS.items() if method.on_device)
            raise InputError(f"{setting.device} is for the method {able}, not for {setting.method}", "device")
        space = asked.space(setting, world, goals)
        backend = device.backend(setting.device, world.note)
        problem = methods.Problem(world, counts, first, setting.epsilon, setting.delta, space, backend, setting.seed)
        estimates = methods.build(setting.method, problem, setting.method_args)
        if setting.growing:
            cast(Growing, estimates).set_radius(first, 1)
        rng = np.random.default_rng(setting.seed)
        return Session(setting, Run(world, estimates, rule, rng, space=space, setting=setting))

    def record(self, steps: dict[str, NDArray[Any]] | None = None) -> None:
        """Keep every step from now on, after those that a folder holds; a ``ValueError`` where they do not fit."""
        trail = Trail(self.run.world.n_actions)
        if steps is not None:
            trail.restore(steps, self.run.counts)
        self.run.counts.trail = trail

    # --- running ------------------------------------------------------------------------------------------------

    def finish(self, folder: Folder | None, observe: Observer | None) -> Result:
        """Run to the end, a budget or an interrupt; save and return the result.

        Whatever is raised on the way, what was learnt is saved first. An error of the user's own code is told in one
        line; an exception of ours is raised unchanged.
        """
        status, failure, saved = Status.INTERRUPTED, None, False
        # dense inverses are small, and threads of a BLAS wait for each other by spinning; one thread rounds one way
        one_thread = threadpool_limits(limits=1, user_api="blas")
        with one_thread, stop_on_signals(None if folder is None else folder.path) as stop:
            if folder is not None:
                self.save(folder)
            try:
                status = self._stages(self._after_rollout(folder, observe, stop))
                if self._waits(status):
                    if folder is not None:  # the run goes on from here, as if there had been no last plan
                        with contextlib.suppress(InputError):  # the last save tries again, and tells it
                            self.save(folder)
                            saved = True
                    if saved or folder is None:
                        with self.run.timed():
                            cast(Waiting, self.run.estimates).conclude(self.run.open_columns())
            except KeyboardInterrupt:
                pass
            except Exception as error:
                failure = error
            stop.begin_saving()
            result = self.result(status)
            if folder is not None:
                self._save_last(folder, result, checkpoint=not saved)
        if failure is None:
            return result
        kept = "" if folder is None else f"what had been learnt is in {folder.path}"
        if isinstance(failure, InputError) and kept:
            raise type(failure)(f"{failure.reason}; {kept}", failure.name) from failure
        if kept:
            failure.add_note(kept)
        raise failure

    def _after_rollout(self, folder: Folder | None, observe: Observer | None, stop: Stop) -> Observer:
        """Tell the user's observer, save now and then, and say whether to go on."""

        def after(run: Run) -> bool:
            going = wanted(observe, run)
            if folder is not None and run.world.settled and folder.due():
                try:
                    self.save(folder)
                except InputError as error:  # a full disk may have room again later, and steps may have cost hours
                    warnings.warn(f"{error}; the run goes on, and tries again later", FolderWarning, stacklevel=2)
            return going and not stop.asked

        return after

    def _stages(self, observe: Observer) -> Status:
        """One radius, or the curriculum L = 2, 4, 8, ... (label ``cor_UB_increasingL``), or another factor."""
        loop, estimates = methods.get(self.setting.method).loop, self.run.estimates
        budget = UNLIMITED if self.setting.budget is None else self.setting.budget
        fruitless = 0
        while True:
            status = loop(self.run, budget, observe)
            if status is not Status.CERTIFIED or not self.setting.growing:
                return status
            before, self.certified = self.certified, answer(self.setting, self.run, status)
            if ((estimates.D <= estimates.L) | np.isinf(estimates.D)).all():
                return status  # every goal is certified or out of reach: no larger radius has more to say
            fruitless = fruitless + 1 if before is not None and before.goals == self.certified.goals else 0
            if fruitless == FRUITLESS and self.setting.budget is None:
                self._tell_that_it_may_not_end()
            self._enlarge()

    def _waits(self, status: Status) -> bool:
        """Whether a last plan can make the answer of a run better that has not come to its own end."""
        early = not status.finished and self.certified is None
        return early and methods.get(self.setting.method).waits

    def _enlarge(self) -> None:
        """The next stage of a curriculum."""
        estimates = cast(Growing, self.run.estimates)
        self.stage += 1
        estimates.set_radius(self._growth * estimates.L, self.stage)

    def _tell_that_it_may_not_end(self) -> None:
        L = self.run.estimates.L
        text = (
            f"no goal has been found beyond a radius of {L / self._growth**FRUITLESS:g}, and those within {L:g} are "
            "certified; where others cannot be reached at all, the run does not end by itself: interrupt it for the "
            "answer, or give a budget"
        )
        warnings.warn(text, RunWarning, stacklevel=2)

    @property
    def _growth(self) -> float:
        return growth(str(self.setting.radius))

    # --- the result ---------------------------------------------------------------------------------------------

    def result(self, status: Status) -> Result:
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
                model=storage.own(run.world),
                view=View.of(run.world),
            )
        else:
            result = answer(self.setting, self.run, status)
        reasons = list(run.world.void)
        if crossed := contradicted(result.certificates):
            reasons.append(f"the bounds contradict each other, first those of goal {crossed[0]}")
        if estimates.guarantee and reasons:
            result = replace(result, status=Status.VOID, certified_radius=None, void=reasons)
        return result

    # --- checkpoints: everything from which the run goes on bit for bit -------------------------------------------

    def save(self, folder: Folder) -> None:
        """Commit a checkpoint, with the answer of the last finished stage."""
        folder.save(*self._files(folder))
        self._kept, self._begun = self.certified, True

    def _save_last(self, folder: Folder, result: Result, checkpoint: bool) -> None:
        """Commit the result, with a checkpoint unless there is one; without room for both, save at least the answer."""
        state, results, same = self._files(folder, result, checkpoint)
        answer = result.contents() | result.view.contents() | storage.contents(result.model)
        name = f"the answer ({result.status}, {len(result.goals)} goals within {result.radius:g} steps)"
        save_last(folder, state, results, answer, name, same)

    def _files(
        self, folder: Folder, result: Result | None = None, checkpoint: bool = True
    ) -> tuple[dict[str, Content], dict[str, Content], tuple[str, ...]]:
        """Return the files of a checkpoint, result files, and the names of files that are carried over."""
        state = {CHECKPOINT: arrays_content(*self.state(), compress=False)} if checkpoint else {}
        unchanged = False
        if checkpoint and self.certified is not None:
            unchanged = self._kept is self.certified and folder.has(STAGE[1])
            state |= {} if unchanged else dict(zip(STAGE, self.certified.contents().values(), strict=True))
        results = {} if result is None else result.contents() | result.view.contents()
        if self.run.counts.trail is not None:
            results[STEPS] = arrays_content(self.run.counts.trail.arrays(), compress=False)
        if not self._begun:
            results |= storage.contents(storage.own(self.run.world))
        return state, results, STAGE if unchanged else ()

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Arrays and JSON-ready facts from which :meth:`restore` goes on."""
        run = self.run
        arrays, facts = run.estimates.state()
        seen, place = run.world.state()
        named = _under("estimates", arrays) | _under("counts", run.counts.state()) | _under("world", seen)
        members, names = run.space.state()
        named |= _under("goals", members)
        named |= {f"attempts.{k}": getattr(run.attempts, k) for k in Attempts.ARRAYS}
        named |= {"episode_goals": np.array(run.episode_goals, np.int32), "trace": np.array(run.trace, float)}
        named |= {"episode_reached": np.array(run.episode_reached, bool)} | run.past.arrays()
        return named, {
            "setting": {**self.setting.__dict__},
            "estimates": facts,
            "rng": run.rng.bit_generator.state,
            "world": place,
            "steps": run.steps,
            "seconds": run.seconds,
            "stage": self.stage,
            "goal_names": names,
        }

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any], certified: Result | None) -> None:
        """Back to a checkpoint, whose facts have the schema CHECKPOINT, and the answer of the last finished stage.

        What does not fit together is a ``ValueError``. Nothing reaches a kernel before it has been checked.
        """
        run, world = self.run, self.run.world
        run.counts.restore(_part("counts", arrays))
        S = run.counts.n_states
        if not world.initial_states <= S <= world.state_bound:
            raise ValueError(f"it has {S} states, the environment {world.state_bound}")
        run.space.restore(_part("goals", arrays), facts["goal_names"])
        run.space.grow(S)
        self._restore_stage(facts["stage"], certified)
        run.estimates.restore(_part("estimates", arrays), facts["estimates"])
        check_arrays(HISTORY, arrays, {"N": run.space.size})
        for name in Attempts.ARRAYS:
            setattr(run.attempts, name, np.array(arrays[f"attempts.{name}"]))
        run.episode_goals = arrays["episode_goals"].tolist()
        run.episode_reached = arrays["episode_reached"].tolist()
        trace = arrays["trace"].reshape(-1, 4)
        if not np.isfinite(trace[:, [0, 1, 3]]).all():
            raise ValueError("the trace has infinite numbers of steps, episodes or goals")
        run.trace = [(int(s), int(e), float(m), int(o)) for s, e, m, o in trace]
        run.past = Past.of(arrays)
        put_back(run.rng, facts["rng"])
        world.restore(_part("world", arrays), facts["world"])
        run.steps, run.seconds = facts["steps"], facts["seconds"]
        columns = len(run.estimates.goal_state) if methods.get(self.setting.method).asks_rule else 1
        for agent in facts["world"].get("copies", [facts["world"]]):
            state, aim, clock = agent["place"] if agent is not None else (world.start, -1, 0)
            if not (0 <= state < S and run.counts.seen[state] and aim < columns and clock >= 0):
                raise ValueError("the agent is nowhere")
        if run.steps > run.counts.visits.sum() or len(world.labels) > S:
            raise ValueError("it has more steps or states than its counts")

    def _restore_stage(self, stage: int, certified: Result | None) -> None:
        """The radius of a stage of the curriculum, as :meth:`_enlarge` would have set it."""
        if stage == 1:
            return
        if not self.setting.growing or certified is None:
            raise ValueError(f"there is no stage {stage} without the answer of the one before it")
        radii = [FIRST_RADIUS]
        while len(radii) < stage and math.isfinite(radii[-1]):
            radii.append(self._growth * radii[-1])
        same = replace(certified.setting, budget=self.setting.budget) == self.setting
        last = certified.certified_radius in radii[-2:]  # of the stage before, or, where nothing is left, of this one
        if not same or len(radii) < stage or not last or math.isinf(radii[-1]):
            raise ValueError("the answer of the last finished stage is not of this run")
        self.stage, self.certified = stage, certified
        self._kept = certified
        cast(Growing, self.run.estimates).set_radius(radii[-1], stage)


def _under(prefix: str, arrays: dict[str, Any]) -> dict[str, Any]:
    return {f"{prefix}.{name}": array for name, array in arrays.items()}


def _part(prefix: str, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(f"{prefix}."): a for name, a in arrays.items() if name.startswith(f"{prefix}.")}
