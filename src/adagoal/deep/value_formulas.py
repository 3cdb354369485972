"""Formulas of learner, policies and sb3, without JAX or PyTorch imports: MLP, D in steps, ErrorModel, GoalInfo.

**From values to D and E.** J critics Q_j give the cost c_j = -Q_j(s, pi(s, g), g) of a goal. The step that arrives at
the goal is free and each step before it costs 1. So a goal that is reached by the n-th step, and held afterwards, costs
(1 - gamma^(n-1)) / (1 - gamma). With the mean c over the critics

    D = 1 + log(1 - (1 - gamma) c) / log gamma        in steps, at least 1.

E is the standard deviation over the critics: an error in discounted steps, in which an error n steps away counts
gamma^n. With E in plain steps, a draw in proportion to E prefers the border of the reachable region, and learning was
slower.

**Uncertainty.** The disagreement of critics says little about the error of one goal. After training, fresh episodes
without noise measure the errors |D - n|, where n is the first step at the goal; see :class:`ErrorModel`. An episode
of T steps without success shows n > T only. Its error is taken as max(T - D, 0).

Functions with an argument ``xp`` take arrays of any library; ``xp`` is its module (``numpy`` or ``jax.numpy``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from adagoal.core.array_types import Floats
from adagoal.goal_rules import GoalInfo

# Smallest standard deviation of a normaliser, in the units of the environment (as in the reference HER).
MIN_DEVIATION = 0.01
# Normalised coordinates are clipped to plus or minus this, as in the reference HER. Networks cannot tell goals apart
# that lie further from the mean of the achieved goals.
MAX_NORMALISED_VALUE = 5.0
# Width of the kernel of a goal density, in standard deviations of the achieved goals.
DENSITY_BANDWIDTH = 0.3
# Episodes whose errors predict that of a goal; chosen among 8, 16 and 32 on one run in each of four environments.
N_NEIGHBOURS = 8
# Episodes of an error model, at most: every one is compared with all others.
MAX_ERROR_EPISODES = 2000
# Smallest predicted error in steps, before calibration: errors that are small by chance prove nothing.
MIN_ERROR_STEPS = 0.1
# Largest calibration factor, distance and error; a saved policy with larger ones is refused.
MAX_CALIBRATION = 1e6


def forward_mlp(layers: Sequence[tuple[Any, Any]], x: Any, activation: Callable[[Any], Any]) -> Any:
    """Output ``[..., last width]`` of the layers (weight, bias) for inputs ``[..., first width]``."""
    for weight, bias in layers[:-1]:
        x = activation(x @ weight + bias)
    weight, bias = layers[-1]
    return x @ weight + bias


def layer_norm_relu(x: Any, xp: Any = np) -> Any:
    """Activation of normalised layers: x brought to mean 0 and variance 1 over its last axis, then max(0, x)."""
    # 1e-5 as in PyTorch, so adagoal.sb3 computes the same
    centred = x - x.mean(-1, keepdims=True)
    return xp.maximum(centred / xp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5), 0.0)


def cost_to_steps(cost: Any, gamma: float, xp: Any = np) -> Any:
    """D in steps from the mean cost c."""
    # critics may leave the range of true costs, where the logarithm has no value
    bounded = xp.clip(cost, 0.0, (1.0 - 1e-6) / (1.0 - gamma))
    return 1.0 + xp.log1p(-(1.0 - gamma) * bounded) / xp.log(gamma)


class ErrorModel(NamedTuple):
    """Predicts the error of D from that of the episodes with the most similar D, and calibrates the prediction.

    The factor covers 90% of these episodes, each predicted from the others: conformal prediction with a normalised
    score (Papadopoulos et al. 2011), by leaving one out.
    """

    D: Floats  # [n] distances of the episodes
    errors: Floats  # [n] their errors in steps
    factor: float

    @classmethod
    def fit(cls, D: Floats, first_steps: Floats, horizon: int) -> ErrorModel:
        """Fit to n >= 2 fresh episodes of ``horizon`` steps, with ``first_steps`` of :func:`first_step_at_goal`."""
        D, first_steps = D[:MAX_ERROR_EPISODES], first_steps[:MAX_ERROR_EPISODES]
        # an episode without success shows only whether D was too small
        missed = np.maximum(horizon - D, 0.0)
        errors = np.where(first_steps <= horizon, np.abs(D - first_steps), missed)
        gaps = np.abs(D[:, None] - D)
        np.fill_diagonal(gaps, np.inf)
        scores = np.sort(errors / _mean_of_nearest(gaps, errors, min(N_NEIGHBOURS, len(D) - 1)))
        # n + 1, because the next episode is one of n + 1 exchangeable ones
        rank = min(int(np.ceil(0.9 * (len(scores) + 1))), len(scores)) - 1
        return cls(D, errors, float(min(max(scores[rank], 1e-3), MAX_CALIBRATION)))

    def predict(self, D: Floats) -> Floats:
        """Half-widths ``[B]`` in steps of intervals around the distances ``D`` ``[B]``."""
        return self.factor * _mean_of_nearest(np.abs(D[:, None] - self.D), self.errors, N_NEIGHBOURS)


def _mean_of_nearest(gaps: Floats, errors: Floats, k: int) -> Floats:
    """Mean error ``[B]`` of the k episodes with the smallest gaps ``[B, n]``, at least MIN_ERROR_STEPS."""
    nearest = np.argsort(gaps, axis=1, kind="stable")[:, :k]
    means: Floats = np.maximum(errors[nearest].mean(1), MIN_ERROR_STEPS)
    return means


def first_step_at_goal(distances: Floats, success: float) -> Floats:
    """First step at the goal ``[...]``, from the distances ``[..., T]`` after each of T steps; infinite if missed."""
    reached = distances <= success
    return np.where(reached.any(-1), reached.argmax(-1) + 1.0, np.inf)


def mean_gaussian_kernel(differences: Any, bandwidth: float, xp: Any = np) -> Any:
    """Kernel density ``[...]``, up to a constant, from differences ``[..., M, G]`` to M sample points."""
    return xp.exp(-(differences**2).sum(-1) / (2 * bandwidth**2)).mean(-1)


def kernel_divergence(p: Any, q: Any, xp: Any = np) -> Any:
    """KL(p || q) of two kernel densities ``[M]``, both evaluated at M points drawn from p."""
    # q may underflow to 0 far from its sample
    return xp.mean(xp.log(p + 1e-12) - xp.log(q + 1e-12))


def moment_shifts(shift: Any, old_weight: Any, new_weight: Any, total_weight: Any) -> tuple[Any, Any]:
    """Chan's merge of two samples whose means differ by ``shift``: what the mean and the sum of squares gain.

    The sum of squared deviations of the new sample about its own mean comes on top.
    """
    return shift * new_weight / total_weight, shift**2 * old_weight * new_weight / total_weight


def make_goal_info(D: Floats, E: Floats, visits: Floats, L: float, experience: Mapping[str, Any]) -> GoalInfo:
    """What a rule sees of N continuous goals: all are eligible, and attempts are not counted goal by goal."""
    zeros: Any = np.zeros_like(D)
    eligible = np.ones(len(D), bool)
    return GoalInfo(D, E, L, eligible, visits, zeros, zeros, zeros, zeros, **experience)
