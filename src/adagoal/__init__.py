"""Adaptive multi-goal exploration: which goals can be reached, how, and when enough has been learnt.

>>> import adagoal
>>> result = adagoal.explore("two-room", radius=40, epsilon=1.0, delta=0.1, seed=0)   # doctest: +SKIP
>>> result.status, len(result.goals), result.certificate(5)                           # doctest: +SKIP
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adagoal.api.certify import certify
    from adagoal.api.env_check import Check, check_env
    from adagoal.api.explore import audit, explore, transitions
    from adagoal.api.export import export
    from adagoal.api.policy_trials import Trial, play
    from adagoal.api.saved_runs import load, resume
    from adagoal.api.train import train
    from adagoal.core.errors import InputError
    from adagoal.core.tabular_policy import Policy
    from adagoal.deep.certification import Certification
    from adagoal.envs.env_factory import mixture
    from adagoal.envs.model import Model
    from adagoal.report.show import Page, show
    from adagoal.runs.result import Certificate, Result

__version__ = "0.2.0.dev0"
__all__ = [
    "Certificate",
    "Certification",
    "Check",
    "InputError",
    "Model",
    "Page",
    "Policy",
    "Result",
    "Trial",
    "audit",
    "certify",
    "check_env",
    "explore",
    "export",
    "load",
    "mixture",
    "play",
    "resume",
    "show",
    "train",
    "transitions",
]

_MODULE_OF_NAME = {
    "Certificate": "runs.result",
    "Certification": "deep.certification",
    "Check": "api.env_check",
    "InputError": "core.errors",
    "Model": "envs.model",
    "Page": "report.show",
    "Policy": "core.tabular_policy",
    "Result": "runs.result",
    "Trial": "api.policy_trials",
    "audit": "api.explore",
    "certify": "api.certify",
    "check_env": "api.env_check",
    "explore": "api.explore",
    "export": "api.export",
    "load": "api.saved_runs",
    "mixture": "envs.env_factory",
    "play": "api.policy_trials",
    "resume": "api.saved_runs",
    "show": "report.show",
    "train": "api.train",
    "transitions": "api.explore",
}


def __dir__() -> list[str]:
    return [*globals(), *_MODULE_OF_NAME]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so ``adagoal --help`` does not wait for Numba."""
    if name in _MODULE_OF_NAME:
        return getattr(importlib.import_module(f"adagoal.{_MODULE_OF_NAME[name]}"), name)
    raise AttributeError(f"module 'adagoal' has no attribute {name!r}")
