"""Validation of arguments: settings as dataclass fields, their schemas and docstrings, and checks with one-line errors.

A setting is declared once, as a field of a dataclass with its type, default, help text and range::

    @dataclass(frozen=True)
    class Config:
        gamma: float = setting_field(0.98, "Discount.", low=0.5, high=0.9999)

The check of a value, the command-line option, the JSON schema and the entry of the docstring follow from this
declaration. Fields without :func:`setting_field` are internal: nothing is derived from them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import inspect
import math
import os
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from pathlib import Path
from types import NoneType
from typing import Any, ParamSpec, TypeVar, get_args, get_type_hints

import numpy as np

from adagoal.core.errors import InputError
from adagoal.core.file_formats import object_schema
from adagoal.core.file_io import parse_json

_Function = TypeVar("_Function", bound=Callable[..., Any])
Parameters = ParamSpec("Parameters")
ReturnT = TypeVar("ReturnT")
_IntegerTuple = tuple[int, ...]


@dataclass(frozen=True)
class SettingInfo:
    """The declaration of one setting."""

    name: str
    kinds: tuple[Any, ...]  # accepted types: bool, int, float, str, dict, Path, tuple[int, ...], NoneType
    default: Any = None
    help: str = ""  # one or two sentences, for --help, docstrings and schemas
    details: str = ""  # more sentences, for docstrings only
    low: float = -math.inf  # range of a number, or of every entry of a tuple
    high: float = math.inf
    closed: str = "[]"  # which ends belong to the range: "[]", "(]", "[)" or "()"
    choices: Collection[str] = ()
    text_form: str = ""  # in messages: the texts that are accepted, if `choices` cannot list them
    per_run: bool = False  # whether runs that share a compiled program may differ in it
    option: str = ""  # the command-line option, if it is not --name
    metavar: str = ""  # what --help shows for the value
    default_text: str = ""  # what --help shows as the default, if it is not `default`


def setting_field(default: Any = dataclasses.MISSING, help: str = "", details: str = "", **declared: Any) -> Any:
    """Declare a dataclass field; ``declared`` are fields of :class:`SettingInfo`."""
    metadata = {"help": help, "details": details, **declared}
    # A dataclass refuses a mutable default, and settings that shared one dictionary could change each other.
    if isinstance(default, dict):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def declared_settings(cls: type[Any]) -> dict[str, SettingInfo]:
    """Return the declared settings of a dataclass, in their order."""
    # With postponed annotations the types of the fields are texts, which this call resolves.
    annotations = get_type_hints(cls)
    return {
        f.name: SettingInfo(
            f.name,
            _accepted_types(annotations[f.name]),
            f.default if f.default_factory is dataclasses.MISSING else f.default_factory(),
            **f.metadata,
        )
        for f in dataclasses.fields(cls)
        if f.metadata
    }


def _accepted_types(annotation: Any) -> tuple[Any, ...]:
    if annotation == _IntegerTuple:
        return (annotation,)
    if getattr(annotation, "__origin__", None) is dict:
        return (dict,)
    return get_args(annotation) or (annotation,)


def per_run_settings(cls: type[Any]) -> set[str]:
    """Return the names of the settings in which runs of one compiled program may differ."""
    return {name for name, info in declared_settings(cls).items() if info.per_run}


def check_value(info: SettingInfo, value: Any) -> Any:
    """Return the value, without NumPy's types; raise an :class:`InputError` if it is not accepted."""
    # A number replaces a default None later, so the type of the field does not mention it.
    if value is None and info.default is None:
        return None
    # The settings are written as JSON, which cannot hold NumPy's numbers and arrays.
    plain = _to_plain(value)
    if not any(_is_accepted(info, kind, plain) for kind in info.kinds):
        raise InputError(f"must be {_describe_accepted(info)}, got {format_given_value(value)}", info.name)
    return plain


def _to_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _to_plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return tuple(map(_to_plain, value)) if isinstance(value, tuple) else list(map(_to_plain, value))
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def check_arguments(cls: type[Any], **values: Any) -> None:
    """Check arguments of a function against the settings of these names in ``cls``."""
    for name, value in values.items():
        check_value(declared_settings(cls)[name], value)


def check_field_values(settings: Any) -> None:
    """Check every declared field of a frozen dataclass; call it in ``__post_init__``."""
    for name, info in declared_settings(type(settings)).items():
        # The way around "frozen": the checked value may be another object than the given one.
        object.__setattr__(settings, name, check_value(info, getattr(settings, name)))


def settings_json_schema(cls: type[Any], names: Collection[str], **more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of an object with these settings and the entries ``more``."""
    declared = {name: json_rule(info) for name, info in declared_settings(cls).items() if name in names}
    return object_schema(**{**declared, **more})


def json_rule(info: SettingInfo) -> dict[str, Any]:
    """Return the JSON schema of one setting."""
    rule: dict[str, Any] = {"description": info.help}
    if info.kinds == (_IntegerTuple,):
        # The limit keeps a forged file from describing a network that fills the memory.
        items = {"type": "integer"} | _json_range(info)
        return rule | {"type": "array", "minItems": 1, "maxItems": 1000, "items": items}
    names = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object", NoneType: "null"}
    types = [names[kind] for kind in info.kinds]
    rule["type"] = types[0] if len(types) == 1 else types
    # If other types are accepted too, an enum would have to list their values, so the length is limited instead.
    if info.choices and types == ["string"]:
        return rule | {"enum": list(info.choices)}
    if str in info.kinds:
        rule["maxLength"] = max(map(len, info.choices)) if info.choices else 10_000
    return rule | _json_range(info)


def _json_range(info: SettingInfo) -> dict[str, float]:
    low = "minimum" if info.closed[0] == "[" else "exclusiveMinimum"
    high = "maximum" if info.closed[1] == "]" else "exclusiveMaximum"
    # JSON has no infinities, and a missing bound means the same.
    return {key: bound for key, bound in ((low, info.low), (high, info.high)) if math.isfinite(bound)}


def _is_accepted(info: SettingInfo, kind: Any, value: Any) -> bool:
    if kind is str:
        return isinstance(value, str) and (not info.choices or value in info.choices)
    if kind in (int, float):
        # bool is a subclass of int, but seed=True is a mistake.
        number = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
        return number and _is_in_range(value, info.low, info.high, info.closed)
    if kind is dict:
        return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    if kind is Path:
        return isinstance(value, str | Path)
    if kind == _IntegerTuple:
        return isinstance(value, tuple) and len(value) > 0 and all(_is_accepted(info, int, entry) for entry in value)
    return isinstance(value, kind)


def _is_in_range(value: float, low: float, high: float, closed: str) -> bool:
    """Return whether low <= value <= high, without the ends that ``closed`` leaves out; False for NaN."""
    # Every comparison with NaN is False, so these must not be turned into "not (value < low)".
    above = low < value or (closed[0] == "[" and value == low)
    return above and (value < high or (closed[1] == "]" and value == high))


def _describe_accepted(info: SettingInfo) -> str:
    texts = {
        bool: "True or False",
        int: f"a whole number in {_format_integer_range(info.low, info.high)}",
        float: f"a number in {info.closed[0]}{info.low:g}, {info.high:g}{info.closed[1]}",
        str: info.text_form or ("one of " if len(info.choices) > 1 else "") + ", ".join(info.choices) or "text",
        dict: "a dictionary of named values",
        Path: "a path",
        _IntegerTuple: f"a tuple of one or more whole numbers in {_format_integer_range(info.low, info.high)}",
    }
    # None means "not given", which is no advice for someone who gave a value.
    return " or ".join(texts[kind] for kind in info.kinds if kind is not NoneType)


def _format_integer_range(low: float, high: float) -> str:
    """Return a range of whole numbers for a message: ``0..12``, ``0..2**128 - 1``."""
    end = str(high)
    if isinstance(high, int) and high > 2**53:
        bits = (high - 1).bit_length()
        end = f"2**{bits}" + (" - 1" if high == 2**bits - 1 else "")
    return f"{low}..{end}"


def document_settings(*classes: type[Any]) -> Callable[[_Function], _Function]:
    """Append the help of the settings that a function takes as parameters to its docstring."""
    declared = {name: info for cls in classes for name, info in declared_settings(cls).items()}

    def add_parameters(function: _Function) -> _Function:
        lines = ["", "    Other Parameters", "    ----------------"]
        for name in inspect.signature(function).parameters:
            if name in declared:
                info = declared[name]
                default = f"Default: {info.default_text}." if info.default_text else ""
                text = " ".join(part for part in (info.help, info.details, default) if part)
                lines += textwrap.wrap(f"{name}: {text}", 115, initial_indent="    ", subsequent_indent="        ")
        function.__doc__ = "\n".join([(function.__doc__ or "").rstrip(), *lines, "    "])
        return function

    return add_parameters


def check_integer(name: str, value: int, low: int, high: int) -> None:
    """Refuse everything but a whole number in low..high."""
    check_value(SettingInfo(name, (int,), low=low, high=high), value)


def check_number(name: str, value: float, low: float, high: float, *, closed: str = "[]") -> None:
    """Refuse everything but a number between low and high; ``closed`` is "[]", "(]", "[)" or "()"."""
    check_value(SettingInfo(name, (float,), low=low, high=high, closed=closed), value)


def to_python_scalar(value: Any) -> Any:
    """Convert a NumPy scalar to a Python number, which JSON can hold; return other values unchanged."""
    return value.item() if isinstance(value, np.generic) else value


def format_given_value(value: Any) -> str:
    """Return a value for a message; Python refuses to print whole numbers of more than 4,300 digits."""
    too_long = isinstance(value, int) and value.bit_length() > 128
    return f"a whole number of {value.bit_length()} bits" if too_long else repr(value)


def check_total_size(names: str, *sizes: int) -> None:
    """Refuse sizes of a model whose product does not fit into memory."""
    # 160 MB of float64. Larger sizes are typing errors, which would fill the memory before anything is printed.
    size, limit = math.prod(sizes), 20_000_000
    if size > limit:
        raise InputError(f"their product must be at most {limit:,}, got {size:,}", names)


def check_folder_path(name: str, value: Any) -> Path:
    """Return the absolute path of a run folder."""
    # An empty text is usually a shell variable without a value; as a path it would be the current directory.
    if not isinstance(value, str | os.PathLike) or value == "":
        raise InputError(f"must be the path of a run's folder, got {value!r}", name)
    try:
        # Absolute, because an environment may change the current directory while the run writes.
        path = Path(value).absolute()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.stat()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{str(value)[:100]!r} cannot be the path of a run's folder ({reason})", name) from None
    return path


def suggest_name(name: object, known: Iterable[str], otherwise: str) -> str:
    """Return the end of a message about an unknown name: the most similar known name, or ``otherwise``."""
    close = difflib.get_close_matches(str(name).lower(), known, n=1)
    return f". Did you mean {close[0]!r}?" if close else f"; {otherwise}"


def resolve_number(name: Any, names: Sequence[str], size: int, what: str) -> int:
    """Return the number of a state or goal that is given by its number, below ``size``, or by its name."""
    if not isinstance(name, str):
        try:
            number = index(name)
        except TypeError:
            raise InputError(f"{what} {name!r} is neither a number nor a name") from None
        if not 0 <= number < size:
            raise InputError(f"{what} {number} is not in 0..{size - 1}")
        return number
    matches = [number for number, candidate in enumerate(names) if candidate == name]
    if len(matches) == 1:
        return matches[0]
    # Labels of an environment need not be unique. The first match would silently be the wrong state.
    if matches:
        raise InputError(f"{len(matches)} {what}s are called {name!r}, the first are {matches[:3]}; give a number")
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
    hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
    raise InputError(f"no {what} is called {name!r}{hint}")


def parse_key_value(text: str) -> tuple[str, Any]:
    """Split ``key=value``; the value is JSON (0.1, true, [1, 2]) or else plain text (8x8)."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise InputError(f"must look like key=value, got {text[:100]!r}")
    try:
        return key, parse_json(value.encode())
    except ValueError:
        # Users who write Python type its constants. As text, "False" would be true.
        return key, {"True": True, "False": False, "None": None}.get(value, value)


def refuse_unknown_arguments(function: Callable[Parameters, ReturnT]) -> Callable[Parameters, ReturnT]:
    """Make a function refuse an unknown keyword argument with an :class:`InputError` instead of a TypeError."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> ReturnT:
        for name in kwargs:
            if name not in known:
                raise unknown_argument_error(function.__name__, name, known)
        return function(*args, **kwargs)

    return call


def unknown_argument_error(function: str, name: str, known: Iterable[str]) -> InputError:
    """Return the error about an argument that a function does not have."""
    hint = suggest_name(name, known, f"help(adagoal.{function}) lists its arguments")
    return InputError(f"{function} has no argument {name!r}{hint}")
