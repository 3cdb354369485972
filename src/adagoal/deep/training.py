"""Algorithm 1 of the paper in the deep world: (i) choose goals, (ii) play, (iii) update, cycle by cycle.

Rollouts of cycle c and learning from cycle c - 1 run at the same time; the order of every random draw and
every update is fixed, so the same seeds give the same curves, whether or not the run was interrupted. The cycle is
compiled while the workers start, unless an earlier process has compiled it (:mod:`adagoal.core.compiled_code`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from adagoal.core import compiled_code, file_formats
from adagoal.core.errors import InputError, Status
from adagoal.core.random_streams import StreamPurpose, random_stream
from adagoal.core.types import Floats, Singles
from adagoal.deep import env_inspection, learner, numpy_networks, training_checkpoint
from adagoal.deep.config import Config, check_shared_program
from adagoal.deep.env_inspection import inspect_env
from adagoal.deep.goal_envs import EnvSource
from adagoal.deep.goal_selection import GoalSelector
from adagoal.deep.numpy_networks import NumpyActor
from adagoal.deep.policy import GoalPolicy
from adagoal.deep.rollout_backend import CycleRollouts, EpisodeBatch, RolloutBackend, RolloutFactory
from adagoal.deep.rollout_workers import RolloutWorkers
from adagoal.deep.training_history import MAP_POINTS_PER_AXIS, TrainingHistory
from adagoal.goal_rules import GoalRule

TrainingObserver = Callable[[TrainingHistory], bool | None]
"""Called after every cycle; False ends the training, with everything learnt so far."""
TrainingState = tuple[dict[str, NDArray[Any]], dict[str, Any]]
"""What :meth:`Training.state` gave: arrays, and JSON-ready facts."""
FINAL_MAP_POINTS = 41
"""Points per axis of the final maps of D and E."""
CALIBRATION_EPISODES, MAX_CALIBRATION_TESTS = 384, 4
"""Episodes that calibrate E at the end of a training, unless they are more than so many usual tests.

The share of episodes that ``uncertainty`` covers differs between trainings with a standard deviation of
sqrt(0.9 * 0.1 / episodes): 3% after one usual test of 96 episodes, 1.5% after 384.
"""
MAX_MAP_STARTS = 4
"""Starts over which maps are averaged, at most."""


class Training:
    """S runs side by side, between two cycles: all that they have learnt and seen, and what they will play next.

    ``source`` makes the environments where that is not for their name to do, ``rule`` is the function that stands for
    the goal rule ``function:NAME``. ``kept`` is the state to go on from; what does not fit the configurations is a
    ``ValueError``. ``make_rollouts`` makes the engine that plays (:mod:`adagoal.deep.rollout_backend`).
    """

    def __init__(
        self,
        configs: Sequence[Config],
        workers: int = 0,
        kept: TrainingState | None = None,
        source: EnvSource | None = None,
        rule: GoalRule | None = None,
        make_rollouts: RolloutFactory = RolloutWorkers,
    ) -> None:
        compiled_code.enable_jax_cache()
        check_shared_program(configs)
        self._make_rollouts = make_rollouts
        self.source, self.workers = source or EnvSource(configs[0].env), workers or os.cpu_count() or 1
        asked = [(name, getattr(c, name)) for name in ("train_goals", "test_goals") for c in configs]
        self.sizes, spaces, table = inspect_env(self.source, configs[0].horizon, asked)
        self.configs = configs = [
            config.resolve_for_horizon(self.sizes.horizon, self.sizes.is_fetch) for config in configs
        ]
        first = configs[0]
        self.steps_per_cycle = first.episodes * self.sizes.horizon
        if first.buffer < self.steps_per_cycle:
            raise InputError(f"{first.buffer} is less than one cycle; at least {self.steps_per_cycle}", name="buffer")
        for name in ("batch", "ensemble_batch"):
            if getattr(first, name) > first.buffer:
                raise InputError(f"larger than the buffer; accepted 1 to {first.buffer}", name=name)
        self.test_rounds = -(-first.eval_episodes // first.episodes)
        train_spaces, test_spaces = spaces[: len(configs)], spaces[len(configs) :]
        self.goal_selector = GoalSelector(configs, train_spaces, test_spaces, self.steps_per_cycle, rule)
        self.history = TrainingHistory.start_empty(configs, train_spaces, test_spaces, table, self.sizes)
        self.hyperparameters = learner.per_run_hyperparameters(configs)
        self.pending_episodes: EpisodeBatch | None = None
        """Episodes that were played and not learnt from yet."""
        self.calibrations: list[float | None] = [None] * len(configs)
        """Of E, run by run; known at the end."""
        self.cycle = 0
        self.pause_after_steps = first.steps
        """Steps after which it ends with a test, to go on later; by default all."""
        self._next_starts: Singles
        rngs = [random_stream(config.seed, StreamPurpose.NORMALISER_GOALS) for config in configs]
        fixed = np.stack([space(rng, 4096) for space, rng in zip(test_spaces, rngs, strict=True)])
        like = learner.learner_state_shapes(configs, self.sizes)
        taken = len(configs) * first.replay_capacity * self.sizes.episode_bytes
        if taken > file_formats.total_memory_bytes():
            text = (
                f"a replay buffer of {first.replay_capacity * self.sizes.horizon:,} steps takes {taken / 1e9:,.1f} GB"
            )
            text += (
                f", more than the {file_formats.total_memory_bytes() / 1e9:,.1f} GB of this machine; "
                f"give fewer steps or a smaller buffer"
            )
            raise InputError(text, name="steps")
        self._compiled_learning = self._compile_in_threads(like)
        if kept is None:
            self.train_state = learner.init_learner_states(configs, self.sizes, fixed)
        else:
            self._restore_state(like, *kept)

    def _compile_in_threads(self, like: learner.LearnerState) -> Future[Any]:
        """The cycle for states of these shapes, traced and compiled in threads while the workers start, as the rest."""
        first = self.configs[0]
        new = learner.episode_shapes(like, first.episodes)
        cycle, acting = learner.compile_cycle(self.configs, self.sizes), learner.compile_actor_export(first.algorithm)
        beside = ThreadPoolExecutor(4)
        compiled = beside.submit(lambda: cycle.lower(like, self.hyperparameters, new).compile())
        shapes = [] if self.goal_selector.is_value_free else [(first.episodes, first.candidates)]
        shapes.append((min(MAX_MAP_STARTS, first.episodes), MAP_POINTS_PER_AXIS ** min(2, self.sizes.goal)))
        self.goal_selector.compile_ahead(like, shapes, beside)
        beside.submit(lambda: acting.lower(like).compile())
        beside.shutdown(wait=False)
        return compiled

    @property
    def has_reached_pause(self) -> bool:
        """Whether all steps of training before its pause have been played."""
        return self.has_played_all_steps or self.cycle * self.steps_per_cycle >= self.pause_after_steps

    @property
    def has_played_all_steps(self) -> bool:
        """Whether all steps of training have been played."""
        return self.cycle * self.steps_per_cycle >= self.configs[0].steps

    def run_until_pause(self, observe: TrainingObserver = lambda history: None) -> Status:
        """Play and learn to the end or the pause, or until ``observe`` says False; whole cycles either way."""
        began, before = time.monotonic(), self.history.wall_seconds
        fleet = self._make_rollouts(self.configs, self.source, self.sizes, self.workers)
        try:
            self._next_starts = fleet.reset(self.cycle)
            while not self.has_reached_pause:
                self._next_starts = self.run_one_cycle(fleet, self._next_starts)
                self.history.wall_seconds = before + time.monotonic() - began
                if observe(self.history) is False:
                    return Status.INTERRUPTED
            self.learn_pending()
            self._run_final_test(fleet)
        finally:
            fleet.close()
        self.history.wall_seconds = before + time.monotonic() - began
        return Status.DONE

    def run_one_cycle(self, fleet: RolloutBackend, starts: Singles) -> Singles:
        """Choose goals, start the rollouts, learn from the previous ones meanwhile, collect; returns next starts."""
        config = self.configs[0]
        goals, notes = self.goal_selector.choose_goals(self.train_state, starts, self.cycle)
        past = self.history.value_maps
        believed = self._value_maps_on_grid(starts, MAP_POINTS_PER_AXIS) if past.is_map_due(self.cycle) else None
        rounds = self.test_rounds if self.cycle % config.eval_every == 0 else 0
        fleet.start_cycle(
            self.cycle,
            self.current_actors(),
            goals,
            self.goal_selector.draw_test_goals(self.cycle, rounds, config.episodes),
        )
        losses = self.learn_pending()
        played = fleet.collect_cycle()
        self.pending_episodes = played.episodes
        self.history.add_cycle(self.cycle, goals, notes, losses, self.pending_episodes, played.distances)
        if believed is not None:
            past.add_map(self.cycle, believed["D"], believed["E"])
        if rounds:
            past.add_test(played.initial_distances, played.distances[..., -1] <= self.sizes.success)
        self.cycle += 1
        return played.next_starts

    def learn_pending(self) -> dict[str, Any]:
        """Learn from the episodes that wait; returns at once, the device works on."""
        if self.pending_episodes is None:
            return {}
        p, self.pending_episodes = self.pending_episodes, None
        new = jax.device_put((p.observation, p.achieved, p.action, p.goal, p.length, p.terminated))
        self.train_state, losses = self._compiled_learning.result()(self.train_state, self.hyperparameters, new)
        return dict(losses)

    def _run_final_test(self, fleet: RolloutBackend) -> None:
        episodes = self.configs[0].episodes
        goals, _ = self.goal_selector.choose_goals(self.train_state, fleet.reset(self.cycle), self.cycle)
        rounds = max(
            self.test_rounds, min(MAX_CALIBRATION_TESTS * self.test_rounds, -(-CALIBRATION_EPISODES // episodes))
        )
        tests = self.goal_selector.draw_test_goals(self.cycle, rounds, episodes)
        fleet.start_cycle(self.cycle, self.current_actors(), goals, tests)
        played = fleet.collect_cycle()
        distances = played.distances[: self.test_rounds]  # the history compares tests of the same size
        self.history.add_final_test(self.cycle, distances)
        self.history.value_maps.add_test(
            played.initial_distances[: self.test_rounds], distances[..., -1] <= self.sizes.success
        )
        self._calibrate_errors(tests, played)

    def _calibrate_errors(self, tests: Floats, played: CycleRollouts) -> None:
        """Compare the policies' D and E for fresh episodes with the steps that they took."""
        taken = numpy_networks.first_step_at_goal(played.distances, self.sizes.success)
        for s, policy in enumerate(self.current_policies()):
            if policy.critics is not None:
                starts = played.test_starts[:, s].reshape(-1, self.sizes.observation).astype(np.float64)
                goals = tests[:, s].reshape(-1, self.sizes.goal)
                D, E = policy.critics(policy.actor.normalise_inputs(starts, goals), policy.actor(starts, goals))
                self.calibrations[s] = numpy_networks.calibration_factor(
                    D, E, taken[:, s].reshape(-1), self.sizes.horizon
                )

    def current_actors(self) -> list[NumpyActor]:
        """The actor of each run, as it is now."""
        return learner.export_actors(self.configs[0], self.train_state)

    def current_policies(self) -> list[GoalPolicy]:
        """The policy of each run, as it is now."""
        critics = learner.export_critics(self.configs, self.train_state, self.calibrations)
        sizes = self.sizes
        return [
            GoalPolicy(
                self.source.name, actor, own, sizes.low, sizes.high, sizes.shape, sizes.with_achieved, sizes.success
            )
            for actor, own in zip(self.current_actors(), critics, strict=True)
        ]

    def final_value_maps(self) -> dict[str, Floats]:
        """D and E ``[S, GRID, GRID]`` over the first two goal coordinates of the widest training space."""
        return self._value_maps_on_grid(self._next_starts, FINAL_MAP_POINTS)

    def _value_maps_on_grid(self, starts: Singles, points: int) -> dict[str, Floats]:
        low = np.min([box[0] for box in self.history.train_boxes], 0)
        high = np.max([box[1] for box in self.history.train_boxes], 0)
        test = self.history.test_boxes[0]
        axes = [np.linspace(low[i], high[i], points) for i in range(min(2, len(low)))]
        grid = np.zeros((*(len(axis) for axis in axes), len(low))) + test.mean(0)
        for i, mesh in enumerate(np.meshgrid(*axes, indexing="ij")):
            grid[..., i] = mesh
        grid[..., 2:] = test[0, 2:]
        D, E = self.goal_selector.values_on_grid(
            self.train_state, starts[:, :MAX_MAP_STARTS], grid.reshape(-1, len(low))
        )
        shape = (len(self.configs), *grid.shape[:-1])
        return {"D": D.reshape(shape), "E": E.reshape(shape), "low": low, "high": high}

    def state(self) -> TrainingState:
        """Arrays and facts from which another training goes on, bit for bit where a cycle had ended."""
        memory = self.train_state.replay
        held = int(min(int(memory.added[0]), memory.goal.shape[1]))
        ring = {name: getattr(memory, name)[:, :held] for name in memory._fields if name != "added"}
        arrays = training_checkpoint.tree_to_arrays(self.train_state._replace(replay=memory._replace(**ring)), "learnt")
        if self.pending_episodes is not None:
            arrays |= {f"pending.{name}": np.asarray(value) for name, value in vars(self.pending_episodes).items()}
        past, facts = self.history.state()
        arrays |= {f"history.{name}": array for name, array in past.items()}
        facts = {"configs": [c.to_json() for c in self.configs], "cycle": self.cycle, "history": facts}
        return arrays, facts | {"env": env_inspection.env_facts(self.sizes)}

    def _restore_state(
        self, like: learner.LearnerState, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]
    ) -> None:
        """The inverse of :meth:`state`; ``like`` has the shapes of what is learnt."""
        env_inspection.check_same_env(self.source.name, facts["env"], self.sizes)
        training_checkpoint.check_checkpoint(like, arrays, facts, self.configs, self.sizes)
        self.train_state = jax.tree.map(jnp.asarray, training_checkpoint.tree_from_arrays(like, arrays, "learnt"))
        waiting = _select_by_prefix("pending.", arrays)
        self.pending_episodes = EpisodeBatch(**waiting) if waiting else None
        self.history.restore(_select_by_prefix("history.", arrays), facts["history"])
        self.cycle = int(facts["cycle"])


def _select_by_prefix(prefix: str, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
