"""Kill runs (SIGKILL) at random moments, resume them, and compare the results with uninterrupted runs.

    python tests/kill_runs.py SEED KILLS      # prints one line per difference, and the number of kills

The seed draws a goal rule for every case. Rules that choose goals beyond the radius have rollouts that consist of
resets only, which other rules never have.

Every run saves after every rollout, so many kills hit the middle of a save. This is a script and not a test because it
forks: a child of a process that has compiled everything needs no start-up time. ``test_kill_and_resume.py`` calls it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import adagoal
from adagoal.core.array_types import Floats
from adagoal.envs import toy_models
from adagoal.goal_rules import GoalInfo
from adagoal.methods import METHODS
from adagoal.runs import run_folder as folders
from adagoal.runs.run_folder import find_saved_run
from model_env import ModelEnv, PairEnv

Make = Callable[[], Any]


def tried_least(known: GoalInfo) -> Floats:
    """Goal rule of a user: prefer the goals with the fewest attempts."""
    return np.where(known.eligible, 1.0 / (1.0 + known.attempts), 0.0)


Rule = str | Callable[[GoalInfo], Floats]
RULES: list[Rule] = [
    *("adagoal", "adagoal-proportional", "unigoal", "raregoal", "mega", "omega", "goid", "progress", "goexplore"),
    tried_least,
]
CHAIN = {"n_states": 5, "slip": 0.1}
SETS = {"middle": list(range(1, 11)), "first": [1, 2]}
WINDY: dict[str, Any] = {"env": "mixture-windy", "radius": 3, "budget": 1_500}
CASES: dict[str, dict[str, Any]] = {
    "certified": {"env": "chain", "radius": 6, "env_args": CHAIN, "budget": 6_000},
    "certified-near": {"env": "fan", "radius": 2, "epsilon": 0.3, "budget": 3_000},
    "certified-auto": {"env": "chain", "radius": "auto", "env_args": CHAIN, "budget": 3_000},
    "certified-all": {"env": "grid", "radius": "all:3", "env_args": {"rows": 2, "cols": 3}, "budget": 3_000},
    "ucbvi": {"env": "chain", "env_args": CHAIN, "radius": 4, "method": "ucbvi", "budget": 1_500,
              "method_args": {"bonus": "simplified", "horizon": 20}},
    "bayes": {"env": "chain", "env_args": CHAIN, "radius": 6, "method": "bayes", "budget": 3_000},
    "ucbexplore": {"env": "chain", "env_args": CHAIN, "radius": 4, "method": "ucbexplore", "budget": 20_000,
                   "method_args": {"constants": "scaled=0.00001"}},
    "disco": {"env": "chain", "env_args": CHAIN, "radius": 4, "method": "disco", "budget": 20_000,
              "method_args": {"constants": "scaled=0.0001"}},
    "valae": {"env": "chain", "env_args": CHAIN, "radius": 4, "method": "valae", "budget": 20_000,
              "method_args": {"constants": "scaled=0.00001"}},
    "lae": {"env": "chain", "env_args": CHAIN, "radius": 4, "method": "lae", "budget": 20_000,
            "method_args": {"constants": "scaled=0.001"}},
    "gosprl": {"env": "chain", "env_args": CHAIN, "radius": 4, "method": "gosprl", "budget": 20_000,
               "method_args": {"constants": "scaled=0.001"}},
    "sets": {"env": "chain", "env_args": CHAIN, "radius": 6, "goals": {"even": [0, 2, 4], "far": [3, 4]},
             "budget": 6_000},
    "ucbexplore-sets": {"env": "fan", "radius": 3, "method": "ucbexplore", "goals": SETS, "budget": 20_000,
                        "method_args": {"constants": "scaled=0.2"}},
    "disco-sets": {"env": "fan", "radius": 3, "method": "disco", "goals": SETS, "budget": 20_000,
                   "method_args": {"constants": "scaled=0.1"}},
    "bpi-ucbvi": {"env": "chain", "env_args": {"n_states": 4}, "radius": 3, "method": "bpi-ucbvi", "goals": [2],
                  "method_args": {"horizon": 12, "constants": "scaled=0.01"}, "budget": 1_000},
    "intervals": {"env": "chain", "env_args": CHAIN, "radius": 6, "method": "intervals", "budget": 3_000},
    "within": {"env": "chain", "env_args": CHAIN, "within": 6, "probability": 0.5, "epsilon": 0.1, "budget": 6_000},
    "likelihood": {**WINDY, "method": "likelihood"},
    "likelihood-auto": {**WINDY, "method": "likelihood", "radius": "auto"},
    "vtr-pooled": {**WINDY, "method": "vtr-pooled"},
    "vtr": {**WINDY, "method": "vtr", "radius": 2, "method_args": {"horizon": 6}, "budget": 500},
    "frozen-lake": {"env": "FrozenLake-v1", "radius": 4, "budget": 2_000},
    "numbered": {"env": lambda: ModelEnv(toy_models.chain_model(**CHAIN)), "radius": 5, "budget": 2_000},
    "on-the-fly": {"env": lambda: PairEnv(toy_models.chain_model(**CHAIN), (0, 2)), "radius": 5, "budget": 1_500},
    "on-the-fly-within": {"env": lambda: PairEnv(toy_models.chain_model(**CHAIN), (0, 2)), "within": 6,
                          "probability": 0.5, "epsilon": 0.1, "budget": 1_500},
    "on-the-fly-sets": {"env": lambda: PairEnv(toy_models.chain_model(**CHAIN), (0, 2)), "radius": 4, "goals": "keys:1",
                        "method": "ucbexplore", "method_args": {"constants": "scaled=0.001"}, "budget": 1_500},
    "on-the-fly-auto": {"env": lambda: PairEnv(toy_models.chain_model(**CHAIN)), "radius": "auto", "budget": 1_500},
}  # fmt: skip


def start_or_resume(case: str, rule: Rule, path: Path) -> None:
    """Start a run, or resume the one in the folder."""
    arguments = dict(CASES[case])
    make = arguments.pop("env") if callable(arguments["env"]) else None
    if path.exists() and find_saved_run(path) is not None:
        own_rule = rule if callable(rule) else None
        adagoal.resume(path, env=None if make is None else make(), goal_rule=own_rule)
    else:
        arguments |= {"goal_rule": rule, "out": path}
        adagoal.explore(**(arguments if make is None else {"env": make(), **arguments}))


def draw_rule(case: str, rng: random.Random) -> Rule:
    """Draw a rule, unless the method of the case uses none."""
    drawn, method = rng.choice(RULES), METHODS[CASES[case].get("method", "certified")]
    return drawn if method.uses_goal_rule else "adagoal"


def run_until_killed(case: str, rule: Rule, path: Path, seconds: float) -> bool:
    """Run in a child process and kill it after ``seconds``; return whether the run had finished."""
    child = os.fork()
    if not child:
        try:
            start_or_resume(case, rule, path)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise AssertionError(f"{case}, {rule}: the run ended with an error")
    return os.WIFEXITED(status)


def outcome(path: Path) -> tuple[dict[str, Any], bytes]:
    """Return the files that must be equal, byte for byte."""
    adagoal.load(path)
    return json.loads((path / "result.json").read_text()) | {"wall_seconds": 0}, (path / "policies.npz").read_bytes()


def main(seed: int, kills: int) -> int:
    """Kill and resume runs until there were ``kills`` kills; return the number of differences."""
    folders.save_interval_elapsed = lambda since, cost: True
    os.fsync = lambda handle: None  # a killed process, unlike a power cut, loses no written data
    rng, n_different, done = random.Random(seed), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        whole_seconds: dict[str, float] = {}
        cases = list(CASES)
        rng.shuffle(cases)
        rules = {case: draw_rule(case, rng) for case in cases}
        while done < kills:
            case = cases.pop(0)
            rule = rules[case]
            cases.append(case)
            if case not in whole_seconds:
                start_or_resume(case, rule, Path(folder) / "warm" / case)  # compiles
                whole, began = Path(folder) / "whole" / case, time.monotonic()
                start_or_resume(case, rule, whole)
                whole_seconds[case] = time.monotonic() - began
            path, n_kills = Path(folder) / "cut" / case, 0
            while n_kills < 4 and done < kills:
                if run_until_killed(case, rule, path, rng.uniform(0.0, 0.6 * whole_seconds[case])):
                    break
                n_kills, done = n_kills + 1, done + 1
            start_or_resume(case, rule, path)
            if outcome(path) != outcome(Path(folder) / "whole" / case):
                n_different += 1
                print(f"{case}, {rule}: another result after {n_kills} kills (seed {seed})")
            shutil.rmtree(path)
    played = ", ".join(f"{case} ({getattr(rules[case], '__name__', rules[case])})" for case in whole_seconds)
    print(f"{done} kills of {played}: {n_different} differences")
    return n_different


if __name__ == "__main__":
    sys.exit(min(main(int(sys.argv[1]), int(sys.argv[2])), 1))
