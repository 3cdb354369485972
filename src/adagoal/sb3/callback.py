"""A goal rule at work in Stable-Baselines3: D and E from the model's own critics, a goal for every new episode.

The critics Q_j of DDPG, TD3 and SAC learn the discounted return of the sparse reward (-1 a step, 0 at the goal), so
that, as in the deep world of this package, a start s0 and a candidate goal g have

    D(g) = -mean_j Q_j(s0, pi(s0, g), g),  turned into steps      E(g) = std_j Q_j(s0, pi(s0, g), g),

where a goal reached after n steps costs (1 - gamma^n) / (1 - gamma). (SAC adds an entropy bonus to its values, by which
D is too small; a low entropy coefficient keeps that small.)

A vectorised environment resets by itself. When an episode has ended, the callback sees the first observation of the
next one before anything is done with it, chooses its goal, tells the wrapper, and puts it into the observation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecNormalize

from adagoal import goals as rules
from adagoal.core.checks import integer, number
from adagoal.core.errors import InputError
from adagoal.core.types import Floats
from adagoal.sb3.wrapper import ChosenGoal

KNOWN = frozenset({"D", "E", "visits"})
"""What a goal rule can know of continuous goals."""
REMEMBERED = 4096
"""Achieved goals that are kept, for the density of what was visited."""
WIDTH = 0.3
"""Of the kernel of that density, in standard deviations of the achieved goals."""

GoalSpace = Callable[[np.random.Generator, int], ArrayLike]
"""``goals(rng, n) -> [n, G]``"""


class ChooseGoals(BaseCallback):
    """Let a goal rule choose the goal of every training episode.

    Parameters
    ----------
    rule: a rule of :mod:`adagoal.goals` by name, ``FILE.py:FUNCTION``, or a function of what is known.
    goals: where candidates come from: a function ``(rng, n) -> [n, G]``, or an array ``[m, G]`` to draw from.
    radius: L, in steps; or a function of the environment steps so far, for an L that grows.
    candidates: how many are looked at for each episode.
    seed: of candidates and choices.

    The environments must be wrapped in :class:`adagoal.sb3.ChosenGoal`. A rule that looks at E needs two critics or
    more: SAC and TD3 have two; ``policy_kwargs={"n_critics": 3}`` gives any of them more, DDPG included.
    """

    def __init__(
        self,
        rule: str | rules.Rule,
        goals: GoalSpace | ArrayLike,
        *,
        radius: float | Callable[[int], float],
        candidates: int = 1000,
        seed: int = 0,
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        self.rule = rules.get(rule)
        self.needs = rules.needs(self.rule, KNOWN)
        missing = self.needs - KNOWN - {"experienced"}  # without it, what was achieved is what has a density
        if missing:
            raise InputError(f"needs {', '.join(sorted(missing))}, which is not known of continuous goals here", "rule")
        if not callable(radius):
            number("radius", radius, 0.0, math.inf, closed="()")
        integer("candidates", candidates, 1, 1_000_000)
        integer("seed", seed, 0, 2**31 - 1)
        self.space, self.radius, self.candidates = _space(goals), radius, candidates
        self.chosen: list[Floats] = []
        """The goals of all episodes so far, in the order in which they began."""
        self._rng = np.random.default_rng(seed)
        self._achieved: Floats = np.zeros((0, 0))

    def _on_training_start(self) -> None:
        if isinstance(self.training_env, VecNormalize):
            raise InputError("VecNormalize would hide the goals; use adagoal.sb3.NormalisedFeatures instead", "env")
        if not all(self.training_env.env_is_wrapped(ChosenGoal)):
            raise InputError("must be wrapped: make_vec_env(..., wrapper_class=adagoal.sb3.ChosenGoal)", "env")
        if not hasattr(self.model, "critic"):
            raise InputError(f"{type(self.model).__name__} has no critics; use DDPG, TD3 or SAC", "model")
        if "E" in self.needs and self.model.critic.n_critics < 2:
            text = "this rule needs E, the disagreement of two critics or more: policy_kwargs={'n_critics': 3}"
            raise InputError(text, "model")
        seen: Any = self.model._last_obs
        self._achieved = np.asarray(seen["achieved_goal"], np.float64)
        self._choose(seen, range(self.training_env.num_envs))

    def _on_step(self) -> bool:
        seen = self.locals["new_obs"]
        self._achieved = np.concatenate([self._achieved, seen["achieved_goal"]])[-REMEMBERED:]
        self._choose(seen, np.flatnonzero(self.locals["dones"]).tolist())
        return True

    def _choose(self, seen: dict[str, Any], episodes: Sequence[int]) -> None:
        """Goals for the episodes that begin, written into what was ``seen`` ``{name: [environments, ...]}``."""
        for episode in episodes:
            options = np.asarray(self.space(self._rng, self.candidates), np.float64)
            start = {name: value[episode] for name, value in seen.items()}
            size = len(start["desired_goal"])
            if options.ndim != 2 or options.shape[1] != size or not len(options) or not np.isfinite(options).all():
                raise InputError(f"must be drawn as [n, {size}] finite numbers, got {list(options.shape)}", "goals")
            weights = rules.weights(self.rule, self._known(start, options))
            goal = options[rules.draw(weights, self._rng)]
            self.training_env.env_method("set_goal", goal, indices=[episode])
            seen["desired_goal"][episode] = goal
            self.chosen.append(goal)

    def _known(self, start: dict[str, Any], options: Floats) -> rules.Known:
        """What the rule sees of the candidates ``[N, G]`` from a start."""
        none = np.zeros(len(options))
        D, E = self._values(start, options) if self.needs & {"D", "E"} else (none, none)
        visits = self._density(options) if "visits" in self.needs else none
        every = np.ones(len(options), bool)
        L = self.radius(self.num_timesteps) if callable(self.radius) else self.radius
        number("radius", L, 0.0, math.inf, closed="()")
        return rules.Known(D, E, L, every, visits, *(none,) * 4)

    def _values(self, start: dict[str, Any], options: Floats) -> tuple[Floats, Floats]:
        """D in steps and E ``[N]`` of the candidates ``[N, G]``."""
        many = {name: np.repeat(value[None], len(options), 0) for name, value in start.items()}
        many["desired_goal"] = options.astype(many["desired_goal"].dtype)
        model: Any = self.model
        with torch.no_grad():
            seen, _ = model.policy.obs_to_tensor(many)
            found = model.critic(seen, model.policy(seen, deterministic=True))
            Q = torch.cat(found, 1).cpu().numpy().astype(np.float64)
        cost = np.clip(-Q.mean(1), 0.0, (1.0 - 1e-6) / (1.0 - model.gamma))
        return np.log1p(-(1.0 - model.gamma) * cost) / math.log(model.gamma), Q.std(1)

    def _density(self, options: Floats) -> Floats:
        """How many of the remembered achieved goals lie near each candidate ``[N, G]``, with a Gaussian kernel."""
        width = WIDTH * np.maximum(self._achieved.std(0), 1e-6)
        near = self._achieved[self._rng.integers(len(self._achieved), size=256)]
        apart = (((options[:, None] - near) / width) ** 2).sum(-1)
        return np.asarray(len(self._achieved) * np.exp(-apart / 2.0).mean(1))


def _space(goals: GoalSpace | ArrayLike) -> GoalSpace:
    """A function that draws goals; one that draws from an array where that is given."""
    if callable(goals):
        return goals
    pool = np.asarray(goals, np.float64)
    if pool.ndim != 2 or len(pool) == 0 or not np.isfinite(pool).all():
        raise InputError("must be a function (rng, n) -> [n, G] or an array [m, G] of finite numbers", "goals")
    return lambda rng, n: pool[rng.integers(len(pool), size=n)]
