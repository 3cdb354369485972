"""One declaration per setting: a field of a frozen dataclass with its type, default, text, range and scope.

    @dataclass(frozen=True)
    class Config:
        gamma: float = setting(0.98, "Discount.", low=0.5, high=0.9999)

Everything else follows from it: :func:`check` refuses a value of another type or out of range, also for a caller
from Python; the command line makes an option of every field; :func:`json_schema` says what a file may hold;
:func:`per_run` says in which fields runs that share a compiled program may differ.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, get_type_hints

from adagoal.core.checks import native
from adagoal.core.errors import InputError
from adagoal.core.schema import record


class About(NamedTuple):
    """What is declared of a setting beside its name and default."""

    kind: Any
    """``int``, ``float``, ``str`` or ``tuple[int, ...]``: the annotation of the field."""
    help: str
    low: float
    high: float
    choices: Collection[str]
    per_run: bool


def setting(
    default: Any = dataclasses.MISSING,
    help: str = "",
    *,
    low: float = -math.inf,
    high: float = math.inf,
    choices: Collection[str] = (),
    per_run: bool = False,
) -> Any:
    """A field; ``low`` and ``high`` are included, and hold for every entry of a tuple."""
    declared = {"help": help, "low": low, "high": high, "choices": choices, "per_run": per_run}
    return dataclasses.field(default=default, metadata=declared)


def declared(kind: type[Any]) -> dict[str, About]:
    """The settings of a dataclass, in their order."""
    kinds = get_type_hints(kind)
    return {f.name: About(kinds[f.name], **f.metadata) for f in dataclasses.fields(kind)}


def per_run(kind: type[Any]) -> set[str]:
    """Names of the settings in which runs of one program may differ."""
    return {name for name, about in declared(kind).items() if about.per_run}


def check(values: Any) -> None:
    """Every value has the declared type and lies in the declared range; what does not is named.

    A number of NumPy's is kept as the Python number that it is.
    """
    for name, about in declared(type(values)).items():
        value = getattr(values, name)
        plain = tuple(map(native, value)) if isinstance(value, tuple) else native(value)
        if plain is not value:
            object.__setattr__(values, name, plain)  # the dataclass is frozen
        if not _fits(about, plain):
            raise InputError(f"must be {_wanted(about)}, got {value!r}", name=name)


def json_schema(kind: type[Any], names: Collection[str], **more: Mapping[str, Any]) -> dict[str, Any]:
    """The rules of an object with these settings, and ``more``, in a file (:func:`adagoal.core.schema.check_json`)."""
    wanted = {name: about for name, about in declared(kind).items() if name in names}
    return record(**{name: _rule(about) for name, about in wanted.items()}, **more)


def _rule(about: About) -> dict[str, Any]:
    if about.kind is str:
        return {"type": "string", "maxLength": 1000} | ({"enum": list(about.choices)} if about.choices else {})
    if about.kind in (int, float):
        kind = "integer" if about.kind is int else "number"
        return {"type": kind, "minimum": about.low, "maximum": about.high}
    return {"type": "array", "minItems": 1, "maxItems": 1000, "items": _rule(about._replace(kind=int))}


def _fits(about: About, value: Any) -> bool:
    if about.kind is str:
        return isinstance(value, str) and (not about.choices or value in about.choices)
    if about.kind in (int, float):
        number = isinstance(value, int if about.kind is int else int | float) and not isinstance(value, bool)
        return number and about.low <= value <= about.high  # never true of NaN
    return isinstance(value, tuple) and len(value) > 0 and all(_fits(about._replace(kind=int), x) for x in value)


def _wanted(about: About) -> str:
    if about.kind is str:
        return f"one of {', '.join(about.choices)}" if about.choices else "text"
    between = f"from {about.low:g} to {about.high:g}"
    if about.kind in (int, float):
        return f"a {'whole number' if about.kind is int else 'number'} {between}"
    return f"a tuple of one or more whole numbers {between}"
