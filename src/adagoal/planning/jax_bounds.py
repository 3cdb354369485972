"""The bounding operators of :mod:`adagoal.planning.certified_sweeps` in JAX: all states and goals of a block in one
operation.

The closed forms of lemma 4 are written with the standard deviation sd instead of the variance, and with r cut at one,
which changes nothing: Low is 0 and Up is max f from r = 1 on.

    Low = max{ (1-r) m - 1.02 max( sqrt(2r) sd, 0.02 r C, 0.01 sd^2/C ),  (1-q) f(s') if s' is the only successor }
    Up  = u + q (top - u),    u = min{ m + sqrt(2r) sd + r (max f - m), max f }

*Rounding* (docs/theory-more.md, lemma 11). The step of every backup costs 1 - eta in a lower and 1 + eta in an upper
bound, eta = (3 o + 32) u (C + 1), with u the unit roundoff and o the successors of the pair. That covers all rounding
errors of the backup, in any order of summation, so that the bounds are valid as they are computed: in float32, which a
GPU is fast at, or in float64, where float32 would cost more than ten tolerances of the block in C steps.

Sweeps update all states at once (Jacobi), so that news travels one step a sweep: there are up to ``PATIENCE`` times as
many as in place. They cost next to nothing beside the transfer. The duals of ``block.exact`` are left to the processor.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike, NDArray

from adagoal.core.local_backup import FINEST_LEVEL, NEAREST_LEVEL_FACTOR
from adagoal.core.types import Actions, Floats, Longs
from adagoal.planning import certified_sweeps
from adagoal.planning.model_arrays import EmpiricalModel, GoalBlock

JACOBI_SWEEP_FACTOR = 64
DeviceValues = NDArray[Any]


def improve_lower_bounds_jax(
    model: EmpiricalModel, block: GoalBlock, V: Floats, policy: Actions
) -> tuple[Floats, Actions]:
    """Raised lower bounds V [S, B] and their greedy policy [S, B] (lemma 5)."""
    if block.exact:
        raised: tuple[Floats, Actions] = certified_sweeps.improve_lower_bounds(model, block, V, policy)
        return raised
    terms = lower_bound_terms(model, block, select_precision(model, block))
    found, greedy = _run_on_device(jacobi_lower_sweeps, round_down, model, model.p, terms, block, V, policy)
    V[block.order], policy[block.order] = np.maximum(V[block.order], found), greedy
    return V, policy


def improve_upper_bounds_jax(
    model: EmpiricalModel, block: GoalBlock, Y: Floats, policy: Actions
) -> tuple[Floats, Actions]:
    """Lowered upper bounds Y [S, B] and the policy [S, B] that they hold for (lemma 6)."""
    if block.exact:
        lowered: tuple[Floats, Actions] = certified_sweeps.improve_upper_bounds(model, block, Y, policy)
        return lowered
    terms = upper_bound_terms(model, block, select_precision(model, block))
    found, action = _run_on_device(jacobi_upper_sweeps, round_up, model, model.p_split, terms, block, Y, policy)
    fell = found < Y[block.order]
    policy[block.order] = np.where(fell, action, policy[block.order])
    Y[block.order] = np.where(fell, found, Y[block.order])
    return Y, policy


def select_precision(model: EmpiricalModel, block: GoalBlock) -> DTypeLike:
    """float32 where rounding costs at most ten tolerances in C steps, float64 elsewhere."""
    cost = float(rounding_slack(model, block, np.float32).max()) * block.cap
    return np.float32 if cost <= 10.0 * block.tolerance else np.float64


def lower_bound_terms(model: EmpiricalModel, block: GoalBlock, dtype: DTypeLike) -> tuple[DeviceValues, ...]:
    """The cost of a step, 1 - r, 1 - q of single successors, and the factors of sd and C in Low, each [X]."""
    r, sure = np.minimum(model.r_low, 1.0), np.where(model.support == 1, 1.0 - model.q, 0.0)
    wide = NEAREST_LEVEL_FACTOR * np.sqrt(2.0 * r), 2.0 * NEAREST_LEVEL_FACTOR * FINEST_LEVEL * block.cap * r
    return (
        *(round_down(term, dtype) for term in (1.0 - rounding_slack(model, block, dtype), 1.0 - r, sure)),
        *(round_up(term, dtype) for term in wide),
    )


def upper_bound_terms(model: EmpiricalModel, block: GoalBlock, dtype: DTypeLike) -> tuple[DeviceValues, ...]:
    """The cost of a step (infinite for pairs never tried), r, the factor of sd in Up, and q, each [X]."""
    r, cost = np.minimum(model.r, 1.0), 1.0 + rounding_slack(model, block, dtype)
    terms = np.where(model.support > 0, cost, np.inf), r, np.sqrt(2.0 * r), model.q
    return tuple(round_up(term, dtype) for term in terms)


def rounding_slack(model: EmpiricalModel, block: GoalBlock, dtype: DTypeLike) -> Floats:
    """eta [X]."""
    unit = float(np.finfo(dtype).eps) / 2.0
    return np.asarray((3.0 * model.support + 32.0) * (unit * (block.cap + 1.0)))


def round_down(x: Any, dtype: DTypeLike) -> DeviceValues:
    """The neighbour below x in ``dtype``; 0 stays 0."""
    near = np.asarray(x, dtype)
    return np.where(near == 0.0, near, np.nextafter(near, np.asarray(-np.inf, dtype)))


def round_up(x: Any, dtype: DTypeLike) -> DeviceValues:
    """The neighbour above x in ``dtype``; 0 stays 0."""
    near = np.asarray(x, dtype)
    return np.where(near == 0.0, near, np.nextafter(near, np.asarray(np.inf, dtype)))


def _run_on_device(
    sweeps: Callable[..., tuple[jax.Array, jax.Array]],
    outwards: Callable[[Any, DTypeLike], DeviceValues],
    model: EmpiricalModel,
    p: Floats,
    terms: tuple[DeviceValues, ...],
    block: GoalBlock,
    F: Floats,
    policy: Actions,
) -> tuple[DeviceValues, Actions]:
    """Values and actions [N, B] of the states in the block's order after the sweeps."""
    with jax.enable_x64(True):
        found, chosen = sweeps(*device_arguments(outwards, model, p, terms, block, F, policy))
        part = slice(len(block.order)), slice(F.shape[1])
        return np.asarray(found)[part], np.asarray(chosen)[part]


def device_arguments(
    outwards: Callable[[Any, DTypeLike], DeviceValues],
    model: EmpiricalModel,
    p: Floats,
    terms: tuple[DeviceValues, ...],
    block: GoalBlock,
    F: Floats,
    policy: Actions,
) -> tuple[Any, ...]:
    """Those of :func:`jacobi_lower_sweeps` and :func:`jacobi_upper_sweeps`, with the states numbered as in the block's
    order.

    The first of the ``terms``, each [X], is what a step costs: infinite where a pair is no choice. Sizes are rounded
    up; states and columns beyond those of the block are inside the goal, where nothing changes.
    """
    (S, B), N, dtype = F.shape, len(block.order), terms[0].dtype
    A, K = len(model.support) // S, model.successor.shape[1]
    states, columns = padded_size(N), padded_size(B)
    number = np.zeros(S, np.int32)
    number[block.order] = np.arange(N)
    pairs = np.pad((block.order[:, None] * A + np.arange(A)).ravel(), (0, (states - N) * A))
    places = SuccessorList(pairs * K, model.support[pairs].astype(np.int64), number[model.successor.ravel()], p.ravel())
    terms = tuple(term[pairs] for term in terms)
    closed = np.pad(model.terminal[block.order], (0, states - N), constant_values=True)
    terms[0][np.repeat(closed, A)] = np.inf
    inside = np.ones((states, columns), bool)
    inside[:N, :B] = (block.column[block.order][:, :, None] == np.arange(B)).any(axis=1)
    values, actions = np.zeros((states, columns), dtype), np.zeros((states, columns), np.int16)
    values[:N, :B], actions[:N, :B] = outwards(F[block.order], dtype), policy[block.order]
    away = 1.0 if outwards is round_up else -1.0
    step = outwards(1.0 + away * float(rounding_slack(model, block, dtype).max()), dtype)
    limits = number[model.start], step, outwards(block.cap, dtype), block.tolerance, JACOBI_SWEEP_FACTOR * block.sweeps
    return group_rows_by_width(places, terms, states, dtype), values, actions, inside, *limits


@jax.jit
def jacobi_lower_sweeps(rows, V, policy, inside, start, step, cap, tolerance, sweeps):  # type: ignore[no-untyped-def]
    """V <- max(V, T_low V) [S, B] for all states at once, policy [S, B] <- the greedy actions.

    ``inside`` [S, B]: where the goal is; the reset leads to ``start`` and costs ``step``.
    """

    def low(group: DeviceRows, a: int, V: jax.Array, own: jax.Array) -> jax.Array:
        cost, keep, sure, spread, floor = (term[a][:, None] for term in group.terms)
        mean, sd, _ = device_moments(group, a, V, own)
        width = jnp.maximum(jnp.maximum(spread * sd, floor), NEAREST_LEVEL_FACTOR * FINEST_LEVEL / cap * sd * sd)
        return jnp.maximum(cost + jnp.maximum(keep * mean - width, sure * mean), 1.0)

    def sweep(V: jax.Array, policy: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        reset = jnp.broadcast_to(jnp.minimum(cap, step + V[start]), V.shape)
        best, action = best_actions(rows, low, V, reset, jnp.full(V.shape, len(rows[0].successor), jnp.int16))
        raised = jnp.where(inside, V, jnp.maximum(V, best))
        return raised, action, (raised - V).max()

    return repeat_sweeps(sweep, V, policy, tolerance, sweeps)


@jax.jit
def jacobi_upper_sweeps(rows, Y, policy, inside, start, step, cap, tolerance, sweeps):  # type: ignore[no-untyped-def]
    """Y <- min(Y, T_up Y) [S, B] for all states at once; the policy [S, B] follows where Y falls."""

    def sweep(Y: jax.Array, policy: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        top = jnp.minimum(cap, step + Y[start])

        def high(group: DeviceRows, a: int, Y: jax.Array, own: jax.Array) -> jax.Array:
            cost, r, spread, q = (term[a][:, None] for term in group.terms)
            mean, sd, most = device_moments(group, a, Y, own)
            seen = jnp.minimum(mean + spread * sd + r * (most - mean), most)
            return cost + seen + q * (top - seen)

        resetting = jnp.where(Y > top, jnp.int16(len(rows[0].successor)), policy)
        best, action = best_actions(rows, high, jnp.minimum(Y, top), jnp.minimum(Y, top), resetting)
        lowered, action = jnp.where(inside, Y, best), jnp.where(inside, policy, action)
        return lowered, action, (Y - lowered).max()

    return repeat_sweeps(sweep, Y, policy, tolerance, sweeps)


def device_moments(rows: DeviceRows, a: int, F: jax.Array, own: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Mean, standard deviation and maximum [N, B] of F [S, B] over the successors of action a; own [N, B]: F itself.

    Deviations are taken from the state's own value, then from their mean: no square cancels another.
    """
    successor, weight = rows.successor[a], rows.weight[a][:, :, None]
    if len(successor) <= UNROLLED_SUCCESSORS:
        near = [F[row] for row in successor]
        mean = sum(w * (f - own) for w, f in zip(weight, near, strict=True))
        variance = sum(w * (f - own - mean) ** 2 for w, f in zip(weight, near, strict=True))
        most = functools.reduce(jnp.maximum, near)
    else:
        distance = F[successor] - own
        mean = (weight * distance).sum(axis=0)
        variance, most = (weight * (distance - mean) ** 2).sum(axis=0), F[successor].max(axis=0)
    return own + mean, jnp.sqrt(variance), most


def best_actions(
    rows: tuple[DeviceRows, ...],
    value: Callable[[DeviceRows, int, jax.Array, jax.Array], jax.Array],
    F: jax.Array,
    best: jax.Array,
    action: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """The best [S, B] of what there is and of all actions, and which it is.

    value(rows, a, F, own) [N, B] is that of action a in the states of the rows, where F is ``own`` [N, B].
    """
    found = []
    for group in rows:
        at = slice(None) if group is rows[0] else group.state
        own, least, choice = F[at], best[at], action[at]
        for a in range(len(group.successor)):
            q = value(group, a, F, own)
            choice, least = jnp.where(q < least, jnp.int16(a), choice), jnp.minimum(q, least)
        found.append((least, choice))
    best, action = found[0]
    for group, (least, choice) in zip(rows[1:], found[1:], strict=True):
        best, action = best.at[group.state].set(least), action.at[group.state].set(choice)
    return best, action


def repeat_sweeps(
    sweep: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array, jax.Array]],
    F: jax.Array,
    policy: jax.Array,
    tolerance: jax.Array,
    sweeps: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """F and policy after sweeps, which also return the largest change, until that is below the tolerance."""

    def more(carry: Any) -> Any:
        return (carry[0] < sweeps) & (carry[3] >= tolerance)

    def again(carry: Any) -> Any:
        return (carry[0] + 1, *sweep(carry[1], carry[2]))

    _, F, policy, _ = jax.lax.while_loop(more, again, (0, F, policy, jnp.asarray(jnp.inf, F.dtype)))
    return F, policy


# Successors as a GPU likes to read them: by action and place, so that a sweep is a fixed number of gathers.
#
# A device computes the same formula for many (state, goal) at once. Nearly all pairs have at most
# :data:`UNROLLED_SUCCESSORS` successors: for them the places of a row are written out, and one kernel reads, combines
# and minimises without a temporary array. States with a wider row, such as a virtual start, form a second, small group
# with as many places as the widest needs; its result replaces theirs. Every sum has one fixed order, so that a sweep
# has one result.


UNROLLED_SUCCESSORS = 4
"""Successors of a pair that are read without a loop."""
MAX_POWER_OF_TWO_SIZE = 4096
"""Sizes are rounded up to powers of two up to this one, then by an eighth at most: code is compiled per size."""


class DeviceRows(NamedTuple):
    """The pairs of N states of a device."""

    state: jax.Array
    """[N] the states, as numbers of the rows of V"""
    successor: jax.Array
    """[A, K, N]; where fewer are in use the first one again, and the state itself where none is"""
    weight: jax.Array
    """[A, K, N]; 0 in places that are not in use"""
    terms: tuple[jax.Array, ...]
    """Each [A, N]: the other numbers in the formula of a pair"""


class SuccessorList(NamedTuple):
    """Successors of the pairs of S states as they come: those of x are ``first[x]`` to ``first[x] + support[x]``."""

    first: Longs
    """[X]"""
    support: Longs
    """[X]"""
    successor: NDArray[np.integer[Any]]
    """[places]"""
    weight: Floats
    """[places]"""


def padded_size(size: int) -> int:
    """The size for which code is compiled that serves ``size``."""
    power = 1 << max(size - 1, 15).bit_length()
    step = power if power <= MAX_POWER_OF_TWO_SIZE else power // 8
    return -(-size // step) * step


def group_rows_by_width(
    places: SuccessorList, terms: tuple[NDArray[Any], ...], n_states: int, dtype: DTypeLike
) -> tuple[DeviceRows, ...]:
    """All states with up to LANES places for each pair; then, if there are any, those that need more, with all."""
    widest = int(places.support.max(initial=1))
    every = np.arange(n_states)
    found = [_build_device_rows(places, terms, every, every, min(UNROLLED_SUCCESSORS, widest), dtype)]
    wide = np.flatnonzero((places.support > UNROLLED_SUCCESSORS).reshape(n_states, -1).any(axis=1))
    if wide.size:
        # some states twice, to the same effect
        found.append(
            _build_device_rows(
                places, terms, np.resize(wide, padded_size(wide.size)), every, padded_size(widest), dtype
            )
        )
    return tuple(found)


def _build_device_rows(
    places: SuccessorList, terms: tuple[NDArray[Any], ...], states: Longs, every: Longs, width: int, dtype: DTypeLike
) -> DeviceRows:
    A = places.support.size // every.size
    pairs = states * A + np.arange(A)[:, None]  # [A, N]
    k = np.arange(width)[:, None]
    count = places.support[pairs][:, None]  # [A, 1, N]
    used = k < count
    at = np.where(used | (count > 0), places.first[pairs][:, None] + np.where(used, k, 0), 0)
    successor = np.where(count > 0, places.successor[at], states)
    weight = np.where(used, places.weight[at], 0.0)
    return DeviceRows(
        jax.numpy.asarray(states.astype(np.int32)),
        jax.numpy.asarray(successor.astype(np.int32)),
        jax.numpy.asarray(weight.astype(dtype)),
        tuple(jax.numpy.asarray(term[pairs]) for term in terms),
    )
