"""Planning time per episode of AdaGoal-UCBVI on the two-room grid, H = 50, simplified bonus, all 52 goals.

    python benchmarks/planning.py              the batched kernel beside plain NumPy
    python benchmarks/planning.py --rlberry    and beside rlberry-scool's UCBVI, which plans one goal

rlberry-scool pins an older Gymnasium: ``--rlberry`` installs it, once, into an environment of its own, .venv-rlberry.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adagoal.envs import toy_models
from adagoal.envs.model import TabularMDP
from adagoal.exact.solver import to_target_goals
from adagoal.planning.model_arrays import to_sparse_model
from adagoal.tabular.ucbvi import plan_finite_horizon, ucbvi_bonuses

sys.path.insert(0, str(Path(__file__).parents[1]))
from experiments.required_samples import pad_kernel

H, SAMPLES, REPEATS = 50, 300.0, 50
Floats = NDArray[np.float64]
HOME = Path(__file__).resolve().parent.parent


def kernel_plan(mdp: TabularMDP) -> Callable[[], Floats]:
    """The batched kernel on ideal counts: returns D and U [2, S]."""
    S, kernel = mdp.n_states, pad_kernel(to_sparse_model(mdp))
    targets, n = to_target_goals(mdp, None), np.full(S * mdp.n_actions, SAMPLES)

    def plan() -> Floats:
        _, D, U = plan_finite_horizon(kernel, ucbvi_bonuses(n, S, S, H, 0.1, "simplified"), targets, H)
        return np.array([D, U])

    return plan


def numpy_plan(mdp: TabularMDP) -> Callable[[], Floats]:
    """The same in plain NumPy: dense matrix products, one per stage and value, all goals at once."""
    S, A, goals = mdp.n_states, mdp.n_actions, np.arange(mdp.n_states)
    p = mdp.kernel().toarray()

    def plan() -> Floats:
        V, U = np.zeros((2, S, S))
        policy = np.zeros((H, S, S), np.int16)
        for h in range(H - 1, -1, -1):
            left = H - h
            b = np.sqrt(1 / SAMPLES) + left / SAMPLES
            Q, E = np.empty((2, S, A + 1, S))
            Q[:, :A] = np.clip(1 - b + p @ V, 1, left).reshape(S, A, S)
            E[:, :A] = np.clip(2 * b + p @ U, 0, left).reshape(S, A, S)
            Q[:, A], E[:, A] = 1 + V[mdp.start], U[mdp.start]
            policy[h] = choice = Q.argmin(axis=1)
            V = np.take_along_axis(Q, choice[:, None], 1)[:, 0]
            U = np.take_along_axis(E, choice[:, None], 1)[:, 0]
            V[goals, goals] = U[goals, goals] = 0.0
        return np.array([V[mdp.start], U[mdp.start]])

    return plan


def median_seconds(plan: Callable[[], Floats]) -> float:
    plan()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        plan()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def rlberry_seconds(mdp: TabularMDP) -> dict[str, float]:
    """Median planning time of an episode of rlberry-scool's UCBVI, in its own environment: as it is, and compiled."""
    python = HOME / ".venv-rlberry" / "bin" / "python"
    if subprocess.run([python, "-c", "import rlberry_scool"], capture_output=True, check=False).returncode:
        subprocess.run([sys.executable, "-m", "venv", HOME / ".venv-rlberry"], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "rlberry-scool"], check=True)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.npy"
        np.save(model, mdp.kernel().toarray().reshape(mdp.n_states, mdp.n_actions, mdp.n_states))
        worker = HOME / "benchmarks" / "planning_rlberry.py"
        answer = subprocess.run(
            [python, worker, model, str(H), str(REPEATS)], capture_output=True, text=True, check=True
        )
    seconds: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rlberry", action="store_true", help="also measure rlberry-scool's UCBVI")
    with_rlberry = parser.parse_args().rlberry
    mdp = toy_models.two_room_grid()
    fast, plain = kernel_plan(mdp), numpy_plan(mdp)
    np.testing.assert_allclose(fast(), plain(), atol=1e-9)
    rows = [
        ("batched kernel", median_seconds(fast), mdp.n_states),
        ("plain NumPy", median_seconds(plain), mdp.n_states),
    ]
    if with_rlberry:
        theirs = rlberry_seconds(mdp)
        rows += [("rlberry-scool UCBVI", theirs["as_it_is"], 1), ("the same, in Numba", theirs["compiled"], 1)]
    ours = rows[0][1] / rows[0][2]
    print(f"{'':<20} {'goals':>5} {'ms/episode':>11} {'us/goal':>9} {'times ours':>11}")
    for name, seconds, goals in rows:
        per_goal = seconds / goals
        print(f"{name:<20} {goals:>5} {seconds * 1e3:>11.2f} {per_goal * 1e6:>9.1f} {per_goal / ours:>11.1f}")


if __name__ == "__main__":
    main()
