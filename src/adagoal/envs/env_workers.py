"""One of several copies of an environment: what a worker does.

A copy plays a part of a plan with :func:`adagoal.envs.episode_loop.play_episodes`, as a single environment would, and
sends back what it saw: one message a round, not a step. It counts nothing: :mod:`adagoal.envs.parallel_env` merges what
all have seen.

States that are numbered as they are met have the same numbers in all copies: a state that a copy meets first has a
number beyond all others until the copy is told the one that it got in the merge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from adagoal.core import random_streams
from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.core.processes import USER_CODE_SECTION, WorkerFailure
from adagoal.core.random_streams import StreamPurpose, random_stream, stream_seed_sequence
from adagoal.core.types import Longs, ObservedStates
from adagoal.envs import episode_loop
from adagoal.envs.counting_env import ActionMasks
from adagoal.envs.env_backends import START_TIMEOUT_SECONDS, ActionMask, InProcessEnv, WorkerProcess
from adagoal.envs.indexed_env import IndexedEnv, StartSeed
from adagoal.envs.observation_keys import StateKey

LabelledStates = list[tuple[StateKey, str]]
"""States with their labels, in the order of their numbers."""


class EnvProperties(NamedTuple):
    """What all copies must agree on."""

    n_actions: int
    start: int
    state_bound: int
    initial_states: int
    has_virtual_start: bool
    """Whether the start is a state of its own, before the random first observation"""
    first_states: LabelledStates | None
    """States known at first, after the virtual start; None where their numbers are declared"""
    observed_states: ObservedStates
    """How the states are known by their observations; the digests are those of the beginning"""
    reseeded: tuple[str, ...]
    """Random generators that every reset puts into the same state"""


class WorkerPlan(NamedTuple):
    """The part of a plan that is played: its columns of positive weight."""

    episode_plan: episode_loop.EpisodePlan
    """For these columns"""
    columns: list[int]
    """Their numbers in the plan"""
    known_states: list[int]
    """The states that are not new"""
    terminal_states: list[int]
    """Those of them in which nothing but a reset is allowed"""
    absent_pairs: list[int]
    """The pairs s * A + a that do not exist"""
    use_masks: bool
    """Whether masks are used"""
    before_first_step: bool
    """Whether nobody has moved yet, so that the mask of the start is news"""


class RolloutRecord(NamedTuple):
    """What a copy saw."""

    trail: Longs
    """[steps, 3] the pair s * A + a, or -1 - s for a reset in s; the state after it; whether that one terminated"""
    episode_log: Longs
    """[episodes, 2] the goal of each episode that ended, and whether it was reached"""
    met: LabelledStates
    """States that it met first"""
    masks: dict[int, ActionMask]
    """Of the states that were new to it"""
    torn: list[int]
    """States that had another mask than before"""
    ever_truncated: bool
    steps_since_reset: int
    """Steps since the last reset of the environment"""
    used_gym_rng: bool
    """Whether Gymnasium's generator was ever used"""
    failure: WorkerFailure | None
    """The exception that ended the round, if any"""


class EnvWorker:
    """An environment that plays parts of plans. It is its own :class:`~adagoal.envs.episode_loop.EpisodeEnv`."""

    def __init__(self, body: InProcessEnv, name: str, start_seed: StartSeed, max_states: int | None) -> None:
        self._backend = body
        self._env = adapter = IndexedEnv(body, name, start_seed, max_states)
        declared = body.facts.declared_states is not None
        met = (
            None
            if declared
            else list(zip(adapter.state_numbers, adapter.labels[adapter.has_virtual_start :], strict=True))
        )
        bounds = adapter.state_bound, adapter.initial_states
        self.facts = EnvProperties(
            adapter.n_actions,
            adapter.start,
            *bounds,
            adapter.has_virtual_start,
            met,
            adapter.observed_states(),
            adapter.reseeded,
        )
        self._position = [adapter.start, -1, 0]
        self._rng = np.random.default_rng()
        self._known_states: set[int] = set()
        self._terminal_states: set[int] = set()
        self._action_masks, self._mask_conflicts = ActionMasks(adapter.n_actions, (), used=False), list[int]()
        self._n_synced = len(adapter.labels)  # labels that all copies share
        self._rng_after_seeding: dict[str, Any] = {}  # the generator of the environment after the last seed
        self._transitions: list[int] = []
        self._failure: WorkerFailure | None = None

    # --- playing ----------------------------------------------------------------------------------------------

    def begin(self, seed: int) -> int:
        """Seed all randomness, and go to the start; the state after the reset."""
        self._rng = random_stream(seed, StreamPurpose.COPY_EPISODES)
        landed = self._env.seed_and_reset(
            int(stream_seed_sequence(seed, StreamPurpose.COPY_ENVIRONMENT).generate_state(1)[0] >> 1)
        )
        self._position, self._rng_after_seeding = [self._env.start, -1, 0], self._backend.generator()
        return landed

    def play(self, part: WorkerPlan, news: LabelledStates, steps: int, episodes: int) -> RolloutRecord:
        """Play so many steps and episodes, at most."""
        self._sync_known_states(news)
        orders, columns = episode_loop.to_python_plan(part.episode_plan), part.columns
        self._known_states, self._terminal_states = set(part.known_states), set(part.terminal_states)
        self._action_masks, self._mask_conflicts = (
            ActionMasks(self._env.n_actions, part.absent_pairs, part.use_masks),
            [],
        )
        if part.before_first_step:
            self._action_masks.add_state_mask(self._env.start, self._env.action_mask)
        self._transitions, self._failure = [], None
        state, aim, clock = self._position
        place = [state, columns.index(aim) if aim in columns else -1, clock]
        log = np.zeros((min(episodes, episode_loop.MAX_EPISODES_PER_CALL), 2), np.int64)
        _, ended = episode_loop.play_episodes(self, orders, place, self._rng, steps, log)
        self._position = [int(place[0]), columns[place[1]] if place[1] >= 0 else -1, int(place[2])]
        trail = np.array(self._transitions, np.int64).reshape(-1, 3)
        drew = not random_streams.rng_states_equal(self._backend.generator(), self._rng_after_seeding)
        facts = self._env.ever_truncated, len(self._env.actions_since_reset), drew, self._failure
        return RolloutRecord(
            trail, log[:ended], self._new_states(), self._action_masks.masks_of_new_states, self._mask_conflicts, *facts
        )

    def _new_states(self) -> LabelledStates:
        labels = self._env.labels[self._n_synced :]
        return list(
            zip(list(self._env.state_numbers)[len(self._env.state_numbers) - len(labels) :], labels, strict=True)
        )

    def _sync_known_states(self, news: LabelledStates) -> None:
        """The numbers of states met since; the copy's own guesses are forgotten."""
        adapter = self._env
        guesses = self._new_states()
        here = next((key for key, _ in guesses if adapter.state_numbers[key] == self._position[0]), None)
        for key, _ in guesses:
            del adapter.state_numbers[key]
        adapter.labels = adapter.labels[: self._n_synced]
        for key, label in news:
            adapter.state_numbers[key] = len(adapter.labels)
            adapter.labels += (label,)
        self._n_synced = len(adapter.labels)
        if here is not None:
            self._position[0] = adapter.state_numbers[here]

    def must_reset(self, state: int) -> bool:
        """See :class:`~adagoal.envs.episode_loop.EpisodeEnv`."""
        return self._env.needs_reset or state in self._terminal_states

    def reset_from(self, state: int) -> int:
        """See :class:`~adagoal.envs.episode_loop.EpisodeEnv`."""
        try:
            landed = self._env.reset_to_start()
        except InputError as error:
            self._failure = WorkerFailure.from_exception(error)
            return episode_loop.STEP_FAILED
        if landed == self._env.start:
            self._check_action_mask(landed)
        self._transitions += (-1 - state, landed, 0)
        return landed

    def take_action(self, state: int, action: int, rng: np.random.Generator) -> tuple[int, int]:
        """See :class:`~adagoal.envs.episode_loop.EpisodeEnv`."""
        if state * self._env.n_actions + action in self._action_masks.absent_pairs:
            return self.reset_from(state), episode_loop.NO_EVENT
        try:
            landed, terminated = self._env.step(state, action)
        except InputError as error:
            self._failure = WorkerFailure.from_exception(error)
            return episode_loop.STEP_FAILED, episode_loop.NO_EVENT
        if terminated:
            self._terminal_states.add(landed)
        new = landed not in self._known_states
        self._known_states.add(landed)
        if new:
            self._action_masks.add_state_mask(landed, self._env.action_mask)
        elif not terminated:
            self._check_action_mask(landed)
        self._transitions += (state * self._env.n_actions + action, landed, terminated)
        return landed, episode_loop.NEW_STATE if new else episode_loop.NO_EVENT

    def _check_action_mask(self, state: int) -> None:
        """The mask of a state must not change."""
        if self._action_masks.conflicts_with_known(state, self._env.action_mask):
            self._mask_conflicts.append(state)

    # --- saving -----------------------------------------------------------------------------------------------

    def snapshot(self, news: LabelledStates) -> dict[str, Any]:
        """Where it stands, and how it got there from the last reset."""
        self._sync_known_states(news)
        waiting = self._env.has_virtual_start and self._position[0] == self._env.start
        adapter = self._env.episode_snapshot(waiting, state_unknown=False)
        return {
            "place": list(self._position),
            "rng": self._rng.bit_generator.state,
            "generator": adapter["generator"],
            "actions": adapter["actions"],
        }

    def restore(self, snapshot: dict[str, Any], news: LabelledStates, seed: int) -> bool:
        """Back to a snapshot; whether the episode under way could be replayed. What cannot be put back is seeded."""
        self._sync_known_states(news)
        self.begin(seed)
        random_streams.restore_rng_state(self._rng, snapshot["rng"])
        self._position = list(snapshot["place"])
        try:
            there = self._env.replay_episode(snapshot) == self._position[0]
            self._rng_after_seeding = self._backend.generator()
            return there
        except EnvironmentFailure:
            return False

    def close(self) -> None:
        """Close the environment."""
        self._backend.close()


# The copies of an environment and where they live: calls to all of them at once, and new ones for those that are lost.
#
# A :class:`Worker` is a copy in a process of this machine (:class:`adagoal.envs.env_backends.WorkerProcess`) or
# somewhere else. Every life of a copy has a seed of its own, which follows from the seed of the run, the number of the
# copy and that of the life: samples that repeat themselves would be counted as new ones.


class Worker(Protocol):
    """A copy, wherever it lives."""

    @property
    def is_alive(self) -> bool:
        """Whether it was begun and has not been found dead."""
        ...

    def start_worker(self) -> None:
        """Make it; its traits are the first answer."""
        ...

    def send_call(self, method: str, *arguments: Any) -> None:
        """Ask for something; the answer is received later."""
        ...

    def receive_reply(self, seconds: float | None = None) -> Any:
        """The answer. Raises :class:`~adagoal.envs.env_backends.WorkerKilled` where somebody else ended it."""
        ...

    def stop_worker(self) -> Any:
        """End it, if it has not ended yet."""
        ...


WorkerFactory = Callable[[Callable[[], EnvWorker], str], Worker]
"""From a function that makes a copy, and a name for messages."""
FailureHandler = Callable[[int, BaseException], None]
"""Told which copy answered with an exception, or not at all."""


class WorkerPool:
    """N copies, called by their numbers."""

    def __init__(
        self, makers: Sequence[Callable[[], EnvWorker]], name: str, hire: WorkerFactory = WorkerProcess
    ) -> None:
        self._workers = [hire(make, name) for make in makers]
        self.state_unknown = [False] * len(makers)
        """Whether nobody knows where a copy stands"""
        self.properties: EnvProperties = self._start_workers(name)
        self.seed: int | None = None
        """Of the run's copies; None before the first rollout"""
        self.restart_counts = [0] * len(makers)
        self.n_synced = [len(self.properties.first_states or ())] * len(makers)
        """How many of the states that have been met a copy knows"""

    def _start_workers(self, name: str) -> EnvProperties:
        try:
            for member in self._workers:
                member.start_worker()
            found = [member.receive_reply(START_TIMEOUT_SECONDS) for member in self._workers]
        except BaseException:
            self.close()
            raise
        first: EnvProperties = found[0]
        if not all(_properties_agree(traits, first) for traits in found):
            self.close()
            raise InputError(f"the copies of {name} are not alike: they start in different states", "workers")
        return first

    def __len__(self) -> int:
        return len(self._workers)

    def call_workers(self, calls: dict[int, tuple[Any, ...]], lost: FailureHandler) -> dict[int, Any]:
        """Call methods of copies, all at once: the answers, in their order."""
        answers: dict[int, Any] = {}

        def trying(i: int, action: Callable[..., Any], *arguments: Any) -> None:
            try:
                answers[i] = action(*arguments)
            except InputError as error:
                self.state_unknown[i] = True
                answers.pop(i, None)
                lost(i, error)

        try:
            with USER_CODE_SECTION:  # which runs elsewhere, perhaps for ever
                for i, call in calls.items():
                    trying(i, self._workers[i].send_call, *call)
                for i in list(answers):
                    trying(i, self._workers[i].receive_reply)
        except BaseException:
            self.close()  # nobody will wait for the answers
            raise
        return answers

    def close(self) -> None:
        """End all copies."""
        for member in self._workers:
            member.stop_worker()
        self.state_unknown = [True] * len(self)

    def take_new_states(self, i: int, met: LabelledStates) -> LabelledStates:
        """States that copy i has not been told about; it is told now."""
        news, self.n_synced[i] = met[self.n_synced[i] :], len(met)
        return news

    def restart_lost_workers(self, lost: FailureHandler) -> dict[int, int]:
        """Copies that are adrift begin a new life with a reset: where that led each of them."""
        gone = [i for i, adrift in enumerate(self.state_unknown) if adrift]
        for i in gone:
            if not self._workers[i].is_alive:
                self._workers[i].start_worker()
                self._workers[i].receive_reply(START_TIMEOUT_SECONDS)
                self.n_synced[i] = len(self.properties.first_states or ())
        landed = self.call_workers({i: ("begin", self.next_worker_seed(i)) for i in gone}, lost)
        for i in landed:
            self.state_unknown[i] = False
        return landed

    def next_worker_seed(self, i: int) -> int:
        """The seed of another life of copy i."""
        self.restart_counts[i] += 1
        source = stream_seed_sequence(self.seed or 0, StreamPurpose.COPY_LIFE, i, self.restart_counts[i])
        return int(source.generate_state(1, np.uint64)[0] >> 1)

    def healthy_workers(self) -> Iterable[int]:
        """The copies of which it is known where they stand."""
        return [i for i, adrift in enumerate(self.state_unknown) if not adrift]


def _properties_agree(one: EnvProperties, other: EnvProperties) -> bool:
    """Whether two copies agree; arrays are compared on their own, because they have no single truth value."""
    mine, theirs = one.observed_states, other.observed_states
    same = mine.key_format == theirs.key_format and np.array_equal(mine.digests, theirs.digests)
    return same and one._replace(observed_states=theirs) == other
