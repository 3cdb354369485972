"""Every benchmark runs to its end, with the smallest work that it takes. Its numbers are not tested."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
OTHER_PACKAGES = {"planning_rlberry.py", "sb3_push.py", "sb3_reach.py", "verification.py"}
GOAL_RULES = {"deep_rules.py"}
COMMANDS = [
    "cells.py OUT --side 6 --radius 15 --epsilon 5",
    "certify_policies.py --runs 2",
    "deep_ablation.py --group members --seeds 1 --steps 800 --out OUT.json",
    "deep_certify.py --runs 2 --out OUT.json",
    "deep_contact.py --works 0.5",
    "deep_heldout.py --env point-mass --scale 3 --seeds 1-2 --steps 1600 --eval-every 1 --out OUT.json --run OUT",
    "deep_speed.py adagoal --updates 2 --cycles 2",
    "deep_speed.py arithmetic",
    "deep_speed.py learner --updates 20 --batch 64 --cycles 2",
    "deep_speed.py rollouts --cycles 2",
    "deep_wall.py --env point-mass --steps 800 --out OUT.json",
    "estimate.py two-room",
    "exact_solver.py",
    "goal_sets.py",
    "lattice.py 50",
    "planning.py",
    "scale.py grid-20",
    "stateful.py --seeds 1 --limit 2000",
    "sweep.py",
    "workers.py 2 400",
]
pytestmark = pytest.mark.slow


def run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_benchmark_runs(command: str, tmp_path: Path) -> None:
    name, *arguments = command.replace("OUT", str(tmp_path / "out")).split()
    run(f"benchmarks/{name}", *arguments)


def test_distances_of_critics(tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    run("-m", "adagoal", "train", "point-mass", "--train-goals", "scale=3", "--steps", "1600", "--out", folder)
    options = ["--episodes", "50", "--refit", "500", "--critics", "quasimetric", "contrastive"]
    assert "contrastive" in run("benchmarks/deep_distances.py", folder, *options)


def test_no_benchmark_is_left_out() -> None:
    named = {command.split()[0] for command in COMMANDS} | {"deep_distances.py"}
    files = {path.name for path in (REPOSITORY / "benchmarks").glob("*.py")}
    assert files == named | OTHER_PACKAGES | GOAL_RULES
