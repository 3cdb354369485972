"""Short runs of every method, saved bit for bit, to show that a refactoring changes no result.

    python tests/golden.py /tmp/before          # before the change
    python tests/golden.py /tmp/after           # after the change, on the same machine
    diff -r /tmp/before /tmp/after

Every run becomes one text file: its result as JSON without ``wall_seconds``, and a digest of every array. Run the file
with the Python of ``.venv-sb3`` to get the Stable-Baselines3 run as well.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import adagoal
from adagoal.runs import run_folder


def widest(known: Any) -> Any:
    """Goal rule of a user: goals within the radius, in proportion to the squared error."""
    return np.where(known.D <= known.L, known.E**2, 0.0)


GOLDEN: dict[str, dict[str, Any]] = {
    "two-room": {"env": "two-room", "radius": 20, "epsilon": 2.0, "budget": 300_000, "seed": 3},
    "two-room-unigoal": {"env": "two-room", "radius": 12, "budget": 100_000, "goal_rule": "unigoal"},
    "grid-certified": {"env": "grid", "env_args": {"rows": 3, "cols": 3}, "radius": 6, "epsilon": 1.0},
    "grid-goals": {"env": "grid", "radius": 8, "goals": [3, 7], "budget": 50_000},
    "chain-auto": {"env": "chain", "radius": "auto", "budget": 30_000, "env_args": {"slip": 0.1}},
    "frozen-lake": {"env": "FrozenLake-v1", "radius": 15, "epsilon": 2.0, "budget": 200_000, "seed": 1},
    "taxi-random-start": {"env": "Taxi-v4", "radius": 6, "budget": 30_000},
    "minigrid": {"env": "MiniGrid-Empty-5x5-v0", "radius": 5, "budget": 3_000},
    "mixture-likelihood": {"env": "mixture-windy", "radius": 6, "method": "likelihood", "budget": 20_000},
    "mixture-pooled": {"env": "mixture-windy", "radius": 5, "method": "vtr-pooled", "budget": 20_000},
    "mixture-vtr": {"env": "mixture-windy", "radius": 2, "method": "vtr", "method_args": {"horizon": 8},
                    "budget": 2_000},
    "ucbvi": {"env": "chain", "env_args": {"n_states": 5}, "radius": 4, "method": "ucbvi",
              "method_args": {"bonus": "simplified", "horizon": 20}, "budget": 5_000},
    "bayes": {"env": "grid", "env_args": {"rows": 3, "cols": 3}, "radius": 6, "method": "bayes", "budget": 20_000},
    "ucbexplore": {"env": "chain", "radius": 4, "method": "ucbexplore", "method_args": {"constants": "scaled=0.00001"},
                   "budget": 50_000},
    "disco": {"env": "chain", "radius": 4, "method": "disco", "method_args": {"constants": "scaled=0.0001"},
              "budget": 50_000},
    "valae": {"env": "chain", "radius": 4, "method": "valae", "method_args": {"constants": "scaled=0.00001"},
              "budget": 50_000},
    "lae": {"env": "chain", "radius": 4, "method": "lae", "method_args": {"constants": "scaled=0.001"},
            "budget": 50_000},
    "gosprl": {"env": "chain", "radius": 4, "method": "gosprl", "method_args": {"constants": "scaled=0.001"},
               "budget": 50_000},
    "intervals": {"env": "grid", "env_args": {"rows": 3, "cols": 3}, "radius": 6, "method": "intervals"},
    "bpi": {"env": "chain", "env_args": {"n_states": 4}, "radius": 3, "method": "bpi-ucbvi", "goals": [2],
            "method_args": {"horizon": 12, "constants": "scaled=0.01"}, "budget": 5_000},
    "large-grid": {"env": "grid", "env_args": {"rows": 25, "cols": 25}, "radius": 12, "budget": 400_000},
    "taxi": {"env": "Taxi-v4", "start_seed": 0, "radius": 8, "budget": 60_000},
    "workers": {"env": "FrozenLake-v1", "radius": 8, "budget": 20_000, "workers": 2},
    "goal-sets": {"env": "grid", "radius": 8, "goals": {"edge": [0, 1, 2], "far": [18, 19]}, "budget": 50_000},
    "radius-all": {"env": "grid", "env_args": {"rows": 3, "cols": 3}, "radius": "all:6", "budget": 30_000},
    "custom-rule": {"env": "chain", "env_args": {"slip": 0.1}, "radius": 6, "goal_rule": widest, "budget": 30_000},
}  # fmt: skip
KILLED = {rule: {"env": "two-room", "radius": 12, "goal_rule": rule, "budget": 60_000}
          for rule in ("adagoal", "unigoal", "mega")}  # fmt: skip
"""Runs that are killed half-way and resumed."""


def digest(array: Any) -> str:
    """Return type, shape and hash of an array."""
    array = np.ascontiguousarray(array)
    return f"{array.dtype} {list(array.shape)} {hashlib.sha256(array.tobytes()).hexdigest()[:16]}"


def exploration(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return facts and digests of one exploration."""
    return facts(adagoal.explore(**arguments))


def killed(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the same for an exploration that is killed half-way and resumed."""
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        if not child:
            run_folder.save_interval_elapsed = lambda since, cost: True  # checkpoint after every rollout

            def kill_half_way(run: Any) -> None:
                if run.steps > 30_000:
                    os.kill(os.getpid(), signal.SIGKILL)

            adagoal.explore(**arguments, out=folder, observe=kill_half_way)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "the run ended before it was killed"
        return facts(adagoal.resume(folder))


def facts(result: Any) -> dict[str, Any]:
    """Return a result as plain data: its JSON form without the seconds, and a digest of every array."""
    arrays = {name: digest(array) for name, array in sorted(result.arrays.items())}
    return {**result.to_dict(), "wall_seconds": None, "arrays": arrays}


def deep() -> dict[str, Any]:
    """Train on the point mass for a short time; return curves and the weights of the actor."""
    from adagoal.deep import Config

    small = {"hidden": (32, 32), "updates": 10, "ensemble_updates": 10, "batch": 64, "ensemble_batch": 64}
    rules = ("adagoal", "unigoal", "raregoal")
    configs = [Config("point-mass", steps=2_000, seed=i, goal_rule=rule, **small) for i, rule in enumerate(rules)]
    trained = adagoal.train(configs, workers=1)
    actors = [[digest(array) for layer in policy.actor.layers for array in layer] for policy in trained.policies]
    curves = [
        [{**row, "wall_seconds": None} for row in trained.history.learning_curve(run)] for run in range(len(configs))
    ]
    return {"status": str(trained.status), "curves": curves, "actors": actors, "D": digest(trained.maps["D"])}


def sb3() -> dict[str, Any]:
    """Train a Stable-Baselines3 model with chosen goals; return the weights of its actor and critics."""
    sys.path.insert(0, str(Path(__file__).parent / "sb3"))
    from stable_baselines3 import DDPG
    from test_sb3_goal_rules import chooser, made

    model = made(DDPG).learn(1_000, callback=chooser())
    return {name: digest(weights.numpy()) for name, weights in model.policy.state_dict().items()}


def main(folder: Path) -> None:
    """Write every run into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    runs: dict[str, Callable[[], dict[str, Any]]] = {
        **{name: partial(exploration, arguments) for name, arguments in GOLDEN.items()},
        **{f"killed-{name}": partial(killed, arguments) for name, arguments in KILLED.items()},
        "deep": deep,
    }
    if importlib.util.find_spec("stable_baselines3"):
        runs = {"sb3": sb3}
    for name, run in runs.items():
        (folder / f"{name}.json").write_text(json.dumps(run(), indent=1, default=str) + "\n")
        print(name, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
