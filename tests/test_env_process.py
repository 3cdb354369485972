"""Environments in their own process: equal runs, and processes that hang, exit or are killed."""

from __future__ import annotations

import functools
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from adagoal.api import explore as api
from adagoal.cli.main import run_command_line
from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.envs import registry
from adagoal.envs.gym_adapter import GymAdapter
from adagoal.parallel.worker_process import WorkerDied, WorkerKilled, WorkerProcess
from adagoal.runs.load_result import load_result
from engine_tasks import Buggy, fail
from failing_envs import CHAIN
from model_env import ModelEnv, play, same_counts

EXPLORE: dict[str, Any] = {"radius": 8, "epsilon": 2.0}


def remote(name: str, seconds: float = 20.0, **arguments: Any) -> GymAdapter:
    env, _ = registry.make_single_env(f"failing_envs:{name}-v0", arguments, None, None, seconds)
    assert isinstance(env, GymAdapter)
    return env


def test_run_equals_the_run_in_this_process(tmp_path: Path) -> None:
    here, there = (
        api.explore("failing_envs:Chain-v0", **EXPLORE, budget=3000, step_timeout=seconds) for seconds in (None, 20.0)
    )
    assert here.to_dict() | {"wall_seconds": 0} == there.to_dict() | {"wall_seconds": 0}
    for name, array in here.arrays.items():
        assert array.tolist() == there.arrays[name].tolist()


def test_labels_of_states_numbered_as_found_are_the_same() -> None:
    pytest.importorskip("minigrid")
    here, there = (registry.make_single_env("MiniGrid-Empty-5x5-v0", {}, None, None, s)[0] for s in (None, 60.0))
    assert same_counts(play(here, 500)[0], play(there, 500)[0])
    assert here.labels == there.labels


def test_hanging_step_ends_the_run_and_voids_its_resumption(tmp_path: Path) -> None:
    began = time.monotonic()
    arguments = ["explore", "failing_envs:Hangs-v0", "--radius", "8", "--epsilon", "0.5", "--out", str(tmp_path)]
    assert run_command_line([*arguments, "--step-timeout", "1", "--quiet"]) == 2
    assert time.monotonic() - began < 60
    kept = load_result(tmp_path)
    assert kept.status == "interrupted"
    assert 699 <= kept.steps < 1200
    assert any("failed in 1 transition" in line for line in kept.warnings)
    assert run_command_line(["resume", str(tmp_path), "--budget", "1200", "--trust", "--quiet"]) == 4
    after = load_result(tmp_path)
    assert after.steps == 1200
    assert any("the data lack 1 transition" in line for line in after.void)


@pytest.mark.parametrize(("name", "said"), [("Exits", "SystemExit: 7"), ("Crashes", "exit code 11")])
def test_environment_that_ends_its_process_gives_one_line_error_and_voids_the_resumed_run(
    name: str, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    env = f"failing_envs:{name}-v0"
    assert (
        run_command_line(
            [
                "explore",
                env,
                "--radius",
                "8",
                "--epsilon",
                "0.5",
                "--step-timeout",
                "20",
                "--quiet",
                "--out",
                str(tmp_path),
            ]
        )
        == 2
    )
    error = capfd.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert api.resume(tmp_path, 1200, trust=True).status == "void"


def test_environment_that_exits_with_code_zero_is_a_failure(tmp_path: Path) -> None:
    """In the process of the command itself, os._exit(0) would look like a success."""
    words = [
        "explore",
        "failing_envs:Leaves-v0",
        "--radius",
        "8",
        "--epsilon",
        "0.5",
        "--quiet",
        "--out",
        str(tmp_path),
    ]
    code = "from adagoal.cli.main import main; main()"
    paths = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    call: dict[str, Any] = {"env": os.environ | paths, "capture_output": True, "text": True, "timeout": 120}
    done = subprocess.run([sys.executable, "-c", code, *words], **call, check=False)
    assert done.returncode == 2
    assert "raised SystemExit: os._exit(0)" in done.stderr
    assert done.stderr.count("\n") == 1
    kept = load_result(tmp_path)
    assert kept.status == "interrupted"
    assert any("failed in 1 transition" in line for line in kept.warnings)


def test_killed_process_is_restarted_without_voiding() -> None:
    result = api.explore("failing_envs:Dies-v0", **EXPLORE, env_args={"after": 500}, step_timeout=20, budget=1200)
    assert (result.status, result.steps, result.void) == ("budget", 1200, [])
    assert any("was killed (SIGKILL)" in line and "went on from a reset" in line for line in result.warnings)
    assert len([line for line in result.warnings if "was killed" in line]) == 1


def test_kill_between_two_steps_does_not_void() -> None:
    env = remote("Chain")
    counts, _ = play(env, 400)
    body: Any = env._env.backend
    os.kill(body._worker.process.pid, signal.SIGKILL)
    play(env, 400, counts=counts)
    assert counts.visits.sum() == 800
    assert env.void_reasons == []
    assert any("was killed" in line for line in env.warnings)


def test_repeatedly_killed_process_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adagoal.envs.gym_adapter.GymAdapter.MAX_CONSECUTIVE_KILLS", 1)
    with pytest.raises(EnvironmentFailure, match="was killed"):
        play(remote("Dies", after=1), 100)


def test_environment_that_cannot_be_created_or_reset_in_time_is_an_error() -> None:
    with pytest.raises(EnvironmentFailure, match=r"cannot be made \(SystemExit: no licence\)"):
        remote("Unmakeable")
    with pytest.raises(EnvironmentFailure, match="took longer than 1 s"):
        remote("Slow", 1.0)


def test_environment_objects_are_refused() -> None:
    from adagoal.envs import toy_models

    with pytest.raises(InputError, match=r"^step_timeout: an environment object cannot be sent to another process"):
        api.explore(ModelEnv(toy_models.chain_model(**CHAIN)), **EXPLORE, step_timeout=5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^step_timeout: must be a number"):
        api.explore("failing_envs:Chain-v0", **EXPLORE, step_timeout=-1)


def test_known_model_uses_no_process() -> None:
    assert api.explore("FrozenLake-v1", 3, budget=100, step_timeout=5).steps == 100


def test_process_ignores_ctrl_c_from_its_start() -> None:
    worker = WorkerProcess(dict, "none")
    worker.start()
    assert worker.process is not None
    status = Path(f"/proc/{worker.process.pid}/status").read_text()
    worker.stop()
    blocked = int(next(line for line in status.splitlines() if line.startswith("SigBlk")).split()[1], 16)
    assert blocked & 1 << signal.SIGINT - 1
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_bug_in_a_worker_keeps_its_traceback() -> None:
    worker = WorkerProcess(Buggy, "none")
    worker.start()
    for kind, error in (("bug", KeyError), ("unpicklable", RuntimeError), ("answer", Exception)):
        worker.send("step", kind)
        with pytest.raises(error) as raised:
            worker.receive(60)
        assert not isinstance(raised.value, InputError)
        assert 'File "' in str(raised.value.__cause__)
        assert worker.is_alive
    worker.stop()


def test_object_that_cannot_be_created_in_a_worker_gives_its_error() -> None:
    worker = WorkerProcess(functools.partial(fail, "bug"), "none")
    worker.start()
    for _ in range(2):  # every call raises this error
        worker.send("step")
        with pytest.raises(KeyError) as raised:
            worker.receive(60)
        assert "in fail" in str(raised.value.__cause__)
    worker.stop()


def test_worker_that_closes_its_connection_counts_as_failed() -> None:
    """adagoal kills the worker itself here, so a certificate must count the call as failed."""
    worker = WorkerProcess(Buggy, "the worker")
    worker.start()
    worker.send("step", "close")
    process: Any = worker.process
    process.join = lambda timeout=None: None  # the default would wait for the process to end
    with pytest.raises(WorkerDied, match=r"^the worker closed its connection$") as raised:
        worker.receive(60)
    assert not isinstance(raised.value, WorkerKilled)


def test_environment_error_in_a_worker_is_the_cause() -> None:
    env = remote("Exits")
    with pytest.raises(EnvironmentFailure, match="SystemExit: 7") as raised:
        play(env, 2000)
    assert isinstance(raised.value.__cause__, SystemExit)


UNGUARDED = "import adagoal\nadagoal.explore('FrozenLake-v1', radius=3, workers=2, budget=200)\n"
# Certification sends more to a worker than a pipe holds.
UNGUARDED_CERTIFICATION = """import adagoal
starts = {"x": (-1, 1), "theta": (-0.05, 0.05)}
adagoal.certify(lambda seen: 0, "CartPole-v1", starts=starts, criterion="survive:5", success=0.5, slack=0.2)
"""


@pytest.mark.parametrize(
    ("script", "place", "said"),
    [
        (UNGUARDED, "script.py", 'which starts the run again; put the call under if __name__ == "__main__":'),
        (UNGUARDED, "-", "but <stdin> is not a file; save the script as a file"),
        (
            UNGUARDED_CERTIFICATION,
            "script.py",
            'which starts the run again; put the call under if __name__ == "__main__":',
        ),
    ],
)
def test_script_without_main_guard_gives_one_line_error(script: str, place: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(script)
    where = str(tmp_path / place) if place != "-" else place
    call: dict[str, Any] = {"input": script, "capture_output": True, "text": True, "timeout": 120, "check": False}
    done = subprocess.run([sys.executable, where], **call)
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1, "that of the script itself, none of its workers"
    assert done.stderr.splitlines()[-1].endswith(f"worker processes import the script, {said}")


def test_process_that_cannot_start_can_be_stopped() -> None:
    worker = WorkerProcess(lambda: None, "none")
    with pytest.raises((AttributeError, pickle.PicklingError)):
        worker.start()
    assert not worker.is_alive
    worker.stop()
