"""Observations as dictionary keys: what makes two situations the same state.

Integers stay integers, arrays become bytes, tuples and dictionaries become tuples of the keys of their parts.
MiniGrid shows the agent a small window of its grid, which does not determine what happens next; its state is
therefore read from the environment itself: all objects with their colours and states and what boxes hide, the
agent's place and direction, what it carries, and the mission.
"""

from __future__ import annotations

import functools
import hashlib
import json
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from adagoal.core.errors import InputError
from adagoal.core.types import DIGEST_BYTES
from adagoal.core.user_code import USER_CODE_SECTION

StateKey = int | str | bytes | tuple["StateKey", ...]
MINIGRID_DIRECTIONS = ("right", "down", "left", "up")


def has_float_observations(space: spaces.Space[Any]) -> bool:
    """Whether observations of the space have real numbers in them."""
    if isinstance(space, spaces.Tuple | spaces.Dict):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return any(has_float_observations(part) for part in parts)
    return isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)


def describe_space(space: spaces.Space[Any]) -> dict[str, Any]:
    """How observations of a space become keys, as JSON: what :func:`make_key_reader` reads."""
    if isinstance(space, spaces.Discrete):
        return {"kind": "whole"}
    if isinstance(space, spaces.Text):
        return {"kind": "text"}
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return {"kind": "array", "dtype": np.dtype(space.dtype).str, "shape": list(space.shape)}
    if isinstance(space, spaces.Tuple):
        return {"kind": "tuple", "parts": [describe_space(part) for part in space.spaces]}
    if isinstance(space, spaces.Dict):
        return {
            "kind": "dict",
            "names": list(space.spaces),
            "parts": [describe_space(p) for p in space.spaces.values()],
        }
    raise InputError(f"observations of type {type(space).__name__} cannot be told apart exactly", "env")


def make_key_reader(space: Mapping[str, Any]) -> Callable[[Any], StateKey]:
    """A function from observations to keys; equal keys exactly for equal observations. Nonsense is a ``ValueError``."""
    kind = space["kind"]
    if kind == "whole":
        return _integer_key
    if kind == "text":
        return str
    if kind == "array":
        return functools.partial(_array_key, np.dtype(space["dtype"]), tuple(space["shape"]))
    if kind == "minigrid":
        return lambda env: minigrid_state_key(getattr(env, "unwrapped", env))
    if kind not in ("tuple", "dict"):
        raise ValueError(f"{str(kind)[:40]!r} is no kind of observation")
    parts = [make_key_reader(part) for part in space["parts"]]
    if kind == "tuple":
        return lambda observation: tuple(part(value) for part, value in zip(parts, observation, strict=True))
    names = space["names"]
    return lambda observation: tuple(part(observation[name]) for name, part in zip(names, parts, strict=True))


def hash_state_key(key: StateKey) -> bytes:
    """The bytes by which a key is known."""
    return hashlib.blake2b(json.dumps(key_to_json(key)).encode(), digest_size=DIGEST_BYTES).digest()


def _integer_key(observation: Any) -> int:
    try:
        return operator.index(observation)
    except TypeError:
        raise InputError(f"gave the observation {observation!r}, which is not an integer", "env") from None


def _array_key(dtype: np.dtype[Any], shape: tuple[int, ...], observation: Any) -> bytes:
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


def key_to_json(key: StateKey) -> Any:
    """A key as JSON: bytes in hexadecimal digits, tuples as lists."""
    if isinstance(key, bytes):
        return {"hex": key.hex()}
    return [key_to_json(part) for part in key] if isinstance(key, tuple) else key


def key_from_json(data: Any) -> StateKey:
    """The inverse of :func:`key_to_json`; a ``ValueError`` for anything else."""
    if isinstance(data, dict) and list(data) == ["hex"] and isinstance(data["hex"], str):
        return bytes.fromhex(data["hex"])
    if isinstance(data, list):
        return tuple(key_from_json(part) for part in data)
    if isinstance(data, bool) or not isinstance(data, int | str):
        raise ValueError(f"{str(data)[:40]!r} is not the key of a state")
    return data


def is_minigrid_env(base: Any) -> bool:
    """Whether an unwrapped environment is one of MiniGrid's."""
    return all(hasattr(base, name) for name in ("grid", "agent_pos", "agent_dir", "carrying", "max_steps"))


def minigrid_state_key(base: Any) -> bytes:
    """The full state of a MiniGrid environment."""
    x, y = base.agent_pos
    things = [base.carrying, *base.grid.grid]
    cells = [
        b"\1" if thing is None else b"\2" if thing.type == "wall" else _minigrid_object_key(thing) for thing in things
    ]
    return bytes((x, y, base.agent_dir)) + b"".join(cells) + str(base.mission).encode()


def _minigrid_object_key(thing: Any) -> bytes:
    """An object that can change, with what is inside it."""
    inside = b"" if thing.contains is None else b"\xff" + bytes(thing.contains.encode())
    return bytes(thing.encode()) + inside


class MiniGridViewDisabled:
    """Within it, a MiniGrid environment does not draw the window that it shows: most of the time of a step.

    Its state is read from the environment itself, so that nobody looks. See :func:`can_disable_view`. It is code of the
    user's otherwise.
    """

    def __init__(self, base: Any) -> None:
        self._minigrid_env = base

    def __enter__(self) -> None:
        USER_CODE_SECTION.__enter__()
        self._minigrid_env.gen_obs = dict

    def __exit__(self, *_: object) -> None:
        del self._minigrid_env.gen_obs
        USER_CODE_SECTION.__exit__()


def can_disable_view(env: Any) -> bool:
    """Whether an environment is one of MiniGrid's own, as it is: another class or a wrapper may look at the window."""
    drawing = getattr(type(env), "gen_obs", None)
    return (
        type(env).__module__.startswith("minigrid.envs.")
        and getattr(drawing, "__module__", "") == "minigrid.minigrid_env"
        and "gen_obs" not in vars(env)
    )


def minigrid_state_label(base: Any) -> str:
    """A MiniGrid state for people: where the agent stands, where it looks, and what it carries."""
    x, y = base.agent_pos
    load = "" if base.carrying is None else f" with {base.carrying.color} {base.carrying.type}"
    return f"({y}, {x}) {MINIGRID_DIRECTIONS[base.agent_dir]}{load}"


def minigrid_full_state(base: Any) -> dict[str, Any]:
    """The full state of a MiniGrid environment for goal functions, with cells as (row, column).

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
