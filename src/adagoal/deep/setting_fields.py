"""One declaration per setting: a field of a frozen dataclass with its type, default, text, range and scope.

    @dataclass(frozen=True)
    class Config:
        gamma: float = setting(0.98, "Discount.", low=0.5, high=0.9999)

Everything else follows from it: :func:`check_field_values` refuses a value of another type or out of range, also for a
caller from Python; the command line makes an option of every field; :func:`settings_json_schema` says what a file may
hold; :func:`per_run_settings` says in which fields runs that share a compiled program may differ.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, get_type_hints

from adagoal.core.argument_checks import to_python_scalar
from adagoal.core.errors import InputError
from adagoal.core.file_formats import object_schema


class SettingInfo(NamedTuple):
    """What is declared of a setting beside its name and default."""

    kind: Any
    """``int``, ``float``, ``str`` or ``tuple[int, ...]``: the annotation of the field."""
    help: str
    low: float
    high: float
    choices: Collection[str]
    per_run: bool


def setting_field(
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


def declared_settings(kind: type[Any]) -> dict[str, SettingInfo]:
    """The settings of a dataclass, in their order."""
    kinds = get_type_hints(kind)
    return {f.name: SettingInfo(kinds[f.name], **f.metadata) for f in dataclasses.fields(kind)}


def per_run_settings(kind: type[Any]) -> set[str]:
    """Names of the settings in which runs of one program may differ."""
    return {name for name, about in declared_settings(kind).items() if about.per_run}


def check_field_values(values: Any) -> None:
    """Every value has the declared type and lies in the declared range; what does not is named.

    A number of NumPy's is kept as the Python number that it is.
    """
    for name, about in declared_settings(type(values)).items():
        value = getattr(values, name)
        plain = tuple(map(to_python_scalar, value)) if isinstance(value, tuple) else to_python_scalar(value)
        if plain is not value:
            object.__setattr__(values, name, plain)  # the dataclass is frozen
        if not _fits_declaration(about, plain):
            raise InputError(f"must be {_describe_accepted(about)}, got {value!r}", name=name)


def settings_json_schema(kind: type[Any], names: Collection[str], **more: Mapping[str, Any]) -> dict[str, Any]:
    """The rules of an object with these settings, and ``more``, in a file
    (:func:`adagoal.core.file_formats.check_json_value`)."""
    wanted = {name: about for name, about in declared_settings(kind).items() if name in names}
    return object_schema(**{name: _setting_json_rule(about) for name, about in wanted.items()}, **more)


def _setting_json_rule(about: SettingInfo) -> dict[str, Any]:
    if about.kind is str:
        return {"type": "string", "maxLength": 1000} | ({"enum": list(about.choices)} if about.choices else {})
    if about.kind in (int, float):
        kind = "integer" if about.kind is int else "number"
        return {"type": kind, "minimum": about.low, "maximum": about.high}
    return {"type": "array", "minItems": 1, "maxItems": 1000, "items": _setting_json_rule(about._replace(kind=int))}


def _fits_declaration(about: SettingInfo, value: Any) -> bool:
    if about.kind is str:
        return isinstance(value, str) and (not about.choices or value in about.choices)
    if about.kind in (int, float):
        number = isinstance(value, int if about.kind is int else int | float) and not isinstance(value, bool)
        return number and about.low <= value <= about.high  # never true of NaN
    return (
        isinstance(value, tuple)
        and len(value) > 0
        and all(_fits_declaration(about._replace(kind=int), x) for x in value)
    )


def _describe_accepted(about: SettingInfo) -> str:
    if about.kind is str:
        return f"one of {', '.join(about.choices)}" if about.choices else "text"
    between = f"from {about.low:g} to {about.high:g}"
    if about.kind in (int, float):
        return f"a {'whole number' if about.kind is int else 'number'} {between}"
    return f"a tuple of one or more whole numbers {between}"
