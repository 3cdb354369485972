"""The seam between the training loop and the algorithm that learns to act.

An algorithm is a module with the six functions of :class:`Algorithm`, and a line in :data:`ALGORITHM_MODULES`. Goal
selection, replay with hindsight, the normalisers and the value ensemble know nothing else of it; exploration noise is
added by the workers. ``nets`` is whatever the algorithm keeps: a tree of arrays of one run, with every pair of online
and target weights a :class:`adagoal.deep.networks.NetworkState`, whose target the loop moves.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    import numpy as np
    from jax import Array

    from adagoal.deep.config import Config
    from adagoal.deep.goal_envs import EnvDimensions
    from adagoal.deep.networks import CriticBatch, LayerWeights, TransitionBatch

ALGORITHM_MODULES = {"critics": "adagoal.deep.ensemble_ddpg", "ddpg": "adagoal.deep.ddpg"}
"""Modules by the name that the setting ``algorithm`` gives them; imported on use, as they need JAX."""


class Algorithm(Protocol):
    """What the loop asks of an algorithm."""

    def init_networks(self, config: Config, sizes: EnvDimensions, rng: np.random.Generator) -> Any:
        """Fresh ``nets``."""
        ...

    def critic_targets(self, config: Config, nets: Any, batch: TransitionBatch) -> Array:
        """What critics are to say of batches ``[..., B]``: ``[..., B]``, or ``[..., J, B]`` with targets of their own.

        It may look at the target networks only, since it is asked for several updates at once.
        """
        ...

    def update_networks(
        self, config: Config, knobs: dict[str, Array], nets: Any, batch: CriticBatch, key: Array
    ) -> tuple[Any, dict[str, Array]]:
        """One update from one batch: the nets, and the losses by name. ``knobs``: the settings that are per run."""
        ...

    def select_actions(self, nets: Any, og: Array) -> Array:
        """Noise-free actions ``[..., A]`` in [-1, 1] for normalised (observation, goal) ``[..., O + G]``."""
        ...

    def actor_layers(self, nets: Any) -> LayerWeights:
        """The layers of :func:`adagoal.deep.numpy_networks.forward_actor` that give the same actions as
        :meth:`select_actions`: for the workers."""
        ...

    def ensemble_layers(self, nets: Any) -> LayerWeights | None:
        """The algorithm's own ensemble, stacked along a leading axis J, with the activation
        :func:`adagoal.deep.ensemble_ddpg.critic_activation`; None where D and E are for a separate one
        (:mod:`adagoal.deep.networks`).
        """
        ...


def load_algorithm(name: str) -> Algorithm:
    """The algorithm of a name."""
    return cast(Algorithm, importlib.import_module(ALGORITHM_MODULES[name]))
