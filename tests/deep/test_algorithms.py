"""A new learning algorithm is one module and one line; here goal-conditioned supervised learning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from small_training import TINY, load_policy

from adagoal import resume, train
from adagoal.core.errors import InputError
from adagoal.deep import Config, algorithms, networks
from adagoal.deep.goal_envs import EnvDimensions
from adagoal.deep.networks import LayerWeights, NetworkState
from adagoal.deep.replay_buffer import Experience
from adagoal.deep.value_formulas import forward_mlp

# The algorithm is this module. It has no Q-function, no reward and no target: it draws pairs of a state and a goal that
# was achieved k steps later in the same episode, and learns the action that was taken there and k. D is the mean of J
# predictions of k, E their disagreement.


class Nets(NamedTuple):
    actor: NetworkState
    distances: NetworkState


def init_networks(config: Config, sizes: EnvDimensions, rng: np.random.Generator) -> Nets:
    inputs = sizes.observation + sizes.goal
    actor = networks.init_network(config, rng, (inputs, *config.hidden, sizes.action))
    return Nets(actor, networks.init_network(config, rng, (inputs, *config.hidden, 1), (config.members,)))


def sample_pairs(config: Config, experience: Experience, key: Array) -> tuple[Array, Array, Array]:
    """Return states with a later achieved goal ``[B, O + G]``, actions ``[B, A]``, and the steps between ``[B]``."""
    replay, (episode_key, time_key, later_key) = experience.replay, jax.random.split(key, 3)
    held = jnp.minimum(replay.added, replay.goal.shape[0])
    episode = jax.random.randint(episode_key, (config.batch,), 0, held)
    t = jax.random.randint(time_key, (config.batch,), 0, replay.length[episode])
    k = 1 + jax.random.randint(later_key, (config.batch,), 0, replay.length[episode] - t)
    goal = replay.achieved[episode, t + k]
    inputs = experience.normalisers.network_inputs(replay.observation[episode, t], goal)
    return inputs, replay.action[episode, t], k.astype(jnp.float32)


def learn(
    config: Config, nets: Nets, experience: Experience, keys: Array, needs_values: bool
) -> tuple[Nets, dict[str, Array]]:
    def update(nets: Nets, key: Array) -> tuple[Nets, dict[str, Array]]:
        inputs, action, steps = sample_pairs(config, experience, key)

        def imitation(layers: LayerWeights) -> Array:
            return jnp.mean((networks.policy_actions(layers, inputs) - action) ** 2)

        def regression(layers: LayerWeights) -> Array:
            return jnp.mean((predicted_steps(layers, inputs) - steps) ** 2)

        actor, actor_loss = networks.gradient_step(config, nets.actor, imitation)
        fit = jax.vmap(lambda net: networks.gradient_step(config, net, regression))
        distances, loss = fit(nets.distances)
        return Nets(actor, distances), {"imitation_loss": actor_loss, "steps_loss": loss.mean()}

    nets, losses = jax.lax.scan(update, nets, jax.random.split(keys[0], config.updates))
    return nets, {name: loss.mean() for name, loss in losses.items()}


def predicted_steps(layers: LayerWeights, inputs: Array) -> Array:
    return 1.0 + jax.nn.softplus(forward_mlp(layers, inputs, jax.nn.relu)[..., 0])


def distance_and_error(config: Config, nets: Nets, obs_goal: Array) -> tuple[Array, Array]:
    steps = jax.vmap(lambda layers: predicted_steps(layers, obs_goal))(nets.distances.online)
    return steps.mean(0), steps.std(0)


def actor_layers(nets: Nets) -> LayerWeights:
    layers: LayerWeights = nets.actor.online
    return layers


def critic_layers(nets: Nets, needs_values: bool) -> None:
    """Return nothing: NumPy cannot evaluate these distances, so the exported policy only acts."""


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(algorithms.ALGORITHM_MODULES, "supervised", __name__)


def config(**given: Any) -> Config:
    return Config("point-mass", algorithm="supervised", **{**TINY, **given})


def test_new_algorithm_trains_resumes_and_acts(tmp_path: Path) -> None:
    whole = train([config()], out=tmp_path / "whole", workers=1)
    assert whole.status == "done"
    assert json.loads((tmp_path / "whole" / "result.json").read_text())["method"] == "supervised+her"
    assert (tmp_path / "whole" / "log.csv").read_text().splitlines()[0].endswith("imitation_loss,steps_loss")
    train([config()], out=tmp_path / "parts", observe=lambda history: False, workers=1)
    resume(tmp_path / "parts", workers=1)
    a, b = (load_policy(tmp_path / name) for name in ("whole", "parts"))
    np.testing.assert_array_equal(a([0.1, 0.2, 0.0, 0.0], [0.5, 0.5]), b([0.1, 0.2, 0.0, 0.0], [0.5, 0.5]))
    with pytest.raises(InputError, match=r"^distance: is not known"):
        a.distance([0.1, 0.2, 0.0, 0.0], [0.5, 0.5])


def test_goal_rules_use_the_distances_of_the_algorithm() -> None:
    """After some cycles farther goals have larger distances, and each chosen goal has D and E."""
    result = train([config(steps=1600, updates=100)] * 2, workers=1)
    D, E = result.maps["D"], result.maps["E"]
    assert D.shape == E.shape == (2, 41, 41)
    assert (D >= 1.0).all()
    assert (E > 0.0).any()
    corners, centre = D[:, [0, 0, -1, -1], [0, -1, 0, -1]].mean(), D[:, 18:23, 18:23].mean()
    assert corners > centre + 1.0
    rows = result.history.learning_curve(0)
    assert all(row["distance"] >= 1.0 and row["error"] > 0.0 for row in rows if "distance" in row)
