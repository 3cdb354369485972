"""What the loop asks of a world: play the current plan for a while and count what happens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from adagoal.core.goal_space import GoalSpace
from adagoal.core.linear_mixture import LinearMixture
from adagoal.core.local_backup import LocalLowerBounds
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.types import Actions, Floats, GridLayout, Longs, ObservedStates

NO_LIMIT = 2**62
OTHER_GOALS = -2
"""The goal of a state, in a plan, that is one of those without a column of their own."""


@dataclass(frozen=True)
class ExplorationPlan:
    """Goal-conditioned exploration policies, and when to come back for new ones.

    The columns are the goals that the learner tells apart. A column whose ``goal_state`` is -1 stands for all other
    goals: it is reached when any new state is, or one whose goal is :data:`OTHER_GOALS`. Where goals are sets of
    states, ``goal_state`` is the number of the goal.
    """

    policy: Actions | LocalLowerBounds
    """[T, S, columns]: actions; T = 1 is stationary, T = H has one table per stage of the episode. Or lower bounds,
    which every step raises where it is taken, and greedy actions for them."""
    goal_state: Longs
    """[columns]"""
    max_episode_steps: int
    """Steps after which an episode ends without success."""
    replan_thresholds: Longs
    """[X]: come back as soon as a pair has been tried this often."""
    goals_of_states: Longs | None = None
    """[S, W]: the goals that each state belongs to (:mod:`adagoal.core.goal_space`); each its own where not given."""
    max_steps: int = NO_LIMIT
    """Come back after so many steps, at the latest."""


@dataclass
class RolloutOutcome:
    """What a rollout did."""

    steps: int = 0
    goals: list[int] = field(default_factory=list)
    """The goal state (or -1) of every episode that ended."""
    reached: list[bool] = field(default_factory=list)


class TabularEnv(Protocol):
    """An environment with discrete states and a reset, as the loop sees it.

    A rollout goes on from where the last one stopped: an episode that was interrupted for replanning
    continues under the new plan if its goal still has weight, else a new goal is drawn on the spot (the
    policy may reset by itself). Resets count as steps.
    """

    name: str
    n_actions: int
    start: int
    state_bound: int
    """An upper bound on the number of states, for the union bounds."""
    pair_bound: int
    """An upper bound on the number of pairs of a state and an action that it has."""
    start_is_certain: bool
    """Whether a reset leads to ``start`` by definition; where that is only believed, a certificate pays for it."""
    uses_action_masks: bool
    """Whether actions that a state does not have are left out (:meth:`Counts.mark_absent_pairs`), which not every
    method can. If not, a known model has them lead to the start, and an environment is given them to do as it likes."""
    initial_states: int
    """How many states to allocate at first."""
    layout: GridLayout | None
    labels: tuple[str, ...]

    mixture: LinearMixture | None
    """The known kernels that the world is said to be a mixture of, if it is."""

    @property
    def warnings(self) -> list[str]:
        """What a user should know about the environment, one line each."""
        ...

    @property
    def void_reasons(self) -> list[str]:
        """Reasons for which no certificate can be given, one line each: checks that it rests on have failed."""
        ...

    def assign_states_to_goals(self, space: GoalSpace) -> bool:
        """Add every state to the goal space, with its observation and label: those known now, others when found.

        A state that is no observation (a virtual start) belongs to no goal. True where all states are known now.
        """
        ...

    def observed_states(self) -> ObservedStates | None:
        """How states are known by their observations; None where they have none."""
        ...

    def add_warning(self, line: str) -> None:
        """Add a warning, once."""
        ...

    def add_void_reason(self, line: str) -> None:
        """Add a reason for which certificates are void, once."""
        ...

    def rollout(
        self,
        plan: ExplorationPlan,
        weights: Floats,
        counts: TransitionCounts,
        rng: np.random.Generator,
        max_steps: int,
        max_episodes: int,
    ) -> RolloutOutcome:
        """Play episodes, goals drawn in proportion to ``weights`` [columns], until the plan or a limit says stop."""
        ...

    def reset_with_seed(self, seed: int) -> None:
        """Back to the start, with all randomness of the world's own seeded anew."""
        ...

    @property
    def is_restorable(self) -> bool:
        """True where :meth:`state` captures everything."""
        ...

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Arrays and JSON-ready facts from which :meth:`restore` goes on bit for bit."""
        ...

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        ...
