"""Adapt a Gymnasium environment with discrete actions to tabular runs: number its states, step it, save its position.

* States are observations (:mod:`adagoal.envs.observation_keys`). ``Discrete`` observations keep their numbers, unless
  ``max_states`` is above their number; other states are numbered in the order in which they are met.
* The reset is one more action. In a ``terminated`` state every action is the reset.
* Time limits are not part of the state, so they are removed.
* A random first observation has a *virtual start*: a state in which every action draws it. A start seed fixes the
  first observation instead. The start is random if it is declared so (``"random"``) or if the first resets disagree.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import gymnasium
from gymnasium.utils import seeding
from numpy.random import Generator
from numpy.typing import NDArray

from adagoal.core import random_streams
from adagoal.core.array_types import Floats
from adagoal.core.environment import (
    TERMINAL_SUFFIX,
    CallTexts,
    ExplorationPlan,
    ObservedStates,
    RolloutLimits,
    RolloutOutcome,
)
from adagoal.core.errors import EnvironmentFailure, InputError, RunWarning, to_single_line
from adagoal.core.file_formats import COUNT_SCHEMA, check_json_value, object_schema
from adagoal.core.goal_space import GoalSpace
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs import episode_loop, observation_keys
from adagoal.envs.base_env import INITIAL_STATES, BaseEnv, CountingEnv, Diagnostics, EnvProperties, MonitoredEnv
from adagoal.envs.env_backends import DEFAULT_MAX_STATES, ActionMask, EnvBackend, InProcessEnv, SubprocessEnv
from adagoal.envs.observation_keys import StateKey
from adagoal.parallel.worker_process import WorkerKilled

MAX_REPLAY_STEPS = 100_000  # longest episode that a checkpoint stores; a resumed run replays it
N_START_RESETS = 16  # the start counts as fixed if this number of resets agrees
StartSeed = int | str | None
"""How the first observation is drawn: with a seed, at random ("random"), or (None) inferred from a few resets."""


class NumberedEnv:
    """A Gymnasium environment with numbered states: maps observations to numbers, resets, and replays episodes."""

    def __init__(self, backend: EnvBackend, name: str, start_seed: StartSeed, max_states: int | None) -> None:
        self.name, self.backend, self.n_actions = name, backend, backend.spaces.n_actions
        self.actions_since_reset: list[int] = []
        self.needs_reset = False  # whether the environment truncated the episode, so a reset must follow
        self.ever_truncated = False
        self.action_mask: ActionMask = None  # of the current state
        self._start_seed = start_seed if isinstance(start_seed, int) else None
        self._rng_before_reset: dict[str, Any] = {}  # state of the generator before the last reset
        self._goal_space: GoalSpace | None = None  # receives every new state
        self._decode_key = observation_keys.make_observation_decoder(backend.spaces.key_format)
        start_keys = self._sample_start_keys()
        self._start_observation = backend.observation()  # unused if the start is virtual
        # A random first observation is a transition of a virtual start, so its distribution is learnt like any other.
        self.has_virtual_start = start_seed == "random" or len(start_keys) > 1
        self.n_inferred_starts = 0 if start_seed == "random" else len(start_keys)
        start_is_observed = backend.spaces.declared_states is None and not self.has_virtual_start
        self._start_label = backend.label() if start_is_observed else None
        self.labels: list[str] = []
        self.state_numbers: dict[StateKey, int] = {}  # of the states met so far, or of all declared states
        declared_states = backend.spaces.declared_states
        self._states_declared = declared_states is not None
        if declared_states is not None:
            self.state_numbers = {key: s for s, key in enumerate(declared_states)}
            self.start = len(self.state_numbers) if self.has_virtual_start else self.state_numbers[start_keys.pop()]
            self.state_bound = self.initial_states = len(self.state_numbers) + self.has_virtual_start
        else:
            max_states = max_states or DEFAULT_MAX_STATES
            # One row more than states: the last row stands for all states never met, whose number is not known.
            self.start, self.state_bound = 0, max_states + 1
            self.initial_states = min(INITIAL_STATES, max_states)
            self.state_numbers = {} if self.has_virtual_start else {start_keys.pop(): 0}
            # The key of a state machine is its label; other observations may be long.
            has_key = backend.spaces.key_format["kind"] == "key" and not self.has_virtual_start
            self.labels = [backend.label() if has_key else "start"]

    def get_properties(self) -> EnvProperties:
        """Return what is known before the first step."""
        first_states = None
        if not self._states_declared:
            first_states = list(zip(self.state_numbers, self.labels[self.has_virtual_start :], strict=True))
        sizes = self.n_actions, self.start, self.state_bound, self.initial_states
        return EnvProperties(*sizes, self.has_virtual_start, first_states, self.observed_states(), self._start_label)

    def _sample_start_keys(self) -> set[StateKey]:
        """Return the keys of several first observations; a single key means a fixed start."""
        if self._start_seed is None:
            # Different seeds, since a start may be random and the same for one seed; and as a run resets.
            return {self.backend.reset(seed)[0] for seed in (*range(N_START_RESETS), None, None)}
        # A start seed fixes the start by seeding np_random in every reset. The dynamics then need the old generator
        # back, else all episodes would draw the same numbers.
        if not self.backend.generator_state():
            raise InputError(
                f"needs Gymnasium's random generator (np_random), which {self.name} does not use; leave it out",
                "start_seed",
            )
        start_keys = {self.backend.reset(self._start_seed)[0] for _ in range(2)}
        if len(start_keys) > 1:
            raise InputError(
                f"must fix the start, but {self.name} started in two states with seed {self._start_seed}; leave it out",
                "start_seed",
            )
        return start_keys

    def terminal_key(self, key: StateKey) -> StateKey:
        """Return the key of a terminal state with this observation."""
        # In a terminal state every action is the reset. So the same observation before and at the end is two states,
        # unless the environment numbers its states itself.
        return key if self._states_declared else (key, "end")

    def add_new_state(self, key: StateKey, label: str) -> int:
        """Give a new state the next number."""
        state = len(self.labels)
        if state + 1 >= self.state_bound:
            raise InputError(
                f"{self.name} has more than {self.state_bound - 1} states; give a larger number "
                "(if they never end, the observations are not discrete)",
                "max_states",
            )
        # Before the state has a number: a goal function of the user may raise, and then the state must not exist.
        if self._goal_space is not None:
            self._goal_space.add_state(state, self._observation_for_goals(key), label)
        self.state_numbers[key] = state
        self.labels.append(label)
        return state

    def assign_states_to_goals(self, space: GoalSpace, labels: tuple[str, ...]) -> bool:
        """Add all known states to the goal space, and new states later; return whether all states are known."""
        if self._states_declared:
            for key, state in self.state_numbers.items():
                space.add_state(state, key, labels[state] if labels else str(key))
            return True
        self._goal_space = space
        for key, state in self.state_numbers.items():
            space.add_state(state, self._observation_for_goals(key), labels[state])
        return False

    def _observation_for_goals(self, key: StateKey) -> Any:
        """Return the observation of a state as goal functions see it.

        It is made from the key, so what distinguishes no states distinguishes no goals: entries that the space does not
        have, rounding, the sign of zero. A state machine and MiniGrid give the last observation, which their keys
        determine.
        """
        if self._decode_key is None:
            return self._start_observation if key in self.state_numbers else self.backend.observation()
        try:
            return self._decode_key(key)
        except ValueError:
            if not isinstance(key, tuple) or not key:
                raise
            # of a terminal state: its observation is the first part
            return self._decode_key(key[0])

    def has_other_goals_now(self) -> bool:
        """Return whether a goal function gives another answer for a known state than when the state was met."""
        return (
            self._goal_space is not None
            and self._decode_key is not None
            and not all(
                self._goal_space.agrees_with_labeler(state, self._observation_for_goals(key), self.labels[state])
                for key, state in self.state_numbers.items()
            )
        )

    def observed_states(self) -> ObservedStates:
        """Return the table from observations to states."""
        if self._states_declared:
            first, size = next(iter(self.state_numbers)), len(self.state_numbers)
            return ObservedStates({"kind": "states", "first": first, "size": size})
        digests = observation_keys.digest_states(self.state_numbers, len(self.labels))
        return ObservedStates(self.backend.spaces.key_format, digests)

    @property
    def n_known_states(self) -> int:
        """Number of states that have a number."""
        return len(self.labels) or self.initial_states

    def seed_and_reset(self, seed: int) -> int:
        """Seed all randomness of the environment and reset; return the next state."""
        self.backend.reset(seed)
        return self.reset_to_start()

    def reset_backend(self) -> StateKey:
        """Reset the environment; return the key of its first observation."""
        seed = self._start_seed
        key, self.action_mask, self._rng_before_reset = self.backend.reset(seed, seed is not None)
        # After the reset: if that is interrupted, the old episode can be replayed.
        self.actions_since_reset.clear()
        self.needs_reset = False
        return key

    def reset_to_start(self) -> int:
        """Take the reset action; return the next state, which is the start unless the environment is at fault."""
        if self.has_virtual_start:
            self.actions_since_reset.clear()
            # The first action in the virtual start resets the environment, which draws the first observation.
            self.needs_reset, self.action_mask = False, None
            return self.start
        return self._find_or_add_state(self.reset_backend())

    def step(self, state: int, action: int) -> tuple[int, bool]:
        """Take an action in a state; return the next state and whether it is terminal."""
        if self.has_virtual_start and state == self.start:
            return self._find_or_add_state(self.reset_backend()), False
        key, self.action_mask, terminated, truncated = self.backend.step(action)
        # Before the action is stored: if there are too many states, the step counts as failed.
        next_state = self._find_or_add_state(key, terminated)
        self.actions_since_reset.append(action)
        self.needs_reset = truncated and not terminated
        self.ever_truncated |= self.needs_reset
        return next_state, terminated

    def _find_or_add_state(self, key: StateKey, terminated: bool = False) -> int:
        key = self.terminal_key(key) if terminated else key
        state = self.state_numbers.get(key)
        if state is None:
            return self.add_new_state(key, self.backend.label() + (TERMINAL_SUFFIX if terminated else ""))
        return state

    def episode_snapshot(self, at_virtual_start: bool, state_unknown: bool) -> dict[str, Any]:
        """Return the generator and the actions from which the current episode can be replayed."""
        # Do not ask the backend if the state is unknown: its process may be gone.
        generator: dict[str, Any] = {}
        if not state_unknown:
            generator = self.backend.generator_state() if at_virtual_start else self._rng_before_reset
        actions = None if at_virtual_start or state_unknown else list(self.actions_since_reset)
        return {"generator": generator, "actions": actions}

    def states_snapshot(self) -> dict[str, Any]:
        """Return the keys and labels of the states; empty if the environment declares its states."""
        if self._states_declared:
            return {"states": [], "labels": []}
        keys = [observation_keys.key_to_json(key) for key in self.state_numbers]
        return {"states": keys, "labels": list(self.labels)}

    def restore_state_numbers(self, snapshot: dict[str, Any]) -> None:
        """Restore the numbers and labels of states; raise ``ValueError`` if the snapshot is of another environment."""
        check_saved_episode(snapshot, self.n_actions)
        if self._states_declared:
            return
        saved = snapshot["states"]
        numbers = {observation_keys.key_from_json(key): s + self.has_virtual_start for s, key in enumerate(saved)}
        # A forged label must not put several lines or control characters on a terminal.
        labels = [to_single_line(label) for label in snapshot["labels"]]
        if not len(labels) - self.has_virtual_start == len(numbers) == len(saved):
            raise ValueError("the states do not have one number and one label each")
        same_start = self.has_virtual_start or list(numbers)[:1] == list(self.state_numbers)[:1]
        if len(labels) >= self.state_bound or not same_start:
            raise ValueError("the states are not those of this environment")
        self.state_numbers, self.labels = numbers, labels

    def replay_episode(self, snapshot: dict[str, Any]) -> int:
        """Replay the episode of a snapshot; return the state that it ends in, or -1 if that state is unknown."""
        if snapshot["generator"]:
            self.backend.set_generator_state(snapshot["generator"])
        if snapshot["actions"] is None:
            return self.start
        # The generator is in its state before the reset, so the reset and the actions repeat the episode exactly.
        key, terminated, truncated = self.reset_backend(), False, False
        for action in snapshot["actions"]:
            key, self.action_mask, terminated, truncated = self.backend.step(action)
        self.actions_since_reset = list(snapshot["actions"])
        self.needs_reset = truncated and not terminated
        return self.state_numbers.get(self.terminal_key(key) if terminated else key, -1)


def check_saved_episode(snapshot: dict[str, Any], n_actions: int) -> None:
    """Raise ``ValueError`` if the generator or the actions of a saved episode cannot be those of an environment."""
    if snapshot["generator"]:
        random_streams.check_rng_state(snapshot["generator"])
    if any(action >= n_actions for action in snapshot["actions"] or ()):
        raise ValueError(f"there is no such action; the environment has {n_actions}")


class GymAdapter(MonitoredEnv):
    """A :class:`~adagoal.core.environment.TabularEnv` that steps a Gymnasium environment."""

    FACTS_SCHEMA = object_schema(
        place=BaseEnv.POSITION_SCHEMA,
        state_unknown={"type": "boolean"},
        seed={"type": ["integer", "null"], "minimum": 0, "maximum": 2**63},
        diagnostics=Diagnostics.FACTS_SCHEMA,
        generator={"type": "object"},
        actions={"type": ["array", "null"], "maxItems": MAX_REPLAY_STEPS, "items": COUNT_SCHEMA},
        states={"type": "array"},  # the keys of the states as JSON
        labels=Diagnostics.LINES_SCHEMA,
    )

    def __init__(
        self,
        env: gymnasium.Env[Any, Any] | SubprocessEnv,
        name: str,
        start_seed: StartSeed = None,
        max_states: int | None = None,
    ) -> None:
        backend = env if isinstance(env, SubprocessEnv) else InProcessEnv(env, name, max_states)
        self._env = NumberedEnv(backend, name, start_seed, max_states)
        super().__init__(name, self._env.get_properties())
        if self._env.n_inferred_starts > N_START_RESETS and backend.spaces.declared_states is None:
            # A start that hardly ever repeats takes thousands of resets to learn, and the user may not know of it.
            text = f"each of {N_START_RESETS} resets of {name} led to another state, so learning the start"
            text += " may take very long; start_seed=0 explores from one of them"
            warnings.warn(text, RunWarning, stacklevel=2)
        self._position = [self.start, -1, 0]  # state, goal column (-1: none), steps of the episode
        self._env_seed: int | None = None  # of the environment's randomness; None before the first rollout
        self._state_unknown = False  # True after a step that failed or was interrupted
        self.branching: int | None = None  # promised bound on the successors of a pair
        self.call_texts: CallTexts | None = None  # of a state machine

    @property
    def backend(self) -> EnvBackend:
        """The environment that is stepped."""
        return self._env.backend

    def _observed_labels(self) -> tuple[str, ...]:
        return tuple(self._env.labels)

    def rollout(
        self, plan: ExplorationPlan, weights: Floats, counts: TransitionCounts, rng: Generator, limits: RolloutLimits
    ) -> RolloutOutcome:
        """Play until the plan or a limit says stop; the next call raises an exception of the environment."""
        self._raise_pending_failure()
        if self._env_seed is None:
            self.reset_with_seed(int(rng.integers(2**31)))
        # A failure voids a run only if it continues (docs/theory-more.md, "Several copies").
        self._diagnostics.report_lost_transitions()
        if self._state_unknown:
            self._restart_with_new_seed()
        counting = CountingEnv(self._env, plan, counts, self._markov_tests, self._diagnostics, self.uses_action_masks)
        max_steps, max_episodes = limits
        max_steps, log = min(max_steps, plan.max_steps), episode_loop.make_episode_log(max_episodes)
        episode_plan = episode_loop.make_episode_plan(plan, weights, self.n_actions, self.start)
        python_plan = episode_loop.to_python_plan(episode_plan)
        try:
            steps, episodes = episode_loop.play_episodes(counting, python_plan, self._position, rng, max_steps, log)
        except BaseException:
            # A signal came between a step and its place in the position.
            self._state_unknown = True
            raise
        finally:
            counting.flush_counts()
        self._handle_failure(counting.failure, steps)
        if not steps:
            self._raise_pending_failure()
        return episode_loop.make_outcome(steps, episodes, log)

    def _handle_failure(self, failure: BaseException | None, steps: int) -> None:
        # adagoal restarts a process that was killed from outside. It assumes that the kill does not depend on what the
        # process met, so nothing biases the data (docs/theory-more.md, "Several copies"). Any other failure is kept.
        self._state_unknown = isinstance(failure, InputError)
        # Steps between two kills show that the environment works. Without any, restarting could go on for ever.
        self._consecutive_kills = 0 if steps else self._consecutive_kills + 1
        if isinstance(failure, WorkerKilled) and self._consecutive_kills <= self.MAX_CONSECUTIVE_KILLS:
            self.add_warning(f"{failure.reason}; the run went on from a reset in a new one")
            return
        self._pending_failure = failure

    def _restart_with_new_seed(self) -> None:
        self.add_warning("the environment could not be put back into the state it was in: the run went on from a reset")
        # Another seed: the old one would repeat samples, which would be counted as new ones.
        self.reset_with_seed((self._env_seed or 0) + 1)
        self._state_unknown = False

    def reset_with_seed(self, seed: int) -> None:
        """Reset to the start and seed the randomness of the environment."""
        self._env_seed = seed
        # Not an error, although the start differs: the run continues, and its certificates are void.
        next_state = self._env.seed_and_reset(seed)
        if next_state != self.start:
            self._diagnostics.report_reset_mismatch(next_state)
        self._position = [self.start, -1, 0]

    @property
    def has_action_mask(self) -> bool:
        """Whether the environment reports the actions of the current state."""
        return self._env.action_mask is not None

    def assign_states_to_goals(self, space: GoalSpace) -> bool:
        """Add the states to the goal space; for MiniGrid the observation is the whole state, not the visible part."""
        return self._env.assign_states_to_goals(space, self.labels)

    def has_other_goals_now(self) -> bool:
        """Return whether a goal function gives another answer for a known state than when the state was met."""
        return self._env.has_other_goals_now()

    def observed_states(self) -> ObservedStates:
        """Return the table from observations to states."""
        return self._env.observed_states()

    @property
    def warnings(self) -> list[str]:
        """What a user should know about the environment, one line each."""
        return self._list_env_warnings(self._env.ever_truncated)

    @property
    def is_restorable(self) -> bool:
        """Whether the episode is short enough to be replayed from its reset."""
        return len(self._env.actions_since_reset) <= MAX_REPLAY_STEPS

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return the position, the actions since the last reset, and the state of tests and diagnostics."""
        at_virtual_start = self._env_seed is None or (self._env.has_virtual_start and self._position[0] == self.start)
        facts = {
            "place": [int(part) for part in self._position],
            "state_unknown": self._state_unknown,
            "seed": self._env_seed,
            "diagnostics": self._diagnostics.state(),
        }
        episode = self._env.episode_snapshot(at_virtual_start, self._state_unknown)
        return self._markov_tests.state(), facts | episode | self._env.states_snapshot()

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Restore a snapshot; exact if the environment draws from ``np_random`` only."""
        check_json_value(self.FACTS_SCHEMA, facts)
        self._diagnostics.restore(facts["diagnostics"])
        self._markov_tests.restore(arrays)
        self._env.restore_state_numbers(facts)
        if self.has_other_goals_now():
            raise InputError("these are not the goals of the run: they have other states; give the same again", "goals")
        if facts["seed"] is not None:
            # The replay restores np_random. No other generator can be restored, so it gets a new seed: with the old
            # one it would repeat samples, which would be counted as new ones.
            self.reset_with_seed(int(facts["seed"]) + 1)
        self._position = [int(part) for part in facts["place"]]
        is_restored = False
        if not facts["state_unknown"]:
            with contextlib.suppress(EnvironmentFailure):
                is_restored = self._env.replay_episode(facts) == self._position[0]
        if facts["seed"] is not None and self._markov_tests.saw_randomness:
            # A generator that is still in its first state after random transitions was not the one that drew them.
            unused_generator = dict(seeding.np_random(facts["seed"])[0].bit_generator.state)
            if self._env.backend.generator_state() == unused_generator:
                self.add_warning(
                    "the environment draws at random without Gymnasium's generator (np_random), the only one that can "
                    "be restored: the resumed run is valid, but differs from an uninterrupted one"
                )
        if not is_restored:
            self._restart_with_new_seed()
