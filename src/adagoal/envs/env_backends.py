"""Call the code of a Gymnasium environment, in this process or in another one, and read its observations as keys.

If that code raises, returns a wrong form, or leaves the spaces that it declares, the error is an
:class:`~adagoal.core.errors.InputError` of one line. :class:`InProcessEnv` calls the code in this process.
:class:`SubprocessEnv` calls it in another process, so a step that hangs can be ended.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partialmethod
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces, wrappers

from adagoal.core.array_types import MAX_ACTIONS
from adagoal.core.errors import EnvironmentFailure, InputError, describe_user_exception, to_single_line
from adagoal.core.user_code import USER_CODE_SECTION
from adagoal.envs import observation_keys
from adagoal.envs.observation_keys import StateKey
from adagoal.parallel.worker_process import WorkerProcess

DEFAULT_MAX_STATES = 10_000  # bound on the states of an environment that does not declare their number
START_TIMEOUT_SECONDS = 120.0  # to make an environment in a worker; imports on a slow disk take most of it
TOY_TEXT = "gymnasium.envs.toy_text."  # modules whose models are known, so their observations are their states

ActionMask = bytes | None  # a byte 0 or 1 per action: whether the state has it; None if it has all of them


class EnvSpaces(NamedTuple):
    """What an environment declares."""

    n_actions: int
    declared_states: range | None  # observations that are few whole numbers, unless ``max_states`` is larger
    key_format: dict[str, Any]  # how observations become keys (:func:`observation_keys.make_key_reader`)


class InProcessEnv:
    """An environment in this process."""

    def __init__(self, env: gymnasium.Env[Any, Any], name: str, max_states: int | None = None) -> None:
        actions: Any = getattr(env, "action_space", None)
        space: Any = getattr(env, "observation_space", None)
        if not isinstance(actions, spaces.Discrete):
            advice = "or try adagoal train" if isinstance(actions, spaces.Box) else "number them in a wrapper"
            text = f"{name} has actions of type {type(actions).__name__}; they must be Discrete, {advice}"
            raise InputError(text, "env")
        if actions.n > MAX_ACTIONS:
            raise InputError(f"{name} has {actions.n} actions; at most {MAX_ACTIONS} are possible", "env")
        # Continuous observations hardly ever repeat, so every visit would be a new state.
        if observation_keys.has_float_observations(space) and max_states is None:
            raise InputError(
                f"{name} has continuous observations; if they take few values, say how many with max_states=N, "
                "else make them discrete with a wrapper, or try adagoal train",
                "env",
            )
        self._env_name, self._first_action, self.env = name, int(actions.start), remove_time_limits(env)
        base: Any = env.unwrapped
        self._unwrapped_env = base
        self._is_minigrid = observation_keys.is_minigrid_env(self._unwrapped_env)
        self._first_observation: Any = None  # of the first reset
        self._last_observation: Any = None
        self._call_context: contextlib.AbstractContextManager[None] = USER_CODE_SECTION
        self._values: range | None = None  # that a discrete observation may have
        if self._is_minigrid:
            key_format = {"kind": "minigrid"}
            read_key = observation_keys.MiniGridKeyReader(base)
            self._key_reader: Callable[[Any], StateKey] = lambda _: read_key()
            # States are read from the grid, and drawing the view takes longer than the rest of a step.
            if observation_keys.can_disable_view(self.env):
                self._call_context = observation_keys.MiniGridViewDisabled(self._unwrapped_env)
        else:
            key_format = observation_keys.describe_space(space)
            self._key_reader = observation_keys.make_key_reader(key_format)
            if isinstance(space, spaces.Discrete):
                self._values = range(int(space.start), int(space.start + space.n))
        declared = self._values is not None and len(self._values) <= DEFAULT_MAX_STATES
        # The user says that there are more states than observations: a terminal state is then one of its own. The
        # tables of toy-text environments show that their observations are their states.
        if declared and max_states is not None and max_states > space.n:
            declared = type(self._unwrapped_env).__module__.startswith(TOY_TEXT)
        self.spaces = EnvSpaces(int(actions.n), self._values if declared else None, key_format)

    def get_spaces(self) -> EnvSpaces:
        """Return ``spaces``; a worker can only be asked for results of methods."""
        return self.spaces

    def reset(self, seed: int | None = None, keep_rng: bool = False) -> tuple[StateKey, ActionMask, dict[str, Any]]:
        """Reset; return key and mask of the first state, and the state of the random generator before the reset.

        ``keep_rng`` restores the generator afterwards.
        """
        before = self.generator_state()
        with self._convert_exceptions("cannot be reset"), self._call_context:
            result: Any = self.env.reset() if seed is None else self.env.reset(seed=seed)
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
            raise self._malformed_result_error("reset", "(observation, info)", result)
        if self._is_minigrid:
            # BabyAI chooses another limit in every reset.
            self._unwrapped_env.max_steps = sys.maxsize
        if self._first_observation is None:
            # A copy: some environments return the same array at every step.
            self._first_observation = copy.deepcopy(result[0])
        if keep_rng:
            self.set_generator_state(before)
        return self._read_state_key(result[0]), self._read_action_mask(result[1]), before

    def step(self, action: int) -> tuple[StateKey, ActionMask, bool, bool]:
        """Take an action 0, 1, ...; return key and mask of the next state, terminated, truncated."""
        try:
            with self._call_context:
                result: Any = self.env.step(action + self._first_action)
            if not (isinstance(result, tuple) and len(result) == 5):
                raise self._malformed_result_error("step", "(observation, reward, terminated, truncated, info)", result)
            return self._read_state_key(result[0]), self._read_action_mask(result[4]), bool(result[2]), bool(result[3])
        except (KeyboardInterrupt, InputError):
            raise
        except BaseException as error:
            text = f"the environment {self._env_name} raised {describe_user_exception(error)}"
            raise EnvironmentFailure(text) from error

    def label(self) -> str:
        """Return the last observation in a few words."""
        last = self._last_observation
        if self._is_minigrid:
            return to_single_line(observation_keys.minigrid_state_label(self._unwrapped_env))
        if self.spaces.key_format["kind"] == "key":
            return to_single_line(last if isinstance(last, str) else observation_keys.key_text(last))
        return observation_keys.label_observation(last, self._first_observation)

    def observation(self) -> Any:
        """Return the last observation as goals see it; for MiniGrid the whole state, not the view."""
        base, last = self._unwrapped_env, self._last_observation
        return observation_keys.minigrid_full_state(base) if self._is_minigrid else last

    def generator_state(self) -> dict[str, Any]:
        """Return the state of the environment's random generator, empty if it does not use Gymnasium's."""
        with self._convert_exceptions("has a random generator (np_random) that cannot be read"):
            generator = getattr(self._unwrapped_env, "np_random", None)
            return dict(generator.bit_generator.state) if isinstance(generator, np.random.Generator) else {}

    def set_generator_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`generator_state` returned."""
        with self._convert_exceptions("has a random generator (np_random) that cannot be restored"):
            self._unwrapped_env.np_random.bit_generator.state = state

    def close(self) -> None:
        """Close the environment and ignore what it raises, since nothing depends on it any more."""
        with contextlib.suppress(InputError), self._convert_exceptions("cannot be closed"):
            self.env.close()

    @contextlib.contextmanager
    def _convert_exceptions(self, what: str) -> Iterator[None]:
        """Turn exceptions of any kind, SystemExit included, into EnvironmentFailure."""
        try:
            yield
        except (KeyboardInterrupt, InputError):
            raise
        except BaseException as error:
            raise EnvironmentFailure(f"{self._env_name} {what}: {describe_user_exception(error)}", "env") from error

    def _malformed_result_error(self, method: str, expected: str, result: Any) -> InputError:
        got = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
        old = (method == "step" and got == "4 values") or (method == "reset" and not isinstance(result, tuple))
        hint = "; this is the interface of the older gym: use a version or a wrapper for Gymnasium" if old else ""
        text = f"{self._env_name}: {method}() must return {expected}, it returned {got}{hint}"
        return EnvironmentFailure(text, "env")

    def _read_action_mask(self, info: Any) -> ActionMask:
        """Return the mask of the current state; Gymnasium's convention is ``info["action_mask"]``."""
        if not isinstance(info, Mapping) or info.get("action_mask") is None:
            return None
        mask = flags = np.asarray(info["action_mask"])
        # Gymnasium's masks are int8. Their bytes are checked several times faster than an array.
        if flags.dtype.char not in "bB?":
            flags = np.where(mask == 0, 0, np.where(mask == 1, 1, 2)).astype(np.uint8)
        content = flags.tobytes()
        if mask.shape != (self.spaces.n_actions,) or content.strip(b"\0\1"):
            expected = f"{self.spaces.n_actions} numbers 0 or 1, it is {to_single_line(mask)}"
            raise EnvironmentFailure(f"{self._env_name}: info['action_mask'] must be {expected}", "env")
        return content if 0 in content else None

    def _read_state_key(self, observation: Any) -> StateKey:
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
    """Return the environment without wrappers that only limit time or check; other wrappers are copied, not changed."""
    if isinstance(env, gymnasium.Wrapper):
        inner = remove_time_limits(env.env)
        # A time limit is not part of the state, so it would make transitions depend on the past.
        if isinstance(env, wrappers.TimeLimit | wrappers.OrderEnforcing | wrappers.PassiveEnvChecker):
            return inner
        if inner is not env.env:
            # The environment belongs to the user, who may go on using it with its limits.
            outer = copy.copy(env)
            outer.env = inner
            return outer
    return env


class SubprocessEnv:
    """An :class:`InProcessEnv` in another process, which starts again if it is gone when it is needed.

    ``make`` makes the environment there. Every call may take ``step_timeout`` seconds.
    """

    def __init__(self, make: Callable[[], InProcessEnv], name: str, step_timeout: float) -> None:
        self._worker = WorkerProcess(make, f"the process of the environment {name}")
        self._step_timeout = step_timeout
        self.spaces: EnvSpaces = self._start_worker()

    def _start_worker(self) -> EnvSpaces:
        self._worker.start()
        try:
            self._worker.send("get_spaces")
            answer: EnvSpaces = self._worker.receive(START_TIMEOUT_SECONDS)
        except BaseException:
            self._worker.stop()
            raise
        return answer

    def _call_worker(self, method: str, *arguments: Any) -> Any:
        # It was killed in an earlier call, by a timeout or from outside.
        if not self._worker.is_alive:
            self._start_worker()
        # The user's code runs in the worker, so Ctrl-C may interrupt the wait.
        with USER_CODE_SECTION:
            self._worker.send(method, *arguments)
            return self._worker.receive(self._step_timeout)

    reset = partialmethod(_call_worker, "reset")
    step = partialmethod(_call_worker, "step")
    label = partialmethod(_call_worker, "label")
    observation = partialmethod(_call_worker, "observation")
    generator_state = partialmethod(_call_worker, "generator_state")
    set_generator_state = partialmethod(_call_worker, "set_generator_state")


EnvBackend = InProcessEnv | SubprocessEnv
