"""Goal-conditioned environments as the trainer sees them: vectors, a start, a chosen goal, a step, and an end.

    source = Source.from_argument("FetchPush-v4")          # or an environment, or a function that makes one
    world = World(source, dimensions)
    observation, achieved = world.reset(seed)
    world.aim(goal)
    observation, achieved, end = world.step(action)

What the environment itself raises becomes an :class:`~adagoal.core.errors.EnvironmentFailure` here and in
:mod:`adagoal.deep.measure`, where it is called, and nowhere else.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import cloudpickle
import gymnasium
import numpy as np

from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.core.text import OBJECT_ENV_PREFIX, to_single_line
from adagoal.core.types import Floats
from adagoal.deep.aiming import SetGoalFunction, draw_start_for_goal, find_goal_setter
from adagoal.deep.fetch import is_unmodified_fetch, make_fetch_step
from adagoal.deep.vectors import flatten_numbers, unflatten_like

POINT_MASS_NAME = "point-mass"
"""The name of the environment that is built in."""


@dataclass(frozen=True)
class EnvDimensions:
    """Sizes of an environment and what was measured of it (:mod:`adagoal.deep.measure`)."""

    observation: int
    """Numbers that the policy sees beside the goal."""
    goal: int
    action: int
    horizon: int
    """T: steps of an episode, at most."""
    success: float
    """Radius of the ball around a goal in which it counts as reached."""
    accepts_goals: bool = True
    """Whether the environment can be told its goal."""
    with_achieved: bool = False
    """Whether the achieved goal is no part of the observation (AntMaze), and is appended to it."""
    low: tuple[float, ...] = ()
    """Ends of the action box, ``[A]``."""
    high: tuple[float, ...] = ()
    shape: tuple[int, ...] = ()
    """That of an action."""
    is_fetch: bool = False
    """Whether it is a Fetch environment of Gymnasium-Robotics, which has defaults of its own."""

    @property
    def episode_bytes(self) -> int:
        """Memory of an episode in the replay buffer (:class:`adagoal.deep.replay.ReplayBuffer`, in single precision)."""
        numbers = (self.horizon + 1) * (self.observation + self.goal) + self.horizon * self.action + self.goal
        return 4 * (numbers + 1) + 2


class EpisodeEnd(IntEnum):
    """How a step ended the episode."""

    CONTINUES = 0
    TRUNCATED = 1
    """It was cut off: what would have followed still counts."""
    TERMINATED = 2
    """Nothing follows."""


@dataclass(frozen=True)
class EnvSource:
    """Where the environments of a training come from; can be sent to another process."""

    name: str
    """A Gymnasium id, ``module:Id`` or ``point-mass``; ``object:...`` where Python gave an object."""
    pickled_maker: bytes | None = None
    """The pickled function that makes the object's like."""
    pickled_set_goal: bytes | None = None
    """The pickled :data:`adagoal.deep.aiming.SetGoalFunction`."""
    step_timeout: float | None = None
    """Seconds that a reset or a step may take; a longer one ends its process, a rollout worker or a survey."""

    @classmethod
    def from_argument(cls, env: Any, set_goal: SetGoalFunction | None = None) -> EnvSource:
        """From a name, a Gymnasium environment, or a function that makes one; a source is its own."""
        if isinstance(env, EnvSource):
            return env
        if set_goal is not None and not callable(set_goal):
            raise InputError(f"must be a function of (env, goal), got {set_goal!r}", "set_goal")
        hook = None if set_goal is None else _pickle_for_workers(set_goal, "set_goal")
        if isinstance(env, str):
            return cls(env, None, hook)
        if isinstance(env, gymnasium.Env):
            again = functools.partial(_return_same_env, env)
            if env.spec is not None:
                again = functools.partial(gymnasium.make, env.spec, disable_env_checker=True)
            return cls(_object_env_name(env), _pickle_for_workers(again, "env"), hook)
        if not callable(env):
            kind = type(env).__name__
            raise InputError(f"must be a name, a Gymnasium environment or a function that makes one, not {kind}", "env")
        with convert_env_exceptions("the function"):
            made = env()
        if not isinstance(made, gymnasium.Env):
            raise InputError(f"the function must return a Gymnasium environment, not {type(made).__name__}", "env")
        name = _object_env_name(made)
        made.close()
        return cls(name, _pickle_for_workers(env, "env"), hook)

    def make_env(self, **kwargs: Any) -> Any:
        """A new environment; ``kwargs`` are for :func:`gymnasium.make`."""
        if self.pickled_maker is None:
            return make_goal_env(self.name, **kwargs)
        with convert_env_exceptions(self.name):
            return cloudpickle.loads(self.pickled_maker)()

    def find_goal_setter(self, env: Any) -> Callable[[Any], None] | None:
        """What tells an environment of this source its goal."""
        return find_goal_setter(
            env, None if self.pickled_set_goal is None else cloudpickle.loads(self.pickled_set_goal)
        )


def _return_same_env(env: Any) -> Any:
    return env


def _object_env_name(env: Any) -> str:
    return OBJECT_ENV_PREFIX + to_single_line(env.spec.id if env.spec is not None else type(env.unwrapped).__name__)


def _pickle_for_workers(thing: Any, name: str) -> bytes:
    try:
        return bytes(cloudpickle.dumps(thing))
    except Exception as error:
        text = f"cannot be sent to the rollout workers ({type(error).__name__}: {error}); give a function that makes it"
        raise InputError(text, name) from error


def make_goal_env(env_id: str, **kwargs: Any) -> Any:
    """The Gymnasium environment ``env_id`` (``point-mass`` is built in)."""
    if env_id == POINT_MASS_NAME:
        from adagoal.deep import pointmass  # noqa: F401  (registers the id)

        env_id = "PointMass-v0"
    elif ":" not in env_id:
        register_robotics_envs()
    try:
        return gymnasium.make(env_id, disable_env_checker=True, **kwargs)
    except gymnasium.error.DependencyNotInstalled as error:
        raise InputError(f"{env_id} needs a package: {error}", name="env") from error
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        hint = "; did you mean panda_gym:" + env_id + " (pip install panda-gym)" if env_id.startswith("Panda") else ""
        raise InputError(
            f"{env_id!r} is not a known environment ({to_single_line(error, 200)}){hint}", name="env"
        ) from error
    except (Exception, SystemExit) as error:
        raise make_env_failure(env_id, error) from error


def register_robotics_envs() -> None:
    """Make the names of gymnasium-robotics known."""
    with contextlib.redirect_stderr(io.StringIO()):  # it prints a notice about other environments
        import gymnasium_robotics

    gymnasium.register_envs(gymnasium_robotics)


def make_env_failure(env_id: str, error: BaseException) -> EnvironmentFailure:
    """What the environment raised, as the user's."""
    return EnvironmentFailure(f"{env_id} raised {type(error).__name__}: {error}", name="env")


@contextlib.contextmanager
def convert_env_exceptions(env_id: str) -> Iterator[None]:
    """Code of the environment's, whose exceptions are the user's."""
    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise make_env_failure(env_id, error) from error


@contextlib.contextmanager
def kill_after_timeout(seconds: float | None) -> Iterator[None]:
    """Code that may take so long. A signal ends the process of a longer one, since nothing else ends all that hangs."""
    if seconds is None:
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


class GoalEnv:
    """One environment whose goal is chosen from outside; observations, goals and actions are vectors."""

    def __init__(self, source: EnvSource, sizes: EnvDimensions) -> None:
        self.name, self.sizes, self._step_timeout = source.name, sizes, source.step_timeout
        self.env = source.make_env()
        self._action_space = self.env.action_space
        low, high = (
            np.asarray(end, np.float64).reshape(-1) for end in (self._action_space.low, self._action_space.high)
        )
        self._action_centre, self._action_half_range = (high + low) / 2, (high - low) / 2
        self._goal_setter = source.find_goal_setter(self.env) if sizes.accepts_goals else None
        self._fast_step = (
            make_fetch_step(self.env.unwrapped)
            if is_unmodified_fetch(self.env) and source.pickled_set_goal is None
            else None
        )
        self._goal_template: Any = None

    def reset(self, seed: int, goal: Floats | None = None) -> tuple[Floats, Floats]:
        """Start again: observation ``[O]`` and achieved goal ``[G]``.

        With a ``goal`` the start is one that the environment would draw for it (:func:`adagoal.deep.aiming.draw_start_for_goal`).
        """
        apart = contextlib.nullcontext() if goal is None else draw_start_for_goal(self.env, goal)
        with convert_env_exceptions(self.name), kill_after_timeout(self._step_timeout), apart:
            seen, _ = self.env.reset(seed=seed)
            self._goal_template = seen["desired_goal"]
            return self._check_observation(flatten_numbers(seen["observation"]), flatten_numbers(seen["achieved_goal"]))

    def set_goal(self, goal: Floats) -> None:
        """Choose the goal ``[G]`` of the episode that has just been started."""
        if self._goal_setter is not None:
            with convert_env_exceptions(self.name):
                self._goal_setter(unflatten_like(self._goal_template, goal))

    def step(self, action: Floats) -> tuple[Floats, Floats, EpisodeEnd]:
        """One step with an action ``[A]`` in [-1, 1]."""
        scaled = (self._action_centre + self._action_half_range * action).astype(self._action_space.dtype)
        if self._fast_step is not None:
            with kill_after_timeout(self._step_timeout):
                return (*self._check_observation(*self._fast_step(scaled)), EpisodeEnd.CONTINUES)
        with convert_env_exceptions(self.name), kill_after_timeout(self._step_timeout):
            seen, _, terminated, truncated, _ = self.env.step(scaled.reshape(self._action_space.shape))
            achieved, own = flatten_numbers(seen["achieved_goal"]), flatten_numbers(seen["desired_goal"])
            observation = flatten_numbers(seen["observation"])
        if terminated and not self.sizes.accepts_goals and np.linalg.norm(achieved - own) <= self.sizes.success:
            terminated = False  # at a goal that is not the chosen one
        end = EpisodeEnd.TERMINATED if terminated else EpisodeEnd.TRUNCATED if truncated else EpisodeEnd.CONTINUES
        return (*self._check_observation(observation, achieved), end)

    def _check_observation(self, observation: Floats, achieved: Floats) -> tuple[Floats, Floats]:
        if not math.isfinite(observation.sum() + achieved.sum()):
            raise InputError(f"{self.name} returned an observation that is NaN or infinite", name="env")
        return join_policy_input(observation, achieved, self.sizes.with_achieved), achieved


def join_policy_input(observation: Floats, achieved: Floats, with_achieved: bool) -> Floats:
    """What the policy sees ``[O]``: the observation, with what was achieved where it does not hold that."""
    return np.concatenate([observation, achieved]) if with_achieved else observation
