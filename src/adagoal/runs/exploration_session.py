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
from adagoal.core.environment import TabularEnv
from adagoal.core.errors import FolderWarning, InputError, RunWarning, Status
from adagoal.core.exploration_run import (
    BoundsHistory,
    ExplorationRun,
    GoalAttempts,
    RunObserver,
    SupportsFinalize,
    SupportsRadiusCurriculum,
)
from adagoal.core.file_formats import check_arrays
from adagoal.core.file_io import FileContent, arrays_content
from adagoal.core.random_streams import restore_rng_state
from adagoal.core.transition_data import TransitionCounts, TransitionLog
from adagoal.core.user_code import call_observer
from adagoal.envs import model_sources
from adagoal.goal_rules import GoalRule
from adagoal.planning import backends
from adagoal.runs.exploration_schemas import RUN_HISTORY_SCHEMA
from adagoal.runs.result import Certificate, Result, find_contradicted_goals
from adagoal.runs.run_folder import RunFolder, save_final_files
from adagoal.runs.state_metadata import StateMetadata
from adagoal.runs.stop_requests import StopRequest, stop_on_signals
from adagoal.settings import goal_spec
from adagoal.settings.exploration import UNLIMITED_BUDGET, ExplorationSettings, radius_growth_factor
from adagoal.settings.goal_spec import GoalCode

CHECKPOINT_FILE = "checkpoint.npz"
STAGE_RESULT_FILES = ("certified.json", "certified.npz")
"""The answer of the last finished stage of a curriculum, beside the checkpoint."""
TRANSITIONS_FILE = "transitions.npz"
"""Every step of the run, where it keeps them (:mod:`adagoal.core.transition_data`)."""
INITIAL_RADIUS = 2.0
"""Where a curriculum begins."""
FRUITLESS_STAGES_BEFORE_WARNING = 3
"""Stages without a new goal after which a curriculum to all goals says that it may not end."""


@dataclass
class ExplorationSession:
    """A run with its setting, its stage in the radius curriculum, and its checkpoints."""

    setting: ExplorationSettings
    run: ExplorationRun
    stage: int = 1
    last_certified: Result | None = None
    """The answer for the largest radius certified so far, in a curriculum."""
    _last_saved_certified: Result | None = None
    """The one that is in the folder already."""
    _has_saved_model: bool = False
    """Whether the folder has a checkpoint of this session, and with it the world."""

    @staticmethod
    def from_settings(
        setting: ExplorationSettings, world: TabularEnv, rule: GoalRule, goals: GoalCode | None = None
    ) -> ExplorationSession:
        """A fresh run of the setting; ``goals`` is the code of goals that are sets, where the setting asks for it."""
        method = methods.find_method(setting.method)
        if setting.has_growing_radius and not method.radius_can_grow:
            raise InputError(f"{setting.radius} is not available with the method {setting.method}", "radius")
        counts = TransitionCounts(world.initial_states, world.n_actions, world.start)
        first = INITIAL_RADIUS if setting.has_growing_radius else float(setting.radius)
        if setting.device != "cpu" and not method.supports_device:
            able = ", ".join(name for name, method in methods.METHODS.items() if method.supports_device)
            raise InputError(f"{setting.device} is for the method {able}, not for {setting.method}", "device")
        space = goal_spec.build_goal_space(setting, world, goals)
        backend = backends.select_backend(setting.device, world.add_warning)
        problem = methods.ExplorationProblem(
            world, counts, first, setting.epsilon, setting.delta, space, backend, setting.seed
        )
        estimates = methods.build_estimates(setting.method, problem, setting.method_args)
        if setting.has_growing_radius:
            cast(SupportsRadiusCurriculum, estimates).set_radius(first, 1)
        rng = np.random.default_rng(setting.seed)
        return ExplorationSession(
            setting, ExplorationRun(world, estimates, rule, rng, goal_space=space, setting=setting)
        )

    def record_transitions(self, steps: dict[str, NDArray[Any]] | None = None) -> None:
        """Keep every step from now on, after those that a folder holds; a ``ValueError`` where they do not fit."""
        trail = TransitionLog(self.run.env.n_actions)
        if steps is not None:
            trail.restore_steps(steps, self.run.counts)
        self.run.counts.transition_log = trail

    # --- running ------------------------------------------------------------------------------------------------

    def run_to_end(self, folder: RunFolder | None, observe: RunObserver | None) -> Result:
        """Run to the end, a budget or an interrupt; save and return the result.

        Whatever is raised on the way, what was learnt is saved first. An error of the user's own code is told in one
        line; an exception of ours is raised unchanged.
        """
        status, failure, saved = Status.INTERRUPTED, None, False
        # dense inverses are small, and threads of a BLAS wait for each other by spinning; one thread rounds one way
        one_thread = threadpool_limits(limits=1, user_api="blas")
        with one_thread, stop_on_signals(None if folder is None else folder.path) as stop:
            if folder is not None:
                self.save_checkpoint(folder)
            try:
                status = self._run_stages(self._make_rollout_observer(folder, observe, stop))
                if self._needs_final_plan(status):
                    if folder is not None:  # the run goes on from here, as if there had been no last plan
                        with contextlib.suppress(InputError):  # the last save tries again, and tells it
                            self.save_checkpoint(folder)
                            saved = True
                    if saved or folder is None:
                        with self.run.measure_seconds():
                            cast(SupportsFinalize, self.run.estimates).finalize(self.run.open_columns())
            except KeyboardInterrupt:
                pass
            except Exception as error:
                failure = error
            stop.begin_saving()
            result = self.result(status)
            if folder is not None:
                self._save_final_result(folder, result, checkpoint=not saved)
        if failure is None:
            return result
        kept = "" if folder is None else f"what had been learnt is in {folder.path}"
        if isinstance(failure, InputError) and kept:
            raise type(failure)(f"{failure.reason}; {kept}", failure.name) from failure
        if kept:
            failure.add_note(kept)
        raise failure

    def _make_rollout_observer(
        self, folder: RunFolder | None, observe: RunObserver | None, stop: StopRequest
    ) -> RunObserver:
        """Tell the user's observer, save now and then, and say whether to go on."""

        def after(run: ExplorationRun) -> bool:
            going = call_observer(observe, run)
            if folder is not None and run.env.is_restorable and folder.is_save_due():
                try:
                    self.save_checkpoint(folder)
                except InputError as error:  # a full disk may have room again later, and steps may have cost hours
                    warnings.warn(f"{error}; the run goes on, and tries again later", FolderWarning, stacklevel=2)
            return going and not stop.is_requested

        return after

    def _run_stages(self, observe: RunObserver) -> Status:
        """One radius, or the curriculum L = 2, 4, 8, ... (label ``cor_UB_increasingL``), or another factor."""
        loop, estimates = methods.find_method(self.setting.method).run_loop, self.run.estimates
        budget = UNLIMITED_BUDGET if self.setting.budget is None else self.setting.budget
        fruitless = 0
        while True:
            status = loop(self.run, budget, observe)
            if status is not Status.CERTIFIED or not self.setting.has_growing_radius:
                return status
            before, self.last_certified = self.last_certified, build_result(self.setting, self.run, status)
            if ((estimates.D <= estimates.L) | np.isinf(estimates.D)).all():
                return status  # every goal is certified or out of reach: no larger radius has more to say
            fruitless = fruitless + 1 if before is not None and before.goals == self.last_certified.goals else 0
            if fruitless == FRUITLESS_STAGES_BEFORE_WARNING and self.setting.budget is None:
                self._warn_about_fruitless_stages()
            self._enlarge_radius()

    def _needs_final_plan(self, status: Status) -> bool:
        """Whether a last plan can make the answer of a run better that has not come to its own end."""
        early = not status.finished and self.last_certified is None
        return early and methods.find_method(self.setting.method).can_finalize

    def _enlarge_radius(self) -> None:
        """The next stage of a curriculum."""
        estimates = cast(SupportsRadiusCurriculum, self.run.estimates)
        self.stage += 1
        estimates.set_radius(self._growth_factor * estimates.L, self.stage)

    def _warn_about_fruitless_stages(self) -> None:
        L = self.run.estimates.L
        text = (
            f"no goal has been found beyond a radius of {L / self._growth_factor**FRUITLESS_STAGES_BEFORE_WARNING:g}, "
            f"and those within {L:g} are "
            "certified; where others cannot be reached at all, the run does not end by itself: interrupt it for the "
            "answer, or give a budget"
        )
        warnings.warn(text, RunWarning, stacklevel=2)

    @property
    def _growth_factor(self) -> float:
        return radius_growth_factor(str(self.setting.radius))

    # --- the result ---------------------------------------------------------------------------------------------

    def result(self, status: Status) -> Result:
        """The answer as it stands, or that of the last finished stage of a curriculum; void where a check failed."""
        run, estimates = self.run, self.run.estimates
        if status is not Status.CERTIFIED and self.last_certified is not None:
            result = replace(
                self.last_certified,
                status=status,
                steps=run.steps,
                episodes=len(run.episode_goals),
                plans=estimates.plans,
                wall_seconds=run.seconds,
                model=model_sources.find_user_model(run.env),
                view=StateMetadata.from_env(run.env),
            )
        else:
            result = build_result(self.setting, self.run, status)
        reasons = list(run.env.void_reasons)
        if crossed := find_contradicted_goals(result.certificates):
            reasons.append(f"the bounds contradict each other, first those of goal {crossed[0]}")
        if estimates.guarantee and reasons:
            result = replace(result, status=Status.VOID, certified_radius=None, void=reasons)
        return result

    # --- checkpoints: everything from which the run goes on bit for bit -------------------------------------------

    def save_checkpoint(self, folder: RunFolder) -> None:
        """Commit a checkpoint, with the answer of the last finished stage."""
        folder.save_files(*self._checkpoint_and_result_files(folder))
        self._last_saved_certified, self._has_saved_model = self.last_certified, True

    def _save_final_result(self, folder: RunFolder, result: Result, checkpoint: bool) -> None:
        """Commit the result, with a checkpoint unless there is one; without room for both, save at least the answer."""
        state, results, same = self._checkpoint_and_result_files(folder, result, checkpoint)
        answer = result.contents() | result.view.file_contents() | model_sources.model_folder_contents(result.model)
        name = f"the answer ({result.status}, {len(result.goals)} goals within {result.radius:g} steps)"
        save_final_files(folder, state, results, answer, name, same)

    def _checkpoint_and_result_files(
        self, folder: RunFolder, result: Result | None = None, checkpoint: bool = True
    ) -> tuple[dict[str, FileContent], dict[str, FileContent], tuple[str, ...]]:
        """Return the files of a checkpoint, result files, and the names of files that are carried over."""
        state = {CHECKPOINT_FILE: arrays_content(*self.state(), compress=False)} if checkpoint else {}
        unchanged = False
        if checkpoint and self.last_certified is not None:
            unchanged = self._last_saved_certified is self.last_certified and folder.has_checkpoint_file(
                STAGE_RESULT_FILES[1]
            )
            state |= (
                {} if unchanged else dict(zip(STAGE_RESULT_FILES, self.last_certified.contents().values(), strict=True))
            )
        results = {} if result is None else result.contents() | result.view.file_contents()
        if self.run.counts.transition_log is not None:
            results[TRANSITIONS_FILE] = arrays_content(self.run.counts.transition_log.to_arrays(), compress=False)
        if not self._has_saved_model:
            results |= model_sources.model_folder_contents(model_sources.find_user_model(self.run.env))
        return state, results, STAGE_RESULT_FILES if unchanged else ()

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Arrays and JSON-ready facts from which :meth:`restore` goes on."""
        run = self.run
        arrays, facts = run.estimates.state()
        seen, place = run.env.state()
        named = (
            _add_prefix("estimates", arrays) | _add_prefix("counts", run.counts.state()) | _add_prefix("world", seen)
        )
        members, names = run.goal_space.state()
        named |= _add_prefix("goals", members)
        named |= {f"attempts.{k}": getattr(run.goal_attempts, k) for k in GoalAttempts.ARRAY_NAMES}
        named |= {"episode_goals": np.array(run.episode_goals, np.int32), "trace": np.array(run.trace, float)}
        named |= {"episode_reached": np.array(run.episode_reached, bool)} | run.bounds_history.to_arrays()
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
        run, world = self.run, self.run.env
        run.counts.restore(_select_prefix("counts", arrays))
        S = run.counts.n_states
        if not world.initial_states <= S <= world.state_bound:
            raise ValueError(f"it has {S} states, the environment {world.state_bound}")
        run.goal_space.restore(_select_prefix("goals", arrays), facts["goal_names"])
        run.goal_space.grow_states(S)
        self._restore_stage(facts["stage"], certified)
        run.estimates.restore(_select_prefix("estimates", arrays), facts["estimates"])
        check_arrays(RUN_HISTORY_SCHEMA, arrays, {"N": run.goal_space.n_goal_numbers})
        for name in GoalAttempts.ARRAY_NAMES:
            setattr(run.goal_attempts, name, np.array(arrays[f"attempts.{name}"]))
        run.episode_goals = arrays["episode_goals"].tolist()
        run.episode_reached = arrays["episode_reached"].tolist()
        trace = arrays["trace"].reshape(-1, 4)
        if not np.isfinite(trace[:, [0, 1, 3]]).all():
            raise ValueError("the trace has infinite numbers of steps, episodes or goals")
        run.trace = [(int(s), int(e), float(m), int(o)) for s, e, m, o in trace]
        run.bounds_history = BoundsHistory.from_arrays(arrays)
        restore_rng_state(run.rng, facts["rng"])
        world.restore(_select_prefix("world", arrays), facts["world"])
        run.steps, run.seconds = facts["steps"], facts["seconds"]
        columns = len(run.estimates.goal_state) if methods.find_method(self.setting.method).uses_goal_rule else 1
        for agent in facts["world"].get("copies", [facts["world"]]):
            state, aim, clock = agent["place"] if agent is not None else (world.start, -1, 0)
            if not (0 <= state < S and run.counts.seen[state] and aim < columns and clock >= 0):
                raise ValueError("the agent is nowhere")
        if run.steps > run.counts.visits.sum() or len(world.labels) > S:
            raise ValueError("it has more steps or states than its counts")

    def _restore_stage(self, stage: int, certified: Result | None) -> None:
        """The radius of a stage of the curriculum, as :meth:`_enlarge_radius` would have set it."""
        if stage == 1:
            return
        if not self.setting.has_growing_radius or certified is None:
            raise ValueError(f"there is no stage {stage} without the answer of the one before it")
        radii = [INITIAL_RADIUS]
        while len(radii) < stage and math.isfinite(radii[-1]):
            radii.append(self._growth_factor * radii[-1])
        same = replace(certified.setting, budget=self.setting.budget) == self.setting
        last = certified.certified_radius in radii[-2:]  # of the stage before, or, where nothing is left, of this one
        if not same or len(radii) < stage or not last or math.isinf(radii[-1]):
            raise ValueError("the answer of the last finished stage is not of this run")
        self.stage, self.last_certified = stage, certified
        self._last_saved_certified = certified
        cast(SupportsRadiusCurriculum, self.run.estimates).set_radius(radii[-1], stage)


def _add_prefix(prefix: str, arrays: dict[str, Any]) -> dict[str, Any]:
    return {f"{prefix}.{name}": array for name, array in arrays.items()}


def _select_prefix(prefix: str, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(f"{prefix}."): a for name, a in arrays.items() if name.startswith(f"{prefix}.")}


# What a run would answer now: its estimates as a result.


def build_result(setting: ExplorationSettings, run: ExplorationRun, status: Status) -> Result:
    """The goals believed to lie within the radius, with their bounds, policies and history; nothing in it changes."""
    estimates = run.estimates
    own = estimates.goal_state[estimates.column[estimates.goals]] >= 0
    met = np.isin(estimates.goals, run.goal_space.goals_of_states[: run.counts.n_states][run.counts.seen])
    seen = estimates.goals[own | met].tolist()
    chosen = [int(g) for g in estimates.goals[own] if estimates.D[estimates.column[g]] <= estimates.L]
    still = run.open_columns()
    policies = [estimates.goal_policy(g) for g in chosen]
    S = run.counts.n_states
    run.goal_space.grow_states(S)
    observed = run.env.observed_states() if hasattr(run.env, "observed_states") else None
    promised = _unverified_assumptions(run) if observed is not None and len(observed.digests) else []
    empty = np.zeros((0, 1, S), np.int16)
    return Result(
        setting=setting,
        status=status,
        radius=float(estimates.L),
        certified_radius=float(estimates.L) if status is Status.CERTIFIED else None,
        goals=chosen,
        certificates={g: Certificate(*estimates.distance_bounds(g)) for g in seen},
        errors={g: float(estimates.E[estimates.column[g]]) for g in chosen},
        open_goals=[g for g in chosen if still[estimates.column[g]]],
        guarantee=estimates.guarantee,
        steps=run.steps,
        episodes=len(run.episode_goals),
        plans=estimates.plans,
        wall_seconds=run.seconds,
        reset_action=run.env.n_actions,
        warnings=[*run.env.warnings, *promised, *([] if estimates.guarantee else run.env.void_reasons)],
        void=[],
        model=model_sources.find_user_model(run.env),
        goal_names=None if run.goal_space.names is None else tuple(run.goal_space.names),
        view=StateMetadata.from_env(run.env),
        arrays={
            "policy": np.stack(policies) if policies else empty,
            "policy_goals": np.array(chosen, np.int64),
            "episode_goals": np.array(run.episode_goals, np.int32),
            "episode_reached": np.array(run.episode_reached, bool),
            "trace": np.array(run.trace, float).reshape(-1, 4),
            "visits": run.counts.visits.copy(),
            **(
                {}
                if run.goal_space.goals_are_states
                else {"goals_at": run.goal_space.goals_of_states[:S].astype(np.int32)}
            ),
            **({"observations": observed.digests} if observed is not None and len(observed.digests) else {}),
            **run.bounds_history.to_arrays(),
            **run.counts.empirical_model_arrays(),
            **estimates.extra_arrays(),
        },
    )


def _unverified_assumptions(run: ExplorationRun) -> list[str]:
    """Where states are numbered as they are found: what may be a slip of the user, as nobody can check it."""
    met = run.goal_space.goals_of_states[: run.counts.n_states]
    lines = [
        f"no state of the goal {n} was met" for g, n in enumerate(run.goal_space.names or ()) if not (met == g).any()
    ]
    if run.counts.seen.sum() == run.env.state_bound:
        lines.append("the certificates rest on your word (max_states) that there are no other states than those met")
    return lines
