"""The page of a training run, in a real browser."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small_training import CONFIG, load_policy

import adagoal
import browser as driver
from adagoal import resume, train
from adagoal.cli.main import run_command_line
from adagoal.core.errors import InputError
from adagoal.core.file_io import write_json
from adagoal.deep import env_inspection, goal_envs
from adagoal.deep.training_history import ValueMapHistory
from adagoal.report import training_page
from adagoal.report.live_server import serve_report
from adagoal.report.training_page import ExtraFiles
from adagoal.runs.run_folder import find_saved_run
from data_block import unpack_data_block

CELL = {"low": [-1.0, -1.0], "high": [0.0, 1.0], "share": 0.5, "rollouts": 10, "successes": 9}
CELLS = [CELL | {"verdict": "certified"}, CELL | {"low": [0.0, -1.0], "high": [1.0, 1.0], "verdict": "open"}]


@pytest.fixture
def trained(finished: Path, tmp_path: Path) -> Path:
    folder = shutil.copytree(finished, tmp_path / "run")
    by = {"distance from the start": [{"from": 0.0, "to": 1.0, "episodes": 4, "success": 0.25}]}
    about = {"policy": load_policy(folder).fingerprint()}
    write_json(folder / ExtraFiles.evaluation, {"about": about, "by": by})
    write_json(
        folder / ExtraFiles.certificate,
        {"about": about, "statement": "with <b>probability</b>", "cells": CELLS},
    )
    return folder


@pytest.mark.skipif(driver.found() is None, reason=driver.HOW)
def test_goal_space_shows_earlier_times(trained: Path) -> None:
    training_page.write_training_report(trained)
    assert (trained / training_page.VIDEO_STRIP_FILE).is_file()
    with driver.Browser() as browser:
        page = browser.open((trained / "report.html").as_uri())
        page.wait("document.body.dataset.ready === 'yes'")
        chosen = "Math.round(part('squares').data.text.reduce((n, text) => n + parseInt(text), 0))"
        page.evaluate("$('space-measure').value = 'until'; $('space-measure').dispatchEvent(new Event('change'))")
        episodes = json.loads((trained / "result.json").read_text())["episodes"]
        assert page.evaluate(chosen) == episodes
        page.evaluate("$('cycle').value = 0; $('cycle').dispatchEvent(new Event('input'))")
        assert page.evaluate(chosen) == CONFIG.episodes
        maps = np.load(trained / "past.npz")["maps"]
        for k, name in enumerate(("D", "E")):
            page.evaluate(f"$('space-measure').value = '{name}'; $('space-measure').dispatchEvent(new Event('change'))")
            for cycle in (1, 2):
                page.evaluate(f"$('cycle').value = {cycle}; $('cycle').dispatchEvent(new Event('input'))")
                corner = page.evaluate("part('squares').data.text.at(-1)")
                assert corner == f"{name} = {maps[cycle, 0, k, -1, -1]:.2f}"
            page.evaluate("$('cycle').value = 3; $('cycle').dispatchEvent(new Event('input'))")
            assert page.evaluate("part('squares').data.x.length") == 41 * 41, "the map of the end is finer"
        assert page.evaluate("$('cells-text').textContent") == "certified 50%refuted 0%open 50%"
        assert "with <b>probability</b>" in page.evaluate("document.body.textContent"), "words, not markup"
        titles = page.evaluate("page.data.facts.curves.map(plot => plot.title)")
        assert titles[-2:] == ["Success by distance, in the tests", "Success by distance from the start, evaluated"]
        assert page.troubles() == []


def test_page_and_figures_are_part_of_the_manifest(trained: Path) -> None:
    """So a damaged page is detected, and a new run in the folder removes it."""
    training_page.write_training_report(trained, png=True)
    saved = find_saved_run(trained)
    assert saved is not None
    assert {"report.html", "curves.png"} <= saved.manifest.results.keys()
    with saved.result_files().open_verified("report.html") as (path, _, _):
        assert path == trained / "report.html"
    adagoal.load(trained)


@pytest.mark.skipif(driver.found() is None, reason=driver.HOW)
def test_page_and_log_show_the_inputs_of_the_goal_rule(finished: Path) -> None:
    record = training_page.read_training_folder(finished).record
    last = record.learning_curves[0][-1]
    L = last["radius"]
    assert L < CONFIG.radius, "it still grows"
    rows = list(csv.DictReader((finished / "log.csv").read_text().splitlines()))
    played = [row for row in rows if row["radius"]]
    assert [float(row["radius"]) for row in played] == [CONFIG.next_radius(int(row["steps"]), {}) for row in played]
    assert all(row["reachable"] and row["error"] for row in played)
    assert len(played) == len(rows) - 1, "every cycle; the last row is a test"
    page_text = training_page.training_page(training_page.read_training_folder(finished)).render()
    assert f"L = {L:.3g} of 40 steps: {last['reachable']:.0%} of its candidate goals had D ≤ L" in page_text
    assert f"the chosen goals had E = {last['error']:.2g} on average" in page_text
    with driver.Browser() as browser, serve_report(training_page.TrainingFolderSource(finished)) as address:
        page = browser.open(address)
        page.wait("document.body.dataset.ready === 'yes'")
        titles = page.evaluate("page.data.facts.curves.map(plot => plot.title)")
        rule, goals = (titles.index(title) for title in ("What the goal rule works with", "Goals of training"))
        shown = page.evaluate(f"part('lines{rule}').data")
        names = ["L in use", "D of chosen goals", "E of chosen goals"]
        assert shown["name"] == names
        assert shown["ys"][0] == [point["radius"] for point in record.learning_curves[0][1:]]
        assert shown["ys"][2][-1] == last["error"]
        assert "candidates with D ≤ L" in page.evaluate(f"part('lines{goals}').data.name")
        assert page.troubles() == []


@pytest.mark.parametrize("algorithm", ["critics", "ddpg"])
def test_page_of_a_rule_without_distances_shows_no_radius(algorithm: str, tmp_path: Path) -> None:
    configs = [dataclasses.replace(CONFIG, goal_rule="unigoal", algorithm=algorithm)]
    train(configs, out=tmp_path, workers=1)
    text = training_page.training_page(training_page.read_training_folder(tmp_path)).render()
    assert "the goal rule worked with L" not in text


def test_python_shows_the_page_of_a_folder(finished: Path) -> None:
    page = adagoal.show(finished)
    assert page.title == "adagoal: point-mass, adagoal-proportional"
    assert page.html == training_page.training_page(training_page.read_training_folder(finished)).render()


def test_success_by_distance_equals_the_test_results(finished: Path) -> None:
    source = training_page.read_training_folder(finished)
    tests = np.stack(source.past.tests)
    assert tests.shape == (3, 1, 2, 2)
    assert (tests[:, 0, :, 1].mean(1) == [point["success"] for point in source.record.learning_curves[0]]).all()
    (plot,) = (plot for plot in training_page.training_plots(source) if "distance" in plot.title)
    assert [line.name for line in plot.lines] == [f"tests of quarter {k}" for k in (1, 2, 3)]
    assert all(tests[..., 0].min() <= x <= tests[..., 0].max() for line in plot.lines for x in line.x)


def test_older_maps_are_thinned() -> None:
    past = ValueMapHistory()
    for cycle in range(100):
        if past.is_map_due(cycle):
            past.add_map(cycle, np.full((1, 3, 3), cycle), np.zeros((1, 3, 3)))
    assert list(past.maps) == list(range(0, 100, 4))
    assert [int(kept[0, 0, 0, 0]) for kept in ValueMapHistory.from_arrays(past.to_arrays()).maps.values()] == list(
        past.maps
    )


def test_video_shows_the_goal_of_the_policy(finished: Path) -> None:
    pictures = training_page.render_frames(finished)
    assert len(pictures) == training_page.N_FRAMES
    env = goal_envs.make_goal_env("point-mass")
    goals = env_inspection.make_goal_sampler(env, "test_goals", CONFIG.test_goals)(np.random.default_rng(1), 32)
    start = env.reset(seed=1)[0]["achieved_goal"]
    goal = goals[np.argmax(np.linalg.norm(goals - start, axis=1))]
    across = np.linspace(-1.5, 1.5, pictures.shape[1])
    for picture in pictures:
        rows, columns = np.nonzero((picture == (213, 94, 0)).all(-1))
        np.testing.assert_allclose([across[columns].mean(), -across[rows].mean()], goal, atol=0.05)


FILM = """
import sys
from pathlib import Path
import mujoco
import numpy as np
from adagoal import train
from adagoal.deep import Config
from adagoal.deep.goal_envs import EnvSource
from adagoal.report import training_page

if __name__ == "__main__":
    sizes = {"episodes": 2, "eval_episodes": 2, "updates": 2, "batch": 8, "hidden": (8,), "buffer": 2000}
    train([Config("FetchReach-v4", steps=100, **sizes)], out=Path(sys.argv[1]), workers=1)
    made, make = [], EnvSource.make_env
    EnvSource.make_env = lambda self, **options: made.append(make(self, **options)) or made[-1]
    assert len(training_page.render_frames(Path(sys.argv[1]))) == training_page.N_FRAMES
    core = made[-1].unwrapped
    marker = core.data.site_xpos[mujoco.mj_name2id(core.model, mujoco.mjtObj.mjOBJ_SITE, "target0")]
    goals = training_page.env_inspection.make_goal_sampler(core, "test_goals", "env")(np.random.default_rng(1), 32)
    print(np.abs(marker - goals).max(1).min())
"""
"""Trains briefly on Fetch, renders the video, and prints the distance from its marker to the nearest test goal."""


@pytest.mark.slow
def test_video_of_fetch_marks_a_test_goal(tmp_path: Path) -> None:
    script = tmp_path / "film.py"
    script.write_text(FILM)
    environment = {**os.environ, "MUJOCO_GL": "egl"}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "run")],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if "EGL" in done.stderr:
        pytest.skip("no renderer without a display")
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1e-6


def test_training_is_watched_from_its_folder(trained: Path) -> None:
    source = training_page.TrainingFolderSource(trained)
    assert 'data-live="yes"' in source.current_page().render(live=True)
    facts, arrays = unpack_data_block(source.pack_data())
    assert not facts["running"]
    assert "Finished" in facts["html"]["words"]
    assert arrays["chosen"].shape[1:] == (CONFIG.episodes, 2)
    with pytest.raises(InputError, match="goal: works for explorations only"):
        source.pack_policy(0)


def test_page_omits_results_of_an_earlier_policy(trained: Path) -> None:
    def page() -> str:
        return training_page.training_page(training_page.read_training_folder(trained)).render()

    by_distance = "Success by distance from the start, evaluated"
    assert "with &lt;b&gt;probability" in page()
    assert by_distance in page()
    assert ExtraFiles.outdated_title not in page()
    resume(trained, budget=60, workers=1)
    assert "with &lt;b&gt;probability" not in page()
    assert by_distance not in page()
    assert ExtraFiles.outdated_title in page()
    facts, _ = unpack_data_block(training_page.TrainingFolderSource(trained).pack_data())
    assert "cells" not in facts
    for name in (ExtraFiles.certificate, ExtraFiles.evaluation):
        assert f"{name}: repeat adagoal" in facts["html"]["words"]


def test_evaluate_and_certify_write_files_for_the_page(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["evaluate", str(trained), "--episodes", "3"]) == 0
    assert run_command_line(["certify", str(trained), "--radius", "5", "--halvings", "0", "--rollouts", "128"]) != 2
    extra = training_page.read_training_folder(trained).extra
    assert (set(extra.current_contents), extra.outdated_names) == (
        {ExtraFiles.certificate, ExtraFiles.evaluation},
        [],
    )
    assert extra.current_contents[ExtraFiles.evaluation]["episodes"] == 3


@pytest.mark.parametrize(
    "wrong", [{"statement": "x", "cells": [CELL]}, {"cells": []}, {"statement": "x", "cells": [CELLS[0] | {"low": []}]}]
)
def test_damaged_certificate_gives_one_line_error(trained: Path, wrong: object) -> None:
    write_json(trained / ExtraFiles.certificate, wrong)
    with pytest.raises(InputError, match=r"certificate.json: damaged"):
        training_page.TrainingFolderSource(trained).pack_data()
