"""The instance lower bound equals hand computations, and its alternative models are as claimed."""

import math

import numpy as np
import pytest

from adagoal.core.errors import InputError
from adagoal.envs.model import TabularMDP
from adagoal.envs.toy_models import chain_model, random_sparse
from adagoal.exact import solver
from experiments import exact_policies, instance_bound


def two_ways(p: float, q: float) -> TabularMDP:
    """Return a model: from state 0, action 0 reaches state 1 with probability p, action 1 with q, else they stay."""
    P = np.zeros((2, 2, 2))
    P[0, 0], P[0, 1] = (1 - p, p), (1 - q, q)
    P[1, :, 0] = 1.0
    return TabularMDP.from_dense(P)


def bernoulli(p: float, q: float) -> float:
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def test_bound_of_two_actions_equals_hand_computation():
    """With two unknown probabilities, the best alternatives and the linear program are known."""
    p, q, epsilon = 0.5, 0.3, 0.5
    found = instance_bound.limit(two_ways(p, q), 4.0, epsilon)
    assert found.finished

    def steps(share: float) -> float:
        """Return the evidence after n tries, ``share`` of them of action 0, against the nearest alternative model."""
        costs = []
        for worse in np.linspace(0.01, p, 2000):
            better = 1.0 / (1.0 / worse - epsilon)
            if q < better < 1.0:
                costs.append(share * bernoulli(p, worse) + (1 - share) * bernoulli(q, better))
        return 1.0 / min(costs)

    # a success of either action takes one more step, back to the start
    best = min((steps(w) * (1 + w * p + (1 - w) * q), w) for w in np.linspace(0.01, 0.99, 197))[0]
    assert found.steps == pytest.approx(best, rel=0.05)
    assert found.steps <= best * 1.001  # some of the models only: never more than the truth


def test_evidence_of_two_actions_equals_hand_computation():
    p, q, epsilon, tries = 0.5, 0.3, 0.5, np.array([700, 300, 1, 1])
    found = instance_bound.evidence(two_ways(p, q), tries, 4.0, epsilon)
    costs = [
        700 * bernoulli(p, worse) + 300 * bernoulli(q, 1.0 / (1.0 / worse - epsilon))
        for worse in np.linspace(0.01, p, 2000)
        if q < 1.0 / (1.0 / worse - epsilon) < 1.0
    ]
    assert found.tilts is not None
    assert min(costs) * 0.999 <= found.tilts <= min(costs) * 1.05  # some of the models only: never less than the truth
    assert instance_bound.evidence(two_ways(p, q), 2 * tries, 4.0, epsilon).tilts == pytest.approx(
        2 * found.tilts, rel=1e-3
    )
    assert found.jumps is None  # both actions reach the goal already


def test_every_model_makes_the_answer_wrong():
    mdp = random_sparse(n_states=9, n_actions=2, branching=3, seed=1)
    known = instance_bound.Small(mdp)
    V, policies = known.optima()
    L, epsilon = float(np.median(V[known.start])), 0.3
    weights = np.ones(known.usable.shape)
    cases = instance_bound._first_cases(known, V, policies, L, epsilon)
    assert {case.up is None for case in cases} == {False, True}
    checked = 0
    for case in cases:
        tilts = instance_bound._tilts(known, case, weights, math.inf)
        for model in [*tilts, *instance_bound._jumps(known, [case], policies, weights)]:
            other = TabularMDP.from_dense(model.kernel, start=known.start)
            best = exact_policies.optimal_values(other)[known.start, case.goal]
            if case.up is None:
                assert best <= L + 1e-6
            else:
                own = solver.policy_values(other, case.up, case.goal)[known.start]
                assert own - best >= epsilon - 1e-6 or own >= L + epsilon - 1e-6
            assert model.cost == pytest.approx((weights * model.divergence).sum())
            checked += 1
    assert checked > 20


def test_deterministic_model_needs_samples_too():
    """In a line of states nothing is random, yet any pair could lead to the far end with a small probability."""
    P = np.zeros((4, 2, 4))
    for s in range(4):
        P[s, 0, min(s + 1, 3)] = P[s, 1, max(s - 1, 0)] = 1.0
    found = instance_bound.limit(TabularMDP.from_dense(P), 5.0, 0.5)
    # at the start: 1/q = 3 - epsilon, so action 1 must be tried at least 1/-ln(1 - q) times
    assert found.steps > 1.0 / -math.log(1.0 - 1.0 / 2.5)
    assert instance_bound.limit(TabularMDP.from_dense(P), 5.0, 1.0).steps < found.steps


def test_kl():
    assert instance_bound.kl(0.1) == pytest.approx(0.8 * math.log(9.0))


def test_large_model_gives_one_line_error():
    with pytest.raises(InputError, match="at most 150 states"):
        instance_bound.limit(chain_model(n_states=200), 5.0, 1.0)
