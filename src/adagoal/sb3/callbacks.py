"""Callbacks for Stable-Baselines3: a goal rule chooses the goal of every episode, a certificate ends training.

The critics Q_j of DDPG, TD3 and SAC, and the mean quantiles of those of TQC, learn the discounted return of the sparse
reward (-1 a step, 0 at the goal). So a start s0 and a candidate goal g have

    c(g) = -mean_j Q_j(s0, pi(s0, g), g),  a discounted cost
    D(g) = the number of steps with that cost (:func:`adagoal.deep.value_formulas.cost_to_steps`)
    E(g) = std_j Q_j(s0, pi(s0, g), g),  in discounted steps.

SAC and TQC add an entropy bonus to their values, which makes D too small; a low entropy coefficient limits that.

For a rule that asks which goals were achieved before (mega, omega, discover), half of the candidates are achieved goals
of recent states. The target of discover is the goal that the environment itself has drawn for the episode.

A vectorised environment resets by itself. When an episode has ended, the callback sees the first observation of the
next one before the model does. It chooses the goal, passes it to the wrapper, and writes it into the observation.
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

from adagoal import goal_rules
from adagoal.api.certify import certify
from adagoal.certification.certificate import Certification
from adagoal.core.array_types import Floats
from adagoal.core.errors import InputError, Status
from adagoal.core.validation import check_integer, check_number
from adagoal.deep import value_formulas
from adagoal.deep.config import DECLARABLE_GOAL_FIELDS, KNOWN_GOAL_FIELDS, ONWARD_GOAL_FIELDS
from adagoal.deep.env_inspection import parse_goal_space
from adagoal.sb3.goal_wrapper import ChosenGoal, check_sparse_rewards

# Goals of a goal space given as a text, from which candidates are drawn.
MAX_DRAWN_GOALS = 100_000
CandidateSampler = Callable[[np.random.Generator, int], ArrayLike]  # (rng, n) -> [n, G]


class ChooseGoals(BaseCallback):
    """Let a goal rule choose the goal of every training episode.

    Parameters
    ----------
    rule: a rule of :mod:`adagoal.goal_rules` by name, ``FILE.py:FUNCTION``, or a function of a ``GoalInfo``.
    goals: where candidates come from: a function ``(rng, n) -> [n, G]``, an array ``[m, G]`` to draw from, or the text
        of a goal space (``"scale=10"``; :mod:`adagoal.deep.env_inspection`), which suits files of settings.
    radius: L, in steps; or a function of the environment steps so far, for an L that grows.
    candidates: number of candidate goals of each episode.
    seed: of candidates and choices.

    The environments must be wrapped in :class:`adagoal.sb3.ChosenGoal`. Rewards other than 0 and -1 are refused. A
    model without hindsight gets a warning. A rule that looks at E needs two critics or more: SAC, TD3 and TQC have two;
    ``policy_kwargs={"n_critics": 3}`` gives any of them more, DDPG included.

    The logger of the model gets means over the episodes since its last output: ``goals/D`` and ``goals/E`` of the
    chosen goals, ``goals/L``, and ``goals/reachable``, the share of candidates with D <= L.
    """

    def __init__(
        self,
        rule: str | goal_rules.GoalRule,
        goals: CandidateSampler | ArrayLike | str,
        *,
        radius: float | Callable[[int], float],
        candidates: int = 1000,
        seed: int = 0,
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        self.rule = goal_rules.resolve_rule(rule)
        self.required_fields = goal_rules.required_fields(self.rule, KNOWN_GOAL_FIELDS)
        missing = self.required_fields - DECLARABLE_GOAL_FIELDS
        if missing:
            raise InputError(
                f"needs {', '.join(sorted(missing))}, which continuous goals do not have; choose another rule", "rule"
            )
        if not callable(radius):
            check_number("radius", radius, 0.0, math.inf, closed="()")
        check_integer("candidates", candidates, 1, 1_000_000)
        check_integer("seed", seed, 0, 2**31 - 1)
        if isinstance(goals, str):
            parse_goal_space("goals", goals)
        elif not callable(goals):
            goals = _check_goal_pool(goals)
        self._goals, self.radius, self.candidates = goals, radius, candidates
        self.chosen_goals: list[Floats] = []  # goals of all episodes, in the order of their starts
        self._rng = np.random.default_rng(seed)
        self._recent_states = RecentStates(whole=bool(self.required_fields & ONWARD_GOAL_FIELDS))

    def _on_training_start(self) -> None:
        self._check_model()
        self._sample_candidates = self._make_candidate_sampler()
        observations: Any = self.model._last_obs
        self._recent_states.add_states(observations)
        # with reset_num_timesteps=False, running episodes keep their goals
        self._choose_goals(observations, np.flatnonzero(self.training_env.get_attr("awaits_goal")).tolist())

    def _check_model(self) -> None:
        if unwrap_vec_normalize(self.training_env) is not None:
            raise InputError("VecNormalize would hide the goals; use adagoal.sb3.NormalisedFeatures instead", "env")
        if not all(self.training_env.env_is_wrapped(ChosenGoal)):
            raise InputError("must be wrapped: make_vec_env(..., wrapper_class=adagoal.sb3.ChosenGoal)", "env")
        if not hasattr(self.model, "critic"):
            raise InputError(f"{type(self.model).__name__} has no critics; use DDPG, TD3, SAC or TQC", "model")
        if self.required_fields & {"E", "onward_E"} and self.model.critic.n_critics < 2:
            raise InputError(
                "this rule needs E, which takes two critics or more: policy_kwargs={'n_critics': 3}", "model"
            )
        # steps follow from costs only if gamma < 1
        if self.required_fields & ({"D", "E"} | ONWARD_GOAL_FIELDS):
            check_number("gamma", self.model.gamma, 0.0, 1.0, closed="()")
        if not isinstance(self.model.replay_buffer, HerReplayBuffer):
            text = "the model learns without hindsight; to have it, give replay_buffer_class=HerReplayBuffer"
            warnings.warn(text, stacklevel=3)

    def _make_candidate_sampler(self) -> CandidateSampler:
        goals: Any = self._goals
        if isinstance(goals, str):
            # drawn in the process of the first environment, because its goals may depend on what it was made with
            goals = self.training_env.env_method("draw_goals", goals, MAX_DRAWN_GOALS, indices=[0])[0]
        return goals if callable(goals) else lambda rng, n: goals[rng.integers(len(goals), size=n)]

    def _on_step(self) -> bool:
        check_sparse_rewards(self.locals["rewards"])
        observations = self.locals["new_obs"]
        self._recent_states.add_states(observations)
        self._choose_goals(observations, np.flatnonzero(self.locals["dones"]).tolist())
        return True

    def _choose_goals(self, observations: dict[str, Any], envs: Sequence[int]) -> None:
        """Choose goals for new episodes and write them into the observations ``{name: [environments, ...]}``."""
        for env in envs:
            # a copy: achieved goals overwrite half of it below, and the user's array must not change
            goals = np.array(self._sample_candidates(self._rng, self.candidates), np.float64)
            start = {name: value[env] for name, value in observations.items()}
            size = len(start["desired_goal"])
            if goals.ndim != 2 or goals.shape[1] != size or not len(goals) or not np.isfinite(goals).all():
                raise InputError(f"must be drawn as [n, {size}] finite numbers, got {list(goals.shape)}", "goals")
            experience: dict[str, Any] = {}
            if "experienced" in self.required_fields:
                experience = self._add_achieved_candidates(goals, start["desired_goal"])
            info = self._goal_info(start, goals, experience)
            pick = goal_rules.sample_goal(goal_rules.compute_weights(self.rule, info), self._rng)
            goal = goals[pick]
            if self.required_fields & {"D", "E"}:
                numbers = {"D": info.D[pick], "E": info.E[pick], "L": info.L, "reachable": (info.D <= info.L).mean()}
                for name, value in numbers.items():
                    self.logger.record_mean(f"goals/{name}", float(value))
            self.training_env.env_method("set_goal", goal, indices=[env])
            observations["desired_goal"][env] = goal
            self.chosen_goals.append(goal)

    def _add_achieved_candidates(self, goals: Floats, target: Floats) -> dict[str, Any]:
        """Overwrite the second half of the candidates ``[N, G]`` with achieved goals; returns ``GoalInfo`` fields."""
        N, half = len(goals), len(goals) // 2
        states = self._recent_states.sample_states(N - half, self._rng)
        fields: dict[str, Any] = {"experienced": np.arange(N) >= half}
        fields["divergence"] = self._recent_states.goal_divergence(goals[: max(half, 1)], states["achieved_goal"])
        goals[half:] = states["achieved_goal"]
        if self.required_fields & ONWARD_GOAL_FIELDS:
            onward = self._distance_and_error(states, np.repeat(target[None], N - half, 0))
            fields["onward_D"], fields["onward_E"] = (np.concatenate([np.zeros(half), values]) for values in onward)
        return fields

    def _goal_info(self, start: dict[str, Any], goals: Floats, experience: dict[str, Any]) -> goal_rules.GoalInfo:
        D = E = visits = np.zeros(len(goals))
        if self.required_fields & {"D", "E"}:
            starts = {name: np.repeat(value[None], len(goals), 0) for name, value in start.items()}
            D, E = self._distance_and_error(starts, goals)
        if "visits" in self.required_fields:
            visits = self._recent_states.achieved_goal_density(goals, self._rng)
        L = self.radius(self.num_timesteps) if callable(self.radius) else self.radius
        check_number("radius", L, 0.0, math.inf, closed="()")
        return value_formulas.make_goal_info(D, E, visits, L, experience)

    def _distance_and_error(self, states: dict[str, Any], goals: Floats) -> tuple[Floats, Floats]:
        """D in steps and E ``[N]`` of goals ``[N, G]`` from states ``{name: [N, ...]}``."""
        observations = states | {"desired_goal": goals.astype(states["desired_goal"].dtype)}
        model: Any = self.model
        # in training mode NormalisedFeatures would learn from the candidates
        model.policy.set_training_mode(False)
        with torch.no_grad():
            inputs, _ = model.policy.obs_to_tensor(observations)
            values = model.critic(inputs, model.policy(inputs, deterministic=True))
            # TQC returns [N, critics, quantiles], the others a tuple of [N, 1]
            Q = (values.mean(2) if isinstance(values, torch.Tensor) else torch.cat(values, 1)).cpu().numpy()
        Q = Q.astype(np.float64)
        return value_formulas.cost_to_steps(-Q.mean(1), model.gamma), Q.std(1)


def _check_goal_pool(goals: ArrayLike) -> Floats:
    pool = np.asarray(goals, np.float64)
    if pool.ndim != 2 or len(pool) == 0 or not np.isfinite(pool).all():
        text = "must be a function (rng, n) -> [n, G], an array [m, G] of finite numbers, or a text such as scale=10"
        raise InputError(text, "goals")
    return pool


class RecentStates:
    """The most recent states ``{name: [n, ...]}``; only their achieved goals, unless ``whole``."""

    max_states = 4096
    # Achieved goals from which a density is estimated, anew for each episode: the time of a reset grows with it.
    n_density_points = 256

    def __init__(self, whole: bool) -> None:
        self.whole = whole
        self.states: dict[str, Any] = {}

    @property
    def achieved_goals(self) -> Floats:
        """Achieved goals ``[n, G]``."""
        return np.asarray(self.states["achieved_goal"], np.float64)

    def add_states(self, observations: Mapping[str, Any]) -> None:
        """Add the observations of all environments, ``{name: [environments, ...]}``."""
        for name in observations if self.whole else ("achieved_goal",):
            before = [self.states[name]] if name in self.states else []
            self.states[name] = np.concatenate([*before, observations[name]])[-self.max_states :]

    def sample_states(self, n: int, rng: np.random.Generator) -> dict[str, Any]:
        """States ``{name: [n, ...]}``."""
        indices = rng.integers(len(self.achieved_goals), size=n)
        return {name: values[indices] for name, values in self.states.items()}

    def achieved_goal_density(self, goals: Floats, rng: np.random.Generator) -> Floats:
        """Kernel estimate of the number of achieved goals near each of ``goals [N, G]``."""
        points = self.achieved_goals[rng.integers(len(self.achieved_goals), size=self.n_density_points)]
        return np.asarray(len(self.achieved_goals) * self._density(goals, points))

    def goal_divergence(self, wanted: Floats, achieved: Floats) -> float:
        """KL(p_wanted || p_achieved) of two kernel densities, at goals ``wanted [M, G]`` of the goal space."""
        wanted, achieved = wanted[: self.n_density_points], achieved[: self.n_density_points]
        return float(value_formulas.kernel_divergence(self._density(wanted, wanted), self._density(wanted, achieved)))

    def _density(self, goals: Floats, points: Floats) -> Floats:
        width = value_formulas.DENSITY_BANDWIDTH * np.maximum(self.achieved_goals.std(0), 1e-6)
        return np.asarray(value_formulas.mean_gaussian_kernel((goals[:, None] - points) / width, 1.0))


class StopWhenCertified(BaseCallback):
    """End ``model.learn`` when every cell of goals or starts is certified.

    Training pauses every few steps, and fresh rollouts certify the policy of that moment (:func:`adagoal.certify`).
    Attempt k has the share delta / (k (k + 1)), and all shares together are at most delta. So with probability
    1 - delta no verdict of any attempt is wrong, however many attempts there were.

    Parameters
    ----------
    env: as in :func:`adagoal.certify`: a Gymnasium id, or a function that makes the environment. The rollouts of the
        certificate are played in environments of their own.
    every: environment steps between two attempts.
    delta: probability that any verdict of any attempt is wrong.
    min_share: share of the goals or starts that must lie in certified cells.
    halvings: 3 gives 8 cells. More cells cost more rollouts in every attempt.
    seed: of the rollouts; every attempt has fresh ones.
    claim: other arguments of :func:`adagoal.certify`, such as ``goals``, ``starts``, ``criterion``, ``success``.

    ``certificates`` holds the certificate of every attempt.
    """

    def __init__(
        self,
        env: Any,
        *,
        every: int = 10_000,
        delta: float = 0.05,
        min_share: float = 1.0,
        halvings: int = 3,
        seed: int = 0,
        workers: int = 1,
        verbose: int = 0,
        **claim: Any,
    ) -> None:
        super().__init__(verbose)
        check_integer("every", every, 1, 10**12)
        check_integer("seed", seed, 0, 2**30)
        check_number("min_share", min_share, 0.0, 1.0, closed="(]")
        check_number("delta", delta, 0.0, 1.0, closed="()")
        for name in ("policy", "versus", "out", "observe"):
            if name in claim:
                raise InputError("cannot be given to the callback; leave it out", name)
        self.env, self.every, self.delta, self.min_share, self.seed = env, every, delta, min_share, seed
        self.claim: dict[str, Any] = {"halvings": halvings, "workers": workers, **claim}
        self.certificates: list[Certification] = []
        self._next_attempt = every

    @property
    def is_certified(self) -> bool:
        """Whether the last attempt ended training."""
        return bool(self.certificates) and self.certificates[-1].share("certified") >= self.min_share - 1e-9

    def _on_training_start(self) -> None:
        # A second call of model.learn may count its steps from 0. The attempts count on, with their shares of delta.
        self._next_attempt = self.num_timesteps + self.every

    def _on_step(self) -> bool:
        if self.num_timesteps < self._next_attempt:
            return True
        self._next_attempt = self.num_timesteps + self.every
        attempt = len(self.certificates) + 1
        # Another seed for every attempt: rollouts that decided when to stop cannot be used again to certify.
        share, seed = self.delta / (attempt * (attempt + 1)), self.seed + attempt
        found = certify(self.model, self.env, delta=share, seed=seed, **self.claim)
        # Ctrl-C during the rollouts must end training as well.
        if found.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        self.certificates.append(found)
        self.logger.record("certify/share", found.share("certified"))
        self.logger.record("certify/rollouts", found.rollouts)
        if self.verbose:
            print(f"{self.num_timesteps} steps: {found.share('certified'):.0%} certified, {found.rollouts} rollouts")
        return not self.is_certified
