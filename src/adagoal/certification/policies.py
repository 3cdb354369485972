"""Policies of users: functions and Stable-Baselines3 models, called for several episodes at once.

A .zip file of Stable-Baselines3 contains pickled code, which runs when the file is loaded. Only the user can name such
a file; no folder of a run can.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import importlib
import inspect
import io
import os
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
from gymnasium import spaces

from adagoal.core.errors import EnvironmentFailure, InputError, describe_exception, describe_user_exception
from adagoal.core.installation import require_package
from adagoal.core.user_code import is_file_spec, load_from_file

BatchPolicy = Callable[[Sequence[Any], Sequence[np.random.Generator]], Sequence[Any]]
"""``act(observations, generators) -> actions``: one action per episode."""


class PolicySource(NamedTuple):
    """Makes the policy in the process that plays."""

    make: Callable[[], BatchPolicy]
    text: str  # a name for the certificate
    fingerprint: str  # SHA-256, by which a resumed certification recognises the policy


def find_policy(policy: Any) -> PolicySource:
    """Return the source of a function, a Stable-Baselines3 model, a .zip file, ``module:function`` or FILE.py:NAME."""
    if isinstance(policy, str | os.PathLike):
        return _find_named_policy(str(policy))
    model = getattr(policy, "__self__", policy)
    if is_sb3_model(model):
        # VecNormalize belongs to the model, and its method predict draws actions at random
        if model is not policy or not hasattr(model, "get_vec_normalize_env"):
            raise InputError("must be the model of Stable-Baselines3 itself, not its policy or a method", "policy")
        return _find_sb3_model(policy)
    if not callable(policy):
        text = (
            f"must be a function of the observation, a Stable-Baselines3 model or a folder, not {type(policy).__name__}"
        )
        raise InputError(text, "policy")
    name = getattr(policy, "__qualname__", type(policy).__name__)
    return PolicySource(functools.partial(_FunctionPolicy, policy), name, fingerprint_function(policy, "policy"))


def _find_named_policy(name: str) -> PolicySource:
    if name.endswith(".zip"):
        try:
            data = Path(name).read_bytes()
        except OSError as error:
            raise InputError(f"{name} cannot be read ({error.strerror})", "policy") from None
        # Before anything in the file is loaded, because loading runs code.
        if not zipfile.is_zipfile(name) or not {"data", "policy.pth"} <= {*zipfile.ZipFile(name).namelist()}:
            raise InputError(f"{name} is not a model of Stable-Baselines3 (model.save)", "policy")
        require_package("stable_baselines3", "sb3", argument="policy")
        return PolicySource(functools.partial(Sb3Policy, data), Path(name).name, hashlib.sha256(data).hexdigest())
    if is_file_spec(name):
        return find_policy(load_from_file(name, "policy"))._replace(text=Path(name).name)
    module, _, attribute = name.partition(":")
    if not attribute:
        raise InputError(f"must be a folder, MODEL.zip, module:function or FILE.py:NAME, got {name!r}", "policy")
    try:
        function = functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"{name} cannot be imported ({error})", "policy") from None
    except (Exception, SystemExit) as error:
        raise EnvironmentFailure(f"{name} raised {describe_user_exception(error)}", "policy") from error
    return find_policy(function)._replace(text=name)


class _FunctionPolicy:
    """A function ``policy(observation)``, or ``policy(observation, rng)`` if it draws random numbers."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        # A generator of the function's own would draw the same numbers in every worker.
        try:
            self._takes_rng = "rng" in inspect.signature(function).parameters
        except (TypeError, ValueError):  # compiled functions may have no signature
            self._takes_rng = False

    def __call__(self, observations: Sequence[Any], generators: Sequence[np.random.Generator]) -> Sequence[Any]:
        try:
            return [self._call(*pair) for pair in zip(observations, generators, strict=True)]
        except (Exception, SystemExit) as error:
            raise EnvironmentFailure(f"the function raised {describe_user_exception(error)}", "policy") from error

    def _call(self, observation: Any, rng: np.random.Generator) -> Any:
        # Copies, because a function may normalise its observation in place, or return the same array in every call.
        given = copy.deepcopy(observation)
        action = self._function(given, rng=rng) if self._takes_rng else self._function(given)
        return action.copy() if isinstance(action, np.ndarray) else action


def fingerprint_function(function: Any, argument: str) -> str:
    """Return a hash that changes with the code of the function and the values that it holds."""
    target = function
    while isinstance(target, functools.partial):
        target = target.func
    target = target if inspect.isroutine(target) or inspect.isclass(target) else type(target)
    try:
        source = inspect.getsource(inspect.getmodule(target) or target)
    except (OSError, TypeError):
        source = ""
    pickled = io.BytesIO()
    try:
        _FingerprintPickler(pickled).dump(function)
    except Exception as error:
        raise InputError(f"cannot be pickled ({describe_exception(error)})", argument) from error
    return hashlib.sha256(pickled.getvalue() + source.encode()).hexdigest()


class _FingerprintPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Leaves out what differs in every process: the order of texts in a set, and the id of a class of a script."""

    def persistent_id(self, value: Any) -> Any:
        if type(value) in (set, frozenset) and all(isinstance(each, str | bytes | int | float) for each in value):
            return type(value).__name__, *sorted(map(repr, value))
        return None

    def reducer_override(self, value: Any) -> Any:
        reduced = super().reducer_override(value)
        if isinstance(value, type) and isinstance(reduced, tuple):
            make, arguments, *rest = reduced
            return make, tuple(a for a in arguments if not re.fullmatch("[0-9a-f]{32}", str(a))), *rest
        return reduced


def is_sb3_model(policy: Any) -> bool:
    """Return whether this is a model or a policy of Stable-Baselines3 or a package that extends it."""
    modules = {kind.__module__.partition(".")[0] for kind in type(policy).__mro__}
    return "stable_baselines3" in modules and hasattr(policy, "predict")


def _find_sb3_model(model: Any) -> PolicySource:
    """Return a source that holds a copy of the model's weights, as the model may go on training."""
    normaliser = model.get_vec_normalize_env()
    weights = {name: value.detach().cpu().numpy() for name, value in sorted(model.policy.state_dict().items())}
    hashed = hashlib.sha256(b"".join(name.encode() + value.tobytes() for name, value in weights.items()))
    # the statistics of VecNormalize are part of the policy
    pickled = None if normaliser is None else cloudpickle.dumps(normaliser)
    hashed.update(pickled or b"")
    buffer = io.BytesIO()
    model.save(buffer)
    make = functools.partial(Sb3Policy, buffer.getvalue(), pickled)
    return PolicySource(make, type(model).__name__, hashed.hexdigest())


class Sb3Policy:
    """A model in the bytes of its .zip file; plays deterministically, as ``model.predict(..., deterministic=True)``."""

    def __init__(self, data: bytes, pickled_normaliser: bytes | None = None) -> None:
        from stable_baselines3.common.save_util import load_from_zip_file

        # Only the policy is rebuilt. So every algorithm can be loaded, also one that is not known here.
        try:
            facts, weights, _ = load_from_zip_file(io.BytesIO(data), device="cpu")
            self._spaces = facts["observation_space"], facts["action_space"]
            arguments = {"use_sde": True} if facts.get("use_sde") else {}
            self._policy = facts["policy_class"](*self._spaces, lambda _: 0.0, **arguments, **facts["policy_kwargs"])
            self._policy.load_state_dict(weights["policy"])
        except Exception as error:
            raise EnvironmentFailure(f"the model cannot be loaded ({describe_exception(error)})", "policy") from error
        self._normaliser = None if pickled_normaliser is None else cloudpickle.loads(pickled_normaliser)

    def check_spaces(self, env: Any) -> None:
        """Raise an InputError if the model was trained for other observations or actions."""
        observations, actions = self._spaces
        text = None
        if not _has_shape(observations, env.observation_space):
            own, other = (
                f"shape {space.shape}" if isinstance(space, spaces.Box) else str(space)[:120]
                for space in (observations, env.observation_space)
            )
            text = f"observations of {own}, the environment has {other}"
        elif actions != env.action_space:
            text = f"actions of {actions}, the environment has {env.action_space}"
        if text is not None:
            raise InputError(f"the model has {text}; give the environment with the wrappers of training", "policy")

    def __call__(self, observations: Sequence[Any], generators: Sequence[np.random.Generator]) -> Sequence[Any]:
        first = observations[0]
        batch: Any = np.stack(observations) if not isinstance(first, dict) else None
        if batch is None:
            batch = {name: np.stack([seen[name] for seen in observations]) for name in first}
        try:
            if self._normaliser is not None:
                batch = self._normaliser.normalize_obs(batch)
            actions, memory = self._policy.predict(batch, deterministic=True)
        except Exception as error:
            raise EnvironmentFailure(f"the model raised {describe_exception(error)}", "policy") from error
        if memory is not None:
            raise InputError("the model is recurrent, which is not supported; give one without memory", "policy")
        return list(actions)


def _has_shape(own: Any, other: Any) -> bool:
    """Return whether observations of a space fit the space of a model."""
    if isinstance(own, spaces.Dict) and isinstance(other, spaces.Dict):
        return own.keys() == other.keys() and all(_has_shape(own[name], other[name]) for name in own)
    if isinstance(own, spaces.Box) and isinstance(other, spaces.Box):
        # sorted, because models take images with the channels first
        return sorted(own.shape) == sorted(other.shape)
    return bool(own == other)


def check_action(space: Any, action: Any) -> Any:
    """Return the action as the environment takes it; raise an InputError if it does not fit the action space."""
    shapes = None
    # numbers that NumPy cannot make of the action are reported below
    with contextlib.suppress(TypeError, ValueError, OverflowError, RuntimeError):
        if isinstance(space, spaces.Box):
            numbers = np.asarray(action)
            if numbers.dtype.kind in "fiu" and numbers.shape != space.shape:
                shapes = f"shape {space.shape}, got shape {numbers.shape}"
            # The ends of the box are not checked: many environments clip, and rounding may leave the box.
            elif numbers.dtype.kind in "fiu" and np.isfinite(numbers).all():
                return numbers
        elif isinstance(space, spaces.Discrete):
            # models return arrays of one integer
            number = np.asarray(action).reshape(())[()]
            if number == int(number) and space.start <= number < space.start + space.n:
                return int(number)
        elif space.contains(action):
            return action
    raise InputError(f"must return an action of {shapes or f'{space}, got {str(action)[:60]}'}", "policy")
