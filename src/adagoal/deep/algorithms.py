"""The interface of a learning algorithm, and the registry of algorithms.

An algorithm is a module with the five functions of :class:`Algorithm`, and one line in :data:`ALGORITHM_MODULES`. It
owns its networks, its batches (what it samples from the replay buffer, and how it relabels goals), its updates, and the
D and E that goal rules see. The training loop owns the rest: rollouts, the replay buffer, the normalisers, goal
selection and checkpoints. Rollout workers add the exploration noise.

``nets`` stands for the networks: any tree of arrays, of one run. The learner maps all functions over the runs of a
training (``jax.vmap``) and compiles them, so they must be pure JAX functions. ``config`` is static. Settings that may
differ between runs must be read from ``experience.hyperparameters`` instead (fields declared ``per_run``).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    import numpy as np
    from jax import Array

    from adagoal.deep.config import Config
    from adagoal.deep.goal_envs import EnvDimensions
    from adagoal.deep.networks import LayerWeights
    from adagoal.deep.replay_buffer import Experience

# Modules by the value of the setting ``algorithm``. They are imported on use, because they need JAX.
ALGORITHM_MODULES = {"critics": "adagoal.deep.ensemble_ddpg", "ddpg": "adagoal.deep.ddpg"}


class Algorithm(Protocol):
    """Functions of an algorithm's module."""

    def init_networks(self, config: Config, sizes: EnvDimensions, rng: np.random.Generator) -> Any:
        """Initial ``nets``, made with NumPy. ``rng`` may be used for ``uniform(low, high, shape)`` only."""

    def learn(
        self, config: Config, nets: Any, experience: Experience, keys: Array, needs_values: bool
    ) -> tuple[Any, dict[str, Array]]:
        """Return the ``nets`` after the updates of one cycle, and mean losses by name.

        ``keys`` are three independent random keys. ``needs_values`` is False if no goal rule looks at D or E, so
        networks that only serve :meth:`distance_and_error` need no update.
        """

    def distance_and_error(self, config: Config, nets: Any, obs_goal: Array) -> tuple[Array, Array]:
        """D in steps and E, each ``[...]``, for network inputs ``[..., O + G]``."""

    def actor_layers(self, nets: Any) -> LayerWeights:
        """Layers of the actor, for :class:`adagoal.deep.policy.NumpyActor`."""

    def critic_layers(self, nets: Any, needs_values: bool) -> tuple[LayerWeights, bool] | None:
        """Layers of the critics for :class:`adagoal.deep.policy.NumpyCritics`, and whether they are normalised.

        The policy computes D and E from them without JAX. None: the policy acts, but has no D and E.
        """


def load_algorithm(name: str) -> Algorithm:
    """Import the algorithm of this name."""
    return cast(Algorithm, importlib.import_module(ALGORITHM_MODULES[name]))
