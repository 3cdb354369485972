"""A trained policy without JAX: actor and critics as NumPy arrays, their form in a file, and :class:`GoalPolicy`.

    a = tanh( MLP( clip((o - mean_o) / std_o), clip((g - mean_g) / std_g) ) )    in [-1, 1]^A

Networks learn with JAX (:mod:`adagoal.deep.networks`). Rollout workers and loaded policies act with NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from hashlib import sha256
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core.array_types import Floats, Singles
from adagoal.core.errors import InputError
from adagoal.core.file_formats import ArraySpec
from adagoal.deep import value_formulas
from adagoal.deep.goal_envs import EnvDimensions, flatten_numbers
from adagoal.deep.value_formulas import ErrorModel, forward_mlp

NumpyLayers = Sequence[tuple[Singles, Singles]]


@dataclass(frozen=True)
class NumpyActor:
    """Weights of one run's actor, and the normalisers in front of it."""

    layers: NumpyLayers
    observation_mean: Singles
    observation_std: Singles
    goal_mean: Singles
    goal_std: Singles
    clip: float

    @property
    def action_size(self) -> int:
        """A: numbers in an action."""
        return int(self.layers[-1][1].shape[0])

    def __call__(self, observation: Floats, goal: Floats) -> Singles:
        """Noise-free actions ``[B, A]`` for observations ``[B, O]`` and goals ``[B, G]``."""
        return np.asarray(np.tanh(forward_mlp(self.layers, self.normalise_inputs(observation, goal), _relu)))

    def normalise_inputs(self, observation: Floats, goal: Floats) -> Singles:
        """Network inputs ``[B, O + G]``."""
        o = np.clip((observation - self.observation_mean) / self.observation_std, -self.clip, self.clip)
        g = np.clip((goal - self.goal_mean) / self.goal_std, -self.clip, self.clip)
        return np.concatenate([o, g], -1).astype(np.float32)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Named arrays for a file."""
        normalisers = {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)[1:]}
        return _layers_to_arrays("", self.layers) | normalisers

    @staticmethod
    def array_schema(prefix: str, depth: int) -> dict[str, ArraySpec]:
        """Schema of the arrays of an actor with ``depth`` layers; W0 = O + G, W1, ... are the widths."""
        schema: dict[str, ArraySpec] = {}
        for i in range(depth):
            schema[f"{prefix}weight{i}"] = _weight_spec(f"W{i}", f"W{i + 1}")
            schema[f"{prefix}bias{i}"] = _weight_spec(f"W{i + 1}")
        for name, size in (("observation", "O"), ("goal", "G")):
            schema[f"{prefix}{name}_mean"] = _weight_spec(size)
            # a divisor: a forged file with 0 would make actions NaN
            schema[f"{prefix}{name}_std"] = ArraySpec("float32", (size,), low=1e-6)
        return schema | {f"{prefix}clip": ArraySpec("float64", (), low=1e-6)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> NumpyActor:
        """The inverse of :meth:`to_arrays`."""
        names = "observation_mean", "observation_std", "goal_mean", "goal_std"
        moments = {name: arrays[name] for name in names}
        return cls(_layers_from_arrays("", arrays), **moments, clip=float(arrays["clip"]))


@dataclass(frozen=True)
class NumpyCritics:
    """The J critics of one run: layers of weights ``[J, in, out]`` and biases ``[J, out]``."""

    layers: NumpyLayers
    gamma: float
    uses_layer_norm: bool
    error_model: ErrorModel | None  # None before the end of training

    def __call__(self, obs_goal: Singles, action: Singles) -> Floats:
        """D ``[B]`` in steps, for network inputs ``[B, O + G]`` and actions ``[B, A]``."""
        x = np.concatenate([obs_goal, action], -1)[None].astype(np.float32)
        layers = [(weight, bias[:, None]) for weight, bias in self.layers]
        q = forward_mlp(layers, x, value_formulas.layer_norm_relu if self.uses_layer_norm else _relu)[..., 0]
        # double precision: near the cap of the cost, D is the logarithm of a small difference
        D: Floats = value_formulas.cost_to_steps(-q.astype(np.float64).mean(0), self.gamma)
        return D

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Named arrays for a file."""
        # a file holds only arrays of numbers: a model of no episodes stands for None
        D, errors, factor = self.error_model or ErrorModel(np.zeros(0), np.zeros(0), 0.0)
        numbers: dict[str, Any] = {"gamma": self.gamma, "normed": float(self.uses_layer_norm)}
        numbers |= {"error_D": D, "error_steps": errors, "error_factor": factor}
        arrays = _layers_to_arrays("critic_", self.layers)
        return arrays | {f"critic_{name}": np.asarray(value, np.float64) for name, value in numbers.items()}

    @staticmethod
    def array_schema(prefix: str, depth: int) -> dict[str, ArraySpec]:
        """Schema of the arrays of critics with ``depth`` layers; the first is C0 = O + G + A wide."""
        schema: dict[str, ArraySpec] = {}
        for i in range(depth):
            width: int | str = 1 if i == depth - 1 else f"C{i + 1}"
            schema[f"{prefix}critic_weight{i}"] = _weight_spec("J", f"C{i}", width)
            schema[f"{prefix}critic_bias{i}"] = _weight_spec("J", width)
        schema[f"{prefix}critic_gamma"] = ArraySpec("float64", (), low=0.0, below=1)
        schema[f"{prefix}critic_normed"] = ArraySpec("float64", (), low=0.0, high=1.0)
        for name, shape in (("D", ("M",)), ("steps", ("M",)), ("factor", ())):
            schema[f"{prefix}critic_error_{name}"] = ArraySpec(
                "float64", shape, low=0, high=value_formulas.MAX_CALIBRATION
            )
        return schema

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> NumpyCritics | None:
        """The inverse of :meth:`to_arrays`; None if the file has no critics."""
        layers = _layers_from_arrays("critic_", arrays)
        if not layers:
            return None
        gamma, normed, factor = (float(arrays[f"critic_{name}"]) for name in ("gamma", "normed", "error_factor"))
        model = ErrorModel(arrays["critic_error_D"], arrays["critic_error_steps"], factor)
        return cls(layers, gamma, bool(normed), model if len(model.D) else None)


def _relu(x: Any) -> Any:
    return np.maximum(x, 0.0)


def _weight_spec(*shape: int | str) -> ArraySpec:
    # without a bound, products of the weights of a forged file could overflow
    return ArraySpec("float32", shape, low=-1e6, high=1e6)


def _layers_to_arrays(prefix: str, layers: NumpyLayers) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    for i, (weight, bias) in enumerate(layers):
        arrays |= {f"{prefix}weight{i}": weight, f"{prefix}bias{i}": bias}
    return arrays


def _layers_from_arrays(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> NumpyLayers:
    depth = sum(name.startswith(f"{prefix}weight") for name in arrays)
    return [(arrays[f"{prefix}weight{i}"], arrays[f"{prefix}bias{i}"]) for i in range(depth)]


@dataclass(frozen=True)
class GoalPolicy:
    """``policy(observation, goal) -> action``, as the environment's ``step`` takes it.

    A batch works as well: arrays with one more dimension in front, as a vector environment returns them, give actions
    ``[B, ...]`` and distances ``[B]``. Either the observations or the goal may be a single one.

    The observation is the whole dictionary that the environment returns. If its entry ``observation`` contains the
    achieved goal, that entry alone is enough. Goals have the form of ``desired_goal``.
    """

    env: str
    actor: NumpyActor
    critics: NumpyCritics | None  # None if training learnt no critics for D and E
    low: tuple[float, ...]  # ends of the action box, [A]
    high: tuple[float, ...]
    shape: tuple[int, ...]  # of an action
    with_achieved: bool  # whether the network input has the achieved goal appended to the observation
    success: float  # radius around a goal in which it counts as reached

    def __repr__(self) -> str:
        sizes = len(self.actor.observation_mean), len(self.actor.goal_mean), self.actor.action_size
        return "<Policy for {}: from {} numbers and a goal of {} to an action of {}>".format(self.env, *sizes)

    def _repr_html_(self) -> str:
        sizes = len(self.actor.observation_mean), len(self.actor.goal_mean), self.actor.action_size
        facts = {"environment": self.env, "observation": f"{sizes[0]} numbers", "goal": f"{sizes[1]} numbers"}
        facts |= {"action": f"{sizes[2]} numbers", "reached within": f"{self.success:g}"}
        facts |= {"distances": "not learnt" if self.critics is None else "policy.distance, policy.uncertainty"}
        rows = (f"<tr><th>{name}</th><td>{escape(fact)}</td></tr>" for name, fact in facts.items())
        return f"<table>{''.join(rows)}</table>"

    def check_matches_env(self, sizes: EnvDimensions) -> None:
        """Raise an InputError if the environment differs from the one of training."""
        expected: dict[str, Any] = {"observation": len(self.actor.observation_mean), "goal": len(self.actor.goal_mean)}
        expected |= {"action": self.actor.action_size, "low": self.low, "high": self.high, "success": self.success}
        sizes.check_same(self.env, expected)

    def __call__(self, observation: Any, goal: Any) -> Singles:
        """The noise-free action for an observation and a goal, or the actions for a batch."""
        o, g, is_batch = self._parse_inputs(observation, goal)
        # scaled in double precision and then clipped, because the sum may round past the end of the box
        low, high = np.array(self.low), np.array(self.high)
        action = (low + high) / 2 + (high - low) / 2 * self.actor(o, g)
        actions = np.clip(action.astype(np.float32), *_float32_box_ends(low, high)).reshape(-1, *self.shape)
        return actions if is_batch else actions[0]

    def distance(self, observation: Any, goal: Any) -> Any:
        """D: the expected number of steps to the goal, the arriving one included; ``[B]`` for a batch."""
        D, is_batch = self._distances(observation, goal)
        return D if is_batch else float(D[0])

    def uncertainty(self, observation: Any, goal: Any) -> Any:
        """The error of :meth:`distance`, in steps; ``[B]`` for a batch.

        It is predicted from fresh episodes after training: 90% of the episodes for ``test_goals``, from starts of the
        environment, first reach their goal after ``distance`` +- ``uncertainty`` steps. An episode that ends without
        success counts as covered if ``distance`` + ``uncertainty`` is at least its length.
        """
        D, is_batch = self._distances(observation, goal)
        assert self.critics is not None
        if self.critics.error_model is None:
            text = "is calibrated at the end of training; this policy is from an unfinished run"
            raise InputError(text, "uncertainty")
        errors = self.critics.error_model.predict(D)
        return errors if is_batch else float(errors[0])

    def fingerprint(self) -> str:
        """SHA-256 of the actor's weights; a certificate names the policy by it."""
        # without the critics: they do not act, so a certificate stays valid if only they change
        arrays = sorted(self.actor.to_arrays().items())
        return sha256(b"".join(name.encode() + np.ascontiguousarray(a).tobytes() for name, a in arrays)).hexdigest()

    def weights(self) -> dict[str, NDArray[Any]]:
        """Actor and critics as named arrays."""
        return self.actor.to_arrays() | ({} if self.critics is None else self.critics.to_arrays())

    def _distances(self, observation: Any, goal: Any) -> tuple[Floats, bool]:
        if self.critics is None:
            raise InputError("is not known: this run learnt no distances, as its goal rule needs none", "distance")
        o, g, is_batch = self._parse_inputs(observation, goal)
        return self.critics(self.actor.normalise_inputs(o, g), self.actor(o, g)), is_batch

    def _parse_inputs(self, observation: Any, goal: Any) -> tuple[Floats, Floats, bool]:
        """Network inputs ``[B, O]`` and ``[B, G]``, and whether the caller gave a batch; B is 1 if not."""
        whole = isinstance(observation, Mapping) and "achieved_goal" in observation
        if self.with_achieved and not whole:
            text = "give the whole observation of the environment: its entry 'observation' lacks the achieved goal"
            raise InputError(text, "observation")
        if whole and "observation" not in observation:
            raise InputError("must have the entries 'observation' and 'achieved_goal'", "observation")
        O, G = len(self.actor.observation_mean), len(self.actor.goal_mean)
        seen = observation["observation"] if whole else observation
        rows = [_parse_rows(seen, O - G * self.with_achieved, "observation"), _parse_rows(goal, G, "goal")]
        if self.with_achieved:
            rows.append(_parse_rows(observation["achieved_goal"], G, "observation"))
        sizes = {len(numbers) for numbers, is_batch in rows if is_batch}
        if len(sizes) > 1:
            raise InputError(f"observations and goals are batches of different sizes, {sorted(sizes)}", "goal")
        n = max(sizes, default=1)
        o, g, *achieved = (np.broadcast_to(numbers, (n, numbers.shape[1])) for numbers, _ in rows)
        return np.concatenate([o, *achieved], 1), g, bool(sizes)


def _float32_box_ends(low: Floats, high: Floats) -> tuple[Singles, Singles]:
    # Rounded inwards: the nearest single of 0.1 is larger than 0.1, so Box.contains would refuse the action.
    first, last = low.astype(np.float32), high.astype(np.float32)
    up, down = np.float32(np.inf), np.float32(-np.inf)
    return np.where(first < low, np.nextafter(first, up), first), np.where(last > high, np.nextafter(last, down), last)


def _parse_rows(value: Any, size: int, name: str) -> tuple[Floats, bool]:
    """Return one vector as ``[1, size]``, or a batch of them as ``[B, size]``, and whether ``value`` is a batch.

    All arrays of a batch have B as their first dimension, also those in mappings and tuples.
    """
    try:
        vector, leaves = flatten_numbers(value), _leaves(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"must be numbers, got {str(value)[:80]!r}", name) from error
    lengths, dimensions = {leaf.shape[:1] for leaf in leaves}, sorted(leaf.ndim for leaf in leaves)
    is_batch = False
    if vector.size > 0 and len(lengths) == 1 and dimensions[-1] > 1:
        B = len(leaves[0])
        # Parts of a single observation may have a first dimension of 1, too, but hardly all of them.
        is_batch = vector.size == B * size and (B > 1 or dimensions[0] > 1)
    rows = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], 1) if is_batch else vector[None]
    if rows.shape[1] != size or not np.isfinite(rows).all():
        raise InputError(f"must be {size} finite numbers, or a batch [B, {size}], got {vector.tolist()[:8]}", name)
    return rows, is_batch


def _leaves(value: Any) -> list[Floats]:
    """Return the arrays of a nesting of mappings and tuples, in the order of :func:`flatten_numbers`."""
    if isinstance(value, Mapping):
        value = tuple(value[name] for name in sorted(value))
    if isinstance(value, tuple):
        return [leaf for part in value for leaf in _leaves(part)]
    return [np.asarray(value, np.float64)]
