"""Trainings on seeds that no choice was made on: interquartile means with bootstrap intervals.

    python benchmarks/deep_heldout.py --scale 10 --rule adagoal-proportional --seeds 8000-8009 --out FILE.json
    python benchmarks/deep_heldout.py --scale 1 --rule unigoal --settings reference,gentle,mrl,contact \\
        --seeds 100-101 --steps 160000 --out CHOICE.json                            # which settings suit a rule?
    python benchmarks/deep_heldout.py --env FetchSlide-v4 --scale 0 --rule adagoal-proportional,unigoal \\
        --settings defaults --seeds 9000-9002 --steps 400000 --out FILE.json        # another environment, two rules
    python benchmarks/deep_heldout.py --env FetchSlide-v4 --scale 0 --minutes 9 --run FOLDER --out FILE.json \\
        --recipe half --shared '{"gamma": 0.99}'         # settings of all runs; the same command resumes the run
    python benchmarks/deep_heldout.py --choose CHOICE.json                          # the best of them, for each rule
    python benchmarks/deep_heldout.py --table FILE.json [FILE.json ...]             # only print the table
    python benchmarks/deep_heldout.py --table FILE.json [FILE.json ...] --plot FILE.png
    python benchmarks/deep_heldout.py --each FILE.json                              # the runs one by one

Every seed is run with every rule and setting, all of them in one program. The interquartile mean is that of the middle
half of the runs; its interval holds 95% of the means of runs drawn again with replacement (the convention of rliable,
Agarwal et al. 2021). docs/data/deep-plan.json says which runs were planned, and how settings were to be chosen.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

SETTINGS: dict[str, dict[str, float]] = {
    "reference": {"noise": 0.2, "random": 0.3, "action_l2": 1.0, "contact": 0.0, "swap_goals": 0.0},
    "gentle": {"noise": 0.2, "random": 0.3, "action_l2": 0.1, "contact": 0.0, "swap_goals": 0.0},
    "mrl": {"noise": 0.1, "random": 0.2, "action_l2": 0.01, "contact": 0.0, "swap_goals": 0.0},
    "hindsight": {"noise": 0.2, "random": 0.3, "action_l2": 1.0, "contact": 0.5, "relabel": 1.0, "swap_goals": 0.0},
    "contact": {"noise": 0.2, "random": 0.3, "action_l2": 1.0, "contact": 0.5, "swap_goals": 0.0},
    "random": {"noise": 0.2, "random": 0.6, "action_l2": 1.0, "contact": 0.5, "swap_goals": 0.0},
    "mrl-contact": {"noise": 0.1, "random": 0.2, "action_l2": 0.01, "contact": 0.5, "swap_goals": 0.0},
    "mixed": {"noise": 0.2, "random": 0.6, "action_l2": 0.1, "contact": 0.9, "relabel": 1.0, "swap_goals": 0.0},
    "no-swap": {"swap_goals": 0.0},
    "defaults": {},
}
"""How to explore and what to replay: as the reference HER; with a smaller action penalty; as mrl; with half of each
batch from episodes that moved the object, which is the default on Fetch (``contact``), and with hindsight goals alone,
with twice the random actions, or with mrl's exploration beside it; all of that at once (``mixed``). None of these has
goals of other episodes in its batches, and neither has ``no-swap``, which is the default otherwise. A run has the first
setting that fits it."""
LAST_TESTS = 3
"""Settings are chosen by the mean success in so many tests at the end."""
DRAWS = 20_000
COLOURS = ("#0072b2", "#d55e00", "#7f7f7f", "#009e73", "#cc79a7", "#e69f00")


def interquartile(values: Any) -> tuple[float, float, float]:
    """Mean of the middle half of the values, and its 95% interval."""
    from scipy.stats import trim_mean

    values = np.asarray(values, float)
    drawn = np.random.default_rng(0).choice(values, (DRAWS, len(values)))
    low, high = np.quantile(trim_mean(drawn, 0.25, axis=1), [0.025, 0.975])
    return float(trim_mean(values, 0.25)), float(low), float(high)


def setting(run: dict[str, Any]) -> str:
    """The name of a run's setting."""
    # files from before `swap_goals` existed lack it
    return next(name for name, wanted in SETTINGS.items() if all(run.get(k, 0.0) == v for k, v in wanted.items()))


def groups(files: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The runs of each goal space, rule and setting."""
    found: dict[str, list[dict[str, Any]]] = {}
    for data in files:
        for run in data["runs"]:
            name = f"{data['env']} {run['train_goals']} {run['goal_rule']} {setting(run)}"
            found.setdefault(name, []).append(run)
    return found


def table(files: list[dict[str, Any]]) -> str:
    """For each group of runs, one line per test: success at the last step, and at any step if the file has it."""
    lines = []
    for name, runs in groups(files).items():
        lines.append(f"{name}, {len(runs)} seeds")
        for points in zip(*(run["curve"] for run in runs), strict=True):
            middle, low, high = interquartile([point["success"] for point in points])
            line = f"{points[0]['steps']:>9} {middle:8.2f} [{low:.2f}, {high:.2f}]"
            if all("success_any" in point for point in points):
                line += "   any step {:.2f} [{:.2f}, {:.2f}]".format(*interquartile([p["success_any"] for p in points]))
            lines.append(line)
    return "\n".join(lines)


def plot(files: list[dict[str, Any]], path: Path) -> None:
    """Interquartile means and their intervals over steps, one line per group."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.0), layout="constrained")
    axes = figure.subplots()
    found = groups(files)
    # the legend names only what differs
    shared = set.intersection(*(set(name.split()) for name in found)) if len(found) > 1 else set()
    for (name, runs), colour in zip(found.items(), COLOURS, strict=False):
        tests = list(zip(*(run["curve"] for run in runs), strict=True))
        steps = [points[0]["steps"] / 1000 for points in tests]
        middle, low, high = zip(*(interquartile([p["success"] for p in points]) for points in tests), strict=True)
        label = " ".join(word for word in name.split() if word not in shared)
        axes.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(steps, middle, color=colour, marker="o", markersize=3, label=f"{label}, {len(runs)} seeds")
    axes.axhline(0.9, color="#999999", linewidth=0.8, linestyle=":")
    axes.set(xlabel="thousand environment steps", ylabel="success at the last step", ylim=(0, 1.02))
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(" ".join(word for word in name.split() if word in shared), loc="left", fontsize=9)
    figure.legend(frameon=False, loc="outside right upper", fontsize=8)
    figure.savefig(path, dpi=150)


def choose(data: dict[str, Any]) -> str:
    """For each rule its settings with the mean success in the last tests, the best first."""
    found: dict[str, dict[str, list[float]]] = {}
    for run in data["runs"]:
        last = [point["success"] for point in run["curve"][-LAST_TESTS:]]
        found.setdefault(run["goal_rule"], {}).setdefault(setting(run), []).extend(last)
    lines = []
    for rule, settings in found.items():
        means = sorted(((float(np.mean(last)), name) for name, last in settings.items()), reverse=True)
        lines.append(f"{rule}: " + ", ".join(f"{name} {mean:.3f}" for mean, name in means))
    return "\n".join(lines)


def each(data: dict[str, Any]) -> str:
    """Every run with that in which it differs from others, and its success at every test."""
    runs = data["runs"]
    names = [name for name in runs[0] if name != "curve" and len({str(run[name]) for run in runs}) > 1]
    lines = []
    for run in runs:
        lines.append(", ".join(f"{name} {run[name]}" for name in names))
        lines.append("  " + "  ".join(f"{point['steps'] / 1000:.0f}k {point['success']:.2f}" for point in run["curve"]))
    return "\n".join(lines)


def seeds(text: str) -> range:
    """``8000-8009``."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--env", default="FetchPush-v4")
    parser.add_argument("--scale", type=int, default=10, help="0: the environment's own goals.")
    parser.add_argument("--rule", default="adagoal-proportional")
    parser.add_argument("--settings", default="defaults")
    parser.add_argument("--recipe", default="adagoal", help="Named settings, as in adagoal train.")
    parser.add_argument("--shared", type=json.loads, default={}, help="Settings of all runs, as JSON.")
    parser.add_argument("--seeds", type=seeds, default=range(8000, 8010))
    parser.add_argument("--steps", type=int, default=144_000)
    parser.add_argument("--radius-ramp", type=int)
    parser.add_argument("--eval-every", type=int, default=30)
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="End after so long; what was tested until then is kept."
    )
    parser.add_argument("--workers", type=int)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--run", type=Path, help="Run folder with the policies; an interrupted run there goes on.")
    parser.add_argument("--choose", type=Path)
    parser.add_argument("--table", type=Path, nargs="+")
    parser.add_argument("--each", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()

    from adagoal.core.errors import Status
    from adagoal.core.file_io import read_json, write_json

    if options.table is not None:
        files = [read_json(path) for path in options.table]
        print(table(files))
        if options.plot is not None:
            plot(files, options.plot)
        return
    if options.each is not None:
        print(each(read_json(options.each)))
        return
    if options.choose is not None:
        print(choose(read_json(options.choose)))
        return
    if options.out is None:
        parser.error("--out FILE.json is missing: the results go there")
    from adagoal import resume, train
    from adagoal.deep import RECIPES, Config
    from adagoal.deep.training_history import TrainingHistory
    from adagoal.runs import train_result
    from adagoal.runs.progress_display import TrainingProgress

    shared = {"steps": options.steps, "train_goals": f"scale={options.scale}" if options.scale else "env"}
    shared |= {"eval_every": options.eval_every, "eval_episodes": 48, "buffer": min(options.steps, 1_000_000)}
    shared |= {"radius_ramp": options.radius_ramp, **RECIPES[options.recipe], **options.shared}
    configs = [
        Config(options.env, seed=seed, goal_rule=rule, **shared, **SETTINGS[name])
        for name in options.settings.split(",")
        for rule in options.rule.split(",")
        for seed in options.seeds
    ]
    with TrainingProgress() as show:

        def observe(history: TrainingHistory) -> None:
            show(history)
            if "success" in history.rows[-1]:
                write_json(options.out, train_result.training_to_json(Status.INTERRUPTED, history))

        limits = {"workers": options.workers, "observe": observe, "minutes": options.minutes}
        if options.run is not None and options.run.exists():
            trained = resume(options.run, env=options.env, **limits)
        else:
            trained = train(configs, out=options.run, **limits)
    data = train_result.training_to_json(trained.status, trained.history)
    write_json(options.out, data)
    print(table([data]))


if __name__ == "__main__":
    main()
