"""Goal rules in Stable-Baselines3 on FetchPush with goals ten times too wide: one run, with the rule or without.

    python benchmarks/sb3_push.py --rule adagoal-proportional --seed 0 --out FILE.json      (needs the extra sb3)
    python benchmarks/sb3_push.py --rule unigoal --seed 0 --out FILE.json

TD3 without delay or target noise, which is DDPG with three critics of which the smallest counts, or SAC with three
critics, and hindsight; the same for both rules. Success at the last step, on the environment's own goals, without
noise.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import gymnasium
import gymnasium_robotics
import numpy as np
import torch
from stable_baselines3 import SAC, TD3, HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from adagoal.core.files import write_json
from adagoal.deep.goalspace import goal_space
from adagoal.sb3 import ChooseGoals, ChosenGoal, NormalisedFeatures

ENVIRONMENTS, RADIUS, GROWS = 16, 40.0, 200_000


ALGORITHMS: dict[str, tuple[type[OffPolicyAlgorithm], dict[str, Any]]] = {
    "td3": (TD3, {"policy_delay": 1, "target_policy_noise": 0.0}),
    "sac": (SAC, {}),
}


class Noise(ActionNoise):
    """Gaussian, and now and then so wide that hardly anything of the policy is left."""

    def __init__(self, size: int, gaussian: float, random: float) -> None:
        super().__init__()
        self._size, self._gaussian, self._random = size, gaussian, random

    def __call__(self) -> np.ndarray:
        draw = np.random  # the global generator, which Stable-Baselines3 seeds, as its own noises do
        if draw.random() < self._random:
            return draw.uniform(-2.0, 2.0, self._size)
        return self._gaussian * draw.normal(size=self._size)


class Tests(BaseCallback):
    """Success on the environment's own goals after every so many steps, written to a file each time."""

    def __init__(self, env: str, every: int, episodes: int, about: dict[str, Any], out: Path) -> None:
        super().__init__()
        self._curve: list[dict[str, float]] = []
        self._about, self._out = about, out
        self._env, self._every, self._rounds = (
            make_vec_env(env, ENVIRONMENTS, seed=10_000),
            every,
            episodes // ENVIRONMENTS,
        )
        self._began = time.monotonic()

    def _on_step(self) -> bool:
        if self.num_timesteps >= self._every * len(self._curve):
            self._curve.append({"steps": self.num_timesteps, "success": self.success()})
            print(self._curve[-1], f"{time.monotonic() - self._began:.0f} s", flush=True)
            write_json(self._out, {**self._about, "device": str(self.model.device), "curve": self._curve})
        return True

    def success(self) -> float:
        """Of so many rounds of episodes."""
        held = []
        for _ in range(self._rounds):
            seen: Any = self._env.reset()
            done = np.zeros(ENVIRONMENTS, bool)
            while not done.all():
                action, _ = self.model.predict(seen, deterministic=True)
                seen, _, done, infos = self._env.step(action)
            held += [info["is_success"] for info in infos]
        return float(np.mean(held))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--env", default="FetchPush-v4")
    parser.add_argument("--scale", type=int, default=10)
    parser.add_argument("--rule", default="adagoal-proportional")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=144_000)
    parser.add_argument("--algorithm", choices=list(ALGORITHMS), default="td3")
    parser.add_argument("--noise", type=float, default=0.2, help="Standard deviation of the action noise.")
    parser.add_argument("--random", type=float, default=0.3, help="Share of actions that are random.")
    parser.add_argument("--updates", type=int, default=8, help=f"For every {ENVIRONMENTS} steps.")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--every", type=int, default=24_000, help="Steps between two tests.")
    parser.add_argument("--episodes", type=int, default=48, help="Of a test.")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    gymnasium.register_envs(gymnasium_robotics)
    env = gymnasium.make(options.env)
    goals, actions = goal_space(env, "train_goals", f"scale={options.scale}"), env.action_space.shape[0]
    algorithm, own = ALGORITHMS[options.algorithm]
    model = algorithm(
        "MultiInputPolicy",
        make_vec_env(options.env, ENVIRONMENTS, seed=options.seed, wrapper_class=ChosenGoal),
        replay_buffer_class=HerReplayBuffer,
        replay_buffer_kwargs={"n_sampled_goal": 4, "goal_selection_strategy": "future"},
        policy_kwargs={
            "n_critics": 3,
            "net_arch": [options.width] * 3,
            "features_extractor_class": NormalisedFeatures,
        },
        gamma=0.98,
        learning_starts=1600,
        batch_size=options.batch,
        gradient_steps=options.updates,
        action_noise=Noise(actions, options.noise, options.random),
        seed=options.seed,
        **own,
    )
    about = {key: value for key, value in vars(options).items() if key != "out"} | {"torch": torch.__version__}
    tests = Tests(options.env, options.every, options.episodes, about, options.out)
    grows = lambda steps: RADIUS * min(1.0, 0.25 + 0.75 * steps / GROWS)  # noqa: E731
    choose = ChooseGoals(options.rule, goals, radius=grows, seed=options.seed)
    model.learn(options.steps, callback=CallbackList([choose, tests]))


if __name__ == "__main__":
    main()
