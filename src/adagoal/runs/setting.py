"""What was asked for: the setting of an exploration, and what it may be."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from adagoal.core import checks
from adagoal.core.checks import check_argument_dict, check_number
from adagoal.core.errors import InputError
from adagoal.planning.device import DEVICES

UNLIMITED_BUDGET = 2**62


@dataclass(frozen=True)
class ExplorationSettings:
    """What was asked for: enough to run it again."""

    env: str
    env_args: dict[str, Any] = field(default_factory=dict)
    method: str = "certified"
    method_args: dict[str, Any] = field(default_factory=dict)
    goal_rule: str = "adagoal"
    radius: float | str = 10.0
    """A number of steps, or "auto" or "all" (see docs/guide.md)."""
    epsilon: float = 1.0
    delta: float = 0.1
    seed: int = 0
    budget: int | None = None
    goal_space: tuple[int, ...] | None = None
    """The states to consider as goals; None means every state, or what ``goal_sets`` says."""
    goal_sets: dict[str, Any] | None = None
    """Goals that are not given as states (:mod:`adagoal.runs.asked`)."""
    start_seed: int | str | None = None
    """Of the first state: with this seed at every reset, "random" by declaration, or None: found out."""
    max_states: int | None = None
    workers: int = 1
    """Copies of the environment that are played at once."""
    device: str = "cpu"
    """Where plans are made: cpu or gpu."""

    @property
    def has_growing_radius(self) -> bool:
        """Whether the radius is to grow, in a curriculum."""
        return isinstance(self.radius, str)


def radius_growth_factor(radius: str) -> float:
    """The factor of a curriculum: 2 for "auto" and "all", f for "auto:f" and "all:f"."""
    name, _, factor = radius.partition(":")
    try:
        value = float(factor or 2)
    except ValueError:
        value = math.nan
    if name not in ("auto", "all") or not 1 < value <= 100:
        raise InputError(
            f"{radius!r} is neither a number >= 1 nor auto, all, auto:F or all:F with a factor F in (1, 100]", "radius"
        )
    return value


def check_exploration_settings(setting: ExplorationSettings) -> None:
    """Types and ranges of what the user gave."""
    whole, real = "a whole number", "a number"
    kinds = {"epsilon": real, "delta": real, "budget": whole} | (
        {} if isinstance(setting.radius, str) else {"radius": real}
    )
    for name, kind in kinds.items():
        value = getattr(setting, name)
        right = isinstance(value, int if kind == whole else int | float)
        if isinstance(value, bool) or not (right or (name == "budget" and value is None)):
            raise InputError(f"must be {kind}, got {value!r}", name)
    check_argument_dict("method_args", setting.method_args)
    L = setting.radius
    if isinstance(L, str):
        radius_growth_factor(L)
        if L.startswith("auto") and setting.budget is None:
            raise InputError("auto needs a budget, the number of steps after which to stop enlarging it", "radius")
    else:
        check_number("radius", L, 1, 1e9)
    check_number("epsilon", setting.epsilon, 1e-9, 1e9)
    check_number("delta", setting.delta, 1e-300, 1, closed="[)")
    if setting.budget is not None and not 1 <= setting.budget <= UNLIMITED_BUDGET:
        raise InputError(
            f"must be at least 1 step and at most {UNLIMITED_BUDGET:.1e}, got {checks.format_given_value(setting.budget)}",
            "budget",
        )
    if setting.device not in DEVICES:
        raise InputError(f"must be one of {', '.join(DEVICES)}, got {setting.device!r}", "device")
    checks.check_seed("seed", setting.seed)
