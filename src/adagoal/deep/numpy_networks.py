"""Actor and critics of a trained run as NumPy arrays: what they compute, and their form in a file. Needs no JAX.

    a = tanh( MLP( clip((o - mean_o) / std_o), clip((g - mean_g) / std_g) ) )    in [-1, 1]^A

Networks learn with JAX (:mod:`adagoal.deep.networks`). Rollout workers and loaded policies act with NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core.file_formats import ArraySpec
from adagoal.core.types import Floats, Singles
from adagoal.deep.value_formulas import MAX_CALIBRATION, cost_to_steps, error_in_steps, forward_mlp, layer_norm_relu

NumpyLayers = Sequence[tuple[Singles, Singles]]
_NORMALISER_FIELDS = ("observation_mean", "observation_std", "goal_mean", "goal_std", "clip")


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
        return _layers_to_arrays("", self.layers) | {
            name: np.asarray(getattr(self, name)) for name in _NORMALISER_FIELDS
        }

    @staticmethod
    def array_schema(prefix: str, depth: int) -> dict[str, ArraySpec]:
        """Schema of the arrays of an actor with ``depth`` layers; W0 = O + G, W1, ... are the widths."""
        schema: dict[str, ArraySpec] = {}
        for i in range(depth):
            schema[f"{prefix}weight{i}"] = _weight_spec(f"W{i}", f"W{i + 1}")
            schema[f"{prefix}bias{i}"] = _weight_spec(f"W{i + 1}")
        for name, size in (("observation", "O"), ("goal", "G")):
            schema[f"{prefix}{name}_mean"] = _weight_spec(size)
            schema[f"{prefix}{name}_std"] = ArraySpec("float32", (size,), low=1e-6)  # divides
        return schema | {f"{prefix}clip": ArraySpec("float64", (), low=1e-6)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> NumpyActor:
        """The inverse of :meth:`to_arrays`."""
        numbers = {name: arrays[name] for name in _NORMALISER_FIELDS}
        return cls(_layers_from_arrays("", arrays), **{**numbers, "clip": float(numbers["clip"])})  # type: ignore[arg-type]


@dataclass(frozen=True)
class NumpyCritics:
    """The J critics of one run: layers of weights ``[J, in, out]`` and biases ``[J, out]``."""

    layers: NumpyLayers
    gamma: float
    uses_layer_norm: bool
    calibration: float | None  # None before the end of training

    def __call__(self, obs_goal: Singles, action: Singles) -> tuple[Floats, Floats]:
        """D and E ``[B]`` in steps, not calibrated, for network inputs ``[B, O + G]`` and actions ``[B, A]``."""
        x = np.concatenate([obs_goal, action], -1)[None].astype(np.float32)
        layers = [(weight, bias[:, None]) for weight, bias in self.layers]
        q = forward_mlp(layers, x, layer_norm_relu if self.uses_layer_norm else _relu)[..., 0]
        cost = -q.astype(np.float64)
        D = cost_to_steps(cost.mean(0), self.gamma)
        return D, error_in_steps(D, cost.std(0), self.gamma)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Named arrays for a file."""
        numbers = {"gamma": self.gamma, "normed": float(self.uses_layer_norm), "calibration": self.calibration or 0.0}
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
        return schema | {f"{prefix}critic_calibration": ArraySpec("float64", (), low=0.0, high=MAX_CALIBRATION)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> NumpyCritics | None:
        """The inverse of :meth:`to_arrays`; None if the file has no critics."""
        layers = _layers_from_arrays("critic_", arrays)
        if not layers:
            return None
        gamma, normed, factor = (float(arrays[f"critic_{name}"]) for name in ("gamma", "normed", "calibration"))
        return cls(layers, gamma, bool(normed), factor or None)


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
