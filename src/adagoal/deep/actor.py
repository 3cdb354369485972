"""The actor: what it computes, and how it is kept. The only place that knows its layout. Needs no JAX.

    a = tanh( MLP( clip((o - mean_o) / std_o), clip((g - mean_g) / std_g) ) )    in [-1, 1]^A

The networks learn with JAX and act with NumPy: :func:`forward_mlp` and :func:`forward_actor` take arrays of either, with the functions
that fit them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core.schema import ArraySpec
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
