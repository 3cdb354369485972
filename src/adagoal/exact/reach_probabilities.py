"""Exact probabilities of reaching goals within k steps of a known model, and the audit of a result about them.

With t steps left, h_t = 1 on the goal, 0 in states to avoid and in terminal states outside the goal, and elsewhere
h_t(s) = max_a sum_{s'} p(s' | s, a) h_{t-1}(s') with h_0 = 0. There is no reset: an attempt has k steps. Rounding is
the only error.

The audit checks, for the goals X with policies pi_g, the probability p and the accuracy epsilon,

    C1:  P^pi_g >= P*_g - epsilon                     for all g in X,
    C2:  {g : P*_g >= p}  is contained in  X  is contained in  {g : P*_g >= p - epsilon},

and every certificate: lower <= P^pi_g and P*_g <= upper.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from adagoal.core.tabular_policy import Policy
from adagoal.core.types import Actions, Bools, Floats
from adagoal.envs.model import TabularMDP
from adagoal.exact.audit import Audit, GoalFinding
from adagoal.exact.solver import GoalStates, goal_state_mask, is_at_most


def largest_probabilities(mdp: TabularMDP, goals: Sequence[GoalStates], within: int, avoid: Bools) -> Floats:
    """Return [G] the largest probability of reaching each goal from s0 within this many steps; avoid: [S]."""
    from scipy import sparse

    S, A = mdp.n_states, mdp.n_actions
    P = sparse.csr_array((mdp.probabilities, mdp.successors, mdp.indptr), shape=(S * A, S))
    inside = np.stack([goal_state_mask(mdp, goal) & ~avoid for goal in goals], axis=1).reshape(S, len(goals))
    h = inside.astype(float)
    available = ~mdp.absent.reshape(S, A, 1)
    for _ in range(within):
        h = np.where(available, (P @ h).reshape(S, A, len(goals)), 0.0).max(axis=1)
        h[mdp.terminal | avoid] = 0.0
        h[inside] = 1.0
    values: Floats = h[mdp.start]
    return values


def policy_probability(mdp: TabularMDP, actions: Actions, goal: GoalStates, avoid: Bools) -> float:
    """Return the probability that the policy ``actions`` [k, S] reaches the goal within its k steps."""
    from scipy import sparse

    S, A = mdp.n_states, mdp.n_actions
    P = sparse.csr_array((mdp.probabilities, mdp.successors, mdp.indptr), shape=(S * A, S))
    inside = goal_state_mask(mdp, goal) & ~avoid
    h = inside.astype(float)
    for table in actions[::-1]:
        # The reset gives up.
        plays = (table < A) & ~mdp.terminal & ~avoid
        pairs = np.arange(S) * A + np.minimum(table, A - 1)
        h = np.where(inside, 1.0, np.where(plays, (P @ h)[pairs], 0.0))
    return float(h[mdp.start])


def audit_probabilities(
    mdp: TabularMDP,
    goals: Iterable[int],
    policies: Mapping[int, Policy],
    within: int,
    probability: float,
    epsilon: float,
    avoid: Bools,
    certificates: Mapping[int, tuple[float, float]],
    space: Mapping[int, GoalStates],
    names: Sequence[str] = (),
) -> Audit:
    """Check the goals X and their policies; ``space`` has the states of every goal of the goal space."""
    X = set(goals)
    numbers = sorted(space)
    optimal = largest_probabilities(mdp, [space[g] for g in numbers], within, avoid)
    rows = []
    for g, best in zip(numbers, optimal.tolist(), strict=True):
        value = policy_probability(mdp, policies[g].actions, space[g], avoid) if g in X else None
        likely, likely_enough = (bool(is_at_most(p, best)) for p in (probability, probability - epsilon))
        lower, upper = certificates.get(g, (None, None))
        c1 = value is not None and not is_at_most(best - epsilon, value)
        missing, excess = likely and g not in X, g in X and not likely_enough
        high = lower is not None and value is not None and not is_at_most(lower, value)
        low = upper is not None and not is_at_most(best, upper)
        failures = {
            f"C1: the policy reaches it with probability {value}, the best one with {best:.6g}": c1,
            f"C2: missing, although the best probability is {best:.6g} >= {probability:g}": missing,
            f"C2: returned, although the best probability is {best:.6g} < {probability - epsilon:g}": excess,
            f"certificate: lower bound {lower} > probability {value} of the policy": high,
            f"certificate: upper bound {upper} < best probability {best:.6g}": low,
        }
        gap = None if value is None else best - value
        labels = names or mdp.labels
        rows.append(
            GoalFinding(
                goal=g,
                label=labels[g] if labels else str(g),
                optimal=best,
                value=value,
                gap=gap,
                margin=None if gap is None else epsilon - gap,
                in_goal_space=True,
                in_G_L=likely,
                in_G_L_eps=likely_enough,
                in_X=g in X,
                lower=lower,
                upper=upper,
                certificate_holds=None if lower is None else not (low or high),
                failures=tuple(text for text, failed in failures.items() if failed),
            )
        )
    failed = {text.partition(":")[0] for row in rows for text in row.failures}
    holds = [name not in failed for name in ("C1", "C2", "certificate")]
    return Audit(holds[0], holds[1], holds[2], float(within), epsilon, tuple(rows), "P")
