"""Put an environment into a goal or start that the certification has drawn.

The first of these is used:

- the user's function ``set_start(env, value)``, called after a reset
- for goals: the environment's own way to set a goal
- for the classic control environments of Gymnasium: the variables of their state, by name (:data:`STATE_VARIABLES`)
- otherwise ``reset(options={name: number})``, if it changes the first observation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adagoal.core.errors import InputError
from adagoal.core.types import Floats

StartSetter = Callable[[Any, int, Any], Any]
"""``set_start(env, seed, value)``: reset the environment, put it there, and return the first observation."""

STATE_VARIABLES = {
    "CartPoleEnv": ("x", "x_dot", "theta", "theta_dot"),
    "PendulumEnv": ("theta", "theta_dot"),
    "MountainCarEnv": ("position", "velocity"),
    "Continuous_MountainCarEnv": ("position", "velocity"),
    "AcrobotEnv": ("theta1", "theta2", "theta1_dot", "theta2_dot"),
}
"""Entries of ``env.unwrapped.state`` by the class of the environment (``gymnasium.envs.classic_control``)."""


def reset_env(env: Any, seed: int, **options: Any) -> Any:
    """Return the first observation of an episode."""
    return env.reset(seed=seed, **options)[0]


def user_start_setter(set_start: Callable[[Any, Any], Any]) -> StartSetter:
    """Return the setter that calls the user's function after a reset; None as its result keeps the observation."""

    def set_by_function(env: Any, seed: int, value: Any) -> Any:
        first = reset_env(env, seed)
        observation = set_start(env, value)
        return first if observation is None else observation

    return set_by_function


def goal_setter(env: Any, set_goal: Callable[[Any], None]) -> StartSetter:
    """Return the setter for goals ``[V]`` in the form of ``desired_goal``."""

    def set_by_goal(env: Any, seed: int, value: Any) -> Any:
        observation = dict(reset_env(env, seed))
        wanted = np.asarray(observation["desired_goal"])
        numbers = np.array(list(value.values()) if isinstance(value, dict) else value)
        if numbers.size != wanted.size:
            raise InputError(f"must have {wanted.size} numbers, as desired_goal, got {numbers.size}", "goals")
        goal = numbers.astype(wanted.dtype).reshape(wanted.shape)
        set_goal(goal)
        # the observation of the reset still shows the goal that the environment drew
        return observation | {"desired_goal": goal}

    return set_by_goal


def find_start_setter(env: Any, names: tuple[str, ...] | None, probes: Sequence[Any] = ()) -> StartSetter:
    """Return the built-in setter for named starts of this environment; ``probes`` are starts to try it with."""
    name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    if names is None:
        text = f"missing; starts of {name} need names of reset options, or a function set_start(env, start)"
        raise InputError(text, "set_start")
    known = STATE_VARIABLES.get(type(env.unwrapped).__name__, ())
    if known and type(env.unwrapped).__module__.startswith("gymnasium.envs.classic_control"):
        unknown = [each for each in names if each not in known]
        if unknown:
            raise InputError(f"{name} has no variable {unknown[0]!r}; it has {', '.join(known)}", "starts")
        return _set_state_variables
    if probes:
        _check_options_matter(env, probes, name)
    return lambda env, seed, value: reset_env(env, seed, options=dict(value))


def _set_state_variables(env: Any, seed: int, value: Any) -> Any:
    core = env.unwrapped
    reset_env(env, seed)
    variables = STATE_VARIABLES[type(core).__name__]
    state = np.array(core.state)
    for name, number in value.items():
        state[variables.index(name)] = number
    core.state = state
    # Pendulum and Acrobot observe sines and cosines of their state; the others observe the state itself.
    observe = getattr(core, "_get_obs", None) or getattr(core, "_get_ob", None)
    return state.astype(np.float32) if observe is None else observe()


def _check_options_matter(env: Any, probes: Sequence[dict[str, float]], env_name: str) -> None:
    """Raise an InputError if the environment ignores the options: a certificate would then vary nothing."""
    env.reset(seed=0)
    seen = [_flatten(reset_env(env, 0, options=options)) for options in (None, *probes)]
    if all(np.array_equal(each, seen[0]) for each in seen[1:]):
        text = f"{env_name} ignores the reset options {', '.join(probes[0])}; give set_start(env, start)"
        raise InputError(text, "starts")


def _flatten(observation: Any) -> Floats:
    parts = list(observation.values()) if isinstance(observation, dict) else [observation]
    return np.concatenate([np.asarray(part, np.float64).ravel() for part in parts])
