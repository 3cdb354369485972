"""What a training run is: one frozen record, one declaration per field, and the named recipes.

Several runs train side by side as one compiled program (:mod:`adagoal.deep.learner`) if they agree on everything but
the fields declared ``per_run``. The help texts are those of the command line.

Some settings follow from T, the steps of an episode, unless they are given (:meth:`Config.resolve_for_horizon`):

    gamma = 1 - 1/T              so that values lie in [-T, 0]
    L = 0.8 T                    and it grows to that over 6000 T steps
    episodes = 800/T             per cycle, from 4 to 16
    updates = 0.5                per environment step; with ddpg 0.2, and 0.4 of the ensemble beside it
    eval_every                   one eighth of the training, at most 25 cycles

For T = 50 (Fetch) this is gamma = 0.98, L = 40 after 300,000 steps, 16 episodes and 400 updates a cycle.

The penalty of actions is 1 for Fetch, as measured. Where a whole action saves one step, the actor then takes
1 / (2 penalty) of it; so elsewhere the penalty is 0.1, which lets an agent go at full speed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from adagoal import goal_rules
from adagoal.core.errors import InputError
from adagoal.deep.algorithms import ALGORITHM_MODULES
from adagoal.settings.fields import check_field_values, declared_settings, per_run_settings, setting_field

KNOWN_GOAL_FIELDS = frozenset({"D", "E", "visits"})
"""What a goal rule can know of continuous goals: nothing is counted goal by goal."""
ONWARD_GOAL_FIELDS = frozenset({"onward_D", "onward_E"})
DECLARABLE_GOAL_FIELDS = KNOWN_GOAL_FIELDS | ONWARD_GOAL_FIELDS | {"experienced", "divergence"}
"""The same, with what a rule gets only if it declares it, since that changes the candidates or costs time."""
FUNCTION_RULE_PREFIX = "function:"
"""Begins the name, in results, of a goal rule that was given as a function."""
CONTACT_DISTANCE = 0.4
"""An episode counts as contact where the achieved goal moved this many success radii (2 cm for Fetch)."""


@dataclass(frozen=True)
class Config:
    """One training run. Lengths are in environment steps unless they say otherwise."""

    env: str = setting_field(help="Gymnasium id of a goal-conditioned environment, module:Id, or point-mass.")
    seed: int = setting_field(
        0, "Decides everything: same seed, same machine, same curve.", low=0, high=2**31 - 1, per_run=True
    )
    steps: int = setting_field(
        400_000, "Environment steps of training; test episodes are not counted.", low=1, high=1_000_000_000_000
    )
    algorithm: str = setting_field(
        "critics",
        "What learns to act: critics (one ensemble for the policy, D and E), or ddpg (with an ensemble beside it).",
        choices=ALGORITHM_MODULES,
    )

    goal_rule: str = setting_field(
        "adagoal-proportional",
        "Which goal to try next: a rule of adagoal.goal_rules (unigoal is plain HER, "
        "proportional the paper's deep recipe), "
        "or FILE.py:FUNCTION.",
        per_run=True,
    )
    radius: float = setting_field(
        0.0,
        "L in steps: the constraint D(g) <= L of the AdaGoal rules; 0: 0.8 of an episode.",
        low=0.0,
        high=1e9,
        per_run=True,
    )
    radius_ramp: int = setting_field(
        -1,
        "Steps over which L grows in a straight line from a quarter to all of the radius; 0: it is fixed; -1: 6000 "
        "episodes.",
        low=-1,
        high=1_000_000_000_000,
        per_run=True,
    )
    train_goals: str = setting_field("env", "Goal space of training: env, or scale=K[,air=P].", per_run=True)
    test_goals: str = setting_field("env", "Goal space of evaluation: env, or scale=K[,air=P].", per_run=True)

    episodes: int = setting_field(
        0,
        "Episodes per cycle, which is one round of rollouts and one compiled round of updates; 0: about 800 steps, 4 "
        "to 16 episodes.",
        low=0,
        high=4096,
    )
    horizon: int = setting_field(0, "Steps per episode; 0: the environment's own limit.", low=0, high=1_000_000)
    noise: float = setting_field(
        0.2,
        "Standard deviation of the Gaussian action noise, in units of half the action range.",
        low=0.0,
        high=10.0,
        per_run=True,
    )
    random: float = setting_field(0.3, "Probability of a uniformly random action.", low=0.0, high=1.0, per_run=True)

    updates: int = setting_field(
        0,
        "Updates of the algorithm per cycle; 0: one for every two steps, with ddpg for every five.",
        low=0,
        high=100_000,
    )
    batch: int = setting_field(1024, "Transitions per update.", low=1, high=1_000_000)
    actor_share: float = setting_field(
        0.5, "Share of a batch from which the actor of critics learns, too.", low=1e-3, high=1.0
    )
    hidden: tuple[int, ...] = setting_field(
        (256, 256, 256), "Widths of the hidden layers of all networks.", low=1, high=8192
    )
    learning_rate: float = setting_field(1e-3, "Step size of Adam, for all networks.", low=1e-8, high=1.0)
    gamma: float = setting_field(
        0.0, "Discount; values lie in [-1/(1 - gamma), 0]; 0: 1 - 1/T, T the steps of an episode.", low=0.0, high=0.9999
    )
    action_l2: float = setting_field(
        -1.0,
        "Weight of the squared action in the actor's loss; -1: 1 for Fetch, as measured, and 0.1 elsewhere.",
        low=-1.0,
        high=1e6,
        per_run=True,
    )
    target_step: float = setting_field(
        0.05, "How far a target network moves each time (1 - polyak).", low=1e-6, high=1.0
    )
    target_every: int = setting_field(10, "Updates between two moves of the target networks.", low=1, high=100_000)
    buffer: int = setting_field(
        1_000_000,
        "Replay capacity in transitions, at most; a shorter training keeps all of its own.",
        low=1,
        high=100_000_000,
    )
    relabel: float = setting_field(
        0.8,
        "Share of a batch whose goal is replaced by one achieved later in the episode (hindsight).",
        low=0.0,
        high=1.0,
        per_run=True,
    )
    contact: float = setting_field(
        0.5,
        "Share of a batch from episodes that moved the achieved goal; 0: as standard HER.",
        low=0.0,
        high=1.0,
        per_run=True,
    )
    normaliser: str = setting_field(
        "achieved",
        "What the goal normaliser sees: achieved goals, relabelled goals (reference HER), or a fixed sample of test "
        "goals. Goals are clipped at 5 standard deviations of it.",
        choices=("achieved", "relabelled", "fixed"),
        per_run=True,
    )

    members: int = setting_field(3, "J: Q-functions in the ensemble.", low=2, high=64)
    candidates: int = setting_field(1000, "N: candidate goals of each reset.", low=1, high=1_000_000)
    ensemble_updates: int = setting_field(
        0, "Updates of the ensemble beside ddpg, per cycle; 0: two for every five steps.", low=0, high=100_000
    )
    ensemble_batch: int = setting_field(
        1024, "Transitions per update and member, drawn independently.", low=1, high=1_000_000
    )
    ensemble_relabel: float = setting_field(
        0.8,
        "Share of hindsight goals in the ensemble's batches; 0: the original goals (VDS).",
        low=0.0,
        high=1.0,
        per_run=True,
    )
    value_action: str = setting_field(
        "policy",
        "Read the ensemble at the policy's action (VDS), or at the min cost over sampled actions.",
        choices=("policy", "min"),
    )

    eval_every: int = setting_field(
        0, "Cycles between two evaluations; 0: an eighth of the training, at most 25.", low=0, high=1_000_000
    )
    eval_episodes: int = setting_field(
        96,
        "Test episodes per evaluation, without noise; rounded up to a multiple of the episodes of a cycle.",
        low=1,
        high=100_000,
    )

    def __post_init__(self) -> None:
        check_field_values(self)
        if -1.0 < self.action_l2 < 0.0:
            raise InputError(f"must be -1, or a number from 0, got {self.action_l2}", name="action_l2")
        if not (self.rule_is_a_file or self.rule_is_a_function):
            self.check_goal_rule()  # other code runs when a training begins, not when its settings are looked at

    def check_goal_rule(self) -> None:
        """The goal rule exists, and deep goals can give it what it needs."""
        if not self.required_fields <= DECLARABLE_GOAL_FIELDS:
            missing = ", ".join(sorted(self.required_fields - DECLARABLE_GOAL_FIELDS))
            text = f"{self.rule_name} needs {missing}, which is counted goal by goal; deep goals are continuous"
            raise InputError(text, name="goal_rule")

    def resolve_for_horizon(self, horizon: int, fetch: bool = False) -> Config:
        """The same, with all that follows from episodes of ``horizon`` steps (see the text of this module).

        ``fetch`` says whether the environment is one of Fetch (:attr:`adagoal.deep.goal_envs.Dimensions.is_fetch`).
        """
        T = horizon
        episodes = self.episodes or min(max(round(800 / T), 4), 16)
        cycles = -(-self.steps // (episodes * T))
        return dataclasses.replace(
            self,
            horizon=T,
            gamma=self.gamma or min(max(1.0 - 1.0 / T, 0.5), 0.9999),
            radius=self.radius or max(0.8 * T, 1.0),
            radius_ramp=6000 * T if self.radius_ramp < 0 else self.radius_ramp,
            action_l2=self.action_l2 if self.action_l2 >= 0.0 else 1.0 if fetch else 0.1,
            episodes=episodes,
            updates=self._updates_per_cycle("updates", 0.2 if self.algorithm == "ddpg" else 0.5, episodes, T),
            ensemble_updates=self._updates_per_cycle("ensemble_updates", 0.4, episodes, T),
            eval_every=self.eval_every or min(max(cycles // 8, 1), 25),
        )

    def _updates_per_cycle(self, name: str, share: float, episodes: int, T: int) -> int:
        """The setting ``name``: as given, or so many for every step of a cycle."""
        given: int = getattr(self, name)
        found, most = given or max(round(share * episodes * T), 1), declared_settings(Config)[name].high
        if found > most:
            text = f"{episodes} episodes of {T} steps make {found} {name} per cycle, more than {most:g}"
            raise InputError(f"{text}; give a shorter horizon, or {name} as well", name="horizon")
        return found

    @property
    def replay_capacity(self) -> int:
        """Episodes in the replay buffer: whole cycles, at least one, and no more than the training plays."""
        per_cycle = self.episodes * self.horizon
        return min(max(self.buffer // per_cycle, 1), -(-self.steps // per_cycle)) * self.episodes

    def radius_after_steps(self, steps: int) -> float:
        """L after so many environment steps."""
        return self.radius * min(1.0, 0.25 + 0.75 * steps / self.radius_ramp) if self.radius_ramp else self.radius

    @property
    def rule_name(self) -> str:
        """The goal rule without its options."""
        return self.goal_rule.partition(":")[0]

    @property
    def rule_is_a_file(self) -> bool:
        """Whether the goal rule is a function in a file of the user's."""
        return ".py:" in self.goal_rule

    @property
    def rule_is_a_function(self) -> bool:
        """Whether the goal rule is a function that a Python program gave, of which only the name is known here."""
        return self.goal_rule.startswith(FUNCTION_RULE_PREFIX)

    @property
    def method_name(self) -> str:
        """How a result names what learnt: the algorithm, with hindsight."""
        return f"{self.algorithm}+her"

    @cached_property
    def required_fields(self) -> frozenset[str]:
        """What the goal rule must know of a goal; a rule of a file is loaded once for it."""
        return (
            KNOWN_GOAL_FIELDS
            if self.rule_is_a_function
            else goal_rules.required_fields(goal_rules.resolve_rule(self.goal_rule), KNOWN_GOAL_FIELDS)
        )

    @property
    def needs_ensemble(self) -> bool:
        """Whether the goal rule looks at D or E."""
        return bool(self.required_fields & ({"D", "E"} | ONWARD_GOAL_FIELDS))

    @property
    def needs_density(self) -> bool:
        """Whether the goal rule looks at how often a goal was achieved."""
        return bool(self.required_fields & {"visits", "divergence"})

    def to_json(self) -> dict[str, Any]:
        """The settings as plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Config:
        """The inverse of :meth:`to_json`."""
        return cls(**{**data, "hidden": tuple(data["hidden"])})


RECIPES: dict[str, dict[str, Any]] = {
    "adagoal": {},
    "half": {"batch": 512, "actor_share": 0.25},
    "light": {"hidden": (128, 128, 128), "batch": 512},
    "paper": {
        "algorithm": "ddpg",
        "action_l2": 1.0,
        "contact": 0.0,
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
"""``adagoal``: the defaults above; made for a GPU. ``half``: less than half of the arithmetic. ``light``: seven times
cheaper, for a few CPU cores. ``paper``: reference HER with the VDS ensemble, as the appendix ``app_deepRL_exp``
describes it."""
AUTO_RECIPE = "auto"
"""``adagoal`` where JAX has a GPU, ``light`` where it has none."""


def resolve_recipe(name: str) -> str:
    """The recipe of this name; :data:`AUTO_RECIPE` becomes one of the others, and needs JAX for it."""
    if name not in (AUTO_RECIPE, *RECIPES):
        raise InputError(f"must be one of {', '.join((AUTO_RECIPE, *RECIPES))}, got {name!r}", "recipe")
    if name != AUTO_RECIPE:
        return name
    import jax

    return "light" if jax.default_backend() == "cpu" else "adagoal"


def describe_auto_recipe(asked: str, named: str) -> str:
    """A line that says which recipe :data:`AUTO_RECIPE` has become, and why; nothing where one was asked for."""
    why = "JAX has no GPU here; the larger one is called adagoal" if named == "light" else "JAX has a GPU"
    return f"recipe {named}: {why}" if asked == AUTO_RECIPE else ""


def check_shared_program(configs: Sequence[Config]) -> None:
    """Check that the runs may share one compiled program, and that their goal rules can be asked."""
    if isinstance(configs, Config) or not configs or not all(isinstance(config, Config) for config in configs):
        raise InputError("must be a list of one or more Config", name="configs")
    first = configs[0].to_json()
    for config in configs[1:]:
        other = {k for k, v in config.to_json().items() if v != first[k]} - per_run_settings(Config)
        if other:
            raise InputError(f"runs side by side may not differ in {', '.join(sorted(other))}", name="configs")
    for config in configs:
        config.check_goal_rule()
