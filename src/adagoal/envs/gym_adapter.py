"""Any Gymnasium environment with discrete actions as a world, stepped as it is.

States are the observations (see :mod:`adagoal.envs.observation_keys`), numbered as the environment numbers them if they
are ``Discrete`` (unless ``max_states`` is above their number), else in the order in which they are met. The reset is
one more action. In a ``terminated`` state every action is the reset; where states are numbered on the fly, an
observation that ends the episode is another state than the same one that does not. Time limits are not part of the
state and are switched off. A random initial state is handled with a *virtual start*, a state whose every action draws
it; or it is fixed with a start seed: every reset then uses that seed, and the generator of the dynamics is saved before
and put back after, so that episodes stay independent. Whether the start is random is declared (start seed "random") or
found out, from resets that agree or do not.
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
from adagoal.core.linear_mixture import LinearMixture
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.types import Floats, GridLayout, ObservedStates
from adagoal.envs import episode_loop
from adagoal.envs.assumption_tests import Diagnostics, MonitoredEnv
from adagoal.envs.env_backends import EnvBackend, InProcessEnv, SubprocessEnv
from adagoal.envs.indexed_env import CountingEnv, IndexedEnv, StartSeed
from adagoal.parallel.exceptions import WorkerKilled

MAX_REPLAY_STEPS = 100_000
"""Steps since the last reset that a snapshot can hold."""
FACTS_SCHEMA = object_schema(
    place=episode_loop.POSITION_SCHEMA,
    adrift={"type": "boolean"},
    seed={"type": ["integer", "null"], "minimum": 0, "maximum": 2**63},
    doubts=Diagnostics.FACTS_SCHEMA,
    generator={"type": "object"},
    actions={"type": ["array", "null"], "maxItems": MAX_REPLAY_STEPS, "items": COUNT_SCHEMA},
    states={"type": "array"},
    labels={"type": "array", "items": {"type": "string"}},
)
"""What a checkpoint holds. ``states`` are the keys of the states as JSON."""
RESUME_RNG_WARNING = (
    "the environment draws at random without Gymnasium's generator (np_random), which alone can be put back: a run "
    "that was resumed is as valid as one that was not, but not the same"
)
MAX_CONSECUTIVE_KILLS = 3
"""Times in a row that the process of an environment may be killed before it has made a step."""


class GymAdapter(MonitoredEnv):
    """A :class:`~adagoal.core.environment.TabularEnv` that steps a Gymnasium environment."""

    def __init__(
        self,
        env: gymnasium.Env[Any, Any] | SubprocessEnv,
        name: str,
        start_seed: StartSeed = None,
        max_states: int | None = None,
    ) -> None:
        body = env if isinstance(env, SubprocessEnv) else InProcessEnv(env, name, max_states)
        self._env = adapter = IndexedEnv(body, name, start_seed, max_states)
        super().__init__(adapter.n_actions, adapter.reseeded)
        self.name, self.n_actions, self.start = name, adapter.n_actions, adapter.start
        self.state_bound, self.initial_states = adapter.state_bound, adapter.initial_states
        self.pair_bound = adapter.state_bound * adapter.n_actions
        self.start_is_certain = adapter.has_virtual_start
        """A fixed start is inferred from resets that agreed; a virtual one is where every reset leads by definition."""
        self.uses_action_masks = True
        self.layout: GridLayout | None = None
        self.mixture: LinearMixture | None = None
        """The kernels of which the environment is said to be a mixture."""
        self._given_labels: tuple[str, ...] = ()
        self._position = [self.start, -1, 0]  # state, goal column aimed at (-1: none), steps of the episode
        self._env_seed: int | None = None  # of the environment's randomness; None before the first rollout
        self._pending_failure: BaseException | None = None
        self._state_unknown = (
            False  # nobody knows where the agent stands: a step failed, or a signal came in its middle
        )
        self._consecutive_kills = 0

    @property
    def backend(self) -> EnvBackend:
        """The environment itself."""
        return self._env.backend

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the states: given from outside, or the observations met so far."""
        return self._given_labels or self._env.labels

    @labels.setter
    def labels(self, labels: tuple[str, ...]) -> None:
        self._given_labels = labels

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
        """Play until a threshold is met, a state is new, or ``max_steps`` or ``max_episodes`` is spent.

        What the environment raises is raised by the next call, so that what was seen before is not lost.
        """
        self._raise_pending_failure()
        if self._env_seed is None:
            self.reset_with_seed(int(rng.integers(2**31)))
        self._diagnostics.report_lost_transitions()
        if self._state_unknown:
            self._restart_with_new_seed()
        stage = CountingEnv(self._env, plan, counts, self._markov_tests, self._diagnostics, self.uses_action_masks)
        log = np.zeros((min(max_episodes, episode_loop.MAX_EPISODES_PER_CALL), 2), np.int64)
        given = episode_loop.to_python_plan(episode_loop.make_episode_plan(plan, weights, self.n_actions, self.start))
        try:
            steps, ended = episode_loop.play_episodes(
                stage, given, self._position, rng, min(max_steps, plan.max_steps), log
            )
        except BaseException:
            self._state_unknown = True
            raise
        finally:
            stage.flush_counts()
        self._handle_failure(stage.failure, steps)
        if not steps:
            self._raise_pending_failure()
        return episode_loop.make_outcome(steps, ended, log)

    def _handle_failure(self, failure: BaseException | None, steps: int) -> None:
        """What a rollout failed with. A process that was killed is begun anew, as nothing is missing but time."""
        self._state_unknown = isinstance(failure, InputError)
        self._consecutive_kills = 0 if steps else self._consecutive_kills + 1
        if isinstance(failure, WorkerKilled) and self._consecutive_kills <= MAX_CONSECUTIVE_KILLS:
            self.add_warning(f"{failure.reason}; the run went on from a reset in a new one")
            return
        self._pending_failure = failure

    def _raise_pending_failure(self) -> None:
        if self._pending_failure is not None:
            failure, self._pending_failure = self._pending_failure, None
            raise failure

    def _restart_with_new_seed(self) -> None:
        """From a reset on, because nobody knows where the agent stands."""
        self.add_warning("the environment could not be put back into the state it was in: the run went on from a reset")
        self.reset_with_seed(
            (self._env_seed or 0) + 1
        )  # another seed: samples that repeat themselves would be counted as new ones
        self._state_unknown = False

    def reset_with_seed(self, seed: int) -> None:
        """Back to the start, with the environment's randomness seeded anew."""
        self._env_seed = seed
        landed = self._env.seed_and_reset(seed)
        if landed != self.start:
            self._diagnostics.report_reset_mismatch(landed)
        self._position = [self.start, -1, 0]

    def assign_states_to_goals(self, space: GoalSpace) -> bool:
        """The observation is what the environment gives; of MiniGrid it is the whole state, not the window."""
        return self._env.assign_states_to_goals(space, self.labels)

    def observed_states(self) -> ObservedStates:
        """How the states are known by their observations."""
        return self._env.observed_states()

    @property
    def warnings(self) -> list[str]:
        """What a user should know about the environment."""
        return self._list_env_warnings(self._env.ever_truncated)

    # --- saving -----------------------------------------------------------------------------------------------

    @property
    def is_restorable(self) -> bool:
        """An episode is restored by replaying it from its reset, unless it is very long."""
        return len(self._env.actions_since_reset) <= MAX_REPLAY_STEPS

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Where the agent stands, how it got there from the last reset, and what the sanity checks know so far."""
        waiting = self._env_seed is None or (self._env.has_virtual_start and self._position[0] == self.start)
        facts = {
            "place": [int(part) for part in self._position],
            "adrift": self._state_unknown,
            "seed": self._env_seed,
            "doubts": self._diagnostics.state(),
        }
        return self._markov_tests.state(), facts | self._env.episode_snapshot(waiting, self._state_unknown)

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Back to where the agent stood; exact for environments whose randomness is all in ``np_random``.

        A generator of the environment's own cannot be put back. It gets another seed, so that what it draws from now
        on is not what it drew before: samples that repeat themselves would be counted as new ones.
        """
        check_json_value(FACTS_SCHEMA, facts)
        self._diagnostics.restore(facts["doubts"])
        self._markov_tests.restore(arrays)
        self._env.restore_state_numbers(facts)
        if (
            facts["seed"] is not None
            and self._markov_tests.saw_randomness
            and facts["generator"] == _seeded_rng_state(facts["seed"])
        ):
            self.add_warning(RESUME_RNG_WARNING)
        if facts["seed"] is not None:
            self.reset_with_seed(int(facts["seed"]) + 1)
        self._position = [int(part) for part in facts["place"]]
        if facts["adrift"] or not self._try_replay(facts):
            self._restart_with_new_seed()

    def _try_replay(self, facts: dict[str, Any]) -> bool:
        """Whether the episode under way could be replayed."""
        try:
            return self._env.replay_episode(facts) == self._position[0]
        except EnvironmentFailure:
            return False


def _seeded_rng_state(seed: int) -> dict[str, Any]:
    """The state of a generator of Gymnasium's that was seeded and not used since."""
    return dict(seeding.np_random(seed)[0].bit_generator.state)
