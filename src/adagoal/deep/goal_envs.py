"""Goal-conditioned environments as the trainer sees them: vectors, a start, a chosen goal, steps, and an end.

    source = EnvSource.from_argument("FetchPush-v4")          # or an environment, or a function that makes one
    env = GoalEnv(source, dimensions)
    observation, achieved = env.reset(seed)
    env.set_goal(goal)
    observation, achieved, end = env.step(action)

Exceptions of the environment become an :class:`~adagoal.core.errors.EnvironmentFailure` here and in
:mod:`adagoal.deep.env_inspection`, and nowhere else.
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
from typing import Any, ClassVar

import cloudpickle
import gymnasium
import numpy as np

from adagoal.core.array_types import Floats
from adagoal.core.errors import (
    OBJECT_ENV_PREFIX,
    EnvironmentFailure,
    InputError,
    describe_user_exception,
    to_single_line,
)
from adagoal.core.installation import install_command
from adagoal.deep import robotics_envs
from adagoal.deep.robotics_envs import KnownClass

SetGoalFunction = Callable[[Any, Any], None]
"""``set_goal(env, goal)``, a function of the user; the goal has the form of ``desired_goal``."""
GoalSetter = Callable[[Any], None]


@dataclass(frozen=True)
class EnvDimensions:
    """Sizes and measured properties of an environment (:mod:`adagoal.deep.env_inspection`)."""

    observation: int  # O: numbers in the policy's input, without the goal
    goal: int  # G
    action: int  # A
    horizon: int  # T: steps of an episode, at most
    success: float  # radius around a goal in which it counts as reached
    accepts_goals: bool = True  # whether the environment shows a goal that was set from outside
    with_achieved: bool = False  # whether the achieved goal is appended to the observation, which lacks it (AntMaze)
    low: tuple[float, ...] = ()  # ends of the action box, [A]
    high: tuple[float, ...] = ()
    shape: tuple[int, ...] = ()  # of an action
    is_fetch: bool = False  # Fetch environments of Gymnasium-Robotics have defaults of their own
    fact_descriptions: ClassVar[Mapping[str, str]] = {
        "observation": "the size of observations",
        "goal": "the size of goals",
        "action": "the size of actions",
        "low": "the low end of actions",
        "high": "the high end of actions",
        "success": "the radius of success",
    }

    @property
    def episode_bytes(self) -> int:
        """Bytes of an episode in the :class:`adagoal.deep.replay_buffer.ReplayBuffer`."""
        numbers = (self.horizon + 1) * (self.observation + self.goal) + self.horizon * self.action + self.goal
        return 4 * (numbers + 1) + 2

    def to_facts(self) -> dict[str, Any]:
        """Facts that a checkpoint stores, JSON-ready."""
        return {name: list(x) if isinstance(x := getattr(self, name), tuple) else x for name in self.fact_descriptions}

    def check_same(self, env_name: str, facts: Mapping[str, Any]) -> None:
        """Raise an InputError if the environment differs from the stored facts."""
        for entry, before in facts.items():
            now = getattr(self, entry)
            # with a tolerance, because the radius of success is measured
            if np.shape(before) != np.shape(now) or not np.allclose(before, now, rtol=1e-3, atol=0.0):
                new, old = (" ".join(f"{x:.4g}" for x in np.ravel(numbers)[:8]) for numbers in (now, before))
                found = f"{self.fact_descriptions[entry]} is {new}, and was {old}"
                raise InputError(f"{env_name} is not the environment of the run: {found}", name="env")


class EpisodeEnd(IntEnum):
    """How a step ended the episode."""

    CONTINUES = 0
    TRUNCATED = 1  # cut off: values still count what would have followed
    TERMINATED = 2


@dataclass(frozen=True)
class EnvSource:
    """Makes the environments of a run; can be sent to another process."""

    name: str
    """A Gymnasium id, ``module:Id`` or ``point-mass``; ``object:...`` if the environment was given as an object."""
    pickled_maker: bytes | None = None  # function that makes the environment, if it was given as an object
    pickled_set_goal: bytes | None = None  # a SetGoalFunction
    step_timeout: float | None = None
    """Seconds for a reset or a step. A longer one kills its process, which must be a worker or an inspection."""

    @classmethod
    def from_argument(cls, env: Any, set_goal: SetGoalFunction | None = None) -> EnvSource:
        """Make a source from a name, a Gymnasium environment, a function that makes one, or a source."""
        if isinstance(env, EnvSource):
            return env
        if set_goal is not None and not callable(set_goal):
            raise InputError(f"must be a function of (env, goal), got {set_goal!r}", "set_goal")
        pickled_set_goal = None if set_goal is None else _pickle_for_workers(set_goal, "set_goal")
        if isinstance(env, str):
            return cls(env, None, pickled_set_goal)
        if isinstance(env, gymnasium.Env):
            try:
                pickled_maker = _pickle_for_workers(lambda: env, "env")
            except InputError:
                # From the spec, which does not know changed attributes: some environments hold a simulator or a window
                # that cannot be pickled. Wrappers without arguments (kwargs) cannot be made again.
                spec = env.spec
                if spec is None or any(wrapper.kwargs is None for wrapper in spec.additional_wrappers):
                    raise
                pickled_maker = _pickle_for_workers(
                    functools.partial(gymnasium.make, spec, disable_env_checker=True), "env"
                )
            return cls(_object_env_name(env), pickled_maker, pickled_set_goal)
        if not callable(env):
            kind = type(env).__name__
            raise InputError(f"must be a name, a Gymnasium environment or a function that makes one, not {kind}", "env")
        # called once here for the name; so a function that fails says so before any worker starts
        with convert_env_exceptions("the function"):
            made = env()
        if not isinstance(made, gymnasium.Env):
            raise InputError(f"the function must return a Gymnasium environment, not {type(made).__name__}", "env")
        name = _object_env_name(made)
        made.close()
        return cls(name, _pickle_for_workers(env, "env"), pickled_set_goal)

    def make_env(self, **kwargs: Any) -> Any:
        """A new environment; ``kwargs`` are for :func:`gymnasium.make`."""
        if self.pickled_maker is None:
            return make_goal_env(self.name, **kwargs)
        with convert_env_exceptions(self.name):
            return cloudpickle.loads(self.pickled_maker)()

    def find_goal_setter(self, env: Any) -> GoalSetter | None:
        """:func:`find_goal_setter`, with the user's function if there is one."""
        function = None if self.pickled_set_goal is None else cloudpickle.loads(self.pickled_set_goal)
        return find_goal_setter(env, function)


def _object_env_name(env: Any) -> str:
    return OBJECT_ENV_PREFIX + to_single_line(env.spec.id if env.spec is not None else type(env.unwrapped).__name__)


def _pickle_for_workers(value: Any, name: str) -> bytes:
    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as error:
        text = f"cannot be sent to the rollout workers ({type(error).__name__}: {error}); give a function that makes it"
        raise InputError(text, name) from error


def make_goal_env(env_id: str, **kwargs: Any) -> Any:
    """Make the Gymnasium environment ``env_id``, or the built-in ``point-mass``."""
    if env_id == "point-mass":
        from adagoal.deep import pointmass  # noqa: F401  (registers the id)

        env_id = "PointMass-v0"
    elif ":" not in env_id:
        register_robotics_envs()
    try:
        return gymnasium.make(env_id, disable_env_checker=True, **kwargs)
    except gymnasium.error.DependencyNotInstalled as error:
        raise InputError(f"{env_id} needs a package: {error}", name="env") from error
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        hint = ""
        if env_id.startswith("Panda"):
            hint = f"; did you mean panda_gym:{env_id} (install panda-gym with {install_command('panda-gym')})"
        text = f"{env_id!r} is not a known environment ({to_single_line(error, 200)}){hint}"
        raise InputError(text, name="env") from error
    except (Exception, SystemExit) as error:
        raise _env_failure(env_id, error) from error


def register_robotics_envs() -> None:
    """Register the ids of gymnasium-robotics."""
    # the import prints a notice about other environments
    with contextlib.redirect_stderr(io.StringIO()):
        import gymnasium_robotics

    gymnasium.register_envs(gymnasium_robotics)


def _env_failure(env_id: str, error: BaseException) -> EnvironmentFailure:
    return EnvironmentFailure(f"{env_id} raised {describe_user_exception(error)}", name="env")


@contextlib.contextmanager
def convert_env_exceptions(env_id: str) -> Iterator[None]:
    """Turn exceptions of the environment's code in this block into an EnvironmentFailure."""
    try:
        yield
    except InputError:
        raise
    # SystemExit too: an environment that calls sys.exit must not end a worker without a message
    except (Exception, SystemExit) as error:
        raise _env_failure(env_id, error) from error


@contextlib.contextmanager
def kill_after_timeout(seconds: float | None) -> Iterator[None]:
    """Kill this process with SIGALRM if the block takes longer."""
    if seconds is None:
        yield
        return
    # Without a handler the signal kills. An exception from a handler could not interrupt compiled code.
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


class GoalEnv:
    """One environment whose caller chooses the goal; observations, goals and actions are vectors."""

    def __init__(self, source: EnvSource, sizes: EnvDimensions) -> None:
        self.name, self.sizes, self._step_timeout = source.name, sizes, source.step_timeout
        self.env = source.make_env()
        self._action_space = space = self.env.action_space
        low, high = (np.asarray(end, np.float64).reshape(-1) for end in (space.low, space.high))
        self._action_centre, self._action_half_range = (high + low) / 2, (high - low) / 2
        self._goal_setter = source.find_goal_setter(self.env) if sizes.accepts_goals else None
        self._fast_step: robotics_envs.FetchStep | None = None
        if robotics_envs.is_unmodified_fetch(self.env) and source.pickled_set_goal is None:
            self._fast_step = robotics_envs.make_fetch_step(self.env.unwrapped)
        self._goal_template: Any = None

    def reset(self, seed: int, goal: Floats | None = None) -> tuple[Floats, Floats]:
        """Start an episode: observation ``[O]`` and achieved goal ``[G]``.

        With a ``goal`` the start is one that the environment would draw for it
        (:func:`adagoal.deep.robotics_envs.draw_start_for_goal`).
        """
        start_rule = contextlib.nullcontext() if goal is None else robotics_envs.draw_start_for_goal(self.env, goal)
        with convert_env_exceptions(self.name), kill_after_timeout(self._step_timeout), start_rule:
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
            observation, achieved, own_goal = (
                flatten_numbers(seen[key]) for key in ("observation", "achieved_goal", "desired_goal")
            )
        # the environment ended at its own goal, which is not the chosen one
        if terminated and not self.sizes.accepts_goals and np.linalg.norm(achieved - own_goal) <= self.sizes.success:
            terminated = False
        end = EpisodeEnd.TERMINATED if terminated else EpisodeEnd.TRUNCATED if truncated else EpisodeEnd.CONTINUES
        return (*self._check_observation(observation, achieved), end)

    def _check_observation(self, observation: Floats, achieved: Floats) -> tuple[Floats, Floats]:
        # one NaN would reach the normalisers, and from there every network; a sum is the cheapest test for it
        if not math.isfinite(observation.sum() + achieved.sum()):
            raise InputError(f"{self.name} returned an observation that is NaN or infinite", name="env")
        return join_policy_input(observation, achieved, self.sizes.with_achieved), achieved


def join_policy_input(observation: Floats, achieved: Floats, with_achieved: bool) -> Floats:
    """The policy's input ``[O]``: the observation, with the achieved goal appended if ``with_achieved``."""
    return np.concatenate([observation, achieved]) if with_achieved else observation


def find_goal_setter(env: Any, function: SetGoalFunction | None = None) -> GoalSetter | None:
    """Find a way to give ``env`` its goal; None if no way is known.

    The first of these is taken:

    - the user's ``function(env, goal)``, from ``train(env, set_goal=function)``
    - a method ``set_goal(goal)`` of the environment or of a wrapper
    - the attributes of mazes and of panda-gym (:mod:`adagoal.deep.robotics_envs`)
    - an attribute ``goal`` that holds as many numbers (Fetch, Hand).

    :mod:`adagoal.deep.env_inspection` checks that it works: it sets a goal and looks at ``desired_goal`` after a step.
    """
    # Relabelled rewards need no goal in the environment; one that ends its episodes at the goal needs the chosen one.
    core = env.unwrapped
    if function is not None:
        return lambda goal: function(env, goal)
    if env.has_wrapper_attr("set_goal"):
        method: GoalSetter = env.get_wrapper_attr("set_goal")
        return method
    if robotics_envs.is_instance_of(env, KnownClass.MAZE):
        return lambda goal: robotics_envs.set_maze_goal(core, goal)
    if robotics_envs.is_instance_of(env, KnownClass.PANDA):
        return lambda goal: robotics_envs.set_panda_goal(core, goal)
    if hasattr(core, "goal"):
        return lambda goal: _set_goal_attribute(core, goal)
    return None


def _set_goal_attribute(core: Any, goal: Any) -> None:
    # any environment may have an attribute of this name: replace it only if it looks like the goal
    with contextlib.suppress(TypeError, ValueError, AttributeError):  # not numbers, or a property that cannot be set
        present, chosen = flatten_numbers(core.goal), flatten_numbers(goal)
        if present.size == chosen.size and np.isfinite(present).all():
            core.goal = unflatten_like(core.goal, chosen)


def flatten_numbers(value: Any) -> Floats:
    """All numbers of a nesting of mappings, tuples and arrays, as a vector; TypeError or ValueError without numbers.

    Entries of a mapping come in the order of their names, so no space is needed to read a vector.
    """
    if isinstance(value, Mapping):
        value = tuple(value[name] for name in sorted(value))
    if isinstance(value, tuple):
        return np.concatenate([np.zeros(0), *(flatten_numbers(part) for part in value)])
    return np.asarray(value, np.float64).reshape(-1)


def unflatten_like(template: Any, vector: Floats, dtype: Any = None) -> Any:
    """The inverse of :func:`flatten_numbers`: the vector in the nesting and shapes of ``template``.

    ``dtype`` is that of the arrays; by default they have those of the template.
    """
    if isinstance(template, Mapping):
        names = sorted(template)
        return dict(zip(names, unflatten_like(tuple(template[name] for name in names), vector, dtype), strict=True))
    if isinstance(template, tuple):
        ends = np.cumsum([flatten_numbers(part).size for part in template])
        parts = np.split(vector, ends[:-1])
        return tuple(unflatten_like(one, part, dtype) for one, part in zip(template, parts, strict=True))
    array = np.asarray(template, dtype)
    numbers = np.rint(vector) if np.issubdtype(array.dtype, np.integer) else vector
    return numbers.reshape(array.shape).astype(array.dtype)
