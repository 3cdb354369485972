"""Play a policy in a Gymnasium environment: one episode for each goal or start, judged by a criterion of success.

An episode sets its goal or start in the first of these ways that applies:

- the user's function ``set_start(env, value)``, called after a reset
- for goals: the environment's own way to set a goal
- for starts of Gymnasium's classic control: the variables of the state, by name (:data:`STATE_VARIABLES`)
- otherwise ``reset(options={name: number})``, if it changes the first observation.

A criterion (:func:`make_criterion`) is one of

- None: ``info["is_success"]``, or the reward of being at the goal, after any step
- ``survive:N``: N steps without termination
- ``return:X``: the sum of rewards is at least X
- a function of the :class:`Episode`, called at its end
"""

from __future__ import annotations

import contextlib
import copy
import functools
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import cloudpickle
import numpy as np
from gymnasium.utils.env_checker import data_equivalence

from adagoal.certification.certifier import MIN_BLOCKS_PER_ROUND, ROLLOUTS_PER_BLOCK, Outcomes, PlayFunction
from adagoal.certification.policies import BatchPolicy, Sb3Policy, check_action
from adagoal.certification.value_spaces import ValueSpace
from adagoal.core.array_types import Bools, Floats
from adagoal.core.errors import EnvironmentFailure, InputError, RunWarning, describe_user_exception
from adagoal.core.random_streams import StreamPurpose, random_stream
from adagoal.envs.env_checker import StartSetter, find_time_limit, is_start_ignored, refuse_own_numbers
from adagoal.parallel.worker_process import make_rollout_process, stop_rollout_processes

STATE_VARIABLES = {
    "CartPoleEnv": ("x", "x_dot", "theta", "theta_dot"),
    "PendulumEnv": ("theta", "theta_dot"),
    "MountainCarEnv": ("position", "velocity"),
    "Continuous_MountainCarEnv": ("position", "velocity"),
    "AcrobotEnv": ("theta1", "theta2", "theta1_dot", "theta2_dot"),
}
"""Entries of ``env.unwrapped.state`` by the class of the environment (``gymnasium.envs.classic_control``)."""


@dataclass
class Episode:
    """One episode: ``observations`` has one entry more than the lists of actions, rewards and infos."""

    value: Any  # the goal or start: an array [V], or a dictionary if the coordinates have names
    observations: list[Any]
    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    infos: list[dict[str, Any]] = field(default_factory=list)
    terminated: bool = False  # the environment ended the episode
    truncated: bool = False  # the environment cut it off

    @property
    def steps(self) -> int:
        """Number of steps so far."""
        return len(self.rewards)


Judge = Callable[[Any, Episode, bool], bool | None]
"""``judge(env, episode, is_over)``: whether the episode is a success; None if that is not decided yet."""


@dataclass(frozen=True)
class Criterion:
    """A criterion in words, and the function that judges an episode after every step."""

    event: str  # completes "a start drawn from a certified cell ..."; {steps} is the radius
    judge: Judge
    steps: int | None = None  # N of survive:N
    text: str = "success"  # as the user wrote it


def make_criterion(given: Any, subject: str) -> Criterion:
    """Make a criterion from the argument; ``subject`` is ``goal`` or ``start``."""
    if given is None or given == "success":
        event = "is reached within {steps} steps" if subject == "goal" else "leads to a success within {steps} steps"
        return Criterion(event, _judge_success)
    if callable(given):
        name = getattr(given, "__qualname__", type(given).__name__)
        text = "the criterion" if "<" in name else name
        return Criterion(f"satisfies {text} within {{steps}} steps", _judge_by_function(given), text=name)
    kind, _, number = str(given).partition(":")
    with contextlib.suppress(ValueError):
        if kind == "survive" and int(number) >= 1:
            n = int(number)
            return Criterion("leads to {steps} steps without termination", _judge_survival(n), n, given)
        if kind == "return" and np.isfinite(least := float(number)):
            event = f"leads to a return of {least:g} or more within {{steps}} steps"
            judge: Judge = lambda env, episode, is_over: sum(episode.rewards) >= least if is_over else None  # noqa: E731
            return Criterion(event, judge, text=given)
    text = f"must be success, survive:N with N steps, return:X, or a function of the episode, got {given!r}"
    raise InputError(text, "criterion")


def _judge_success(env: Any, episode: Episode, is_over: bool) -> bool | None:
    info, observation = episode.infos[-1], episode.observations[-1]
    if "is_success" in info or "success" in info:
        reached = bool(info.get("is_success", info.get("success")))
    elif isinstance(observation, dict) and "desired_goal" in observation and env.has_wrapper_attr("compute_reward"):
        goal, reward = observation["desired_goal"], env.get_wrapper_attr("compute_reward")
        reached = bool(reward(observation["achieved_goal"], goal, info) >= reward(goal, goal, info))
    else:
        text = "missing; the environment reports no is_success and has no goals: give survive:N, return:X or a function"
        raise InputError(text, "criterion")
    return True if reached else False if is_over else None


def _judge_survival(steps: int) -> Judge:
    def judge(env: Any, episode: Episode, is_over: bool) -> bool | None:
        if episode.terminated or episode.steps >= steps:
            return not episode.terminated
        # an episode that was cut off says nothing about later steps
        if episode.truncated:
            text = f"survive:{steps}, but an episode was cut off after {episode.steps} steps; give a smaller number"
            raise InputError(text, "criterion")
        return None

    return judge


def _judge_by_function(function: Callable[[Episode], Any]) -> Judge:
    def judge(env: Any, episode: Episode, is_over: bool) -> bool | None:
        if not is_over:
            return None
        try:
            found = function(episode)
        except (Exception, SystemExit) as error:
            raise EnvironmentFailure(f"the function raised {describe_user_exception(error)}", "criterion") from error
        if not isinstance(found, bool | np.bool_):
            raise InputError(f"the function must return True or False, got {repr(found)[:60]}", "criterion")
        return bool(found)

    return judge


def _reset(env: Any, seed: int, **options: Any) -> Any:
    """Return the first observation of an episode; without options, which not every reset takes."""
    return env.reset(seed=seed, **options)[0]


def _set_goal(env: Any, seed: int, value: Any, set_goal: Callable[[Any], None]) -> Any:
    """Set a goal ``[V]`` in the form of ``desired_goal``."""
    observation = dict(_reset(env, seed))
    wanted = np.asarray(observation["desired_goal"])
    numbers = np.array(list(value.values()) if isinstance(value, dict) else value)
    if numbers.size != wanted.size:
        raise InputError(f"must have {wanted.size} numbers, as desired_goal, got {numbers.size}", "goals")
    goal = numbers.astype(wanted.dtype).reshape(wanted.shape)
    set_goal(goal)
    # the observation of the reset still shows the goal that the environment drew
    return observation | {"desired_goal": goal}


def _set_state_variables(env: Any, seed: int, value: Any) -> Any:
    core = env.unwrapped
    variables = STATE_VARIABLES[type(core).__name__]

    def reset(*, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        _, info = type(core).reset(core, seed=seed, options=options)
        state = np.array(core.state)
        for name, number in value.items():
            state[variables.index(name)] = number
        core.state = state
        # Pendulum and Acrobot observe sines and cosines of their state; the others observe the state itself.
        observe = getattr(core, "_get_obs", None) or getattr(core, "_get_ob", None)
        return state.astype(np.float32) if observe is None else observe(), info

    # within the reset, so wrappers change the first observation as they change the others
    core.reset = reset
    try:
        return _reset(env, seed)
    finally:
        del core.reset


def _check_options_matter(env: Any, probes: Sequence[dict[str, float]], task: EpisodeTask) -> None:
    """Raise an InputError if the environment ignores an option: a certificate would then vary nothing."""
    first, last = probes
    # twice: the first reset of an environment may differ from the later ones
    _, before = (_flatten(_reset(env, 0, options=first)) for _ in range(2))
    # an option that does not vary cannot be tried: its number may be the default
    for name in (each for each in first if first[each] != last[each]):
        if np.array_equal(before, _flatten(_reset(env, 0, options=first | {name: last[name]}))):
            text = f"{task.env_name} ignores the reset option {name}; give set_start(env, {task.subject})"
            raise InputError(text, f"{task.subject}s")


def _check_observation_lacks_goal(env: Any, start: StartSetter, probes: Sequence[Any]) -> None:
    """Raise an InputError if the observation depends on the goal: the first one would be about another goal."""
    action, seen = env.action_space.sample(), []
    for probe in (probes[0], probes[1], probes[0]):
        start(env, 0, probe)
        seen.append(copy.deepcopy(env.step(action)[0].get("observation")))
    # a step that differs for the same goal says nothing
    if data_equivalence(seen[0], seen[2]) and not data_equivalence(seen[0], seen[1]):
        text = "missing; the observation depends on the goal, so give a function that sets it and returns the first one"
        raise InputError(text, "set_start")


def _flatten(observation: Any) -> Floats:
    parts = list(observation.values()) if isinstance(observation, dict) else [observation]
    return np.concatenate([np.asarray(part, np.float64).ravel() for part in parts])


@dataclass(frozen=True)
class EpisodeTask:
    """Everything that the episodes of a certification have in common."""

    env_name: str
    make_env: Callable[[], Any]
    make_policy: Callable[[], BatchPolicy]
    subject: str  # "goal" or "start"
    space: ValueSpace
    criterion: Criterion
    seed: int
    set_start: Callable[[Any, Any], Any] | None = None  # of the user
    find_goal_setter: Callable[[Any], Callable[[Any], None] | None] | None = None
    radius: int = 1  # steps of an episode, at most

    def prepare_env(self, probes: Sequence[Any] = ()) -> tuple[Any, StartSetter]:
        """Make an environment, and find out how to put it into a start; ``probes`` are two starts to try."""
        env = self.make_env()
        with self.convert_exceptions():
            return env, self._find_start_setter(env, probes)

    def _find_start_setter(self, env: Any, probes: Sequence[Any]) -> StartSetter:
        if self.set_start is not None:
            return self._set_by_function
        is_goal, names, argument = self.subject == "goal", self.space.names, f"{self.subject}s"
        shows_goal = "desired_goal" in getattr(env.observation_space, "spaces", ())
        set_goal = self.find_goal_setter(env) if is_goal and shows_goal and self.find_goal_setter else None
        if set_goal is not None:
            start = functools.partial(_set_goal, set_goal=set_goal)
            if probes:
                _check_observation_lacks_goal(env, start, probes)
            return start
        known = STATE_VARIABLES.get(type(env.unwrapped).__name__, ())
        if known and type(env.unwrapped).__module__.startswith("gymnasium.envs.classic_control"):
            unknown = [each for each in names or ("",) if each not in known]
            if is_goal:
                raise InputError(f"{self.env_name} has no goals; give starts", argument)
            if unknown:
                raise InputError(f"{self.env_name} has no variable {unknown[0]!r}; it has {', '.join(known)}", argument)
            return _set_state_variables
        if names is None:
            text = (
                f"missing; {argument} of {self.env_name} need names of reset options, or set_start(env, {self.subject})"
            )
            raise InputError(text, "set_start")
        if probes:
            _check_options_matter(env, probes, self)
        return lambda env, seed, value: _reset(env, seed, options=dict(value))

    def _set_by_function(self, env: Any, seed: int, value: Any) -> Any:
        assert self.set_start is not None
        first = _reset(env, seed)
        try:
            observation = self.set_start(env, value)
        except (Exception, SystemExit) as error:
            raise EnvironmentFailure(f"the function raised {describe_user_exception(error)}", "set_start") from error
        if isinstance(observation, tuple) and not isinstance(first, tuple):
            raise InputError(f"must return the observation alone, or None, got {len(observation)} values", "set_start")
        return first if observation is None else observation

    def find_radius(self, given: int | None) -> int:
        """Return the steps of an episode: as given, those of ``survive:N``, or the limit of the environment."""
        probes = [self.space.split_names(value) for value in self.space.tree_values[[0, -1]]]
        env, start = self.prepare_env(probes)
        limit = find_time_limit(env)
        radius = given or self.criterion.steps or limit
        if radius is None:
            raise InputError(f"missing; episodes of {self.env_name} have no time limit, so give their steps", "radius")
        if limit is not None and radius > limit:
            # an episode that the environment cuts off says nothing about later steps
            if not given:
                raise InputError(
                    f"{self.criterion.text}, but episodes of {self.env_name} have {limit} steps; give a smaller number",
                    "criterion",
                )
            raise InputError(f"must be a whole number in 1..{limit}, the steps of an episode, got {radius}", "radius")
        if self.criterion.steps not in (None, radius):
            raise InputError(
                f"{radius} steps do not fit the criterion {self.criterion.text}; leave radius out", "radius"
            )
        with self.convert_exceptions():
            first = start(env, 0, probes[0])
            seen = env.step(env.action_space.sample())[0]
            is_varied = not np.array_equal(*self.space.tree_values[[0, -1]])
            is_ignored = self.set_start is not None and is_varied and is_start_ignored(env, start, probes, radius)
            env.close()
            refuse_own_numbers(self.env_name, self.prepare_env, probes[0], radius)
        if is_ignored:
            # no error, because the start may matter later in the episode
            text = (
                f"set_start: {probes[0]} and {probes[1]} lead to the same first steps; set attributes of env.unwrapped"
            )
            warnings.warn(text, RunWarning, stacklevel=2)
        # an environment that ends its episodes at a goal of its own would make the certificate false
        shown = seen.get("desired_goal") if self.subject == "goal" and isinstance(seen, dict) else None
        if shown is not None and not np.allclose(shown, first["desired_goal"]):
            raise InputError(f"{self.env_name} does not keep the goal that was set; give set_start", "goals")
        return radius

    @contextlib.contextmanager
    def convert_exceptions(self) -> Iterator[None]:
        """Turn exceptions of the environment in this block into an EnvironmentFailure."""
        try:
            yield
        except InputError:
            raise
        except (Exception, SystemExit) as error:
            raise EnvironmentFailure(f"{self.env_name} raised {describe_user_exception(error)}", "env") from error


class Player(Protocol):
    """Plays blocks of episodes; a block seeds its own resets by (round, block)."""

    def play_blocks(self, blocks: Sequence[tuple[int, Floats]], round_: int) -> list[Outcomes]:
        """Play blocks (index, values ``[n, V]``); return the outcomes ``[n]`` of each."""


class EpisodePlayer:
    """A :class:`Player` for Gymnasium environments.

    The episodes of a block are played in step, so a network computes the actions of all of them at once.
    """

    def __init__(self, task: EpisodeTask) -> None:
        self._task, self._policy = task, task.make_policy()
        self._envs = [task.prepare_env() for _ in range(ROLLOUTS_PER_BLOCK)]
        self._action_space = self._envs[0][0].action_space
        self._calls_to_repeat = 16
        if isinstance(self._policy, Sb3Policy):
            self._policy.check_spaces(self._envs[0][0])
            self._calls_to_repeat = 0

    def play_blocks(self, blocks: Sequence[tuple[int, Floats]], round_: int) -> list[Outcomes]:
        """See :meth:`Player.play_blocks`."""
        return [self._play_block(values, round_, block) for block, values in blocks]

    def _play_block(self, values: Floats, round_: int, block: int) -> Bools:
        task, n = self._task, len(values)
        rngs = [random_stream(task.seed, StreamPurpose.CERTIFIED_EPISODE, round_, k, block) for k in range(n)]
        episodes = [self._start_episode(*slot) for slot in zip(self._envs, rngs, values, strict=False)]
        success: list[bool | None] = [None] * n
        for t in range(task.radius):
            running = [k for k in range(n) if success[k] is None]
            if not running:
                break
            actions = self._choose_actions([episodes[k].observations[-1] for k in running], [rngs[k] for k in running])
            for k, action in zip(running, actions, strict=True):
                env, episode = self._envs[k][0], episodes[k]
                self._step(env, episode, action)
                is_over = episode.terminated or episode.truncated or t + 1 == task.radius
                with task.convert_exceptions():
                    success[k] = task.criterion.judge(env, episode, is_over)
        return np.array(success, bool)

    def _choose_actions(self, observations: Sequence[Any], rngs: Sequence[np.random.Generator]) -> Sequence[Any]:
        rngs_before = copy.deepcopy(rngs) if self._calls_to_repeat else None
        actions = [check_action(self._action_space, action) for action in self._policy(observations, rngs)]
        # Memory would mix up the episodes, and a generator of the policy's own draws the same numbers in every worker.
        if rngs_before is not None:
            self._calls_to_repeat -= 1
            # in reverse order, because a memory that alternates would repeat itself after an even number of episodes
            again = self._policy(observations[::-1], rngs_before[::-1])[::-1]
            if not data_equivalence(actions, [check_action(self._action_space, action) for action in again]):
                text = "must return the same action for the same observation, without memory and without random numbers"
                raise InputError(f"{text} of its own; a random one is policy(observation, rng)", "policy")
        return actions

    def _start_episode(self, env: tuple[Any, StartSetter], rng: np.random.Generator, value: Floats) -> Episode:
        seed, named = int(rng.integers(2**31)), self._task.space.split_names(value)
        with self._task.convert_exceptions():
            return Episode(named, [copy.deepcopy(env[1](env[0], seed, named))])

    def _step(self, env: Any, episode: Episode, action: Any) -> None:
        with self._task.convert_exceptions():
            observation, reward, episode.terminated, episode.truncated, info = env.step(action)
            episode.rewards.append(float(reward))
        # a copy, because environments may return the same array in every step
        episode.observations.append(copy.deepcopy(observation))
        episode.actions.append(action)
        episode.infos.append(info)


class PairPlayer:
    """Plays the episodes of two policies with the same values and seeds; 1: only the first succeeds, -1: the second."""

    def __init__(self, *tasks: EpisodeTask) -> None:
        self._players = [EpisodePlayer(task) for task in tasks]

    def play_blocks(self, blocks: Sequence[tuple[int, Floats]], round_: int) -> list[Outcomes]:
        """See :meth:`Player.play_blocks`."""
        first = self._players[0].play_blocks(blocks, round_)
        try:
            second = self._players[1].play_blocks(blocks, round_)
        except InputError as error:
            raise type(error)(error.reason, "versus" if error.name == "policy" else error.name) from error
        return [a.astype(np.int64) - b for a, b in zip(first, second, strict=True)]


@contextlib.contextmanager
def open_players(make: Callable[[], Player], workers: int, in_process: bool = False) -> Iterator[PlayFunction]:
    """Yield the function that plays values ``[n, V]`` in blocks; worker i of n takes the blocks i, i + n, i + 2n, ...

    The result does not depend on the number of workers. ``in_process`` allows a single worker to be this process.
    """
    if workers == 1 and in_process:
        player = make()
        yield lambda values, round_: np.concatenate(player.play_blocks(list(enumerate(_blocks(values))), round_))
        return
    try:
        pickled = cloudpickle.dumps(make)
    except Exception as error:
        text = f"cannot be sent to worker processes ({type(error).__name__}: {error}); use workers=1"
        raise InputError(text, "policy") from error
    processes = [
        make_rollout_process(functools.partial(_make_from_pickle, pickled))
        for _ in range(min(workers, MIN_BLOCKS_PER_ROUND))
    ]

    def play(values: Floats, round_: int) -> Outcomes:
        n, blocks = len(processes), list(enumerate(_blocks(values)))
        for i, process in enumerate(processes):
            process.send("play_blocks", blocks[i::n], round_)
        found: list[Any] = [None] * len(blocks)
        for i, process in enumerate(processes):
            found[i::n] = process.receive()
        return np.concatenate(found)

    try:
        for process in processes:
            process.start()
        yield play
    finally:
        stop_rollout_processes(processes)


def _blocks(values: Floats) -> Sequence[Floats]:
    return np.split(values, len(values) // ROLLOUTS_PER_BLOCK)


def _make_from_pickle(pickled: bytes) -> Any:
    # cloudpickle, because players hold functions of the user, which plain pickle cannot send
    make = cloudpickle.loads(pickled)
    # Every process has imported the script of the user. If that seeds them, all would draw the same numbers.
    np.random.seed()  # noqa: NPY002
    random.seed()
    return make()
