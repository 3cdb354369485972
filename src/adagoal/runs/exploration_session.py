"""An exploration from its settings to its result: the radius curriculum, checkpoints, and the result.

:mod:`adagoal.runs.job` starts, saves and ends it.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from adagoal import methods
from adagoal.core import goal_spec
from adagoal.core.compiled_code import compile_group
from adagoal.core.environment import TabularEnv
from adagoal.core.errors import InputError, RunWarning, Status
from adagoal.core.exploration_run import (
    BoundsHistory,
    ExplorationRun,
    GoalAttempts,
    RunObserver,
    SupportsFinalize,
    SupportsRadiusCurriculum,
)
from adagoal.core.file_formats import check_arrays
from adagoal.core.file_io import arrays_content
from adagoal.core.goal_spec import GoalCode
from adagoal.core.random_streams import restore_rng_state
from adagoal.core.run_settings import UNLIMITED_BUDGET, ExplorationSettings, radius_growth_factor
from adagoal.core.transition_data import TransitionCounts, TransitionLog
from adagoal.envs import model_sources
from adagoal.goal_rules import GoalRule
from adagoal.runs.job import JobMonitor, SaveFiles, run_job
from adagoal.runs.load_result import RUN_HISTORY_SCHEMA
from adagoal.runs.result import Certificate, Result, StateMetadata, find_contradicted_goals
from adagoal.runs.run_folder import RunFolder

INITIAL_RADIUS = 2.0  # where a curriculum begins, as in the paper


@dataclass
class ExplorationSession:
    """An exploration with its settings and its stage in the radius curriculum; a :class:`adagoal.runs.job.Job`."""

    setting: ExplorationSettings
    run: ExplorationRun
    stage: int = 1
    last_certified: Result | None = None  # in a curriculum, the result of the last finished stage
    _model_is_saved: bool = False

    checkpoint_file = "checkpoint.npz"
    stage_files = ("certified.json", "certified.npz")  # result of the last finished stage of a curriculum
    transitions_file = "transitions.npz"  # every step of the run, if it records them
    saves_at_start = True
    interrupt_anywhere = False
    has_progress = True

    @staticmethod
    def from_settings(
        setting: ExplorationSettings, env: TabularEnv, rule: GoalRule, goals: GoalCode | None = None
    ) -> ExplorationSession:
        """Set up a new run; ``goals`` is the code of goals that are sets, if the settings name some."""
        method = methods.find_method(setting.method)
        if setting.has_growing_radius and not method.radius_can_grow:
            raise InputError(
                f"{setting.radius} is not available with the method {setting.method}; give a number", "radius"
            )
        counts = TransitionCounts(env.initial_states, env.n_actions, env.start)
        radius = INITIAL_RADIUS if setting.has_growing_radius else float(setting.radius)
        space = goal_spec.build_goal_space(setting, env, goals)
        reach = None
        if setting.within is not None and setting.probability is not None:
            avoided = goal_spec.find_avoided_states(setting, env, space)
            reach = methods.ReachTarget(setting.within, setting.probability, avoided)
        accuracy = setting.epsilon, setting.delta
        problem = methods.ExplorationProblem(env, counts, radius, *accuracy, space, setting.seed, reach)
        estimates = methods.build_estimates(setting.method, problem, setting.method_args)
        if setting.has_growing_radius:
            cast(SupportsRadiusCurriculum, estimates).set_radius(radius, 1)
        rng = np.random.default_rng(setting.seed)
        return ExplorationSession(setting, ExplorationRun(env, estimates, rule, rng, goal_space=space, setting=setting))

    def record_transitions(self, steps: dict[str, NDArray[Any]] | None = None) -> None:
        """Log every step from now on, after ``steps`` of a folder; raise ``ValueError`` if these do not fit."""
        log = TransitionLog(self.run.env.n_actions)
        if steps is not None:
            log.restore_steps(steps, self.run.counts)
        self.run.counts.transition_log = log

    def run_to_end(self, folder: RunFolder | None, observe: RunObserver | None) -> Result:
        """Run to the end, a budget or an interrupt; save and return the result (:func:`adagoal.runs.job.run_job`)."""
        compile_group(self.setting.method)
        # Dense inverses here are small: with several BLAS threads they mostly wait for each other, by spinning.
        # One thread also rounds the same way on every machine.
        with threadpool_limits(limits=1, user_api="blas"):
            result = run_job(self, folder, observe)
        return result if folder is None else replace(result, folder=folder.path)

    def execute(self, monitor: JobMonitor) -> Status:
        """Run the stages; then plan once more for a run that ends early, so its result uses all the data."""
        # The checkpoint at the start has saved it, and a model does not change.
        self._model_is_saved = True
        status = self._run_stages(monitor.after_step)
        # The checkpoint comes before the last plan, which a resumed run must not see: the uninterrupted run would not
        # have made it. Without that checkpoint there is no such plan.
        ends_early = not status.finished and self.last_certified is None
        if ends_early and methods.find_method(self.setting.method).can_finalize and monitor.save_checkpoint(final=True):
            with self.run.measure_seconds():
                cast(SupportsFinalize, self.run.estimates).finalize(self.run.open_columns())
        return status

    def _run_stages(self, observe: RunObserver) -> Status:
        """Run one radius, or the curriculum L = 2, 4, 8, ... (label ``cor_UB_increasingL``), or another factor."""
        loop, estimates = methods.find_method(self.setting.method).run_loop, self.run.estimates
        budget = UNLIMITED_BUDGET if self.setting.budget is None else self.setting.budget
        fruitless = 0
        while True:
            status = loop(self.run, budget, observe)
            if status is not Status.CERTIFIED or not self.setting.has_growing_radius:
                return status
            before, self.last_certified = self.last_certified, build_result(self.setting, self.run, status)
            # Every goal is certified or out of reach: a larger radius adds nothing.
            if ((estimates.D <= estimates.L) | np.isinf(estimates.D)).all():
                return status
            fruitless = fruitless + 1 if before is not None and before.goals == self.last_certified.goals else 0
            if fruitless == 3 and self.setting.budget is None:
                text = (
                    f"no goal has been found beyond a radius of {estimates.L / self._growth_factor**fruitless:g}, and "
                    f"those within {estimates.L:g} are certified; if other goals cannot be reached, the run does not "
                    "end by itself: interrupt it for the result, or give a budget"
                )
                warnings.warn(text, RunWarning, stacklevel=1)
            self.stage += 1
            cast(SupportsRadiusCurriculum, estimates).set_radius(self._growth_factor * estimates.L, self.stage)

    @property
    def _growth_factor(self) -> float:
        return radius_growth_factor(str(self.setting.radius))

    def result(self, status: Status) -> Result:
        """Return the current result, or that of the last finished stage of a curriculum; void if a check failed."""
        run, estimates = self.run, self.run.estimates
        # The unfinished stage of a curriculum has certified nothing itself, but its steps count.
        if status is not Status.CERTIFIED and self.last_certified is not None:
            result = replace(self.last_certified, status=status, **_cost_and_view(run))
        else:
            result = build_result(self.setting, run, status)
        reasons = list(run.env.void_reasons)
        if self._goals_have_changed():
            reasons.append("a goal had other states at the end of the run: it must be a function of the state alone")
        if contradicted := find_contradicted_goals(result.certificates):
            reasons.append(f"the bounds contradict each other, first those of goal {contradicted[0]}")
        # A method without a guarantee has no certificates to lose; build_result lists its reasons as warnings.
        if estimates.guarantee and reasons:
            result = replace(result, status=Status.VOID, certified_radius=None, void=reasons)
        return result

    def _goals_have_changed(self) -> bool:
        try:
            return self.run.env.has_other_goals_now()
        # The function of the user fails, where it did not before. The result must not be lost.
        except InputError:
            return True

    def describe_result(self, result: Result) -> str:
        return f"the answer ({result.status}, {len(result.goals)} goals {result.measure.scope})"

    def is_save_due(self, folder: RunFolder) -> bool:
        """Return True if it is time for a checkpoint, and the environment can be restored to this moment."""
        return self.run.env.is_restorable and folder.is_save_due()

    def checkpoint_files(self) -> SaveFiles:
        """Return the files from which the run continues bit for bit."""
        # Not compressed, because the run waits for the save.
        checkpoint = {self.checkpoint_file: arrays_content(*self.state(), compress=False)}
        if self.last_certified is not None:
            contents = self.last_certified.contents()
            checkpoint |= zip(self.stage_files, (contents["result.json"], contents["policies.npz"]), strict=True)
        model = None if self._model_is_saved else model_sources.find_user_model(self.run.env)
        results = model_sources.model_folder_contents(model)
        if self.run.counts.transition_log is not None:
            log = self.run.counts.transition_log.to_arrays()
            results[self.transitions_file] = arrays_content(log, compress=False)
        return SaveFiles(checkpoint, results)

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return arrays and JSON-ready facts for :meth:`restore`."""
        run = self.run
        estimate_arrays, estimate_facts = run.estimates.state()
        env_arrays, env_facts = run.env.state()
        goal_arrays, goal_names = run.goal_space.state()
        arrays = (
            _add_prefix("estimates", estimate_arrays)
            | _add_prefix("counts", run.counts.state())
            | _add_prefix("world", env_arrays)
            | _add_prefix("goals", goal_arrays)
            | {f"attempts.{k}": getattr(run.goal_attempts, k) for k in GoalAttempts.ARRAY_NAMES}
            | {"episode_goals": np.array(run.episode_goals, np.int32), "trace": np.array(run.trace, float)}
            | {"episode_reached": np.array(run.episode_reached, bool)}
            | run.bounds_history.to_arrays(run.counts)
        )
        return arrays, {
            "setting": {**self.setting.__dict__},
            "estimates": estimate_facts,
            "rng": run.rng.bit_generator.state,
            "world": env_facts,
            "steps": run.steps,
            "seconds": run.seconds,
            "stage": self.stage,
            "goal_names": goal_names,
        }

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any], certified: Result | None) -> None:
        """Restore a checkpoint whose facts match RUN_CHECKPOINT_SCHEMA; ``certified`` is the last finished stage.

        Raise ``ValueError`` if the parts do not fit together. Every array is checked before it reaches a kernel.
        """
        run, env = self.run, self.run.env
        # The counts come first: the number of states decides the sizes of all other tables.
        run.counts.restore(_select_prefix("counts", arrays))
        S = run.counts.n_states
        if not env.initial_states <= S <= env.state_bound:
            raise ValueError(f"it has {S} states, the environment {env.state_bound}")
        run.goal_space.restore(_select_prefix("goals", arrays), facts["goal_names"])
        run.goal_space.grow_states(S)
        # The stage before the estimates: setting the radius resets bounds, which are restored after it.
        self._restore_stage(facts["stage"], certified)
        run.estimates.restore(_select_prefix("estimates", arrays), facts["estimates"])
        check_arrays(RUN_HISTORY_SCHEMA, arrays, {"N": run.goal_space.n_goal_numbers, "S": S, "A": env.n_actions})
        for name in GoalAttempts.ARRAY_NAMES:
            setattr(run.goal_attempts, name, np.array(arrays[f"attempts.{name}"]))
        run.episode_goals = arrays["episode_goals"].tolist()
        run.episode_reached = arrays["episode_reached"].tolist()
        # Only the largest error (column 2) may be infinite: the other columns are converted to integers below.
        trace = arrays["trace"].reshape(-1, 4)
        if not np.isfinite(trace[:, [0, 1, 3]]).all():
            raise ValueError("the trace has infinite numbers of steps, episodes or goals")
        run.trace = [(int(s), int(e), float(m), int(o)) for s, e, m, o in trace]
        run.bounds_history = BoundsHistory.from_arrays(arrays)
        restore_rng_state(run.rng, facts["rng"])
        env.restore(_select_prefix("world", arrays), facts["world"])
        run.steps, run.seconds = facts["steps"], facts["seconds"]
        # Compiled loops index tables by these positions without a check, so forged ones must be refused here.
        columns = len(run.estimates.goal_state) if methods.find_method(self.setting.method).uses_goal_rule else 1
        for agent in facts["world"].get("workers", [facts["world"]]):
            state, goal, clock = agent["place"] if agent is not None else (env.start, -1, 0)
            if not (0 <= state < S and run.counts.seen[state] and goal < columns and clock >= 0):
                raise ValueError(f"the saved position (state {state}, goal {goal}) does not exist in this environment")
        if run.steps > run.counts.visits.sum() or len(env.labels) > S:
            raise ValueError("it has more steps or states than its counts")

    def _restore_stage(self, stage: int, certified: Result | None) -> None:
        if stage == 1:
            return
        if not self.setting.has_growing_radius or certified is None:
            raise ValueError(f"there is no stage {stage} without the result of the one before it")
        # Multiplied as in the run, so the radii are the same bit for bit. A forged stage ends at an infinite radius.
        radii = [INITIAL_RADIUS]
        while len(radii) < stage and math.isfinite(radii[-1]):
            radii.append(self._growth_factor * radii[-1])
        same = replace(certified.setting, budget=self.setting.budget) == self.setting
        # The last finished stage is the one before this or, if no goal was left to certify, this one.
        fits = certified.certified_radius in radii[-2:]
        if not same or len(radii) < stage or not fits or math.isinf(radii[-1]):
            raise ValueError("the result of the last finished stage is not of this run")
        self.stage, self.last_certified = stage, certified
        cast(SupportsRadiusCurriculum, self.run.estimates).set_radius(radii[-1], stage)


def _add_prefix(prefix: str, arrays: dict[str, Any]) -> dict[str, Any]:
    return {f"{prefix}.{name}": array for name, array in arrays.items()}


def _select_prefix(prefix: str, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(f"{prefix}."): a for name, a in arrays.items() if name.startswith(f"{prefix}.")}


def build_result(setting: ExplorationSettings, run: ExplorationRun, status: Status) -> Result:
    """Return the goals estimated within the radius, with their bounds, policies and history.

    The arrays are copies: the run may continue without changing the result.
    """
    estimates, space = run.estimates, run.goal_space
    S = run.counts.n_states
    # Estimates of probabilities have a radius of their own, 1 - p; that of the run is its number of steps.
    radius = float(estimates.L if setting.within is None else setting.within)
    # The column with goal_state -1 stands for all unseen goals, so its bounds are no goal's own.
    own = estimates.goal_state[estimates.column[estimates.goals]] >= 0
    visited = np.isin(estimates.goals, space.goals_of_states[:S][run.counts.seen])
    chosen = [int(g) for g in estimates.goals[own] if estimates.D[estimates.column[g]] <= estimates.L]
    still_open = run.open_columns()
    certificates = {g: Certificate(*estimates.distance_bounds(g)) for g in estimates.goals[own | visited].tolist()}
    errors = {g: float(estimates.E[estimates.column[g]]) for g in chosen}
    if estimates.guarantee:
        # E then only says that the goal is open: the cap takes the place of the bound on the policy's value.
        errors |= {g: math.inf for g in chosen if math.isinf(certificates[g].upper)}
    policies = [estimates.goal_policy(g) for g in chosen]
    space.grow_states(S)
    observed = run.env.observed_states() if hasattr(run.env, "observed_states") else None
    digests = observed.digests if observed is not None and len(observed.digests) else None
    arrays: dict[str, NDArray[Any]] = {
        "policy": np.stack(policies) if policies else np.zeros((0, 1, S), np.int16),
        "policy_goals": np.array(chosen, np.int64),
        "episode_goals": np.array(run.episode_goals, np.int32),
        "episode_reached": np.array(run.episode_reached, bool),
        "trace": np.array(run.trace, float).reshape(-1, 4),
        "visits": run.counts.visits.copy(),
    }
    if not space.goals_are_states:
        arrays["goals_at"] = space.goals_of_states[:S].astype(np.int32)
    if digests is not None:
        arrays["observations"] = digests
    arrays |= run.bounds_history.to_arrays(run.counts) | run.counts.empirical_model_arrays() | estimates.extra_arrays()
    warned = [*run.env.warnings, *(_unverified_assumptions(setting, run) if digests is not None else [])]
    return Result(
        setting=setting,
        status=status,
        radius=radius,
        certified_radius=radius if status is Status.CERTIFIED else None,
        goals=chosen,
        certificates=certificates,
        errors=errors,
        open_goals=[g for g in chosen if still_open[estimates.column[g]]],
        guarantee=estimates.guarantee,
        **_cost_and_view(run),
        reset_action=run.env.n_actions,
        warnings=warned if estimates.guarantee else [*warned, *run.env.void_reasons],
        void=[],
        goal_names=None if space.names is None else tuple(space.names),
        arrays=arrays,
    )


def _cost_and_view(run: ExplorationRun) -> dict[str, Any]:
    """Return the fields of a result that are about all steps so far, also those of an unfinished stage."""
    cost = {"steps": run.steps, "episodes": len(run.episode_goals), "plans": run.estimates.plans}
    env = {"model": model_sources.find_user_model(run.env), "view": StateMetadata.from_env(run.env)}
    return {**cost, **env, "wall_seconds": run.seconds}


def _unverified_assumptions(setting: ExplorationSettings, run: ExplorationRun) -> list[str]:
    """Return warnings about names that no state has had so far, if states are numbered as they are found."""
    # A wrong predicate looks like a goal that cannot be reached, so a goal without states is worth a warning.
    visited = run.goal_space.goals_of_states[: run.counts.n_states]
    names = enumerate(run.goal_space.names or ())
    lines = [f"no state of the goal {name} was met" for g, name in names if not (visited == g).any()]
    # A misspelt label would make a certificate without the safety that the user asked for.
    lines += [f"avoid: no state was called {name!r}" for name in goal_spec.find_unmet_labels(setting, run.env)]
    return lines
