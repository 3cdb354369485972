"""TD3, SAC and TQC with the documented settings on a small environment: success over time, with the rule or without.

    python benchmarks/sb3_reach.py --algorithm tqc --out FILE.json                    (needs the extra sb3, sb3-contrib)
    python benchmarks/sb3_reach.py --algorithm td3 --rule unigoal --out FILE.json     # plain hindsight
    python benchmarks/sb3_reach.py --env PointMass-v0 --scale 4 --radius 15 --steps 4000 --out FILE.json
    python benchmarks/sb3_reach.py --table FILE.json [FILE.json ...]                  # only print the curves

Success at the last step, on the environment's own goals. One thread; wall time without the tests.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium
import gymnasium_robotics
import numpy as np
import torch
from sb3_contrib import TQC
from stable_baselines3 import SAC, TD3, HerReplayBuffer
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise

from adagoal.core.file_io import read_json, write_json
from adagoal.deep import pointmass  # noqa: F401  (registers the id)
from adagoal.sb3 import ChooseGoals, ChosenGoal, NormalisedFeatures

ALGORITHMS = {"td3": TD3, "sac": SAC, "tqc": TQC}
SETTINGS: dict[str, Any] = {
    "learning_rate": 1e-3,
    "tau": 0.05,
    "batch_size": 256,
    "train_freq": 1,
    "gradient_steps": 2,
    "learning_starts": 400,
}
"""As docs/sb3.md has them; with 4 environments, 2 updates for every 4 steps."""
ENVIRONMENTS = 4


class Tests(EvalCallback):
    """Also records wall and processor time without those of the tests."""

    def _init_callback(self) -> None:
        super()._init_callback()
        self.curve: list[dict[str, float]] = []
        self._clock = [time.monotonic(), time.process_time()]

    def _on_step(self) -> bool:
        before = time.monotonic(), time.process_time()
        proceed = super()._on_step()
        if self.evaluations_timesteps and len(self.curve) < len(self.evaluations_timesteps):
            seconds = [now - start for now, start in zip(before, self._clock, strict=True)]
            spent = time.monotonic() - before[0], time.process_time() - before[1]
            self._clock = [start + more for start, more in zip(self._clock, spent, strict=True)]
            success = float(np.mean(self.evaluations_successes[-1]))
            point = {"steps": self.evaluations_timesteps[-1], "success": success}
            self.curve.append(point | {"wall": round(seconds[0], 1), "processor": round(seconds[1], 1)})
            print(self.curve[-1], flush=True)
        return proceed


def train(options: argparse.Namespace) -> list[dict[str, float]]:
    """Train one model; returns its tests."""
    env = make_vec_env(options.env, ENVIRONMENTS, seed=options.seed, wrapper_class=ChosenGoal)
    size = env.action_space.shape[0]  # type: ignore[index]
    model: Any = ALGORITHMS[options.algorithm](
        "MultiInputPolicy",
        env,
        replay_buffer_class=HerReplayBuffer,
        action_noise=NormalActionNoise(np.zeros(size), np.full(size, 0.2)),
        policy_kwargs={"net_arch": [256, 256], "n_critics": 2, "features_extractor_class": NormalisedFeatures},
        buffer_size=max(options.steps, 10_000),
        gamma=options.gamma,
        seed=options.seed,
        **SETTINGS | {"tau": options.tau},
    )
    choose = ChooseGoals(options.rule, f"scale={options.scale}", radius=options.radius, seed=options.seed)
    tested = make_vec_env(options.env, ENVIRONMENTS, seed=10_000, wrapper_class=ChosenGoal)
    with tempfile.TemporaryDirectory() as folder:
        every = options.every // ENVIRONMENTS
        tests = Tests(tested, n_eval_episodes=40, eval_freq=every, log_path=folder, verbose=0)
        model.learn(options.steps, callback=[choose, tests])
    return tests.curve


def show(runs: list[dict[str, Any]]) -> str:
    """One line per run."""
    lines = []
    for run in runs:
        reached = next((point for point in run["curve"] if point["success"] >= 0.95), None)
        when = "0.95 not reached" if reached is None else f"0.95 at {reached['steps']} steps, {reached['processor']} s"
        last = run["curve"][-1]
        end = f"at the end {last['success']:.2f} ({last['steps']} steps, {last['processor']} s)"
        lines.append(f"{run['env']:14s} {run['algorithm']} {run['rule']:22s} seed {run['seed']}: {when}; {end}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--env", default="FetchReach-v4")
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="tqc")
    parser.add_argument("--rule", default="adagoal-proportional")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--radius", type=float, default=40.0)
    parser.add_argument("--gamma", type=float, default=0.95)
    parser.add_argument("--tau", type=float, default=SETTINGS["tau"])
    parser.add_argument("--steps", type=int, default=3200)
    parser.add_argument("--every", type=int, default=800)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, nargs="+")
    options = parser.parse_args()
    if options.table is not None:
        print(show([run for path in options.table for run in read_json(path)["runs"]]))
        return
    torch.set_num_threads(1)
    gymnasium.register_envs(gymnasium_robotics)
    about = {name: value for name, value in vars(options).items() if name not in ("out", "table")}
    runs = [about | {"settings": SETTINGS, "curve": train(options)}]
    if options.out is not None:
        runs = (read_json(options.out)["runs"] if options.out.exists() else []) + runs
        write_json(options.out, {"runs": runs})
    print(show(runs[-1:]))


if __name__ == "__main__":
    main()
