"""The life cycle shared by explorations and training runs, on a job that only counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from adagoal.core.errors import EnvironmentFailure, FolderWarning, InputError, Status
from adagoal.core.file_io import FileContents, arrays_content, json_content
from adagoal.runs.job import JobMonitor, SaveFiles, run_job
from adagoal.runs.run_folder import RunFolder, find_saved_run, open_locked_folder


class Count(NamedTuple):
    """Result of :class:`Counting`."""

    status: Status
    reached: int

    def contents(self) -> FileContents:
        return {"result.json": json_content({"status": self.status, "count": self.reached})}


class Counting:
    """Counts to ten; ``at_five`` is called in the middle."""

    has_progress = True

    def __init__(self, at_five: Callable[[], Any] = lambda: None, anywhere: bool = False, start: bool = True) -> None:
        self.saves_at_start, self.interrupt_anywhere = start, anywhere
        self.count, self.extra, self._at_five = 0, 0, at_five

    def execute(self, monitor: JobMonitor) -> Status:
        while self.count < 10:
            self.count += 1
            if self.count == 5:
                self._at_five()
            if not monitor.after_step(self.count):
                return Status.INTERRUPTED
        monitor.save_checkpoint(final=True)
        self.extra = 1
        return Status.DONE

    def is_save_due(self, folder: RunFolder) -> bool:
        return self.count % 2 == 0

    def checkpoint_files(self) -> SaveFiles:
        return SaveFiles({"checkpoint.npz": arrays_content({"count": np.array([self.count, self.extra])})}, {})

    def result(self, status: Status) -> Count:
        return Count(status, self.count)

    def describe_result(self, result: Count) -> str:
        return "the count"


def run(path: Path, job: Counting, **given: Any) -> Any:
    with open_locked_folder(path, "training") as folder:
        return run_job(job, folder, **given)


def saved(path: Path) -> tuple[list[int], Any]:
    """Return the last checkpoint and the result of a folder."""
    found = find_saved_run(path)
    assert found is not None
    arrays, _ = found.checkpoint_files().load_arrays("checkpoint.npz")
    return arrays["count"].tolist(), found.result_files().load_json("result.json")


def raise_error(error: BaseException) -> Callable[[], None]:
    def at_five() -> None:
        raise error

    return at_five


def refuse_writes(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]) -> None:
    real = RunFolder._write_staged_file

    def write(self: RunFolder, name: str, *rest: Any) -> Any:
        if name in names:
            raise InputError(f"{name}: cannot be written (No space left on device)")
        return real(self, name, *rest)

    monkeypatch.setattr(RunFolder, "_write_staged_file", write)


def test_final_work_of_a_run_is_not_in_its_checkpoint(tmp_path: Path) -> None:
    assert run(tmp_path, Counting()) == (Status.DONE, 10)
    assert saved(tmp_path) == ([10, 0], {"status": "done", "count": 10})


@pytest.mark.parametrize("given", [{"observe": lambda count: count < 3}, {"minutes": 1e-12}])
def test_observer_and_time_limit_end_a_run(given: dict[str, Any], tmp_path: Path) -> None:
    status, count = (Status.INTERRUPTED, 3) if "observe" in given else (Status.BUDGET, 1)
    assert run(tmp_path, Counting(), **given) == (status, count)
    assert saved(tmp_path) == ([count, 0], {"status": status, "count": count})


@pytest.mark.parametrize("error", [KeyError("ours"), InputError("bad", "x"), EnvironmentFailure("theirs", "env")])
def test_data_before_a_failure_is_saved(error: Exception, tmp_path: Path) -> None:
    with pytest.raises(type(error)) as raised:
        run(tmp_path, Counting(raise_error(error)))
    line = f"what had been learnt is in {tmp_path}"
    assert line in raised.value.__notes__
    assert (line in str(raised.value)) == isinstance(error, InputError)
    assert saved(tmp_path) == ([5, 0], {"status": "interrupted", "count": 5})


def test_failed_save_does_not_hide_the_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        refuse_writes(monkeypatch, ("checkpoint.npz", "result.json"))
        raise KeyError("ours")

    with pytest.raises(KeyError, match="ours") as raised:
        run(tmp_path, Counting(fail))
    assert raised.value.__notes__[0].startswith("what had been learnt could not be saved: InputError: ")


def test_second_ctrl_c_saves_only_a_consistent_state(tmp_path: Path) -> None:
    assert run(tmp_path / "a", Counting(raise_error(KeyboardInterrupt()))) == (Status.INTERRUPTED, 5)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "b", Counting(raise_error(KeyboardInterrupt()), anywhere=True))
    found = find_saved_run(tmp_path / "b")
    assert found is not None
    assert not found.manifest.results, "the last checkpoint stands"


@pytest.mark.parametrize("start", [True, False])
def test_run_ends_if_its_first_save_fails(start: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_writes(monkeypatch, ("checkpoint.npz",))
    job = Counting(start=start)
    with pytest.raises(InputError, match=r"checkpoint.npz: cannot be written \(No space left on device\)$"):
        run(tmp_path / "run", job)
    assert job.count == (0 if start else 2)
    assert not (tmp_path / "run").exists()


def test_unwritable_folder_is_reported_at_start_and_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, Counting(), observe=lambda count: False)
    refuse_writes(monkeypatch, ("checkpoint.npz",))
    job = Counting()
    with pytest.raises(InputError, match=r"No space left on device\)$"):
        run(tmp_path, job)
    assert (job.count, saved(tmp_path)[0]) == (0, [1, 0])


def test_run_continues_if_a_later_save_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Counting(lambda: refuse_writes(monkeypatch, ("checkpoint.npz",)))
    says = r"; the count is in .*; .* holds an earlier checkpoint, from which the run can go on$"
    warns = pytest.warns(FolderWarning, match="the run goes on, and tries again later")
    with warns, pytest.raises(InputError, match=says):
        run(tmp_path, job)
    assert saved(tmp_path) == ([4, 0], {"status": "done", "count": 10})


def test_without_a_folder_nothing_is_saved() -> None:
    assert run_job(Counting(), None) == (Status.DONE, 10)
    with pytest.raises(InputError, match=r"^x: bad$"):
        run_job(Counting(raise_error(InputError("bad", "x"))), None)
