"""The actor: what it computes, and how it is kept. The only place that knows its layout. Needs no JAX.

    a = tanh( MLP( clip((o - mean_o) / std_o), clip((g - mean_g) / std_g) ) )    in [-1, 1]^A

The networks learn with JAX and act with NumPy: :func:`forward_mlp` and :func:`forward_actor` take arrays of either,
with the functions that fit them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core.file_formats import ArraySpec
from adagoal.core.types import Floats, Singles

MIN_DIVISOR = 1e-6
"""Standard deviations and clips are at least this: they divide, and bound what is divided."""
MAX_ABS_WEIGHT = 1e6
"""No weight, bias or mean is larger: products of them must not overflow."""
ElementwiseFunction = Callable[[Any], Any]


def forward_mlp(layers: Sequence[tuple[Any, Any]], x: Any, relu: ElementwiseFunction) -> Any:
    """``[..., first width] -> [..., last width]`` with ``relu`` between the layers (weight, bias)."""
    for weight, bias in layers[:-1]:
        x = relu(x @ weight + bias)
    weight, bias = layers[-1]
    return x @ weight + bias


def forward_actor(
    layers: Sequence[tuple[Any, Any]], og: Any, relu: ElementwiseFunction, tanh: ElementwiseFunction
) -> Any:
    """Actions ``[..., A]`` in [-1, 1] for normalised (observation, goal) ``[..., O + G]``."""
    return tanh(forward_mlp(layers, og, relu))


@dataclass(frozen=True)
class NumpyActor:
    """Weights of one run's actor, and the normalisers in front of it."""

    layers: Sequence[tuple[Singles, Singles]]
    observation_mean: Singles
    observation_std: Singles
    goal_mean: Singles
    goal_std: Singles
    clip: float

    @property
    def action_size(self) -> int:
        """A: how many numbers an action has."""
        return int(self.layers[-1][1].shape[0])

    def __call__(self, observation: Floats, goal: Floats) -> Singles:
        """Noise-free actions ``[B, A]`` for observations ``[B, O]`` and goals ``[B, G]``."""
        og = self.normalise_inputs(observation, goal)
        return np.asarray(forward_actor(self.layers, og, lambda x: np.maximum(x, 0.0), np.tanh))

    def normalise_inputs(self, observation: Floats, goal: Floats) -> Singles:
        """What the networks see ``[B, O + G]``."""
        o = np.clip((observation - self.observation_mean) / self.observation_std, -self.clip, self.clip)
        g = np.clip((goal - self.goal_mean) / self.goal_std, -self.clip, self.clip)
        return np.concatenate([o, g], -1).astype(np.float32)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Named arrays for a file."""
        arrays: dict[str, NDArray[Any]] = {}
        for i, (weight, bias) in enumerate(self.layers):
            arrays |= {f"weight{i}": weight, f"bias{i}": bias}
        return arrays | {name: np.asarray(getattr(self, name)) for name in _NORMALISER_FIELDS}

    @staticmethod
    def array_schema(prefix: str, depth: int) -> dict[str, ArraySpec]:
        """What the named arrays of an actor of ``depth`` layers must be: W0 = O + G, W1, ... are the widths."""
        kinds = {f"{prefix}weight{i}": _actor_weight_spec(f"W{i}", f"W{i + 1}") for i in range(depth)}
        kinds |= {f"{prefix}bias{i}": _actor_weight_spec(f"W{i + 1}") for i in range(depth)}
        for name, size in (("observation", "O"), ("goal", "G")):
            kinds[f"{prefix}{name}_mean"] = _actor_weight_spec(size)
            kinds[f"{prefix}{name}_std"] = ArraySpec("float32", (size,), low=MIN_DIVISOR)
        return kinds | {f"{prefix}clip": ArraySpec("float64", (), low=MIN_DIVISOR)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> NumpyActor:
        """The inverse of :meth:`to_arrays`."""
        depth = sum(name.startswith("weight") for name in arrays)
        layers = [(arrays[f"weight{i}"], arrays[f"bias{i}"]) for i in range(depth)]
        numbers = {name: arrays[name] for name in _NORMALISER_FIELDS}
        return cls(layers, **{**numbers, "clip": float(numbers["clip"])})  # type: ignore[arg-type]


_NORMALISER_FIELDS = ("observation_mean", "observation_std", "goal_mean", "goal_std", "clip")


def _actor_weight_spec(*shape: str) -> ArraySpec:
    return ArraySpec("float32", shape, low=-MAX_ABS_WEIGHT, high=MAX_ABS_WEIGHT)


# D and E of a trained run, without JAX: how far a goal is, and how well that is known.
#
# J critics Q_j give the cost c_j = -Q_j(s, pi(s, g), g) of a goal. The step that arrives at the goal is free and each
# step before it costs 1, so a goal reached by the n-th step and held from then on costs (1 - gamma^(n-1)) / (1 -
# gamma). With the mean c and the standard deviation sigma over the critics
#
#     D = 1 + log(1 - (1 - gamma) c) / log gamma                                              in steps, at least 1
#     E = sigma dD/dc = sigma (1 - gamma) / (-log gamma) gamma^-min(D - 1, 1/(1 - gamma))     in steps.
#
# Goal rules see sigma as E: the same error in discounted steps, of which one that lies n steps ahead counts gamma^n.
# (In plain steps the draw in proportion to E prefers the rim of what can be reached, and learning was slower.)
#
# The disagreement of critics is smaller than their error. The end of a training measures the error on fresh episodes
# without noise: ``calibration`` is the smallest factor with which |D - n| <= calibration * max(E, 0.1) held in
# :data:`CALIBRATION_COVERAGE` of them, n being the number of the first step at the goal (split conformal prediction;
# Vovk et al. 2005). An episode of T steps that never reached its goal shows n > T only, so it counts as covered if
# D + calibration * max(E, 0.1) >= T.


CALIBRATION_COVERAGE = 0.9
"""Share of fresh episodes whose error the calibrated E covers."""
MIN_ERROR_STEPS = 0.1
"""E in steps, before calibration, is at least this."""
EPSILON = 1e-5
"""Added to the variance of a layer, as is usual."""


def cost_to_steps(cost: Any, gamma: float, np: Any = np) -> Any:
    """D in steps, the arriving one included, from the mean cost c; ``np`` is NumPy or its twin in JAX."""
    bounded = np.clip(cost, 0.0, (1.0 - 1e-6) / (1.0 - gamma))
    return 1.0 + np.log1p(-(1.0 - gamma) * bounded) / np.log(gamma)


def error_in_steps(D: Floats, sigma: Floats, gamma: float) -> Floats:
    """E in steps, not calibrated."""
    return sigma * (1.0 - gamma) / -np.log(gamma) * gamma ** -np.minimum(D - 1.0, 1.0 / (1.0 - gamma))


def layer_norm_relu(x: Any, np: Any = np) -> Any:
    """max(0, x) of x brought to mean 0 and variance 1 over its last axis (layer normalisation without weights)."""
    centred = x - x.mean(-1, keepdims=True)
    return np.maximum(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON), 0.0)


@dataclass(frozen=True)
class NumpyCritics:
    """The critics of one run, as arrays; ``layers`` (weight ``[J, in, out]``, bias ``[J, out]``)."""

    layers: Sequence[tuple[Singles, Singles]]
    gamma: float
    uses_layer_norm: bool
    """Whether the hidden layers are normalised."""
    calibration: float | None
    """None before the end of a training."""

    def __call__(self, og: Singles, action: Singles) -> tuple[Floats, Floats]:
        """D and E ``[B]``, not calibrated, for normalised (observation, goal) ``[B, O + G]`` and actions ``[B, A]``."""
        x = np.concatenate([og, action], -1)[None].astype(np.float32)
        layers = [(weight, bias[:, None]) for weight, bias in self.layers]
        cost = -forward_mlp(layers, x, layer_norm_relu if self.uses_layer_norm else lambda x: np.maximum(x, 0.0))[
            ..., 0
        ].astype(np.float64)
        D = cost_to_steps(cost.mean(0), self.gamma)
        return D, error_in_steps(D, cost.std(0), self.gamma)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Named arrays for a file."""
        arrays: dict[str, NDArray[Any]] = {}
        for i, (weight, bias) in enumerate(self.layers):
            arrays |= {f"critic_weight{i}": weight, f"critic_bias{i}": bias}
        numbers = {"gamma": self.gamma, "normed": float(self.uses_layer_norm), "calibration": self.calibration or 0.0}
        return arrays | {f"critic_{name}": np.asarray(value, np.float64) for name, value in numbers.items()}

    @staticmethod
    def array_schema(prefix: str, depth: int) -> dict[str, ArraySpec]:
        """What the named arrays of critics of ``depth`` layers must be; the first is C0 = O + G + A wide."""
        rules: dict[str, ArraySpec] = {}
        for i in range(depth):
            last: int | str = 1 if i == depth - 1 else f"C{i + 1}"
            rules[f"{prefix}critic_weight{i}"] = _critic_weight_spec("J", f"C{i}", last)
            rules[f"{prefix}critic_bias{i}"] = _critic_weight_spec("J", last)
        rules[f"{prefix}critic_gamma"] = ArraySpec("float64", (), low=0.0, below=1)
        rules[f"{prefix}critic_normed"] = ArraySpec("float64", (), low=0.0, high=1.0)
        return rules | {f"{prefix}critic_calibration": ArraySpec("float64", (), low=0.0, high=MAX_ABS_WEIGHT)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> NumpyCritics | None:
        """The inverse of :meth:`to_arrays`; None where a file has no critics."""
        depth = sum(name.startswith("critic_weight") for name in arrays)
        if depth == 0:
            return None
        layers = [(arrays[f"critic_weight{i}"], arrays[f"critic_bias{i}"]) for i in range(depth)]
        gamma, normed, factor = (float(arrays[f"critic_{name}"]) for name in ("gamma", "normed", "calibration"))
        return cls(layers, gamma, bool(normed), factor or None)


def calibration_factor(D: Floats, E: Floats, taken: Floats, horizon: int) -> float:
    """Return the factor of E with which the next episode is covered with probability :data:`CALIBRATION_COVERAGE`.

    ``taken`` is that of :func:`first_step_at_goal` for fresh episodes of ``horizon`` steps; all arrays are ``[n]``.
    """
    scores = np.sort(observed_error(D, taken, horizon) / np.maximum(E, MIN_ERROR_STEPS))
    rank = min(int(np.ceil(CALIBRATION_COVERAGE * (len(scores) + 1))), len(scores)) - 1
    return float(min(max(scores[rank], 1e-3), MAX_ABS_WEIGHT))


def observed_error(D: Floats, taken: Floats, horizon: int) -> Floats:
    """Return by how many steps D was off ``[n]``; an episode without success shows only whether D was too small."""
    missed = np.maximum(horizon - D, 0.0)
    return np.where(taken <= horizon, np.abs(D - taken), missed)


def first_step_at_goal(distances: Floats, success: float) -> Floats:
    """Return the first step ``[...]`` at the goal, from the distances to it ``[..., T]`` after each of T steps.

    It is infinite if the goal was not reached.
    """
    reached = distances <= success
    return np.where(reached.any(-1), reached.argmax(-1) + 1.0, np.inf)


def _critic_weight_spec(*shape: int | str) -> ArraySpec:
    return ArraySpec("float32", shape, low=-MAX_ABS_WEIGHT, high=MAX_ABS_WEIGHT)
