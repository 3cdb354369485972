"""What experiments and tests read from the exact solver: optimal values and policies, and the goals within a radius.

Without the reset, V*(s) is finite if some policy reaches g from s with probability one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adagoal.core.array_types import Actions, Bools, Floats, Longs
from adagoal.core.compiled_code import compiled
from adagoal.core.errors import InputError
from adagoal.core.goal_space import membership_mask
from adagoal.envs.model import TabularMDP
from adagoal.exact.solver import (
    GoalStates,
    hop_counts_to_goals,
    optimal_distances,
    reversed_edges,
    solve_all_goals,
    to_target_goals,
)
from adagoal.planning.model_arrays import SparseModel, to_sparse_model
from adagoal.planning.value_iteration import improve_policy


def optimal_values(mdp: TabularMDP, goals: Sequence[GoalStates] | None = None, *, reset: bool = True) -> Floats:
    """V*(s -> g) as [S, G], infinite if no policy reaches g surely; all states are goals unless given.

    ``reset=False`` removes the reset action (the reset-free problem of ``lemma_exp_sep``).
    """
    targets, model = to_target_goals(mdp, goals), to_sparse_model(mdp, reset)
    V: Floats = hop_counts_to_goals(model, *reversed_edges(model), targets, np.inf)
    # With the reset, one path from s0 makes all values finite. Only the other goals need the search below.
    for column in range(targets.size):
        if not (reset and np.isfinite(V[mdp.start, column])):
            sure = almost_sure_states(model, membership_mask(targets.column, column))
            V[:, column] = np.where(sure, V[:, column], np.inf)
    return solve_all_goals(model, targets, V, np.inf)


def diameter(mdp: TabularMDP, *, reset: bool = True) -> float:
    """D = max_{s, g} V*(s -> g) (definition ``def_VSSP``); with the reset at most 1 + max_g V*(s0 -> g)."""
    return float(optimal_values(mdp, reset=reset).max())


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


@compiled
def almost_sure_states(model: SparseModel, goal: Bools) -> Bools:
    """States from which some policy reaches ``goal`` [S] with probability one, as a mask [S].

    This is the largest set in which a policy can stay while the goal remains reachable. States from which the actions
    that stay inside the set cannot lead to the goal are removed until nothing changes.
    """
    indptr, successors = model.indptr, model.successors
    n_states = model.terminal.size
    n_actions = (indptr.size - 1) // n_states
    inside = np.ones(n_states, np.bool_)
    while True:
        attracted = goal.copy()
        grew = True
        while grew:
            grew = False
            for s in range(n_states):
                if attracted[s]:
                    continue
                # The reset stays inside the set: the start is attracted.
                attracted[s] = model.reset and attracted[model.start]
                for a in range(0 if model.terminal[s] else n_actions):
                    stays, approaches = True, False
                    for k in range(indptr[s * n_actions + a], indptr[s * n_actions + a + 1]):
                        stays &= inside[successors[k]]
                        approaches |= attracted[successors[k]]
                    attracted[s] |= stays and approaches
                grew |= attracted[s]
        if (attracted == inside).all():
            return inside
        inside = attracted
