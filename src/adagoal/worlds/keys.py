"""Observations as dictionary keys: what makes two situations the same state.

Integers stay integers, arrays become bytes, tuples and dictionaries become tuples of the keys of their parts.
MiniGrid shows the agent a small window of its grid, which does not determine what happens next; its state is
therefore read from the environment itself: all objects with their colours and states and what boxes hide, the
agent's place and direction, what it carries, and the mission.
"""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from adagoal.core.errors import InputError

Key = int | str | bytes | tuple["Key", ...]
LONGEST = 2**16
"""Characters of a key in a folder of format 1, at most."""
DIRECTIONS = ("right", "down", "left", "up")


def continuous(space: spaces.Space[Any]) -> bool:
    """Whether observations of the space have real numbers in them."""
    if isinstance(space, spaces.Tuple | spaces.Dict):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return any(continuous(part) for part in parts)
    return isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)


def observation_key(space: spaces.Space[Any]) -> Callable[[Any], Key]:
    """A function from observations of the space to keys; equal keys exactly for equal observations."""
    if isinstance(space, spaces.Discrete):
        return _whole
    if isinstance(space, spaces.Text):
        return str
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return functools.partial(_bytes, np.dtype(space.dtype), space.shape)
    if isinstance(space, spaces.Tuple):
        parts = [observation_key(part) for part in space.spaces]
        return lambda observation: tuple(part(value) for part, value in zip(parts, observation, strict=True))
    if isinstance(space, spaces.Dict):
        named = [(name, observation_key(part)) for name, part in space.spaces.items()]
        return lambda observation: tuple(part(observation[name]) for name, part in named)
    raise InputError(f"observations of type {type(space).__name__} cannot be told apart exactly", "env")


def _whole(observation: Any) -> int:
    try:
        return operator.index(observation)
    except TypeError:
        raise InputError(f"gave the observation {observation!r}, which is not an integer", "env") from None


def _bytes(dtype: np.dtype[Any], shape: tuple[int, ...], observation: Any) -> bytes:
    """Values of the space's type, without NaN, and one zero only: +0."""
    given = np.asarray(observation)
    array = given if given.dtype == dtype else given.astype(dtype)
    if array.shape != shape:
        raise InputError(f"gave an observation of shape {array.shape} in a space of shape {shape}", "env")
    if dtype.kind == "f":
        if np.isnan(array).any():
            raise InputError(f"gave the observation {str(observation)[:60]}, which is not a number", "env")
        array = array + dtype.type(0)
    elif array is not given and not np.array_equal(array, given):
        raise InputError(f"gave the observation {str(observation)[:60]}, which is no {dtype} as its space says", "env")
    key: bytes = array.tobytes()
    return key


def to_json(key: Key) -> Any:
    """A key as JSON: bytes in hexadecimal digits, tuples as lists."""
    if isinstance(key, bytes):
        return {"hex": key.hex()}
    return [to_json(part) for part in key] if isinstance(key, tuple) else key


def from_json(data: Any) -> Key:
    """The inverse of :func:`to_json`; a ``ValueError`` for anything else."""
    if isinstance(data, dict) and list(data) == ["hex"] and isinstance(data["hex"], str):
        return bytes.fromhex(data["hex"])
    if isinstance(data, list):
        return tuple(from_json(part) for part in data)
    if isinstance(data, bool) or not isinstance(data, int | str):
        raise ValueError(f"{str(data)[:40]!r} is not the key of a state")
    return data


def from_repr(text: Any) -> Key:
    """A key as folders of format 1 hold it: Python's own notation, read as data and up to :data:`LONGEST`."""
    if not isinstance(text, str) or len(text) > LONGEST:
        raise ValueError("the key of a state is not a text, or too long")
    try:
        return _checked(ast.literal_eval(text))
    except (SyntaxError, ValueError, MemoryError, RecursionError, TypeError):
        raise ValueError(f"{text[:40]!r} is not the key of a state") from None


def _checked(key: Any) -> Key:
    if isinstance(key, tuple):
        return tuple(_checked(part) for part in key)
    if isinstance(key, bool) or not isinstance(key, int | str | bytes):
        raise ValueError(f"{str(key)[:40]!r} is not the key of a state")
    return key


def is_minigrid(base: Any) -> bool:
    """Whether an unwrapped environment is one of MiniGrid's."""
    return all(hasattr(base, name) for name in ("grid", "agent_pos", "agent_dir", "carrying", "max_steps"))


def minigrid_key(base: Any) -> bytes:
    """The full state of a MiniGrid environment."""
    x, y = base.agent_pos
    key = bytearray((x, y, base.agent_dir))
    for thing in (base.carrying, *base.grid.grid):
        if thing is None:
            key.append(1)
        elif thing.type == "wall":
            key.append(2)
        else:
            key += bytes(thing.encode())
            if thing.contains is not None:
                key.append(255)
                key += bytes(thing.contains.encode())
    return bytes(key) + str(base.mission).encode()


def minigrid_label(base: Any) -> str:
    """A MiniGrid state for people: where the agent stands, where it looks, and what it carries."""
    x, y = base.agent_pos
    load = "" if base.carrying is None else f" with {base.carrying.color} {base.carrying.type}"
    return f"({y}, {x}) {DIRECTIONS[base.agent_dir]}{load}"
