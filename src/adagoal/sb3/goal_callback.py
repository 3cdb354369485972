"""A goal rule at work in Stable-Baselines3: D and E from the model's own critics, a goal for every new episode.

The critics Q_j of DDPG, TD3 and SAC, and the means of the quantiles of those of TQC, learn the discounted return of the
sparse reward (-1 a step, 0 at the goal), so that, as in the deep world of this package, a start s0 and a candidate goal
g have

    D(g) = -mean_j Q_j(s0, pi(s0, g), g),  turned into steps      E(g) = std_j Q_j(s0, pi(s0, g), g),

where a goal reached by the n-th step costs (1 - gamma^(n-1)) / (1 - gamma) (:mod:`adagoal.deep.numpy_networks`). (SAC
and TQC add an entropy bonus to their values, by which D is too small; a low entropy coefficient keeps that small.)

For a rule that asks which goals were achieved before (mega, omega, discover), half of the candidates are drawn from the
last states. The target of discover is the goal that the environment itself has drawn for the episode.

A vectorised environment resets by itself. When an episode has ended, the callback sees the first observation of the
next one before anything is done with it, chooses its goal, tells the wrapper, and puts it into the observation.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import unwrap_vec_normalize

from adagoal import goal_rules as rules
from adagoal.core.argument_checks import check_integer, check_number
from adagoal.core.errors import InputError
from adagoal.core.types import Floats
from adagoal.deep.numpy_networks import cost_to_steps
from adagoal.sb3.goal_wrapper import ChosenGoal, check_sparse_rewards

KNOWN = frozenset({"D", "E", "visits"})
"""What a goal rule can know of continuous goals, and what it is told unless it declares less or more."""
ONWARD = frozenset({"onward_D", "onward_E"})
DECLARED = KNOWN | ONWARD | {"experienced", "divergence"}
"""What it can ask for."""

CandidateSampler = Callable[[np.random.Generator, int], ArrayLike]
"""``goals(rng, n) -> [n, G]``"""


class ChooseGoals(BaseCallback):
    """Let a goal rule choose the goal of every training episode.

    Parameters
    ----------
    rule: a rule of :mod:`adagoal.goal_rules` by name, ``FILE.py:FUNCTION``, or a function of what is known.
    goals: where candidates come from: a function ``(rng, n) -> [n, G]``, or an array ``[m, G]`` to draw from.
    radius: L, in steps; or a function of the environment steps so far, for an L that grows.
    candidates: how many are looked at for each episode.
    seed: of candidates and choices.

    The environments must be wrapped in :class:`adagoal.sb3.ChosenGoal`. Rewards other than 0 and -1 are refused. A
    model without hindsight is warned of. A rule that looks at E needs two critics or more: SAC, TD3 and TQC have two;
    ``policy_kwargs={"n_critics": 3}`` gives any of them more, DDPG included.
    """

    def __init__(
        self,
        rule: str | rules.GoalRule,
        goals: CandidateSampler | ArrayLike,
        *,
        radius: float | Callable[[int], float],
        candidates: int = 1000,
        seed: int = 0,
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        self.rule = rules.resolve_rule(rule)
        self.required_fields = rules.required_fields(self.rule, KNOWN)
        missing = self.required_fields - DECLARED
        if missing:
            raise InputError(f"needs {', '.join(sorted(missing))}, which is not known of continuous goals here", "rule")
        if not callable(radius):
            check_number("radius", radius, 0.0, math.inf, closed="()")
        check_integer("candidates", candidates, 1, 1_000_000)
        check_integer("seed", seed, 0, 2**31 - 1)
        self.sample_candidates, self.radius, self.candidates = _as_candidate_sampler(goals), radius, candidates
        self.chosen_goals: list[Floats] = []
        """The goals of all episodes so far, in the order in which they began."""
        self._rng = np.random.default_rng(seed)
        self._recent_states = RecentStates(whole=bool(self.required_fields & ONWARD))

    def _on_training_start(self) -> None:
        if unwrap_vec_normalize(self.training_env) is not None:
            raise InputError("VecNormalize would hide the goals; use adagoal.sb3.NormalisedFeatures instead", "env")
        if not all(self.training_env.env_is_wrapped(ChosenGoal)):
            raise InputError("must be wrapped: make_vec_env(..., wrapper_class=adagoal.sb3.ChosenGoal)", "env")
        if not hasattr(self.model, "critic"):
            raise InputError(f"{type(self.model).__name__} has no critics; use DDPG, TD3, SAC or TQC", "model")
        if self.required_fields & {"E", "onward_E"} and self.model.critic.n_critics < 2:
            text = "this rule needs E, the disagreement of two critics or more: policy_kwargs={'n_critics': 3}"
            raise InputError(text, "model")
        if self.required_fields & ({"D", "E"} | ONWARD):  # a cost of at most 1 / (1 - gamma) is turned into steps
            check_number("gamma", self.model.gamma, 0.0, 1.0, closed="()")
        if not isinstance(self.model.replay_buffer, HerReplayBuffer):
            text = "the model learns without hindsight; to have it, give replay_buffer_class=HerReplayBuffer"
            warnings.warn(text, stacklevel=2)
        seen: Any = self.model._last_obs
        self._recent_states.add_states(seen)
        # With reset_num_timesteps=False episodes go on, with the goals that they have.
        self._choose_goals(seen, np.flatnonzero(self.training_env.get_attr("awaits_goal")).tolist())

    def _on_step(self) -> bool:
        check_sparse_rewards(self.locals["rewards"])
        seen = self.locals["new_obs"]
        self._recent_states.add_states(seen)
        self._choose_goals(seen, np.flatnonzero(self.locals["dones"]).tolist())
        return True

    def _choose_goals(self, seen: dict[str, Any], episodes: Sequence[int]) -> None:
        """Goals for the episodes that begin, written into what was ``seen`` ``{name: [environments, ...]}``."""
        for episode in episodes:
            options = np.array(self.sample_candidates(self._rng, self.candidates), np.float64)
            start = {name: value[episode] for name, value in seen.items()}
            size = len(start["desired_goal"])
            if options.ndim != 2 or options.shape[1] != size or not len(options) or not np.isfinite(options).all():
                raise InputError(f"must be drawn as [n, {size}] finite numbers, got {list(options.shape)}", "goals")
            more = (
                self._add_achieved_candidates(options, start["desired_goal"])
                if "experienced" in self.required_fields
                else {}
            )
            weights = rules.compute_weights(self.rule, self._make_goal_info(start, options, more))
            goal = options[rules.sample_goal(weights, self._rng)]
            self.training_env.env_method("set_goal", goal, indices=[episode])
            seen["desired_goal"][episode] = goal
            self.chosen_goals.append(goal)

    def _add_achieved_candidates(self, options: Floats, target: Floats) -> dict[str, Any]:
        """Put achieved goals in the second half of the candidates ``[N, G]``; the fields of ``GoalInfo`` about them."""
        N, half = len(options), len(options) // 2
        states = self._recent_states.sample_states(N - half, self._rng)
        found: dict[str, Any] = {"experienced": np.arange(N) >= half}
        found["divergence"] = self._recent_states.goal_divergence(options[: max(half, 1)], states["achieved_goal"])
        options[half:] = states["achieved_goal"]
        if self.required_fields & ONWARD:
            onward = self._distance_and_error(states, np.repeat(target[None], N - half, 0))
            found |= zip(("onward_D", "onward_E"), (np.concatenate([np.zeros(half), x]) for x in onward), strict=True)
        return found

    def _make_goal_info(self, start: dict[str, Any], options: Floats, more: dict[str, Any]) -> rules.GoalInfo:
        """What the rule sees of the candidates ``[N, G]`` from a start."""
        none = np.zeros(len(options))
        starts = {name: np.repeat(value[None], len(options), 0) for name, value in start.items()}
        D, E = self._distance_and_error(starts, options) if self.required_fields & {"D", "E"} else (none, none)
        visits = (
            self._recent_states.achieved_goal_density(options, self._rng) if "visits" in self.required_fields else none
        )
        every = np.ones(len(options), bool)
        L = self.radius(self.num_timesteps) if callable(self.radius) else self.radius
        check_number("radius", L, 0.0, math.inf, closed="()")
        return rules.GoalInfo(D, E, L, every, visits, *(none,) * 4, **more)

    def _distance_and_error(self, states: dict[str, Any], goals: Floats) -> tuple[Floats, Floats]:
        """D in steps and E ``[N]`` of goals ``[N, G]`` from states ``{name: [N, ...]}``."""
        many = states | {"desired_goal": goals.astype(states["desired_goal"].dtype)}
        model: Any = self.model
        model.policy.set_training_mode(False)  # candidates are not learnt from
        with torch.no_grad():
            seen, _ = model.policy.obs_to_tensor(many)
            found = model.critic(seen, model.policy(seen, deterministic=True))
            # [N, critics, quantiles], or a tuple of [N, 1]
            Q = (found.mean(2) if isinstance(found, torch.Tensor) else torch.cat(found, 1)).cpu().numpy()
        Q = Q.astype(np.float64)
        return cost_to_steps(-Q.mean(1), model.gamma), Q.std(1)


def _as_candidate_sampler(goals: CandidateSampler | ArrayLike) -> CandidateSampler:
    """A function that draws goals; one that draws from an array where that is given."""
    if callable(goals):
        return goals
    pool = np.asarray(goals, np.float64)
    if pool.ndim != 2 or len(pool) == 0 or not np.isfinite(pool).all():
        raise InputError("must be a function (rng, n) -> [n, G] or an array [m, G] of finite numbers", "goals")
    return lambda rng, n: pool[rng.integers(len(pool), size=n)]


# What was seen in the last steps: achieved goals as candidates, their density, and the states where they were.


MAX_RECENT_STATES = 4096
"""States that are kept."""
N_DENSITY_POINTS = 256
"""Achieved goals from which a density is estimated."""
DENSITY_BANDWIDTH = 0.3
"""Of the kernel of that density, in standard deviations of the achieved goals."""


class RecentStates:
    """The last states ``{name: [n, ...]}``; only what was achieved there, unless ``whole``."""

    def __init__(self, whole: bool) -> None:
        self.whole = whole
        self.states: dict[str, Any] = {}

    @property
    def achieved_goals(self) -> Floats:
        """The achieved goals ``[n, G]``."""
        return np.asarray(self.states["achieved_goal"], np.float64)

    def add_states(self, seen: Mapping[str, Any]) -> None:
        """Take in what all environments show, ``{name: [environments, ...]}``."""
        for name in seen if self.whole else ("achieved_goal",):
            before = [self.states[name]] if name in self.states else []
            self.states[name] = np.concatenate([*before, seen[name]])[-MAX_RECENT_STATES:]

    def sample_states(self, n: int, rng: np.random.Generator) -> dict[str, Any]:
        """States ``{name: [n, ...]}``."""
        at = rng.integers(len(self.achieved_goals), size=n)
        return {name: values[at] for name, values in self.states.items()}

    def achieved_goal_density(self, options: Floats, rng: np.random.Generator) -> Floats:
        """How many of the achieved goals lie near each candidate ``[N, G]``."""
        near = self.achieved_goals[rng.integers(len(self.achieved_goals), size=N_DENSITY_POINTS)]
        return np.asarray(len(self.achieved_goals) * self._mean_gaussian_kernel(options, near))

    def goal_divergence(self, wanted: Floats, achieved: Floats) -> float:
        """KL(p_wanted || p_achieved) of two kernel estimates, at goals ``wanted [M, G]`` of the goal space."""
        wanted, achieved = wanted[:N_DENSITY_POINTS], achieved[:N_DENSITY_POINTS]
        own, others = self._mean_gaussian_kernel(wanted, wanted), self._mean_gaussian_kernel(wanted, achieved)
        return float(np.mean(np.log(own + 1e-12) - np.log(others + 1e-12)))

    def _mean_gaussian_kernel(self, options: Floats, near: Floats) -> Floats:
        """Mean of a Gaussian kernel between each of ``options [N, G]`` and the points ``near [M, G]``."""
        width = DENSITY_BANDWIDTH * np.maximum(self.achieved_goals.std(0), 1e-6)
        apart = (((options[:, None] - near) / width) ** 2).sum(-1)
        return np.asarray(np.exp(-apart / 2.0).mean(1))
