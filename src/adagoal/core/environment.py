"""Environments with discrete states: their protocol, maps and observations, and plans and policies as tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import index
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from adagoal.core.array_types import DIGEST_BYTES, Actions, Bools, Floats, Longs
from adagoal.core.errors import InputError, to_single_line
from adagoal.core.goal_space import GoalSpace
from adagoal.core.linear_mixture import LinearMixture
from adagoal.core.operators import LocalLowerBounds
from adagoal.core.transition_data import TransitionCounts

NO_LIMIT = 2**62  # a count that is never reached; 2**63 - 1 would overflow when a few are added to it
# A state that ends the episode has this after the label of its observation, if states are numbered as they are found.
TERMINAL_SUFFIX = " (end)"
RolloutLimits = tuple[int, int]  # steps and episodes of a rollout, at most
OTHER_GOALS = -2  # entry of ExplorationPlan.goals_of_states: a goal without a column of its own


@dataclass(frozen=True)
class GridLayout:
    """Positions of the states in a grid of cells, for drawing maps."""

    shape: tuple[int, int]  # rows and columns
    cells: Longs  # [S, 2]: row and column of every state; (-1, -1) for a state that is not on the map
    walls: Bools  # [rows, columns]: True for cells without a state
    marks: Mapping[str, Longs] = field(default_factory=dict)  # [n, 2]: cells that the environment names, such as "hole"


class ObservedStates(NamedTuple):
    """The digests of all observations, with which a result maps observations to states without the environment."""

    # For envs.observation_keys.make_key_reader. The kind "states": the observation is one of `size` numbers, counted
    # from `first`.
    key_format: dict[str, Any]
    digests: NDArray[np.uint8] = np.zeros((0, DIGEST_BYTES), np.uint8)  # [N, DIGEST_BYTES]; 0 without an observation


class CallTexts(NamedTuple):
    """The actions as Python text, from which ``Result.script`` puts a test together."""

    imports: tuple[str, ...]  # lines
    make: str  # the line that makes the object
    calls: tuple[str, ...]  # one line per action
    state: str | None  # expression for the key of a state; None if the function has no name
    invariants: Mapping[str, str]  # expressions by name


@dataclass(frozen=True)
class ExplorationPlan:
    """Goal-conditioned exploration policies, and the conditions for a new plan.

    Every goal that the learner distinguishes has a column. The column with ``goal_state`` -1 stands for all other
    goals. It is reached in any new state, and in any state whose goal is :data:`OTHER_GOALS`.
    """

    # Actions [T, S, columns]: T = 1 is stationary, T = H has one table per stage. Or lower bounds with their greedy
    # actions, which the episode loop backs up in every state that it visits.
    policy: Actions | LocalLowerBounds
    goal_state: Longs  # [columns]: the state, or the number of the goal if goals are sets
    max_episode_steps: int  # an episode of this length ends without success
    replan_thresholds: Longs  # [X]: the rollout ends as soon as a pair has been tried this often
    goals_of_states: Longs | None = None  # [S, W], see goal_space.py; None: every state is its own goal
    max_steps: int = NO_LIMIT  # the rollout ends after this many steps
    max_episodes: int = NO_LIMIT  # the loop ends the rollout after this many episodes
    reset_ends_episode: bool = False  # whether the episode is over when its policy resets
    # Whether max_episode_steps counts from the last reset, not from the last goal. Every new state ends an episode
    # without a reset. Among endless states the agent would never come back, if the goals lie the other way.
    counts_steps_since_reset: bool = False


@dataclass
class RolloutOutcome:
    """The number of steps of a rollout, and the episodes that ended in it."""

    steps: int = 0
    goals: list[int] = field(default_factory=list)  # the goal of each episode, -1 for the column of all other goals
    reached: list[bool] = field(default_factory=list)


class TabularEnv(Protocol):
    """An environment with discrete states and a reset.

    A rollout continues where the last one stopped. If replanning interrupted an episode, the episode continues under
    the new plan as long as its goal has weight. Otherwise a new goal is drawn on the spot, without a reset: the policy
    of that goal may choose to reset. Resets count as steps.
    """

    name: str
    n_actions: int
    start: int
    state_bound: int  # the number of states; if it is not declared, one more than a run may meet
    pair_bound: int | None  # upper bound on the number of state-action pairs; None if the states are not declared
    is_recorded: bool  # whether its transitions were drawn before the run, so they may have decided what the goals are
    start_is_certain: bool  # False: the fixed start is an assumption, and certificates spend some delta on it
    # Whether to treat unavailable actions as absent (TransitionCounts.mark_absent_pairs); the method decides.
    # If False, they lead to the start in a known model, and are passed to env.step otherwise.
    uses_action_masks: bool
    initial_states: int  # number of states to allocate at first
    mixture: LinearMixture | None  # the known kernels, if the environment is a linear mixture

    @property
    def layout(self) -> GridLayout | None:
        """The map of the states, if there is one."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the states, or empty."""

    @property
    def warnings(self) -> list[str]:
        """Problems that the user should know, one line each."""

    @property
    def void_reasons(self) -> list[str]:
        """Failed checks that make every certificate void, one line each."""

    def assign_states_to_goals(self, space: GoalSpace) -> bool:
        """Add every state to the goal space: known states now, the others as they are discovered.

        States without an observation (a virtual start) belong to no goal. Returns whether all states are known now.
        """

    def has_other_goals_now(self) -> bool:
        """Return whether a goal function gives another answer for a known state than when the state was met."""

    def observed_states(self) -> ObservedStates | None:
        """Return the digests by which observations are mapped to states, or None without observations."""

    def add_warning(self, line: str) -> None:
        """Add a warning, unless it is already there."""

    def add_void_reason(self, line: str) -> None:
        """Add a failed check, unless it is already there."""

    def rollout(
        self, plan: ExplorationPlan, weights: Floats, counts: TransitionCounts, rng: Generator, limits: RolloutLimits
    ) -> RolloutOutcome:
        """Play episodes until the plan or one of the ``limits`` ends the rollout, and count every transition.

        The goal of an episode is drawn in proportion to ``weights`` [columns].
        """

    def reset_with_seed(self, seed: int) -> None:
        """Return to the start and reseed the environment's own randomness."""

    @property
    def is_restorable(self) -> bool:
        """Whether :meth:`state` captures everything."""

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return arrays and JSON facts from which :meth:`restore` continues bit for bit."""

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Continue from a saved :meth:`state`."""


@dataclass
class Policy:
    """A table of actions ``[T, S]`` for one goal.

    T = 1 is a stationary policy. T = H is the paper's non-stationary policy (Algorithm ``algo``, output): the actions
    of stages 1 to H, then the reset, and again from stage 1. Calling the policy with a state returns the action and,
    for T > 1, advances its clock. A reset that the table itself chooses does not change the clock, unless
    ``one_attempt``: then the policy has given the attempt up, and the next one begins. ``policy(state, step)`` reads
    the table at a step (0, 1, ...) and leaves the clock alone.

    >>> policy = result.policy(goal)
    >>> action = policy.act(observation)
    >>> step = env.reset() if action == policy.reset_action else env.step(action)
    """

    goal: int
    actions: Actions
    reset_action: int
    # Maps an observation to its state, or to None if the run never saw it.
    find: Callable[[Any], int | None] | None = field(default=None, repr=False)
    one_attempt: bool = False  # whether the table is for one attempt of T steps (docs/probabilities.md)
    first_step: int = 0  # step of the first observation: 1 if drawing it took a step, because the start is random
    _clock: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.restart()

    @property
    def stationary(self) -> bool:
        """Whether the action depends on the state alone."""
        return len(self.actions) == 1

    def restart(self) -> None:
        """Set the clock back to the first observation."""
        self._clock = self.first_step

    def act(self, observation: Any) -> int:
        """Return the action for an observation; ``reset_action`` asks for ``env.reset()``.

        The policy resets if the run never saw the observation. For MiniGrid pass the environment itself as the
        observation, because the agent's view does not determine the state.
        """
        if self.find is None:
            raise InputError("the run did not keep its observations: call the policy with the number of a state")
        state = self.find(observation)
        # The upper bound of a certificate holds for a policy that resets in every state never seen (lemma 6).
        if state is None or state >= self.actions.shape[1]:
            if self.one_attempt:
                self.restart()
            return self.reset_action
        return self(state)

    def __call__(self, state: int, step: int | None = None) -> int:
        try:
            known = 0 <= index(state) < self.actions.shape[1]
        except TypeError:
            known = False
        if not known:
            text = f"must be in 0..{self.actions.shape[1] - 1}, got {to_single_line(state)}; act() takes observations"
            raise InputError(text, "state")
        if self.stationary and not self.one_attempt:
            return int(self.actions[0, state])
        stage, horizon = self._clock if step is None else index(step), self.actions.shape[0]
        action = int(self.actions[stage, state]) if 0 <= stage < horizon else self.reset_action
        if step is None:
            self._clock = stage + 1
            gives_up = self.one_attempt and action == self.reset_action
            if gives_up or self._clock > horizon:
                self.restart()
        return action


def renumber_policies(policies: Mapping[int, Policy], states: Longs, n_states: int) -> dict[int, Policy]:
    """Return policies for other numbers: state i becomes ``states[i]`` of ``n_states``. In other states they reset."""
    renumbered = {}
    for goal, policy in policies.items():
        actions = np.full((len(policy.actions), n_states), policy.reset_action, policy.actions.dtype)
        actions[:, states] = policy.actions[:, : len(states)]
        renumbered[int(states[goal])] = Policy(int(states[goal]), actions, policy.reset_action)
    return renumbered
