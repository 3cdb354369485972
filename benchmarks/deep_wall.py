"""Wall time from scratch to 90% on FetchPush, everything included (process start, compilation, tests).

    python benchmarks/deep_wall.py --train-goals scale=10 --seed 9301 --steps 240000 --out FILE.json

The run ends at the first test of 96 episodes with at least 90% success. Programs that an earlier run has compiled are
found on the disk (``JAX_ENABLE_COMPILATION_CACHE=false``: compile all of them).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adagoal.deep.training_history import TrainingHistory

WANTED = 0.9


def main() -> None:
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--env", default="FetchPush-v4")
    parser.add_argument("--train-goals", default="env")
    parser.add_argument("--radius-ramp", type=int)
    parser.add_argument("--steps", type=int, default=600_000)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()

    from adagoal import train
    from adagoal.core.file_io import write_json
    from adagoal.deep import Config
    from adagoal.runs import train_result
    from adagoal.runs.progress_display import TrainingProgress

    config = Config(
        options.env,
        seed=options.seed,
        steps=options.steps,
        train_goals=options.train_goals,
        radius_ramp=options.radius_ramp,
        eval_every=10,
    )
    seconds: float | None = None

    with TrainingProgress() as show:

        def observe(history: TrainingHistory) -> bool:
            nonlocal seconds
            show(history)
            if history.rows[-1].get("success", 0.0) < WANTED:
                return True
            seconds = round(time.monotonic() - began, 1)
            return False

        trained = train([config], minutes=options.minutes, observe=observe)
    data = train_result.training_to_json(trained.status, trained.history)
    reached = [row["steps"] for row in trained.history.rows if row.get("success", 0.0) >= WANTED]
    data |= {"seconds_to_90": seconds, "steps_to_90": reached[0] if reached else None}
    data["seconds_in_all"] = round(time.monotonic() - began, 1)
    write_json(options.out, data)
    print(data["seconds_to_90"], data["steps_to_90"], data["seconds_in_all"])


if __name__ == "__main__":
    main()
