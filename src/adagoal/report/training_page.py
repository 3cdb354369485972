"""``report.html`` of training runs: panels read from the folder alone, the live page, and a strip of video frames."""

from __future__ import annotations

import base64
import io
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adagoal.certification.certificate import Claim
from adagoal.core import user_code
from adagoal.core.errors import InputError, Status
from adagoal.core.file_formats import COUNT_SCHEMA, check_json_value
from adagoal.core.file_io import read_json, report_read_errors, write_atomically
from adagoal.deep import env_inspection, goal_envs, policy_evaluation
from adagoal.deep.config import Config
from adagoal.deep.goal_envs import flatten_numbers, unflatten_like
from adagoal.deep.training_history import ValueMapHistory
from adagoal.report.html_page import (
    Curve,
    CurvePlot,
    Panel,
    PanelContent,
    ReportPage,
    curves_panel,
    render_macro,
    require_figures_extra,
    tables_panel,
)
from adagoal.report.live_server import ReportSource
from adagoal.report.show import cells_panel
from adagoal.runs import train_result
from adagoal.runs.result_text import Headline, resume_training_command
from adagoal.runs.run_folder import RunKind, SavedRun, read_saved_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VIDEO_STRIP_FILE = "strip.png"
N_FRAMES = 12
"""Frames of the video. More would make the page larger without showing more."""


@dataclass(frozen=True)
class ExtraFiles:
    """Files that ``evaluate`` and ``certify`` left in the folder of the training run."""

    current_contents: dict[str, Any]  # contents of the files about a policy of this folder, by name
    outdated_names: list[str]  # files about another policy: training was continued or replaced since

    evaluation, certificate = "evaluation.json", "certificate.json"
    outdated_title = "Not shown: these files are about an earlier policy"


def _open_object(**properties: Any) -> dict[str, Any]:
    # Other entries are allowed: the page reads only a part of what the commands write.
    return {"type": "object", "required": list(properties), "properties": properties}


def _list_of(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _extra_schemas() -> dict[str, Any]:
    """Return what the page reads from each of these files."""
    number, text = {"type": "number"}, {"type": "string"}
    share = {"type": "number", "minimum": 0, "maximum": 1}
    about = {"type": "object", "properties": {"policy": text}}
    # An interval without episodes has no success, which JSON writes as null.
    success = share | {"type": ["number", "null"]}
    one_bin = _open_object(**{"from": number}, to=number, episodes=COUNT_SCHEMA, success=success)
    corners, counts = (
        dict.fromkeys(("low", "high"), _list_of(number)),
        dict.fromkeys(("rollouts", "successes"), COUNT_SCHEMA),
    )
    cell = _open_object(
        **corners, share=share, **counts, verdict={"enum": [str(verdict) for verdict in Claim.verdicts]}
    )
    by_name = {"type": "object", "additionalProperties": _list_of(one_bin)}
    return {
        ExtraFiles.evaluation: _open_object(about=about, by=by_name),
        ExtraFiles.certificate: _open_object(about=about, statement=text, cells=_list_of(cell)),
    }


class TrainingSource(NamedTuple):
    """What the panels are made from."""

    record: train_result.TrainingRecord
    arrays: dict[str, NDArray[Any]]
    past: ValueMapHistory
    extra: ExtraFiles

    @property
    def evaluated(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Intervals with their success, by distance or coordinate; empty without ``adagoal evaluate``."""
        bins: Mapping[str, Any] = self.extra.current_contents.get(ExtraFiles.evaluation, {}).get("by", {})
        return bins


def write_training_report(folder: str | Path, env: str | None = None, png: bool = False) -> Path:
    """Write ``report.html`` into the folder of training runs and return its path; ``png`` also draws the curves.

    The page has no video if the environment comes from code that is not installed (``module:Id``), unless ``env``
    names the environment again.
    """
    source = read_training_folder(Path(folder))
    drawn: dict[str, Figure] = {}
    if png:
        require_figures_extra()
        from adagoal.report.figures import draw_curve_plots  # imports Matplotlib, which takes a second

        drawn = {"curves.png": draw_curve_plots(training_plots(source))}
    # The page embeds the strip, so it is rendered first.
    write_video_strip(source.record, env)
    return training_page(source).save(Path(folder), RunKind.TRAINING, drawn)


def read_training_folder(folder: Path) -> TrainingSource:
    """Read and check everything that the page shows."""

    def load(saved_run: SavedRun) -> TrainingSource:
        record = train_result.read_training_record(saved_run)
        arrays = train_result.read_goal_arrays(saved_run, record)
        past = train_result.read_past_maps(saved_run, record, min(2, arrays["chosen"].shape[-1]))
        return TrainingSource(record, arrays, past, _read_extra_files(saved_run, record))

    return read_saved_run(folder, load)


def training_page(source: TrainingSource) -> ReportPage:
    """Return the page of training runs."""
    config = source.record.configs[0]
    return ReportPage.collect(f"adagoal: {config.env}, {config.goal_rule}", PANELS, source)


class TrainingFolderSource(ReportSource):
    """The live page of training runs: the last save in their folder."""

    def current_page(self) -> ReportPage:
        return training_page(read_training_folder(self.folder))


def summary_panel(source: TrainingSource) -> PanelContent:
    """Return the headline, with the command that continues the run and the names of outdated files."""
    record = source.record
    status, last_points = Status(record.data["status"]), [curve[-1] for curve in record.learning_curves]
    titles = {Status.DONE: "Finished", Status.CERTIFIED: "Certified"}
    titles |= {Status.BUDGET: "Stopped by the time limit", Status.INTERRUPTED: "Interrupted"}
    steps, seconds = last_points[0]["steps"], record.data["wall_seconds"]
    share = f"{statistics.fmean(point['success'] for point in last_points):.0%}"
    text = f"In the last test {share} of the episodes ended at their goal, after {steps:,} steps ({seconds:,.0f} s)."
    head = Headline("good" if status.finished else "partial", titles[status], (text, *_describe_goal_rule(source)))
    command = "" if status.finished else resume_training_command(record.configs[0], record.path, steps)
    writers = {ExtraFiles.evaluation: "adagoal evaluate", ExtraFiles.certificate: "adagoal certify"}
    outdated = [f"{name}: repeat {writers[name]} {quote(str(record.path))}" for name in source.extra.outdated_names]
    return PanelContent(
        html=render_macro("shared.html", "summary", head, command, [(ExtraFiles.outdated_title, outdated)])
    )


def _has_values(config: Config) -> bool:
    """Return whether D and E were trained; a rule in a file counts as one that uses them, because it is not loaded."""
    return config.rule_is_a_file or config.needs_ensemble or config.algorithm == "critics"


def _describe_goal_rule(source: TrainingSource) -> tuple[str, ...]:
    """Return the last L, share of candidates with D <= L, and E, if the goal rule uses them."""
    config, points = source.record.configs[0], [curve[-1] for curve in source.record.learning_curves]
    # a rule without D and E, as that of plain HER, has no L
    if not all({"radius", "reachable", "error"} <= point.keys() for point in points):
        return ()
    share, E = (statistics.fmean(point[name] for point in points) for name in ("reachable", "error"))
    L = points[0]["radius"]
    return (
        f"Then the goal rule worked with L = {L:.3g} of {config.radius:.3g} steps: "
        f"{share:.0%} of its candidate goals had D ≤ L, and the chosen goals had E = {E:.2g} on average.",
    )


def space_panel(source: TrainingSource) -> PanelContent | None:
    """Return the chosen goals and the maps of D and E, over the first two coordinates of the first run."""
    record, arrays, past, _ = source
    config = record.configs[0]
    if arrays["chosen"].shape[-1] < 2:
        return None
    chosen = arrays["chosen"][:, 0, :, :2]
    # The page contains at most 200,000 goals, 1.6 MB; of more goals only every n-th cycle is shown.
    every = -(-chosen[..., 0].size // 200_000)
    boxes = {"train": "train_box_0", "test": "test_box_0", "table": "table"}
    spaces = np.stack([arrays[f"train_box_{run}"][:, :2] for run in range(len(record.configs))])
    values = {
        "boxes": {name: arrays[key][:, :2].tolist() for name, key in boxes.items() if key in arrays},
        "episodes": config.episodes,
        "every": every,
        "radius": config.radius,
        "ends": [spaces[:, 0].min(0).tolist(), spaces[:, 1].max(0).tolist()],  # the maps cover the spaces of all runs
        "map_cycles": list(past.maps),
    }
    # Single precision is enough for a drawing, and halves the page.
    shown = {"chosen": np.ascontiguousarray(chosen[::every], np.float32)}
    if "D" in arrays and arrays["D"].ndim == 3:
        shown |= {name: np.ascontiguousarray(arrays[name][0], np.float32) for name in ("D", "E")}
    if past.maps:
        shown["maps"] = np.ascontiguousarray([saved[0] for saved in past.maps.values()], np.float32)
    return PanelContent(values, shown, render_macro("training.html", "space", _has_values(config)))


def certificate_panel(source: TrainingSource) -> PanelContent | None:
    """Return the cells of the certificate that ``adagoal certify`` wrote."""
    certificate = source.extra.current_contents.get(ExtraFiles.certificate)
    return None if certificate is None else cells_panel(certificate)


def video_panel(source: TrainingSource) -> PanelContent | None:
    """Return the strip of frames that :func:`write_video_strip` rendered."""
    strip = source.record.path / VIDEO_STRIP_FILE
    if not strip.is_file():
        return None
    picture = base64.b64encode(strip.read_bytes()).decode()
    return PanelContent(html=render_macro("training.html", "video", N_FRAMES, picture))


def settings_panel(source: TrainingSource) -> PanelContent:
    """Return the settings of the first run."""
    values = source.record.configs[0].to_json() | {"method": source.record.data["method"]}
    notes = {
        "radius": "L: the goal rule prefers goals with D ≤ L, that is, at most this many steps away",
        "radius_ramp": "steps of a linear growth of L; None: L grows while goals are reached",
    }
    return PanelContent(html=render_macro("shared.html", "settings", "Settings of the first run", values, notes))


PANELS: tuple[Panel[TrainingSource], ...] = (
    Panel("words", "", summary_panel),
    Panel("space", "Goal space", space_panel, ("space.js",), "pair wide"),
    Panel("cells", "Certificate", certificate_panel, ("cells.js",), "pair wide"),
    Panel("video", "Video", video_panel, ("video.js",), "pair wide"),
    Panel("curves", "Curves", lambda run: curves_panel(training_plots(run)), ("curves.js",)),
    Panel("tables", "", lambda run: tables_panel(training_tables(run)), ("tables.js",)),
    Panel("settings", "", settings_panel),
)
"""The page from top to bottom."""


def _read_extra_files(saved_run: SavedRun, record: train_result.TrainingRecord) -> ExtraFiles:
    """Read and check what ``evaluate`` and ``certify`` wrote, and sort out what is about another policy."""
    folder = record.path
    schemas = _extra_schemas()
    # lexists: a broken link is damage that must be reported, not a missing file.
    contents = {name: read_json(folder / name) for name in schemas if os.path.lexists(folder / name)}
    for name, data in contents.items():
        with report_read_errors(folder / name):
            check_json_value(schemas[name], data)
            for cell in data.get("cells", ()):
                if not len(cell["low"]) == len(cell["high"]) >= 1:
                    raise ValueError("a cell has no corners")
    policies: set[str] = set()
    # A policy takes a while to read, and most folders have no such files.
    if contents:
        policies = {
            train_result.read_policy(saved_run, record, run).fingerprint() for run in range(len(record.configs))
        }
    current = {name: data for name, data in contents.items() if data["about"].get("policy") in policies}
    return ExtraFiles(current, [name for name in contents if name not in current])


def training_plots(source: TrainingSource) -> list[CurvePlot]:
    """Return the plots: test success and properties of the chosen goals over steps, and success by distance."""
    record, past = source.record, source.past
    steps, share = "environment steps", "share of test goals"
    tests = {"success": "last step", "success_any": "any step"}
    # Shares are often 0, which a logarithmic axis cannot show.
    plots = [CurvePlot("Test success", steps, share, _curves_over_steps(record, tests), log_axes=False)]
    goal_curves = {"inside_test": "in the test space", "on_table": "on the table", "train_success": "reached"}
    if _has_values(record.configs[0]):
        steps_of_rule = {"radius": "L in use", "distance": "D of chosen goals", "error": "E of chosen goals"}
        if lines := _curves_over_steps(record, steps_of_rule):
            plots.append(CurvePlot("What the goal rule works with", steps, "steps", lines, log_axes=False))
        goal_curves["reachable"] = "candidates with D ≤ L"
    if lines := _curves_over_steps(record, goal_curves):
        plots.append(CurvePlot("Goals of training", steps, "share of goals", lines, log_axes=False))
    if past.tests:
        lines = _success_by_distance(past, [config.seed for config in record.configs])
        plots.append(CurvePlot("Success by distance, in the tests", "distance from the start", share, lines, {}, False))
    for name, bins in source.evaluated.items():
        lines = _binned_curve("last step", bins)
        if lines and name.startswith("distance"):
            plots.append(CurvePlot(f"Success by {name}, evaluated", name, share, lines, log_axes=False))
    return plots


def _success_by_distance(past: ValueMapHistory, seeds: Sequence[int]) -> list[Curve]:
    """Return success by distance in the four quarters of training, over all runs and for each run."""
    tests = np.stack(past.tests).astype(np.float64)
    # The quarters have the same intervals, so their curves can be compared.
    edges = policy_evaluation.success_bin_edges(tests[..., 0])
    lines = []
    for quarter, part in enumerate(np.array_split(tests, 4)):
        name = f"tests of quarter {quarter + 1}"
        by_seed = list(zip(seeds, np.moveaxis(part, 1, 0), strict=True)) if len(seeds) > 1 else []
        for seed, own in [(None, part), *by_seed]:
            distance, success = own.reshape(-1, 2).T
            lines += _binned_curve(name, policy_evaluation.success_by_bin(distance, success > 0, edges), seed)
    return lines


def _binned_curve(name: str, bins: Sequence[Mapping[str, Any]], seed: int | None = None) -> list[Curve]:
    """Return a curve through the middles of the intervals with episodes, if there are any."""
    known = [((part["from"] + part["to"]) / 2, part["success"]) for part in bins if part["success"] is not None]
    return [Curve(name, [x for x, _ in known], [y for _, y in known], seed)] if known else []


def _curves_over_steps(record: train_result.TrainingRecord, names: dict[str, str]) -> list[Curve]:
    """Return for each name the mean over runs and, if there are several runs, the curve of each."""
    lines = []
    for key, name in names.items():
        runs = [
            ([point["steps"] for point in curve if key in point], [point[key] for point in curve if key in point])
            for curve in record.learning_curves
        ]
        if not all(x for x, _ in runs):
            continue
        mean = [statistics.fmean(values) for values in zip(*(y for _, y in runs), strict=False)]
        lines.append(Curve(name, runs[0][0][: len(mean)], mean))
        if len(runs) > 1:
            lines += [Curve(name, x, y, config.seed) for (x, y), config in zip(runs, record.configs, strict=True)]
    return lines


def training_tables(source: TrainingSource) -> str:
    """Return the tables in Markdown: the runs and, if they were evaluated, their success by distance."""
    rows = ["| goal rule | seed | steps | success, last step | any step |", "| --- | ---: | ---: | ---: | ---: |"]
    for config, curve in zip(source.record.configs, source.record.learning_curves, strict=True):
        # A bar would end the cell of the table.
        rule = config.goal_rule.replace("|", "/")
        end = curve[-1]
        rows.append(f"| {rule} | {config.seed} | {end['steps']:,} | {end['success']:.2f} | {end['success_any']:.2f} |")
    for name, bins in source.evaluated.items():
        head = name.replace("|", "/")
        rows += ["", f"Success by {head}, measured by adagoal evaluate:", ""]
        rows += ["| from | to | episodes | success |", "| ---: | ---: | ---: | ---: |"]
        for part in bins:
            share = "-" if part["success"] is None else f"{part['success']:.2f}"
            rows.append(f"| {part['from']:.3f} | {part['to']:.3f} | {part['episodes']} | {share} |")
    return "\n".join(rows)


def write_video_strip(record: train_result.TrainingRecord, env: str | None) -> Path | None:
    """Render ``FOLDER/strip.png``; return None if no renderer works or the environment's code may not be run.

    A separate process renders the strip, because a broken renderer can end its process.
    """
    # The child gets our sys.path: a script may have added the folder of its environment.
    code = (
        "import sys; sys.path[:] = sys.argv[2:]; "
        "from adagoal.report import training_page; training_page.render_strip_of_folder()"
    )
    # EGL renders without a display. A choice of the user wins, because it comes later.
    environment = {"MUJOCO_GL": "egl", **os.environ, **user_code.safe_path_variables()}
    path = record.path / VIDEO_STRIP_FILE
    # An old strip would show an earlier policy.
    path.unlink(missing_ok=True)
    try:
        record.env_source(env, trust=False)
    except InputError:
        return None
    try:
        subprocess.run(
            [sys.executable, "-c", code, str(record.path), *sys.path],
            env=environment,
            capture_output=True,
            timeout=120,  # seconds; some renderers hang without a display
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return path if path.is_file() else None


def render_frames(folder: Path) -> NDArray[np.uint8]:
    """Play one episode at a distant test goal and return its frames ``[N_FRAMES, height, width, 3]``."""
    config = read_saved_run(folder, train_result.read_training_record).configs[0]
    policy = read_saved_run(
        folder, lambda saved: train_result.read_policy(saved, train_result.read_training_record(saved), 0)
    )
    source = goal_envs.EnvSource(policy.env)
    env = source.make_env(render_mode="rgb_array")
    horizon = env_inspection.measure_dimensions(env, source, config.horizon).horizon
    # Fixed seeds: the same policy is shown on the same goal.
    goals = env_inspection.make_goal_sampler(env, "test_goals", config.test_goals)(np.random.default_rng(1), 32)
    observation, _ = env.reset(seed=1)
    goal = goals[np.argmax(np.linalg.norm(goals - flatten_numbers(observation["achieved_goal"]), axis=1))]
    set_goal = source.find_goal_setter(env)
    if set_goal is not None:
        set_goal(unflatten_like(observation["desired_goal"], goal))
    shown_steps = np.linspace(0, horizon, N_FRAMES).astype(int).tolist()
    frames = {0: env.render()}
    ended = False
    for t in range(1, horizon + 1):
        if not ended:
            action = policy(observation, goal).astype(env.action_space.dtype)
            observation, _, terminated, truncated, _ = env.step(action)
            ended = terminated or truncated
        # After the end of the episode the frames repeat its last state.
        if t in shown_steps:
            frames[t] = env.render()
    return np.stack([frames[t] for t in shown_steps])


def render_strip_of_folder() -> None:
    """Write the strip of the folder in ``sys.argv[1]``: the main function of the child process."""
    import matplotlib.image

    folder = Path(sys.argv[1])
    frames = render_frames(folder)
    every = max(1, min(frames.shape[1:3]) // 240)  # keep at least 240 pixels per side
    strip = np.concatenate(list(frames[:, ::every, ::every]), 1)
    picture = io.BytesIO()
    matplotlib.image.imsave(picture, strip, format="png")
    write_atomically(folder / VIDEO_STRIP_FILE, lambda file: file.write(picture.getvalue()))
