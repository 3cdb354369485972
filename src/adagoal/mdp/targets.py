"""Goals as the exact solver takes them: states, or sets of states."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from adagoal.core.errors import InputError
from adagoal.core.goalspace import membership, places
from adagoal.core.types import Bools, Longs
from adagoal.planning.model import Targets
from adagoal.worlds.model import TabularMDP

Goal = int | Collection[int]
"""A state, or several: the goal is reached when any of them is."""


def targets_of(mdp: TabularMDP, goals: Sequence[Goal] | None) -> Targets:
    """The goals, one column each; all states unless given."""
    if goals is None:
        return Targets(mdp.n_states, np.arange(mdp.n_states)[:, None])
    sets = [list(goal) if isinstance(goal, Collection) else [goal] for goal in goals]
    if not all(0 <= state < mdp.n_states for members in sets for state in members):
        raise InputError(f"must be states in 0..{mdp.n_states - 1}", name="goals")
    return Targets(len(sets), places(sets, mdp.n_states))


def inside(mdp: TabularMDP, goal: Goal) -> Bools:
    """[S] the states of one goal."""
    return membership(targets_of(mdp, [goal]).column, 0)


def part(targets: Targets, goals: Longs) -> Targets:
    """Some of the goals, with columns in their order."""
    place = np.full(targets.size + 1, -1)  # the last entry is for -1
    place[goals] = np.arange(goals.size)
    return Targets(goals.size, place[targets.column])


def alone(goal: Bools) -> Longs:
    """[S, 1] column 0 in the states of ``goal`` [S]."""
    return np.where(goal, 0, -1)[:, None]
