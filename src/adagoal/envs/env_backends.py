"""The code of an environment, and the only place where it is called: spaces, resets, steps, observations as keys.

Whatever that code raises, returns in a wrong form, or shows outside of what it declared becomes an
:class:`~adagoal.core.errors.InputError` of one line. :class:`InProcessEnv` calls it in this process;
:class:`adagoal.envs.env_backends.SubprocessEnv` has a ``Local`` in another one.
"""

from __future__ import annotations

import contextlib
import copy
import multiprocessing
import os
import pickle
import random
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, Protocol, cast

import gymnasium
import numpy as np
from gymnasium import spaces, wrappers

from adagoal.core import processes
from adagoal.core.errors import EnvironmentFailure, InputError, describe_exception, to_single_line
from adagoal.core.processes import USER_CODE_SECTION, block_sigint, ignore_sigint, safe_import_path
from adagoal.core.random_streams import rng_states_equal
from adagoal.core.types import MAX_ACTIONS
from adagoal.envs.observation_keys import (
    MiniGridViewDisabled,
    StateKey,
    can_disable_view,
    describe_space,
    has_float_observations,
    is_minigrid_env,
    make_key_reader,
    minigrid_full_state,
    minigrid_state_key,
    minigrid_state_label,
)

DEFAULT_MAX_STATES = 10_000
"""Default bound on the number of states of an environment that does not declare it."""
TOY_TEXT = "gymnasium.envs.toy_text."
"""Modules whose environments have a known model, so their observations are always their states."""
MASK = "action_mask"
REMOVABLE_WRAPPERS = (wrappers.TimeLimit, wrappers.OrderEnforcing, wrappers.PassiveEnvChecker)
"""Wrappers that do not change what an environment does, apart from its time limit."""


ActionMask = bytes | None
"""Which actions a state has: a byte 0 or 1 for each; None where it has all of them."""


class EnvSpaces(NamedTuple):
    """What an environment declares."""

    n_actions: int
    declared_states: range | None
    """The states that there are, where observations are few whole numbers and ``max_states`` is not larger."""
    key_format: dict[str, Any]
    """How observations become keys (:func:`adagoal.envs.observation_keys.make_key_reader`)"""


class EnvBackend(Protocol):
    """An environment, wherever its code runs."""

    facts: EnvSpaces

    def reset(self, seed: int | None = None, keep: bool = False) -> tuple[StateKey, ActionMask, dict[str, Any]]:
        """Reset: the key and the mask of the first state, and the generator as it was before.

        ``keep`` puts that back afterwards.
        """
        ...

    def step(self, action: int) -> tuple[StateKey, ActionMask, bool, bool]:
        """Take an action 0, 1, ...: the key and the mask of the state after it, terminated, truncated."""
        ...

    def label(self) -> str:
        """The last observation in a few words."""
        ...

    def observation(self) -> Any:
        """Return the last observation as goals see it; for MiniGrid the whole state (``minigrid_full_state``)."""
        ...

    def generator(self) -> dict[str, Any]:
        """The state of the environment's random generator; empty where it does not use Gymnasium's."""
        ...

    def put_back(self, generator: dict[str, Any]) -> None:
        """The inverse of :meth:`generator`."""
        ...

    def reseeded(self) -> tuple[tuple[str, ...], set[StateKey]]:
        """Reset twice: the random generators that every reset puts into the same state, and the keys of the starts."""
        ...


class InProcessEnv:
    """An environment in this process."""

    def __init__(self, env: gymnasium.Env[Any, Any], name: str, max_states: int | None = None) -> None:
        actions: Any = getattr(env, "action_space", None)
        space: Any = getattr(env, "observation_space", None)
        if not isinstance(actions, spaces.Discrete):
            kind = type(actions).__name__
            raise InputError(f"{name} has actions of type {kind}; they must be Discrete, or try adagoal train", "env")
        if actions.n > MAX_ACTIONS:
            raise InputError(f"{name} has {actions.n} actions; at most {MAX_ACTIONS} are possible", "env")
        if has_float_observations(space) and max_states is None:
            raise InputError(
                f"{name} has continuous observations; if they take few values, say how many with max_states, "
                "else make them discrete with a wrapper, or try adagoal train",
                "env",
            )
        self._env_name, self._first_action, self.env = name, int(actions.start), remove_time_limits(env)
        self._unwrapped_env: Any = env.unwrapped
        self._is_minigrid = is_minigrid_env(self._unwrapped_env)
        how = {"kind": "minigrid"} if self._is_minigrid else describe_space(space)
        self._key_reader = (
            (lambda observation: minigrid_state_key(self._unwrapped_env)) if self._is_minigrid else make_key_reader(how)
        )
        self._last_observation: Any = None
        unseen = self._is_minigrid and can_disable_view(self.env)
        self._call_context: contextlib.AbstractContextManager[None] = (
            MiniGridViewDisabled(self._unwrapped_env) if unseen else USER_CODE_SECTION
        )
        whole = isinstance(space, spaces.Discrete) and not self._is_minigrid
        self._values = range(int(space.start), int(space.start + space.n)) if whole else None
        declared = whole and space.n <= DEFAULT_MAX_STATES
        if declared and max_states is not None and max_states > space.n:  # the user says: more states than observations
            declared = type(self._unwrapped_env).__module__.startswith(TOY_TEXT)
        self.facts = EnvSpaces(int(actions.n), self._values if declared else None, how)

    def reset(self, seed: int | None = None, keep: bool = False) -> tuple[StateKey, ActionMask, dict[str, Any]]:
        """See :class:`EnvBackend`."""
        before = self.generator()
        with self._convert_exceptions("cannot be reset"), self._call_context:
            given = self.env.reset() if seed is None else self.env.reset(seed=seed)
        if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping)):
            raise self._malformed_return("reset", "(observation, info)", given)
        if self._is_minigrid:
            self._unwrapped_env.max_steps = sys.maxsize  # BabyAI chooses another limit in every reset
        if keep:
            self.put_back(before)
        return self._read_state_key(given[0]), self._read_action_mask(given[1]), before

    def step(self, action: int) -> tuple[StateKey, ActionMask, bool, bool]:
        """See :class:`EnvBackend`."""
        try:
            with self._call_context:
                given = self.env.step(action + self._first_action)
            if not (isinstance(given, tuple) and len(given) == 5):
                raise self._malformed_return("step", "(observation, reward, terminated, truncated, info)", given)
            return self._read_state_key(given[0]), self._read_action_mask(given[4]), bool(given[2]), bool(given[3])
        except (KeyboardInterrupt, InputError):
            raise
        except BaseException as error:
            raise EnvironmentFailure(f"the environment {self._env_name} raised {describe_exception(error)}") from error

    def label(self) -> str:
        """See :class:`EnvBackend`."""
        return to_single_line(
            minigrid_state_label(self._unwrapped_env) if self._is_minigrid else self._last_observation
        )

    def observation(self) -> Any:
        """See :class:`EnvBackend`."""
        return minigrid_full_state(self._unwrapped_env) if self._is_minigrid else self._last_observation

    def generator(self) -> dict[str, Any]:
        """See :class:`EnvBackend`."""
        with self._convert_exceptions("has a random generator (np_random) that cannot be read"):
            generator = getattr(self._unwrapped_env, "np_random", None)
            return dict(generator.bit_generator.state) if isinstance(generator, np.random.Generator) else {}

    def put_back(self, generator: dict[str, Any]) -> None:
        """See :class:`EnvBackend`."""
        with self._convert_exceptions("has a random generator (np_random) that cannot be put back"):
            self._unwrapped_env.np_random.bit_generator.state = generator

    def reseeded(self) -> tuple[tuple[str, ...], set[StateKey]]:
        """See :class:`EnvBackend`."""
        legacy = np.random.mtrand._rand  # that of numpy.random.random() and the like
        kept, after = (legacy.get_state(), random.getstate()), []
        starts: set[StateKey] = set()
        for _ in range(2):
            legacy.random()
            random.random()
            if self.generator():
                self._unwrapped_env.np_random.random()
            starts.add(self.reset()[0])
            _, key, position, *_ = cast(tuple[Any, ...], legacy.get_state())
            after.append((self.generator(), {"key": key, "position": position}, {"state": random.getstate()[1]}))
        legacy.set_state(kept[0])
        random.setstate(kept[1])
        names = "np_random", "numpy.random", "random"
        found = tuple(
            name for name, one, other in zip(names, *after, strict=True) if one and rng_states_equal(one, other)
        )
        return found, starts

    def close(self) -> None:
        """Close it; what it raises then is of no interest to anybody."""
        with contextlib.suppress(InputError), self._convert_exceptions("cannot be closed"):
            self.env.close()

    @contextlib.contextmanager
    def _convert_exceptions(self, what: str) -> Iterator[None]:
        """Exceptions of any kind, SystemExit included, are the environment's."""
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise EnvironmentFailure(f"{self._env_name} {what} ({describe_exception(error)})", "env") from error

    def _malformed_return(self, method: str, right: str, given: Any) -> InputError:
        got = f"{len(given)} values" if isinstance(given, tuple) else type(given).__name__
        old = (method == "step" and got == "4 values") or (method == "reset" and not isinstance(given, tuple))
        hint = "; this is the interface of the older gym: use a version or a wrapper for Gymnasium" if old else ""
        return EnvironmentFailure(f"{self._env_name}: {method}() must return {right}, it returned {got}{hint}", "env")

    def _read_action_mask(self, info: Any) -> ActionMask:
        """The actions of the current state, as Gymnasium's convention has it: ``info["action_mask"]``."""
        if not isinstance(info, Mapping) or info.get(MASK) is None:
            return None
        given = np.asarray(info[MASK])
        if given.shape != (self.facts.n_actions,) or not ((given == 0) | (given == 1)).all():
            wanted = f"{self.facts.n_actions} numbers 0 or 1"
            raise EnvironmentFailure(
                f"{self._env_name}: info[{MASK!r}] must be {wanted}, it is {to_single_line(given)}", "env"
            )
        return None if given.all() else given.astype(np.uint8).tobytes()

    def _read_state_key(self, observation: Any) -> StateKey:
        """The key of the current state."""
        self._last_observation = observation
        try:
            key = self._key_reader(observation)
        except InputError:
            raise
        except Exception as error:
            shown = f"{to_single_line(observation)!r}, which is not in its space ({type(error).__name__})"
            raise EnvironmentFailure(f"{self._env_name} gave the observation {shown}", "env") from error
        if self._values is not None and key not in self._values:
            raise EnvironmentFailure(f"{self._env_name} gave the observation {key!r}, which is not in its space", "env")
        return key


def remove_time_limits(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """The environment without the wrappers that limit time and check; wrappers around them are copied, not changed."""
    if isinstance(env, gymnasium.Wrapper):
        inner = remove_time_limits(env.env)
        if isinstance(env, REMOVABLE_WRAPPERS):
            return inner
        if inner is not env.env:
            outer = copy.copy(env)
            outer.env = inner
            return outer
    return env


# An environment in a process of its own, so that a step that hangs can be ended.
#
# The process is begun anew when it is needed and gone. Three ways to lose it, which certificates tell apart:
#
#     a step took too long    it was killed because of what happened in it: the samples lack an outcome
#     it ended by itself      (a crash, an exit) the same
#     it was killed           by somebody else, whatever it was doing: nothing is missing but time


START_TIMEOUT_SECONDS = 120.0
"""Seconds in which an environment must be made, imports included."""
EXTERNAL_KILL_CODES = tuple(-number for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT))
"""Exit codes of a process that somebody else ended."""
GUARDED_ACTIVITY = "explores with workers or a step_timeout"
"""What a script with such processes does (:mod:`adagoal.core.processes`)."""


class WorkerKilled(EnvironmentFailure):
    """Somebody else killed the process of an environment."""


class WorkerProcess:
    """An object in a process of its own: ``make`` makes it there, and its methods are called by their names."""

    def __init__(self, make: Callable[[], Any], name: str) -> None:
        self._make_target, self._env_name = make, name
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._has_replied = False

    @property
    def is_alive(self) -> bool:
        """Whether it was begun and has not been found dead."""
        return self._process is not None

    def start_worker(self) -> None:
        """Make the object; its ``facts`` are the first answer."""
        processes.check_script_importable(GUARDED_ACTIVITY)
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=serve_method_calls,
            name=processes.WORKER_PROCESS_NAME,
            args=(theirs, pickle.dumps(self._make_target)),
            daemon=True,
        )
        with safe_import_path(), block_sigint():
            process.start()
            self._process, self._pipe, self._has_replied = process, ours, False  # one that cannot start is not there
        theirs.close()

    def send_call(self, method: str, *arguments: Any) -> None:
        """Ask for something; the answer is received later."""
        assert self._pipe is not None
        try:
            self._pipe.send((method, arguments))
        except OSError:
            raise self._explain_exit() from None

    def receive_reply(self, seconds: float | None = None) -> Any:
        """What the process says, within so many seconds; it does not survive an answer that nobody waits for."""
        assert self._pipe is not None
        try:
            if not self._pipe.poll(seconds):
                self.stop_worker()
                raise EnvironmentFailure(f"the environment {self._env_name} took longer than {seconds:g} s")
            answer = self._pipe.recv()
        except (EOFError, OSError):
            raise self._explain_exit() from None
        except BaseException:
            self.stop_worker()
            raise
        self._has_replied = True
        return processes.unwrap_reply(answer)

    def _explain_exit(self) -> InputError:
        """The process is no more; why."""
        if self._process is not None:
            self._process.join(1.0)  # so that it can tell its own exit code
        code = self.stop_worker()
        if code in EXTERNAL_KILL_CODES:
            return WorkerKilled(
                f"the process of the environment {self._env_name} was killed ({signal.Signals(-code).name})"
            )
        if code == processes.EXIT_MISSING_GUARD and not self._has_replied:
            return processes.missing_guard_error(GUARDED_ACTIVITY)
        return EnvironmentFailure(f"the process of the environment {self._env_name} ended by itself (exit code {code})")

    def stop_worker(self) -> int:
        """End the process, if it has not ended yet; its exit code."""
        process, pipe = self._process, self._pipe
        self._process = self._pipe = None
        if process is None or pipe is None:
            return 0
        process.kill()
        process.join()
        pipe.close()
        return process.exitcode or 0


class SubprocessEnv:
    """A :class:`~adagoal.envs.env_backends.EnvBackend` in another process; ``make`` makes it there."""

    def __init__(self, make: Callable[[], InProcessEnv], name: str, seconds: float) -> None:
        self._worker, self._step_timeout = WorkerProcess(make, name), seconds
        self.facts: EnvSpaces = self._start_worker()

    def reset(self, seed: int | None = None, keep: bool = False) -> tuple[StateKey, ActionMask, dict[str, Any]]:
        """See :class:`~adagoal.envs.env_backends.EnvBackend`."""
        answer: tuple[StateKey, ActionMask, dict[str, Any]] = self._call_worker("reset", seed, keep)
        return answer

    def step(self, action: int) -> tuple[StateKey, ActionMask, bool, bool]:
        """See :class:`~adagoal.envs.env_backends.EnvBackend`."""
        answer: tuple[StateKey, ActionMask, bool, bool] = self._call_worker("step", action)
        return answer

    def label(self) -> str:
        """See :class:`~adagoal.envs.env_backends.EnvBackend`."""
        return str(self._call_worker("label"))

    def observation(self) -> Any:
        """See :class:`~adagoal.envs.env_backends.EnvBackend`."""
        return self._call_worker("observation")

    def generator(self) -> dict[str, Any]:
        """See :class:`~adagoal.envs.env_backends.EnvBackend`."""
        return dict(self._call_worker("generator"))

    def put_back(self, generator: dict[str, Any]) -> None:
        """See :class:`~adagoal.envs.env_backends.EnvBackend`."""
        self._call_worker("put_back", generator)

    def reseeded(self) -> tuple[tuple[str, ...], set[StateKey]]:
        """See :class:`~adagoal.envs.env_backends.EnvBackend`."""
        answer: tuple[tuple[str, ...], set[StateKey]] = self._call_worker("reseeded")
        return answer

    def _start_worker(self) -> EnvSpaces:
        self._worker.start_worker()
        facts: EnvSpaces = self._worker.receive_reply(START_TIMEOUT_SECONDS)
        return facts

    def _call_worker(self, method: str, *arguments: Any) -> Any:
        if not self._worker.is_alive:
            self._start_worker()
        with USER_CODE_SECTION:  # which runs elsewhere, perhaps for ever
            self._worker.send_call(method, *arguments)
            return self._worker.receive_reply(self._step_timeout)


def serve_method_calls(pipe: Connection, make: bytes) -> None:
    """Run in the other process: make the object, then call its methods on request."""
    ignore_sigint()  # the run ends this process in its own time
    os.dup2(2, 1)  # standard output belongs to the run
    made = processes.call_or_capture(make_with_facts, make)
    if isinstance(made, processes.WorkerFailure):
        processes.send_reply(pipe, made)
        return
    there, facts = made
    processes.send_reply(pipe, facts)
    processes.serve_requests(pipe, lambda request: getattr(there, request[0])(*request[1]))
    there.close()


def make_with_facts(make: bytes) -> tuple[Any, Any]:
    """Unpickle a maker, call it, and return the object and its ``facts``."""
    there = pickle.loads(make)()
    return there, there.facts
