"""Sixteen numbers at a time in compiled code: a Numba type whose arithmetic is vector instructions.

A compiler turns a loop over goals into vector code only if it expects that to pay, and a new version may decide
otherwise without notice. Code written for one number works for :class:`SimdLanes` too: ``+``, ``-``, ``*``, ``min``,
``max`` and ``math.sqrt`` accept lanes, and plain numbers beside them. Products and sums may be fused, which saves one
rounding. Nothing is reordered, and no lane is NaN.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils
from numba.extending import models, overload, register_model

# Untyped, because mypy does not know the functions that Numba makes.
intrinsic: Any = extending.intrinsic
codegen_utils: Any = cgutils
N_LANES = 16
# No lane is NaN and products may be fused with sums. "reassoc" is missing: results must not depend on the order in
# which a compiler adds.
_FAST_MATH_FLAGS = ("nnan", "nsz", "contract")
_VECTOR_TYPE = ir.VectorType(ir.DoubleType(), N_LANES)


class SimdLanes(types.Type):
    """Sixteen float64 numbers: four AVX2 registers, so one instruction computes four square roots."""

    def __init__(self) -> None:
        super().__init__("Lanes")


@register_model(SimdLanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: SimdLanes) -> None:
        super().__init__(manager, lanes, _VECTOR_TYPE)  # type: ignore[no-untyped-call]


def _broadcast_value(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """Return the lanes, or a number copied into every lane."""
    if isinstance(kind, SimdLanes):
        return value
    nothing = ir.Constant(_VECTOR_TYPE, ir.Undefined)
    number = context.cast(builder, value, kind, types.float64)
    first = builder.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(ir.IntType(32), N_LANES), [0] * N_LANES))


def _lanes_pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """Return a pointer to array[row, first : first + N_LANES] in the element type of the array."""
    kind = signature.args[0]
    array = context.make_array(kind)(context, builder, args[0])
    where = [context.cast(builder, args[i], signature.args[i], types.uintp) for i in (1, 2)]
    first = codegen_utils.get_item_pointer(context, builder, kind, array, where, wraparound=False, boundscheck=False)
    return builder.bitcast(first, ir.VectorType(context.get_data_type(kind.dtype), N_LANES).as_pointer())


def _broadcast_values(context: Any, builder: Any, signature: Any, args: Any) -> list[Any]:
    return [_broadcast_value(context, builder, *pair) for pair in zip(signature.args, args, strict=True)]


def _intrinsic_call(name: str) -> Callable[..., Any]:
    """Return code that calls the LLVM vector intrinsic of this name."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes = _broadcast_values(context, builder, signature, args)
        kind = ir.FunctionType(_VECTOR_TYPE, [_VECTOR_TYPE] * len(lanes))
        function = codegen_utils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{N_LANES}f64")
        return builder.call(function, lanes, fastmath=("nnan", "nsz"))

    return build


def _arithmetic_instruction(name: str) -> Callable[..., Any]:
    """Return code that emits the arithmetic instruction of this name."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes = _broadcast_values(context, builder, signature, args)
        return getattr(builder, name)(*lanes, flags=_FAST_MATH_FLAGS)

    return build


def _overload_binary(function: Callable[..., Any], build: Callable[..., Any]) -> None:
    @intrinsic
    def apply(context: Any, x: Any, y: Any) -> Any:
        return SimdLanes()(x, y), build

    # Without lanes the answer is None, and Numba uses its own implementation.
    @overload(function)
    def chosen(x, y):  # type: ignore[no-untyped-def]
        if isinstance(x, SimdLanes) or isinstance(y, SimdLanes):
            return lambda x, y: apply(x, y)
        return None


_overload_binary(operator.add, _arithmetic_instruction("fadd"))
_overload_binary(operator.sub, _arithmetic_instruction("fsub"))
_overload_binary(operator.mul, _arithmetic_instruction("fmul"))
_overload_binary(max, _intrinsic_call("maxnum"))
_overload_binary(min, _intrinsic_call("minnum"))


@intrinsic
def _lanes_root(context: Any, x: Any) -> Any:
    return SimdLanes()(x), _intrinsic_call("sqrt")


@overload(math.sqrt)
def _overload_sqrt(x):  # type: ignore[no-untyped-def]
    return (lambda x: _lanes_root(x)) if isinstance(x, SimdLanes) else None


@intrinsic
def load_lanes(context: Any, array: Any, row: Any, first: Any) -> Any:
    """Return array[row, first : first + N_LANES] as lanes."""

    # Rows start anywhere, so only the alignment of one element is promised. Actions are int16 in their tables and
    # float64 in lanes, so one selection serves values and actions.
    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = builder.load(_lanes_pointer(context, builder, signature, args), align=array.dtype.bitwidth // 8)
        return value if array.dtype == types.float64 else builder.sitofp(value, _VECTOR_TYPE)

    return SimdLanes()(array, row, first), build


@intrinsic
def store_lanes(context: Any, array: Any, row: Any, first: Any, lanes: Any) -> Any:
    """Store lanes into array[row, first : first + N_LANES]."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        where, value = _lanes_pointer(context, builder, signature, args), args[3]
        if array.dtype != types.float64:
            value = builder.fptosi(value, where.type.pointee)
        builder.store(value, where, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, row, first, lanes), build


@intrinsic
def broadcast_lanes(context: Any, number: Any) -> Any:
    """Copy a number into every lane."""
    return SimdLanes()(number), lambda *given: _broadcast_values(*given)[0]


@intrinsic
def select_where_less(context: Any, x: Any, y: Any, then: Any, otherwise: Any) -> Any:
    """Return ``then`` in the lanes with x < y and ``otherwise`` in the others."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, y, then, otherwise = _broadcast_values(context, builder, signature, args)
        return builder.select(builder.fcmp_ordered("<", x, y, flags=("nnan",)), then, otherwise)

    return SimdLanes()(x, y, then, otherwise), build


@intrinsic
def replace_lane(context: Any, lanes: Any, lane: Any, number: Any) -> Any:
    """Replace the number in one lane."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = context.cast(builder, args[2], signature.args[2], types.float64)
        return builder.insert_element(args[0], value, args[1])

    return SimdLanes()(lanes, lane, number), build


@intrinsic
def largest_lane(context: Any, lanes: Any) -> Any:
    """Return the largest lane."""

    # One lane after the other: a sweep needs this only once, at its end.
    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        largest = builder.extract_element(args[0], ir.Constant(ir.IntType(32), 0))
        for i in range(1, N_LANES):
            other = builder.extract_element(args[0], ir.Constant(ir.IntType(32), i))
            largest = builder.select(builder.fcmp_ordered(">", other, largest), other, largest)
        return largest

    return types.float64(lanes), build
