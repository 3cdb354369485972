"""Workers that play one plan in copies of an environment, and the pool that calls them.

:class:`EnvWorker` lives in a worker process. It plays its share of a plan with
:func:`adagoal.envs.episode_loop.play_episodes`, as a single environment would, and returns its transitions: one message
per round, not per step. It counts nothing: :mod:`adagoal.envs.parallel_env` merges the transitions of all workers.

States that are numbered in the order of discovery have the same numbers in all workers. A state that a worker discovers
gets a provisional number beyond all others. The merge decides its final number, which the worker gets with the next
call.

:class:`WorkerPool` starts workers again when they are lost. Every restart has a seed of its own, which follows from the
seed of the run, the index of the worker and the number of the restart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from adagoal.core import random_streams
from adagoal.core.array_types import Longs
from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.core.random_streams import StreamPurpose, random_stream, stream_seed_sequence
from adagoal.core.user_code import USER_CODE_SECTION
from adagoal.envs import episode_loop
from adagoal.envs.base_env import ActionMasks, EnvProperties, LabelledStates
from adagoal.envs.env_backends import START_TIMEOUT_SECONDS, ActionMask, InProcessEnv
from adagoal.envs.gym_adapter import NumberedEnv, StartSeed
from adagoal.parallel.worker_process import Worker, WorkerFactory, WorkerFailure


class WorkerPlan(NamedTuple):
    """The part of a plan that workers play: its columns of positive weight."""

    episode_plan: episode_loop.EpisodePlan  # for these columns
    columns: list[int]  # their indices in the whole plan
    known_states: list[int]
    terminal_states: list[int]  # known states in which only a reset is allowed
    absent_pairs: list[int]  # pairs s * A + a that do not exist
    use_masks: bool
    before_first_step: bool  # the mask of the start has not been counted yet


class RolloutRecord(NamedTuple):
    """What a worker did in one round."""

    transitions: Longs  # [steps, 3] pair s * A + a, or -1 - s for a reset in s; next state; whether it terminated
    episode_log: Longs  # [episodes, 2] goal of each finished episode, and whether it was reached
    new_states: LabelledStates  # states that the worker discovered
    masks: dict[int, ActionMask]  # of states that were new to the worker
    mask_conflicts: list[int]  # states whose mask changed
    ever_truncated: bool
    steps_since_reset: int  # of the environment
    used_gym_rng: bool  # whether Gymnasium's generator was ever used
    failure: WorkerFailure | None  # the exception that ended the round


class EnvWorker:
    """A copy of an environment that plays plans; the operations of :class:`~adagoal.envs.episode_loop.EpisodeEnv`."""

    def __init__(
        self, make: Callable[[], gymnasium.Env[Any, Any]], name: str, start_seed: StartSeed, max_states: int | None
    ) -> None:
        self._backend = InProcessEnv(make(), name, max_states)
        self._env = NumberedEnv(self._backend, name, start_seed, max_states)
        self._position = [self._env.start, -1, 0]  # state, column of the goal (-1: none), steps of the episode
        self._rng = np.random.default_rng()
        self._known_states: set[int] = set()
        self._terminal_states: set[int] = set()
        self._action_masks, self._mask_conflicts = ActionMasks(self._env.n_actions, (), used=False), list[int]()
        self._n_synced = len(self._env.labels)  # states with a final number
        self._rng_after_seeding: dict[str, Any] = {}
        self._transitions: list[int] = []
        self._failure: WorkerFailure | None = None

    def get_properties(self) -> EnvProperties:
        """Return what the pool compares between workers."""
        return self._env.get_properties()

    def reset_with_seed(self, seed: int) -> int:
        """Seed all randomness and go to the start; return the state after the reset."""
        # Two streams of one seed: the draws of goals must not be those of the environment.
        self._rng = random_stream(seed, StreamPurpose.COPY_EPISODES)
        source = stream_seed_sequence(seed, StreamPurpose.COPY_ENVIRONMENT)
        state = self._env.seed_and_reset(int(source.generate_state(1)[0] >> 1))
        self._position, self._rng_after_seeding = [self._env.start, -1, 0], self._backend.generator_state()
        return state

    def play_plan(
        self, plan: WorkerPlan, new_states: LabelledStates, max_steps: int, max_episodes: int
    ) -> RolloutRecord:
        """Play the plan from the current position; ``new_states`` are states numbered since the last call."""
        self._sync_state_numbers(new_states)
        self._known_states, self._terminal_states = set(plan.known_states), set(plan.terminal_states)
        self._action_masks = ActionMasks(self._env.n_actions, plan.absent_pairs, plan.use_masks)
        self._mask_conflicts, self._transitions, self._failure = [], [], None
        if plan.before_first_step:
            self._action_masks.add_state_mask(self._env.start, self._env.action_mask)
        state, column, episode_steps = self._position
        # Columns of the whole plan become columns of this part, and back. A goal without weight is given up.
        position = [state, plan.columns.index(column) if column in plan.columns else -1, episode_steps]
        log = episode_loop.make_episode_log(max_episodes)
        python_plan = episode_loop.to_python_plan(plan.episode_plan)
        _, n_episodes = episode_loop.play_episodes(self, python_plan, position, self._rng, max_steps, log)
        self._position = [int(position[0]), plan.columns[position[1]] if position[1] >= 0 else -1, int(position[2])]
        return RolloutRecord(
            np.array(self._transitions, np.int64).reshape(-1, 3),
            log[:n_episodes],
            self._provisional_states(),
            self._action_masks.masks_of_new_states,
            self._mask_conflicts,
            self._env.ever_truncated,
            len(self._env.actions_since_reset),
            # Only generators of Gymnasium are known to have different seeds in all copies.
            not random_streams.rng_states_equal(self._backend.generator_state(), self._rng_after_seeding),
            self._failure,
        )

    def _provisional_states(self) -> LabelledStates:
        labels, keys = self._env.labels[self._n_synced :], list(self._env.state_numbers)
        return list(zip(keys[len(keys) - len(labels) :], labels, strict=True))

    def _sync_state_numbers(self, new_states: LabelledStates) -> None:
        """Forget provisional numbers, and append states with their final numbers."""
        env, provisional = self._env, self._provisional_states()
        # The agent may stand in a state with a provisional number, which changes now.
        current = next((key for key, _ in provisional if env.state_numbers[key] == self._position[0]), None)
        for key, _ in provisional:
            del env.state_numbers[key]
        env.labels = env.labels[: self._n_synced]
        for key, label in new_states:
            env.state_numbers[key] = len(env.labels)
            env.labels.append(label)
        self._n_synced = len(env.labels)
        if current is not None:
            self._position[0] = env.state_numbers[current]

    # The operations of EpisodeEnv differ from those of CountingEnv: they record transitions and count nothing, and
    # exceptions other than InputError reach the pool as failures of the call.

    def must_reset(self, state: int) -> bool:
        return self._env.needs_reset or state in self._terminal_states

    def reset_from(self, state: int) -> int:
        try:
            next_state = self._env.reset_to_start()
        except InputError as error:
            self._failure = WorkerFailure.from_exception(error)
            return episode_loop.STEP_FAILED
        # The merge sees the reset and reports another state.
        if next_state == self._env.start:
            self._check_action_mask(next_state)
        self._transitions += (-1 - state, next_state, 0)
        return next_state

    def take_action(self, state: int, action: int, rng: np.random.Generator) -> tuple[int, int]:
        if state * self._env.n_actions + action in self._action_masks.absent_pairs:
            return self.reset_from(state), episode_loop.NO_EVENT
        try:
            next_state, terminated = self._env.step(state, action)
        except InputError as error:
            self._failure = WorkerFailure.from_exception(error)
            return episode_loop.STEP_FAILED, episode_loop.NO_EVENT
        if terminated:
            self._terminal_states.add(next_state)
        # New to this worker. Another worker may have found the state in the same round.
        is_new = next_state not in self._known_states
        self._known_states.add(next_state)
        if is_new:
            self._action_masks.add_state_mask(next_state, self._env.action_mask)
        elif not terminated:
            self._check_action_mask(next_state)
        self._transitions += (state * self._env.n_actions + action, next_state, terminated)
        return next_state, episode_loop.NEW_STATE if is_new else episode_loop.NO_EVENT

    def _check_action_mask(self, state: int) -> None:
        if self._action_masks.conflicts_with_known(state, self._env.action_mask):
            self._mask_conflicts.append(state)

    def save_position(self, new_states: LabelledStates) -> dict[str, Any]:
        """Return the position as JSON, and how the environment got there from its last reset."""
        self._sync_state_numbers(new_states)
        at_virtual_start = self._env.has_virtual_start and self._position[0] == self._env.start
        # Without the states: their numbers and labels are saved once for all workers.
        episode = self._env.episode_snapshot(at_virtual_start, state_unknown=False)
        return {"place": list(self._position), "rng": self._rng.bit_generator.state} | episode

    def restore_position(self, saved: dict[str, Any], new_states: LabelledStates, seed: int) -> bool:
        """Go back to a saved position; return whether replaying the episode led there.

        ``seed`` is for generators of the environment's own, which cannot be restored.
        """
        self._sync_state_numbers(new_states)
        self.reset_with_seed(seed)
        random_streams.restore_rng_state(self._rng, saved["rng"])
        self._position = list(saved["place"])
        try:
            is_restored = self._env.replay_episode(saved) == self._position[0]
            self._rng_after_seeding = self._backend.generator_state()
        except EnvironmentFailure:
            return False
        return is_restored

    def close(self) -> None:
        """Close the environment."""
        self._backend.close()


FailureHandler = Callable[[int, BaseException], None]  # gets the index of a worker and how its call failed


class WorkerPool:
    """The workers of one environment, called by their indices."""

    def __init__(self, makers: Sequence[Callable[[], EnvWorker]], name: str, make_worker: WorkerFactory) -> None:
        self._workers = [make_worker(make, f"the process of the environment {name}") for make in makers]
        self.properties, *others = self._start_workers(self._workers)
        if not all(_properties_agree(self.properties, other) for other in others):
            self.close()
            raise InputError(f"the copies of {name} start in different states; use one worker", "workers")
        self.state_unknown = [False] * len(makers)
        self.seed: int | None = None  # of the run; None before the first rollout
        self.restart_counts = [0] * len(makers)
        self.n_synced = [len(self.properties.first_states or ())] * len(makers)  # states whose numbers a worker has

    def _start_workers(self, workers: Sequence[Worker]) -> list[EnvProperties]:
        try:
            # Start all before waiting for the first answer: imports take seconds.
            for worker in workers:
                worker.start()
                worker.send("get_properties")
            return [worker.receive(START_TIMEOUT_SECONDS) for worker in workers]
        except BaseException:
            # Stopped workers start again with the next call; a late answer would be taken for that of the next call.
            for worker in workers:
                worker.stop()
            raise

    def __len__(self) -> int:
        return len(self._workers)

    def call_workers(self, calls: dict[int, tuple[Any, ...]], on_failure: FailureHandler) -> dict[int, Any]:
        """Call methods of several workers at once; return the results of those that did not fail."""
        results: dict[int, Any] = {}
        try:
            # The user's code runs in the workers, so Ctrl-C may interrupt the wait.
            with USER_CODE_SECTION:
                # All calls are sent before the first answer is awaited, so the workers run at the same time.
                for i, call in calls.items():
                    self._workers[i].send(*call)
                for i in calls:
                    try:
                        results[i] = self._workers[i].receive()
                    except InputError as error:
                        self.state_unknown[i] = True
                        on_failure(i, error)
        except BaseException:
            # Else late replies would be taken for those of the next calls.
            self.close()
            raise
        return results

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.stop()
        self.state_unknown = [True] * len(self)

    def take_new_states(self, i: int, states: LabelledStates) -> LabelledStates:
        """Return the states whose numbers worker i does not have yet, and note that it gets them now."""
        new_states, self.n_synced[i] = states[self.n_synced[i] :], len(states)
        return new_states

    def restart_lost_workers(self, on_failure: FailureHandler) -> dict[int, int]:
        """Reset the workers whose state is unknown, in new processes if theirs are gone; return the states after it."""
        lost = [i for i, unknown in enumerate(self.state_unknown) if unknown]
        # A worker whose environment raised is alive. Only a process that ended needs a new one, which knows the first
        # states only.
        gone = [i for i in lost if not self._workers[i].is_alive]
        self._start_workers([self._workers[i] for i in gone])
        for i in gone:
            self.n_synced[i] = len(self.properties.first_states or ())
        states = self.call_workers({i: ("reset_with_seed", self.next_worker_seed(i)) for i in lost}, on_failure)
        for i in states:
            self.state_unknown[i] = False
        return states

    def next_worker_seed(self, i: int) -> int:
        """Return the seed of another restart of worker i."""
        # With the old seed the worker would repeat its samples, and they would count as new ones. The number of
        # restarts is saved with the run, so a resumed run does not repeat a seed either.
        self.restart_counts[i] += 1
        source = stream_seed_sequence(self.seed or 0, StreamPurpose.COPY_LIFE, i, self.restart_counts[i])
        return int(source.generate_state(1, np.uint64)[0] >> 1)


def _properties_agree(one: EnvProperties, other: EnvProperties) -> bool:
    # The digests are compared apart, because an array has no single truth value.
    mine, theirs = one.observed_states, other.observed_states
    same = mine.key_format == theirs.key_format and np.array_equal(mine.digests, theirs.digests)
    return same and one._replace(observed_states=theirs) == other
