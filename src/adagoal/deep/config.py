"""What a training run is: one frozen record, one line per field, and the named recipes.

Several runs train side by side as one compiled program (:mod:`adagoal.deep.learner`) if they agree on
everything but the fields in :data:`PER_RUN`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adagoal import goals
from adagoal.core.errors import InputError

NORMALISERS = ("achieved", "relabelled", "fixed")
VALUE_ACTIONS = ("policy", "min")
CONTACT_DISTANCE = 0.4
"""An episode counts as contact where the achieved goal moved this many success radii (2 cm for Fetch)."""


@dataclass(frozen=True)
class Config:
    """One training run. Lengths are in environment steps unless they say otherwise."""

    env: str
    """Gymnasium id of a goal-conditioned environment, ``module:Id``, or ``point-mass``."""
    seed: int = 0
    """Decides everything: same seed, same machine, same curve."""
    steps: int = 400_000
    """Environment steps of training (test episodes are not counted)."""

    goal_rule: str = "adagoal-proportional"
    """A rule of :mod:`adagoal.goals`; ``unigoal`` is plain HER, ``proportional`` the paper's deep recipe."""
    radius: float = 40.0
    """L, in steps: the constraint D(g) <= L of the AdaGoal rules."""
    radius_ramp: int = 100_000
    """L grows in a straight line from a quarter of ``radius`` to all of it over this many steps; 0: it is fixed."""
    train_goals: str = "env"
    """Goal space of training: ``env`` or ``scale=K[,air=P]`` (see :mod:`adagoal.deep.goalspace`)."""
    test_goals: str = "env"
    """Goal space of evaluation, same grammar."""

    episodes: int = 16
    """Episodes per cycle: a cycle is one round of rollouts and one compiled round of updates."""
    horizon: int = 0
    """Steps per episode; 0 takes the environment's own time limit."""
    noise: float = 0.2
    """Standard deviation of the Gaussian action noise, in units of half the action range."""
    random: float = 0.3
    """Probability of a uniformly random action."""

    updates: int = 160
    """DDPG updates per cycle."""
    batch: int = 1024
    """Transitions per update."""
    hidden: tuple[int, ...] = (256, 256, 256)
    """Hidden layers of actor, critic and ensemble members."""
    learning_rate: float = 1e-3
    """Adam, for all networks."""
    gamma: float = 0.98
    """Discount; values lie in [-1/(1-gamma), 0]."""
    action_l2: float = 1.0
    """Weight of the squared action in the actor's loss."""
    target_step: float = 0.05
    """How far a target network moves each time (1 - polyak)."""
    target_every: int = 10
    """Updates between two moves of the target networks."""
    buffer: int = 1_000_000
    """Replay capacity in transitions."""
    relabel: float = 0.8
    """Share of a batch whose goal is replaced by one achieved later in the episode ('future', k = 4)."""
    contact: float = 0.0
    """Share of a batch drawn from episodes that moved the achieved goal (a trick, not standard HER)."""
    normaliser: str = "achieved"
    """What the goal normaliser sees: ``achieved`` goals, ``relabelled`` goals (reference HER), or ``fixed``."""

    members: int = 3
    """J, the Q-functions of the ensemble."""
    candidates: int = 1000
    """N, the candidate goals of each reset."""
    ensemble_updates: int = 320
    """Ensemble updates per cycle."""
    ensemble_batch: int = 1024
    """Transitions per update and member, drawn independently."""
    ensemble_relabel: float = 0.8
    """Share of relabelled goals in the ensemble's batches; 0 trains on the original goals (VDS)."""
    value_action: str = "policy"
    """Where the ensemble is read: at the ``policy``'s action (VDS) or the ``min`` cost over sampled actions."""

    eval_every: int = 25
    """Cycles between two evaluations."""
    eval_episodes: int = 96
    """Test episodes per evaluation, without noise; rounded up to a multiple of ``episodes``."""

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not low <= value <= high:
                raise InputError(f"--{name.replace('_', '-')}: {value} is out of range; accepted {low} to {high}")
        if not self.hidden or any(not 1 <= width <= 8192 for width in self.hidden):
            raise InputError(f"--hidden: {self.hidden} needs one or more widths from 1 to 8192")
        if self.normaliser not in NORMALISERS:
            raise InputError(f"--normaliser: {self.normaliser!r}; choose one of {', '.join(NORMALISERS)}")
        if self.value_action not in VALUE_ACTIONS:
            raise InputError(f"--value-action: {self.value_action!r}; choose one of {', '.join(VALUE_ACTIONS)}")
        if self.rule_name in ("goid", "progress"):
            raise InputError(f"--goal-rule: {self.rule_name} counts successes goal by goal; deep goals are continuous")
        goals.get(self.goal_rule)

    def radius_at(self, steps: int) -> float:
        """L after so many environment steps."""
        return self.radius * min(1.0, 0.25 + 0.75 * steps / self.radius_ramp) if self.radius_ramp else self.radius

    @property
    def rule_name(self) -> str:
        return self.goal_rule.partition(":")[0]

    @property
    def needs_ensemble(self) -> bool:
        return self.rule_name not in ("unigoal", "raregoal", "skewfit", "goexplore")

    @property
    def needs_density(self) -> bool:
        return self.rule_name not in ("unigoal", "proportional", "argmax", "adagoal", "adagoal-proportional")

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Config:
        return cls(**{**data, "hidden": tuple(data["hidden"])})


PER_RUN = {
    "seed",
    "goal_rule",
    "radius",
    "radius_ramp",
    "train_goals",
    "test_goals",
    "noise",
    "random",
    "action_l2",
    "relabel",
    "contact",
    "normaliser",
    "ensemble_relabel",
}
"""Fields in which runs of one program may differ."""


def recorded(data: dict[str, Any]) -> list[Config]:
    """The settings of the runs in a ``result.json``."""
    return [Config.from_json({**data["config"], **{k: run[k] for k in PER_RUN if k in run}}) for run in data["runs"]]


RECIPES: dict[str, dict[str, Any]] = {
    "adagoal": {},
    "light": {"hidden": (128, 128, 128), "updates": 80, "ensemble_updates": 160},
    "paper": {
        "goal_rule": "proportional",
        "updates": 40,
        "batch": 2048,
        "target_every": 40,
        "normaliser": "relabelled",
        "ensemble_updates": 100,
        "ensemble_batch": 1000,
        "ensemble_relabel": 0.0,
    },
}
"""``adagoal``: the defaults above, what figure 2 uses; made for a GPU. ``light``: six times cheaper, for a few CPU
cores. ``paper``: reference HER with the VDS ensemble, as the appendix ``app_deepRL_exp`` describes it."""

_RANGES: Sequence[tuple[str, float, float]] = (
    ("seed", 0, 2**31 - 1),
    ("steps", 1, 1e12),
    ("radius", 1.0, 1e9),
    ("radius_ramp", 0, 1e12),
    ("episodes", 1, 4096),
    ("horizon", 0, 1_000_000),
    ("noise", 0.0, 10.0),
    ("random", 0.0, 1.0),
    ("updates", 1, 100_000),
    ("batch", 1, 1_000_000),
    ("learning_rate", 1e-8, 1.0),
    ("gamma", 0.5, 0.9999),
    ("action_l2", 0.0, 1e6),
    ("target_step", 1e-6, 1.0),
    ("target_every", 1, 100_000),
    ("buffer", 1, 100_000_000),
    ("relabel", 0.0, 1.0),
    ("contact", 0.0, 1.0),
    ("members", 2, 64),
    ("candidates", 1, 1_000_000),
    ("ensemble_updates", 1, 100_000),
    ("ensemble_batch", 1, 1_000_000),
    ("ensemble_relabel", 0.0, 1.0),
    ("eval_every", 1, 1_000_000),
    ("eval_episodes", 1, 100_000),
)


def one_program(configs: Sequence[Config]) -> None:
    """Check that the runs may share one compiled program."""
    if not configs:
        raise InputError("--seeds: at least one run is needed")
    first = configs[0].to_json()
    for config in configs[1:]:
        other = {k for k, v in config.to_json().items() if v != first[k]} - PER_RUN
        if other:
            raise InputError(f"runs side by side may not differ in {', '.join(sorted(other))}")
