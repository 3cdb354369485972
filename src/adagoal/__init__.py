"""Adaptive multi-goal exploration: which goals can be reached, how, and when enough has been learnt.

>>> import adagoal
>>> result = adagoal.explore("two-room", radius=40, epsilon=1.0, delta=0.1, seed=0)   # doctest: +SKIP
>>> result.status, len(result.goals), result.certificate(5)                           # doctest: +SKIP
"""

import importlib
from typing import TYPE_CHECKING, Any

# Type checkers and editors read these imports; at run time :func:`__getattr__` makes them.
if TYPE_CHECKING:
    from adagoal.api.certify import certify
    from adagoal.api.certify_data import certify_data
    from adagoal.api.env_check import Check, check_env
    from adagoal.api.explore import audit, explore, resume, transitions
    from adagoal.api.export import export
    from adagoal.api.policy_trials import Trial, play
    from adagoal.api.train import train
    from adagoal.certification.certificate import Certification
    from adagoal.comparison.method_comparison import compare
    from adagoal.comparison.method_scores import Comparison
    from adagoal.core.environment import Policy
    from adagoal.core.errors import InputError
    from adagoal.envs.mixture_models import mixture
    from adagoal.envs.model import Model
    from adagoal.envs.state_machine import machine
    from adagoal.report.show import Page, plot, show
    from adagoal.runs.load_result import load
    from adagoal.runs.result import Certificate, Result

__version__ = "0.2.0.dev0"
__all__ = [
    "Certificate",
    "Certification",
    "Check",
    "Comparison",
    "InputError",
    "Model",
    "Page",
    "Policy",
    "Result",
    "Trial",
    "audit",
    "certify",
    "certify_data",
    "check_env",
    "compare",
    "explore",
    "export",
    "load",
    "machine",
    "mixture",
    "play",
    "plot",
    "resume",
    "show",
    "train",
    "transitions",
]

_MODULE_OF_NAME = {
    name: module
    for module, names in {
        "api.certify": ["certify"],
        "api.certify_data": ["certify_data"],
        "api.env_check": ["Check", "check_env"],
        "api.explore": ["audit", "explore", "resume", "transitions"],
        "api.export": ["export"],
        "api.policy_trials": ["Trial", "play"],
        "api.train": ["train"],
        "comparison.method_scores": ["Comparison"],
        "comparison.method_comparison": ["compare"],
        "core.errors": ["InputError"],
        "core.environment": ["Policy"],
        "certification.certificate": ["Certification"],
        "envs.mixture_models": ["mixture"],
        "envs.model": ["Model"],
        "envs.state_machine": ["machine"],
        "report.show": ["Page", "plot", "show"],
        "runs.load_result": ["load"],
        "runs.result": ["Certificate", "Result"],
    }.items()
    for name in names
}


def __dir__() -> list[str]:
    # An interactive shell completes names that are not imported yet.
    return [*globals(), *_MODULE_OF_NAME]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    # Otherwise ``adagoal --help`` would wait for Numba.
    if name in _MODULE_OF_NAME:
        return getattr(importlib.import_module(f"adagoal.{_MODULE_OF_NAME[name]}"), name)
    raise AttributeError(f"module 'adagoal' has no attribute {name!r}")
