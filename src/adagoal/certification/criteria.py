"""Success criteria of an episode: ``is_success``, survival, return, or a function of the user.

None          ``info["is_success"]``, or the reward of being at the goal, after any step
"survive:N"   N steps without termination
"return:X"    the sum of rewards is at least X
a function    of the :class:`Episode`, called at its end
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adagoal.core.errors import EnvironmentFailure, InputError, describe_user_exception


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
        except Exception as error:
            raise EnvironmentFailure(f"the function raised {describe_user_exception(error)}", "criterion") from error
        if not isinstance(found, bool | np.bool_):
            raise InputError(f"the function must return True or False, got {repr(found)[:60]}", "criterion")
        return bool(found)

    return judge
