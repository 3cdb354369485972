"""Several copies of an environment that play one plan at once, for environments whose steps are slow.

In a *round* every worker (:mod:`adagoal.envs.env_workers`) plays the same plan for the same number of steps, in a
process of its own, and sends its transitions. They are counted in the order of the workers' indices, whichever answers
first. So a run follows from its seed and the number of workers, wherever they are. A round ends a rollout if, after the
merge, a pair has been tried often enough for a new plan or a state is new. Otherwise another round follows. If a worker
is killed from outside, its round is discarded, and it continues from a reset in a new process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from adagoal.core import random_streams
from adagoal.core.array_types import Bools, Floats, Longs
from adagoal.core.environment import ExplorationPlan, ObservedStates, RolloutLimits, RolloutOutcome
from adagoal.core.errors import InputError, to_single_line
from adagoal.core.file_formats import COUNT_SCHEMA, ArraySpec, check_arrays, check_json_value, object_schema
from adagoal.core.goal_space import GoalSpace
from adagoal.core.operators import LocalLowerBounds, greedy_action_table
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs import episode_loop, observation_keys
from adagoal.envs.base_env import ActionMasks, BaseEnv, Diagnostics, LabelledStates, MonitoredEnv, make_room_for_states
from adagoal.envs.env_workers import EnvWorker, RolloutRecord, WorkerPlan, WorkerPool
from adagoal.envs.gym_adapter import MAX_REPLAY_STEPS, check_saved_episode
from adagoal.parallel.worker_process import WorkerFactory, WorkerFailure, WorkerKilled, WorkerProcess

# Steps of one worker in a round. All workers together take 1/128 of the steps so far, so the plan is never much older
# than the data. The limits keep early rounds from being mostly messages, and late ones from taking long.
MIN_WORKER_ROUND_STEPS, MAX_WORKER_ROUND_STEPS, ROUND_SHARE_DIVISOR = 32, 4096, 128


class ParallelEnv(MonitoredEnv):
    """A :class:`~adagoal.core.environment.TabularEnv` of several copies of a Gymnasium environment."""

    WORKER_SCHEMA = object_schema(
        place=BaseEnv.POSITION_SCHEMA,
        rng={"type": "object"},
        generator={"type": "object"},
        actions={"type": ["array", "null"], "maxItems": MAX_REPLAY_STEPS, "items": COUNT_SCHEMA},
    )
    FACTS_SCHEMA = object_schema(
        seed={"type": ["integer", "null"], "minimum": 0, "maximum": 2**63},
        restart_counts={"type": "array", "items": COUNT_SCHEMA},
        workers={"type": "array", "items": WORKER_SCHEMA | {"type": ["object", "null"]}},  # null: state unknown
        diagnostics=Diagnostics.FACTS_SCHEMA,
        ever_truncated={"type": "boolean"},
        used_gym_rng={"type": "boolean"},
        states={"type": "array"},
        labels=Diagnostics.LINES_SCHEMA,
    )

    def __init__(
        self, makers: Sequence[Callable[[], EnvWorker]], name: str, make_worker: WorkerFactory = WorkerProcess
    ) -> None:
        self._workers = WorkerPool(makers, name, make_worker)
        self._properties = self._workers.properties
        super().__init__(name, self._properties)
        self._known_states: LabelledStates = list(self._properties.first_states or [])  # without a virtual start
        self._state_numbers = {key: s + self.start_is_certain for s, (key, _) in enumerate(self._known_states)}
        self._steps_since_reset = [0] * len(makers)
        self._stream_positions = np.zeros((len(makers), 3), np.int64)  # of each worker's transitions, in the tests
        self._ever_truncated = self._used_gym_rng = False

    @property
    def n_workers(self) -> int:
        """Number of workers."""
        return len(self._workers)

    def _observed_labels(self) -> tuple[str, ...]:
        if self._properties.first_states is None:
            return ()
        virtual_start = ("start",) if self._properties.has_virtual_start else ()
        return (*virtual_start, *(label for _, label in self._known_states))

    def rollout(
        self, plan: ExplorationPlan, weights: Floats, counts: TransitionCounts, rng: Generator, limits: RolloutLimits
    ) -> RolloutOutcome:
        """Play rounds until a threshold is met, a state is new, or one of the limits is reached."""
        self._raise_pending_failure()
        if self._workers.seed is None:
            self.reset_with_seed(int(rng.integers(2**31)))
        self._diagnostics.report_lost_transitions()
        self._restart_lost_workers()
        worker_plan = self._make_worker_plan(plan, weights, counts)
        outcome, is_over = RolloutOutcome(), False
        max_steps, max_episodes = limits
        # A plan may allow fewer steps than one short round of all workers, which would be mostly messages.
        max_steps = min(max_steps, max(plan.max_steps, MIN_WORKER_ROUND_STEPS * self.n_workers))
        while not is_over and outcome.steps < max_steps and len(outcome.goals) < max_episodes:
            left = max_steps - outcome.steps, max_episodes - len(outcome.goals)
            try:
                records = self._play_round(worker_plan, counts, *left)
            except KeyboardInterrupt as error:
                # Raised by the next call, so the rounds before it are not lost.
                self._pending_failure = error
                break
            is_over = any(self._workers.state_unknown)
            # By index: the order of the answers would not be reproducible.
            for i, record in records.items():
                is_over |= self._merge_record(i, record, counts, plan.replan_thresholds)
                outcome.steps += len(record.transitions)
                outcome.goals += record.episode_log[:, 0].tolist()
                outcome.reached += (record.episode_log[:, 1] > 0).tolist()
            # Only the first round stores the mask of the start; in later rounds it is compared.
            if worker_plan.before_first_step:
                absent_pairs = np.flatnonzero(counts.absent).tolist()
                worker_plan = worker_plan._replace(absent_pairs=absent_pairs, before_first_step=False)
        self._consecutive_kills = 0 if outcome.steps else self._consecutive_kills + 1
        if not outcome.steps:
            self._raise_pending_failure()
        return outcome

    def _make_worker_plan(self, plan: ExplorationPlan, weights: Floats, counts: TransitionCounts) -> WorkerPlan:
        columns = np.flatnonzero(weights > 0)
        if isinstance(plan.policy, LocalLowerBounds):
            # Backups need the counts of this moment. Workers count nothing, so they follow a fixed greedy policy.
            arrays = counts.successor, counts.count, counts.support, counts.n
            policy = greedy_action_table(columns, np.flatnonzero(counts.seen), plan.policy, *arrays)
        else:
            policy = np.ascontiguousarray(plan.policy[:, :, columns])
        episode_plan = episode_loop.make_episode_plan(plan, weights, self.n_actions, self.start)
        return WorkerPlan(
            episode_plan._replace(
                policy=policy, goal_state=plan.goal_state[columns], cumulative_weights=np.cumsum(weights[columns])
            ),
            columns.tolist(),
            np.flatnonzero(counts.seen).tolist(),
            np.flatnonzero(counts.terminal).tolist(),
            np.flatnonzero(counts.absent).tolist(),
            self.uses_action_masks,
            before_first_step=not counts.visits[self.start] and not self._properties.has_virtual_start,
        )

    def _play_round(
        self, plan: WorkerPlan, counts: TransitionCounts, max_steps: int, max_episodes: int
    ) -> dict[int, RolloutRecord]:
        """Return the record of every worker; the limits are for all of them together."""
        # Every worker gets at least one step and one episode, and all together not more than the limits.
        N = min(self.n_workers, max_steps, max_episodes)
        share = int(counts.visits.sum()) // (ROUND_SHARE_DIVISOR * N)
        steps = min(max(share, MIN_WORKER_ROUND_STEPS), MAX_WORKER_ROUND_STEPS, max_steps // N)
        calls = {
            i: ("play_plan", plan, self._workers.take_new_states(i, self._known_states), steps, max_episodes // N)
            for i in range(N)
        }
        return self._workers.call_workers(calls, self._handle_failure)

    def _handle_failure(self, i: int, error: BaseException) -> None:
        # A kill from outside is assumed not to depend on what the round met, so its loss does not bias the data
        # (docs/theory-more.md, "Several copies"). A failure may depend on the transition that is lost with it, so it
        # voids the run if the run goes on.
        if isinstance(error, WorkerKilled) and self._consecutive_kills < self.MAX_CONSECUTIVE_KILLS:
            self.add_warning(f"{error.reason}; a round of worker {i} was discarded, and it continued from a reset")
            return
        if not isinstance(error, WorkerKilled):
            self._diagnostics.lost_transitions += 1
            # Now and not when the run goes on: others of this round are counted after those that are lost.
            self._diagnostics.report_lost_transitions()
        self._pending_failure = self._pending_failure or error

    def _merge_record(self, i: int, record: RolloutRecord, counts: TransitionCounts, threshold: Longs) -> bool:
        """Count the transitions of worker i; return whether they end the rollout."""
        virtual = self._properties.has_virtual_start
        n_new = sum(key not in self._state_numbers for key, _ in record.new_states)
        if len(self._state_numbers) + virtual + n_new >= self.state_bound:
            text = f"{self.name} has more than {self.state_bound - 1} states; give a larger number"
            # Without numbers for the new states none of its transitions can be counted. Dropping them because of what
            # they met biases the data, also if the bounds now stop the run before it takes another step.
            self._diagnostics.add_void_reason(f"{text}, since the transitions of a worker were dropped")
            record = record._replace(transitions=record.transitions[:0], new_states=[], masks={}, mask_conflicts=[])
            record = record._replace(failure=WorkerFailure.from_exception(InputError(text, "max_states")))
        numbers, A = self._final_state_numbers(i, record), self.n_actions
        # Contiguous like all other arrays: Numba would compile the kernels again for another memory layout.
        moves, next_states, terminated = np.ascontiguousarray(record.transitions.T)
        is_step = moves >= 0  # else a reset
        states, next_states = numbers[np.where(is_step, moves // A, -1 - moves)], numbers[next_states]
        moves = np.where(is_step, states * A + moves % A, -1 - states)
        make_room_for_states(counts, len(self._state_numbers) + virtual, self.state_bound)
        self._merge_action_masks(counts, numbers, record)
        # Before the steps are counted, which marks their states as seen.
        found_new_state = not counts.seen[next_states].all()
        self._merge_terminal_states(counts, next_states[is_step], terminated[is_step] > 0)
        for state in next_states[~is_step & (next_states != self.start)][:1]:
            self._diagnostics.report_reset_mismatch(int(state))
        self._stream_positions[i] = self._markov_tests.add_transitions(moves, next_states, self._stream_positions[i])
        counts.add_steps(moves, next_states)
        self._ever_truncated |= record.ever_truncated
        self._used_gym_rng |= record.used_gym_rng
        self._steps_since_reset[i] = record.steps_since_reset
        if record.failure is not None:
            self._workers.state_unknown[i] = True
            self._handle_failure(i, record.failure.to_exception())
        pairs = np.unique(moves[is_step])
        # States newer than the plan have no threshold.
        pairs = pairs[pairs < len(threshold)]
        return found_new_state or record.failure is not None or bool((counts.n[pairs] >= threshold[pairs]).any())

    def _final_state_numbers(self, i: int, record: RolloutRecord) -> Longs:
        """Return the final numbers by the numbers of worker i."""
        # Shared states have their final numbers. Provisional numbers follow, in the order of new_states.
        n_shared = self._workers.n_synced[i] + self._properties.has_virtual_start
        if self._properties.first_states is None:
            n_shared = self.state_bound
        new_states = [self._find_or_add_state(key, label) for key, label in record.new_states]
        return np.concatenate([np.arange(n_shared), np.array(new_states, np.int64)])

    def _find_or_add_state(self, key: observation_keys.StateKey, label: str) -> int:
        if key not in self._state_numbers:
            self._state_numbers[key] = len(self._known_states) + self._properties.has_virtual_start
            self._known_states.append((key, label))
        return self._state_numbers[key]

    def _merge_action_masks(self, counts: TransitionCounts, numbers: Longs, record: RolloutRecord) -> None:
        """Mark the absent pairs of new states; a state that several workers discovered must have one mask."""
        if not record.masks and not record.mask_conflicts:
            return
        states, conflicts = numbers[list(record.masks)].tolist(), numbers[record.mask_conflicts].tolist()
        # Masks count as used here: workers report none otherwise.
        known = ActionMasks(self.n_actions, np.flatnonzero(counts.absent).tolist(), used=True)
        for state, mask in zip(states, record.masks.values(), strict=True):
            if not counts.visits[state] and (state == self.start or not counts.seen[state]):
                counts.mark_absent_pairs(known.add_state_mask(state, mask))
            elif known.conflicts_with_known(state, mask):
                conflicts.append(state)
        for state in conflicts[:1]:
            self._diagnostics.report_mask_conflict(state)

    def _merge_terminal_states(self, counts: TransitionCounts, states: Longs, is_terminated: Bools) -> None:
        """Mark terminated states; a state that ends the episode must do so at every visit."""
        # A visit may contradict one of an earlier round, or one of this round before or after it.
        ended, continued = states[is_terminated], states[~is_terminated]
        was_open = ended[counts.seen[ended] & ~counts.terminal[ended]]
        was_terminal = continued[counts.terminal[continued]]
        counts.terminal[ended] = True
        for state in (*was_open, *np.intersect1d(ended, continued), *was_terminal)[:1]:
            self._diagnostics.report_terminal_mismatch(int(state), self.state_bound)

    def reset_with_seed(self, seed: int) -> None:
        """Reset all workers, with all their randomness seeded anew."""
        self._workers.seed, self._workers.state_unknown = seed, [True] * len(self._workers)
        self._restart_lost_workers()

    def _restart_lost_workers(self) -> None:
        for i, state in self._workers.restart_lost_workers(self._handle_failure).items():
            self._stream_positions[i] = self._steps_since_reset[i] = 0
            if state != self.start:
                self._diagnostics.report_reset_mismatch(state)
        self._raise_pending_failure()

    def close(self) -> None:
        """End all workers."""
        self._workers.close()

    def assign_states_to_goals(self, space: GoalSpace) -> bool:
        """Add all states to the goal space; the observation of a declared state is its number."""
        if self._properties.first_states is not None:
            text = "with several workers goals must be given as states; functions of observations need workers=1"
            raise InputError(text, "goals")
        first = self._properties.observed_states.key_format["first"]
        # A virtual start has no observation, so it belongs to no goal.
        for state in range(self.state_bound - self._properties.has_virtual_start):
            space.add_state(state, first + state, self.labels[state] if self.labels else str(first + state))
        return True

    def observed_states(self) -> ObservedStates:
        """How observations identify states."""
        if self._properties.first_states is None:
            return self._properties.observed_states
        digests = observation_keys.digest_states(self._state_numbers, len(self.labels))
        return self._properties.observed_states._replace(digests=digests)

    @property
    def warnings(self) -> list[str]:
        """What a user should know about the environment."""
        lines = self._list_env_warnings(self._ever_truncated)
        # The seeds of all workers differ, but a generator of the environment's own may ignore them.
        if self._markov_tests.saw_randomness and not self._used_gym_rng:
            lines.append(
                "the environment draws at random without Gymnasium's generator (np_random): the certificates assume "
                "that its copies do not draw the same numbers"
            )
        return lines

    @property
    def is_restorable(self) -> bool:
        """Whether the episodes of all workers together are short enough to be replayed from a checkpoint."""
        return sum(self._steps_since_reset) <= MAX_REPLAY_STEPS

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return the positions of all workers, their actions since the last reset, and what the checks know so far."""
        pool, calls = self._workers, dict[int, tuple[Any, ...]]()
        for i, unknown in enumerate(pool.state_unknown):
            if pool.seed is not None and not unknown:
                calls[i] = "save_position", pool.take_new_states(i, self._known_states)
        saved = pool.call_workers(calls, self._handle_failure)
        facts = {
            "seed": pool.seed,
            "restart_counts": list(pool.restart_counts),
            "workers": [saved.get(i) for i in range(len(pool))],
            "diagnostics": self._diagnostics.state(),
            "ever_truncated": self._ever_truncated,
            "used_gym_rng": self._used_gym_rng,
            "states": [observation_keys.key_to_json(key) for key, _ in self._known_states],
            "labels": [label for _, label in self._known_states],
        }
        return self._markov_tests.state() | {"stream_positions": self._stream_positions}, facts

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned; a worker that cannot be restored gets a new seed."""
        check_json_value(self.FACTS_SCHEMA, facts)
        pool, saved = self._workers, facts["workers"]
        # The order of the workers decides the order of the transitions, so their number cannot change within a run.
        if not len(facts["restart_counts"]) == len(saved) == len(pool):
            raise ValueError(f"it has another number of workers than {len(pool)}")
        check_arrays({"stream_positions": ArraySpec("int64", (len(pool), 3))}, arrays)
        for position in filter(None, saved):
            random_streams.check_rng_state(position["rng"])
            check_saved_episode(position, self.n_actions)
        self._diagnostics.restore(facts["diagnostics"])
        self._markov_tests.restore({name: array for name, array in arrays.items() if name != "stream_positions"})
        self._restore_state_numbers(facts)
        self._stream_positions = np.array(arrays["stream_positions"])
        self._ever_truncated, self._used_gym_rng = facts["ever_truncated"], facts["used_gym_rng"]
        pool.seed, pool.restart_counts = facts["seed"], list(facts["restart_counts"])
        if pool.seed is None:
            return
        self._steps_since_reset = [len((position or {}).get("actions") or ()) for position in saved]
        calls = {
            i: ("restore_position", position, pool.take_new_states(i, self._known_states), pool.next_worker_seed(i))
            for i, position in enumerate(saved)
            if position is not None
        }
        is_restored = pool.call_workers(calls, self._handle_failure)
        pool.state_unknown = [not is_restored.get(i, False) for i in range(len(pool))]
        if any(pool.state_unknown):
            self.add_warning("a worker could not be restored to its saved state; it continued from a reset")

    def _restore_state_numbers(self, facts: dict[str, Any]) -> None:
        if self._properties.first_states is None:
            return
        keys = [observation_keys.key_from_json(key) for key in facts["states"]]
        labels = [to_single_line(label) for label in facts["labels"]]
        first = [key for key, _ in self._properties.first_states]
        if not len(labels) == len(keys) == len(set(keys)) or keys[: len(first)] != first:
            raise ValueError("the states are not those of this environment, one number and one label each")
        self._known_states = list(zip(keys, labels, strict=True))
        self._state_numbers = {key: s + self._properties.has_virtual_start for s, key in enumerate(keys)}
