"""Every cell of a large grid, certified: 100 x 100 cells, each of them a goal within the radius.

    python benchmarks/cells.py FOLDER [--side 100] [--radius 250] [--epsilon 25]
    python benchmarks/cells.py FOLDER --check          the exact audit, the table and the map of what FOLDER holds

The first command explores and writes FOLDER/cells.npz (bounds, policies, visits) and FOLDER/cells.json (steps,
seconds). The second needs no run: it holds every policy against the model, which takes a minute.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import adagoal
from adagoal.core.environment import Policy
from adagoal.envs import toy_models
from adagoal.exact.audit import Audit, audit_policies
from adagoal.runs.result import find_model_states, numbers_states_as_met
from scale import timed_parts

RINGS = 5


def explored(folder: Path, side: int, radius: float, epsilon: float) -> None:
    """Run, and keep what a check needs."""
    spent: Counter[str] = Counter()
    timed_parts(spent)
    for size, near, share, budget in ((2, 3.0, 0.1, None), (25, 60.0, 0.1, 100_000)):  # compiles
        adagoal.explore("grid", near, share * near, budget=budget, env_args={"rows": size, "cols": size})
    spent.clear()
    began, busy, alone, last = time.perf_counter(), time.process_time(), time.thread_time(), [0.0]

    def show(run: Any) -> None:
        seconds = time.perf_counter() - began
        if seconds - last[0] > 20:
            last[0] = seconds
            still = run.open_columns()
            parts = " ".join(f"{name} {value:.0f} s" for name, value in spent.items())
            print(
                f"{seconds:6.0f} s {run.steps:9.3g} steps {int(still.sum()):6d} open, "
                f"largest error {run.estimates.E[still].max(initial=0.0):5.0f}; {parts}",
                flush=True,
            )

    result = adagoal.explore(
        "grid",
        radius=radius,
        epsilon=epsilon,
        delta=0.1,
        seed=7,
        env_args={"rows": side, "cols": side},
        method_args={"branching": 4},  # no move leads to more than four cells
        observe=show,
    )
    wall, busy, alone = time.perf_counter() - began, time.process_time() - busy, time.thread_time() - alone
    bounds = np.array([result.certificates[g] for g in result.goals], float).reshape(-1, 2)
    facts = {
        "side": side,
        "radius": radius,
        "epsilon": epsilon,
        "status": str(result.status),
        "goals": len(result.goals),
        "largest_error": max(result.errors.values(), default=0.0),
        "steps": result.steps,
        "plans": result.plans,
        "wall_seconds": round(wall, 1),
        "processor_seconds": round(busy, 1),
        "main_thread_seconds": round(alone, 1),  # what more cores do not shorten
        "sampling_seconds": round(spent["sampling"], 1),
        "planning_seconds": round(spent["planning"], 1),
        "gigabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 1),
    }
    print(json.dumps(facts, indent=1), flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cells.json").write_text(json.dumps(facts, indent=1) + "\n")
    # A run on a large model numbers the states as it meets them.
    S = side * side
    states = find_model_states(result, S) if numbers_states_as_met(result) else np.arange(S)
    visits = np.zeros(S, np.int64)
    visits[states] = result.arrays["visits"][: len(states)]
    policy = np.full((len(result.goals), S), result.reset_action, np.int8)
    policy[:, states] = result.arrays["policy"][:, 0, : len(states)]
    arrays = {
        "goals": states[result.goals],
        "lower": bounds[:, 0],
        "upper": bounds[:, 1],
        "visits": visits,
        "policy_goals": states[result.arrays["policy_goals"]],
        "policy": policy,
    }
    np.savez_compressed(folder / "cells.npz", **arrays)


def checked(folder: Path) -> None:
    """The audit, the table by distance, and the map."""
    facts, kept = json.loads((folder / "cells.json").read_text()), dict(np.load(folder / "cells.npz"))
    mdp = toy_models.open_grid_model(rows=facts["side"], cols=facts["side"])
    goals = [int(g) for g in kept["goals"]]
    tables = zip(kept["policy_goals"].tolist(), kept["policy"], strict=True)
    policies = {g: Policy(g, actions[None], mdp.n_actions) for g, actions in tables}
    lower, upper = (dict(zip(goals, kept[name].tolist(), strict=True)) for name in ("lower", "upper"))
    audit = audit_policies(mdp, goals, policies, facts["radius"], facts["epsilon"], lower=lower, upper=upper)
    print(f"audit: {'ok' if audit.ok else 'FAILS'}, {len(goals)} goals")
    rows = table(audit)
    (folder / "cells.md").write_text("\n".join(rows) + "\n")
    print("\n".join(rows))
    draw(folder / "cells.png", facts["side"], audit, kept["visits"])


def table(audit: Audit) -> list[str]:
    """Markdown: cells by their true distance."""
    best = np.array([row.optimal for row in audit.rows], float)
    value, lower, upper = (
        np.array([getattr(row, name) for row in audit.rows], float) for name in ("value", "lower", "upper")
    )
    ends = np.ceil(best.max() / RINGS / 10) * 10 * np.arange(RINGS + 1)
    lines = ["| V* | cells | lower bound, mean | upper bound, mean | widest interval | policy above V*, mean | most |"]
    lines.append("| --- " * 7 + "|")
    for low, high in itertools.pairwise(ends):
        ring = (best >= low) & (best < high)
        if ring.any():
            width, loss = (upper - lower)[ring].max(), (value - best)[ring]
            numbers = f"{lower[ring].mean():.0f} | {upper[ring].mean():.0f} | {width:.1f} | {loss.mean():.2f}"
            lines.append(f"| {low:.0f} to {high:.0f} | {ring.sum():,} | {numbers} | {loss.max():.2f} |")
    return lines


def draw(path: Path, side: int, audit: Audit, visits: np.ndarray) -> None:
    """Four maps of the cells."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    best, value, lower, upper = (
        np.array([getattr(row, name) for row in audit.rows], float).reshape(side, side)
        for name in ("optimal", "value", "lower", "upper")
    )
    maps = {
        "upper bound of the policy, steps": upper,
        "upper minus lower bound": upper - lower,
        "policy above the best, true steps": value - best,
        "visits, log10": np.log10(np.maximum(visits, 1)).reshape(side, side),
    }
    figure, axes = plt.subplots(1, 4, figsize=(15, 3.6), constrained_layout=True)
    for axis, (title, picture) in zip(axes, maps.items(), strict=True):
        shown = axis.imshow(picture, cmap="viridis")
        axis.set_title(title, fontsize=10)
        axis.set_xticks([]), axis.set_yticks([])
        figure.colorbar(shown, ax=axis, shrink=0.8)
    axes[0].plot(0, 0, "r*", markersize=9, clip_on=False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--side", type=int, default=100)
    parser.add_argument("--radius", type=float, default=250.0)
    parser.add_argument("--epsilon", type=float, default=25.0)
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    if asked.check:
        checked(asked.folder)
    else:
        explored(asked.folder, asked.side, asked.radius, asked.epsilon)
