"""What the paper's constants would cost: samples until its stopping rule is met, computed on the known model.

These are not learners: the model is known, and every usable pair has the same number n of samples. Bisection finds the
n at which the largest E over {D <= L} is at most epsilon (eq. ``stopping_rule``).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from adagoal.core.array_types import Longs
from adagoal.core.errors import InputError
from adagoal.envs.model import TabularMDP
from adagoal.exact.solver import to_target_goals
from adagoal.linear import ucrl_vtr
from adagoal.planning.mixture_sweeps import plan_mixture_horizon
from adagoal.planning.model_arrays import (
    RidgeEstimates,
    SparseModel,
    TransitionKernel,
    features_from_mixture,
    to_sparse_model,
)
from adagoal.tabular import ucbvi
from adagoal.tabular.ucbvi import plan_finite_horizon


def pad_kernel(model: SparseModel) -> TransitionKernel:
    """Return a known kernel with rows padded to the widest one."""
    support = np.diff(model.indptr).astype(np.int32)
    used = np.arange(support.max()) < support[:, None]
    successor, p = np.zeros(used.shape, np.int32), np.zeros(used.shape)
    successor[used], p[used] = model.successors, model.probabilities
    return TransitionKernel(successor, p, support, model.terminal, model.start)


def fewest(stops: Callable[[float], bool], precision: float) -> float:
    """The smallest n in 1..2^62, up to a relative ``precision``, with which ``stops`` holds from there on."""
    too_few, enough = 0.0, 62.0  # powers of two
    while enough - too_few > math.log2(1 + precision):
        middle = (too_few + enough) / 2
        too_few, enough = (too_few, middle) if stops(2.0**middle) else (middle, enough)
    return float(2.0**enough)


def for_ucbvi(mdp: TabularMDP, L: float, epsilon: float, delta: float, bonus: str) -> tuple[float, float]:
    """Samples (of each pair, in all) with which AdaGoal-UCBVI would stop if p_hat were the true kernel."""
    H, pairs = ucbvi.planning_horizon(L, epsilon, bonus), mdp.n_states * mdp.n_actions
    kernel, targets = pad_kernel(to_sparse_model(mdp)), to_target_goals(mdp, None)

    def stops(n: float) -> bool:
        terms = ucbvi.ucbvi_bonuses(np.full(pairs, n), mdp.n_states, targets.size, H, delta, bonus)
        _, D, U = plan_finite_horizon(kernel, terms, targets, H)
        return float(U[D <= L].max()) <= (1 - ucbvi.EPSILON_SHARES[bonus]) * epsilon

    n = fewest(stops, 1e-3)
    return n, n * mdp.n_actions * float((~mdp.terminal).sum())


def for_vtr(mdp: TabularMDP, goals: Longs, L: float, epsilon: float, delta: float) -> float:
    """Samples in all with which AdaGoal-UCRL.VTR would stop if theta were known to both regressions.

    Rows have the targets V*; those of the errors are taken to be as informative.
    """
    m = mdp.mixture
    if m is None:
        raise InputError(f"{mdp.name} is not a linear mixture")
    H, G, d = ucbvi.planning_horizon(L, epsilon, "literal"), len(goals), m.d
    p = np.asarray(mdp.kernel()[m.pair_of_entry, m.successors]).ravel()
    theta = np.tile(np.linalg.lstsq(m.features, p, rcond=None)[0], (G, 1))
    targets = to_target_goals(mdp, goals.tolist())
    features, known = features_from_mixture(m), RidgeEstimates(theta, np.zeros((G, d, d)))
    _, V, _ = plan_mixture_horizon(features, known, known, targets, H)
    gram = np.stack([phi.T @ phi for phi in (m.phi(f) for f in V[1].T)])

    def stops(n: float) -> bool:
        Sigma = np.eye(d) / (m.B + 1.0) ** 2 + n * gram
        regression = RidgeEstimates(
            theta, ucrl_vtr.solve_ridge_regressions(Sigma, np.zeros((G, d)), m.B, H, G, delta).root
        )
        _, V, U = plan_mixture_horizon(features, regression, regression, targets, H)
        reachable = V[0, m.start] <= L
        return float(U[0, m.start, reachable].max(initial=0.0)) <= (1 - ucbvi.EPSILON_SHARES["literal"]) * epsilon

    return fewest(stops, 1e-2) * m.n_actions * float((~m.terminal).sum())
