"""Failures and interruptions of training: messages, saved data, and signals."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_training import TINY, rollout_worker

from adagoal import resume, train
from adagoal.api.certified_training import train_until_certified
from adagoal.api.explore import explore
from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.core.file_io import read_json
from adagoal.deep import Config
from adagoal.deep.env_inspection import inspect_env
from adagoal.deep.goal_envs import EnvDimensions, EnvSource
from adagoal.deep.rollouts import EnvBatch, RolloutWorkers
from adagoal.parallel.worker_process import WorkerFailure, unwrap_reply
from adagoal.report import training_page as report
from adagoal.runs.job import STOP_SIGNALS, stop_on_signals
from adagoal.runs.run_folder import is_training_folder
from engine_tasks import Unpicklable

CONFIG = Config("point-mass", **TINY)


def test_environment_failure_is_named_and_training_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker, folder = tmp_path / "marker", tmp_path / "run"
    monkeypatch.setenv("FAILING_FILE", str(marker))
    config = Config("failing_training_env:Failing-v0", **TINY)

    def after(cycle: int, word: str) -> Any:
        return lambda history: marker.write_text(word) if history.rows[-1]["cycle"] == cycle else None

    with pytest.raises(EnvironmentFailure) as raised:
        train([config], out=folder, observe=after(1, ""), workers=1)
    text = r"env: failing_training_env:Failing-v0 raised RuntimeError: no more \(failing_training_env.py, line \d+\)"
    assert re.fullmatch(text + re.escape(f"; what had been learnt is in {folder}"), str(raised.value))
    assert isinstance(raised.value.__cause__, RuntimeError)
    marker.unlink()
    with pytest.raises(
        InputError, match=r"^env: the run is on 'failing_training_env:Failing-v0', which names a module to import"
    ):
        resume(folder, workers=1)
    hangs = (
        rf"^env: a step of failing_training_env:Failing-v0 took longer than 2 s; what had been learnt is in {folder}"
    )
    with pytest.raises(EnvironmentFailure, match=hangs):
        resume(folder, env="failing_training_env:Failing-v0", observe=after(2, "hang"), step_timeout=2, workers=1)
    marker.unlink()
    finished = resume(folder, env="failing_training_env:Failing-v0", workers=1)
    assert finished.status == "done"
    assert [row["cycle"] for row in finished.history.rows] == [0, 1, 2, 3, 4]


def test_step_timeout_applies_to_inspection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inspection runs in its own process and finds the same facts as here."""
    monkeypatch.setenv("FAILING_FILE", str(tmp_path / "marker"))
    source, spaces = EnvSource("failing_training_env:Failing-v0"), [("train_goals", "env"), ("test_goals", "scale=2")]
    here, there = (inspect_env(replace(source, step_timeout=limit), 0, spaces) for limit in (None, 20.0))
    assert there.sizes == here.sizes
    for mine, other in zip(here.goal_samplers, there.goal_samplers, strict=True):
        np.testing.assert_array_equal(*(space(np.random.default_rng(0), 50) for space in (mine, other)))
    with pytest.raises(InputError, match=r"^horizon: failing_training_env:Failing-v0 ends its episodes after 25 steps"):
        inspect_env(replace(source, step_timeout=20.0), 99, spaces)
    (tmp_path / "marker").write_text("hang")
    with pytest.raises(
        EnvironmentFailure, match=r"^env: a step of failing_training_env:Failing-v0 took longer than 0.2 s$"
    ):
        train([Config("failing_training_env:Failing-v0", **TINY)], out=tmp_path / "run", step_timeout=0.2, workers=1)
    with pytest.raises(
        EnvironmentFailure, match=r"^env: a step of failing_training_env:Failing-v0 took longer than 0.2 s$"
    ):
        train_until_certified(
            Config("failing_training_env:Failing-v0", **TINY), tmp_path / "run", step_timeout=0.2, workers=1
        )
    assert not (tmp_path / "run").exists()


def test_bugs_keep_their_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: RolloutWorkers) -> Any:
        raise AttributeError("a typo of ours")

    def break_it(history: Any) -> None:
        monkeypatch.setattr(RolloutWorkers, "collect_cycle", broken)

    with pytest.raises(AttributeError) as raised:
        train([CONFIG], out=tmp_path, observe=break_it, workers=1)
    assert str(raised.value) == "a typo of ours"
    assert f"what had been learnt is in {tmp_path}" in raised.value.__notes__
    monkeypatch.undo()
    assert resume(tmp_path, workers=1).status == "done"


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (AttributeError("a typo of ours"), AttributeError, "a typo of ours"),
        (InputError("must be good", name="noise"), InputError, "noise: must be good"),
        (Unpicklable("a strange one"), RuntimeError, "Unpicklable: a strange one"),
    ],
)
def test_bug_in_a_worker_keeps_its_traceback(
    error: Exception, kind: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: EnvBatch, cycle: int) -> Any:
        raise error

    monkeypatch.setattr(EnvBatch, "start_cycle", broken)
    with rollout_worker([CONFIG], EnvSource("point-mass"), EnvDimensions(4, 2, 2, 5, 0.1)) as link:
        link.send(("start_cycle", (0,)))
        answer = link.recv()
    assert isinstance(answer, WorkerFailure)
    found = answer.to_exception()
    assert type(found) is kind
    assert str(found) == words
    assert "in broken\n    raise error" in str(found.__cause__)


def test_worker_without_environments_answers_every_command_with_the_error() -> None:
    with rollout_worker([CONFIG], EnvSource("no_such_module:Env-v0"), EnvDimensions(4, 2, 2, 5, 0.1)) as link:
        for cycle in (0, 1):
            link.send(("start_cycle", (cycle,)))
            with pytest.raises(InputError, match="no_such_module"):
                unwrap_reply(link.recv())


def test_observer_may_end_training(tmp_path: Path) -> None:
    stopped = train([CONFIG], out=tmp_path, observe=lambda history: history.rows[-1]["cycle"] < 1, workers=1)
    assert stopped.status == "interrupted"
    assert len(stopped.history.goals) == 2
    data = read_json(tmp_path / "result.json")
    assert (data["kind"], data["status"], data["method"]) == ("training", "interrupted", "critics+her")
    assert is_training_folder(tmp_path)
    assert not is_training_folder(tmp_path / "nowhere")


def test_observer_error_is_reported_as_user_error() -> None:
    with pytest.raises(EnvironmentFailure, match=r"^observe: the function raised ZeroDivisionError") as raised:
        train([CONFIG], observe=lambda history: 1 // 0, workers=1)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("wrong", [{"workers": -1}, {"workers": True}, {"minutes": 0}, {"checkpoint_every": -1}])
def test_wrong_numbers_give_an_error_with_their_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"^{next(iter(wrong))}: "):
        train([CONFIG], **wrong)


def test_script_without_main_guard_gives_one_line_error(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(
        "from adagoal import train\nfrom adagoal.deep import Config\n"
        f"train([Config('point-mass', **{TINY!r})], out={str(tmp_path / 'run')!r}, workers=1)\n"
    )
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1, "that of the script itself, none of its workers"
    assert done.stderr.splitlines()[-1].endswith('put the call under if __name__ == "__main__":')


def test_first_signal_asks_and_second_interrupts() -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    with stop_on_signals(at_once=True) as stop:
        assert not stop.is_requested
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop.is_requested
    finally:
        signal.signal(signal.SIGHUP, before)


def test_report_of_a_missing_run_gives_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no adagoal run in"):
        report.write_training_report(tmp_path)
    explore("chain", 4, budget=50, out=tmp_path)
    assert not is_training_folder(tmp_path)
    with pytest.raises(InputError, match=": must be of the kind training, not exploration; give another folder"):
        report.write_training_report(tmp_path)
