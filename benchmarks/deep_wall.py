"""Wall time from scratch to 90% on FetchPush, everything included (process start, compilation, tests).

python benchmarks/deep_wall.py --steps 250000 --seed 0 --out docs/data/deep-wall-h200.json
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path


def main() -> None:
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--env", default="FetchPush-v4")
    parser.add_argument("--steps", type=int, default=250_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()

    from adagoal.deep import result
    from adagoal.deep.command import progress
    from adagoal.deep.config import Config
    from adagoal.deep.training import train

    config = Config(options.env, seed=options.seed, steps=options.steps, eval_every=20)
    with progress(options.steps) as watch:
        trained = train([config], watch=watch)
    data = result.to_json(trained)
    first = next((p for p in trained.history.curve(0) if p["success"] >= 0.9), None)
    data["seconds_to_90"] = None if first is None else first["wall_seconds"]
    data["steps_to_90"] = None if first is None else first["steps"]
    data["seconds_in_all"] = round(time.monotonic() - began, 1)
    result.write_json(options.out, data)
    print(data["seconds_to_90"], data["steps_to_90"], data["seconds_in_all"])


if __name__ == "__main__":
    main()
