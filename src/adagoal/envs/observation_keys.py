"""Turn observations into dictionary keys that identify states, and back; labels, JSON, and keys of MiniGrid states.

Integers stay integers, arrays become bytes, tuples and dictionaries become tuples of the keys of their parts. MiniGrid
shows the agent a small part of its grid, which does not determine the dynamics. So its key is read from the environment
itself: all objects with colour, state and content, position and direction of the agent, what it carries, the mission.
"""

from __future__ import annotations

import collections
import copyreg
import enum
import functools
import hashlib
import inspect
import json
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from adagoal.core.array_types import DIGEST_BYTES
from adagoal.core.errors import Failure, InputError, to_single_line
from adagoal.core.user_code import USER_CODE_SECTION

StateKey = int | str | bytes | tuple["StateKey", ...]
MINIGRID_DIRECTIONS = ("right", "down", "left", "up")  # MiniGrid's numbers 0 to 3


def has_float_observations(space: spaces.Space[Any]) -> bool:
    """Return whether observations of the space contain real numbers."""
    if isinstance(space, spaces.Tuple | spaces.Dict):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return any(has_float_observations(part) for part in parts)
    return isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)


def describe_space(space: spaces.Space[Any]) -> dict[str, Any]:
    """Describe as JSON how observations of a space become keys; :func:`make_key_reader` reads it."""
    if isinstance(space, spaces.Discrete):
        return {"kind": "whole"}
    if isinstance(space, KeySpace):
        return {"kind": "key"}
    if isinstance(space, spaces.Text):
        return {"kind": "text"}
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return {"kind": "array", "dtype": np.dtype(space.dtype).str, "shape": list(space.shape)}
    if isinstance(space, spaces.Tuple):
        return {"kind": "tuple", "parts": [describe_space(part) for part in space.spaces]}
    if isinstance(space, spaces.Dict):
        parts = [describe_space(part) for part in space.spaces.values()]
        return {"kind": "dict", "names": list(space.spaces), "parts": parts}
    kinds = "Discrete, Text, Box, MultiDiscrete, MultiBinary, Tuple or Dict"
    raise InputError(f"observations of type {type(space).__name__} cannot be compared exactly; use {kinds}", "env")


def make_key_reader(space: Mapping[str, Any]) -> Callable[[Any], StateKey]:
    """Return a function from observations to keys, for MiniGrid from the environment; raise ``ValueError`` for an
    unknown kind."""
    kind = space["kind"]
    if kind == "whole":
        return _integer_key
    if kind == "text":
        return str
    if kind == "key":
        return key_text
    if kind == "array":
        return functools.partial(_array_key, np.dtype(space["dtype"]), tuple(space["shape"]))
    if kind == "minigrid":
        return lambda env: minigrid_state_key(getattr(env, "unwrapped", env))
    if kind not in ("tuple", "dict"):
        raise ValueError(f"unknown kind of observation {str(kind)[:40]!r}")
    parts = [make_key_reader(part) for part in space["parts"]]
    if kind == "tuple":
        return lambda observation: tuple(part(value) for part, value in zip(parts, observation, strict=True))
    names = space["names"]
    return lambda observation: tuple(part(observation[name]) for name, part in zip(names, parts, strict=True))


def make_observation_decoder(space: Mapping[str, Any]) -> Callable[[StateKey], Any] | None:
    """Return the inverse of :func:`make_key_reader`; None if a key does not determine the observation.

    The inverse raises ``ValueError`` for a key of another form.
    """
    kind = space["kind"]
    if kind in ("whole", "text"):
        return functools.partial(_checked_key, int if kind == "whole" else str)
    if kind == "array":
        return functools.partial(_key_to_array, np.dtype(space["dtype"]), tuple(space["shape"]))
    parts = [make_observation_decoder(part) for part in space.get("parts", ())]
    if kind not in ("tuple", "dict") or None in parts:
        return None

    def decode(key: StateKey) -> Any:
        values = tuple(part(k) for part, k in zip(parts, _checked_key(tuple, key), strict=True) if part is not None)
        return values if kind == "tuple" else dict(zip(space["names"], values, strict=True))

    return decode


def _checked_key(kind: type, key: StateKey) -> Any:
    if not isinstance(key, kind):
        raise ValueError(f"the key of a state is {type(key).__name__}, expected {kind.__name__}")
    return key


def _key_to_array(dtype: np.dtype[Any], shape: tuple[int, ...], key: StateKey) -> NDArray[Any]:
    return np.frombuffer(_checked_key(bytes, key), dtype).reshape(shape)


class KeySpace(spaces.Space[Any]):
    """Observations of state machines: any value that :func:`key_text` can write."""

    def contains(self, x: Any) -> bool:
        """Return whether the value can be a key."""
        try:
            return bool(key_text(x))
        except InputError:
            return False

    def __repr__(self) -> str:
        return "KeySpace()"


def key_text(value: Any, place: str = "", inside: tuple[int, ...] = ()) -> str:
    """Return a value as text that is equal only for equal values: containers and attributes part by part.

    It may tell apart what Python calls equal, such as 1 and True, or dictionaries in another order: more states than
    needed never make a certificate wrong. ``place`` names the value in messages, ``inside`` are the ids of the objects
    around it.
    """
    kind = type(value)
    if isinstance(value, Failure):
        return str(value)
    if isinstance(value, enum.Enum):
        return f"{kind.__name__}.{value.name}"
    if value is None or kind in (bool, int, float, complex, str, bytes, range):
        return repr(value)
    if kind.__module__ in ("datetime", "decimal", "pathlib", "uuid"):
        return repr(value)
    # A class, or a function that keeps nothing from call to call. Several lambdas would have one name.
    if isinstance(value, type) or (inspect.isroutine(value) and value.__qualname__.isidentifier()):
        return f"{value.__module__}.{value.__qualname__}"
    where = place.lstrip(".") or "the value"
    if id(value) in inside:
        raise InputError(f"{where} refers to itself; give a function state= that returns a simpler key", "state")

    def part(item: Any, name: str) -> str:
        return key_text(item, place + name, (*inside, id(value)))

    if isinstance(value, np.ndarray | np.generic):
        # The list of an empty array lacks its shape.
        return f"{value.dtype}{'' if value.size else value.shape}{part(value.tolist(), '')}"
    if isinstance(value, dict):
        # With their order, which programs such as caches depend on.
        shown = "{" + ", ".join(f"{part(k, '')}: {part(v, f'[{k!r}]')}" for k, v in value.items()) + "}"
    elif isinstance(value, tuple | list | collections.deque | set | frozenset):
        parts = [part(item, f"[{i}]") for i, item in enumerate(value)]
        items = ", ".join(sorted(parts) if isinstance(value, set | frozenset) else parts)
        shown = f"[{items}]" if isinstance(value, list) else f"({items},)" if len(parts) == 1 else f"({items})"
    elif isinstance(value, int | float | complex | str | bytes):
        # Not the repr, int() or str() of the class, which may hide differences.
        shown = next(base for base in (int, float, complex, str, bytes) if isinstance(value, base)).__repr__(value)
    elif _has_hidden_state(kind):
        # A lock, a file or a random generator.
        text = f"{where} has the type {kind.__name__}, which cannot be compared; give a function state= that returns"
        raise InputError(f"{text} a key", "state")
    else:
        shown = ""
    if kind in (dict, tuple, list):
        return shown
    names = [name for name in (*copyreg._slotnames(kind), *getattr(value, "__dict__", ())) if hasattr(value, name)]  # type: ignore[attr-defined]
    if isinstance(value, collections.deque) and value.maxlen is not None:
        names.append("maxlen")
    attributes = [f"{name}={part(getattr(value, name), f'.{name}')}" for name in names]
    return f"{kind.__name__}({', '.join([shown] * bool(shown) + attributes)})"


def _has_hidden_state(kind: type) -> bool:
    """Return whether objects of a class keep more than their attributes, in memory that Python does not show."""
    try:
        # Python refuses this if the class extends one written in C.
        object.__new__(kind)
    except TypeError:
        return True
    return kind is object


def hash_state_key(key: StateKey) -> bytes:
    """Return a digest of a key, of fixed length."""
    return hashlib.blake2b(json.dumps(key_to_json(key)).encode(), digest_size=DIGEST_BYTES).digest()


def digest_states(state_numbers: Mapping[StateKey, int], n_states: int) -> NDArray[np.uint8]:
    """[n_states, DIGEST_BYTES] digests of the keys of all states; zero for a virtual start, which has no key."""
    digests = np.zeros((n_states, DIGEST_BYTES), np.uint8)
    for key, state in state_numbers.items():
        digests[state] = np.frombuffer(hash_state_key(key), np.uint8)
    return digests


def _integer_key(observation: Any) -> int:
    try:
        return operator.index(observation)
    except TypeError:
        raise InputError(f"observations must be integers, got {observation!r}", "env") from None


def _array_key(dtype: np.dtype[Any], shape: tuple[int, ...], observation: Any) -> bytes:
    observed = np.asarray(observation)
    array = observed if observed.dtype == dtype else observed.astype(dtype)
    if array.shape != shape:
        raise InputError(f"observations must have the shape {shape} of their space, got {array.shape}", "env")
    if dtype.kind == "f":
        # NaN has many bit patterns and equals none of them, so it cannot be part of a key.
        if np.isnan(array).any():
            raise InputError(f"observations must not contain NaN, got {str(observation)[:60]}", "env")
        # Turns -0 into +0: they are equal, but their bytes differ.
        array = array + dtype.type(0)
    elif array is not observed and not np.array_equal(array, observed):
        raise InputError(f"observations must be {dtype}, as their space says, got {str(observation)[:60]}", "env")
    key: bytes = array.tobytes()
    return key


def key_to_json(key: StateKey) -> Any:
    """Convert a key to JSON: bytes to hexadecimal digits, tuples to lists."""
    if isinstance(key, bytes):
        return {"hex": key.hex()}
    return [key_to_json(part) for part in key] if isinstance(key, tuple) else key


def key_from_json(data: Any) -> StateKey:
    """Invert :func:`key_to_json`; raise ``ValueError`` if the data are not a key."""
    if isinstance(data, dict) and list(data) == ["hex"] and isinstance(data["hex"], str):
        return bytes.fromhex(data["hex"])
    if isinstance(data, list):
        return tuple(key_from_json(part) for part in data)
    # A boolean is an int in Python, and True would be the same dictionary key as 1.
    if isinstance(data, bool) or not isinstance(data, int | str):
        raise ValueError(f"{str(data)[:40]!r} is not the key of a state")
    return data


def label_observation(observation: Any, first: Any) -> str:
    """Return an observation in a few words; a long one by the entries in which it differs from the ``first``."""
    line = to_single_line(observation)
    # The end of a cut line is lost, and with it often what tells two states apart.
    if not line.endswith("\N{HORIZONTAL ELLIPSIS}") or not isinstance(observation, Mapping | tuple | np.ndarray | str):
        return line
    return to_single_line(", ".join(_differing_entries("", observation, first))) or line


def _differing_entries(name: str, value: Any, first: Any) -> Iterator[str]:
    if isinstance(value, Mapping) and isinstance(first, Mapping):
        for key in value:
            yield from _differing_entries(f"{name}.{key}" if name else str(key), value[key], first.get(key))
    elif isinstance(value, tuple) and isinstance(first, tuple) and len(value) == len(first):
        for i, parts in enumerate(zip(value, first, strict=True)):
            yield from _differing_entries(f"{name}[{i}]", *parts)
    elif isinstance(value, np.ndarray) and isinstance(first, np.ndarray) and value.shape == first.shape and value.ndim:
        # A label has room for a few.
        for place in np.argwhere(value != first)[:8].tolist():
            yield f"{name}[{','.join(map(str, place))}]={value[tuple(place)]}"
    elif isinstance(value, str) and isinstance(first, str):
        differs = next((i for i, (a, b) in enumerate(zip(value, first, strict=False)) if a != b), None)
        # From the word that differs; a text that goes on where the first one ends is shown whole.
        text = value if differs is None else value[value.rfind(" ", 0, differs) + 1 :]
        if value != first:
            yield f"{name}={text}" if name else text
    elif not np.array_equal(value, first):
        yield f"{name}={value}"


def is_minigrid_env(base: Any) -> bool:
    """Return whether an unwrapped environment is one of MiniGrid's."""
    return all(hasattr(base, name) for name in ("grid", "agent_pos", "agent_dir", "carrying", "max_steps"))


class MiniGridKeyReader:
    """Reads the key of the full state of a MiniGrid environment.

    Most steps move nothing but the agent. So the keys of empty cells and walls are joined once, and again when an
    object enters or leaves a cell. Other objects, for instance doors, may change in place and are encoded every time.
    """

    def __init__(self, base: Any) -> None:
        self._minigrid_env = base
        self._cells: list[Any] = []  # at the last call
        self._kinds: list[Any] = []  # of these cells
        self._parts: list[bytes] = []  # keys of the cells; those of neighbouring empty cells and walls are joined
        self._object_places: list[tuple[int, int]] = []  # (part, cell) of every other object

    def __call__(self) -> bytes:
        """Return the key of the current state."""
        base = self._minigrid_env
        cells, (x, y) = base.grid.grid, base.agent_pos
        # Lists compare their entries by identity first, so an unchanged grid takes a few microseconds.
        if cells != self._cells:
            # A reset makes new walls, most often in the same places.
            self._cells, kinds = list(cells), [thing and thing.type for thing in cells]
            if kinds != self._kinds:
                self._kinds = kinds
                self._join_constant_cells(cells)
        for part, cell in self._object_places:
            self._parts[part] = _minigrid_object_key(cells[cell])
        head = bytes((x, y, base.agent_dir)) + _minigrid_object_key(base.carrying)
        return head + b"".join(self._parts) + str(base.mission).encode()

    def _join_constant_cells(self, cells: list[Any]) -> None:
        self._parts, self._object_places = [], []
        constant: list[bytes] = []
        for cell, thing in enumerate(cells):
            if thing is None or thing.type == "wall":
                constant.append(_minigrid_object_key(thing))
                continue
            self._parts += b"".join(constant), b""
            self._object_places.append((len(self._parts) - 1, cell))
            constant.clear()
        self._parts.append(b"".join(constant))


def minigrid_state_key(base: Any) -> bytes:
    """Return the key of the full state of a MiniGrid environment."""
    return MiniGridKeyReader(base)()


def _minigrid_object_key(thing: Any) -> bytes:
    if thing is None:
        return b"\1"
    if thing.type == "wall":
        return b"\2"
    content = b"" if thing.contains is None else b"\xff" + bytes(thing.contains.encode())
    return bytes(thing.encode()) + content


class MiniGridViewDisabled:
    """Context in which a MiniGrid environment does not compute the agent's view, which takes most of a step.

    The state is read from the environment itself, so the view is not needed. See :func:`can_disable_view`.
    """

    def __init__(self, base: Any) -> None:
        self._minigrid_env = base

    # Methods, not a generator with @contextmanager, because every step enters this block.
    def __enter__(self) -> None:
        USER_CODE_SECTION.__enter__()
        self._minigrid_env.gen_obs = dict

    def __exit__(self, *_: object) -> None:
        del self._minigrid_env.gen_obs
        USER_CODE_SECTION.__exit__()


def can_disable_view(env: Any) -> bool:
    """Return whether an environment is an unwrapped one of MiniGrid's own."""
    # A wrapper or a subclass may use the view.
    method = getattr(type(env), "gen_obs", None)
    return (
        type(env).__module__.startswith("minigrid.envs.")
        and getattr(method, "__module__", "") == "minigrid.minigrid_env"
        and "gen_obs" not in vars(env)
    )


def minigrid_state_label(base: Any) -> str:
    """Return position and direction of the agent, and what it carries, as a label."""
    x, y = base.agent_pos
    carrying = "" if base.carrying is None else f" with {base.carrying.color} {base.carrying.type}"
    return f"({y}, {x}) {MINIGRID_DIRECTIONS[base.agent_dir]}{carrying}"


def minigrid_full_state(base: Any) -> dict[str, Any]:
    """Return the full state of a MiniGrid environment for goal functions, with cells as (row, column).

    ``grid`` [rows, columns, 3] has MiniGrid's numbers for the object in a cell, its colour and its state.
    """
    x, y = base.agent_pos
    return {
        "cell": (int(y), int(x)),
        "direction": MINIGRID_DIRECTIONS[base.agent_dir],
        "carrying": None if base.carrying is None else f"{base.carrying.color} {base.carrying.type}",
        "grid": base.grid.encode().transpose(1, 0, 2),
        "mission": str(base.mission),
    }
