"""FetchPush on seeds that no choice was made on: interquartile means with bootstrap intervals.

    python benchmarks/deep_heldout.py --out docs/data/deep-heldout-push-10.json      # five minutes on 16 cores + H200
    python benchmarks/deep_heldout.py --table docs/data/deep-heldout-push-10.json    # only print the table

The interquartile mean is that of the middle half of the runs; its interval holds 95% of the means of runs drawn again
with replacement (the convention of rliable, Agarwal et al. 2021).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import trim_mean

RULES = {"adagoal-proportional": 10, "unigoal": 6}
"""Goal rules, and how many seeds of each."""
FIRST_SEED = 8000
DRAWS = 20_000


def interquartile(values: Any) -> tuple[float, float, float]:
    """Mean of the middle half of the values, and its 95% interval."""
    values = np.asarray(values, float)
    drawn = np.random.default_rng(0).choice(values, (DRAWS, len(values)))
    low, high = np.quantile(trim_mean(drawn, 0.25, axis=1), [0.025, 0.975])
    return float(trim_mean(values, 0.25)), float(low), float(high)


def table(data: dict[str, Any]) -> str:
    """One row per test, one column per rule."""
    rules = list(dict.fromkeys(run["goal_rule"] for run in data["runs"]))
    lines = ["steps   " + "".join(f"{rule:>30}" for rule in rules)]
    for at, point in enumerate(data["runs"][0]["curve"]):
        line = f"{point['steps']:>7} "
        for rule in rules:
            own = [run["curve"][at]["success"] for run in data["runs"] if run["goal_rule"] == rule]
            middle, low, high = interquartile(own)
            line += f"{middle:>14.2f} [{low:.2f}, {high:.2f}]".rjust(30)
        lines.append(line)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--scale", type=int, default=10)
    parser.add_argument("--steps", type=int, default=144_000)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()

    from adagoal.core.files import read_json, write_json

    if options.table is not None:
        print(table(read_json(options.table)))
        return
    from adagoal.deep import Config, train
    from adagoal.runs import training_files
    from adagoal.runs.training_progress import TrainingProgress

    shared = {"steps": options.steps, "train_goals": f"scale={options.scale}", "action_l2": 1.0}
    shared |= {"eval_every": 20, "eval_episodes": 48, "buffer": 200_000}
    configs = [
        Config("FetchPush-v4", goal_rule=rule, seed=FIRST_SEED + i, **shared)
        for rule, seeds in RULES.items()
        for i in range(seeds)
    ]
    with TrainingProgress() as show:
        trained = train(configs, workers=options.workers, observe=show)
    data = training_files.to_json(trained.status, trained.history)
    print(table(data))
    if options.out is not None:
        write_json(options.out, data)


if __name__ == "__main__":
    main()
