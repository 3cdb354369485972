"""The ablation table of docs/deep.md: FetchPush with training goals stretched by 10, one factor at a time.

    python benchmarks/deep_ablation.py --group knobs --seeds 3 --steps 150000 --out docs/data/deep-ablation-knobs.json

Group ``knobs``: factors that runs of one program may differ in, all side by side. The other groups change
the shape of the program and are programs of their own.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

BASE: dict[str, Any] = {
    "env": "FetchPush-v4",
    "train_goals": "scale=10",
    "eval_every": 30,
    "eval_episodes": 48,
}
HERE = Path(__file__).parent
GROUPS: dict[str, dict[str, dict[str, Any]]] = {
    "knobs": {
        "constraint off": {"goal_rule": "proportional"},
        "argmax": {"goal_rule": "adagoal"},
        "half argmax, half proportional": {"goal_rule": f"{HERE / 'deep_rules.py'}:mixed"},
        "L = 30": {"radius": 30.0},
        "ensemble on original goals": {"ensemble_relabel": 0.0},
        "goal normaliser: relabelled": {"normaliser": "relabelled"},
        "goal normaliser: fixed": {"normaliser": "fixed"},
        "contact-weighted replay": {"contact": 0.5},
    },
    "base": {"AdaGoal, as in figure 2": {}},
    "members": {"J = 5": {"members": 5}},
    "candidates": {"N = 100": {"candidates": 100}},
    "action": {"min over actions": {"value_action": "min"}},
    "updates": {"80 updates a cycle": {"updates": 80, "ensemble_updates": 80}},
    "width": {"3 x 128": {"hidden": (128, 128, 128)}},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--group", choices=sorted(GROUPS), default="knobs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=150_000)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()

    from adagoal.deep import result
    from adagoal.deep.command import progress
    from adagoal.deep.config import Config
    from adagoal.deep.training import train

    variants = GROUPS[options.group]
    names = [name for name in variants for _ in range(options.seeds)]
    configs = [
        Config(**{**BASE, **change}, steps=options.steps, seed=seed)
        for change in variants.values()
        for seed in range(options.seeds)
    ]
    with progress(options.steps) as watch:
        trained = train(configs, minutes=options.minutes, workers=options.workers, watch=watch)
    data = result.to_json(trained)
    for run, name in zip(data["runs"], names, strict=True):
        run["variant"] = name
    result.write_json(options.out, data)


if __name__ == "__main__":
    main()
