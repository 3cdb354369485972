"""Sweeps with the closed forms of :mod:`adagoal.planning.certified_sweeps`, for sixteen goals at a time
(:mod:`.lanes`).

A block has a multiple of sixteen goals: :mod:`~adagoal.planning.certified_sweeps` fills up those that have not. Indices
are unsigned, so that none of them is checked for counting from the end. tests/test_sweeps.py has the plain version.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.core import cgutils
from numba.extending import models, overload, register_model

from adagoal.core.local_backup import VECTOR_MATH_OPTIONS, closed_form_low, closed_form_low_complete


@numba.njit(**VECTOR_MATH_OPTIONS, forceinline=True)
def closed_form_up(mean, variance, most, r, q, top):  # type: ignore[no-untyped-def]
    """Up_x of lemma 4."""
    return (1.0 - q) * min(mean + math.sqrt(2.0 * r * variance) + r * (most - mean), most) + q * top


@numba.njit(**VECTOR_MATH_OPTIONS, forceinline=True)
def _lane_moments(x, first, model, weight, F):  # type: ignore[no-untyped-def]
    """Mean, variance, smallest and largest value of F [S, B] over the successors of a pair, with weights [X, K], for
    the goals from ``first`` on; centred at the first successor against cancellation."""
    centre = load_lanes(F, model.successor[x, 0], first)
    mean, square, least, most = broadcast_lanes(0.0), broadcast_lanes(0.0), centre, centre
    for k in range(1, model.support[x]):
        value = load_lanes(F, model.successor[x, k], first)
        distance = value - centre
        part = distance * weight[x, k]
        mean, square = mean + part, square + part * distance
        least, most = min(least, value), max(most, value)
    return centre + mean, max(square - mean * mean, 0.0), least, most


@numba.njit(**VECTOR_MATH_OPTIONS, forceinline=True)
def _lower_backup(x, first, model, cap, V):  # type: ignore[no-untyped-def]
    """1 + Low_x(V), for the goals from ``first`` on."""
    support = model.support[x]
    if support == 0:
        return broadcast_lanes(1.0)
    if support == 1:
        sure = 1.0 - model.q[x]
        return 1.0 + closed_form_low(
            load_lanes(V, model.successor[x, 0], first), broadcast_lanes(0.0), model.r_low[x], cap, sure
        )
    if model.complete[x]:
        mean, variance, least, _ = _lane_moments(x, first, model, model.p_split, V)
        return 1.0 + closed_form_low_complete(mean, variance, least, model.r[x])
    mean, variance, _, _ = _lane_moments(x, first, model, model.p, V)
    return 1.0 + closed_form_low(mean, variance, model.r_low[x], cap, 0.0)


@numba.njit(**VECTOR_MATH_OPTIONS)
def closed_form_lower_sweep(order, model, block, V, policy):  # type: ignore[no-untyped-def]
    """V <- max(V, T_low V) over the states of ``order``, policy <- the greedy actions; returns the largest rise."""
    B, cap, column, step = np.uintp(V.shape[1]), block.cap, block.column, np.uintp(N_LANES)
    A = np.uintp(model.support.shape[0] // V.shape[0])
    rise = broadcast_lanes(0.0)
    for state in order:
        s = np.uintp(state)
        for first in range(np.uintp(0), B, step):
            own = load_lanes(V, s, first)
            best, action = min(cap, 1.0 + load_lanes(V, model.start, first)), broadcast_lanes(A)
            for a in range(np.uintp(0) if model.terminal[s] else A):
                value = _lower_backup(s * A + a, first, model, cap, V)
                action = select_where_less(value, best, a, action)
                best = min(value, best)
            for k in range(column.shape[1]):
                lane = np.uintp(column[s, k]) - first
                if lane < step:
                    best = replace_lane(best, lane, 0.0)
            store_lanes(policy, s, first, action)
            rise = max(rise, best - own)
            store_lanes(V, s, first, max(own, best))
    return largest_lane(rise)


@numba.njit(**VECTOR_MATH_OPTIONS)
def closed_form_upper_sweep(order, model, block, Y, policy):  # type: ignore[no-untyped-def]
    """Y <- min(Y, T_up Y) over the states of ``order``, the policy follows where Y falls; returns the largest fall."""
    B, column, step = np.uintp(Y.shape[1]), block.column, np.uintp(N_LANES)
    A = np.uintp(model.support.shape[0] // Y.shape[0])
    top = np.minimum(block.cap, 1.0 + Y[model.start : model.start + 1])
    fall = broadcast_lanes(0.0)
    for state in order:
        s = np.uintp(state)
        for first in range(np.uintp(0), B, step):
            own, most = load_lanes(Y, s, first), load_lanes(top, 0, first)
            store_lanes(policy, s, first, select_where_less(most, own, A, load_lanes(policy, s, first)))
            store_lanes(Y, s, first, min(own, most))
    for state in order:
        s = np.uintp(state)
        for first in range(np.uintp(0), np.uintp(0) if model.terminal[s] else B, step):
            own, most = load_lanes(Y, s, first), load_lanes(top, 0, first)
            best, action = own, load_lanes(policy, s, first)
            for a in range(A):
                x = s * A + a
                if model.support[x] > 0:
                    mean, variance, _, furthest = _lane_moments(x, first, model, model.p_split, Y)
                    value = 1.0 + closed_form_up(mean, variance, furthest, model.r[x], model.q[x], most)
                    action = select_where_less(value, best, a, action)
                    best = min(value, best)
            for k in range(column.shape[1]):
                lane = np.uintp(column[s, k]) - first
                if lane < step:
                    best = replace_lane(best, lane, Y[s, first + lane])
                    action = replace_lane(action, lane, policy[s, first + lane])
            store_lanes(policy, s, first, action)
            fall = max(fall, own - best)
            store_lanes(Y, s, first, best)
    return largest_lane(fall)


# Sixteen numbers at a time in compiled code: a type whose arithmetic is vector instructions, whatever the compiler
# makes of a loop.
#
# A loop over goals becomes vector code only if the compiler finds that worth while, and a new version of it may think
# otherwise without a word. Code that is written for one number works for sixteen of them: ``+``, ``-``, ``*``, ``min``,
# ``max`` and ``math.sqrt`` take :class:`SimdLanes`, and plain numbers beside them. Products and sums may be fused,
# which leaves out one rounding; nothing is reordered, and there are no NaNs.


intrinsic: Any = extending.intrinsic  # its types know nothing of the functions that it makes
codegen_utils: Any = cgutils
N_LANES = 16
_FAST_MATH_FLAGS = ("nnan", "nsz", "contract")
_VECTOR_TYPE = ir.VectorType(ir.DoubleType(), N_LANES)


class SimdLanes(types.Type):
    """Sixteen float64 numbers: four registers with AVX2, which keep it busy while roots are on their way."""

    def __init__(self) -> None:
        super().__init__("Lanes")


@register_model(SimdLanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: SimdLanes) -> None:
        super().__init__(manager, lanes, _VECTOR_TYPE)  # type: ignore[no-untyped-call]


def _broadcast_value(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """The lanes, or a number in all of them."""
    if isinstance(kind, SimdLanes):
        return value
    nothing = ir.Constant(_VECTOR_TYPE, ir.Undefined)
    number = context.cast(builder, value, kind, types.float64)
    first = builder.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(ir.IntType(32), N_LANES), [0] * N_LANES))


def _lanes_pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """A pointer to the lanes from array[row, first] on, as they lie there."""
    kind = signature.args[0]
    array = context.make_array(kind)(context, builder, args[0])
    where = [context.cast(builder, args[i], signature.args[i], types.uintp) for i in (1, 2)]
    first = codegen_utils.get_item_pointer(context, builder, kind, array, where, wraparound=False, boundscheck=False)
    return builder.bitcast(first, ir.VectorType(context.get_data_type(kind.dtype), N_LANES).as_pointer())


def _intrinsic_call(name: str, operands: int) -> Callable[..., Any]:
    """What calls a vector instruction by its name."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes = [_broadcast_value(context, builder, *pair) for pair in zip(signature.args, args, strict=True)]
        kind = ir.FunctionType(_VECTOR_TYPE, [_VECTOR_TYPE] * operands)
        function = codegen_utils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{N_LANES}f64")
        return builder.call(function, lanes, fastmath=("nnan", "nsz"))

    return build


def _arithmetic_instruction(name: str) -> Callable[..., Any]:
    """The same for a plain operation."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes = [_broadcast_value(context, builder, *pair) for pair in zip(signature.args, args, strict=True)]
        return getattr(builder, name)(*lanes, flags=_FAST_MATH_FLAGS)

    return build


def _overload_binary(function: Callable[..., Any], build: Callable[..., Any]) -> None:
    @intrinsic
    def apply(context: Any, x: Any, y: Any) -> Any:
        return SimdLanes()(x, y), build

    @overload(function)
    def chosen(x, y):  # type: ignore[no-untyped-def]
        if isinstance(x, SimdLanes) or isinstance(y, SimdLanes):
            return lambda x, y: apply(x, y)
        return None


_overload_binary(operator.add, _arithmetic_instruction("fadd"))
_overload_binary(operator.sub, _arithmetic_instruction("fsub"))
_overload_binary(operator.mul, _arithmetic_instruction("fmul"))
_overload_binary(max, _intrinsic_call("maxnum", 2))
_overload_binary(min, _intrinsic_call("minnum", 2))


@intrinsic
def _lanes_root(context: Any, x: Any) -> Any:
    return SimdLanes()(x), _intrinsic_call("sqrt", 1)


@overload(math.sqrt)
def _overload_sqrt(x):  # type: ignore[no-untyped-def]
    return (lambda x: _lanes_root(x)) if isinstance(x, SimdLanes) else None


@intrinsic
def load_lanes(context: Any, array: Any, row: Any, first: Any) -> Any:
    """array[row, first : first + LANES]"""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        found = builder.load(_lanes_pointer(context, builder, signature, args), align=array.dtype.bitwidth // 8)
        return found if array.dtype == types.float64 else builder.sitofp(found, _VECTOR_TYPE)

    return SimdLanes()(array, row, first), build


@intrinsic
def store_lanes(context: Any, array: Any, row: Any, first: Any, lanes: Any) -> Any:
    """array[row, first : first + LANES] = lanes"""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        where, value = _lanes_pointer(context, builder, signature, args), args[3]
        if array.dtype != types.float64:
            value = builder.fptosi(value, where.type.pointee)
        builder.store(value, where, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, row, first, lanes), build


@intrinsic
def broadcast_lanes(context: Any, number: Any) -> Any:
    """A number in all lanes."""
    return SimdLanes()(number), lambda context, builder, signature, args: _broadcast_value(
        context, builder, number, args[0]
    )


@intrinsic
def select_where_less(context: Any, x: Any, y: Any, then: Any, otherwise: Any) -> Any:
    """``then`` in the lanes with x < y, ``otherwise`` in the others."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, y, then, otherwise = (
            _broadcast_value(context, builder, *pair) for pair in zip(signature.args, args, strict=True)
        )
        return builder.select(builder.fcmp_ordered("<", x, y, flags=("nnan",)), then, otherwise)

    return SimdLanes()(x, y, then, otherwise), build


@intrinsic
def replace_lane(context: Any, lanes: Any, lane: Any, number: Any) -> Any:
    """The lanes with another number in one of them."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = context.cast(builder, args[2], signature.args[2], types.float64)
        return builder.insert_element(args[0], value, args[1])

    return SimdLanes()(lanes, lane, number), build


@intrinsic
def largest_lane(context: Any, lanes: Any) -> Any:
    """The largest of them."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        found = builder.extract_element(args[0], ir.Constant(ir.IntType(32), 0))
        for i in range(1, N_LANES):
            other = builder.extract_element(args[0], ir.Constant(ir.IntType(32), i))
            found = builder.select(builder.fcmp_ordered(">", other, found), other, found)
        return found

    return types.float64(lanes), build
