"""Short runs over all methods, written down bit for bit: does a change of structure change a result?

    python tests/golden.py /tmp/before          # on the code as it was
    python tests/golden.py /tmp/after           # on the code as it is, on the same machine
    diff -r /tmp/before /tmp/after

Every run is one text file: the JSON form of its result without ``wall_seconds``, and a digest of every array.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import adagoal

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
}  # fmt: skip


def digest(array: Any) -> str:
    """Type, shape and content of an array."""
    array = np.ascontiguousarray(array)
    return f"{array.dtype} {list(array.shape)} {hashlib.sha256(array.tobytes()).hexdigest()[:16]}"


def tabular(arguments: dict[str, Any]) -> dict[str, Any]:
    """One exploration."""
    result = adagoal.explore(**arguments)
    arrays = {name: digest(array) for name, array in sorted(result.arrays.items())}
    return {**result.to_dict(), "wall_seconds": None, "arrays": arrays}


def deep() -> dict[str, Any]:
    """A short training on the point mass: curves, and the weights of the actor."""
    from adagoal.deep import Config, train

    small = {"hidden": (32, 32), "updates": 10, "ensemble_updates": 10, "batch": 64, "ensemble_batch": 64}
    rules = ("adagoal", "unigoal", "raregoal")
    configs = [Config("point-mass", steps=2_000, seed=i, goal_rule=rule, **small) for i, rule in enumerate(rules)]
    trained = train(configs, workers=1)
    actors = [[digest(array) for layer in policy.actor.layers for array in layer] for policy in trained.policies]
    curves = [[{**row, "wall_seconds": None} for row in trained.history.curve(run)] for run in range(len(configs))]
    return {"status": str(trained.status), "curves": curves, "actors": actors, "D": digest(trained.maps["D"])}


def main(folder: Path) -> None:
    """Write every run into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, arguments in GOLDEN.items():
        (folder / f"{name}.json").write_text(json.dumps(tabular(arguments), indent=1, default=str) + "\n")
        print(name, flush=True)
    (folder / "deep.json").write_text(json.dumps(deep(), indent=1, default=str) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
