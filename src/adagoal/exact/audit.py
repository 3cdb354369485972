"""The audit: an exact check of a result (policies or probabilities, goal by goal) against the known model.

Definition ``def_MGE`` of multi-goal exploration: for the returned goals X and policies pi_g, the radius L and the
accuracy epsilon,

    C1:  V^pi_g(s0 -> g) - V*(s0 -> g) <= epsilon    for all g in X,
    C2:  G_L  is contained in  X  is contained in  G_{L + epsilon},

where G_L is the set of goals g in the goal space with V*(s0 -> g) <= L. Certificates must hold too:
lower(g) <= V*(s0 -> g)  and  V^pi_g(s0 -> g) <= upper(g).

In a run with ``within``, k steps, the values are probabilities of success in one attempt without a reset: C1 is
P^pi_g >= P*_g - epsilon, C2 is {g : P*_g >= p} within X within {g : P*_g >= p - epsilon}, and certificates say
lower <= P^pi_g and P*_g <= upper. With t steps left, h_t = 1 on the goal, 0 in states to avoid and in terminal states
outside the goal, and elsewhere h_t(s) = max_a sum_{s'} p(s' | s, a) h_{t-1}(s') with h_0 = 0.

All values come from :mod:`adagoal.exact.solver`; the audit uses nothing of a learner. Comparisons have a tolerance
for rounding only (``solver.is_at_most``). For goals outside X the audit needs to know only whether they belong to
G_{L + epsilon}, so the solver does not compute larger values.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from adagoal.core.array_types import Actions, Bools, Floats
from adagoal.core.environment import Policy
from adagoal.core.errors import InputError
from adagoal.envs.model import TabularMDP
from adagoal.exact import solver
from adagoal.exact.solver import GoalStates, goal_state_mask, is_at_most


@dataclass(frozen=True)
class GoalFinding:
    """The audit of one goal."""

    goal: int
    label: str
    optimal: float | None  # V*(s0 -> g); None if g is not in X and the value is larger than L + epsilon
    value: float | None  # V^pi_g(s0 -> g) of the returned policy; None if g is not in X or has no policy
    gap: float | None  # V^pi_g - V*
    margin: float | None  # epsilon - gap; negative: C1 is violated
    in_goal_space: bool
    in_G_L: bool
    in_G_L_eps: bool
    in_X: bool
    lower: float | None
    upper: float | None
    certificate_holds: bool | None  # lower <= V* and V^pi_g <= upper; None: the goal has no certificate
    failures: tuple[str, ...]  # what is wrong, in words

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with this goal."""
        return not self.failures


@dataclass(frozen=True)
class Audit:
    """The verdict, with one row for every goal of the goal space and of X."""

    c1: bool
    c2: bool
    certificates: bool  # every given certificate holds
    radius: float
    epsilon: float
    rows: tuple[GoalFinding, ...] = field(repr=False)
    probability: float | None = None  # p, if probabilities within ``radius`` steps are compared; None: expected steps

    @property
    def ok(self) -> bool:
        """Whether C1, C2 and all certificates hold."""
        return self.c1 and self.c2 and self.certificates

    @property
    def failures(self) -> tuple[str, ...]:
        """What is wrong, one line per goal."""
        return tuple(f"goal {row.label}: {'; '.join(row.failures)}" for row in self.rows if not row.ok)

    def to_dict(self) -> dict[str, object]:
        """Return plain types for JSON; an infinite number becomes None."""
        rows = [
            {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in vars(row).items()}
            | {"ok": row.ok, "failures": list(row.failures)}
            for row in self.rows
        ]
        verdict = {"ok": self.ok, "c1": self.c1, "c2": self.c2, "certificates": self.certificates}
        return verdict | {"radius": self.radius, "epsilon": self.epsilon, "rows": rows}

    def __str__(self) -> str:
        return "\n".join((*self.sentences(), *self.failures))

    def sentences(self) -> tuple[str, ...]:
        """Return the verdict in words."""
        n_policies = sum(row.in_X for row in self.rows)
        n_certificates = sum(row.certificate_holds is not None for row in self.rows)
        C1, C2, wrong = (
            sum(any(failure.startswith(kind) for failure in row.failures) for row in self.rows)
            for kind in ("C1", "C2", "certificate")
        )
        L, epsilon, p = self.radius, self.epsilon, self.probability
        if p is None:
            best, worse = "expected steps", "exceed"
            inside, outside, origin = f"within {L:g} steps", f"beyond {L + epsilon:g} steps", "from "
        else:
            best, worse = f"probability within {L:g} steps", "fall below"
            inside, outside, origin = f"with probability at least {p:g}", f"below probability {p - epsilon:g}", ""
        return (
            "The audit found no error." if self.ok else "The audit found errors.",
            f"All {n_policies} policies are within epsilon = {epsilon:g} of the best {best} (C1)."
            if self.c1
            else f"C1 fails: {C1} of {n_policies} policies {worse} the best {best} by over {epsilon:g}.",
            f"No goal {inside} is missing, and none {outside} was returned (C2)."
            if self.c2
            else f"C2 fails: {C2} goals are missing {inside}, or returned {origin}{outside}.",
            f"All {n_certificates} certificates hold."
            if self.certificates
            else f"{wrong} of {n_certificates} certificates do not hold.",
        )

    def table(self) -> str:
        """Return a text table of the goals in X or G_{L + epsilon}, and the verdict."""
        V = "V" if self.probability is None else "P"
        lines = [
            f"{'goal':>12} {V + '*':>10} {V + '^pi':>10} {'gap':>9} {'margin':>9} {'lower':>9} "
            f"{'upper':>9}  in      verdict"
        ]
        for row in self.rows:
            if not (row.in_X or row.in_G_L_eps):
                continue
            where = f"{'X' if row.in_X else '-'} {'G_L' if row.in_G_L else 'G_L+' if row.in_G_L_eps else '-'}"
            values = (row.optimal, row.value, row.gap, row.margin, row.lower, row.upper)
            # "z" prints a negative number that rounds to zero without its sign.
            texts = ["-" if value is None else format(value, "z.4f") for value in values]
            numbers = " ".join(f"{text:>{width}}" for text, width in zip(texts, (10, 10, 9, 9, 9, 9), strict=True))
            lines.append(f"{row.label:>12} {numbers}  {where:<6}  {'; '.join(row.failures) or 'ok'}")
        conditions = (("C1", self.c1), ("C2", self.c2), ("every certificate", self.certificates))
        lines.append(", ".join(f"{name} {'holds' if holds else 'FAILS'}" for name, holds in conditions))
        return "\n".join(lines)


def audit_policies(
    mdp: TabularMDP,
    goals: Iterable[int],
    policies: Mapping[int, Policy],
    radius: float,
    epsilon: float,
    goal_space: Iterable[int] | None = None,
    lower: Mapping[int, float] | None = None,
    upper: Mapping[int, float] | None = None,
    sets: Mapping[int, Collection[int]] | None = None,
    names: Sequence[str] = (),
) -> Audit:
    """Check the goals X and their policies against the model. By default the goal space is all states.

    If goals are sets, ``sets`` has the states of every goal by its number and ``names`` the names of the goals; then
    the goal space is all sets by default.
    """
    if not (math.isfinite(radius) and radius >= 0 and math.isfinite(epsilon) and epsilon > 0):
        raise InputError(f"radius must be >= 0 and epsilon > 0, both finite, got {radius} and {epsilon}")
    X = {int(g) for g in goals}
    all_goals = range(mdp.n_states) if sets is None else sets
    space = set(all_goals) if goal_space is None else {int(g) for g in goal_space}
    audited = sorted(space | X)
    states: list[GoalStates] = [g if sets is None else sets[g] for g in audited]
    optimal = solver.optimal_distances(mdp, states, within=radius + epsilon)
    # Goals of X need their exact value, however large.
    beyond = [i for i, g in enumerate(audited) if g in X and optimal[i] == math.inf]
    optimal[beyond] = solver.optimal_distances(mdp, [states[i] for i in beyond])
    rows = []
    for g, members, best in zip(audited, states, optimal.tolist(), strict=True):
        policy = policies.get(g) if g in X else None
        value = None if policy is None else solver.policy_value(mdp, policy, members)
        # inf - inf would be NaN.
        gap = None if value is None else value - best if math.isfinite(best) else math.inf
        low, high = (lower or {}).get(g), (upper or {}).get(g)
        in_G_L, in_G_L_eps = (g in space and bool(is_at_most(best, limit)) for limit in (radius, radius + epsilon))
        slow = False
        if value is not None and gap is not None and math.isfinite(value):
            # The gap is a difference of two values, so the tolerance for rounding is relative to the values.
            slow = not is_at_most(value, value - gap + epsilon)
        far, high_lower = g in X & space and not in_G_L_eps, low is not None and not is_at_most(low, best)
        low_upper = high is not None and value is not None and not is_at_most(value, high)
        failures = {
            "C1: no policy was returned": g in X and value is None,
            "C1: the policy may never reach the goal": value == math.inf,
            f"C1: the policy takes {gap or 0:.6g} steps more than the best one, epsilon is {epsilon:g}": slow,
            f"C2: missing, although V* = {best:.6g} <= L = {radius:g}": in_G_L and g not in X,
            "C2: returned, although outside the goal space": g in X - space,
            f"C2: returned, although V* = {best:.6g} > L + epsilon = {radius + epsilon:g}": far,
            f"certificate: lower bound {low or 0:.6g} > V* = {best:.6g}": high_lower,
            f"certificate: upper bound {high or 0:.6g} < V^pi = {value or 0:.6g}": low_upper,
        }
        shown = best if g in X or in_G_L_eps else None
        where = g in space, in_G_L, in_G_L_eps, g in X
        rows.append(_make_finding(g, names or mdp.labels, shown, value, gap, epsilon, where, (low, high), failures))
    return _make_audit(rows, radius, epsilon)


def _make_finding(
    goal: int,
    labels: Sequence[str],
    optimal: float | None,
    value: float | None,
    gap: float | None,
    epsilon: float,
    where: tuple[bool, bool, bool, bool],
    bounds: tuple[float | None, float | None],
    failures: Mapping[str, bool | Bools],
) -> GoalFinding:
    """``where``: whether the goal is in the goal space, in G_L, in G_{L + epsilon}, in X."""
    margin = None if gap is None else epsilon - gap
    found = tuple(text for text, failed in failures.items() if failed)
    is_wrong = any(text.startswith("certificate") for text in found)
    certificate_holds = None if bounds == (None, None) else not is_wrong
    label = labels[goal] if labels else str(goal)
    return GoalFinding(goal, label, optimal, value, gap, margin, *where, *bounds, certificate_holds, found)


def _make_audit(rows: Sequence[GoalFinding], radius: float, epsilon: float, probability: float | None = None) -> Audit:
    failed = {text.partition(":")[0] for row in rows for text in row.failures}
    c1, c2, certificates = (name not in failed for name in ("C1", "C2", "certificate"))
    return Audit(c1, c2, certificates, radius, epsilon, tuple(rows), probability)


def largest_probabilities(mdp: TabularMDP, goals: Sequence[GoalStates], within: int, avoid: Bools) -> Floats:
    """Return [G] the largest probability of reaching each goal from s0 within this many steps; avoid: [S]."""
    S, A, P = mdp.n_states, mdp.n_actions, mdp.kernel()
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
    S, A, P = mdp.n_states, mdp.n_actions, mdp.kernel()
    inside = goal_state_mask(mdp, goal) & ~avoid
    h = inside.astype(float)
    for table in actions[::-1]:
        pairs = np.arange(S) * A + np.minimum(table, A - 1)
        # The reset gives up, and so does an action that does not exist in the state.
        plays = (table < A) & ~mdp.absent[pairs] & ~mdp.terminal & ~avoid
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
        where = True, likely, likely_enough, g in X
        rows.append(_make_finding(g, names or mdp.labels, best, value, gap, epsilon, where, (lower, upper), failures))
    return _make_audit(rows, float(within), epsilon, probability)
