"""The audit passes correct answers and reports each kind of wrong answer."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from adagoal.core.environment import Policy
from adagoal.core.errors import InputError
from adagoal.envs import toy_models
from adagoal.envs.model import TabularMDP
from adagoal.exact import solver
from adagoal.exact.audit import Audit, audit_policies
from experiments import exact_policies
from experiments.exact_policies import optimal_policy, reachable_set

RADIUS, EPSILON = 40.0, 0.5


@pytest.fixture(scope="module")
def mdp() -> TabularMDP:
    return toy_models.two_room_grid()


@pytest.fixture(scope="module")
def best(mdp: TabularMDP) -> dict[int, Policy]:
    actions = optimal_policy(mdp, exact_policies.optimal_values(mdp))
    return {g: Policy(g, actions[None, :, g], mdp.reset_action) for g in range(mdp.n_states)}


def goals_within(mdp: TabularMDP, radius: float) -> list[int]:
    return [int(g) for g in reachable_set(mdp, radius)]


def row_of(audit: Audit, goal: int) -> str:
    (row,) = [row for row in audit.rows if row.goal == goal]
    return "; ".join(row.failures)


def test_optimal_policies_pass(mdp: TabularMDP, best: dict[int, Policy]) -> None:
    X = goals_within(mdp, RADIUS)
    audit = audit_policies(mdp, X, best, RADIUS, EPSILON)
    assert audit.ok
    assert audit.c1
    assert audit.c2
    assert audit.failures == ()
    assert len(audit.rows) == mdp.n_states
    assert all(abs(row.gap or 0.0) < 1e-9 for row in audit.rows)
    assert all(row.margin == pytest.approx(EPSILON) for row in audit.rows if row.in_X)
    assert {row.goal for row in audit.rows if row.in_G_L} == set(X)


def test_gap_and_margin_of_a_periodic_policy(mdp: TabularMDP, best: dict[int, Policy]) -> None:
    X = goals_within(mdp, 10)
    far = max(X, key=lambda g: solver.optimal_distances(mdp, [g])[0])
    long, short = (np.repeat(best[far].actions, h, axis=0) for h in (200, 10))
    for table, holds in ((long, True), (short, False)):
        audit = audit_policies(mdp, X, best | {far: Policy(far, table, mdp.reset_action)}, 10, EPSILON)
        (row,) = [row for row in audit.rows if row.goal == far]
        assert row.value == solver.periodic_value(mdp, table, far)
        assert row.gap is not None
        assert row.margin == EPSILON - row.gap
        assert audit.c1 is holds
        assert audit.c2
        assert row.ok is holds


def test_wrong_policy_fails_c1_alone(mdp: TabularMDP, best: dict[int, Policy]) -> None:
    X = goals_within(mdp, RADIUS)
    detour = best[X[-1]].actions.copy()
    detour[0, mdp.start] = mdp.reset_action
    audit = audit_policies(mdp, X, best | {X[-1]: Policy(X[-1], detour, mdp.reset_action)}, RADIUS, EPSILON)
    assert (audit.ok, audit.c1, audit.c2) == (False, False, True)
    assert "never reach" in row_of(audit, X[-1])
    without = {g: policy for g, policy in best.items() if g != X[3]}
    audit = audit_policies(mdp, X, without, RADIUS, EPSILON)
    assert (audit.c1, audit.c2) == (False, True)
    assert "no policy" in row_of(audit, X[3])


def test_slow_policy_fails_by_its_gap() -> None:
    # state 1: one of the two stages takes the wrong action, once per period
    chain = toy_models.chain_model(n_states=4)
    table = np.ones((8, 4), np.int16)
    table[0] = 0
    late = {g: Policy(g, table, chain.reset_action) for g in range(4)}
    audit = audit_policies(chain, range(4), late, 3, 0.5)
    assert not audit.c1
    assert "takes 1 steps more" in row_of(audit, 3)
    assert audit_policies(chain, range(4), late, 3, 1.0).ok


def test_missing_goal_fails_c2_alone(mdp: TabularMDP, best: dict[int, Policy]) -> None:
    X = goals_within(mdp, RADIUS)
    audit = audit_policies(mdp, X[:-1], best, RADIUS, EPSILON)
    assert (audit.ok, audit.c1, audit.c2) == (False, True, False)
    assert "missing" in row_of(audit, X[-1])
    assert not audit_policies(mdp, [], {}, RADIUS, EPSILON).c2


def test_start_must_be_in_the_answer(mdp: TabularMDP, best: dict[int, Policy]) -> None:
    X = [g for g in goals_within(mdp, RADIUS) if g != mdp.start]
    assert not audit_policies(mdp, X, best, RADIUS, EPSILON).c2
    assert audit_policies(mdp, X, best, RADIUS, EPSILON, goal_space=X).ok


def test_extra_goal_fails_c2_alone(mdp: TabularMDP, best: dict[int, Policy]) -> None:
    X = goals_within(mdp, RADIUS)
    extra = mdp.labels.index("(8, 8)")
    audit = audit_policies(mdp, [*X, extra], best, RADIUS, EPSILON)
    assert (audit.ok, audit.c1, audit.c2) == (False, True, False)
    assert "L + epsilon" in row_of(audit, extra)
    optimal = {row.goal: row.optimal for row in audit.rows}
    assert optimal[extra] == pytest.approx(solver.optimal_distances(mdp, [extra])[0])  # known, since it is in X
    assert all((value is None) == (g not in {*X, extra}) for g, value in optimal.items())


def test_goals_between_the_radii_may_be_returned_or_not() -> None:
    chain = toy_models.chain_model(n_states=6)
    policies = {g: Policy(g, np.ones((1, 6), np.int16), chain.reset_action) for g in range(6)}
    for n_goals, holds in ((3, False), (4, True), (5, True), (6, False)):
        assert audit_policies(chain, range(n_goals), policies, 3, 1).c2 is holds
    assert audit_policies(chain, range(4), policies, 3 - 1e-12, 1).c2  # equal up to rounding


def test_goal_space(mdp: TabularMDP, best: dict[int, Policy]) -> None:
    space = [0, 5, 20]
    audit = audit_policies(mdp, space, best, RADIUS, EPSILON, goal_space=space)
    assert audit.ok
    assert [row.goal for row in audit.rows] == space
    audit = audit_policies(mdp, [*space, 6], best, RADIUS, EPSILON, goal_space=space)
    assert not audit.c2
    assert "outside the goal space" in row_of(audit, 6)


def test_unreachable_goal_in_the_set() -> None:
    mdp = toy_models.two_room_grid(eta=0.0)
    X = goals_within(mdp, RADIUS)
    V = exact_policies.optimal_values(mdp)
    actions = optimal_policy(mdp, V)
    policies = {g: Policy(g, actions[None, :, g], mdp.reset_action) for g in range(52)}
    assert audit_policies(mdp, X, policies, RADIUS, EPSILON).ok
    room = mdp.labels.index("(9, 9)")
    audit = audit_policies(mdp, [*X, room], policies, RADIUS, EPSILON)
    (row,) = [row for row in audit.rows if row.goal == room]
    assert row.optimal == row.value == row.gap == math.inf
    assert len(row.failures) == 2


def test_certificates(mdp: TabularMDP, best: dict[int, Policy]) -> None:
    X = goals_within(mdp, RADIUS)
    V = solver.optimal_distances(mdp)
    low, high = {g: V[g] - 0.1 for g in X}, {g: V[g] + 0.1 for g in X}
    audit = audit_policies(mdp, X, best, RADIUS, EPSILON, lower=low, upper=high)
    assert audit.ok
    assert all(row.certificate_holds for row in audit.rows if row.in_X)
    assert all(row.certificate_holds is None for row in audit.rows if not row.in_X)
    for bad in ({"lower": {7: V[7] + 0.01}}, {"upper": {7: V[7] - 0.01}}, {"lower": {7: math.nan}}):
        audit = audit_policies(mdp, X, best, RADIUS, EPSILON, **bad)
        assert (audit.ok, audit.c1, audit.c2, audit.certificates) == (False, True, True, False)
        assert "certificate" in row_of(audit, 7)


def test_forms(mdp: TabularMDP, best: dict[int, Policy]) -> None:
    audit = audit_policies(toy_models.two_room_grid(eta=0.0), goals_within(mdp, RADIUS)[1:], best, RADIUS, EPSILON)
    document = json.loads(json.dumps(audit.to_dict(), allow_nan=False))
    assert document["ok"] is False
    assert document["rows"][0]["failures"][0].startswith("C2: missing")
    assert document["rows"][-1]["optimal"] is None
    lines = audit.table().splitlines()
    assert len(lines) == 48 + 2
    assert lines[-1] == "C1 holds, C2 FAILS, every certificate holds"
    assert "missing" in lines[1]


def test_bad_input(mdp: TabularMDP, best: dict[int, Policy]) -> None:
    with pytest.raises(InputError, match="radius"):
        audit_policies(mdp, [0], best, math.nan, 1)
    with pytest.raises(InputError, match=r"0\.\.51"):
        audit_policies(mdp, [52], best, 1, 1)
    with pytest.raises(InputError, match="52"):
        audit_policies(mdp, [1], {1: Policy(1, np.zeros((1, 3), np.int16), 4)}, 1, 1)
