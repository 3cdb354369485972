"""Deep AdaGoal (section ``section_AdaGoal_deepRL``): goal-conditioned control with adaptive goals.

An algorithm with hindsight experience replay (DDPG) executes; an ensemble of goal-conditioned Q-functions gives every
candidate goal a distance D and an error E; a rule of :mod:`adagoal.goal_rules` picks the goal of each episode.

    from adagoal.deep import Config
    result = adagoal.train(Config("FetchPush-v4", goal_rule="adagoal-proportional", train_goals="scale=10"))

Needs the extra: ``pip install 'adagoal[deep]'``. JAX and MuJoCo are imported only when a name is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from adagoal.core.installation import require_package

if TYPE_CHECKING:
    from adagoal.deep.config import RECIPES, Config
    from adagoal.deep.policy import GoalPolicy
    from adagoal.deep.policy_evaluation import Evaluation
    from adagoal.runs.train_result import TrainResult

__all__ = ["RECIPES", "Config", "Evaluation", "GoalPolicy", "TrainResult"]


def __getattr__(name: str) -> Any:
    modules = {
        "Evaluation": "adagoal.deep.policy_evaluation",
        "GoalPolicy": "adagoal.deep.policy",
        "TrainResult": "adagoal.runs.train_result",
    }
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_deep_extra()
    return getattr(importlib.import_module(modules.get(name, "adagoal.deep.config")), name)


def require_deep_extra(task: str = "deep training") -> None:
    """Raise an :class:`InputError` if a package of the ``deep`` extra is not installed; ``task`` is what needs it."""
    for package in ("gymnasium_robotics", "jax", "jaxlib", "mujoco", "optax"):
        require_package(package, "deep", task)
