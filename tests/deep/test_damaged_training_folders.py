"""Damaged and forged training folders are refused with one line, without a hang and without running their code."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_training import CONFIG, equal, evaluate, load_policy, restored

import damaged_folders
from adagoal import resume
from adagoal.cli.main import run_command_line as command
from adagoal.core.errors import FolderWarning, InputError
from adagoal.deep import learner
from adagoal.deep.env_inspection import inspect_env
from adagoal.report import training_page as report
from adagoal.runs import train_result as kept
from adagoal.runs.run_folder import CHECKPOINTS_FOLDER, MANIFEST_BACKUP_FILE, find_saved_run, read_saved_run

pytestmark = pytest.mark.filterwarnings("ignore::adagoal.core.errors.FolderWarning")
NEWEST, OLDER = f"{CHECKPOINTS_FOLDER}/checkpoint-000004.npz", f"{CHECKPOINTS_FOLDER}/checkpoint-000003.npz"
Change = Callable[[dict[str, Any]], Any]


@pytest.fixture(autouse=True)
def skip_file_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip syncing to disk, which these tests do not need."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def cached(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with cached results."""
    found: dict[str, Any] = {}

    def answer(*arguments: Any) -> Any:
        asked = repr(arguments)
        if asked not in found:
            found[asked] = function(*arguments)
        return found[asked]

    return answer


SURVEY, SHAPES = cached(inspect_env), cached(learner.learner_state_shapes)


@pytest.fixture(autouse=True)
def inspect_env_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inspect the environment once, because all tests use the same one."""
    monkeypatch.setattr("adagoal.deep.training.inspect_env", SURVEY)
    monkeypatch.setattr(learner, "learner_state_shapes", SHAPES)


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def is_one_line_with_name(error: InputError, folder: Path) -> None:
    """Whether the message is one line that names the folder or a file in it."""
    assert str(folder) in str(error)
    assert "\n" not in str(error)


def read_for_report(folder: Path) -> tuple[Any, Any]:
    """Return what a report reads."""

    def found(saved: Any) -> tuple[Any, Any]:
        about = kept.read_training_record(saved)
        return about, kept.read_goal_arrays(saved, about)

    return read_saved_run(folder, found)


def digest(folder: Path, reader: str) -> Any:
    """Return what a reader gets from a folder, in a comparable form."""
    if reader == "policy":
        return {name: array.tobytes() for name, array in load_policy(folder).actor.to_arrays().items()}
    if reader == "report":
        about, goals = read_for_report(folder)
        return about.data, {name: array.tobytes() for name, array in goals.items()}
    arrays, facts = restored(folder).state()
    return facts, {name: array.tobytes() for name, array in arrays.items()}


def outcome(folder: Path, reader: str, genuine: list[Any]) -> str:
    """Return how a reader handles a damaged folder: an error with its name, or one of the genuine contents."""
    try:
        with damaged_folders.within(20):
            found = digest(folder, reader)
    except InputError as error:
        is_one_line_with_name(error, folder)
        return "refused"
    assert found in genuine, "altered content was accepted"
    return "accepted" if found == genuine[0] else "fell back"


def try_damages(
    template: Path, tmp_path: Path, seed: int, flips: int, resumed_every: int, share: int = 1
) -> dict[str, int]:
    """Try every ``share``-th damage with every reader; the slow ``resume`` only for damaged checkpoints."""
    genuine = {reader: [digest(template, reader)] for reader in ("policy", "report", "resume")}
    older = Path(shutil.copytree(template, tmp_path / "older"))
    damaged_folders.flip(older / NEWEST, 800)
    genuine["resume"].append(digest(older, "resume"))
    found: dict[str, int] = {}
    for number, (label, damage) in enumerate(
        itertools.islice(damaged_folders.cases(template, seed, flips), 0, None, share)
    ):
        folder = tmp_path / "damaged"
        shutil.copytree(template, folder)
        damage(folder)
        readers = ["policy", "report"]
        if number % resumed_every == 0 or label.startswith((CHECKPOINTS_FOLDER, "manifest")):
            readers.append("resume")
        for reader in readers:
            try:
                verdict = outcome(folder, reader, genuine[reader])
            except BaseException as error:
                raise AssertionError(f"{label}, {reader}: {type(error).__name__}: {error}") from error
            found[verdict] = found.get(verdict, 0) + 1
        shutil.rmtree(folder)
    assert not damaged_folders.EVIL.exists()
    return found


def test_no_damaged_training_folder_is_accepted(finished: Path, tmp_path: Path) -> None:
    found = try_damages(finished, tmp_path, seed=0, flips=4, resumed_every=1000, share=3)
    assert sum(found.values()) > 130
    assert found["refused"] > 33
    assert found["fell back"] > 6


@pytest.mark.slow
def test_every_bit_flip_is_detected(finished: Path, tmp_path: Path) -> None:
    found = try_damages(finished, tmp_path, seed=1, flips=400, resumed_every=10)
    assert sum(found.values()) > 5000


def test_damage_to_unneeded_files_is_ignored(run: Path) -> None:
    genuine = [digest(run, "resume")]
    for name in (MANIFEST_BACKUP_FILE, OLDER, "log.csv"):
        damaged_folders.flip(run / name, 100)
    assert outcome(run, "resume", genuine) == "accepted"


def test_older_checkpoint_is_used_with_a_warning_and_gives_the_same_training(run: Path, finished: Path) -> None:
    damaged_folders.flip(run / NEWEST, 999)
    said = r"checkpoint-000004.npz: altered or damaged .*; the checkpoint before it is used"
    with pytest.warns(FolderWarning, match=said):
        again = resume(run, workers=1)
    assert again.status == "done"
    assert equal(run, finished)


# --- forged: the manifest altered with the file ---


def put(name: str, value: Any) -> Change:
    return lambda data: data.__setitem__(name, value)


def within(*path: Any, value: Any) -> Change:
    """Set an entry deep in a JSON file."""

    def change(data: Any) -> None:
        for part in path[:-1]:
            data = data[part]
        data[path[-1]] = value

    return change


def facts(change: Change) -> Change:
    """Change the facts beside the arrays."""

    def altered(arrays: dict[str, Any]) -> None:
        data = json.loads(arrays["__facts__"].tobytes())
        change(data)
        arrays["__facts__"] = np.frombuffer(json.dumps(data).encode(), np.uint8)

    return altered


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (put("status", "done!"), "status breaks the rule enum"),
        (put("status", "stopped"), "status breaks the rule enum"),
        (put("steps", -5), "steps breaks the rule minimum"),
        (put("steps", 3), "the steps of a curve do not rise"),
        (put("kind", "exploration"), "kind breaks the rule enum"),
        (put("format", 3), "format breaks the rule enum"),
        (put("method", "ppo"), "env or method is not that of the settings"),
        (put("extra", 1), "unknown entry 'extra'"),
        (put("runs", []), "runs breaks the rule minItems"),
        (within("config", "hidden", value=[]), "config.hidden breaks the rule minItems"),
        (within("config", "hidden", value=[10**9]), "config.hidden.0. breaks the rule maximum"),
        (within("config", "steps", value=1e3), "config.steps must be integer"),
        (within("config", "algorithm", value="os"), "config.algorithm breaks the rule enum"),
        (within("config", "seed", value=0), "config has the unknown entry 'seed'"),
        (within("runs", 0, "goal_rule", value="nonsense"), "goal_rule: unknown rule"),
        (within("runs", 0, "radius", value=True), "radius must be number"),
        (within("runs", 0, "curve", value=[]), "curve breaks the rule minItems"),
        (within("runs", 0, "curve", 0, "success", value=1.5), "success breaks the rule maximum"),
        (within("runs", 0, "curve", 0, "success", value=-0.1), "success breaks the rule minimum"),
        (within("runs", 0, "curve", 1, "steps", value=0), "the steps of a curve do not rise"),
        (within("runs", 0, "curve", 0, "error", value="much"), "error must be number"),
        (lambda data: data["config"].pop("gamma"), "config has no entry 'gamma'"),
    ],
)
def test_forged_result_is_refused(run: Path, change: Change, reason: str) -> None:
    damaged_folders.forged_json(run, "result.json", change)
    for reader in (load_policy, report.write_training_report, evaluate):
        with pytest.raises(InputError, match=rf"result\.json: damaged or not readable \(.*{reason}"):
            reader(run)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (put("0.weight0", np.zeros((7, 4), np.float32)), "do not fit its observations and goals"),
        (put("0.weight0", np.zeros((6, 4))), "holds float64, which is of the wrong type"),
        (put("0.weight1", np.zeros((5, 2), np.float32)), "has the shape"),
        (put("0.bias0", np.full(4, np.nan, np.float32)), "holds NaN"),
        (put("0.bias1", np.full(2, np.inf, np.float32)), "holds an infinity"),
        (put("0.bias1", np.full(2, 1e30, np.float32)), "more than"),
        (put("0.goal_std", np.zeros(2, np.float32)), "less than"),
        (put("0.clip", np.array(-5.0)), "less than"),
        (put("0.clip", np.array([5.0])), "axes"),
        (put("1.weight0", np.zeros((6, 4), np.float32)), "'1.weight0' does not belong there"),
        (lambda data: data.pop("0.bias0"), "'0.bias0' is missing"),
        (lambda data: data.pop("__facts__"), "must be object"),
        (facts(put("runs", 2)), "not of the training"),
        (facts(put("env", "FetchReach-v4")), "not of the training"),
    ],
)
def test_forged_policy_is_refused(run: Path, change: Change, reason: str) -> None:
    damaged_folders.forged_arrays(run, "policy.npz", change)
    for reader in (load_policy, evaluate):
        with pytest.raises(InputError, match=rf"policy\.npz: damaged or not readable \(.*{reason}"):
            reader(run)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (put("chosen", np.zeros((4, 2, 2, 2))), "has the shape"),
        (put("chosen", np.zeros((3, 1, 2, 2))), "not one chosen goal per episode"),
        (put("chosen", np.full((4, 1, 2, 2), np.nan)), "holds NaN"),
        (put("chosen", np.full((4, 1, 2, 2), 1e300)), "more than"),
        (put("D", np.zeros((1, 1, 1))), "do not have one grid per run"),
        (put("E", np.full((1, 41, 41), -1.0)), "less than"),
        (put("train_box_0", np.array([[1.0, 1.0], [0.0, 0.0]])), "ends before it begins"),
        (put("table", np.zeros((3, 2))), "has the shape"),
        (lambda data: data.pop("low"), "the maps are incomplete"),
    ],
)
def test_forged_goals_are_refused(run: Path, change: Change, reason: str) -> None:
    damaged_folders.forged_arrays(run, "goals.npz", change)
    with pytest.raises(InputError, match=rf"goals\.npz: damaged or not readable \(.*{reason}"):
        report.write_training_report(run)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (put("maps", np.zeros((4, 1, 2, 21, 20), np.float32)), "has the shape"),
        (put("maps", np.full((4, 1, 2, 21, 21), np.nan, np.float32)), "holds NaN"),
        (put("map_cycles", np.array([0, 1, 1, 3])), "does not rise"),
        (put("map_cycles", np.array([0, 1, 2, 4])), "not below 4"),
        (put("tests", np.zeros((6, 1, 2, 2), np.float32)), "more tests than were made"),
        (put("tests", np.zeros((3, 1, 0, 2), np.float32)), "or none"),
        (put("maps", np.zeros((4, 1, 2, 1, 1), np.float32)), "the maps over time are empty"),
        (lambda data: data.pop("map_cycles"), "the maps over time are incomplete"),
        (put("surprise", np.zeros(1)), "does not belong there"),
    ],
)
def test_forged_history_is_refused(run: Path, change: Change, reason: str) -> None:
    damaged_folders.forged_arrays(run, "past.npz", change)
    with pytest.raises(InputError, match=rf"past\.npz: damaged or not readable \(.*{reason}"):
        report.write_training_report(run)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (put("history.tests", np.zeros((3, 1, 2, 2), np.float32)), "more tests than were made"),
        (put("history.maps", np.full((4, 1, 2, 21, 21), -1, np.float32)), "less than 0"),
        (lambda data: data.pop("history.maps"), "the maps over time are incomplete"),
        (put("learnt.replay.length", np.full((1, 6), 6, np.int32)), "'learnt.replay.length' holds 6, more than 5"),
        (put("learnt.replay.length", np.zeros((1, 6), np.int32)), "'learnt.replay.length' holds 0, less than 1"),
        (put("learnt.replay.added", np.array([10**6], np.int32)), "does not hold as many episodes as were played"),
        (put("learnt.replay.goal", np.zeros((1, 7, 2), np.float32)), "has the shape"),
        (put("learnt.nets.actor.online[0][0]", np.full((1, 6, 4), np.nan, np.float32)), "holds NaN"),
        (put("learnt.nets.critic.adam[0].nu[0][1]", np.full((1, 4), -1, np.float32)), "less than 0"),
        (put("learnt.normalisers.observations.squares", np.full((1, 4), -1, np.float32)), "less than 0"),
        (put("learnt.key", np.zeros((1, 3), np.uint32)), "has the shape"),
        (put("pending.length", np.full((1, 2), -1, np.int32)), "less than 1"),
        (put("history.goals", np.zeros((4, 1, 2, 3))), "has the shape"),
        (put("surprise", np.zeros(1)), "'surprise' does not belong there"),
        (lambda data: data.pop("pending.goal"), "the episodes that wait are incomplete"),
        (lambda data: data.pop("learnt.key"), "'learnt.key' is missing"),
        (facts(put("cycle", 10**9)), "has the shape"),
        (facts(put("cycle", -1)), "cycle breaks the rule minimum"),
        (facts(put("configs", [])), "configs breaks the rule minItems"),
        (facts(within("configs", 0, "hidden", value=[5])), "has the shape"),
        (facts(within("configs", 0, "hidden", value=[8192] * 30)), "is missing|has the shape"),
        (facts(within("configs", 0, "buffer", value=1)), "buffer: must be at least .* got 1"),
        (facts(within("configs", 0, "seed", value=3)), "row 0 of the log"),
        (facts(within("configs", 0, "test_goals", value="nowhere")), "test_goals: must be env or"),
        (facts(within("history", "rows", 1, "success", value=0.5)), "row 1 of the log"),
        (facts(within("history", "rows", 1, "cycle", value=0)), "row 1 of the log"),
        (facts(within("history", "rows", 0, "success", value=2)), "success breaks the rule maximum"),
        (facts(within("history", "wall_seconds", value=-1)), "wall_seconds breaks the rule minimum"),
        (facts(within("history", "rows", value=[])), "one row per run and cycle"),
    ],
)
def test_forged_checkpoint_is_refused_before_anything_is_built(run: Path, change: Change, reason: str) -> None:
    damaged_folders.forged_arrays(run, NEWEST, change)
    with (
        damaged_folders.within(20),
        pytest.raises(InputError, match=rf"checkpoint-000004\.npz: damaged or not readable \(.*({reason})"),
    ):
        resume(run, workers=1)


def test_replay_buffer_larger_than_memory_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged_folders.forged_arrays(run, NEWEST, facts(within("configs", 0, "buffer", value=100_000_000)))
    monkeypatch.setattr("adagoal.core.file_formats.total_memory_bytes", lambda: 10**9)
    with pytest.raises(
        InputError, match=r"^steps: a replay buffer of 100,000,000 steps takes 4\.0 GB, more than the 1"
    ):
        resume(run, budget=10**9)


@pytest.mark.parametrize("label", damaged_folders.ARCHIVES)
def test_forged_archives_are_refused_before_they_are_unpacked(run: Path, label: str) -> None:
    for name, reader in (("policy.npz", load_policy), ("goals.npz", report.write_training_report), (NEWEST, resume)):
        damaged_folders.forged(run, name, damaged_folders.ARCHIVES[label]())
        with (
            damaged_folders.within(20),
            pytest.raises(InputError, match=rf"{Path(name).name}: damaged or not readable"),
        ):
            reader(run)
    assert not damaged_folders.EVIL.exists()


@pytest.mark.parametrize("name", ["evaluate", "resume"])
def test_commands_give_one_line_error(run: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    damaged_folders.flip(run / "result.json", 99)
    damaged_folders.flip(run / OLDER, 99)
    damaged_folders.flip(run / NEWEST, 99)
    assert command([name, str(run)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "altered or damaged (its content does not match the manifest)" in said[0]


# --- code named only by the folder ---


def rename(run: Path, **settings: str) -> None:
    """Let every file of a folder name another environment or goal rule."""
    for name in (NEWEST, OLDER):
        damaged_folders.forged_arrays(run, name, facts(lambda data: data["configs"][0].update(settings)))
    if "env" in settings:
        damaged_folders.forged_arrays(run, "policy.npz", facts(lambda data: data.update(settings)))
        damaged_folders.forged_json(
            run, "result.json", lambda data: (data.update(settings), data["config"].update(settings))
        )
    else:
        damaged_folders.forged_json(run, "result.json", lambda data: data["runs"][0].update(settings))


@pytest.mark.parametrize("env", ["evil_module:PointMass-v0", "object:PointMass-v0"])
def test_module_named_only_by_the_folder_is_not_imported(
    run: Path, env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "imported"
    for name in ("evil_module", "object"):
        (tmp_path / f"{name}.py").write_text(
            f"import pathlib, adagoal.deep.pointmass\npathlib.Path({str(mark)!r}).touch()"
        )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    rename(run, env=env)
    load_policy(run)
    report.write_training_report(run)
    for reader in (evaluate, resume):
        with pytest.raises(InputError, match=r"^env: the run (in \S+ )?is on '"):
            reader(run)
        with pytest.raises(InputError, match=r"^env: the run in \S+ is on .*, not on 'point-mass'"):
            reader(run, env="point-mass")
    assert not mark.exists()
    if env.startswith("evil"):
        assert evaluate(run, episodes=1, env=env).goals.shape == (1, 2)
        assert mark.exists()
        assert evaluate(run, episodes=1, trust=True).goals.shape == (1, 2)


def test_rule_file_named_only_by_the_folder_is_not_run(run: Path, tmp_path: Path) -> None:
    mark, evil, own = tmp_path / "ran", tmp_path / "evil.py", tmp_path / "own.py"
    evil.write_text(
        f"import pathlib\npathlib.Path({str(mark)!r}).touch()\ndef f(known):\n    return known.eligible.astype(float)\n"
    )
    own.write_text("def f(known):\n    return known.eligible.astype(float)\n")
    rename(run, goal_rule=f"{evil}:f")
    load_policy(run)
    report.write_training_report(run)
    evaluate(run, episodes=1)
    with pytest.raises(InputError, match=r"^goal_rule: the run has the rule .*evil\.py:f', a file to run"):
        resume(run, workers=1)
    assert restored(run, goal_rule=f"{own}:f").configs[0].goal_rule == f"{own}:f"
    assert not mark.exists()
    restored(run, trust=True)
    assert mark.exists()


def test_built_in_rule_cannot_be_replaced_on_resume(run: Path) -> None:
    with pytest.raises(InputError, match=r"^goal_rule: the run has the rule 'adagoal-proportional', not 'unigoal'"):
        resume(run, goal_rule="unigoal")
    assert restored(run, goal_rule="adagoal-proportional").configs == [CONFIG]


def test_folder_of_an_exploration_gives_one_line_error(run: Path) -> None:
    found = find_saved_run(run)
    assert found is not None
    assert found.kind == "training"
    for reader in (load_policy, evaluate, report.write_training_report):
        with pytest.raises(InputError, match="no adagoal run in"):
            reader(run / "checkpoints")


@pytest.mark.slow
def test_commands_in_a_hostile_folder_do_not_use_its_files(finished: Path, tmp_path: Path) -> None:
    """This includes workers of a certification, the process that renders the video, and glfw, which MuJoCo imports."""
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    marker = damaged_folders.make_hostile(folder)
    certify = ["certify", ".", "--radius", "3", "--rollouts", "200", "--workers", "1"]
    for arguments, code in ((["report", "."], 0), (certify, 3), (["check", "FetchReach-v4"], 0)):
        done = damaged_folders.command_in(folder, *arguments)
        assert done.returncode == code, done.stderr
        assert not marker.exists(), marker.read_text()
    assert (folder / "strip.png").is_file()
