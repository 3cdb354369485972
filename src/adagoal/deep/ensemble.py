"""The value ensemble: J critics of the algorithm's policy, whose disagreement is what is not known yet.

Each member j learns from its own batches with its own target network (:func:`adagoal.deep.networks.fit`), a' being the
current noise-free action (Zhang et al. 2020). At a reset observation s0 the ensemble gives, for every candidate goal,

    D(g) = -mean_j Q_j(s0, pi(s0, g), g)   and   E(g) = std_j Q_j(s0, pi(s0, g), g),

D in steps: a goal reached after n steps costs (1 - gamma^n) / (1 - gamma). With ``value_action="min"`` the
action is the cheapest of the policy's and random ones, the paper's min_a.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from adagoal.deep import networks
from adagoal.deep.config import Config
from adagoal.deep.envs import Dimensions
from adagoal.deep.networks import Learnt, Transitions

RANDOM_ACTIONS = 16
"""Actions tried beside the policy's where ``value_action="min"``."""


def init(config: Config, sizes: Dimensions, key: Array) -> Learnt:
    """Fresh members, stacked along a leading axis J."""
    shape = (sizes.observation + sizes.goal + sizes.action, *config.hidden, 1)
    members = [networks.fresh(config, k, shape) for k in jax.random.split(key, config.members)]
    stacked: Learnt = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)
    return stacked


def update(
    config: Config, members: Learnt, act: Callable[[Array], Array], batch: Transitions
) -> tuple[Learnt, dict[str, Array]]:
    """One step of every member, each from its share of the batch ``[J * ensemble_batch, ...]``."""
    shares = jax.tree.map(lambda x: x.reshape(config.members, config.ensemble_batch, *x.shape[1:]), batch)
    fitted, error = jax.vmap(lambda member, own: networks.fit(config, member, act(own.following), own))(members, shares)
    return fitted, {"ensemble_loss": error.mean()}


def values(config: Config, members: Learnt, og: Array, action: Array, key: Array) -> tuple[Array, Array]:
    """D in steps and E, each ``[...]``, for normalised (start, goal) ``[..., O + G]`` and the policy's actions."""
    of_members = jax.vmap(networks.q, (0, None, None))
    best = of_members(members.online, og, action)
    if config.value_action == "min":
        for k in jax.random.split(key, RANDOM_ACTIONS):
            other = jax.random.uniform(k, action.shape, minval=-1.0, maxval=1.0)
            best = jnp.maximum(best, of_members(members.online, og, other))
    cost = jnp.clip(-best.mean(0), 0.0, (1.0 - 1e-6) / (1.0 - config.gamma))
    return jnp.log1p(-(1.0 - config.gamma) * cost) / np.log(config.gamma), best.std(0)
