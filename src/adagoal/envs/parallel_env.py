"""Several copies of an environment that play one plan at once, for environments whose steps are slow.

A *round*: every copy (:mod:`adagoal.envs.env_workers`) plays the same plan for the same number of steps, in a process
of its own, and sends what it saw. The transitions are counted copy after copy, in the order of their numbers, whoever
was first. So a run follows from its seed and the number of copies, wherever they live. A round ends a rollout when,
after the merge, a pair has been tried often enough for a new plan or a state is new; otherwise another round follows. A
round grows with the run, so that the plan is never much older than :data:`ROUND_SHARE_DIVISOR` allows.

A copy whose process is killed costs its round: what it saw is lost whatever that was, which no certificate minds
(docs/theory-more.md, "Several copies"); it goes on from a reset in a new process. One that ends by itself is a
transition lost because of what happened in it, as in :mod:`adagoal.envs.gym_adapter`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core import random_streams
from adagoal.core.environment import ExplorationPlan, RolloutOutcome
from adagoal.core.errors import InputError, to_single_line
from adagoal.core.file_formats import COUNT_SCHEMA, ArraySpec, check_arrays, check_json_value, object_schema
from adagoal.core.goal_space import GoalSpace
from adagoal.core.local_backup import LocalLowerBounds, greedy_action_table
from adagoal.core.processes import WorkerFailure
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.types import DIGEST_BYTES, Floats, Longs, ObservedStates
from adagoal.envs import episode_loop, observation_keys
from adagoal.envs.base_env import Diagnostics, MonitoredEnv
from adagoal.envs.counting_env import ActionMasks
from adagoal.envs.env_backends import WorkerKilled, WorkerProcess
from adagoal.envs.env_workers import EnvWorker, LabelledStates, RolloutRecord, WorkerFactory, WorkerPlan, WorkerPool
from adagoal.envs.gym_adapter import MAX_CONSECUTIVE_KILLS, MAX_REPLAY_STEPS

SHARED_RNG_WARNING = (
    "the environment draws at random without Gymnasium's generator (np_random): the certificates rest on your word "
    "that its copies do not draw the same numbers"
)
MIN_WORKER_ROUND_STEPS, MAX_WORKER_ROUND_STEPS, ROUND_SHARE_DIVISOR = 32, 4096, 128
"""Steps of a copy in a round: all copies together take 1/GRAIN of the steps so far, each in these limits."""
SNAPSHOT = object_schema(
    place=episode_loop.POSITION_SCHEMA,
    rng={"type": "object"},
    generator={"type": "object"},
    actions={"type": ["array", "null"], "maxItems": MAX_REPLAY_STEPS, "items": COUNT_SCHEMA},
)
FACTS_SCHEMA = object_schema(
    seed={"type": ["integer", "null"], "minimum": 0, "maximum": 2**63},
    lives={"type": "array", "items": COUNT_SCHEMA},
    copies={"type": "array", "items": SNAPSHOT | {"type": ["object", "null"]}},
    diagnostics=Diagnostics.FACTS_SCHEMA,
    truncates={"type": "boolean"},
    drew={"type": "boolean"},
    states={"type": "array"},
    labels={"type": "array", "items": {"type": "string"}},
)
"""What a checkpoint holds; a copy is null where nobody knows where it stands."""


class ParallelEnv(MonitoredEnv):
    """A :class:`~adagoal.core.environment.TabularEnv` of several copies of a Gymnasium environment."""

    def __init__(
        self, makers: Sequence[Callable[[], EnvWorker]], name: str, hire: WorkerFactory = WorkerProcess
    ) -> None:
        self._workers = WorkerPool(makers, name, hire)
        self._properties = traits = self._workers.properties
        bounds = traits.state_bound, traits.initial_states
        super().__init__(name, traits.n_actions, traits.start, *bounds, traits.has_virtual_start, traits.reseeded)
        self._known_states: LabelledStates = list(
            traits.first_states or []
        )  # all states that have a number, without a virtual start
        self._state_numbers = {key: s + traits.has_virtual_start for s, (key, _) in enumerate(self._known_states)}
        self._steps_since_reset = [0] * len(makers)  # steps since the last reset of each copy
        self._stream_positions = np.zeros((len(makers), 3), np.int64)  # where the recorder stands with each copy
        self._ever_truncated = self._used_gym_rng = False

    @property
    def n_workers(self) -> int:
        """How many copies there are."""
        return len(self._workers)

    def _observed_labels(self) -> tuple[str, ...]:
        if self._properties.first_states is None:
            return ()
        return (
            *(("start",) if self._properties.has_virtual_start else ()),
            *(label for _, label in self._known_states),
        )

    # --- playing ----------------------------------------------------------------------------------------------

    def rollout(
        self,
        plan: ExplorationPlan,
        weights: Floats,
        counts: TransitionCounts,
        rng: np.random.Generator,
        max_steps: int,
        max_episodes: int,
    ) -> RolloutOutcome:
        """Rounds until a threshold is met, a state is new, or ``max_steps`` or ``max_episodes`` is spent."""
        self._raise_pending_failure()
        if self._workers.seed is None:
            self.reset_with_seed(int(rng.integers(2**31)))
        self._diagnostics.report_lost_transitions()
        self._restart_lost_workers()
        part = self._make_worker_plan(plan, weights, counts)
        outcome, over, max_steps = (
            RolloutOutcome(),
            False,
            min(max_steps, max(plan.max_steps, MIN_WORKER_ROUND_STEPS * self.n_workers)),
        )
        while not over and outcome.steps < max_steps and len(outcome.goals) < max_episodes:
            try:
                found = self._play_round(part, counts, max_steps - outcome.steps, max_episodes - len(outcome.goals))
            except KeyboardInterrupt as error:  # raised by the next call, so the rounds before it are not lost
                self._pending_failure = error
                break
            over = any(self._workers.state_unknown)
            for i, seen in found.items():
                over |= self._merge_rollout(i, seen, counts, plan.replan_thresholds)
                outcome.steps += len(seen.trail)
                outcome.goals += seen.episode_log[:, 0].tolist()
                outcome.reached += (seen.episode_log[:, 1] > 0).tolist()
            if part.before_first_step:
                part = part._replace(absent_pairs=np.flatnonzero(counts.absent).tolist(), before_first_step=False)
        self._consecutive_kills = 0 if outcome.steps else self._consecutive_kills + 1
        if not outcome.steps:
            self._raise_pending_failure()
        return outcome

    def _make_worker_plan(self, plan: ExplorationPlan, weights: Floats, counts: TransitionCounts) -> WorkerPlan:
        columns = np.flatnonzero(weights > 0)
        if isinstance(
            plan.policy, LocalLowerBounds
        ):  # copies count nothing: what they follow stays as it is until they are back
            arrays = counts.successor, counts.count, counts.support, counts.n
            policy = greedy_action_table(columns, np.flatnonzero(counts.seen), plan.policy, *arrays)
        else:
            policy = np.ascontiguousarray(plan.policy[:, :, columns])
        orders = episode_loop.restrict_to_columns(plan, weights, columns, policy, self.n_actions, self.start)
        seen, terminal, absent = (
            np.flatnonzero(given).tolist() for given in (counts.seen, counts.terminal, counts.absent)
        )
        fresh = not counts.visits[self.start] and not self._properties.has_virtual_start
        return WorkerPlan(orders, columns.tolist(), seen, terminal, absent, self.uses_action_masks, fresh)

    def _play_round(
        self, part: WorkerPlan, counts: TransitionCounts, steps: int, episodes: int
    ) -> dict[int, RolloutRecord]:
        """What every copy saw; so many steps and episodes of all together, at most."""
        N = min(self.n_workers, steps, episodes)
        each = min(
            max(int(counts.visits.sum()) // (ROUND_SHARE_DIVISOR * N), MIN_WORKER_ROUND_STEPS),
            MAX_WORKER_ROUND_STEPS,
            steps // N,
        )
        news = [self._workers.take_new_states(i, self._known_states) for i in range(N)]
        return self._workers.call_workers(
            {i: ("play", part, news[i], each, episodes // N) for i in range(N)}, self._handle_failure
        )

    def _handle_failure(self, i: int, error: BaseException) -> None:
        """Copy i has answered with an exception, or not at all."""
        if isinstance(error, WorkerKilled) and self._consecutive_kills < MAX_CONSECUTIVE_KILLS:
            self.add_warning(f"{error.reason}; a round of copy {i} was lost, and it went on from a reset in a new one")
            return
        self._diagnostics.lost_transitions += not isinstance(error, WorkerKilled)
        self._pending_failure = self._pending_failure or error

    def _merge_rollout(self, i: int, seen: RolloutRecord, counts: TransitionCounts, threshold: Longs) -> bool:
        """Count what copy i saw; whether that ends the rollout."""
        if self._exceeds_state_bound(seen):
            text = f"{self.name} has more than {self.state_bound} states; give a larger number"
            nothing: dict[str, Any] = {"trail": seen.trail[:0], "met": [], "masks": {}, "torn": []}
            seen = seen._replace(**nothing, failure=WorkerFailure.from_exception(InputError(text, "max_states")))
        numbers = self._global_state_numbers(i, seen)
        moves, landed, ended = self._renumber_transitions(numbers, seen)
        self._grow_counts(counts)
        self._merge_action_masks(counts, numbers, seen)
        new = not counts.seen[landed].all()
        real = moves >= 0
        self._merge_terminal_states(counts, landed[real & (ended > 0)], landed[real & (ended == 0)])
        for stray in landed[~real & (landed != self.start)][:1]:
            self._diagnostics.report_reset_mismatch(int(stray))
        self._stream_positions[i] = self._markov_tests.add_transitions(moves, landed, self._stream_positions[i])
        counts.add_steps(moves, landed)
        self._ever_truncated |= seen.ever_truncated
        self._used_gym_rng |= seen.used_gym_rng
        self._steps_since_reset[i] = seen.steps_since_reset
        if seen.failure is not None:
            self._workers.state_unknown[i] = True
            self._handle_failure(i, seen.failure.to_exception())
        tried = np.unique(moves[real])
        tried = tried[tried < len(threshold)]
        return new or seen.failure is not None or bool((counts.n[tried] >= threshold[tried]).any())

    def _global_state_numbers(self, i: int, seen: RolloutRecord) -> Longs:
        """The numbers that states have here, by those that copy i has given them; none where these are the same."""
        if not seen.met:
            return np.zeros(0, np.int64)
        known = self._workers.n_synced[i] + self._properties.has_virtual_start
        return np.concatenate([np.arange(known), [self._find_or_add_state(key, label) for key, label in seen.met]])

    def _renumber_transitions(self, numbers: Longs, seen: RolloutRecord) -> tuple[Longs, Longs, Longs]:
        """Moves, states after them and ends, with the numbers that states have here."""
        moves, landed, ended = np.ascontiguousarray(seen.trail.T)
        if not len(numbers):
            return moves, landed, ended
        A = self.n_actions
        states = numbers[np.where(moves >= 0, moves // A, -1 - moves)]
        return np.where(moves >= 0, states * A + moves % A, -1 - states), numbers[landed], ended

    def _find_or_add_state(self, key: observation_keys.StateKey, label: str) -> int:
        if key not in self._state_numbers:
            self._state_numbers[key] = len(self._known_states) + self._properties.has_virtual_start
            self._known_states.append((key, label))
        return self._state_numbers[key]

    def _exceeds_state_bound(self, seen: RolloutRecord) -> bool:
        """Whether there is no number left for a state that a copy met."""
        new = sum(key not in self._state_numbers for key, _ in seen.met)
        return len(self._state_numbers) + self._properties.has_virtual_start + new > self.state_bound

    def _grow_counts(self, counts: TransitionCounts) -> None:
        """Rows for the states met so far, and one kept free for the next."""
        while len(self._state_numbers) + self._properties.has_virtual_start >= counts.n_states < self.state_bound:
            counts.grow_states(min(2 * counts.n_states, self.state_bound))

    def _merge_action_masks(self, counts: TransitionCounts, numbers: Longs, seen: RolloutRecord) -> None:
        """Leave out what new states do not have; a state that several copies found must be the same to all."""
        if not seen.masks and not seen.torn:
            return
        theirs, differ = list(seen.masks), list(seen.torn)
        if len(numbers):
            theirs, differ = numbers[theirs].tolist(), numbers[differ].tolist()
        known = ActionMasks(self.n_actions, np.flatnonzero(counts.absent).tolist(), used=True)
        for state, mask in zip(theirs, seen.masks.values(), strict=True):
            if not counts.visits[state] and (state == self.start or not counts.seen[state]):
                counts.mark_absent_pairs(known.add_state_mask(state, mask))
            elif known.conflicts_with_known(state, mask):
                differ.append(state)
        for state in differ[:1]:
            self._diagnostics.report_mask_conflict(state)

    def _merge_terminal_states(self, counts: TransitionCounts, ended: Longs, open_: Longs) -> None:
        """Mark terminated states; whether a state ends the episode must not change."""
        torn = np.concatenate([ended[counts.seen[ended] & ~counts.terminal[ended]], np.intersect1d(ended, open_)])
        torn = np.concatenate([torn, open_[counts.terminal[open_]]])
        counts.terminal[ended] = True
        if len(torn):
            self._diagnostics.report_terminal_mismatch(int(torn[0]), self.state_bound)

    def reset_with_seed(self, seed: int) -> None:
        """All copies back to the start, with all their randomness seeded anew."""
        self._workers.seed, self._workers.state_unknown = seed, [True] * len(self._workers)
        self._restart_lost_workers()

    def _restart_lost_workers(self) -> None:
        """Copies of which nobody knows where they stand go on from a reset."""
        for i, landed in self._workers.restart_lost_workers(self._handle_failure).items():
            self._stream_positions[i] = self._steps_since_reset[i] = 0
            if landed != self.start:
                self._diagnostics.report_reset_mismatch(landed)
        self._raise_pending_failure()

    def close(self) -> None:
        """End all copies."""
        self._workers.close()

    # --- goals and names --------------------------------------------------------------------------------------

    def assign_states_to_goals(self, space: GoalSpace) -> bool:
        """The observation of a declared state is its number; others are seen by the copies alone."""
        if self._properties.first_states is not None:
            text = "must be states: what is observed elsewhere is in other processes; or explore with a single worker"
            raise InputError(text, "goals")
        first = self._properties.observed_states.key_format["first"]
        for state in range(self.state_bound - self._properties.has_virtual_start):
            space.add_state(state, first + state, self.labels[state] if self.labels else str(first + state))
        return True

    def observed_states(self) -> ObservedStates:
        """How the states are known by their observations."""
        if self._properties.first_states is None:
            return self._properties.observed_states
        digests = np.zeros((len(self.labels), DIGEST_BYTES), np.uint8)
        for key, state in self._state_numbers.items():
            digests[state] = np.frombuffer(observation_keys.hash_state_key(key), np.uint8)
        return self._properties.observed_states._replace(digests=digests)

    @property
    def warnings(self) -> list[str]:
        """What a user should know about the environment."""
        dice = [SHARED_RNG_WARNING] if self._markov_tests.saw_randomness and not self._used_gym_rng else []
        return [*self._list_env_warnings(self._ever_truncated), *dice]

    # --- saving -----------------------------------------------------------------------------------------------

    @property
    def is_restorable(self) -> bool:
        """Episodes are restored by replaying them; a checkpoint holds so many actions of all copies together."""
        return sum(self._steps_since_reset) <= MAX_REPLAY_STEPS

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Where every copy stands, how it got there from its last reset, and what the sanity checks know so far."""
        copies = self._workers
        news = {
            i: copies.take_new_states(i, self._known_states)
            for i in copies.healthy_workers()
            if copies.seed is not None
        }
        found = copies.call_workers({i: ("snapshot", new) for i, new in news.items()}, self._handle_failure)
        facts = {
            "seed": copies.seed,
            "lives": list(copies.restart_counts),
            "copies": [found.get(i) for i in range(len(copies))],
            "diagnostics": self._diagnostics.state(),
            "truncates": self._ever_truncated,
            "drew": self._used_gym_rng,
            "states": [observation_keys.key_to_json(key) for key, _ in self._known_states],
            "labels": [label for _, label in self._known_states],
        }
        return self._markov_tests.state() | {"threads": self._stream_positions}, facts

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Back to where every copy stood; what cannot be put back gets another seed."""
        check_json_value(FACTS_SCHEMA, facts)
        copies, given = self._workers, facts["copies"]
        if not len(facts["lives"]) == len(given) == len(copies):
            raise ValueError(f"it has another number of copies than {len(copies)}")
        check_arrays({"threads": ArraySpec("int64", (len(copies), 3))}, arrays)
        for copy in given:
            self._check_worker_snapshot(copy)
        self._diagnostics.restore(facts["diagnostics"])
        self._markov_tests.restore({name: array for name, array in arrays.items() if name != "threads"})
        self._restore_state_numbers(facts)
        self._stream_positions = np.array(arrays["threads"])
        self._ever_truncated, self._used_gym_rng = facts["truncates"], facts["drew"]
        copies.seed, copies.restart_counts = facts["seed"], list(facts["lives"])
        if copies.seed is None:
            return
        self._steps_since_reset = [len((copy or {}).get("actions") or ()) for copy in given]
        calls = {
            i: ("restore", copy, copies.take_new_states(i, self._known_states), copies.next_worker_seed(i))
            for i, copy in enumerate(given)
            if copy is not None
        }
        found = copies.call_workers(calls, self._handle_failure)
        copies.state_unknown = [not found.get(i, False) for i in range(len(copies))]
        if any(copies.state_unknown):
            self.add_warning("a copy could not be put back into the state it was in: it went on from a reset")

    def _check_worker_snapshot(self, copy: dict[str, Any] | None) -> None:
        """A ``ValueError`` where this is no snapshot of a copy."""
        if copy is not None:
            random_streams.check_rng_state(copy["rng"])
            if copy["generator"]:
                random_streams.check_rng_state(copy["generator"])
            if any(action >= self.n_actions for action in copy["actions"] or ()):
                raise ValueError("there is no such action")

    def _restore_state_numbers(self, facts: dict[str, Any]) -> None:
        """The numbers and names that states had."""
        if self._properties.first_states is None:
            return
        found = [observation_keys.key_from_json(key) for key in facts["states"]]
        labels = [to_single_line(label) for label in facts["labels"]]
        first = [key for key, _ in self._properties.first_states]
        if not len(labels) == len(found) == len(set(found)) or found[: len(first)] != first:
            raise ValueError("the states are not those of this environment, one number and one label each")
        self._known_states = list(zip(found, labels, strict=True))
        self._state_numbers = {key: s + self._properties.has_virtual_start for s, key in enumerate(found)}
