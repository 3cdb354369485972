"""Arguments of training runs and certifications beside :class:`adagoal.deep.Config`, which declares what is learnt.

This module imports nothing heavy, because ``adagoal train --help`` reads it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from adagoal.core.argument_checks import check_field_values, check_number, setting_field
from adagoal.core.errors import InputError


@dataclass(frozen=True)
class TrainingOptions:
    """Where and for how long training runs are executed; a result does not store these arguments."""

    seeds: int = setting_field(1, "Number of runs with consecutive seeds, trained together.", low=1, high=256)
    workers: int | None = setting_field(
        None, "Number of rollout processes.", low=1, high=1024, default_text="one per core"
    )
    minutes: float = setting_field(
        math.inf, "Stop after this time; the run can be resumed.", low=0, closed="(]", metavar="MINUTES"
    )
    checkpoint_every: int | None = setting_field(
        None, "Cycles between checkpoints.", low=1, high=10**9, default_text="as often as their size allows"
    )
    until: str | None = setting_field(
        None,
        "Stop earlier: when all cells of test goals that are believed to be within L are certified.",
        choices=("certified",),
    )
    tensorboard: Path | None = setting_field(None, "Folder for TensorBoard: the numbers of every cycle.")


@dataclass(frozen=True)
class ClaimSettings:
    """What a certification claims about a policy."""

    radius: int | None = setting_field(
        None,
        "L: a goal must be reached within this many steps.",
        details="At most the steps of an episode. A trained policy needs it; others play to the end of the episode.",
        low=1,
        high=1_000_000,
        default_text="the steps of an episode",
    )
    success: float = setting_field(
        0.9, "A cell whose success probability is lower is refuted.", low=0, high=1, closed="(]"
    )
    delta: float = setting_field(
        0.05, "Probability that any verdict is wrong, all cells together.", low=1e-300, high=1, closed="[)"
    )
    slack: float = setting_field(
        0.05, "Tolerance: a cell is certified for success - slack; 0 needs a number of rollouts.", low=0, high=1
    )
    halvings: int = setting_field(6, "How often the space is halved, at most; 6 make 64 cells.", low=0, high=12)
    rollouts: int | None = setting_field(
        None, "Stop after this many rollouts.", low=1, high=10**12, default_text="stop when every cell is decided"
    )

    def __post_init__(self) -> None:
        check_field_values(self)
        if self.slack != 0.0:
            # With a smaller slack the bets on a cell would need more than about a million rollouts.
            check_number("slack", self.slack, 0.001, self.success, closed="[)")
        elif self.rollouts is None:
            raise InputError("missing; with slack 0 a cell may stay open forever, so give a limit", "rollouts")
