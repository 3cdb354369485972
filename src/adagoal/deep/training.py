"""The class ``Training``: Algorithm 1 with continuous goals (choose goals, play, learn), and its checkpoints.

The workers play cycle c while the learner learns from cycle c - 1. The order of every random draw and of every update
is fixed, so the same seeds give the same curves, also after an interruption. The cycle is compiled while the workers
start, unless an earlier process has compiled it (:mod:`adagoal.deep.jax_cache`).

A checkpoint is checked before anything is built from it. Shapes and types must be those that the learner would make
itself, so an index into the replay buffer is in range and no update meets a number that is not finite. The facts stored
with the arrays must agree with them: one row per run and cycle, one goal per episode.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from adagoal.core import file_formats
from adagoal.core.array_types import Floats, Singles
from adagoal.core.errors import InputError, Status
from adagoal.core.file_formats import COUNT_SCHEMA, ArraySpec, check_arrays, check_json_value, object_schema
from adagoal.core.validation import declared_settings, settings_json_schema
from adagoal.deep import learner, training_history, value_formulas
from adagoal.deep.config import Config, check_shared_program
from adagoal.deep.env_inspection import bounding_box, inspect_env
from adagoal.deep.goal_envs import EnvDimensions, EnvSource
from adagoal.deep.goal_selection import GoalSelector
from adagoal.deep.jax_cache import enable_jax_cache
from adagoal.deep.learner import LearnerState
from adagoal.deep.policy import GoalPolicy, NumpyActor
from adagoal.deep.rollouts import CycleRollouts, EpisodeBatch, RolloutBackend, RolloutFactory, RolloutWorkers
from adagoal.deep.training_history import TrainingHistory
from adagoal.deep.value_formulas import ErrorModel
from adagoal.goal_rules import GoalRule

TrainingObserver = Callable[[TrainingHistory], bool | None]
"""Called after every cycle; False ends the run, with everything learnt until then."""
TrainingState = tuple[dict[str, NDArray[Any]], dict[str, Any]]  # arrays and JSON-ready facts


class Training:
    """S runs that train together, between two cycles.

    ``source`` makes the environments; by default it follows from their name. ``rule`` is the function behind the goal
    rule ``function:NAME``. ``saved`` is a state to continue from; a state that does not fit the configurations is a
    ``ValueError``. ``make_rollouts`` makes the backend that plays (:mod:`adagoal.deep.rollouts`).
    """

    map_points = 21  # per axis of the maps of D and E during training
    final_map_points = 41
    # Starts over which maps are averaged: a map costs this many times its points in network evaluations.
    max_map_starts = 4

    def __init__(
        self,
        configs: Sequence[Config],
        workers: int | None = None,
        saved: TrainingState | None = None,
        source: EnvSource | None = None,
        rule: GoalRule | None = None,
        make_rollouts: RolloutFactory = RolloutWorkers,
    ) -> None:
        enable_jax_cache()
        check_shared_program(configs)
        self._make_rollouts = make_rollouts
        self.source, self.workers = source or EnvSource(configs[0].env), workers or os.cpu_count() or 1
        goal_spaces = [(name, getattr(c, name)) for name in ("train_goals", "test_goals") for c in configs]
        self.sizes, samplers, table_box = inspect_env(self.source, configs[0].horizon, goal_spaces)
        T, is_fetch = self.sizes.horizon, self.sizes.is_fetch
        self.configs = configs = [config.resolve_for_horizon(T, is_fetch) for config in configs]
        first = configs[0]
        self.steps_per_cycle = first.episodes * self.sizes.horizon
        self._check_buffer()
        self.test_rounds = -(-first.eval_episodes // first.episodes)
        train_samplers, test_samplers = samplers[: len(configs)], samplers[len(configs) :]
        self.goal_selector = GoalSelector(configs, train_samplers, test_samplers, rule)
        train, test = ([bounding_box(sample) for sample in spaces] for spaces in (train_samplers, test_samplers))
        self.history = TrainingHistory(configs, train, test, table_box, self.sizes.success)
        self.hyperparameters = learner.per_run_hyperparameters(configs)
        self.pending_episodes: EpisodeBatch | None = None  # played, and not learnt from yet
        self.error_models: list[ErrorModel | None] = [None] * len(configs)  # run by run; known at the end
        self.cycle = 0
        self.pause_after_steps = first.steps  # by default there is no pause
        self._next_starts: Singles
        shapes = learner.learner_state_shapes(configs, self.sizes)
        self._compiled_learning = self._compile_in_threads(shapes)
        if saved is None:
            self.train_state = learner.init_learner_states(configs, self.sizes)
        else:
            self._restore_state(shapes, *saved)

    def _check_buffer(self) -> None:
        first = self.configs[0]
        if first.buffer < self.steps_per_cycle:
            raise InputError(f"must be at least {self.steps_per_cycle}, one cycle, got {first.buffer}", name="buffer")
        for name in ("batch", "ensemble_batch"):
            if (size := getattr(first, name)) > first.buffer:
                raise InputError(f"must be at most {first.buffer}, the size of the buffer, got {size}", name=name)
        # refused here: the system would kill the process that allocates too much, without a message
        needed = len(self.configs) * first.replay_capacity * self.sizes.episode_bytes
        memory = file_formats.total_memory_bytes()
        if needed > memory:
            steps = first.replay_capacity * self.sizes.horizon
            text = f"a replay buffer of {steps:,} steps takes {needed / 1e9:,.1f} GB, more than the "
            text += f"{memory / 1e9:,.1f} GB of this machine; give fewer steps or a smaller buffer"
            raise InputError(text, name="steps")

    def _compile_in_threads(self, shapes: learner.LearnerState) -> Future[Any]:
        """Start to compile all programs for states of these shapes, and return the compiled cycle of learning."""
        first = self.configs[0]
        episodes = learner.episode_shapes(shapes, first.episodes)
        cycle, export = learner.compile_cycle(self.configs, self.sizes), learner.compile_actor_export(first.algorithm)
        # XLA compiles without the GIL, so threads compile side by side while the workers import
        executor = ThreadPoolExecutor(4)
        compiled = executor.submit(lambda: cycle.lower(shapes, self.hyperparameters, episodes).compile())
        goals = [] if self.goal_selector.is_value_free else [(first.episodes, first.candidates)]
        goals.append((min(self.max_map_starts, first.episodes), self.map_points ** min(2, self.sizes.goal)))
        self.goal_selector.compile_ahead(shapes, goals, executor)
        executor.submit(lambda: export.lower(shapes).compile())
        executor.shutdown(wait=False)
        return compiled

    @property
    def has_reached_pause(self) -> bool:
        """Whether all steps before the pause have been played."""
        return self.has_played_all_steps or self.cycle * self.steps_per_cycle >= self.pause_after_steps

    @property
    def has_played_all_steps(self) -> bool:
        """Whether all steps of training have been played."""
        return self.cycle * self.steps_per_cycle >= self.configs[0].steps

    def run_until_pause(self, observe: TrainingObserver = lambda history: None) -> Status:
        """Run whole cycles to the end or the pause, and then a test; stop early if ``observe`` returns False."""
        began, before = time.monotonic(), self.history.wall_seconds
        workers = self._make_rollouts(self.configs, self.source, self.sizes, self.workers)
        try:
            # also after a resume: starts follow from seed and cycle, so a checkpoint need not store the environments
            self._next_starts = workers.reset(self.cycle)
            while not self.has_reached_pause:
                self._next_starts = self.run_one_cycle(workers, self._next_starts)
                self.history.wall_seconds = before + time.monotonic() - began
                if observe(self.history) is False:
                    return Status.INTERRUPTED
            self.learn_pending()
            self._run_final_test(workers)
        finally:
            workers.close()
        self.history.wall_seconds = before + time.monotonic() - began
        return Status.DONE

    def run_one_cycle(self, workers: RolloutBackend, starts: Singles) -> Singles:
        """Choose goals for the starts ``[S, B, O]``, play and learn; returns the starts of the next cycle."""
        config, value_maps = self.configs[0], self.history.value_maps
        radii = self.history.next_radii()
        goals, means = self.goal_selector.choose_goals(self.train_state, starts, self.cycle, radii)
        # before learning, so the map shows the values that have chosen these goals
        new_map = self._value_maps_on_grid(starts, self.map_points) if value_maps.is_map_due(self.cycle) else None
        rounds = self.test_rounds if self.cycle % config.eval_every == 0 else 0
        tests = self.goal_selector.draw_test_goals(self.cycle, rounds, config.episodes)
        workers.start_cycle(self.cycle, self.current_actors(), goals, tests)
        # From the previous cycle, while the workers play. The actors above were exported before, so the policy that
        # plays cycle c has learnt from the cycles up to c - 2.
        losses = self.learn_pending()
        played = workers.collect_cycle()
        self.pending_episodes = played.episodes
        self.history.add_cycle(self.cycle, goals, means, losses, self.pending_episodes, played.distances)
        if new_map is not None:
            value_maps.add_map(self.cycle, new_map["D"], new_map["E"])
        if rounds:
            value_maps.add_test(played.initial_distances, played.distances[..., -1] <= self.sizes.success)
        self.cycle += 1
        return played.next_starts

    def learn_pending(self) -> dict[str, Any]:
        """Learn from the pending episodes, and return the losses ``[S]``, which the device may still be computing."""
        if self.pending_episodes is None:
            return {}
        # JAX returns before the device has finished; the losses are read after the workers have played
        episodes, self.pending_episodes = jax.device_put(self.pending_episodes), None
        self.train_state, losses = self._compiled_learning.result()(self.train_state, self.hyperparameters, episodes)
        return dict(losses)

    def _run_final_test(self, workers: RolloutBackend) -> None:
        episodes = self.configs[0].episodes
        starts, radii = workers.reset(self.cycle), self.history.next_radii()
        goals, _ = self.goal_selector.choose_goals(self.train_state, starts, self.cycle, radii)
        # 384 episodes calibrate `uncertainty`, or four usual tests. The share of episodes that it covers varies between
        # runs with a standard deviation of sqrt(0.9 * 0.1 / episodes): 3% after a usual test of 96, 1.5% after 384.
        rounds = max(self.test_rounds, min(4 * self.test_rounds, -(-384 // episodes)))
        tests = self.goal_selector.draw_test_goals(self.cycle, rounds, episodes)
        workers.start_cycle(self.cycle, self.current_actors(), goals, tests)
        played = workers.collect_cycle()
        # the history compares tests of the same size
        distances = played.distances[: self.test_rounds]
        self.history.add_final_test(self.cycle, distances)
        initial = played.initial_distances[: self.test_rounds]
        self.history.value_maps.add_test(initial, distances[..., -1] <= self.sizes.success)
        self._fit_error_models(tests, played)

    def _fit_error_models(self, tests: Floats, played: CycleRollouts) -> None:
        first_steps = value_formulas.first_step_at_goal(played.distances, self.sizes.success)
        for s, policy in enumerate(self.current_policies()):
            if policy.critics is not None:
                starts = played.test_starts[:, s].reshape(-1, self.sizes.observation).astype(np.float64)
                goals = tests[:, s].reshape(-1, self.sizes.goal)
                D = policy.critics(policy.actor.normalise_inputs(starts, goals), policy.actor(starts, goals))
                self.error_models[s] = ErrorModel.fit(D, first_steps[:, s].reshape(-1), self.sizes.horizon)

    def current_actors(self) -> list[NumpyActor]:
        """The present actor of each run."""
        return learner.export_actors(self.configs[0], self.train_state)

    def current_policies(self) -> list[GoalPolicy]:
        """The present policy of each run."""
        critics = learner.export_critics(self.configs, self.train_state, self.error_models)
        s = self.sizes
        return [
            GoalPolicy(self.source.name, actor, own, s.low, s.high, s.shape, s.with_achieved, s.success)
            for actor, own in zip(self.current_actors(), critics, strict=True)
        ]

    def final_value_maps(self) -> dict[str, Floats]:
        """D and E ``[S, points, points]`` over the first two goal coordinates of the widest training space."""
        return self._value_maps_on_grid(self._next_starts, self.final_map_points)

    def _value_maps_on_grid(self, starts: Singles, points: int) -> dict[str, Floats]:
        low = np.min([box[0] for box in self.history.train_boxes], 0)
        high = np.max([box[1] for box in self.history.train_boxes], 0)
        test_box = self.history.test_boxes[0]
        axes = [np.linspace(low[i], high[i], points) for i in range(min(2, len(low)))]
        grid = np.zeros((*(len(axis) for axis in axes), len(low))) + test_box.mean(0)
        for i, mesh in enumerate(np.meshgrid(*axes, indexing="ij")):
            grid[..., i] = mesh
        # the low end of the other coordinates: for Fetch, goals on the table
        grid[..., 2:] = test_box[0, 2:]
        flat = grid.reshape(-1, len(low))
        D, E = self.goal_selector.values_on_grid(self.train_state, starts[:, : self.max_map_starts], flat)
        shape = (len(self.configs), *grid.shape[:-1])
        return {"D": D.reshape(shape), "E": E.reshape(shape), "low": low, "high": high}

    def state(self) -> TrainingState:
        """Arrays and facts of a checkpoint; a run that continues from it between two cycles is bit for bit the same."""
        replay = self.train_state.replay
        held = int(min(int(replay.added[0]), replay.goal.shape[1]))
        rings = {name: getattr(replay, name)[:, :held] for name in replay._fields if name != "added"}
        saved_state = self.train_state._replace(replay=replay._replace(**rings))
        arrays = {n: np.asarray(x) for n, x in leaves_by_path(saved_state, "learnt").items()}
        if self.pending_episodes is not None:
            arrays |= {f"pending.{name}": np.asarray(value) for name, value in vars(self.pending_episodes).items()}
        history_arrays, history = self.history.state()
        arrays |= {f"history.{name}": array for name, array in history_arrays.items()}
        facts = {"configs": [c.to_json() for c in self.configs], "cycle": self.cycle, "history": history}
        return arrays, facts | {"env": self.sizes.to_facts()}

    def _restore_state(
        self, shapes: learner.LearnerState, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]
    ) -> None:
        self.sizes.check_same(self.source.name, facts["env"])
        check_checkpoint(shapes, arrays, facts, self.configs, self.sizes)
        self.train_state = jax.tree.map(jnp.asarray, tree_from_arrays(shapes, arrays, "learnt"))
        pending, history = (
            {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            for prefix in ("pending.", "history.")
        )
        self.pending_episodes = EpisodeBatch(**pending) if pending else None
        self.history.restore(history, facts["history"])
        self.cycle = int(facts["cycle"])


def checkpoint_facts_schema() -> dict[str, Any]:
    """Return the JSON schema of the facts of :meth:`adagoal.deep.training.Training.state`."""
    config = settings_json_schema(Config, declared_settings(Config))
    ends = {"type": "array", "minItems": 1, "maxItems": 100_000, "items": {"type": "number"}}
    sizes = dict.fromkeys(("observation", "goal", "action"), COUNT_SCHEMA) | {"low": ends, "high": ends}
    return object_schema(
        configs={"type": "array", "minItems": 1, "maxItems": 10_000, "items": config},
        cycle={**COUNT_SCHEMA, "minimum": 1},
        history=object_schema(
            rows={"type": "array", "items": training_history.HistoryRow.schema},
            wall_seconds={"type": "number", "minimum": 0},
        ),
        env=object_schema(**sizes, success={"type": "number", "minimum": 0}),
    )


def read_configs(facts: Any) -> list[Config]:
    """Return the settings of the runs; raise ``ValueError`` if the facts are not those of a checkpoint."""
    check_json_value(checkpoint_facts_schema(), facts)
    return [Config.from_json(data) for data in facts["configs"]]


def check_checkpoint(
    template: LearnerState,
    arrays: Mapping[str, NDArray[Any]],
    facts: dict[str, Any],
    configs: Sequence[Config],
    sizes: EnvDimensions,
) -> None:
    """Check that arrays and facts fit these runs and each other; raise ``ValueError`` if not."""
    # Schemas first: the checks below index into arrays whose shapes they have established.
    cycle, n_runs, first = int(facts["cycle"]), len(configs), configs[0]
    map_schema = training_history.value_map_schema(n_runs, cycle, min(2, sizes.goal))
    schema = {
        **_learner_state_schema(template, sizes.horizon),
        **_pending_episodes_schema((n_runs, first.episodes), sizes),
        "history.goals": ArraySpec("float64", (cycle, n_runs, first.episodes, sizes.goal)),
        **{f"history.{name}": spec for name, spec in map_schema.items()},
    }
    known = check_arrays(schema, arrays, exact=True)
    n_pending = sum(name.startswith("pending.") for name in arrays)
    if n_pending not in (0, 6):
        raise ValueError("the episodes that wait are incomplete")
    # pending episodes were played in the last cycle, and are not in the replay buffer yet
    added = (cycle - bool(n_pending)) * first.episodes
    capacity = template.replay.goal.shape[1]
    if (arrays["learnt.replay.added"] != added).any() or known["H"] != min(added, capacity):
        raise ValueError("the memory does not hold as many episodes as were played")
    _check_history_rows(facts["history"]["rows"], cycle, configs, first.episodes * sizes.horizon)
    maps = {name: arrays[f"history.{name}"] for name in map_schema if f"history.{name}" in arrays}
    training_history.check_value_maps(maps, -(-cycle // first.eval_every))


def _learner_state_schema(template: LearnerState, horizon: int) -> dict[str, ArraySpec]:
    schema: dict[str, ArraySpec] = {}
    for name, leaf in leaves_by_path(template, "learnt").items():
        shape: tuple[int | str, ...] = leaf.shape
        if name.startswith("learnt.replay.") and not name.endswith(".added"):
            # saved without the empty part, which is most of the file early in a run
            shape = (shape[0], "H", *shape[2:])
        # Lengths are indices into episodes. The others are counts, divisors, or under a square root.
        is_length = name.endswith(".length")
        nonnegative = name.endswith((".weight", ".squares", ".count", ".added")) or ".nu" in name
        low = 1 if is_length else 0 if nonnegative else None
        schema[name] = ArraySpec(leaf.dtype.name, shape, low=low, high=horizon if is_length else None)
    return schema


def _pending_episodes_schema(batch: tuple[int, int], sizes: EnvDimensions) -> dict[str, ArraySpec]:
    T, G = sizes.horizon, sizes.goal
    singles = {
        "observation": (T + 1, sizes.observation),
        "achieved": (T + 1, G),
        "action": (T, sizes.action),
        "goal": (G,),
    }
    return {
        **{f"pending.{n}": ArraySpec("float32", (*batch, *shape), optional=True) for n, shape in singles.items()},
        "pending.length": ArraySpec("int32", batch, low=1, high=T, optional=True),
        "pending.terminated": ArraySpec("bool", batch, optional=True),
    }


def _check_history_rows(rows: list[dict[str, Any]], cycle: int, configs: Sequence[Config], per_cycle: int) -> None:
    if len(rows) != cycle * len(configs):
        raise ValueError("the log does not have one row per run and cycle")
    for index, row in enumerate(rows):
        c, run = divmod(index, len(configs))
        head = row["run"], row["cycle"], row["steps"], row["seed"]
        is_test = c % configs[run].eval_every == 0
        if head != (run, c, c * per_cycle, configs[run].seed) or {"success" in row, "success_any" in row} != {is_test}:
            raise ValueError(f"row {index} of the log is not that of its run and cycle")


# Paths name the arrays, so a file is checked leaf by leaf and reading it unpickles nothing.
def leaves_by_path(tree: Any, prefix: str) -> dict[str, Any]:
    """Return the leaves of a tree by their path."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {prefix + jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def tree_from_arrays(template: Any, arrays: dict[str, NDArray[Any]], prefix: str) -> Any:
    """Return the tree with the structure of ``template`` and the leaves saved under ``prefix``."""
    leaves = []
    for name, leaf in leaves_by_path(template, prefix).items():
        saved = arrays[name]
        if saved.shape != leaf.shape:
            # a ring of the replay buffer, saved without its empty part; axis 0 are the runs
            saved = np.zeros(leaf.shape, saved.dtype)
            saved[:, : arrays[name].shape[1]] = arrays[name]
        leaves.append(saved)
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(template), leaves)
