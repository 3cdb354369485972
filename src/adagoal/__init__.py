"""Adaptive multi-goal exploration: which goals can be reached, how, and when enough has been learnt.

>>> import adagoal
>>> result = adagoal.explore("two-room", radius=40, epsilon=1.0, delta=0.1, seed=0)   # doctest: +SKIP
>>> result.status, len(result.goals), result.certificate(5)                           # doctest: +SKIP
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adagoal.api.certify import certify
    from adagoal.api.check_result import Check
    from adagoal.api.env_check import check_env
    from adagoal.api.explore import audit, explore, resume, transitions
    from adagoal.api.export import export
    from adagoal.api.policy_trials import Trial, play
    from adagoal.api.train import load, train
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

_HOME = {
    **dict.fromkeys(("audit", "explore", "resume", "transitions"), "api.explore"),
    "Check": "api.check_result",
    "check_env": "api.env_check",
    **dict.fromkeys(("Certificate", "Result"), "runs.result"),
    "certify": "api.certify",
    "Certification": "deep.certification",
    "export": "api.export",
    "InputError": "core.errors",
    "Model": "envs.model",
    "mixture": "envs.env_factory",
    "Policy": "core.tabular_policy",
    **dict.fromkeys(("Page", "show"), "report.show"),
    **dict.fromkeys(("Trial", "play"), "api.policy_trials"),
    **dict.fromkeys(("load", "train"), "api.train"),
}


def __dir__() -> list[str]:
    return [*globals(), *_HOME]


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first used, so that ``adagoal --help`` does not wait for Numba."""
    if name in _HOME:
        return getattr(importlib.import_module(f"adagoal.{_HOME[name]}"), name)
    raise AttributeError(f"module 'adagoal' has no attribute {name!r}")
