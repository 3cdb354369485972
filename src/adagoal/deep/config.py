"""Settings of training runs, declared once per field, and the named recipes.

Several runs can train together as one compiled program (:mod:`adagoal.deep.learner`) if they differ only in fields
declared ``per_run``.

Some settings depend on T, the steps of an episode, unless they are given (:meth:`Config.resolve_for_horizon`):

    gamma = 1 - 1/T              so values lie in [-T, 0]
    L = 0.8 T                    the largest; see below
    episodes = 800/T             per cycle, from 4 to 16
    updates = 0.5                per environment step; with ddpg 0.2, and 0.4 for its ensemble
    eval_every                   one eighth of the training, at most 25 cycles

For T = 50 (Fetch) this gives gamma = 0.98, L = 40, and 16 episodes and 400 updates per cycle.

L starts at a quarter of the radius. It grows while more than a quarter of the episodes end at their goals, and shrinks
while fewer do: so L grows because goals become reachable. ``radius_ramp`` makes L grow with the steps instead.

The penalty of actions is 1 for Fetch, the value that was measured to be best there. If a full action saves one step,
the actor takes 1 / (2 penalty) of it, so other environments use 0.1, which allows full speed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from adagoal import goal_rules
from adagoal.core.errors import InputError
from adagoal.core.validation import check_field_values, declared_settings, per_run_settings, setting_field
from adagoal.deep.algorithms import ALGORITHM_MODULES

# Fields of :class:`adagoal.goal_rules.GoalInfo` that every rule gets. Attempts at continuous goals are not counted,
# because such a goal is hardly ever drawn twice.
KNOWN_GOAL_FIELDS = frozenset({"D", "E", "visits"})
ONWARD_GOAL_FIELDS = frozenset({"onward_D", "onward_E"})
# These and the fields that a rule gets only if it declares them: they change the candidates, or take time.
DECLARABLE_GOAL_FIELDS = KNOWN_GOAL_FIELDS | ONWARD_GOAL_FIELDS | {"experienced", "divergence"}
# Prefix of the name, in results, of a goal rule that was given as a function.
FUNCTION_RULE_PREFIX = "function:"
# An episode counts as contact if the achieved goal moved this many success radii (2 cm for Fetch).
CONTACT_DISTANCE = 0.4
# L grows while a larger share of the episodes ends at the goal. With 0.45, FetchPush took longer than with 0.2 or 0.3.
TARGET_SUCCESS = 0.25
# Number of episodes at the goal, beyond that share, that make L e times as large.
GROWTH_EPISODES = 160


@dataclass(frozen=True)
class Config:
    """Settings of one training run. Lengths are in environment steps unless they say otherwise.

    Fields with the default None depend on T; :meth:`resolve_for_horizon` replaces None by a number.
    """

    env: str = setting_field(help="Gymnasium id of a goal-conditioned environment, module:Id, or point-mass.")
    seed: int = setting_field(0, "Random seed; one machine repeats a run exactly.", low=0, high=2**31 - 1, per_run=True)
    steps: int = setting_field(400_000, "Environment steps of training, without test episodes.", low=1, high=10**12)
    algorithm: str = setting_field(
        "critics", "critics: one ensemble for policy, D and E; ddpg: a separate ensemble.", choices=ALGORITHM_MODULES
    )

    goal_rule: str = setting_field(
        "adagoal-proportional",
        "Which goal to try next: a rule of adagoal.goal_rules (unigoal is plain HER, proportional is the paper's deep "
        "recipe), or FILE.py:FUNCTION.",
        per_run=True,
    )
    radius: float = setting_field(
        None,
        "L in steps, in the constraint D(g) <= L of the AdaGoal rules.",
        low=0,
        high=1e9,
        closed="(]",
        per_run=True,
        default_text="0.8 times the steps of an episode",
    )
    radius_ramp: int | None = setting_field(
        None,
        "Steps of a linear growth from L/4 to L; 0: L is fixed.",
        low=0,
        high=10**12,
        per_run=True,
        default_text="L grows while more than a quarter of the episodes end at their goals",
    )
    train_goals: str = setting_field("env", "Goal space of training: env, or scale=K[,air=P].", per_run=True)
    test_goals: str = setting_field("env", "Goal space of evaluation: env, or scale=K[,air=P].", per_run=True)

    episodes: int = setting_field(
        None, "Episodes per cycle.", low=1, high=4096, default_text="about 800 steps, in 4 to 16 episodes"
    )
    horizon: int = setting_field(
        None, "T: steps per episode.", low=1, high=10**6, default_text="the limit of the environment"
    )
    noise: float = setting_field(
        0.2, "Standard deviation of the action noise, over half the action range.", low=0, high=10, per_run=True
    )
    random: float = setting_field(0.3, "Probability of a uniformly random action.", low=0, high=1, per_run=True)

    updates: int = setting_field(
        None,
        "Updates per cycle.",
        low=1,
        high=100_000,
        default_text="one for every two steps, with ddpg for every five",
    )
    batch: int = setting_field(1024, "Transitions per update.", low=1, high=10**6)
    actor_share: float = setting_field(0.5, "Share of the batch for the actor of critics.", low=1e-3, high=1)
    hidden: tuple[int, ...] = setting_field((256, 256, 256), "Widths of the hidden layers.", low=1, high=8192)
    learning_rate: float = setting_field(1e-3, "Step size of Adam, for all networks.", low=1e-8, high=1)
    gamma: float = setting_field(
        None, "Discount; values lie in [-1/(1 - gamma), 0].", low=0, high=0.9999, closed="(]", default_text="1 - 1/T"
    )
    action_l2: float = setting_field(
        None,
        "Penalty of squared actions for the actor.",
        low=0,
        high=1e6,
        per_run=True,
        default_text="1 for Fetch, else 0.1",
    )
    target_step: float = setting_field(
        0.05, "Share of the new weights in an update of the target networks (1 - polyak).", low=1e-6, high=1
    )
    target_every: int = setting_field(10, "Updates between two updates of the target networks.", low=1, high=100_000)
    buffer: int = setting_field(10**6, "Largest size of the replay buffer, in transitions.", low=1, high=10**8)
    relabel: float = setting_field(
        0.8, "Share of the batch with goals achieved later in the episode (hindsight).", low=0, high=1, per_run=True
    )
    swap_goals: float = setting_field(
        0.3, "Share of the batch with goals of other episodes, reached or not.", low=0, high=1, per_run=True
    )
    contact: float = setting_field(
        0.5, "Share of the batch from episodes that moved the achieved goal; 0: as in HER.", low=0, high=1, per_run=True
    )
    normaliser: str = setting_field(
        "achieved",
        "Data of the goal normaliser: achieved goals, or relabelled goals (reference HER). Goals are clipped at 5 of "
        "its standard deviations.",
        choices=("achieved", "relabelled"),
        per_run=True,
    )

    members: int = setting_field(3, "J: Q-functions in the ensemble.", low=2, high=64)
    candidates: int = setting_field(1000, "N: candidate goals at each reset.", low=1, high=10**6)
    ensemble_updates: int = setting_field(
        None,
        "Updates of the separate ensemble of ddpg per cycle.",
        low=1,
        high=100_000,
        default_text="two for every five steps",
    )
    ensemble_batch: int = setting_field(
        1024, "Transitions per update and member of the separate ensemble.", low=1, high=10**6
    )
    ensemble_relabel: float = setting_field(
        0.8, "Share of hindsight goals for the separate ensemble; 0: none (VDS).", low=0, high=1, per_run=True
    )

    eval_every: int = setting_field(
        None,
        "Cycles between two evaluations.",
        low=1,
        high=10**6,
        default_text="an eighth of the training, at most 25",
    )
    eval_episodes: int = setting_field(
        96, "Test episodes per evaluation, rounded up to a multiple of the episodes per cycle.", low=1, high=100_000
    )

    def __post_init__(self) -> None:
        check_field_values(self)
        # user code runs when training starts, not when the settings of a folder are read
        if not (self.rule_is_a_file or self.rule_is_a_function):
            self.check_goal_rule()

    def check_goal_rule(self) -> None:
        """Refuse a goal rule that does not exist, or that needs fields which continuous goals do not have."""
        if not self.required_fields <= DECLARABLE_GOAL_FIELDS:
            missing = ", ".join(sorted(self.required_fields - DECLARABLE_GOAL_FIELDS))
            text = f"{self.rule_name} needs {missing}, which continuous goals do not have; choose another rule"
            raise InputError(text, name="goal_rule")

    def resolve_for_horizon(self, T: int, fetch: bool = False) -> Config:
        """Return the settings with values for everything that depends on T (see the module docstring)."""
        # in whole cycles, because the learner is compiled for a fixed number of episodes
        episodes = self.episodes or min(max(round(800 / T), 4), 16)
        cycles = -(-self.steps // (episodes * T))
        return dataclasses.replace(
            self,
            horizon=T,
            gamma=self.gamma or min(max(1.0 - 1.0 / T, 0.5), 0.9999),
            radius=self.radius or max(0.8 * T, 1.0),
            action_l2=(1.0 if fetch else 0.1) if self.action_l2 is None else self.action_l2,
            episodes=episodes,
            updates=self._updates_per_cycle("updates", 0.2 if self.algorithm == "ddpg" else 0.5, episodes * T),
            ensemble_updates=self._updates_per_cycle("ensemble_updates", 0.4, episodes * T),
            eval_every=self.eval_every or min(max(cycles // 8, 1), 25),
        )

    def _updates_per_cycle(self, name: str, per_step: float, steps: int) -> int:
        updates: int = getattr(self, name) or max(round(per_step * steps), 1)
        # The range of the setting bounds derived values as well. The user gave the horizon, so the message names that.
        most = declared_settings(Config)[name].high
        if updates > most:
            text = f"a cycle of {steps} steps makes {updates} {name} per cycle, more than {most:g}"
            raise InputError(f"{text}; give a shorter horizon, or {name} as well", name="horizon")
        return updates

    @property
    def replay_capacity(self) -> int:
        """Episodes in the replay buffer: whole cycles, at least one, and no more than the run plays."""
        # whole cycles, so the episodes of a cycle are one slice of the ring (replay_buffer.add_episodes)
        per_cycle = self.episodes * self.horizon
        return min(max(self.buffer // per_cycle, 1), -(-self.steps // per_cycle)) * self.episodes

    def next_radius(self, steps: int, last: Mapping[str, float]) -> float:
        """L of a cycle that begins after ``steps``; ``last`` is the row of the cycle before, empty for the first."""
        if self.radius_ramp is not None:
            return self.radius * min(1.0, 0.25 + 0.75 * steps / self.radius_ramp) if self.radius_ramp else self.radius
        excess = last.get("train_success", TARGET_SUCCESS) - TARGET_SUCCESS
        L = last.get("radius", self.radius / 4) * math.exp(excess * self.episodes / GROWTH_EPISODES)
        return min(max(L, self.radius / 4), self.radius)

    @property
    def rule_name(self) -> str:
        """The goal rule without its options."""
        return self.goal_rule.partition(":")[0]

    @property
    def rule_is_a_file(self) -> bool:
        """Whether the goal rule is a function in a user's file."""
        return ".py:" in self.goal_rule

    @property
    def rule_is_a_function(self) -> bool:
        """Whether a Python program gave the goal rule as a function, whose name alone is stored."""
        return self.goal_rule.startswith(FUNCTION_RULE_PREFIX)

    @property
    def method_name(self) -> str:
        """Name of the learner in results: the algorithm, with hindsight."""
        return f"{self.algorithm}+her"

    @cached_property
    def required_fields(self) -> frozenset[str]:
        """Fields of :class:`adagoal.goal_rules.GoalInfo` that the goal rule needs; loads a rule of a file once."""
        # only the name of the function is here, so it counts as one that declares nothing
        if self.rule_is_a_function:
            return KNOWN_GOAL_FIELDS
        return goal_rules.required_fields(goal_rules.resolve_rule(self.goal_rule), KNOWN_GOAL_FIELDS)

    @property
    def needs_ensemble(self) -> bool:
        """Whether the goal rule uses D or E."""
        return bool(self.required_fields & ({"D", "E"} | ONWARD_GOAL_FIELDS))

    @property
    def needs_density(self) -> bool:
        """Whether the goal rule uses how often a goal was achieved."""
        return bool(self.required_fields & {"visits", "divergence"})

    def to_json(self) -> dict[str, Any]:
        """Return the settings as plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Config:
        """Return the settings of :meth:`to_json`."""
        return cls(**{**data, "hidden": tuple(data["hidden"])})


# Named changes of the defaults. adagoal: none; for a GPU. half: less than half of the arithmetic. light: seven times
# cheaper, for a few CPU cores. paper: reference HER with the VDS ensemble (app_deepRL_exp).
RECIPES: dict[str, dict[str, Any]] = {
    "adagoal": {},
    "half": {"batch": 512, "actor_share": 0.25},
    "light": {"hidden": (128, 128, 128), "batch": 512},
    "paper": {
        "algorithm": "ddpg",
        "action_l2": 1.0,
        "contact": 0.0,
        "swap_goals": 0.0,
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
# Recipe that stands for adagoal if JAX has a GPU, and for light if not.
AUTO_RECIPE = "auto"


def resolve_recipe(name: str) -> str:
    """Return the name of a recipe; replace :data:`AUTO_RECIPE`, which imports JAX."""
    if name not in (AUTO_RECIPE, *RECIPES):
        raise InputError(f"must be one of {', '.join((AUTO_RECIPE, *RECIPES))}, got {name!r}", "recipe")
    if name != AUTO_RECIPE:
        return name
    import jax

    return "light" if jax.default_backend() == "cpu" else "adagoal"


def describe_auto_recipe(requested: str, resolved: str) -> str:
    """Return a line that says which recipe :data:`AUTO_RECIPE` stands for and why; "" if another was requested."""
    why = "JAX has no GPU here; the larger recipe is called adagoal" if resolved == "light" else "JAX has a GPU"
    return f"recipe {resolved}: {why}" if requested == AUTO_RECIPE else ""


def check_shared_program(configs: Sequence[Config]) -> None:
    """Refuse runs that cannot share one compiled program, or whose goal rules cannot be used."""
    if isinstance(configs, Config) or not configs or not all(isinstance(config, Config) for config in configs):
        raise InputError(f"must be a list of one or more Config, got {configs!r:.60}", name="configs")
    # other settings are compiled into the program: shapes, numbers of updates, the algorithm
    first = configs[0].to_json()
    for config in configs[1:]:
        differing = {k for k, v in config.to_json().items() if v != first[k]} - per_run_settings(Config)
        if differing:
            raise InputError(f"runs that train together may not differ in {', '.join(sorted(differing))}", "configs")
    for config in configs:
        config.check_goal_rule()
