"""Estimates for linear mixtures: new transitions, tests of the fit, and certified bounds on distances.

*New transitions.* Value-targeted regression pairs every transition with a function that was fixed before it. Between
two plans that function does not change, so the difference of two count tables is all the data that a plan needs.

*Fit.* A certificate rests on the true kernel being a mixture of the given ones. After every plan, a G-test compares the
counts O with those expected, E, at the theta of largest likelihood: 2 sum O ln(O/E). It tests the worst pair (its
p-value times the number of pairs) and all pairs with enough counts together; and both once more with pairs pooled that
have the same feature vectors. The smallest p-value, times four, is compared with MISFIT_LEVEL. With a hundred plans a
true mixture is rejected with a probability of at most about 0.001, as far as the chi-square law holds. The test can
detect a misfit but cannot rule one out.

*Bounds* (:class:`MixtureBounds`, for the methods ``vtr-pooled`` and ``likelihood``). A *learner* turns transitions into
a :class:`~adagoal.planning.model_arrays.ThetaRegion` that contains theta* at all times with probability 1 - delta. The
rest is as in the tabular case (docs/theory-linear.md has the proofs):

    D_g      from  V <- max(V, T_low V),   T_low V = min{ C, 1 + V(s0), min_a 1 + Low_sa(V) }
    upper_g  from  Y <- min(Y, T_up Y),    T_up Y  = min{ 1 + Y(s0), min_a 1 + Up_sa(Y) }
    Low, Up  =  <theta, phi_f>  -+  radius ||phi_f||,   E_g = min(upper_g, C) - D_g,   C = L + 1 + epsilon

V starts at the number of hops in the graph of all possible transitions, which is known before the first step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import minimize
from scipy.sparse import csgraph
from scipy.special import chdtrc

from adagoal.core.array_types import Actions, Bools, Floats, Longs
from adagoal.core.environment import NO_LIMIT, ExplorationPlan
from adagoal.core.exploration_run import EstimatesPerGoal, SavedEstimates
from adagoal.core.file_formats import COUNT_SCHEMA, ArraySchema, ArraySpec
from adagoal.core.goal_space import GoalSpace
from adagoal.core.linear_mixture import LinearMixture
from adagoal.core.transition_data import TransitionCounts
from adagoal.linear.confidence_regions import LikelihoodLearner, PooledLearner, maximise_likelihood
from adagoal.planning.mixture_sweeps import improve_mixture_bounds
from adagoal.planning.model_arrays import MixtureBlock, TargetGoals, features_from_mixture

MISFIT_LEVEL = 1e-5  # significance level of the test after one plan
REPLAN_GROWTH = 1.1  # a plan is due once the number of transitions has grown by this factor
PSEUDO_COUNT = 1e-2  # added to every count in likeliest_theta, against negative probabilities of unseen successors


class MixtureEstimates(SavedEstimates):
    """Mixin of estimates for linear mixtures: new transitions, and when to plan again."""

    ARRAY_SCHEMA: ClassVar[ArraySchema] = {"total": ArraySpec("int64", ("nnz",), low=0)}
    FACTS_SCHEMA: ClassVar[dict[str, Any]] = {
        **SavedEstimates.FACTS_SCHEMA,
        "planned_transitions": {"type": "integer", "minimum": -1, "maximum": 2**62},
    }
    counts: TransitionCounts

    def init_mixture(
        self, mixture: LinearMixture, note: Callable[[str], None], simplex: bool, min_new_transitions: int
    ) -> None:
        """Initialise the mixin; ``note`` receives failed tests, ``simplex`` says where theta is assumed to lie."""
        self.mixture, self.features = mixture, features_from_mixture(mixture)
        self._note, self._simplex, self._min_new_transitions = note, simplex, min_new_transitions
        self.total = np.zeros(len(mixture.successors), np.int64)  # [nnz]: transitions up to the last plan
        self.planned_transitions = -1  # their number; -1 before the first plan

    def transitions_until_plan(self) -> float:
        """Number of transitions until the next plan is due."""
        planned = self.planned_transitions
        needed = max(float(self._min_new_transitions), (REPLAN_GROWTH - 1.0) * planned)
        return needed - (int(self.counts.n.sum()) - planned)

    def is_plan_due(self) -> bool:
        """Return whether the transitions have grown enough since the last plan."""
        planned, n = self.planned_transitions, int(self.counts.n.sum())
        return planned < 0 or n >= max(planned + self._min_new_transitions, REPLAN_GROWTH * planned)

    def take_new_transitions(self) -> Longs:
        """Return the transitions since the last call [nnz], and test the fit."""
        c, m = self.counts, self.mixture
        total, outside = self._tally_transitions()
        new, self.total, self.planned_transitions = total - self.total, total, int(c.n.sum())
        for line in find_misfit(m, total, outside, self._simplex):
            self._note(line)
        # No count shows this misfit: in a terminal state only the reset is played, which is not regressed.
        if (c.terminal & ~m.terminal).any():
            text = "misspecified: episodes ended in states that are no ends in the kernels"
            self._note(f"{text}; the certificates are void")
        return new

    def _tally_transitions(self) -> tuple[Longs, int]:
        """Return the transitions by entry of the features [nnz], and the number of those that have no entry."""
        c, m = self.counts, self.mixture
        inside = np.arange(c.successor.shape[1]) < c.support[:, None]
        indptr = np.concatenate([[0], np.cumsum(c.support)])
        count = sparse.csr_array((c.count[inside], c.successor[inside], indptr), shape=(len(c.n), m.n_states))
        total = np.asarray(count[m.pair_of_entry, m.successors], np.int64).ravel()
        return total, int(c.n.sum() - total.sum())

    def _axis_sizes(self) -> dict[str, int]:
        return {**super()._axis_sizes(), "nnz": len(self.total)}

    def _check_saved(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any], sizes: dict[str, int]) -> None:
        super()._check_saved(arrays, facts, sizes)
        if (arrays["total"] > self._tally_transitions()[0]).any():
            raise ValueError("more transitions were taken in than there are")


def find_misfit(mixture: LinearMixture, total: Longs, outside: int, simplex: bool) -> list[str]:
    """Return the failed tests, one line each, for the counts ``total`` [nnz] and the transitions outside the support.

    ``simplex``: theta is assumed to lie in the simplex, else in the ball of radius B.
    """
    lines, void = [], "the certificates are void"
    if outside:
        lines.append(f"misspecified: transitions were observed that no kernel of the mixture allows; {void}")
    # Pairs with the same feature vectors are also tested together: many of them with few counts each can show a misfit
    # that none of them shows alone.
    seen = total.astype(float)
    expected = expected_counts(mixture, total, simplex)
    classes, pair = mixture.entry_classes, mixture.pair_of_entry
    family = mixture.pair_families[pair[np.unique(classes, return_index=True)[1]]]
    O, E = (np.bincount(classes, values).astype(float) for values in (seen, expected))
    if 2 * min(misfit_p_value(seen, expected, pair), misfit_p_value(O, E, family)) < MISFIT_LEVEL:
        test = f"(G-test, p < {MISFIT_LEVEL:g})"
        lines.append(f"misspecified: the counts do not fit any mixture of the kernels {test}; {void}")
    return lines


def expected_counts(mixture: LinearMixture, total: Longs, simplex: bool) -> Floats:
    """Expected counts of the entries [nnz] at the theta of largest likelihood, given the counts of the pairs."""
    index, vectors = mixture.distinct_features
    c = np.bincount(index, total, minlength=len(vectors)).astype(float)
    start = np.full(mixture.d, 1.0 / mixture.d)
    likeliest = maximise_likelihood(vectors[c > 0], c[c > 0], start) if simplex else likeliest_theta(mixture, c)
    share: Floats = np.maximum(mixture.features @ likeliest, 0.0)
    return share * mixture.sum_over_successors(total)[mixture.pair_of_entry]


def misfit_p_value(seen: Floats, expected: Floats, group: Longs) -> float:
    """Twice the smaller p-value of two tests: the worst group, and all groups together.

    seen, expected and group have one entry per outcome.
    """
    # max(., 1e-9) skips outcomes that did not occur: 0 * log(0) would be NaN.
    E, possible = np.maximum(expected, 1e-9), (expected > 0) | (seen > 0)
    deviance = 2.0 * (seen * np.log(np.maximum(seen, 1e-9) / E) - (seen - expected))
    G, freedom = (np.bincount(group, values).astype(float) for values in (deviance, possible))
    # The expected counts of a group have the sum of the observed ones, which costs one degree of freedom.
    freedom -= 1.0
    testable = freedom > 0
    worst = float(np.min(chi_square_tail(freedom[testable], G[testable]), initial=1.0)) * max(int(testable.sum()), 1)
    # The chi-square law of a sum over many groups needs large expected counts in each of them.
    rarest = np.full(len(G), np.inf)
    np.minimum.at(rarest, group[possible], expected[possible])
    enough = testable & (rarest >= 20.0)
    return 2.0 * min(worst, float(chi_square_tail(max(float(freedom[enough].sum()), 1.0), G[enough].sum())))


def chi_square_tail(freedom: Floats | float, value: Floats | float) -> Floats:
    """Probability that a chi-square variable with these degrees of freedom exceeds the value; 1 below zero."""
    return np.asarray(chdtrc(freedom, np.maximum(value, 0.0)), float)


def likeliest_theta(mixture: LinearMixture, counts: Floats) -> Floats:
    """Approximate maximiser of sum_k c_k ln <phi_k, theta> over theta0 + N z, with counts [K] of the distinct vectors.

    Every count is PSEUDO_COUNT larger.
    """
    theta0, N = mixture.theta_parametrisation
    _, phi = mixture.distinct_features
    c = counts + PSEUDO_COUNT
    # Without a simplex a step may lead to negative probabilities, so below ``tiny`` a parabola continues the logarithm.
    # The ridge keeps the system regular in directions that the vectors do not determine.
    ridge, tiny = 1e-3 / mixture.B**2, 0.5 * PSEUDO_COUNT / float(c.sum())
    rows, p0 = phi @ N, phi @ theta0

    def loss(z: Floats) -> tuple[float, Floats]:
        """Minus the objective, and its gradient."""
        p = p0 + rows @ z
        up, low = np.maximum(p, tiny), np.minimum(p - tiny, 0.0) / tiny
        value = float(c @ (np.log(up) + low - low**2 / 2)) - ridge * float(z @ z) / 2
        return -value, ridge * z - rows.T @ (c * np.where(p > tiny, 1.0 / up, (1.0 - low) / tiny))

    def hessian(z: Floats) -> Floats:
        curvature: Floats = (rows.T * (c / np.maximum(p0 + rows @ z, tiny) ** 2)) @ rows
        return curvature + ridge * np.eye(len(z))

    z = np.zeros(N.shape[1])
    if len(z):
        z = minimize(loss, z, method="trust-exact", jac=True, hess=hessian, tol=1e-8 * float(c.sum())).x
    theta: Floats = theta0 + N @ z
    return theta


class MixtureBounds(MixtureEstimates, EstimatesPerGoal):
    """Lower and upper bounds for all goals, from the confidence region of a learner."""

    guarantee = True
    ARRAY_SCHEMA: ClassVar[ArraySchema] = {
        **MixtureEstimates.ARRAY_SCHEMA,
        "V": ArraySpec("float64", ("G", "S"), low=0),
        "Y": ArraySpec("float64", ("G", "S"), low=0),
        "optimistic": ArraySpec("int16", ("S", "G"), low=0, high="A"),
        "best": ArraySpec("int16", ("G", "S"), low=0, high="A"),
        "D": ArraySpec("float64", ("G",), low=0, finite=False),
        "stale": ArraySpec("bool", ("G",)),
        "_target": ArraySpec("float64", ("S",)),
    }
    FACTS_SCHEMA: ClassVar[dict[str, Any]] = {
        **MixtureEstimates.FACTS_SCHEMA,
        "_last_column": COUNT_SCHEMA,
        "_n_updates": COUNT_SCHEMA,
    }

    def __init__(
        self,
        mixture: LinearMixture,
        counts: TransitionCounts,
        learner: PooledLearner | LikelihoodLearner,
        L: float,
        epsilon: float,
        space: GoalSpace | None,
        note: Callable[[str], None],
    ) -> None:
        super().__init__(counts, L, epsilon, space)
        self.init_mixture(mixture, note, learner.simplex, min_new_transitions=100)
        self.learner, self.name = learner, learner.name
        self.cap = L + 1.0 + epsilon
        S, A, G = mixture.n_states, mixture.n_actions, len(self.goals)
        self.V = np.zeros((G, S))  # lower bounds
        self.Y = np.full((G, S), np.inf)  # upper bounds
        self.optimistic = np.full((S, G), A, np.int16)  # greedy for V, for exploration
        self.best = np.full((G, S), A, np.int16)  # the policies of Y, for the result
        self.D = np.zeros(G)
        self.stale = np.ones(G, bool)
        from_start = csgraph.dijkstra(_transition_graph(mixture), indices=[mixture.start], unweighted=True)
        self._reachable_from_start = np.isfinite(from_start)[0]
        self.set_radius(L, 1)
        self._theta_region = learner.confidence_region()
        self._target = self.V[0].copy()  # [S]: the function for the regression of the next transitions
        self._n_updates = 0  # of the learner
        self._last_column = 0  # the last planned column with the largest error

    @property
    def upper(self) -> Floats:
        """Upper bounds on the values of the policies in ``best`` [G]; infinite without a proof (lemma M4)."""
        top = self.Y[:, self.mixture.start]
        return np.where(top <= self.L + self.epsilon, top, np.inf)

    @property
    def E(self) -> Floats:
        """Errors [G]."""
        errors: Floats = np.maximum(np.minimum(self.upper, self.cap) - self.D, 0.0)
        return errors

    def distance_bounds(self, goal: int) -> tuple[float, float]:
        """(D, upper): the best policy takes at least D, the returned one at most ``upper`` expected steps."""
        j = self.column[goal]
        return float(self.D[j]), float(self.upper[j])

    def goal_policy(self, goal: int) -> Actions:
        """Return the certified policy [1, S]."""
        return self.best[None, self.column[goal]].copy()

    def refresh_columns(self, wanted: Bools) -> bool:
        """Update a block of goals among ``wanted`` [G]; return False if none of them was stale.

        Once the data has grown enough, the learner gets the new transitions and all goals become stale.
        """
        if self.is_plan_due():
            self._update_learner()
            self.stale[:] = True
        # Outdated bounds are still bounds, so goals that the rule does not want to play can wait.
        todo = np.flatnonzero(self.stale & wanted)
        if not len(todo):
            return False
        block = todo[np.argsort(-self.E[todo], kind="stable")][:8]
        self._sweep_block(block)
        self.stale[block] = False
        self._last_column = int(block[np.argmax(self.E[block])])
        self.plans += 1
        return True

    def exploration_plan(self) -> ExplorationPlan:
        """Return the optimistic policies, for about as many episodes as the next plan needs."""
        steps = 1.0 + float(self.D[self._last_column])
        episodes = max(1, math.ceil(self.transitions_until_plan() / steps))
        # A longer episode is lost: a reset would be as good.
        limit = math.ceil(4 * self.cap)
        thresholds = np.full(len(self.counts.n), NO_LIMIT)
        policies, goals = self.optimistic[None], self.space.goals_of_states
        return ExplorationPlan(policies, self.goal_state, limit, thresholds, goals, max_episodes=episodes)

    def extra_arrays(self) -> dict[str, NDArray[Any]]:
        """Return theta [d, 3] (estimate, lower, upper) and the whole region, for the report.

        theta* = theta + theta_region u with ||u|| <= 1; theta_radius is the squared radius inside theta_region.
        """
        region = self.learner.confidence_region()
        width = np.linalg.norm(region.root, axis=1)
        low, high = region.theta - width, region.theta + width
        if self.learner.simplex:
            low, high = np.maximum(low, 0.0), np.minimum(high, 1.0)
        theta = np.stack([region.theta, low, high], axis=1)
        return {"theta": theta, "theta_region": region.root, "theta_radius": np.array([self.learner.squared_radius()])}

    def set_radius(self, L: float, stage: int) -> None:
        """Set the first radius, or a larger one as stage 2, 3, ... of a curriculum (label ``cor_UB_increasingL``).

        Lower bounds and proven policies carry over. The region of theta does not depend on the radius, so no stage
        takes a share of delta.
        """
        unproven, start = ~np.isfinite(self.upper), self.mixture.start
        self.L, self.cap = L, L + 1.0 + self.epsilon
        members = [np.flatnonzero(self.space.states_of_goal(g)) for g in self.goals]
        # Hops are lower bounds for any theta. Where no path is shorter than the cap, the reset is best (lemma M5).
        hops = least_hop_counts(self.mixture, members, self.cap)
        self._reachable_directly = hops < self.cap  # [G, S]: without a reset
        self.V = np.maximum(self.V, np.minimum(hops, 1.0 + hops[:, [start]]))
        # Lemma M4 proves a policy only from a start at the cap with the reset everywhere.
        self.Y[unproven], self.best[unproven] = self.cap, self.mixture.n_actions
        for g, states in enumerate(members):
            self.Y[g, states] = 0.0
        found = np.array([self._reachable_from_start[states].any() for states in members])
        self.D = np.where(found, self.V[:, start], np.inf)
        self.stale[:] = True

    def _update_learner(self) -> None:
        """Give the learner the new transitions with the function that was fixed before them."""
        # First absorb, then choose the next target: the regression is valid only for functions that were fixed before
        # the transitions that they are paired with.
        new = self.take_new_transitions()
        self.learner.absorb_transitions(new, self.total, self._target)
        self._theta_region = self.learner.confidence_region()
        self._n_updates += 1
        # The next target: V of the goal last planned and, every other time, its gap Y - V, which upper bounds need.
        V = self.V[self._last_column]
        gap = self.Y[self._last_column] - V
        # A gap that is constant where the agent can be gives rows without information.
        use_gap = self._n_updates % 2 and np.ptp(gap[self._reachable_from_start]) > 0
        # A copy, because the next sweeps write into V.
        self._target = gap if use_gap else V.copy()

    def _sweep_block(self, block: Longs) -> None:
        """Update both bounds of the goals of the block."""
        targets = TargetGoals(len(block), self.space.columns_of_states(self.goals[block]))
        direct, reachable = self._reachable_directly[block], self._reachable_from_start
        # At most 10 sweeps: the next plan continues from these bounds.
        reach = MixtureBlock(targets, direct, reachable, self.cap, sweeps=10, tolerance=5e-3 * self.epsilon)
        bounds = self.V[block], self.Y[block], np.ascontiguousarray(self.optimistic.T[block]), self.best[block]
        V, Y, optimistic, best = improve_mixture_bounds(self.features, self._theta_region, reach, *bounds)
        self.V[block], self.Y[block], self.best[block] = V, Y, best
        # A copy, because a plan may still use the old table.
        self.optimistic = self.optimistic.copy()
        self.optimistic[:, block] = optimistic.T
        # Goals out of reach keep their infinite D, which is above every V.
        self.D[block] = np.maximum(self.D[block], V[:, self.mixture.start])

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return the bounds, the data of the last plan, and the state of the learner."""
        arrays, facts = super().state()
        return arrays | {f"learner.{name}": array for name, array in self.learner.learner_state().items()}, facts

    def _check_saved(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any], sizes: dict[str, int]) -> None:
        super()._check_saved(arrays, facts, sizes)
        if facts["_last_column"] >= len(self.goals):
            raise ValueError(f"there is no goal {facts['_last_column']}")

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Continue from a saved :meth:`state`."""
        super().restore(arrays, facts)
        prefix = "learner."
        saved = {k.removeprefix(prefix): np.array(v) for k, v in arrays.items() if k.startswith(prefix)}
        self.learner.restore_learner(saved)
        self._theta_region = self.learner.confidence_region()


def least_hop_counts(mixture: LinearMixture, goals: Sequence[Longs], cap: float) -> Floats:
    """min(cap, least number of steps from s to g) [G, S] in the graph of all possible transitions, without resets.

    ``goals`` has the states of each goal.
    """
    backwards = _transition_graph(mixture).T.tocsr()
    hops = np.full((len(goals), mixture.n_states), cap)
    for g, states in enumerate(goals):
        steps = csgraph.dijkstra(backwards, indices=states, unweighted=True, limit=cap)
        hops[g] = np.minimum(steps.min(axis=0, initial=cap), cap)
    return hops


def _transition_graph(mixture: LinearMixture) -> sparse.csr_matrix:
    """Matrix [S, S] with an edge for every possible transition."""
    S, origin = mixture.n_states, mixture.pair_of_entry // mixture.n_actions
    usable = ~mixture.terminal[origin]
    return sparse.csr_matrix((np.ones(usable.sum()), (origin[usable], mixture.successors[usable])), shape=(S, S))
