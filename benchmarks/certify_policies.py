"""How often is a certificate of a policy wrong? Many certificates of an environment whose truth is known.

    python benchmarks/certify_policies.py --runs 1000 --out docs/data/certify-policies.json

An episode succeeds with a probability that depends on its start or goal: in one half of the square just too little to
be certified, in the other half just enough not to be refuted. So every verdict may be wrong. The episodes are played by
the player that ``adagoal.certify`` uses. A certificate counts as wrong if one of its verdicts is false; that may happen
to delta of them. Two rows are controls with intervals for one look at one cell, which must be wrong more often.

In the comparison of two policies these succeed equally often in one half of the square, so that neither is better. In
the other half one of them succeeds just too much more often than the other for them to be equal.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
from gymnasium import spaces

from adagoal.certification import certificate
from adagoal.certification.certificate import Certification, Claim, ComparisonClaim, Verdict
from adagoal.certification.certifier import Certifier
from adagoal.certification.episodes import EpisodePlayer, EpisodeTask, PairPlayer, make_criterion, open_players
from adagoal.certification.value_spaces import make_value_space
from adagoal.core.confidence_bounds import clopper_pearson_interval
from adagoal.core.file_io import write_json
from adagoal.deep.goal_envs import find_goal_setter

CLAIM = Claim(radius=2, success=0.8, slack=0.2, delta=0.1, halvings=4)
COMPARISON = ComparisonClaim(radius=2, slack=0.4, delta=0.1, halvings=4)
MARGIN = 0.002  # distance of the truth from the two thresholds
BOX = {"x": (-1.0, 1.0), "y": (-1.0, 1.0)}


def truth(x: float) -> float:
    """Probability of success of an episode."""
    return CLAIM.success - CLAIM.slack - MARGIN if x <= 0.0 else CLAIM.success + MARGIN


def difference(x: float) -> float:
    """Probability of success of action 1 less that of action 0, in the comparison."""
    return 0.0 if x <= 0.0 else COMPARISON.slack + MARGIN


class CoinEnv(gymnasium.Env[Any, Any]):
    """Episodes of two steps; the second one succeeds with probability :func:`truth`. Starts are reset options."""

    action_space = spaces.Discrete(2)
    observation_space: Any = spaces.Box(-2.0, 2.0, (2,), np.float64)

    def __init__(self, probability: Callable[[float], float] = truth) -> None:
        self.probability, self.place, self.t = probability, np.zeros(2), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        given = options or {}
        self.place, self.t = np.array([given.get("x", 0.0), given.get("y", 0.0)]), 0
        return self.observe(), {}

    def observe(self) -> Any:
        return self.place.copy()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        won = self.t == 2 and bool(self.np_random.random() < self.probability(float(self.place[0])))
        return self.observe(), float(won), self.t == 2, False, {"is_success": won}


class TwoCoinsEnv(CoinEnv):
    """The action chooses a coin. Exactly one of the two coins succeeds, so there are no draws."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        draw, more = self.np_random.random(), difference(float(self.place[0])) / 2.0
        won = self.t == 2 and bool(draw < 0.5 + more if action else draw >= 0.5 + more)
        return self.observe(), float(won), self.t == 2, False, {"is_success": won}


class GoalCoinEnv(CoinEnv):
    """The same with goals."""

    observation_space = spaces.Dict(
        {name: spaces.Box(-2.0, 2.0, (2,), np.float64) for name in ("observation", "achieved_goal", "desired_goal")}
    )

    def set_goal(self, goal: Any) -> None:
        self.place = np.array(goal)

    def observe(self) -> Any:
        return {"observation": np.zeros(2), "achieved_goal": np.zeros(2), "desired_goal": self.place.copy()}


def always_zero(observation: Any) -> int:
    return 0


def make_task(subject: str, seed: int, env: Any = CoinEnv, action: int = 0) -> EpisodeTask:
    """Return the episodes of a certification."""
    env = env if subject == "start" else GoalCoinEnv
    space, policy = make_value_space(f"{subject}s", BOX), lambda seen, rngs: [action] * len(seen)
    criterion = make_criterion(None, subject)
    return EpisodeTask(
        "coins", env, lambda: policy, subject, space, criterion, seed, None, find_goal_setter, CLAIM.radius
    )


def is_false(verdict: Verdict, high: Any) -> bool:
    """Whether the verdict on a cell is false; ``high`` is its upper corner."""
    p, d = truth(float(high[0]) - 1e-9), difference(float(high[0]) - 1e-9)
    if verdict in ComparisonClaim.verdicts[:3]:
        return {Verdict.BETTER: d <= 0.0, Verdict.WORSE: d >= 0.0, Verdict.EQUAL: abs(d) > COMPARISON.slack}[verdict]
    if verdict is Verdict.CERTIFIED:
        return p < CLAIM.success - CLAIM.slack
    return verdict is Verdict.REFUTED and p >= CLAIM.success


def is_wrong(found: Certification) -> bool:
    """Whether one of the verdicts is false."""
    return any(is_false(cell.verdict, cell.high) for cell in found.cells)


def is_wrong_so_far(run: Certifier) -> bool:
    """The same for a certification that is under way."""
    return any(is_false(run.cell_verdict(cell), run.tree.high[cell]) for cell in run.open_cells + run._decided)


def certify_once(subject: str, seed: int, how: str = "") -> Certification:
    """Return one certificate; ``how`` is "", "stopped", "interrupted", "compared" or a control."""
    task, rng = make_task(subject, seed), np.random.default_rng([seed, 7])
    claim, player = CLAIM, functools.partial(EpisodePlayer, task)
    if "compared" in how:
        claim, tasks = COMPARISON, [make_task(subject, seed, TwoCoinsEnv, action) for action in (1, 0)]
        player = functools.partial(PairPlayer, *tasks)
    make = functools.partial(Certifier, claim, task.space.sample, seed)
    run = make(task.space.make_tree(claim.halvings))
    with open_players(player, 1, in_process=True) as play:
        while True:
            proceed = lambda cells, rollouts: True  # noqa: E731
            if "stopped" in how:
                # an adversary looks after every round and stops when a verdict is false
                proceed = lambda cells, rollouts, run=run: not is_wrong_so_far(run)  # noqa: E731
            if how == "interrupted":
                proceed = lambda cells, rollouts: rng.random() < 0.7  # noqa: E731
            found = run.run(play, proceed)
            if how != "interrupted" or found.status.finished:
                return found
            saved = json.loads(json.dumps(found.progress))
            run = make(task.space.make_tree(CLAIM.halvings))
            run.resume(saved)


def one_look(values: Any, times: Any, m: float, alpha: float) -> bool:
    """Reject by an interval for one look at one cell: wrong if it is used at every look at every cell."""
    # draws do not occur here
    successes, trials = int(times[0]), int(times.sum())
    return trials > 0 and clopper_pearson_interval(successes, trials, 1.0 - 2.0 * CLAIM.delta)[0] > m


ROWS = {
    "cells over starts": ("start", ""),
    "cells over goals": ("goal", ""),
    "optional stopping": ("start", "stopped"),
    "interrupted and resumed": ("start", "interrupted"),
    "two policies, optional stopping": ("start", "compared, stopped"),
    "control: intervals for one look": ("start", "control"),
    "control: two policies, intervals for one look": ("start", "compared, control"),
}


def count_wrong(name: str, runs: int) -> dict[str, Any]:
    """Return how many certificates are wrong."""
    subject, how = ROWS[name]
    weakened = mock.patch.multiple(
        certificate,
        rejects_mean=one_look,
        rejects_at_most=lambda successes, n, *test: one_look(None, np.array([successes, n - successes]), *test),
    )
    with weakened if "control" in how else contextlib.nullcontext():
        # other seeds for goals, or the two rows would have the same coins
        first = 10_000 if subject == "goal" else 0
        found = [certify_once(subject, seed, how) for seed in range(first, first + runs)]
    rollouts = round(float(np.mean([each.rollouts for each in found])))
    return {
        "how": name,
        "certificates": runs,
        "delta": CLAIM.delta,
        "wrong": sum(map(is_wrong, found)),
        "rollouts": rollouts,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for name in ROWS:
        rows.append(count_wrong(name, options.runs))
        print(rows[-1], flush=True)
    if options.out is not None:
        write_json(options.out, {"claim": vars(CLAIM), "comparison": vars(COMPARISON), "rows": rows})


if __name__ == "__main__":
    main()
