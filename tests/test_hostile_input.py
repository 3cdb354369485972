"""Hostile folders, options and environments, through the command line or ``adagoal.load``."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import damaged_folders

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent
TRAINING = (
    *("--hidden", 4, "--updates", 2, "--batch", 8, "--ensemble-updates", 2, "--ensemble-batch", 8, "--candidates", 5),
    *("--members", 2, "--episodes", 2, "--horizon", 5, "--buffer", 100, "--eval-every", 2, "--eval-episodes", 2),
    *("--steps", 40, "--workers", 1),
)
"""Settings of the smallest complete training run."""
TIME_LIMIT = 120
"""Seconds after which a command counts as hanging; this includes process start on a busy machine."""
EVIL = "import pathlib, os\npathlib.Path(os.environ['MARK']).touch()\n"


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]), "COLUMNS": "120", **more}


def adagoal(*arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "adagoal", *map(str, arguments)]
    return subprocess.run(command, env=environment(**more), capture_output=True, text=True, timeout=TIME_LIMIT)


def refused(done: subprocess.CompletedProcess[str]) -> None:
    """Check for exit code 2 and one line of error, and return it."""
    assert "Traceback" not in done.stderr
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def harmless(done: subprocess.CompletedProcess[str]) -> None:
    assert "Traceback" not in done.stderr, done.stderr
    assert 0 <= done.returncode <= 4


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def unfinished_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unfinished run, to be copied."""
    folder = tmp_path_factory.mktemp("unfinished_template") / "run"
    chain = ["chain", "--env-arg", "n_states=5", "--env-arg", "slip=0.1"]
    done = adagoal("explore", *chain, "--radius", "auto", "--budget", 1_000, "--quiet", "--out", folder)
    assert done.returncode == 3, done.stderr
    return folder


@pytest.fixture
def unfinished_run(unfinished_template: Path, tmp_path: Path) -> Path:
    """An unfinished run."""
    return Path(shutil.copytree(unfinished_template, tmp_path / "unfinished_run"))


@pytest.fixture
def unfinished_text_run(tmp_path: Path) -> Path:
    """An unfinished run on an environment whose observations are text."""
    folder = tmp_path / "unfinished_text_run"
    line = ["explore", "hostile_envs:Named-v0", "--radius", 8, "--epsilon", 2, "--budget", 300]
    done = adagoal(*line, "--quiet", "--out", folder)
    assert done.returncode == 3, done.stderr
    return folder


def newest(folder: Path) -> str:
    """Return the path of the last checkpoint."""
    return str(max(folder.glob("checkpoints/checkpoint-*.npz")).relative_to(folder))


def forge_facts(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the facts in the last checkpoint, and the manifest with it."""

    def inside(arrays: dict[str, Any]) -> None:
        facts = json.loads(arrays["__facts__"].tobytes())
        change(facts)
        arrays["__facts__"] = np.frombuffer(json.dumps(facts).encode(), np.uint8)

    damaged_folders.forged_arrays(folder, newest(folder), inside)


# --- existing runs are kept ---


def test_overwrite_respects_the_lock_of_a_live_run(tmp_path: Path) -> None:
    """An exploration with --overwrite does not empty the folder of a live run."""
    folder = tmp_path / "alive"
    long = [sys.executable, "-m", "adagoal", "explore", "two-room", "--radius", "40", "--epsilon", "0.1", "--out"]
    with subprocess.Popen([*long, str(folder)], env=environment(), stdout=subprocess.DEVNULL, stderr=-3) as running:
        try:
            deadline = time.monotonic() + TIME_LIMIT
            while not list(folder.rglob("checkpoint*.npz")) and time.monotonic() < deadline:
                time.sleep(0.2)
            assert list(folder.rglob("checkpoint*.npz"))
            (folder / "report.html").write_text("of the run that is alive")
            refused(adagoal("explore", "chain", "--radius", 6, "--overwrite", "--out", folder))
            assert running.poll() is None
            assert (folder / "report.html").exists()
        finally:
            running.kill()


# --- no code from a folder ---


def test_checkpoint_does_not_run_a_rule_file(unfinished_run: Path, tmp_path: Path) -> None:
    evil, mark = tmp_path / "evil.py", tmp_path / "mark"
    evil.write_text(EVIL + "def f(known):\n    return known.E\n")
    forge_facts(unfinished_run, lambda facts: facts["setting"].update(goal_rule=f"{evil}:f"))
    refused(adagoal("resume", unfinished_run, MARK=str(mark)))
    assert not mark.exists()


@pytest.mark.parametrize("command", ["audit", "report"])
def test_result_does_not_import_a_module(unfinished_run: Path, tmp_path: Path, command: str) -> None:
    mark = tmp_path / "mark"
    (tmp_path / "evilmodule.py").write_text(EVIL)
    damaged_folders.forged_json(unfinished_run, "result.json", lambda data: data.update(env="evilmodule:Id-v0"))
    paths = os.pathsep.join([str(tmp_path), str(TESTS), *sys.path])
    adagoal(command, unfinished_run, MARK=str(mark), PYTHONPATH=paths)
    assert not mark.exists()


# --- arrays are checked before compiled code uses them ---


@pytest.mark.parametrize("name", ["counts.successor", "counts.support"])
@pytest.mark.parametrize("value", [10**6, -(10**6)])
def test_indices_out_of_range_are_refused(unfinished_run: Path, name: str, value: int) -> None:
    def change(arrays: dict[str, Any]) -> None:
        arrays[name] = np.full_like(arrays[name], value)

    damaged_folders.forged_arrays(unfinished_run, newest(unfinished_run), change)
    refused(adagoal("resume", unfinished_run))


@pytest.mark.parametrize("value", [30_000, -30_000])
def test_actions_out_of_range_are_refused(unfinished_run: Path, value: int) -> None:
    def change(arrays: dict[str, Any]) -> None:
        arrays["policy"] = np.full_like(arrays["policy"], value)

    damaged_folders.forged_arrays(unfinished_run, "policies.npz", change)
    refused(adagoal("play", unfinished_run, "--episodes", 1))


# --- resume ---


@pytest.mark.parametrize("seed", range(3))
def test_resumed_curriculum_equals_uninterrupted_run(tmp_path: Path, seed: int) -> None:
    """Certificates of a smaller radius keep the visits of their own stage."""
    line = ["explore", "grid", "--radius", "auto", "--seed", seed, "--quiet", "--budget"]
    assert adagoal(*line, 6000, "--out", tmp_path / "whole").returncode == 3
    assert adagoal(*line, 4000, "--out", tmp_path / "cut").returncode == 3
    assert adagoal("resume", tmp_path / "cut", "--budget", 6000, "--quiet").returncode == 3
    whole, cut = (np.load(tmp_path / name / "policies.npz")["visits"] for name in ("whole", "cut"))
    np.testing.assert_array_equal(whole, cut)


# --- integrity ---


@pytest.mark.parametrize(
    "change",
    [
        {"steps": -5},
        {"status": "certified!"},
        {"goals": [{"goal": 28, "lower": 3.0, "upper": 1.0, "error": 0.0}]},
        {"steps": float("nan")},
        {"steps": 10**400},
    ],
)
def test_invalid_results_are_refused(unfinished_run: Path, change: dict[str, Any]) -> None:
    damaged_folders.forged_json(unfinished_run, "result.json", lambda data: data.update(change))
    refused(adagoal("report", unfinished_run))


def test_altered_training_folders_are_refused(tmp_path: Path) -> None:
    """Alter every array and every entry that ``evaluate`` reads."""
    folder = tmp_path / "run"
    trained = adagoal("train", "point-mass", *TRAINING, "--quiet", "--out", folder)
    assert trained.returncode == 0, trained.stderr
    command = [sys.executable, "-W", "ignore", str(TESTS / "alter_training_folders.py"), str(folder)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=10 * TIME_LIMIT)
    assert json.loads(done.stdout.splitlines()[-1]) == [], done.stderr[-2000:]


# --- hangs and memory ---


@pytest.mark.parametrize("change", [{"stage": 10**9}, {"steps": float("nan")}])
def test_huge_numbers_do_not_hang(unfinished_run: Path, change: dict[str, Any]) -> None:
    def deep(facts: dict[str, Any]) -> None:
        for holder in (facts, *(v for v in facts.values() if isinstance(v, dict))):
            holder.update({k: v for k, v in change.items() if k in holder})

    forge_facts(unfinished_run, deep)
    refused(adagoal("resume", unfinished_run))


def test_zip_bomb_is_not_unpacked(unfinished_run: Path) -> None:
    """3 MB that would unpack to 3 GB are refused in less than 1 GB of memory."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": (3 * 2**30,)})
    with (
        zipfile.ZipFile(unfinished_run / "policies.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("visits.npy", "w", force_zip64=True) as stream,
    ):
        stream.write(head.getvalue())
        for _ in range(3 * 2**6):
            stream.write(bytes(2**24))
    damaged_folders.seal(unfinished_run)
    script = (
        "import resource, subprocess, sys\n"
        "done = subprocess.run([sys.executable, '-m', 'adagoal', 'report', sys.argv[1]])\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
        "sys.exit(done.returncode)"
    )
    command = [sys.executable, "-c", script, str(unfinished_run)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=TIME_LIMIT)
    refused(done)
    assert int(done.stdout) < 2**20, "kilobytes"


# --- one line instead of a traceback ---


@pytest.mark.parametrize("key", [[[[[[1.5]]]]], {"hex": "zz"}, json.loads("[" * 300 + "]" * 300)])
def test_invalid_state_key_gives_one_line_error(unfinished_text_run: Path, key: Any) -> None:
    def change(facts: dict[str, Any]) -> None:
        facts["world"]["states"] = [key] * len(facts["world"]["states"])

    forge_facts(unfinished_text_run, change)
    refused(adagoal("resume", unfinished_text_run, "--budget", 600, "--trust"))


@pytest.mark.parametrize("wrong", [["--env-arg", "x=" + "[" * 5_000], ["--goals", "9" * 30]])
def test_absurd_options_give_one_line_error(wrong: list[str]) -> None:
    done = adagoal("explore", "chain", "--radius", 6, "--quiet", *wrong)
    assert "Traceback" not in done.stderr
    assert done.returncode == 2


def test_rule_that_exits_gives_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "rule.py").write_text("def f(known):\n    raise SystemExit(0)\n")
    rule = f"{tmp_path / 'rule.py'}:f"
    done = adagoal("explore", "chain", "--radius", 6, "--quiet", "--goal-rule", rule)
    assert "Traceback" not in done.stderr
    assert done.returncode == 2
    assert "SystemExit" in done.stderr


def test_labels_are_escaped_everywhere(tmp_path: Path) -> None:
    """Labels are markup for the terminal, for figures and for a browser."""
    folder = tmp_path / "run"
    done = adagoal("explore", "hostile_envs:Named-v0", "--radius", 8, "--epsilon", 2, "--budget", 3000, "--out", folder)
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 3), done.stderr
    played = adagoal("play", folder, "--episodes", 3, "--trust")
    assert "[bold]b" in played.stdout, played.stderr
    assert "<script>alert(1)" not in (folder / "report.html").read_text()


# --- failing environments ---


@pytest.mark.parametrize("error", ["runtime", "exit"])
def test_play_and_resume_name_a_failing_environment(tmp_path: Path, error: str) -> None:
    folder = tmp_path / "run"
    begin = ["explore", "hostile_envs:Fragile-v0", "--radius", 8, "--budget", 800, "--quiet", "--out", folder]
    assert adagoal(*begin, FAILS="-1").returncode == 3
    for again in (["play", folder, "--episodes", 50, "--goals", 1], ["resume", folder, "--budget", 5_000, "--quiet"]):
        done = adagoal(*again, "--trust", FAILS="40", ERROR=error)
        assert "Traceback" not in done.stderr
        assert done.returncode == 2, done.stderr
        assert "motor is on fire" in done.stderr
        assert "checkpoint" not in done.stderr.split("motor is on fire")[0]


def test_void_run_is_not_reported_as_certified(tmp_path: Path) -> None:
    done = adagoal("explore", "hostile_envs:Drift-v0", "--radius", 8, "--epsilon", 1, "--quiet", DRIFT="2000")
    assert done.returncode == 4, done.stdout + done.stderr


# --- signals, disks, pipes and output ---


def test_hangup_signal_leaves_a_run_that_can_be_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "adagoal", "explore", "two-room", "--radius", "40", "--epsilon", "0.1", "--out"]
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the parent process may ignore this signal
    with subprocess.Popen([*command, str(folder)], env=environment(), stdout=-3, stderr=-3) as running:
        deadline = time.monotonic() + TIME_LIMIT
        while not list(folder.rglob("checkpoint*.npz")) and time.monotonic() < deadline:
            time.sleep(0.2)
        running.send_signal(signal.SIGHUP)
        assert running.wait(TIME_LIMIT) == 3


def test_full_disk_gives_one_line_error_with_the_file(unfinished_run: Path) -> None:
    """Files above 16 KB, the figures and the page, cannot be written; everything else fits."""
    before = content(unfinished_run)
    script = f"ulimit -f 16; exec {sys.executable} -m adagoal report {unfinished_run}"
    done = subprocess.run(["bash", "-c", script], env=environment(), capture_output=True, text=True, timeout=TIME_LIMIT)
    refused(done)
    assert str(unfinished_run / "") in done.stderr
    assert content(unfinished_run) == before, "half a file is none"


def test_files_of_a_killed_writer_are_removed(unfinished_text_run: Path) -> None:
    left = unfinished_text_run / "checkpoint.npzab12cd_9.part"
    left.write_bytes(b"half a checkp")
    adagoal("resume", unfinished_text_run, "--budget", 600, "--quiet", "--trust")
    assert not left.exists()


def test_interrupted_start_leaves_no_files(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = adagoal("explore", "hostile_envs:Stopped-v0", "--radius", 5, "--quiet", "--out", folder, STOP=str(folder))
    assert "Traceback" not in done.stderr
    assert not folder.exists() or done.returncode == 3, "nothing, or a run that can go on"
