"""Deep AdaGoal (section ``section_AdaGoal_deepRL``): goal-conditioned control with adaptive goals.

DDPG with hindsight experience replay executes; an ensemble of goal-conditioned Q-functions gives every
candidate goal a distance D and an error E; a rule of :mod:`adagoal.goals` picks the goal of each episode.

    from adagoal.deep import Config, train
    result = train([Config("FetchPush-v4", goal_rule="adagoal-proportional", train_goals="scale=10")])

Needs the extra: ``pip install 'adagoal[deep]'``. JAX and MuJoCo are imported only when a name is used.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from adagoal.core.errors import InputError

if TYPE_CHECKING:
    from adagoal.deep.config import RECIPES, Config
    from adagoal.deep.evaluation import Evaluation, evaluate
    from adagoal.deep.policy import Policy, load
    from adagoal.deep.training import TrainResult, resume, train

__all__ = ["RECIPES", "Config", "Evaluation", "Policy", "TrainResult", "evaluate", "load", "resume", "train"]

_HOME = {
    "Config": "config",
    "RECIPES": "config",
    "Evaluation": "evaluation",
    "evaluate": "evaluation",
    "Policy": "policy",
    "load": "policy",
    "TrainResult": "training",
    "resume": "training",
    "train": "training",
}
_EXTRA = {"jax", "jaxlib", "optax", "mujoco", "gymnasium_robotics"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with_extra()
    return getattr(importlib.import_module(f"adagoal.deep.{_HOME[name]}"), name)


def with_extra() -> None:
    """Raise one clear line if a package of the ``deep`` extra is not installed."""
    for package in sorted(_EXTRA):
        if importlib.util.find_spec(package) is None:
            raise InputError(f"the deep world needs {package}: pip install 'adagoal[deep]'")
