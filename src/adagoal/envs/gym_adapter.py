"""A Gymnasium environment with discrete actions as a :class:`~adagoal.core.environment.TabularEnv`.

* States are observations (:mod:`adagoal.envs.observation_keys`). ``Discrete`` observations keep their numbers, unless
  ``max_states`` is above their number; other states are numbered in the order in which they are met.
* The reset is one more action. In a ``terminated`` state every action is the reset. If states are numbered on the fly,
  a terminal state differs from a state with the same observation that is not terminal.
* Time limits are not part of the state, so they are removed.
* A random first observation has a *virtual start*: a state in which every action draws it. A start seed fixes the
  first observation instead. Then every reset uses this seed and restores the generator of the dynamics afterwards, so
  episodes stay independent. The start is random if it is declared so (``"random"``) or if the first resets disagree.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import seeding
from numpy.typing import NDArray

from adagoal.core.environment import ExplorationPlan, RolloutOutcome
from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.core.file_formats import COUNT_SCHEMA, check_json_value, object_schema
from adagoal.core.goal_space import GoalSpace
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.types import Floats, ObservedStates
from adagoal.envs import episode_loop
from adagoal.envs.base_env import Diagnostics, MonitoredEnv
from adagoal.envs.counting_env import CountingEnv
from adagoal.envs.env_backends import EnvBackend, InProcessEnv, SubprocessEnv
from adagoal.envs.indexed_env import IndexedEnv, StartSeed
from adagoal.parallel.exceptions import WorkerKilled

MAX_REPLAY_STEPS = 100_000  # longest episode that a checkpoint stores; a resumed run replays it
MAX_CONSECUTIVE_KILLS = 3  # times in a row that a process may be killed before its first step; then the run fails
FACTS_SCHEMA = object_schema(
    place=episode_loop.POSITION_SCHEMA,
    state_unknown={"type": "boolean"},
    seed={"type": ["integer", "null"], "minimum": 0, "maximum": 2**63},
    diagnostics=Diagnostics.FACTS_SCHEMA,
    generator={"type": "object"},
    actions={"type": ["array", "null"], "maxItems": MAX_REPLAY_STEPS, "items": COUNT_SCHEMA},
    states={"type": "array"},  # the keys of the states as JSON
    labels={"type": "array", "items": {"type": "string"}},
)


class GymAdapter(MonitoredEnv):
    """A :class:`~adagoal.core.environment.TabularEnv` that steps a Gymnasium environment."""

    def __init__(
        self,
        env: gymnasium.Env[Any, Any] | SubprocessEnv,
        name: str,
        start_seed: StartSeed = None,
        max_states: int | None = None,
    ) -> None:
        backend = env if isinstance(env, SubprocessEnv) else InProcessEnv(env, name, max_states)
        self._env = e = IndexedEnv(backend, name, start_seed, max_states)
        super().__init__(name, e.n_actions, e.start, e.state_bound, e.initial_states, e.has_virtual_start, e.reseeded)
        self._position = [self.start, -1, 0]  # state, goal column (-1: none), steps of the episode
        self._env_seed: int | None = None  # of the environment's randomness; None before the first rollout
        self._state_unknown = False  # True after a step that failed or was interrupted

    @property
    def backend(self) -> EnvBackend:
        """The environment that is stepped."""
        return self._env.backend

    def _observed_labels(self) -> tuple[str, ...]:
        return self._env.labels

    def rollout(
        self,
        plan: ExplorationPlan,
        weights: Floats,
        counts: TransitionCounts,
        rng: np.random.Generator,
        max_steps: int,
        max_episodes: int,
    ) -> RolloutOutcome:
        """Play until the plan or a limit says stop; an exception of the environment is raised by the next call."""
        self._raise_pending_failure()
        if self._env_seed is None:
            self.reset_with_seed(int(rng.integers(2**31)))
        self._diagnostics.report_lost_transitions()
        if self._state_unknown:
            self._restart_with_new_seed()
        counting = CountingEnv(self._env, plan, counts, self._markov_tests, self._diagnostics, self.uses_action_masks)
        log = episode_loop.make_episode_log(max_episodes)
        episode_plan = episode_loop.make_episode_plan(plan, weights, self.n_actions, self.start)
        python_plan, max_steps = episode_loop.to_python_plan(episode_plan), min(max_steps, plan.max_steps)
        try:
            steps, episodes = episode_loop.play_episodes(counting, python_plan, self._position, rng, max_steps, log)
        except BaseException:
            self._state_unknown = True
            raise
        finally:
            counting.flush_counts()
        self._handle_failure(counting.failure, steps)
        if not steps:
            self._raise_pending_failure()
        return episode_loop.make_outcome(steps, episodes, log)

    def _handle_failure(self, failure: BaseException | None, steps: int) -> None:
        """Restart a process that was killed from outside, since no data are missing; keep any other failure."""
        self._state_unknown = isinstance(failure, InputError)
        self._consecutive_kills = 0 if steps else self._consecutive_kills + 1
        if isinstance(failure, WorkerKilled) and self._consecutive_kills <= MAX_CONSECUTIVE_KILLS:
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
        next_state = self._env.seed_and_reset(seed)
        if next_state != self.start:
            self._diagnostics.report_reset_mismatch(next_state)
        self._position = [self.start, -1, 0]

    def assign_states_to_goals(self, space: GoalSpace) -> bool:
        """Add the states to the goal space; for MiniGrid the observation is the whole state, not the visible part."""
        return self._env.assign_states_to_goals(space, self.labels)

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
        return self._markov_tests.state(), facts | self._env.episode_snapshot(at_virtual_start, self._state_unknown)

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Restore a snapshot; exact if the environment draws from ``np_random`` only.

        Another random generator of the environment cannot be restored. It gets a new seed: with the old one it would
        repeat samples, which would be counted as new ones.
        """
        check_json_value(FACTS_SCHEMA, facts)
        self._diagnostics.restore(facts["diagnostics"])
        self._markov_tests.restore(arrays)
        self._env.restore_state_numbers(facts)
        if facts["seed"] is not None:
            unused_generator = dict(seeding.np_random(facts["seed"])[0].bit_generator.state)
            if self._markov_tests.saw_randomness and facts["generator"] == unused_generator:
                self.add_warning(
                    "the environment draws at random without Gymnasium's generator (np_random), the only one that can "
                    "be restored: the resumed run is valid, but differs from an uninterrupted one"
                )
            self.reset_with_seed(int(facts["seed"]) + 1)
        self._position = [int(part) for part in facts["place"]]
        if facts["state_unknown"] or not self._try_replay(facts):
            self._restart_with_new_seed()

    def _try_replay(self, facts: dict[str, Any]) -> bool:
        try:
            return self._env.replay_episode(facts) == self._position[0]
        except EnvironmentFailure:
            return False
