"""The ablation tables of docs/results-deep.md: one factor at a time.

    python benchmarks/deep_ablation.py --group knobs --seeds 3 --steps 120000 --out docs/data/deep-ablation-knobs.json

Group ``knobs``: factors that runs of one program may differ in, all side by side. The other groups change
the shape of the program and are programs of their own. The groups ``pick...`` are the settings that were tried
before the PickAndPlace panels of figure 2, on other seeds (``--first-seed 10``); the groups ``baselines...`` are
further seeds of the lines of its Push panels. L is fixed in all of them but ``ramp``.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

MIXED = f"{Path(__file__).parent / 'deep_rules.py'}:mixed"
BASE: dict[str, Any] = {"algorithm": "ddpg", "action_l2": 1.0, "contact": 0.0, "swap_goals": 0.0, "radius_ramp": 0}
BASE |= {"eval_every": 30, "eval_episodes": 48}
PUSH = BASE | {"env": "FetchPush-v4", "train_goals": "scale=10"}
PICK = BASE | {"env": "FetchPickAndPlace-v4"}
NARROW, WIDE = {"train_goals": "scale=1"}, {"train_goals": "scale=5"}
MRL = {"action_l2": 0.1, "noise": 0.1, "random": 0.2}
BASELINES = {"HER": {"goal_rule": "unigoal"}, "paper": {"goal_rule": "proportional", "ensemble_relabel": 0.0}}
GROUPS: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {
    "knobs": (
        PUSH,
        {
            "constraint off": {"goal_rule": "proportional"},
            "argmax": {"goal_rule": "adagoal"},
            "half argmax, half proportional": {"goal_rule": MIXED},
            "L = 30": {"radius": 30.0},
            "ensemble on original goals": {"ensemble_relabel": 0.0},
            "goal normaliser: relabelled": {"normaliser": "relabelled"},
            "contact-weighted replay": {"contact": 0.5},
        },
    ),
    "ramp": (PUSH, {"L grows from 10 to 40 over 100,000 steps": {"radius_ramp": 100_000}}),
    "members": (PUSH | {"members": 5}, {"J = 5": {}}),
    "candidates": (PUSH | {"candidates": 100}, {"N = 100": {}}),
    "baselines-1": (PUSH | NARROW, BASELINES),
    "baselines-10": (PUSH, BASELINES),
    "pick": (
        PICK | {"updates": 400},
        {
            "400 updates, lambda = 1": NARROW,
            "400 updates, lambda = 5": WIDE,
            "400 updates, mixed rule, lambda = 1": NARROW | {"goal_rule": MIXED},
            "400 updates, mixed rule, lambda = 5": WIDE | {"goal_rule": MIXED},
            "400 updates, less noise and action penalty, lambda = 1": NARROW | MRL,
            "400 updates, less noise and action penalty, lambda = 5": WIDE | MRL,
        },
    ),
    "pick-160": (PICK, {"160 updates, lambda = 1": NARROW, "160 updates, lambda = 5": WIDE}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--group", choices=sorted(GROUPS), default="knobs")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=120_000)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()

    from adagoal import train
    from adagoal.core.errors import Status
    from adagoal.core.file_io import write_json
    from adagoal.deep import Config
    from adagoal.deep.training_history import TrainingHistory
    from adagoal.runs import train_result
    from adagoal.runs.progress_display import TrainingProgress

    base, variants = GROUPS[options.group]
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    configs = [Config(**base | change, steps=options.steps, seed=s) for change in variants.values() for s in seeds]

    def write_named(status: Status, history: TrainingHistory) -> None:
        data = train_result.training_to_json(status, history)
        names = [name for name in variants for _ in seeds]
        for run, name in zip(data["runs"], names, strict=True):
            run["variant"] = name
        write_json(options.out, data)

    with TrainingProgress() as show:

        def observe(history: TrainingHistory) -> None:
            show(history)
            if "success" in history.rows[-1]:
                write_named(Status.INTERRUPTED, history)

        trained = train(configs, minutes=options.minutes, workers=options.workers, observe=observe)
    write_named(trained.status, trained.history)


if __name__ == "__main__":
    main()
