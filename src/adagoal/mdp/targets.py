"""Goals as the exact solver takes them: states, or sets of states."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from adagoal.core.errors import InputError
from adagoal.core.goalspace import membership_mask, memberships_from_sets
from adagoal.core.types import Bools, Longs
from adagoal.planning.model import TargetGoals
from adagoal.worlds.model import TabularMDP

GoalStates = int | Collection[int]
"""A state, or several: the goal is reached when any of them is."""


def to_target_goals(mdp: TabularMDP, goals: Sequence[GoalStates] | None) -> TargetGoals:
    """The goals, one column each; all states unless given."""
    if goals is None:
        return TargetGoals(mdp.n_states, np.arange(mdp.n_states)[:, None])
    sets = [list(goal) if isinstance(goal, Collection) else [goal] for goal in goals]
    if not all(0 <= state < mdp.n_states for members in sets for state in members):
        raise InputError(f"must be states in 0..{mdp.n_states - 1}", name="goals")
    return TargetGoals(len(sets), memberships_from_sets(sets, mdp.n_states))


def goal_state_mask(mdp: TabularMDP, goal: GoalStates) -> Bools:
    """[S] the states of one goal."""
    return membership_mask(to_target_goals(mdp, [goal]).column, 0)


def select_targets(targets: TargetGoals, goals: Longs) -> TargetGoals:
    """Some of the goals, with columns in their order."""
    place = np.full(targets.size + 1, -1)  # the last entry is for -1
    place[goals] = np.arange(goals.size)
    return TargetGoals(goals.size, place[targets.column])


def single_goal_column(goal: Bools) -> Longs:
    """[S, 1] column 0 in the states of ``goal`` [S]."""
    return np.where(goal, 0, -1)[:, None]
