"""Goal rules for Stable-Baselines3: a wrapper and a callback that choose the training goals.

    env = make_vec_env("FetchPush-v4", n_envs=8, wrapper_class=ChosenGoal)
    model = TQC("MultiInputPolicy", env, replay_buffer_class=HerReplayBuffer)
    model.learn(300_000, callback=ChooseGoals("adagoal-proportional", "scale=10", radius=40))

``StopWhenCertified`` ends training as soon as fresh rollouts certify the policy.

Needs the extra: ``pip install 'adagoal[sb3]'``. The wrapper alone does not import PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from adagoal.core.installation import require_package

if TYPE_CHECKING:
    from adagoal.sb3.callbacks import ChooseGoals, StopWhenCertified
    from adagoal.sb3.features import NormalisedFeatures
    from adagoal.sb3.goal_wrapper import ChosenGoal

__all__ = ["ChooseGoals", "ChosenGoal", "NormalisedFeatures", "StopWhenCertified"]


def __getattr__(name: str) -> Any:
    modules = dict.fromkeys(("ChooseGoals", "StopWhenCertified"), "adagoal.sb3.callbacks")
    modules |= {"ChosenGoal": "adagoal.sb3.goal_wrapper"}
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # The wrapper must work without Stable-Baselines3: environment processes import it, and PyTorch takes seconds.
    if name != "ChosenGoal":
        require_package("stable_baselines3", "sb3", name)
    return getattr(importlib.import_module(modules.get(name, "adagoal.sb3.features")), name)
