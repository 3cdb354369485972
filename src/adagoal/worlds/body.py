"""The code of an environment, and the only place where it is called: spaces, resets, steps, observations as keys.

Whatever that code raises, returns in a wrong form, or shows outside of what it declared becomes an
:class:`~adagoal.core.errors.InputError` of one line. :class:`Local` calls it in this process;
:class:`adagoal.worlds.process.Remote` has a ``Local`` in another one.
"""

from __future__ import annotations

import contextlib
import copy
import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol, cast

import gymnasium
import numpy as np
from gymnasium import spaces, wrappers

from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.core.generator import same
from adagoal.core.text import plain, told
from adagoal.worlds.keys import (
    Key,
    Unseen,
    continuous,
    describe,
    draws_for_nobody,
    is_minigrid,
    minigrid_key,
    minigrid_label,
    minigrid_view,
    reader,
)

MAX_STATES = 10_000
"""Default bound on the number of states of an environment that does not declare it."""
MOST_ACTIONS = 32_766
"""Policies are tables of 16-bit numbers, and the reset is one more action."""
MASK = "action_mask"
CHECKS = (wrappers.TimeLimit, wrappers.OrderEnforcing, wrappers.PassiveEnvChecker)
"""Wrappers that do not change what an environment does, apart from its time limit."""


Mask = bytes | None
"""Which actions a state has: a byte 0 or 1 for each; None where it has all of them."""


class Facts(NamedTuple):
    """What an environment declares."""

    n_actions: int
    states: range | None
    """The observations that there are, where they are declared as few whole numbers."""
    space: dict[str, Any]
    """How observations become keys (:func:`adagoal.worlds.keys.reader`)"""


class Body(Protocol):
    """An environment, wherever its code runs."""

    facts: Facts

    def reset(self, seed: int | None = None, keep: bool = False) -> tuple[Key, Mask, dict[str, Any]]:
        """Reset: the key and the mask of the first state, and the generator as it was before.

        ``keep`` puts that back afterwards.
        """
        ...

    def step(self, action: int) -> tuple[Key, Mask, bool, bool]:
        """Take an action 0, 1, ...: the key and the mask of the state after it, terminated, truncated."""
        ...

    def label(self) -> str:
        """The last observation in a few words."""
        ...

    def observation(self) -> Any:
        """The last observation as goals see it; of MiniGrid the whole state (:func:`.keys.minigrid_view`)."""
        ...

    def generator(self) -> dict[str, Any]:
        """The state of the environment's random generator; empty where it does not use Gymnasium's."""
        ...

    def put_back(self, generator: dict[str, Any]) -> None:
        """The inverse of :meth:`generator`."""
        ...

    def reseeded(self) -> tuple[tuple[str, ...], set[Key]]:
        """Reset twice: the random generators that every reset puts into the same state, and the keys of the starts."""
        ...


class Local:
    """An environment in this process."""

    def __init__(self, env: gymnasium.Env[Any, Any], name: str, max_states: int | None = None) -> None:
        actions: Any = getattr(env, "action_space", None)
        space: Any = getattr(env, "observation_space", None)
        if not isinstance(actions, spaces.Discrete):
            kind = type(actions).__name__
            raise InputError(f"{name} has actions of type {kind}; they must be Discrete, or try adagoal train", "env")
        if actions.n > MOST_ACTIONS:
            raise InputError(f"{name} has {actions.n} actions; at most {MOST_ACTIONS} are possible", "env")
        if continuous(space) and max_states is None:
            raise InputError(
                f"{name} has continuous observations; if they take few values, say how many with max_states, "
                "else make them discrete with a wrapper, or try adagoal train",
                "env",
            )
        self._name, self._first, self.env = name, int(actions.start), without_limits(env)
        self._base: Any = env.unwrapped
        self._minigrid = is_minigrid(self._base)
        how = {"kind": "minigrid"} if self._minigrid else describe(space)
        self._read = (lambda observation: minigrid_key(self._base)) if self._minigrid else reader(how)
        self._observation: Any = None
        unseen = self._minigrid and draws_for_nobody(self.env)
        self._calling: contextlib.AbstractContextManager[None] = (
            Unseen(self._base) if unseen else contextlib.nullcontext()
        )
        few = isinstance(space, spaces.Discrete) and space.n <= MAX_STATES and not self._minigrid
        self.facts = Facts(int(actions.n), range(int(space.start), int(space.start + space.n)) if few else None, how)

    def reset(self, seed: int | None = None, keep: bool = False) -> tuple[Key, Mask, dict[str, Any]]:
        """See :class:`Body`."""
        before = self.generator()
        with self._blamed("cannot be reset"), self._calling:
            given = self.env.reset() if seed is None else self.env.reset(seed=seed)
        if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping)):
            raise self._malformed("reset", "(observation, info)", given)
        if keep:
            self.put_back(before)
        return self._key(given[0]), self._mask(given[1]), before

    def step(self, action: int) -> tuple[Key, Mask, bool, bool]:
        """See :class:`Body`."""
        try:
            with self._calling:
                given = self.env.step(action + self._first)
            if not (isinstance(given, tuple) and len(given) == 5):
                raise self._malformed("step", "(observation, reward, terminated, truncated, info)", given)
            return self._key(given[0]), self._mask(given[4]), bool(given[2]), bool(given[3])
        except (KeyboardInterrupt, InputError):
            raise
        except BaseException as error:
            raise EnvironmentFailure(f"the environment {self._name} raised {told(error)}") from error

    def label(self) -> str:
        """See :class:`Body`."""
        return plain(minigrid_label(self._base) if self._minigrid else self._observation)

    def observation(self) -> Any:
        """See :class:`Body`."""
        return minigrid_view(self._base) if self._minigrid else self._observation

    def generator(self) -> dict[str, Any]:
        """See :class:`Body`."""
        with self._blamed("has a random generator (np_random) that cannot be read"):
            generator = getattr(self._base, "np_random", None)
            return dict(generator.bit_generator.state) if isinstance(generator, np.random.Generator) else {}

    def put_back(self, generator: dict[str, Any]) -> None:
        """See :class:`Body`."""
        with self._blamed("has a random generator (np_random) that cannot be put back"):
            self._base.np_random.bit_generator.state = generator

    def reseeded(self) -> tuple[tuple[str, ...], set[Key]]:
        """See :class:`Body`."""
        legacy = np.random.mtrand._rand  # that of numpy.random.random() and the like
        kept, after = (legacy.get_state(), random.getstate()), []
        starts: set[Key] = set()
        for _ in range(2):
            legacy.random()
            random.random()
            if self.generator():
                self._base.np_random.random()
            starts.add(self.reset()[0])
            _, key, position, *_ = cast(tuple[Any, ...], legacy.get_state())
            after.append((self.generator(), {"key": key, "position": position}, {"state": random.getstate()[1]}))
        legacy.set_state(kept[0])
        random.setstate(kept[1])
        names = "np_random", "numpy.random", "random"
        found = tuple(name for name, one, other in zip(names, *after, strict=True) if one and same(one, other))
        return found, starts

    def close(self) -> None:
        """Close it; what it raises then is of no interest to anybody."""
        with contextlib.suppress(InputError), self._blamed("cannot be closed"):
            self.env.close()

    @contextlib.contextmanager
    def _blamed(self, what: str) -> Iterator[None]:
        """Exceptions of any kind, SystemExit included, are the environment's."""
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise EnvironmentFailure(f"{self._name} {what} ({told(error)})", "env") from error

    def _malformed(self, method: str, right: str, given: Any) -> InputError:
        got = f"{len(given)} values" if isinstance(given, tuple) else type(given).__name__
        old = (method == "step" and got == "4 values") or (method == "reset" and not isinstance(given, tuple))
        hint = "; this is the interface of the older gym: use a version or a wrapper for Gymnasium" if old else ""
        return EnvironmentFailure(f"{self._name}: {method}() must return {right}, it returned {got}{hint}", "env")

    def _mask(self, info: Any) -> Mask:
        """The actions of the current state, as Gymnasium's convention has it: ``info["action_mask"]``."""
        if not isinstance(info, Mapping) or info.get(MASK) is None:
            return None
        given = np.asarray(info[MASK])
        if given.shape != (self.facts.n_actions,) or not ((given == 0) | (given == 1)).all():
            wanted = f"{self.facts.n_actions} numbers 0 or 1"
            raise EnvironmentFailure(f"{self._name}: info[{MASK!r}] must be {wanted}, it is {plain(given)}", "env")
        return None if given.all() else given.astype(np.uint8).tobytes()

    def _key(self, observation: Any) -> Key:
        """The key of the current state."""
        self._observation = observation
        try:
            return self._read(observation)
        except InputError:
            raise
        except Exception as error:
            shown = f"{plain(observation)!r}, which is not in its space ({type(error).__name__})"
            raise EnvironmentFailure(f"{self._name} gave the observation {shown}", "env") from error


def without_limits(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """The environment without time limits and checks.

    Wrappers around them are copied, not changed; MiniGrid's own limit, an attribute, is raised out of reach.
    """
    if isinstance(env, gymnasium.Wrapper):
        inner = without_limits(env.env)
        if isinstance(env, CHECKS):
            return inner
        if inner is not env.env:
            outer = copy.copy(env)
            outer.env = inner
            return outer
        return env
    if is_minigrid(env):
        env.max_steps = sys.maxsize  # type: ignore[attr-defined]
    return env
