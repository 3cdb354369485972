"""Multi-layer perceptrons as plain functions: actor pi(o, g) in [-1, 1]^A and critic Q(o, g, a)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array

Layers = list[tuple[Array, Array]]


def init(key: Array, sizes: Sequence[int]) -> Layers:
    """Weights and biases uniform in +-1/sqrt(fan in), as in the reference HER."""
    layers = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        key, for_weight, for_bias = jax.random.split(key, 3)
        bound = fan_in**-0.5
        weight = jax.random.uniform(for_weight, (fan_in, fan_out), minval=-bound, maxval=bound)
        bias = jax.random.uniform(for_bias, (fan_out,), minval=-bound, maxval=bound)
        layers.append((weight, bias))
    return layers


def forward(layers: Layers, x: Array) -> Array:
    """``[..., sizes[0]] -> [..., sizes[-1]]`` with ReLU between the layers."""
    for weight, bias in layers[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    weight, bias = layers[-1]
    return x @ weight + bias


def pi(actor: Layers, og: Array) -> Array:
    """Actions ``[..., A]`` in [-1, 1] for normalised (observation, goal) ``[..., O + G]``."""
    return jnp.tanh(forward(actor, og))


def q(critic: Layers, og: Array, action: Array) -> Array:
    """Values ``[...]``."""
    return forward(critic, jnp.concatenate([og, action], -1))[..., 0]
