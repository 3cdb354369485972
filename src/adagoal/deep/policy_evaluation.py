"""Episodes of a trained policy without noise: success rates, and rollouts for certificates. Needs no JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from adagoal.certification.certifier import ROLLOUTS_PER_BLOCK
from adagoal.core.array_types import Bools, Floats
from adagoal.core.confidence_bounds import clopper_pearson_interval
from adagoal.core.errors import InputError
from adagoal.core.random_streams import StreamPurpose, random_stream
from adagoal.core.validation import check_integer
from adagoal.deep.config import Config
from adagoal.deep.env_inspection import GoalSampler, declared_time_limit, inspect_env
from adagoal.deep.goal_envs import EnvDimensions, EnvSource, convert_env_exceptions
from adagoal.deep.policy import GoalPolicy
from adagoal.deep.rollouts import EnvBatch
from adagoal.envs.env_checker import refuse_own_numbers


@dataclass(frozen=True)
class Evaluation:
    """n test episodes."""

    goals: Floats  # [n, G]
    starts: Floats  # achieved goals at the start, [n, G]
    final_success: Bools  # success at the last step, [n]
    any_success: Bools  # success at any step, [n]
    about: Mapping[str, Any] = field(default_factory=dict)  # environment, policy, goal space and seed

    def summary(self) -> dict[str, Any]:
        """Success with a 95% interval (Clopper-Pearson), and success by distance and by each goal coordinate."""
        low, high = clopper_pearson_interval(int(self.final_success.sum()), len(self.final_success), 0.95)
        views = {"distance from the start": np.linalg.norm(self.goals - self.starts, axis=1)}
        views |= {f"goal coordinate {i}": self.goals[:, i] for i in range(self.goals.shape[1])}
        # no bins for a coordinate that is the same in all goals, such as the height of goals on a table
        views = {name: x for name, x in views.items() if np.ptp(x) > 0}
        return {
            "about": dict(self.about),
            "episodes": len(self.final_success),
            "success": float(self.final_success.mean()),
            "interval": [low, high],
            "success_any": float(self.any_success.mean()),
            "by": {n: success_by_bin(x, self.final_success, success_bin_edges(x)) for n, x in views.items()},
        }


def success_bin_edges(values: Floats) -> Floats:
    """Edges of four bins of equal width around all values."""
    return np.linspace(values.min(), values.max(), 5)


def success_by_bin(values: Floats, success: Bools, edges: Floats) -> list[dict[str, Any]]:
    """Success of the episodes in each bin of a value of the episodes."""
    bin_of = np.clip(np.searchsorted(edges, values, "right") - 1, 0, len(edges) - 2)
    return [
        {
            "from": float(edges[k]),
            "to": float(edges[k + 1]),
            "episodes": int((bin_of == k).sum()),
            "success": float(success[bin_of == k].mean()) if (bin_of == k).any() else None,
        }
        for k in range(len(edges) - 1)
    ]


def evaluate_policy(
    policy: GoalPolicy, source: EnvSource, horizon: int | None, test_goals: str, episodes: int, seed: int
) -> Evaluation:
    """Play ``episodes`` for goals of the space ``test_goals``; ``horizon`` None is the limit of the environment."""
    check_integer("episodes", episodes, 1, 10**6)
    check_integer("seed", seed, 0, 2**31 - 1)
    # the timeout kills the process, which is the caller's here
    source = replace(source, step_timeout=None)
    sizes, (sample,), _ = inspect_env(source, horizon, [("test_goals", test_goals)])
    policy.check_matches_env(sizes)
    goals = sample(random_stream(seed, StreamPurpose.EVALUATION_GOALS), episodes)
    # 25 environments at once: the actor is called once for all of them, and each takes memory
    n_envs = min(25, episodes)
    envs = EnvBatch([Config(policy.env, seed=seed)], [(0, k) for k in range(n_envs)], source, sizes)
    rounds = -(-episodes // n_envs)
    # The last round is filled up with goals from the beginning, whose results are dropped below.
    padded, purpose = np.resize(goals, (rounds, n_envs, sizes.goal)), StreamPurpose.EVALUATION_EPISODE
    played = [envs.play_test_round({0: policy.actor}, padded[i], 0, i, purpose) for i in range(rounds)]
    starts = np.concatenate([e.achieved[:, 0] for e, _ in played])[:episodes].astype(np.float64)
    reached = np.concatenate([distances for _, distances in played])[:episodes] <= sizes.success
    about = {"env": policy.env, "policy": policy.fingerprint(), "test_goals": test_goals, "seed": seed}
    return Evaluation(goals, starts, reached[:, -1], np.asarray(reached.any(1)), about)


class GoalPolicyPlayer:
    """A :class:`adagoal.certification.episodes.Player` for trained policies and goals ``[n, G]``.

    The starts come from a random stream that neither training nor tests use, so the rollouts are fresh.
    """

    def __init__(self, policy: GoalPolicy, source: EnvSource, sizes: EnvDimensions, seed: int) -> None:
        self._actor, self._success_radius = policy.actor, sizes.success
        slots = [(0, k) for k in range(ROLLOUTS_PER_BLOCK)]
        self._envs = EnvBatch([Config(policy.env, seed=seed)], slots, source, sizes)

    def play_blocks(self, blocks: Sequence[tuple[int, Floats]], round_: int) -> list[Bools]:
        """See :meth:`Player.play_blocks`: was the goal reached after any step?"""
        purpose, actors = StreamPurpose.CERTIFIED_EPISODE, {0: self._actor}
        played = (self._envs.play_test_round(actors, goals, round_, block, purpose)[1] for block, goals in blocks)
        return [np.asarray((distances <= self._success_radius).any(1)) for distances in played]


def find_episode_steps(source: EnvSource, sizes: EnvDimensions) -> int:
    """Return the horizon, or the time limit of the environment if that is shorter."""
    with convert_env_exceptions(source.name):
        env = source.make_env()
        limit = declared_time_limit(env) or sizes.horizon
        env.close()
    return min(sizes.horizon, limit)


def prepare_certification(
    policy: GoalPolicy, source: EnvSource, horizon: int | None, test_goals: str, radius: int | None, seed: int
) -> tuple[GoalSampler, Callable[[], GoalPolicyPlayer], int]:
    """Return the goal space ``test_goals``, the function that makes players, and the steps of their episodes.

    These are ``radius``, by default the ``horizon`` of the run or the limit of the environment.
    """
    try:
        sizes, (sample,), _ = inspect_env(source, horizon or radius, [("test_goals", test_goals)])
    except InputError as error:
        # a policy without a run has no horizon that could be wrong
        raise InputError(error.reason, "radius") if error.name == "horizon" and not horizon else error from None
    policy.check_matches_env(sizes)
    # an episode that the environment cuts off says nothing about later steps
    limit = find_episode_steps(source, sizes)
    radius = radius or limit
    if radius > limit:
        raise InputError(f"must be a whole number in 1..{limit}, the steps of an episode, got {radius}", name="radius")
    with convert_env_exceptions(policy.env):
        copied = lambda: (source.make_env(), lambda env, seed, _: env.reset(seed=seed)[0])  # noqa: E731
        refuse_own_numbers(policy.env, copied, None, radius)
    return sample, functools.partial(GoalPolicyPlayer, policy, source, replace(sizes, horizon=radius), seed), radius
