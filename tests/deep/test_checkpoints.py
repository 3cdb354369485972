"""Checkpoints of training: no loss by kills, full disks, dead workers or new runs."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_training import CONFIG, SETTINGS, equal, evaluate, restored

import damaged_folders
from adagoal import resume, train
from adagoal.cli.main import run_command_line as command
from adagoal.core.errors import FolderWarning, InputError
from adagoal.core.file_io import folder_lock
from adagoal.deep import Config
from adagoal.report import training_page as report
from adagoal.runs import run_folder as folders
from adagoal.runs.run_folder import CHECKPOINTS_FOLDER, find_saved_run, read_saved_run
from adagoal.runs.train_result import read_training_record

CODE = """
import os, signal, sys
from pathlib import Path
from adagoal import resume, train
from adagoal.deep import Config
sys.path.insert(0, sys.argv[4])
from small_training import CONFIG

if __name__ == "__main__":
    left = int(sys.argv[1])
    calls = {"replace": os.replace, "fsync": os.fsync, "unlink": os.unlink}
    def run_until_call(real):
        def call(*arguments, **options):
            global left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)
        return call
    for name, real in calls.items():
        setattr(os, name, run_until_call(real))
    folder = Path(sys.argv[3])
    if sys.argv[2] == "resume":
        resume(folder, workers=1, checkpoint_every=1)
    else:
        train([CONFIG], out=folder, workers=1, checkpoint_every=1)
    print(left)
"""
"""Trains or resumes, dies at the n-th file system call, and prints how many calls were left."""


def run_until_call(moment: int, what: str, folder: Path) -> int | None:
    """Run :data:`CODE`; return the calls that were left, or None if it was killed."""
    script = folder.parent / "run_until_call.py"
    script.write_text(CODE)
    words = [sys.executable, str(script), str(moment), what, str(folder), str(Path(__file__).parent)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode == -signal.SIGKILL:
        return None
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def end(folder: Path) -> None:
    """Resume the killed training to its end."""
    if find_saved_run(folder) is None:
        train([CONFIG], out=folder, workers=1)
    else:
        resume(folder, workers=1)


def test_training_killed_during_a_save_resumes_to_the_same_result(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert run_until_call(25, "train", folder) is None
    assert find_saved_run(folder) is not None
    end(folder)
    assert equal(folder, finished)


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that was stopped after its first cycle; to be read, not changed."""
    folder = tmp_path_factory.mktemp("unfinished") / "run"
    assert train([CONFIG], out=folder, workers=1, observe=lambda history: False).status == "interrupted"
    return folder


def test_training_killed_after_a_resume_resumes_to_the_same_result(
    unfinished: Path, finished: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(unfinished, tmp_path / "run"))
    assert run_until_call(8, "resume", folder) is None
    end(folder)
    assert equal(folder, finished)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["train", "resume"])
def test_sigkill_at_any_file_system_call(what: str, finished: Path, unfinished: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    if what == "resume":
        shutil.copytree(unfinished, whole)
    left = run_until_call(10**6, what, whole)
    assert left is not None
    calls = 10**6 - left
    for moment in np.random.default_rng(0).choice(np.arange(1, calls + 1), min(20, calls), replace=False).tolist():
        folder = tmp_path / f"killed-{moment}"
        if what == "resume":
            shutil.copytree(unfinished, folder)
        assert run_until_call(moment, what, folder) is None
        end(folder)
        assert equal(folder, finished), moment


@pytest.mark.slow
def test_sigkill_at_any_time(finished: Path, tmp_path: Path) -> None:
    code = CODE.replace("left = int(sys.argv[1])", "left = -1")
    script = tmp_path / "timed.py"
    script.write_text(code)
    rng = np.random.default_rng(1)
    began = time.monotonic()
    words = [sys.executable, str(script), "0", "train"]
    subprocess.run([*words, str(tmp_path / "whole"), str(Path(__file__).parent)], check=True, capture_output=True)
    length = time.monotonic() - began
    for number in range(10):
        folder = tmp_path / f"killed-{number}"
        started = subprocess.Popen([*words, str(folder), str(Path(__file__).parent)], stdout=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.3, 1.0) * length)
        started.kill()
        started.wait()
        end(folder)
        assert equal(folder, finished), number


def test_killed_training_can_be_evaluated_and_reported(finished: Path, tmp_path: Path) -> None:
    train([CONFIG], out=tmp_path, workers=1, checkpoint_every=1, observe=lambda history: history.rows[-1]["cycle"] < 1)
    assert len(evaluate(tmp_path, episodes=3).final_success) == 3
    assert "Interrupted" in report.write_training_report(tmp_path).read_text()


@pytest.mark.parametrize(("code", "last"), [(errno.ENOSPC, 2), (errno.EROFS, 3)])
def test_full_disk_does_not_lose_the_policy(
    code: int, last: int, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk has space again at the end (last = 2), or the policy is saved elsewhere."""
    folder, real = tmp_path / "run", os.fsync
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()

    def refuse(handle: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{handle}")).is_relative_to(folder):
            raise OSError(code, os.strerror(code))

    def full(history: Any) -> None:
        monkeypatch.setattr(os, "fsync", refuse if 2 <= history.rows[-1]["cycle"] <= last else real)

    says = rf"cannot be written \({os.strerror(code)}\); the run goes on, and tries again later"
    one_line = pytest.raises(InputError, match=r"log-000005\.csv: cannot .*; the policy is in .*earlier checkpoint")
    with pytest.warns(FolderWarning, match=says), contextlib.nullcontext() if last == 2 else one_line:
        train([CONFIG], out=folder, workers=1, checkpoint_every=1, observe=full)
    monkeypatch.setattr(os, "fsync", real)
    if last == 3:
        (kept,) = (tmp_path / "temporary").iterdir()
        assert equal(kept, finished)
        assert sorted(os.listdir(folder / CHECKPOINTS_FOLDER)) == ["checkpoint-000001.npz", "checkpoint-000002.npz"]
        resume(folder, workers=1)
    assert equal(folder, finished)


def test_training_writes_only_to_its_folder(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if user code changes the current folder."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for place in (here, elsewhere):
        place.mkdir()
    monkeypatch.chdir(here)
    trained = train([CONFIG], out="run", workers=1, checkpoint_every=1, observe=lambda history: os.chdir(elsewhere))
    assert trained.folder == here / "run"
    assert equal(here / "run", finished)
    assert not list(elsewhere.iterdir())


def test_ctrl_c_during_the_report_does_not_change_the_training(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*given: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    monkeypatch.setattr(report, "write_training_report", interrupted)
    assert command(["resume", str(folder), "--quiet"]) == 0
    output = capsys.readouterr()
    assert output.out.splitlines()[0].startswith(f"seed {CONFIG.seed}  ")
    assert output.out.splitlines()[-1] == f"done: {folder}"
    assert output.err == f"interrupted: report.html was not written; adagoal report {folder} writes it\n"


def test_disk_full_at_the_start_gives_one_line_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(InputError, match=r"checkpoint-000001\.npz: cannot be written \(No space left on device\)"):
        train([CONFIG], out=tmp_path / "run", workers=1, checkpoint_every=1)
    assert not (tmp_path / "run").exists()


def test_killed_worker_gives_one_line_error_and_the_policy_is_saved(tmp_path: Path) -> None:
    def kill(history: Any) -> None:
        if history.rows[-1]["cycle"] == 1:
            multiprocessing.active_children()[0].kill()

    with pytest.raises(InputError, match=r"^a rollout worker was killed \(SIGKILL\), .*; what had been learnt is in "):
        train([CONFIG], out=tmp_path, workers=1, observe=kill)
    assert restored(tmp_path).cycle == 2
    assert resume(tmp_path, workers=1).status == "done"


# --- an old run and a new one ---


def snapshot(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in damaged_folders.run_files(folder)}


@pytest.mark.parametrize(
    "wrong",
    [
        ["point-mass", "--buffer", "3"],
        ["point-mass", "--train-goals", "scale=-1"],
        ["point-mass", "--goal-rule", "nonsense"],
        ["point-mass", "--minutes", "-1"],
        ["NoSuchEnv-v0"],
        ["CartPole-v1"],
    ],
)
def test_bad_input_changes_no_file(wrong: list[str], finished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    before = snapshot(folder)
    for more in ([], ["--overwrite"]):
        assert command(["train", *wrong, "--out", str(folder), *more]) == 2
        assert snapshot(folder) == before
    assert command(["train", *wrong, "--out", str(tmp_path / "new")]) == 2
    assert not (tmp_path / "new").exists()


def test_run_with_other_settings_is_not_overwritten(finished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    before = snapshot(folder)
    with pytest.raises(InputError, match=r"^out: .* already holds a run; resume it, overwrite it, or choose another"):
        train([CONFIG], out=folder)
    with folder_lock(folder):
        for call in (lambda: train([CONFIG], out=folder, overwrite=True), lambda: resume(folder)):
            found: list[BaseException] = []

            def tried(call: Any = call, found: list[BaseException] = found) -> None:
                try:
                    call()
                except InputError as error:
                    found.append(error)

            other = threading.Thread(target=tried)
            other.start()
            other.join()
            assert "another run is writing there" in str(found[0])
    assert snapshot(folder) == before


def test_old_run_is_kept_until_the_new_one_has_a_checkpoint(finished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    before, seen = snapshot(folder), []
    other = Config("point-mass", seed=1, **SETTINGS)

    def look(history: Any) -> None:
        seen.append(snapshot(folder) == before)

    train([other], out=folder, overwrite=True, workers=1, checkpoint_every=2, observe=look)
    assert seen == [True, True, False, False]
    assert read_saved_run(folder, read_training_record).configs == [other]
    assert sorted(os.listdir(folder / CHECKPOINTS_FOLDER)) == ["checkpoint-000006.npz", "checkpoint-000007.npz"]


def test_save_interval_follows_from_the_duration_of_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(folders, "save_interval_elapsed", lambda since, cost: bool(asked.append(cost)))
    train([CONFIG], out=tmp_path, workers=1)
    assert len(asked) == 3, "after every cycle but the last, which is always saved"
    assert sorted(os.listdir(tmp_path / CHECKPOINTS_FOLDER)) == ["checkpoint-000001.npz"]
