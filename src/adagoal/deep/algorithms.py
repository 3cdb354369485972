"""The seam between the training loop and the algorithm that learns to act.

An algorithm is a module with the six functions of :class:`Algorithm`, and a line in :data:`ALGORITHMS`. Goal
selection, replay with hindsight, the normalisers and the value ensemble know nothing else of it; exploration noise is
added by the workers. ``nets`` is whatever the algorithm keeps: a tree of arrays of one run, with every pair of online
and target weights a :class:`adagoal.deep.networks.Learnt`, whose target the loop moves.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    import numpy as np
    from jax import Array

    from adagoal.deep.config import Config
    from adagoal.deep.envs import Dimensions
    from adagoal.deep.networks import Layers, Lessons, Transitions

ALGORITHMS = {"critics": "adagoal.deep.critics", "ddpg": "adagoal.deep.ddpg"}
"""Modules by the name that the setting ``algorithm`` gives them; imported on use, as they need JAX."""


class Algorithm(Protocol):
    """What the loop asks of an algorithm."""

    def init(self, config: Config, sizes: Dimensions, rng: np.random.Generator) -> Any:
        """Fresh ``nets``."""
        ...

    def targets(self, config: Config, nets: Any, batch: Transitions) -> Array:
        """What critics are to say of batches ``[..., B]``: ``[..., B]``, or ``[..., J, B]`` with targets of their own.

        It may look at the target networks only, since it is asked for several updates at once.
        """
        ...

    def update(
        self, config: Config, knobs: dict[str, Array], nets: Any, batch: Lessons, key: Array
    ) -> tuple[Any, dict[str, Array]]:
        """One update from one batch: the nets, and the losses by name. ``knobs``: the settings that are per run."""
        ...

    def act(self, nets: Any, og: Array) -> Array:
        """Noise-free actions ``[..., A]`` in [-1, 1] for normalised (observation, goal) ``[..., O + G]``."""
        ...

    def actor_layers(self, nets: Any) -> Layers:
        """The layers of :func:`adagoal.deep.actor.act` that give the same actions as :meth:`act`: for the workers."""
        ...

    def critics(self, nets: Any) -> Layers | None:
        """The algorithm's own ensemble, stacked along a leading axis J, with the activation
        :func:`adagoal.deep.critics.relu`; None where D and E are for a separate one (:mod:`adagoal.deep.ensemble`).
        """
        ...


def get(name: str) -> Algorithm:
    """The algorithm of a name."""
    return cast(Algorithm, importlib.import_module(ALGORITHMS[name]))
