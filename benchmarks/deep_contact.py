"""What hindsight and contact replay do to D if the environment is random: a push that works with probability q.

    python benchmarks/deep_contact.py --works 0.5

At the fifth step of an episode the object jumps to the only goal with probability q; otherwise it never moves. So
q is known, D = 5 + log q / log gamma, and the D that was learnt says for which q it would be right.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from adagoal.deep import Config
from adagoal.deep.goal_envs import EnvSource
from adagoal.deep.training import Training

PUSH, STEPS = 5, 20


class Push(gymnasium.Env[Any, Any]):
    """The object is at 0, and at 1 after a push that worked; actions do nothing."""

    spec = None

    def __init__(self, works: float) -> None:
        self.works, self.object, self.time = works, 0.0, 0
        box = spaces.Box(-10.0, 10.0, (1,), np.float64)
        self.observation_space = spaces.Dict(
            {"observation": spaces.Box(-10.0, 10.0, (2,), np.float64), "achieved_goal": box, "desired_goal": box}
        )
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float64)

    def seen(self) -> dict[str, Any]:
        time = min(self.time, PUSH) / PUSH  # nothing changes after the push, so neither does what is seen
        place = np.array([self.object])
        return {"observation": np.array([self.object, time]), "achieved_goal": place, "desired_goal": np.ones(1)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.object, self.time = 0.0, 0
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        if self.time == PUSH:
            self.object = float(self.np_random.random() < self.works)
        return self.seen(), self.object - 1.0, False, False, {}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return -(np.abs(achieved_goal - desired_goal).max(-1) > 0.5).astype(np.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", type=float, default=0.5, help="q")
    parser.add_argument("--steps", type=int, default=16_000)
    given = parser.parse_args()
    source = EnvSource.from_argument(lambda: Push(given.works))
    same: dict[str, Any] = {"steps": given.steps, "horizon": STEPS, "hidden": (32, 32), "batch": 256, "updates": 320}
    kinds = [(relabel, contact) for relabel in (0.0, 0.8) for contact in (0.0, 0.5)]
    configs = [Config(source.name, seed=0, relabel=r, contact=c, **same) for r, c in kinds]
    training = Training(configs, 1, source=source)
    training.run_until_pause()
    gamma = training.configs[0].gamma
    seen, _ = source.make_env().reset(seed=0)
    print(f"truth: works {given.works:.2f}, D {PUSH + math.log(given.works) / math.log(gamma):.1f}")
    for (relabel, contact), policy in zip(kinds, training.current_policies(), strict=True):
        D = policy.distance(seen, seen["desired_goal"])
        print(f"relabel {relabel:g}, contact {contact:g}: works {gamma ** (D - PUSH):.2f}, D {D:.1f}")


if __name__ == "__main__":
    main()
