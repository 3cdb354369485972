"""Goal rules in Stable-Baselines3 on FetchPush with goals ten times too wide: one run, with the rule or without.

    python benchmarks/sb3_push.py --rule adagoal-proportional --seed 0 --out FILE.json      (needs sb3 and sb3-contrib)
    python benchmarks/sb3_push.py --rule unigoal --seed 0 --out FILE.json
    python benchmarks/sb3_push.py --idle 6                                                  # doing nothing, six tests
    python benchmarks/sb3_push.py --table FILE.json [FILE.json ...]                         # only print the curves

Hindsight, and one of: TQC of sb3-contrib; DDPG, TD3 (without delay or target noise) and SAC of Stable-Baselines3. If
DDPG has more critics than one, which E needs, the smallest counts in its targets, as in TD3.
Success at the last step, on the environment's own goals, without noise; and how many of the goals that were chosen
since the last test lie where these do.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import gymnasium_robotics
import numpy as np
import torch
from stable_baselines3 import DDPG, SAC, TD3, HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from adagoal.core.file_io import read_json, write_json
from adagoal.deep.env_inspection import bounding_box, is_inside_box, make_goal_sampler
from adagoal.sb3 import ChooseGoals, ChosenGoal, NormalisedFeatures

ENVIRONMENTS, RADIUS = 16, 40.0


class NormalisedLayer(torch.nn.Module):
    """An activation that normalises first: the critics of ``adagoal train`` have such layers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.nn.functional.layer_norm(x, x.shape[-1:]))


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

    def __init__(self, env: VecEnv, own: Any, choose: ChooseGoals, every: int, episodes: int, about: Any, out: Path):
        super().__init__()
        self._curve: list[dict[str, float]] = []
        self._env, self._box, self._choose = env, bounding_box(own), choose
        self._every, self._rounds, self._about, self._out = every, episodes // ENVIRONMENTS, about, out
        self._before, self._began = 0, time.monotonic()

    def _on_step(self) -> bool:
        if self.num_timesteps >= self._every * len(self._curve):
            chosen = np.array(self._choose.chosen_goals[self._before :])
            self._before += len(chosen)
            near = float(is_inside_box(self._box, chosen).mean())
            seconds = round(time.monotonic() - self._began, 1)
            held = success(self._env, self._rounds, lambda seen: self.model.predict(seen, deterministic=True)[0])
            self._curve.append({"steps": self.num_timesteps, "success": held, "inside": near, "seconds": seconds})
            print(self._curve[-1], flush=True)
            write_json(self._out, {**self._about, "device": str(self.model.device), "curve": self._curve})
        return True


def success(env: VecEnv, rounds: int, act: Callable[[Any], Any]) -> float:
    """Of so many rounds of episodes, at their last step."""
    held = []
    for _ in range(rounds):
        seen: Any = env.reset()
        done = np.zeros(ENVIRONMENTS, bool)
        while not done.all():
            seen, _, done, infos = env.step(act(seen))
        held += [info["is_success"] for info in infos]
    return float(np.mean(held))


def learner(options: argparse.Namespace, env: VecEnv) -> Any:
    """The model."""
    actions = env.action_space.shape[0]  # type: ignore[index]
    shared: dict[str, Any] = {
        "replay_buffer_class": HerReplayBuffer,
        "replay_buffer_kwargs": {"n_sampled_goal": 4, "goal_selection_strategy": "future"},
        "gamma": options.gamma,
        "tau": options.tau,
        "buffer_size": max(options.steps, 10_000),
        "learning_starts": 1600,
        "batch_size": options.batch,
        "train_freq": 1,
        "gradient_steps": options.updates,
        "seed": options.seed,
    }
    networks: dict[str, Any] = {"n_critics": options.critics, "net_arch": [options.width] * 3}
    if not options.plain:
        networks |= {"features_extractor_class": NormalisedFeatures}
    if options.layers:
        networks |= {"activation_fn": NormalisedLayer}
    shared |= {"policy_kwargs": networks}
    if options.rate is not None:
        shared |= {"learning_rate": options.rate}
    if options.noise or options.random:
        shared |= {"action_noise": Noise(actions, options.noise, options.random)}
    if options.algorithm == "tqc":
        from sb3_contrib import TQC

        return TQC("MultiInputPolicy", env, ent_coef=options.entropy, **shared)
    if options.algorithm == "sac":
        return SAC("MultiInputPolicy", env, ent_coef=options.entropy, **shared)
    if options.algorithm == "ddpg":
        return DDPG("MultiInputPolicy", env, **shared)
    return TD3("MultiInputPolicy", env, policy_delay=1, target_policy_noise=0.0, **shared)


def table(files: list[Path]) -> str:
    """One line per run: success at every test, and how many of the chosen goals lay where the test goals do."""
    lines = []
    for path in files:
        data = read_json(path)
        parts = [data, *(part for part in data.values() if isinstance(part, dict))]
        for run in [run for part in parts for run in part.get("runs", [])] or [data]:
            lines.append(f"{run['env']} scale={run['scale']} {run['algorithm']} {run['rule']}, seed {run['seed']}")
            lines += [
                f"{point['steps']:>9} {point['success']:8.2f}   inside {point.get('inside', np.nan):.2f}"
                for point in run["curve"]
            ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--env", default="FetchPush-v4")
    parser.add_argument("--scale", type=int, default=10)
    parser.add_argument("--rule", default="adagoal-proportional")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=144_000)
    parser.add_argument("--algorithm", choices=("tqc", "ddpg", "td3", "sac"), default="tqc")
    parser.add_argument("--grows", type=int, default=300_000, help="Steps over which L grows from 10 to 40.")
    parser.add_argument("--noise", type=float, default=0.2, help="Standard deviation of the action noise.")
    parser.add_argument("--random", type=float, default=0.3, help="Share of actions that are random.")
    parser.add_argument("--updates", type=int, default=8, help=f"For every {ENVIRONMENTS} steps.")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--gamma", type=float, default=0.98)
    parser.add_argument("--tau", type=float, default=0.005, help="How far the targets move at every update.")
    parser.add_argument("--critics", type=int, default=3)
    parser.add_argument("--rate", type=float, help="Learning rate, if not that of the algorithm.")
    parser.add_argument("--entropy", default="auto", help="Weight of the entropy, of tqc and sac.")
    parser.add_argument("--plain", action="store_true", help="Features that are not normalised.")
    parser.add_argument("--layers", action="store_true", help="Hidden layers are normalised.")
    parser.add_argument("--every", type=int, default=24_000, help="Steps between two tests.")
    parser.add_argument("--episodes", type=int, default=48, help="Of a test.")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--spread", action="store_true", help="Every environment in a process of its own.")
    parser.add_argument("--idle", type=int, default=0, help="Only so many tests of doing nothing.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, nargs="+")
    options = parser.parse_args()
    if options.table is not None:
        print(table(options.table))
        return
    torch.set_num_threads(options.threads)
    gymnasium.register_envs(gymnasium_robotics)
    env = gymnasium.make(options.env)
    # forked before the GPU is used
    kind: Any = {"vec_env_cls": SubprocVecEnv, "vec_env_kwargs": {"start_method": "fork"}}
    kind = kind if options.spread else {"vec_env_cls": DummyVecEnv}
    tested = make_vec_env(options.env, ENVIRONMENTS, seed=10_000, **kind)
    if options.idle:
        still = np.zeros((ENVIRONMENTS, *env.action_space.shape))  # type: ignore[misc]
        for _ in range(options.idle):
            print(f"{success(tested, options.episodes // ENVIRONMENTS, lambda seen: still):.2f}", flush=True)
        return
    played = make_vec_env(options.env, ENVIRONMENTS, seed=options.seed, wrapper_class=ChosenGoal, **kind)
    grows = lambda steps: RADIUS * min(1.0, 0.25 + 0.75 * steps / options.grows)  # noqa: E731
    goals = make_goal_sampler(env, "train_goals", f"scale={options.scale}")
    choose = ChooseGoals(options.rule, goals, radius=grows, seed=options.seed)
    left_out = ("out", "table", "spread", "idle")
    about = {key: value for key, value in vars(options).items() if key not in left_out} | {"torch": torch.__version__}
    own = make_goal_sampler(env, "test_goals", "env")
    tests = Tests(tested, own, choose, options.every, options.episodes, about, options.out)
    learner(options, played).learn(options.steps, callback=CallbackList([choose, tests]))
    for each in (tested, played):
        each.close()


if __name__ == "__main__":
    main()
