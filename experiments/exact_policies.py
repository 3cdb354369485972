"""What experiments and tests read from the exact solver: optimal policies, and the goals within a radius."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adagoal.core.errors import InputError
from adagoal.core.types import Actions, Floats, Longs
from adagoal.envs.model import TabularMDP
from adagoal.exact.solver import GoalStates, optimal_distances, to_target_goals
from adagoal.planning.model_arrays import to_sparse_model
from adagoal.planning.value_iteration import improve_policy


def optimal_policy(
    mdp: TabularMDP, V: Floats, goals: Sequence[GoalStates] | None = None, *, reset: bool = True
) -> Actions:
    """Greedy actions [S, G] for optimal values V [S, G]; the reset in states of infinite value and at the goal.

    The policy reaches its goal with probability one from every state of finite value: pairs that never leave their
    state are not candidates, and ties go to the lowest action.
    """
    targets = to_target_goals(mdp, goals)
    if V.shape != (mdp.n_states, targets.size):
        raise InputError(f"V must have the shape [S, G] = [{mdp.n_states}, {targets.size}], got {list(V.shape)}")
    actions = np.full(V.shape, -1, np.int16)
    improve_policy(to_sparse_model(mdp, reset), targets.column, V, actions, 0.0)
    return actions


def reachable_set(mdp: TabularMDP, radius: float) -> Longs:
    """G_L: the states g with V*(s0 -> g) <= L, in increasing order."""
    return np.flatnonzero(np.isfinite(optimal_distances(mdp, within=radius)))
