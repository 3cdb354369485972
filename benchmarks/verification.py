"""Models that ship with Storm, explored for their own labels; Storm says what is true.

For every model: the certified runs, and beside each certificate Storm's own expected number of steps on Storm's own
model, to which nothing but the reset is added. A certificate is right if lower <= V* for every goal of the label, and
V* <= upper for those that were certified. Then the graph-preserving interval MDP of the run goes back to Storm, whose
robust values must enclose V* as well.

    python benchmarks/verification.py --seeds 10         # needs the extra storm; 130 runs, some minutes
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import stormpy
import stormpy.examples.files
from stormpy import Interval, UncertaintyResolutionMode

import adagoal

MODELS = Path(stormpy.examples.files.testfile_dir)
STEPS = 'R{{"steps"}}min=? [F "goal_{}"]'


class Case(NamedTuple):
    """One model, the label that is its goal, and what is asked."""

    file: str
    label: str
    radius: float
    epsilon: float
    constants: dict[str, Any] = {}  # noqa: RUF012


CASES = (
    Case("mdp/tiny_rewards.nm", "target", 4, 0.5),
    Case("mdp/scheduler_generation.nm", "target", 4, 0.5),
    Case("mdp/slipgrid.nm", "target", 12, 1),
    Case("mdp/slipgrid.nm", "goal", 12, 1),
    Case("mdp/maze_2.nm", "goal", 8, 0.5),
    Case("mdp/maze_2_multigoal.nm", "goalalt1", 8, 0.5),
    Case("mdp/die_c1.nm", "done", 20, 2),
    Case("mdp/die_selection.nm", "done", 20, 2),
    Case("dtmc/die.pm", "done", 20, 2),
    Case("dtmc/leader-3-5.pm", "elected", 6, 0.5),
    Case("mdp/two_dice.nm", "twelve", 120, 12),
    Case("mdp/leader3.nm", "elected", 60, 6),
    Case("mdp/coin2.nm", "finished", 80, 8, {"K": 2}),
    Case("mdp/csma2-2.nm", "all_delivered", 110, 11),
    Case("mdp/firewire.nm", "elected", 100, 10, {"delay": 3, "fast": 0.5}),
)


def main() -> None:
    """Run the cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", help="part of a file's name")
    parser.add_argument("--out", type=Path, help="also write the rows as JSON")
    given = parser.parse_args()
    stormpy.developer.set_log_level(stormpy.developer.LogLevel.OFF)
    print(f"{'model':24} {'label':14} {'states':>6} {'goals':>5} {'L':>4} {'eps':>4} {'steps':>11} {'s':>6}", end="")
    print(f" {'certified':>9} {'inside':>7} {'Storm robust':>12}  widths: ours / Storm's")
    rows = []
    for case in CASES:
        if given.only is None or given.only in case.file:
            rows.append(row(case, given.seeds))
            print(shown(rows[-1]), flush=True)
            if given.out is not None:
                given.out.write_text(json.dumps(rows, indent=1) + "\n")


def row(case: Case, seeds: int) -> dict[str, Any]:
    """All runs of a case."""
    model = adagoal.Model.load(MODELS / case.file, **case.constants)
    goals = model.states(case.label)
    truth = dict(zip(goals, exact(case, goals), strict=True))
    steps, seconds, certified, inside, robust, ours, theirs = [], [], 0, 0, 0, [], []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            result = adagoal.explore(model, case.radius, case.epsilon, goals=goals, seed=seed, out=folder)
            seconds.append(time.perf_counter() - began)
            steps.append(result.steps)
            certified += result.status == "certified"
            inside += right(result, truth, case)
            adagoal.export(folder)
            enclosed = dict(zip(result.goals, robustly(Path(folder) / "export", result.goals), strict=True))
            robust += all(
                low <= truth[g] * (1 + 1e-6) and truth[g] <= high * (1 + 1e-6) for g, (low, high) in enclosed.items()
            )
            ours += [result.certificate(g).upper - result.certificate(g).lower for g in result.goals]
            theirs += [high - low for low, high in enclosed.values()]
    return {
        **case._asdict(),
        "states": model.n_states,
        "goals": len(goals),
        "runs": seeds,
        "steps": statistics.median(steps),
        "seconds": statistics.median(seconds),
        "certified": certified,
        "inside": inside,
        "robust": robust,
        "width": statistics.mean(ours) if ours else None,
        "storm_width": statistics.mean(theirs) if theirs else None,
    }


def right(result: adagoal.Result, truth: dict[int, float], case: Case) -> bool:
    """Whether every certificate holds what Storm says, and the goals are those within the radius."""
    bounds = all(result.certificate(g).lower <= truth[g] * (1 + 1e-6) for g in result.certificates)
    policies = all(truth[g] <= result.certificate(g).upper * (1 + 1e-6) for g in result.goals)
    reached = {g for g in truth if truth[g] <= case.radius} <= set(result.goals)
    return bounds and policies and reached and all(truth[g] <= case.radius + case.epsilon for g in result.goals)


def shown(row: dict[str, Any]) -> str:
    """One line of the table."""
    runs = row["runs"]
    widths = "-" if row["width"] is None else f"{row['width']:.2f} / {row['storm_width']:.2f}"
    return (
        f"{row['file']:24} {row['label']:14} {row['states']:6} {row['goals']:5} {row['radius']:4g} {row['epsilon']:4g} "
        f"{row['steps']:11,.0f} {row['seconds']:6.1f} {row['certified']:5}/{runs:<3} {row['inside']:3}/{runs:<3} "
        f"{row['robust']:8}/{runs:<3}  {widths}"
    )


# --- what Storm says ---


def exact(case: Case, goals: list[int]) -> list[float]:
    """The least expected number of steps from the start to each goal, on Storm's model with the reset added."""
    path = MODELS / case.file
    program = stormpy.parse_prism_program(path, prism_compatibility=True)
    if case.constants:
        program, _ = stormpy.instantiate_constants(program, case.constants)
    built = stormpy.build_model(program)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "reset.drn"
        file.write_text("\n".join(with_reset(built, goals)) + "\n")
        model = stormpy.build_model_from_drn(file)
    return [checked(model, goal) for goal in goals]


def with_reset(built: Any, goals: list[int]) -> Iterator[str]:
    """A sparse model of Storm as DRN, with one more choice in every state: the reset."""
    matrix, (start,) = built.transition_matrix, built.initial_states
    yield from ("@type: MDP", "@value_type: double", "@parameters", "", "@reward_models", "steps")
    yield from ("@nr_states", str(built.nr_states), "@nr_choices", str(matrix.nr_rows + built.nr_states), "@model")
    for state in range(built.nr_states):
        yield f"state {state} [1]" + " init" * (state == start) + f" goal_{state}" * (state in goals)
        for place, choice in enumerate(range(matrix.get_row_group_start(state), matrix.get_row_group_end(state))):
            yield f"\taction {place} [0]"
            yield from (f"\t\t{entry.column} : {entry.value!r}" for entry in matrix.get_row(choice))
        yield from ("\taction reset [0]", f"\t\t{start} : 1")


def checked(model: Any, goal: int, mode: UncertaintyResolutionMode | None = None) -> float:
    """The expected steps to one goal from the start."""
    environment = None if mode is not None else stormpy.environments.sound()
    formula = stormpy.parse_property(STEPS.format(goal))
    result = stormpy.model_checking(model, formula, uncertainty_resolution_mode=mode, environment=environment)
    value = float(result.get_value(model.initial_states[0]))
    return value if math.isfinite(value) else math.inf


def robustly(folder: Path, goals: list[int]) -> list[tuple[float, float]]:
    """Storm's robust bounds on the graph-preserving model: nature helps, nature hinders."""
    model = stormpy.build_model_from_drn[Interval](folder / "graph-preserving.drn")
    modes = (UncertaintyResolutionMode.COOPERATIVE, UncertaintyResolutionMode.ROBUST)
    return [(checked(model, goal, modes[0]), checked(model, goal, modes[1])) for goal in goals]


if __name__ == "__main__":
    main()
