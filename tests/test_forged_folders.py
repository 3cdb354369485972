"""Run folders: what must not be lost, accepted or executed."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adagoal
import damaged_folders
from adagoal.cli.main import run_command_line as command
from adagoal.core.errors import Status
from adagoal.core.file_io import folder_lock
from adagoal.envs import observation_keys, toy_models
from adagoal.report import write_report
from adagoal.runs import run_folder as folders
from adagoal.runs.job import JobMonitor
from adagoal.runs.load_result import RESULT_SCHEMA
from adagoal.runs.run_folder import CHECKPOINTS_FOLDER, MANIFEST_FILE, find_saved_run, staged_file_path
from model_env import ModelEnv, PairEnv

CHAIN = {"n_states": 5, "slip": 0.1}
SETTINGS: dict[str, dict[str, Any]] = {
    "certified": {"env": "chain", "radius": 6, "env_args": CHAIN},
    "auto": {"env": "chain", "radius": "auto", "env_args": CHAIN, "budget": 1_000},
    "ucbvi": {"env": "chain", "radius": 4, "env_args": CHAIN, "method": "ucbvi", "budget": 300,
              "method_args": {"bonus": "simplified", "horizon": 8}},
    "bayes": {"env": "chain", "radius": 6, "env_args": CHAIN, "method": "bayes", "budget": 300},
    "ucbexplore": {"env": "chain", "radius": 4, "env_args": CHAIN, "method": "ucbexplore", "budget": 300},
    "sets": {"env": "chain", "radius": 4, "env_args": CHAIN, "method": "ucbexplore", "budget": 2,
             "goals": {"far": [3, 4], "near": [0, 1]}},
    "valae": {"env": "chain", "radius": 4, "env_args": CHAIN, "method": "valae", "budget": 600,
              "method_args": {"constants": "scaled=0.00001"}},
    "lae": {"env": "chain", "radius": 4, "env_args": CHAIN, "method": "lae", "budget": 600,
            "method_args": {"constants": "scaled=0.001"}},
    "intervals": {"env": "chain", "radius": 6, "env_args": CHAIN, "method": "intervals", "budget": 300},
    "within": {"env": "chain", "within": 6, "probability": 0.5, "epsilon": 0.1, "env_args": CHAIN, "budget": 300},
    "likelihood": {"env": "mixture-windy", "radius": 3, "method": "likelihood", "budget": 300},
    "vtr": {"env": "mixture-windy", "radius": 2, "method": "vtr", "method_args": {"horizon": 4}, "budget": 100},
    "pairs": {"env": PairEnv(toy_models.chain_model(**CHAIN), (0, 2)), "radius": 4, "budget": 300},
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One run of each kind; the one of the certified method has a report."""
    place = tmp_path_factory.mktemp("runs")
    results = {name: adagoal.explore(**arguments, out=place / name) for name, arguments in SETTINGS.items()}
    write_report(results["certified"], place / "certified")
    return {name: place / name for name in SETTINGS}


def content(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in damaged_folders.run_files(folder)}


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    return error


# --- existing runs are kept ---


@pytest.mark.parametrize(
    "wrong",
    [
        ["--budget", "0"],
        ["--radius", "-5", "--overwrite"],
        ["--goal-rule", "none", "--overwrite"],
        ["--env-arg", "slip=2", "--overwrite"],
        ["--method-arg", "x=1", "--overwrite"],
        ["--goals", "99", "--overwrite"],
    ],
)
def test_bad_input_does_not_change_a_finished_run(
    wrong: list[str], runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(runs["certified"])
    assert command(["explore", "chain", "--radius", "6", *wrong, "--out", str(runs["certified"]), "--quiet"]) == 2
    error_line(capsys)
    assert content(runs["certified"]) == before


def test_folder_of_a_live_run_is_not_changed(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = runs["certified"]
    before = content(folder)
    with folder_lock(folder):
        for arguments in (["explore", "chain", "--radius", "3", "--overwrite", "--out", str(folder)],
                          ["resume", str(folder)]):  # fmt: skip
            assert command([*arguments, "--quiet"]) == 2
            assert "another run is writing there" in error_line(capsys)
    assert content(folder) == before


def test_overwrite_replaces_the_old_run_at_the_first_checkpoint(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(runs["auto"], tmp_path / "run")
    before = content(folder)
    with monkeypatch.context() as patch:
        patch.setattr(JobMonitor, "save_checkpoint", lambda *_, **__: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            adagoal.explore("chain", 3, out=folder, overwrite=True)
    assert content(folder) == before
    seen: list[list[str]] = []
    adagoal.explore(
        "chain", 3, out=folder, overwrite=True, observe=lambda run: seen.append(damaged_folders.run_files(folder))
    )
    assert seen[0] == [f"{CHECKPOINTS_FOLDER}/checkpoint-000003.npz", "manifest.backup.json", MANIFEST_FILE]
    assert adagoal.load(folder).radius == 3


def test_python_does_not_overwrite_another_run(runs: dict[str, Path]) -> None:
    with pytest.raises(adagoal.InputError, match=r"out: .* holds a run with another env_args, radius"):
        adagoal.explore("chain", 3, out=runs["certified"])
    with pytest.raises(adagoal.InputError, match=r"out: .* holds this run, unfinished; resume it with adagoal resume"):
        adagoal.explore(**SETTINGS["auto"], out=runs["auto"])
    with pytest.raises(adagoal.InputError, match="holds a run with another"):
        adagoal.explore("chain", 3).save(runs["certified"])
    result = adagoal.load(runs["certified"])
    assert result.save(runs["certified"]) == runs["certified"]
    assert adagoal.resume(runs["certified"]).status is Status.CERTIFIED, "its checkpoint is still there"


def test_ctrl_c_during_the_start_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(JobMonitor, "save_checkpoint", interrupt)
    assert command(["explore", "chain", "--radius", "3", "--quiet", "--out", str(tmp_path / "a" / "b")]) == 130
    assert not (tmp_path / "a").exists()


def test_hangup_signal_ends_the_run(tmp_path: Path) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the parent process may ignore this signal

    def hang_up(run: Any) -> None:
        os.kill(os.getpid(), signal.SIGHUP)

    result = adagoal.explore("grid", 8, epsilon=0.1, out=tmp_path, observe=hang_up)
    assert result.status is Status.INTERRUPTED
    assert adagoal.load(tmp_path).steps == result.steps > 0


def test_full_disk_is_reported_and_old_files_are_kept(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(runs["certified"], tmp_path / "run")
    before, result = content(folder), adagoal.load(folder)
    (folder / "report.htmlabcd1234.part").write_bytes(b"half a page")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(folders._HashingWriter, "write", full)
        with pytest.raises(adagoal.InputError, match=r"report-\d+.html: cannot be written \(No space left on device\)"):
            write_report(result, folder)
    assert content(folder) == before, "the page is the old one, and the half file is gone"
    assert (write_report(result, folder)).read_text() == before["report.html"].decode().replace(
        str(runs["certified"]), str(folder)
    )


def test_closed_pipe_is_not_an_error(runs: dict[str, Path]) -> None:
    for arguments in (["envs"], ["audit", str(runs["certified"])]):
        child = subprocess.Popen([sys.executable, "-m", "adagoal", *arguments],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
        assert child.stdout is not None
        child.stdout.close()
        _, error = child.communicate()
        assert (child.returncode, error) == (0, b"")


# --- nothing altered is accepted ---


def test_bit_flips_in_a_result_are_detected(runs: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(runs["certified"], tmp_path / "run")
    genuine = (folder / "result.json").read_bytes()
    for bit in np.random.default_rng(0).choice(8 * len(genuine), 600, replace=False):
        damaged_folders.flip(folder / "result.json", int(bit))
        with pytest.raises(adagoal.InputError, match="altered or damaged"):
            adagoal.load(folder)
        (folder / "result.json").write_bytes(genuine)


@pytest.mark.parametrize("name", ["result.json", "policies.npz", "checkpoint"])
@pytest.mark.parametrize(
    "way",
    [
        damaged_folders.pipe,
        damaged_folders.device,
        damaged_folders.sparse,
        damaged_folders.folder_instead,
        damaged_folders.dangling,
    ],
)
def test_special_files_do_not_hang_readers(name: str, way: Any, runs: dict[str, Path], tmp_path: Path) -> None:
    for source in (runs["certified"], runs["auto"]):
        folder = shutil.copytree(source, tmp_path / source.name)
        files = [folder / name] if name != "checkpoint" else [*folder.glob("**/checkpoint*.npz")]
        for file in files:
            way(file)
        with damaged_folders.within(20), pytest.raises(adagoal.InputError):
            adagoal.resume(folder) if name == "checkpoint" else adagoal.load(folder)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"steps": -5}, "steps breaks the rule minimum 0"),
        ({"status": "certified!"}, "status breaks the rule enum"),
        ({"status": "stopped"}, "a status that its method cannot give"),
        ({"status": "void"}, "reasons to be void"),
        ({"radius": 0.5}, "radius breaks the rule minimum 1"),
        ({"certified_radius": 7.0}, "another certified radius"),
        ({"open_goals": [77]}, "an open goal that is not in the result"),
        ({"open_goals": [1]}, "a certificate with open goals"),
        ({"goals": [{"goal": 1, "lower": 5.0, "upper": 1.0, "error": 0.0}]}, "a lower bound above the upper one"),
        ({"goals": [{"goal": 99, "lower": 0.0, "upper": 1.0, "error": 0.0}]}, "a goal that is no state"),
        ({"goal_names": ["one", "two"]}, "goals with names and no states"),
        ({"goals": [{"goal": 1, "lower": 0.0, "upper": 1.0, "error": 0.0}] * 2}, "a goal is there twice"),
        ({"episodes": 0}, "more episodes in its history"),
        ({"reset_action": 0}, "reset_action breaks the rule minimum 1"),
        ({"wall_seconds": "long"}, "wall_seconds must be number"),
        ({"format": 3}, "format breaks the rule enum"),
        ({"kind": "training"}, "kind breaks the rule enum"),
    ],
)
def test_forged_result_gives_one_line_error(
    change: dict[str, Any], reason: str, runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(runs["certified"], tmp_path / "run")
    damaged_folders.forged_json(folder, "result.json", lambda data: data.update(change))
    for name in ("audit", "report", "play"):
        assert command([name, str(folder)]) == 2
        error = error_line(capsys)
        assert "result.json" in error
        assert reason in error


def fact(*path: Any, value: Any) -> Any:
    """Change one of the facts stored beside the arrays."""

    def change(arrays: dict[str, Any]) -> None:
        facts = inner = json.loads(arrays["__facts__"].tobytes())
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = value
        arrays["__facts__"] = np.frombuffer(json.dumps(facts).encode(), np.uint8)

    return change


def at(name: str, value: Any) -> Any:
    """Change the first entry of an array."""
    return lambda arrays: arrays[name].flat.__setitem__(0, value)


@pytest.mark.parametrize(
    ("run", "change", "reason"),
    [
        ("certified", at("counts.successor", 99), "'successor' holds 99, not below 5"),
        ("likelihood", at("counts.successor", -7), "'successor' holds -7"),
        ("certified", at("counts.support", 99), "'support' holds 99"),
        ("certified", at("counts.count", 10**6), "an n that is not the sum"),
        ("certified", at("counts.recent", 10**6), "more recent transitions"),
        ("certified", at("estimates.optimistic", 77), "'optimistic' holds 77, more than 2"),
        ("certified", at("estimates.column", 4), "do not belong together"),
        ("certified", at("estimates.V", np.nan), "'V' holds NaN"),
        ("certified", at("estimates.quiet", -1), "'quiet' holds -1"),
        ("certified", at("estimates.unseen", 1.5), "'unseen' holds 1.5"),
        ("certified", fact("estimates", "schedule", "tokens", value=[1.0]), "tokens"),
        ("auto", at("estimates.goal_state", 3), "do not belong together"),
        ("ucbvi", at("estimates.table", 9), "'table' holds 9"),
        ("bayes", at("estimates.atom", 999), "'atom' holds 999"),
        ("bayes", at("estimates._places", 5), "do not fit the counts"),
        ("ucbexplore", at("estimates.policy_table", -3), "'policy_table' holds -3"),
        ("sets", at("estimates.added_sets", True), "a set was added none of whose states was seen"),
        ("sets", lambda arrays: arrays.pop("estimates.added_sets"), "'added_sets' is missing"),
        ("sets", fact("estimates", "trial_target", value=10**6), "neither a state nor a set"),
        ("sets", fact("goal_names", value=["far", "near", None]), "goals of the run are values of a function"),
        ("sets", fact("goal_names", value=["far", None, "near"]), "goals of the run are values of a function"),
        ("sets", fact("goal_names", value=["far", "near", 3]), "goal_names"),
        ("valae", at("estimates.final_values", np.nan), "'final_values' holds NaN"),
        ("valae", fact("estimates", "phase", value=3), "there is no phase 3"),
        ("lae", at("estimates.trial_policy", 9), "'trial_policy' holds 9"),
        ("lae", at("estimates.dropped_samples", 10**6), "the samples left out are not samples that were counted"),
        ("lae", at("estimates.next_layer", True), "both known and of the next layer"),
        ("lae", fact("estimates", "trial_target", value=99), "neither a state nor a set"),
        ("intervals", at("estimates.sampled_counts", -1), "'sampled_counts' holds -1"),
        ("intervals", at("estimates.sampled_counts", 10**6), "the samples do not fit the counts"),
        ("within", at("estimates.explore", 9), "'explore' holds 9"),
        ("within", at("estimates.column", 4), "do not belong together"),
        ("within", at("estimates.missed", 1.5), "'missed' holds 1.5"),
        ("within", at("estimates.prior_counts", 10**6), "the restarts do not fit the counts"),
        ("within", fact("setting", "within", value=7), "within"),
        ("within", fact("setting", "probability", value=0), "probability"),
        ("likelihood", at("estimates.best", 9), "'best' holds 9"),
        ("likelihood", at("estimates.total", 10**9), "more transitions were taken in"),
        ("likelihood", fact("estimates", "_last_column", value=10**6), "there is no goal 1000000"),
        ("vtr", at("estimates.Sigma", -1.0), "not positive definite"),
        ("pairs", at("world.row_of_pair", 99), "'row_of_pair' holds 99"),
        ("pairs", at("world.pair", 10**6), "not those that were met"),
        ("pairs", fact("world", "states", value=["((("]), "one number and one label each"),
        ("pairs", fact("world", "actions", value=[99]), "no such action"),
        ("pairs", fact("world", "generator", value={"bit_generator": "MT19937"}), "random generator"),
        ("certified", fact("world", "place", value=[99, -1, 0]), "does not exist in this environment"),
        ("certified", fact("world", "place", value=[0, 10**6, 0]), "does not exist in this environment"),
        ("certified", fact("rng", "state", "state", value=-1), "random generator"),
        ("certified", fact("stage", value=10**9), "stage breaks the rule maximum"),
        ("certified", fact("stage", value=2), "certified.json"),
        ("auto", fact("stage", value=60_000), "the result of the last finished stage is not of this run"),
        ("certified", fact("steps", value=float("nan")), "holds NaN"),
        ("certified", fact("steps", value=10**12), "more steps"),
        ("certified", fact("setting", "method", value="magic"), "unknown method 'magic'"),
        ("certified", fact("setting", "env_args", value={"n_states": 50}), "it has 5 states, the environment 50"),
        ("certified", at("attempts.total", -1.0), "'attempts.total' holds -1.0"),
        ("certified", at("trace", np.inf), "infinite numbers"),
        ("certified", at("episode_goals", 99), "'episode_goals' holds 99"),
        ("certified", at("past_lower", np.nan), "'past_lower' holds NaN"),
        ("certified", at("past_goals", 99), "'past_goals' does not rise"),
        ("certified", at("past_policy", 99), "'past_policy' holds 99"),
        ("certified", at("past_upper", np.inf), "the policies of the past are not those of its upper bounds"),
        ("certified", fact("setting", "goal_sets", value={}), "goals"),
        ("certified", fact("setting", "goal_sets", value={"file": 5}), "goals"),
        ("certified", fact("setting", "goal_sets", value={"sets": {"here": "all"}}), "goals"),
        ("certified", at("past_steps", 10**12), "'past_steps' does not rise"),
    ],
)
def test_forged_checkpoint_gives_one_line_error(
    run: str, change: Any, reason: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    """No forged value reaches compiled code."""
    folder = shutil.copytree(runs[run], tmp_path / "run")
    saved = find_saved_run(folder)
    assert saved is not None
    assert saved.manifest is not None
    file = staged_file_path(folder, "checkpoint.npz", saved.manifest.checkpoints[0]["checkpoint.npz"].generation)
    damaged_folders.forged_arrays(folder, str(file.relative_to(folder)), change)
    env = SETTINGS[run]["env"] if run == "pairs" else None
    for work in (lambda: adagoal.resume(folder, env=env), lambda: adagoal.play(folder, episodes=1, env=env)):
        with damaged_folders.within(20), pytest.raises(adagoal.InputError) as caught:
            work()
        assert reason in str(caught.value)
        assert "\n" not in str(caught.value)


def test_forged_policy_gives_one_line_error(runs: dict[str, Path], tmp_path: Path) -> None:
    for name, value in (("policy", 99), ("policy", -1), ("policy_goals", -1), ("visits", -1), ("trace", np.nan),
                        ("past_stand", 9), ("past_policy", 99), ("past_upper", -1.0), ("moves_to", 99),
                        ("moves_pair", 99), ("moves_count", 0)):  # fmt: skip
        folder = shutil.copytree(runs["certified"], tmp_path / f"{name}{value}")
        damaged_folders.forged_arrays(folder, "policies.npz", at(name, value))
        with pytest.raises(adagoal.InputError, match=f"policies.npz: damaged or not readable .entry '{name}' holds"):
            adagoal.play(folder, episodes=1)
    folder = shutil.copytree(runs["certified"], tmp_path / "past")
    damaged_folders.forged_arrays(folder, "policies.npz", at("past_upper", np.inf))
    with pytest.raises(adagoal.InputError, match="a past with policies of other bounds"):
        adagoal.load(folder)


@pytest.mark.parametrize(
    "layout",
    [
        {"shape": [10**5, 10**5], "cells": [], "walls": [], "marks": {}},
        {"shape": [1, 5], "cells": [[0, 9]] * 5, "walls": [], "marks": {}},
        {"shape": [1, 5], "cells": [[0, 1]], "walls": [], "marks": {}},
        {"shape": [1, 5], "cells": [[0, 1]] * 5, "walls": [[7, 7]], "marks": {}},
        {"shape": [1, 5], "cells": [[0, 1]] * 5, "walls": [], "marks": {"hole": [[7, 7]]}},
        {"shape": [1, 5], "cells": [[0, 1]] * 5, "walls": [], "marks": {"hole": 3}},
    ],
)
def test_forged_view_gives_one_line_error(layout: Any, runs: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(runs["certified"], tmp_path / "run")
    damaged_folders.forged_json(folder, "view.json", lambda data: data.update(layout=layout))
    with pytest.raises(adagoal.InputError, match=r"view.json: damaged"):
        write_report(adagoal.load(folder), folder)


def forge(seed: int, cases: int) -> str:
    script = Path(__file__).parent / "forge_folders.py"
    done = subprocess.run([sys.executable, str(script), str(seed), str(cases)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_random_forgeries_do_not_crash() -> None:
    assert "0 failures" in forge(2, 20)


@pytest.mark.slow
def test_5000_random_forgeries_do_not_crash() -> None:
    assert "5000 of" in forge(1, 5000)


# --- keys of states ---


@pytest.mark.parametrize("key", [0, -7, "north", b"\x00\xff", (1, (b"a", "b")), ((3, "end"), "end"), ()])
def test_state_keys_survive_json(key: observation_keys.StateKey) -> None:
    assert observation_keys.key_from_json(json.loads(json.dumps(observation_keys.key_to_json(key)))) == key


@pytest.mark.parametrize("data", [1.5, True, None, {"hex": "zz"}, {"hex": 5}, {"hex": "", "more": 1}, [[None]]])
def test_invalid_json_key_raises_value_error(data: Any) -> None:
    with pytest.raises(ValueError):
        observation_keys.key_from_json(data)


# --- generators that cannot be restored ---


class OwnGenerator(ModelEnv):
    """Draws with a generator that adagoal cannot restore."""

    dice = np.random.default_rng(0)

    def step(self, action: Any) -> Any:
        self._np_random, before = self.dice, self._np_random
        try:
            return super().step(action)
        finally:
            self._np_random = before


def test_result_warns_about_an_unsaved_generator(tmp_path: Path) -> None:
    for kind, said in ((OwnGenerator, True), (ModelEnv, False)):
        env = kind(toy_models.chain_model(**CHAIN))
        adagoal.explore(env, 5, budget=300, out=tmp_path / kind.__name__)
        result = adagoal.resume(tmp_path / kind.__name__, budget=600, env=env)
        assert any("without Gymnasium's generator" in line for line in result.warnings) == said


def test_first_episode_gives_no_warning_about_the_generator(tmp_path: Path) -> None:
    """Its checkpoint holds the generator before the first reset, which is in its first state."""
    env = ModelEnv(toy_models.chain_model(n_states=5, slip=0.4))
    adagoal.explore(env, 5, goal_rule="goid", budget=5, out=tmp_path)
    assert not adagoal.resume(tmp_path, budget=100, env=env).warnings


# --- schema of a result ---


def test_documented_schema_equals_the_result_schema(runs: dict[str, Path]) -> None:
    documented = Path(__file__).parents[1] / "docs" / "result.schema.json"
    assert json.loads(documented.read_text()) == json.loads(json.dumps(RESULT_SCHEMA))
    for folder in runs.values():
        data = json.loads((folder / "result.json").read_text())
        assert data.keys() == RESULT_SCHEMA["properties"].keys(), (
            "every entry is documented, and every documented one there"
        )


OWN_MODULE = """
import gymnasium
from gymnasium.envs.toy_text import FrozenLakeEnv
gymnasium.register("Own-v0", FrozenLakeEnv)
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("explore own:Own-v0 --radius 3 --budget 100 --workers 2 --out ../own", 3),
        pytest.param("audit .", 0, marks=pytest.mark.slow),
        pytest.param("report .", 0, marks=pytest.mark.slow),
    ],
)
def test_commands_in_a_hostile_folder_do_not_use_its_files(
    arguments: str, code: int, runs: dict[str, Path], tmp_path: Path
) -> None:
    """Except for a module that the user names."""
    folder = tmp_path / "run"
    shutil.copytree(runs["certified"], folder)
    marker = damaged_folders.make_hostile(folder)
    (folder / "own.py").write_text(OWN_MODULE)
    done = damaged_folders.command_in(folder, *arguments.split())
    assert done.returncode == code, done.stderr
    assert not marker.exists(), marker.read_text()
    assert not (folder / "forged").exists(), "compiled code, where the folder says"


def test_numba_does_not_read_the_current_folder_when_it_compiles(tmp_path: Path) -> None:
    """Numba rereads its configuration before each compilation, and an environment may change the current folder."""
    folder = tmp_path / "run"
    folder.mkdir()
    damaged_folders.make_hostile(folder)
    code = f"""
import os
from adagoal.core import user_code
user_code.ignore_local_files()
import numba, matplotlib
assert os.getcwd() == {os.getcwd()!r}
os.chdir({str(folder)!r})
numba.core.config.reload_config()
assert "forged" not in numba.config.CACHE_DIR
"""
    subprocess.run([sys.executable, "-c", code], check=True)
