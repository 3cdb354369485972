"""Goal-conditioned environments as the trainer sees them: vectors, a start, a chosen goal, a step, and an end.

    source = Source.from_argument("FetchPush-v4")          # or an environment, or a function that makes one
    world = World(source, dimensions)
    observation, achieved = world.reset(seed)
    world.aim(goal)
    observation, achieved, end = world.step(action)

What the environment itself raises becomes an :class:`~adagoal.core.errors.EnvironmentFailure` here and in
:mod:`adagoal.deep.env_inspection`, where it is called, and nowhere else.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import cloudpickle
import gymnasium
import numpy as np

from adagoal.core.errors import OBJECT_ENV_PREFIX, EnvironmentFailure, InputError, to_single_line
from adagoal.core.types import Floats
from adagoal.deep.robotics_envs import (
    MAZE_CLASS,
    PANDA_CLASS,
    inherits_method,
    is_instance_of,
    is_unmodified_fetch,
    make_fetch_step,
)

POINT_MASS_NAME = "point-mass"
"""The name of the environment that is built in."""


@dataclass(frozen=True)
class EnvDimensions:
    """Sizes of an environment and what was measured of it (:mod:`adagoal.deep.env_inspection`)."""

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
        """Memory of an episode in the replay buffer (:class:`adagoal.deep.replay_buffer.ReplayBuffer`, in single
        precision)."""
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
    """The pickled :data:`adagoal.deep.goal_envs.SetGoalFunction`."""
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

        With a ``goal`` the start is one that the environment would draw for it
        (:func:`adagoal.deep.goal_envs.draw_start_for_goal`).
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


# How the chosen goal is told to an environment.
#
# An environment that ends its episodes at the goal must know which goal that is. Three ways, in this order:
#
#     the hook          ``train(env, set_goal=function)`` calls ``function(env, goal)`` after every reset
#     a method          ``set_goal(goal)`` of the environment or of a wrapper
#     known classes     Fetch and Hand (``goal``), PointMaze and AntMaze (``goal``, and the marker), panda-gym
#                       (``task.goal``, and the marker); any other that keeps as many numbers as ``goal``
#
# Whether it worked is not taken on trust: :mod:`adagoal.deep.env_inspection` sets a goal and looks at ``desired_goal``
# after the next step. Where it did not, an end of the episode at the environment's own goal is passed over.


SetGoalFunction = Callable[[Any, Any], None]
"""``set_goal(env, goal)``: a function of the user's; the goal has the form of ``desired_goal``."""
GoalSetter = Callable[[Any], None]


def find_goal_setter(env: Any, hook: SetGoalFunction | None) -> GoalSetter | None:
    """A function that tells ``env`` its goal; None where no way is known."""
    core = env.unwrapped
    if hook is not None:
        return lambda goal: hook(env, goal)
    if env.has_wrapper_attr("set_goal"):
        own: GoalSetter = env.get_wrapper_attr("set_goal")
        return own
    if is_instance_of(env, MAZE_CLASS):
        return lambda goal: _set_maze_goal(core, goal)
    if is_instance_of(env, PANDA_CLASS):
        return lambda goal: _set_panda_goal(core, goal)
    if hasattr(core, "goal"):
        return lambda goal: _set_goal_attribute(core, goal)
    return None


def _set_goal_attribute(core: Any, goal: Any) -> None:
    """Replace an attribute ``goal`` that holds as many numbers; anything else of this name is left alone."""
    with contextlib.suppress(TypeError, ValueError, AttributeError):  # no numbers, or a property that cannot be set
        now, chosen = flatten_numbers(core.goal), flatten_numbers(goal)
        if now.size == chosen.size and np.isfinite(now).all():
            core.goal = unflatten_like(core.goal, chosen)


@contextlib.contextmanager
def draw_start_for_goal(env: Any, goal: Any) -> Iterator[None]:
    """Let resets in this block draw the start as the environment draws it for ``goal``.

    A maze puts its start into another cell than its own goal. Other environments draw the two independently of each
    other, as far as we know, and a maze without a cell apart from the goal has no choice.
    """
    core = env.unwrapped
    if not inherits_method(env, MAZE_CLASS, "generate_reset_pos"):
        yield
        return
    away = np.linalg.norm(np.asarray(core.maze.unique_reset_locations) - goal, axis=1)

    def generate_reset_pos() -> Any:
        if (away > 0.5 * core.maze.maze_size_scaling).any():  # or else the loop of the original would never end
            core.goal = np.array(goal, np.float64)
        return type(core).generate_reset_pos(core)

    core.generate_reset_pos = generate_reset_pos
    try:
        yield
    finally:
        del core.generate_reset_pos


def _set_maze_goal(core: Any, goal: Any) -> None:
    core.goal = goal
    core.update_target_site_pos()


def _set_panda_goal(core: Any, goal: Any) -> None:
    core.task.goal = goal
    markers = {3: ("target",), 6: ("target1", "target2")}.get(np.size(goal), ())
    for name, place in zip(markers, np.reshape(goal, (-1, 3)) if markers else (), strict=True):
        with contextlib.suppress(AttributeError, KeyError):  # a task without markers, or of another simulator
            core.sim.set_base_pose(name, place, np.array([0.0, 0.0, 0.0, 1.0]))


# Observations and goals as vectors: numbers in any nesting of mappings, tuples and arrays, and back.
#
# Entries of a mapping come in the order of their names, so that no space is needed to read a vector.


def flatten_numbers(value: Any) -> Floats:
    """All numbers of a value, as a vector; what holds no numbers is a ``TypeError`` or a ``ValueError``."""
    if isinstance(value, Mapping):
        return _concatenate_parts([flatten_numbers(value[name]) for name in sorted(value)])
    if isinstance(value, tuple):
        return _concatenate_parts([flatten_numbers(part) for part in value])
    return np.asarray(value, np.float64).reshape(-1)


def unflatten_like(template: Any, vector: Floats) -> Any:
    """The inverse of :func:`flatten_numbers`: the vector in the nesting, shapes and types of ``template``."""
    if isinstance(template, Mapping):
        ends = np.cumsum([flatten_numbers(template[name]).size for name in sorted(template)])
        parts = np.split(vector, ends[:-1])
        return {name: unflatten_like(template[name], part) for name, part in zip(sorted(template), parts, strict=True)}
    if isinstance(template, tuple):
        ends = np.cumsum([flatten_numbers(part).size for part in template])
        return tuple(unflatten_like(one, part) for one, part in zip(template, np.split(vector, ends[:-1]), strict=True))
    array = np.asarray(template)
    whole = np.rint(vector) if np.issubdtype(array.dtype, np.integer) else vector
    return whole.reshape(array.shape).astype(array.dtype)


def _concatenate_parts(parts: list[Floats]) -> Floats:
    return np.concatenate(parts) if parts else np.zeros(0)
