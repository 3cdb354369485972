"""Run folders: saves are atomic under crashes and full disks, and a new run replaces the old one atomically."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import damaged_folders
from adagoal.core import file_io
from adagoal.core.errors import InputError
from adagoal.runs import run_folder as folders
from adagoal.runs.run_folder import (
    CHECKPOINTS_FOLDER,
    MANIFEST_BACKUP_FILE,
    MANIFEST_FILE,
    find_saved_run,
    open_locked_folder,
    save_interval_elapsed,
)
from sample_folder import KIND, read_numbers, read_state, results, state, write_folder


@pytest.fixture
def skip_file_sync(monkeypatch):
    """Skip syncing to disk, which these tests do not need."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


# --- saving ---


def test_save_is_read_back_and_the_last_two_checkpoints_are_kept(tmp_path):
    run = write_folder(tmp_path / "a" / "run", 1, 2, 3)
    assert read_numbers(run) == (3, 3)
    assert sorted(os.listdir(run / CHECKPOINTS_FOLDER)) == ["checkpoint-000002.npz", "checkpoint-000003.npz"]
    assert sorted(os.listdir(run)) == [
        CHECKPOINTS_FOLDER,
        MANIFEST_BACKUP_FILE,
        MANIFEST_FILE,
        "policies.npz",
        "report.html",
        "result.json",
    ]
    assert find_saved_run(run).kind == KIND


def test_checkpoints_and_results_are_saved_independently(tmp_path):
    with open_locked_folder(tmp_path, KIND) as folder:
        folder.save_files(state(1))
        assert read_numbers(tmp_path) == (1, None)
        folder.save_files(state(2))
        folder.save_files(results=results(2))
        folder.save_files(results={"report.html": file_io.bytes_content(b"<p>2</p>")})
        assert read_numbers(tmp_path) == (2, 2)
        folder.save_files(state(3))
        assert read_numbers(tmp_path) == (3, 2)
    damaged_folders.delete(tmp_path / CHECKPOINTS_FOLDER / "checkpoint-000005.npz")
    assert read_numbers(tmp_path) == (2, 2)


def test_equal_content_gives_equal_files(tmp_path):
    a, b = (write_folder(tmp_path / name, 1, 2) for name in "ab")
    assert all((a / name).read_bytes() == (b / name).read_bytes() for name in damaged_folders.run_files(a))


def test_save_interval_limits_the_share_of_time():
    assert not save_interval_elapsed(9.0, 0.01)
    assert save_interval_elapsed(10.0, 0.01)
    assert not save_interval_elapsed(60.0, 6.0)
    assert save_interval_elapsed(200.0, 6.0)


def test_user_files_are_not_changed(tmp_path):
    own = {"policies.npz": b"mine", "notes.txt": b"years of work", "thesis.pdf.part": b"half"}
    for name, data in own.items():
        (tmp_path / name).write_bytes(data)
    with open_locked_folder(tmp_path, KIND) as folder:
        folder.start_new_run()
        folder.save_files(state(1))
        folder.start_new_run()
        folder.save_files(state(2))
    assert all((tmp_path / name).read_bytes() == data for name, data in own.items())


# --- one commit per save: a crash at every call ---

CALLS = ("open", "fsync", "replace", "unlink", "mkdir", "rmdir")


class Killed(BaseException):
    pass


class Killer:
    """Simulates the death of the process at the k-th system call: raises there and in all later calls."""

    def __init__(self, patch: pytest.MonkeyPatch, after: int) -> None:
        self.left, self.dead = after, False
        for name in CALLS:
            patch.setattr(os, name, self.wrapped(getattr(os, name) if name != "fsync" else lambda handle: None))
        patch.setattr(folders._HashingWriter, "write", self.wrapped(folders._HashingWriter.write))

    def wrapped(self, call):
        def instead(*arguments, **options):
            self.left -= 1
            if self.left < 0:
                self.dead = True
                raise Killed
            return call(*arguments, **options)

        return instead


def killed(path: Path, after: int, work) -> bool:
    """Run the work until the k-th system call; return whether it was interrupted."""
    with pytest.MonkeyPatch.context() as patch:
        killer = Killer(patch, after)
        try:
            with open_locked_folder(path, KIND) as folder:
                work(folder)
        except Killed:
            pass
        except BaseException:
            assert killer.dead
    file_io._release_locks_after_fork()
    return killer.dead


def every_crash(template: Path, tmp_path: Path, work, allowed: set, final) -> None:
    after, seen = 0, set()
    while True:
        path = tmp_path / f"crash{after}"
        shutil.copytree(template, path)
        if not killed(path, after, work):
            assert read_numbers(path) == final
            break
        found = read_numbers(path)
        assert found in allowed, f"after {after} calls: {found}"
        seen.add(found)
        before = set(damaged_folders.run_files(path))
        with open_locked_folder(path, KIND):  # opening removes temporary files and changes nothing else
            assert read_numbers(path) == found
        assert set(damaged_folders.run_files(path)) <= before | {
            "result.json",
            "policies.npz",
            "report.html",
            MANIFEST_BACKUP_FILE,
        }
        leftovers = [name for name in damaged_folders.run_files(path) if name.startswith(CHECKPOINTS_FOLDER)]
        if (path / MANIFEST_FILE).exists():
            assert len(leftovers) <= 2
        with open_locked_folder(path, KIND) as folder:
            folder.save_files(state(9), results(9))
        assert read_numbers(path) == (9, 9)
        assert len(os.listdir(path / CHECKPOINTS_FOLDER)) <= 2
        shutil.rmtree(path)
        after += 1
    assert seen == allowed
    assert after > 20


def test_crash_at_any_call_of_a_save_leaves_the_old_or_new_state(tmp_path, skip_file_sync):
    template = write_folder(tmp_path / "template", 1, 2)
    every_crash(template, tmp_path, lambda f: f.save_files(state(3), results(3)), {(2, 2), (3, 3)}, (3, 3))


def test_crash_at_any_call_of_a_replacement_leaves_the_old_or_new_run(tmp_path, skip_file_sync):
    template = write_folder(tmp_path / "template", 1, 2)

    def replace(folder):
        folder.start_new_run()
        folder.save_files(state(7))

    every_crash(template, tmp_path, replace, {(2, 2), (7, None)}, (7, None))
    assert not (tmp_path / "crash0").exists()


def test_crash_in_the_first_save_leaves_no_run_or_the_new_one(tmp_path, skip_file_sync):
    after = 0
    while killed(path := tmp_path / f"new{after}", after, lambda folder: folder.save_files(state(1))):
        saved = find_saved_run(path)
        assert saved is None or read_state(saved) == 1
        write_folder(path, 2)
        assert read_numbers(path) == (2, 2)
        after += 1
    assert after > 15


def test_everything_is_synced_before_the_commit_and_the_folder_after_it(tmp_path, monkeypatch):
    calls, names = [], {}
    real_open, real_sync, real_replace = os.open, os.fsync, os.replace

    def opened(path, *rest, **options):
        handle = real_open(path, *rest, **options)
        names[handle] = str(path)
        return handle

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "fsync", lambda handle: (calls.append(("sync", names[handle])), real_sync(handle)))
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append(("name", str(b))), real_replace(a, b)))
    write_folder(tmp_path, 1)
    commit = calls.index(("name", str(tmp_path / MANIFEST_FILE)))
    written = ("checkpoint.npz", "result.json", "policies.npz", "report.html", "manifest.json")
    synced = {name for what, name in calls[:commit] if what == "sync"}
    assert synced == {str(tmp_path / CHECKPOINTS_FOLDER / n.replace(".", "-000001.")) for n in written} | {
        str(tmp_path / CHECKPOINTS_FOLDER)
    }
    assert calls[commit + 1] == ("sync", str(tmp_path))


KILL_ME = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from adagoal.runs.run_folder import open_locked_folder
from sample_folder import state, results, KIND, read_numbers
path = Path({path!r})
with open_locked_folder(path, KIND) as folder:
    number = 0 if folder.saved_run is None else read_numbers(path)[0]
    while True:
        number += 1
        folder.save_files(state(number), results(number))
        print(number, flush=True)
"""


def kill_in_a_loop(path: Path, times: int) -> None:
    script = KILL_ME.format(tests=str(Path(__file__).parent), path=str(path))
    rng, last = np.random.default_rng(0), 0
    for _ in range(times):
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        said = process.stdout.readline()
        deadline = time.monotonic() + rng.uniform(0, 0.05)
        while time.monotonic() < deadline:
            read_numbers(path)  # readers need no lock and always see a consistent state
        process.send_signal(signal.SIGKILL)
        said += process.stdout.read()
        process.wait()
        process.stdout.close()
        confirmed = int(said.split()[-1])
        number, result = read_numbers(path)
        assert number == result
        assert last < confirmed <= number <= confirmed + 1
        last = number


def test_sigkill_during_saves(tmp_path):
    kill_in_a_loop(tmp_path / "run", 4)


@pytest.mark.slow
def test_many_sigkills_during_saves(tmp_path):
    kill_in_a_loop(tmp_path / "run", 100)


# --- the lock, replacement, failures ---


def test_lock_is_taken_first_and_released_by_the_death_of_its_holder(tmp_path):
    run = write_folder(tmp_path, 1)
    with open_locked_folder(run, KIND) as folder:
        before = {name: (run / name).read_bytes() for name in damaged_folders.run_files(run)}
        with pytest.raises(InputError, match="another run is writing there"), open_locked_folder(run, KIND):
            pass
        assert before == {name: (run / name).read_bytes() for name in damaged_folders.run_files(run)}
        folder.save_files(state(2))
    with open_locked_folder(run, KIND):
        pass


def test_lock_is_released_although_worker_processes_survive(tmp_path):
    script = (
        "import os, sys, time; from pathlib import Path; from adagoal.runs.run_folder import open_locked_folder\n"
        "with open_locked_folder(Path(sys.argv[1]), 'training'):\n"
        "    if os.fork() == 0: print('ready', flush=True)\n"
        "    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(InputError, match="another run"), open_locked_folder(tmp_path, KIND):
            pass
        process.kill()
        process.wait()
        write_folder(tmp_path, 1)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def test_error_before_the_first_checkpoint_does_not_change_the_old_run(tmp_path):
    run = write_folder(tmp_path, 1, 2)
    before = {name: (run / name).read_bytes() for name in damaged_folders.run_files(run)}
    with open_locked_folder(run, "training") as folder:
        folder.start_new_run()
        with pytest.raises(InputError, match="cannot be kept in a file"):
            folder.save_files({"checkpoint.npz": file_io.json_content(object())})
    assert before == {name: (run / name).read_bytes() for name in damaged_folders.run_files(run)}


def test_new_run_of_another_kind_replaces_the_old_one_and_its_results(tmp_path):
    run = write_folder(tmp_path, 1, 2)
    with open_locked_folder(run, "training") as folder:
        with pytest.raises(InputError, match=r"holds a run of another kind \(exploration\)"):
            folder.save_files(state(1))
        folder.start_new_run()
        folder.save_files(state(3), {"policy.npz": file_io.arrays_content({"w": np.ones(3)})})
    assert find_saved_run(run).kind == "training"
    assert damaged_folders.run_files(run) == [
        f"{CHECKPOINTS_FOLDER}/checkpoint-000003.npz",
        MANIFEST_BACKUP_FILE,
        MANIFEST_FILE,
        "policy.npz",
    ]


def test_folder_without_a_save_is_removed(tmp_path):
    with pytest.raises(RuntimeError), open_locked_folder(tmp_path / "runs" / "new", KIND):
        raise RuntimeError
    with pytest.raises(InputError), open_locked_folder(tmp_path / "runs" / "new", KIND) as folder:
        folder.save_files({"checkpoint.npz": file_io.json_content(object())})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("call", ["fsync", "replace", "open"])
def test_system_error_gives_one_line_error_and_keeps_the_old_state(tmp_path, monkeypatch, call):
    run, real = write_folder(tmp_path, 1), getattr(os, call)

    def full(*arguments, **options):
        if call != "open" or arguments[1] & os.O_CREAT:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments, **options)

    with open_locked_folder(run, KIND) as folder:
        before = damaged_folders.run_files(run)
        monkeypatch.setattr(os, call, full)
        with pytest.raises(InputError, match=r"(checkpoint-\d+.npz|manifest.json): cannot be written \(No space left"):
            folder.save_files(state(2), results(2))
        monkeypatch.undo()
        assert damaged_folders.run_files(run) == before
        assert read_numbers(run) == (1, 1)
        folder.save_files(state(2), results(2))
    assert read_numbers(run) == (2, 2)


def test_oldest_checkpoint_is_deleted_if_there_is_no_space_for_a_third(tmp_path, monkeypatch):
    run, real = write_folder(tmp_path, 1, 2), os.fsync

    def full(handle):
        data = sorted(path for path in (run / CHECKPOINTS_FOLDER).iterdir() if path.name.startswith("checkpoint"))
        if len(data) > 2 and os.path.samestat(os.fstat(handle), data[-1].stat()):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with open_locked_folder(run, KIND) as folder:
        folder.save_files(state(3), results(3))
    assert read_numbers(run) == (3, 3)
    assert sorted(os.listdir(run / CHECKPOINTS_FOLDER)) == ["checkpoint-000002.npz", "checkpoint-000005.npz"]


def test_disk_that_fills_up_in_the_middle_of_a_file(tmp_path):
    script = (
        "import resource; from pathlib import Path; import numpy as np\n"
        "from adagoal.core import file_io; from adagoal.runs.run_folder import open_locked_folder\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "large = file_io.arrays_content({'x': np.arange(10**6)}, {}, False)\n"
        "for write in (lambda p: file_io.write_atomically(p / 'x.npz', large), held):\n"
        "    try: write(Path.cwd())\n"
        "    except file_io.InputError as error: print(error)\n"
    )
    held = (
        "def held(p):\n"
        "    with open_locked_folder(p, 'training') as f:\n"
        "        f.save_files({'checkpoint.npz': file_io.arrays_content({'x': np.arange(10**6)})})\n"
    )
    done = subprocess.run([sys.executable, "-c", held + script], cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert lines[0].endswith("x.npz: cannot be written (File too large)")
    assert lines[1].endswith("checkpoint-000001.npz: cannot be written (File too large)")
    assert os.listdir(tmp_path) == []


def test_invalid_folder_names_give_one_line_error(tmp_path):
    for name in ("x" * 300, "x\0y"):
        with pytest.raises(InputError, match="cannot be written"):
            file_io.write_text(tmp_path / name, "")
        with pytest.raises(InputError, match="cannot be written"), open_locked_folder(tmp_path / name, KIND):
            pass
    assert os.listdir(tmp_path) == []


# --- missing runs and other formats ---


def test_missing_run_gives_one_line_error(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError) as caught:
            read_numbers(path)
        assert str(caught.value) == f"no adagoal run in {path} (manifest.json is missing)"


def test_folder_without_a_manifest_is_not_a_run(tmp_path):
    run = write_folder(tmp_path / "run", 1)
    shutil.move(run / CHECKPOINTS_FOLDER / "checkpoint-000001.npz", run / "checkpoint.npz")
    for name in (MANIFEST_FILE, MANIFEST_BACKUP_FILE):
        damaged_folders.delete(run / name)
    assert find_saved_run(run) is None
    with pytest.raises(InputError, match=r"^no adagoal run in .*run \(manifest.json is missing\)$"):
        read_numbers(run)
    with open_locked_folder(run, KIND) as folder:
        assert folder.saved_run is None
        folder.save_files(state(2))
    assert read_numbers(run) == (2, None)
    assert (run / "checkpoint.npz").exists(), "files of other programs are kept"


@pytest.mark.parametrize("number", [0, 1, 99])
def test_other_format_gives_one_line_error(tmp_path, number):
    write_folder(tmp_path, 1)
    for name in (MANIFEST_FILE, MANIFEST_BACKUP_FILE):
        damaged_folders.put(tmp_path / name, f'{{"format": {number}}}'.encode())
    with pytest.raises(InputError, match=rf"format {number}, but this version reads format 2; use"):
        read_numbers(tmp_path)


def test_new_run_replaces_one_with_a_damaged_manifest(tmp_path):
    run = write_folder(tmp_path / "run", 1)
    (run / "thesis.txt").write_text("years of work")
    for name in (MANIFEST_FILE, MANIFEST_BACKUP_FILE):
        damaged_folders.put(run / name, b"{}")
    with open_locked_folder(run, KIND) as folder:
        folder.start_new_run()
        folder.save_files(state(2))
    assert read_numbers(run) == (2, None)
    assert damaged_folders.run_files(run) == [
        f"{CHECKPOINTS_FOLDER}/checkpoint-000002.npz",
        MANIFEST_BACKUP_FILE,
        MANIFEST_FILE,
        "thesis.txt",
    ]
