"""Sixteen numbers at a time in compiled code: a type whose arithmetic is vector instructions, whatever the compiler
makes of a loop.

A loop over goals becomes vector code only if the compiler finds that worth while, and a new version of it may think
otherwise without a word. Code that is written for one number works for sixteen of them: ``+``, ``-``, ``*``, ``min``,
``max`` and ``math.sqrt`` take :class:`Lanes`, and plain numbers beside them. Products and sums may be fused, which
leaves out one rounding; nothing is reordered, and there are no NaNs.
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

intrinsic: Any = extending.intrinsic  # its types know nothing of the functions that it makes
tools: Any = cgutils
LANES = 16
_FLAGS = ("nnan", "nsz", "contract")
_VECTOR = ir.VectorType(ir.DoubleType(), LANES)


class Lanes(types.Type):
    """Sixteen float64 numbers: four registers with AVX2, which keep it busy while roots are on their way."""

    def __init__(self) -> None:
        super().__init__("Lanes")


@register_model(Lanes)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: Lanes) -> None:
        super().__init__(manager, lanes, _VECTOR)  # type: ignore[no-untyped-call]


def _spread(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """The lanes, or a number in all of them."""
    if isinstance(kind, Lanes):
        return value
    nothing = ir.Constant(_VECTOR, ir.Undefined)
    number = context.cast(builder, value, kind, types.float64)
    first = builder.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))


def _place(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """A pointer to the lanes from array[row, first] on, as they lie there."""
    kind = signature.args[0]
    array = context.make_array(kind)(context, builder, args[0])
    where = [context.cast(builder, args[i], signature.args[i], types.uintp) for i in (1, 2)]
    first = tools.get_item_pointer(context, builder, kind, array, where, wraparound=False, boundscheck=False)
    return builder.bitcast(first, ir.VectorType(context.get_data_type(kind.dtype), LANES).as_pointer())


def _called(name: str, operands: int) -> Callable[..., Any]:
    """What calls a vector instruction by its name."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes = [_spread(context, builder, *pair) for pair in zip(signature.args, args, strict=True)]
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * operands)
        function = tools.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{LANES}f64")
        return builder.call(function, lanes, fastmath=("nnan", "nsz"))

    return build


def _arithmetic(name: str) -> Callable[..., Any]:
    """The same for a plain operation."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes = [_spread(context, builder, *pair) for pair in zip(signature.args, args, strict=True)]
        return getattr(builder, name)(*lanes, flags=_FLAGS)

    return build


def _of_two(function: Callable[..., Any], build: Callable[..., Any]) -> None:
    @intrinsic
    def apply(context: Any, x: Any, y: Any) -> Any:
        return Lanes()(x, y), build

    @overload(function)
    def chosen(x, y):  # type: ignore[no-untyped-def]
        if isinstance(x, Lanes) or isinstance(y, Lanes):
            return lambda x, y: apply(x, y)
        return None


_of_two(operator.add, _arithmetic("fadd"))
_of_two(operator.sub, _arithmetic("fsub"))
_of_two(operator.mul, _arithmetic("fmul"))
_of_two(max, _called("maxnum", 2))
_of_two(min, _called("minnum", 2))


@intrinsic
def _root(context: Any, x: Any) -> Any:
    return Lanes()(x), _called("sqrt", 1)


@overload(math.sqrt)
def _sqrt(x):  # type: ignore[no-untyped-def]
    return (lambda x: _root(x)) if isinstance(x, Lanes) else None


@intrinsic
def load(context: Any, array: Any, row: Any, first: Any) -> Any:
    """array[row, first : first + LANES]"""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        found = builder.load(_place(context, builder, signature, args), align=array.dtype.bitwidth // 8)
        return found if array.dtype == types.float64 else builder.sitofp(found, _VECTOR)

    return Lanes()(array, row, first), build


@intrinsic
def store(context: Any, array: Any, row: Any, first: Any, lanes: Any) -> Any:
    """array[row, first : first + LANES] = lanes"""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        where, value = _place(context, builder, signature, args), args[3]
        if array.dtype != types.float64:
            value = builder.fptosi(value, where.type.pointee)
        builder.store(value, where, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, row, first, lanes), build


@intrinsic
def spread(context: Any, number: Any) -> Any:
    """A number in all lanes."""
    return Lanes()(number), lambda context, builder, signature, args: _spread(context, builder, number, args[0])


@intrinsic
def where_less(context: Any, x: Any, y: Any, then: Any, otherwise: Any) -> Any:
    """``then`` in the lanes with x < y, ``otherwise`` in the others."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, y, then, otherwise = (_spread(context, builder, *pair) for pair in zip(signature.args, args, strict=True))
        return builder.select(builder.fcmp_ordered("<", x, y, flags=("nnan",)), then, otherwise)

    return Lanes()(x, y, then, otherwise), build


@intrinsic
def replaced(context: Any, lanes: Any, lane: Any, number: Any) -> Any:
    """The lanes with another number in one of them."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = context.cast(builder, args[2], signature.args[2], types.float64)
        return builder.insert_element(args[0], value, args[1])

    return Lanes()(lanes, lane, number), build


@intrinsic
def largest(context: Any, lanes: Any) -> Any:
    """The largest of them."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        found = builder.extract_element(args[0], ir.Constant(ir.IntType(32), 0))
        for i in range(1, LANES):
            other = builder.extract_element(args[0], ir.Constant(ir.IntType(32), i))
            found = builder.select(builder.fcmp_ordered(">", other, found), other, found)
        return found

    return types.float64(lanes), build
