"""Where planning happens: the sweeps over all goals, as functions on whole arrays.

A :class:`Backend` is a tuple of functions. Learners and the exact solver are given one and ask it for values; they know
nothing of the loops inside. Another backend, say for a GPU, is one file with some of these functions, and the rest of
this one: ``NUMBA._replace(lower=..., upper=..., exact=..., stages=...)``.

Contract: named tuples of arrays in (:mod:`adagoal.planning.model_arrays`), arrays out. Values and policies that a
function is given to improve belong to it from then on: it may overwrite them, and only what it returns counts. Bounds
are valid at every iterate, so that a backend is free in the order of its backups and may stop anywhere; the stages and
the values of :func:`exact` do not depend on an order up to rounding and the tolerance. Functions are called from
several threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from adagoal.core import compiled_code
from adagoal.core.types import Actions, Bools, Floats, Longs
from adagoal.planning import (
    certified_sweeps,
    horizon_recursion,
    mixture_sweeps,
    robust_sweeps,
    shortest_paths,
    value_iteration,
)
from adagoal.planning.model_arrays import (
    BonusTerms,
    EmpiricalModel,
    EnsembleModel,
    GoalBlock,
    MixtureBlock,
    MixtureFeatures,
    RidgeEstimates,
    RobustModel,
    SparseModel,
    TargetGoals,
    ThetaRegion,
    TransitionKernel,
)


class Backend(NamedTuple):
    """One way to plan for many goals at once."""

    lower_bounds: Callable[[EmpiricalModel, GoalBlock, Floats, Actions], tuple[Floats, Actions]]
    """(model, block, V [S, B], policy [S, B]): raised lower bounds and their greedy policy (lemma 5)"""
    upper_bounds: Callable[[EmpiricalModel, GoalBlock, Floats, Actions], tuple[Floats, Actions]]
    """(model, block, Y [S, B], policy [S, B]): lowered upper bounds and the policy that they hold for (lemma 6)"""
    robust_lower_bounds: Callable[[RobustModel, GoalBlock, Floats, Actions], tuple[Floats, Actions]]
    """The same as ``lower`` for the best kernel of a set"""
    robust_upper_bounds: Callable[[RobustModel, GoalBlock, Floats, Actions], tuple[Floats, Actions]]
    """The same as ``upper`` for the worst kernel of a set"""
    exact_values: Callable[[SparseModel, TargetGoals, Floats, float, float, int], tuple[Floats, Floats]]
    """(model, targets, V [S, G], cap, tolerance, sweeps): values of a known model, and each goal's residual [G];
    every state may be left for good at the cost ``cap``; where V is not below it, that or the reset is best"""
    finite_horizon: Callable[[TransitionKernel, BonusTerms, TargetGoals, int], tuple[Actions, Floats, Floats]]
    """(kernel, bonus, targets, H): policy [H, S, G], distance D [G] and error U [G] of AdaGoal-UCBVI"""
    shortest_paths: Callable[[TransitionKernel, Bools, Bools, float, float], tuple[Floats, Actions]]
    """(kernel, usable [X], targets [B, S], precision, cap): values [B, S] and policies [B, S] to sets of states"""
    visgo: Callable[[TransitionKernel, Longs, Floats, Bools, Longs, float, float, float, float], tuple[Floats, Actions]]
    """(kernel, n [X], iota [X], usable [X], goals [B], root, flat, precision, cap): values and policies [B, S]"""
    ensemble_values: Callable[[EnsembleModel, TargetGoals, float, int, Floats, Actions], tuple[Floats, Actions]]
    """(members, targets, tolerance, sweeps, V [M, S + 1, G], greedy [M, S, G]): both, improved in every member"""
    mixture_bounds: Callable[
        [MixtureFeatures, ThetaRegion, MixtureBlock, Floats, Floats, Actions, Actions],
        tuple[Floats, Floats, Actions, Actions],
    ]
    """(features, region, reach, V, Y, greedy, policy), all [B, S]: both bounds of a linear mixture, improved"""
    mixture_horizon: Callable[
        [MixtureFeatures, RidgeEstimates, RidgeEstimates, TargetGoals, int], tuple[Actions, Floats, Floats]
    ]
    """(features, value, error, targets, H): policy [H, S, G], V and U [2, S, G] of stages 1 and 2, of UCRL.VTR"""
    block_size: int
    """How many goals a lazy plan brings up to date together: ``lower``, ``upper`` (robust or not) and
    ``ensemble`` get so many"""
    min_block_values: int = 0
    """Values of a block from which on it pays to plan here and not on the processor"""
    relative_cost: float = 1.0
    """What a plan of ``lower`` and ``upper`` costs beside one of the processor
    (:mod:`adagoal.certified.planning_budget`)"""


NUMBA_BACKEND = Backend(
    lower_bounds=certified_sweeps.improve_lower_bounds,
    upper_bounds=certified_sweeps.improve_upper_bounds,
    robust_lower_bounds=robust_sweeps.improve_robust_lower_bounds,
    robust_upper_bounds=robust_sweeps.improve_robust_upper_bounds,
    exact_values=value_iteration.run_value_iteration,
    finite_horizon=horizon_recursion.plan_finite_horizon,
    shortest_paths=shortest_paths.solve_shortest_paths,
    visgo=shortest_paths.solve_visgo,
    ensemble_values=shortest_paths.improve_ensemble_values,
    mixture_bounds=mixture_sweeps.improve_mixture_bounds,
    mixture_horizon=mixture_sweeps.plan_mixture_horizon,
    block_size=16,  # what the cache holds
)
"""Compiled loops on the processor."""


# Which backend plans on which device.


DEVICES = ("cpu", "gpu")


def select_backend(device: str, note: Callable[[str], None]) -> Backend:
    """The backend of a device; where there is no GPU, that of the processor, which is noted in one line."""
    if device == "cpu":
        return NUMBA_BACKEND
    try:
        from adagoal.planning.jax_planner import JAX_BACKEND, has_jax_gpu
    except ImportError:
        note("planned on the processor: a GPU needs JAX with CUDA, the extra gpu")
        return NUMBA_BACKEND
    if has_jax_gpu():
        compiled_code.enable_jax_cache()
        return JAX_BACKEND
    note("planned on the processor: JAX found no GPU")
    return NUMBA_BACKEND
