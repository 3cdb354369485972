"""Environment steps per second: this trainer beside Stable-Baselines3's DDPG + HER, and its parts alone.

    python benchmarks/deep_speed.py rollouts --out docs/data/deep-rollouts.json
    python benchmarks/deep_speed.py compare --sb3-python .venv-sb3/bin/python --out docs/data/deep-speed.json
    python benchmarks/deep_speed.py adagoal --updates 80      one line of the comparison
    python benchmarks/deep_speed.py sb3 --updates 80          the other (needs stable-baselines3, torch)
    python benchmarks/deep_speed.py learner --updates 400 --batch 1024 --cycles 5     the updates of one run alone
    python benchmarks/deep_speed.py arithmetic        GFLOP of the updates, per environment step of FetchPush

``rollouts``: rollouts with the learner idle, the learner alone, and both overlapped, recipe ``light``. ``compare``:
both sides by turns, FetchPush-v4, 16 environments, uniform goals, same networks, batch and updates per 800 steps;
Stable-Baselines3 with one and with two threads, of which the faster counts. Start-up and compilation are left
out on both sides. Seconds are wall time; processor seconds of all processes are given beside them. ``learner``: how
long the cycle of a single run takes to compile and to run, on random episodes, without environments. ``arithmetic``:
what XLA counts before it optimises, on any machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ENV, ENVS, HORIZON = "FetchPush-v4", 16, 50
PER_CYCLE = ENVS * HORIZON
LOAD = round(os.getloadavg()[0], 1)
SETTINGS: tuple[dict[str, Any], ...] = (
    {"updates": 40, "batch": 256, "hidden": "256,256", "cycles": 8},
    {"updates": 80, "batch": 256, "hidden": "256,256,256", "cycles": 6},
    {"updates": 40, "batch": 1024, "hidden": "256,256,256", "cycles": 4},
    {"updates": 800, "batch": 256, "hidden": "256,256", "cycles": 4},
)


class Clock:
    """Wall and processor seconds since the start, of this process and the given children."""

    def __init__(self, children: list[int]) -> None:
        self.children = children
        self.wall, self.cpu = time.monotonic(), self._cpu()

    def _cpu(self) -> float:
        own = os.times()
        ticks = 0
        for pid in self.children:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return own.user + own.system + ticks / os.sysconf("SC_CLK_TCK")

    def read(self, steps: int) -> dict[str, float]:
        wall, cpu = time.monotonic() - self.wall, self._cpu() - self.cpu
        return {
            "steps": steps,
            "wall_seconds": round(wall, 2),
            "cpu_seconds": round(cpu, 2),
            "steps_per_second": round(steps / wall, 1),
            "steps_per_cpu_second": round(steps / cpu, 1),
        }


def training(**changes: Any) -> Any:
    """A trainer that has compiled and played two cycles, with its rollout processes."""
    from adagoal.deep.config import Config
    from adagoal.deep.rollouts import RolloutWorkers
    from adagoal.deep.training import Training

    fixed = {"algorithm": "ddpg", "steps": PER_CYCLE, "episodes": ENVS, "eval_every": 10**6, "eval_episodes": 1}
    run = Training([Config(ENV, **fixed | changes)])
    run.test_rounds = 0
    fleet = RolloutWorkers(run.configs, run.source, run.sizes, run.workers)
    starts = fleet.reset(0)
    for _ in range(2):
        starts = run.run_one_cycle(fleet, starts)
    return run, fleet, starts


def adagoal(options: argparse.Namespace) -> dict[str, Any]:
    import jax

    run, fleet, starts = training(
        goal_rule="unigoal", updates=options.updates, batch=options.batch, hidden=options.hidden
    )
    clock = Clock([worker.process.pid for worker in fleet.workers])
    for _ in range(options.cycles):
        starts = run.run_one_cycle(fleet, starts)
    jax.block_until_ready(run.train_state.nets)
    found = clock.read(options.cycles * PER_CYCLE)
    fleet.close()
    return found


def rollouts(options: argparse.Namespace) -> dict[str, Any]:
    """Rollouts with the learner idle, the learner alone, and the two overlapped, with the recipe ``light``."""
    import jax
    import numpy as np

    from adagoal.deep.config import RECIPES

    cycles = options.cycles
    run, fleet, starts = training(**RECIPES["light"])
    goals, _ = run.goal_selector.choose_goals(run.train_state, starts, 0, run.history.next_radii())
    actors, none = run.current_actors(), np.zeros((0, *goals.shape))
    found = {}
    clock = Clock([worker.process.pid for worker in fleet.workers])
    for cycle in range(cycles):
        fleet.start_cycle(cycle, actors, goals, none)
        fleet.collect_cycle()
    found["rollouts alone"] = clock.read(cycles * PER_CYCLE)
    clock = Clock([worker.process.pid for worker in fleet.workers])
    played = run.pending_episodes
    for _ in range(cycles):
        run.learn_pending()
        run.pending_episodes = played  # to learn from again
    jax.block_until_ready(run.train_state.nets)
    found["learner alone"] = clock.read(cycles * PER_CYCLE)
    starts = fleet.reset(run.cycle)
    clock = Clock([worker.process.pid for worker in fleet.workers])
    for _ in range(cycles):
        starts = run.run_one_cycle(fleet, starts)
    jax.block_until_ready(run.train_state.nets)
    found["overlapped"] = clock.read(cycles * PER_CYCLE)
    fleet.close()
    alone = found["rollouts alone"], found["learner alone"]
    slower = min(part["steps_per_second"] for part in alone)
    work = sum(part["cpu_seconds"] for part in alone)
    return found | {
        "overlapped, share of the slower part": round(found["overlapped"]["steps_per_second"] / slower, 3),
        "overlapped, share of what the cores allow": round(
            work / ((os.cpu_count() or 1) * found["overlapped"]["wall_seconds"]), 3
        ),
    }


def learner(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds to compile a cycle of one run, and milliseconds for its updates."""
    import jax
    import numpy as np

    from adagoal.deep import learner
    from adagoal.deep.config import Config
    from adagoal.deep.goal_envs import EnvDimensions

    sizes = EnvDimensions(observation=25, goal=3, action=4, horizon=HORIZON, success=0.05)
    one = Config(ENV, updates=options.updates, batch=options.batch, hidden=options.hidden, buffer=200_000)
    configs = [one.resolve_for_horizon(HORIZON)]
    state = learner.init_learner_states(configs, sizes)
    hyperparameters = learner.per_run_hyperparameters(configs)
    rng, shapes = np.random.default_rng(0), learner.episode_shapes(state, ENVS)
    new = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(x.dtype), shapes)
    whole = {"length": np.full_like(new.length, HORIZON), "terminated": np.zeros_like(new.terminated)}
    new = jax.device_put(dataclasses.replace(new, **whole))
    began = time.monotonic()
    cycle = learner.compile_cycle(configs, sizes).lower(state, hyperparameters, new).compile()
    compiled = time.monotonic()
    for number in range(2 + options.cycles):
        if number == 2:
            jax.block_until_ready(state.nets)
            warm = time.monotonic()
        state, _ = cycle(state, hyperparameters, new)
    jax.block_until_ready(state.nets)
    took = (time.monotonic() - warm) / options.cycles
    return {"seconds_to_compile": round(compiled - began, 1), "ms_per_cycle": round(1000 * took, 1)}


def arithmetic(options: argparse.Namespace) -> dict[str, Any]:
    """GFLOP per environment step: the first learner, the cheap setting, the recipes, and each beside the first."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from adagoal.deep import algorithms, ddpg, networks
    from adagoal.deep.config import RECIPES, Config
    from adagoal.deep.goal_envs import EnvDimensions

    sizes = EnvDimensions(observation=25, goal=3, action=4, horizon=HORIZON, success=0.05)
    hyperparameters = {"action_l2": jnp.array(1.0)}

    def counted(update: Any, nets: Any, count: int) -> float:
        obs_goal, flags = jnp.zeros((1, count, 28)), jnp.zeros((1, count))
        batch = networks.TransitionBatch(obs_goal, jnp.zeros((1, count, 4)), obs_goal, flags, flags > 0)
        return float(jax.jit(update).lower(nets, batch).cost_analysis()["flops"])

    def learner_of(config: Config) -> float:
        module: Any = algorithms.load_algorithm(config.algorithm)

        def update(nets: Any, batch: Any) -> Any:
            y = module.critic_targets(config, nets, batch)[0]
            critic_batch = networks.CriticBatch(batch.obs_goal[0], batch.action[0], y)
            return module.update_agent(config, hyperparameters, nets, critic_batch)

        return config.updates * counted(
            update, module.init_networks(config, sizes, np.random.default_rng(0)), config.batch
        )

    def ensemble_of(config: Config) -> float:
        nets = ddpg.init_networks(config, sizes, np.random.default_rng(0))

        def update(ensemble: Any, batch: Any) -> Any:
            shares = ddpg.divide_among_members(config, ensemble, nets.actor.online, batch)
            return ddpg.update_ensemble(config, ensemble, jax.tree.map(lambda x: x[0], shares))

        return config.ensemble_updates * counted(update, nets.ensemble, config.members * config.ensemble_batch)

    settings: dict[str, dict[str, Any]] = {
        "ddpg": {"algorithm": "ddpg"},
        "critics, 160 updates of 1024": {"updates": 160},
        "critics, 320 updates of 512": {"updates": 320, "batch": 512},
        **{f"recipe {name}": RECIPES[name] for name in ("adagoal", "half", "light")},
    }
    found: dict[str, dict[str, float]] = {}
    for name, setting in settings.items():
        config = Config(ENV, **setting).resolve_for_horizon(HORIZON)
        flops = learner_of(config) + (ensemble_of(config) if config.algorithm == "ddpg" else 0.0)
        per_step = flops / PER_CYCLE / 1e9
        first = found["ddpg"]["GFLOP per step"] if found else per_step
        found[name] = {"GFLOP per step": round(per_step, 3), "times less than ddpg": round(first / per_step, 2)}
    return found


def make_env() -> Any:
    import gymnasium
    import gymnasium_robotics

    gymnasium.register_envs(gymnasium_robotics)
    return gymnasium.make(ENV)


def sb3(options: argparse.Namespace) -> dict[str, Any]:
    import stable_baselines3
    import torch
    from stable_baselines3.common.vec_env import SubprocVecEnv

    torch.set_num_threads(options.threads)
    envs = SubprocVecEnv([make_env] * ENVS, start_method="fork")
    model = stable_baselines3.DDPG(
        "MultiInputPolicy",
        envs,
        replay_buffer_class=stable_baselines3.HerReplayBuffer,
        replay_buffer_kwargs={"n_sampled_goal": 4, "goal_selection_strategy": "future"},
        policy_kwargs={"net_arch": list(options.hidden)},
        learning_starts=2 * PER_CYCLE,
        batch_size=options.batch,
        train_freq=(HORIZON, "step"),
        gradient_steps=options.updates,
        gamma=0.98,
        device="cpu",
    )
    model.learn(3 * PER_CYCLE)
    clock = Clock([p.pid for p in envs.processes])
    before = model.num_timesteps
    model.learn(options.cycles * PER_CYCLE, reset_num_timesteps=False)
    found = clock.read(model.num_timesteps - before)
    envs.close()
    return found | {"versions": {"stable-baselines3": stable_baselines3.__version__, "torch": torch.__version__}}


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """All settings, both sides by turns; the median of the rounds."""
    rows: list[dict[str, Any]] = []
    for setting in SETTINGS:
        words = [word for name, value in setting.items() for word in (f"--{name}", str(value))]
        sides = {
            "adagoal": [sys.executable, __file__, "adagoal", *words],
            "sb3, 1 thread": [options.sb3_python, __file__, "sb3", "--threads", "1", *words],
            "sb3, 2 threads": [options.sb3_python, __file__, "sb3", "--threads", "2", *words],
        }
        rounds: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
        for _ in range(options.rounds):
            for side, command in sides.items():
                with tempfile.NamedTemporaryFile(suffix=".json") as file:
                    subprocess.run([*command, "--out", file.name], check=True, stdout=subprocess.DEVNULL)
                    rounds[side].append(json.loads(Path(file.name).read_text()))
        speed = {s: statistics.median(r["found"]["steps_per_second"] for r in rs) for s, rs in rounds.items()}
        ratio = round(speed["adagoal"] / max(v for s, v in speed.items() if s != "adagoal"), 2)
        rows.append(setting | {"steps_per_second": speed, "ratio": ratio, "rounds": rounds})
        print(json.dumps(setting | {"steps_per_second": speed, "ratio": ratio}), flush=True)
        write(options, {"settings": rows})
    return {"settings": rows}


def write(options: argparse.Namespace, found: dict[str, Any]) -> None:
    data = {"part": options.part, "cores": os.cpu_count(), "load_before": LOAD, "found": found}
    if options.out is not None:
        options.out.write_text(json.dumps(data, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("part", choices=["rollouts", "compare", "adagoal", "sb3", "learner", "arithmetic"])
    parser.add_argument("--cycles", type=int, default=15)
    parser.add_argument("--updates", type=int, default=80)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--hidden", type=lambda text: tuple(map(int, text.split(","))), default=(256, 256, 256))
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--rounds", type=int, default=2, help="of compare")
    parser.add_argument("--sb3-python", default=sys.executable)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    parts = {"adagoal": adagoal, "sb3": sb3, "rollouts": rollouts, "compare": compare, "learner": learner}
    parts |= {"arithmetic": arithmetic}
    found = parts[options.part](options)
    write(options, found)
    if options.part != "compare":
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
