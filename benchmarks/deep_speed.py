"""Environment steps per second: this trainer beside Stable-Baselines3's DDPG + HER, and its parts alone.

    python benchmarks/deep_speed.py adagoal --out a.json      one line of the comparison
    python benchmarks/deep_speed.py sb3 --out b.json          the other (needs stable-baselines3, torch)
    python benchmarks/deep_speed.py parts --out c.json        rollouts alone, learner alone, both overlapped

Both sides: FetchPush-v4, 16 environments, 3 x 256 networks, batch 256, 80 updates per 800 steps, uniform goals.
Seconds are given as wall time and as processor time of all processes, which other load on the machine does
not change much. Start-up and compilation are left out on both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from pathlib import Path
from typing import Any

ENV, ENVS, HORIZON, UPDATES, BATCH, HIDDEN = "FetchPush-v4", 16, 50, 80, 256, (256, 256, 256)
PER_CYCLE = ENVS * HORIZON


class Clock:
    """Wall and processor seconds since the start, of this process and the given children."""

    def __init__(self, children: list[int]) -> None:
        self.children = children
        self.wall, self.cpu = time.monotonic(), self._cpu()

    def _cpu(self) -> float:
        own = resource.getrusage(resource.RUSAGE_SELF)
        ticks = 0
        for pid in self.children:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return own.ru_utime + own.ru_stime + ticks / os.sysconf("SC_CLK_TCK")

    def read(self, steps: int) -> dict[str, float]:
        wall, cpu = time.monotonic() - self.wall, self._cpu() - self.cpu
        return {
            "steps": steps,
            "wall_seconds": round(wall, 2),
            "cpu_seconds": round(cpu, 2),
            "steps_per_second": round(steps / wall, 1),
            "steps_per_cpu_second": round(steps / cpu, 1),
        }


def training(cycles: int, **changes: Any) -> Any:
    """A trainer that has compiled and played two cycles, with its rollout processes."""
    from adagoal.deep import training as module
    from adagoal.deep.config import Config
    from adagoal.deep.fleet import Fleet

    settings = {
        "goal_rule": "unigoal",
        "updates": UPDATES,
        "batch": BATCH,
        "hidden": HIDDEN,
        "episodes": ENVS,
        **changes,
    }
    config = Config(ENV, steps=cycles * PER_CYCLE, eval_every=10**6, eval_episodes=1, **settings)
    run = module._Training([config], None, 0, 10**9, None)
    run.rounds = 0
    fleet = Fleet([config], HORIZON, run.workers)
    starts = fleet.reset(0)
    for _ in range(2):
        starts = run._cycle(fleet, starts)
    return run, fleet, starts


def adagoal(cycles: int) -> dict[str, Any]:
    import jax

    run, fleet, starts = training(cycles)
    clock = Clock([p.pid for p in fleet._processes])
    for _ in range(cycles):
        starts = run._cycle(fleet, starts)
    jax.block_until_ready(run.state.actor.online)
    found = clock.read(cycles * PER_CYCLE)
    fleet.close()
    return found


def parts(cycles: int) -> dict[str, Any]:
    """Rollouts with the learner idle, the learner alone, and the two overlapped, with the recipe ``light``."""
    import jax
    import numpy as np

    from adagoal.deep.config import RECIPES

    run, fleet, starts = training(cycles, goal_rule="adagoal-proportional", batch=1024, **RECIPES["light"])
    goals, _ = run.selector.choose(run.state, starts, 0)
    actors, none = run._actors(), np.zeros((0, *goals.shape))
    found = {}
    clock = Clock([p.pid for p in fleet._processes])
    for cycle in range(cycles):
        fleet.start(cycle, actors, goals, none)
        fleet.wait()
    found["rollouts alone"] = clock.read(cycles * PER_CYCLE)
    clock = Clock([p.pid for p in fleet._processes])
    for _ in range(cycles):
        run._learn()
    jax.block_until_ready(run.state.actor.online)
    found["learner alone"] = clock.read(cycles * PER_CYCLE)
    starts = fleet.reset(run.cycle)
    clock = Clock([p.pid for p in fleet._processes])
    for _ in range(cycles):
        starts = run._cycle(fleet, starts)
    jax.block_until_ready(run.state.actor.online)
    found["overlapped"] = clock.read(cycles * PER_CYCLE)
    fleet.close()
    return found


def make_env() -> Any:
    import gymnasium
    import gymnasium_robotics

    gymnasium.register_envs(gymnasium_robotics)
    return gymnasium.make(ENV)


def sb3(cycles: int) -> dict[str, Any]:
    import stable_baselines3
    import torch
    from stable_baselines3.common.vec_env import SubprocVecEnv

    torch.set_num_threads(1)  # on small networks a second thread costs more than it gives
    envs = SubprocVecEnv([make_env] * ENVS, start_method="spawn")
    model = stable_baselines3.DDPG(
        "MultiInputPolicy",
        envs,
        replay_buffer_class=stable_baselines3.HerReplayBuffer,
        replay_buffer_kwargs={"n_sampled_goal": 4, "goal_selection_strategy": "future"},
        policy_kwargs={"net_arch": list(HIDDEN)},
        learning_starts=2 * PER_CYCLE,
        batch_size=BATCH,
        train_freq=(HORIZON, "step"),
        gradient_steps=UPDATES,
        gamma=0.98,
        device="cpu",
    )
    model.learn(3 * PER_CYCLE)
    clock = Clock([p.pid for p in envs.processes])
    before = model.num_timesteps
    model.learn(cycles * PER_CYCLE, reset_num_timesteps=False)
    found = clock.read(model.num_timesteps - before)
    envs.close()
    return found | {"versions": {"stable-baselines3": stable_baselines3.__version__, "torch": torch.__version__}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("side", choices=["adagoal", "sb3", "parts"])
    parser.add_argument("--cycles", type=int, default=15)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    found = {"adagoal": adagoal, "sb3": sb3, "parts": parts}[options.side](options.cycles)
    data = {"side": options.side, "cores": os.cpu_count(), "load_before": round(load, 1), "found": found}
    options.out.write_text(json.dumps(data, indent=1) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
