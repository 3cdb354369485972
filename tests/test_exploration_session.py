"""Exploration sessions: failures, interruptions, saving, and void certificates."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core import event

import adagoal
import damaged_folders
from adagoal import goal_rules, methods
from adagoal.certified.explorer import CertifiedExplorer
from adagoal.cli.main import run_command_line as command
from adagoal.core.errors import EnvironmentFailure, FolderWarning, RunWarning, Status
from adagoal.core.exploration_run import ExplorationRun
from adagoal.core.run_settings import ExplorationSettings
from adagoal.envs import registry, toy_models
from adagoal.envs.simulator import ModelSimulator
from adagoal.runs import run_folder
from adagoal.runs.exploration_session import ExplorationSession
from adagoal.runs.progress_display import CostEstimator
from adagoal.runs.run_folder import MANIFEST_FILE, find_saved_run
from model_env import Drifting, ModelEnv


class Fragile(ModelEnv):
    """Raises once, in step 500."""

    steps, error = 0, RuntimeError("the motor is on fire")

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 500:
            raise self.error
        return super().step(action)


def fragile() -> Fragile:
    return Fragile(toy_models.chain_model(n_states=6, slip=0.1))


# --- failures ---


def test_bug_keeps_its_traceback_and_the_data_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, calls = CertifiedExplorer.exploration_plan, []

    def breaks(self: CertifiedExplorer) -> Any:
        calls.append(1)
        return plan(self) if len(calls) < 50 else self.no_such_thing  # type: ignore[attr-defined]

    monkeypatch.setattr(CertifiedExplorer, "exploration_plan", breaks)
    with pytest.raises(AttributeError, match="no_such_thing") as caught:
        adagoal.explore("grid", radius=8, epsilon=0.1, out=tmp_path)
    assert "breaks" in [entry.name for entry in caught.traceback]
    assert caught.value.__notes__ == [f"what had been learnt is in {tmp_path}"]
    monkeypatch.undo()
    kept = adagoal.load(tmp_path)
    assert kept.status is Status.INTERRUPTED
    assert kept.steps > 0
    assert adagoal.resume(tmp_path, budget=kept.steps + 1000).steps > kept.steps


def test_bug_is_not_reported_as_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CertifiedExplorer, "exploration_plan", lambda self: self.no_such_thing)
    with pytest.raises(AttributeError):
        command(["explore", "grid", "--radius", "5", "--quiet", "--out", str(tmp_path)])


@pytest.mark.parametrize("error", [RuntimeError("the motor is on fire"), SystemExit(3)])
def test_environment_failure_names_its_cause(error: BaseException) -> None:
    env = fragile()
    env.error = error  # type: ignore[assignment]
    with pytest.raises(EnvironmentFailure, match=f"Fragile raised {type(error).__name__}") as caught:
        adagoal.explore(env, radius=8, epsilon=0.1)
    assert caught.value.__cause__ is error


def test_failures_of_rule_and_observer_are_named() -> None:
    def breaks(_: Any) -> Any:
        raise KeyError("nothing")

    with pytest.raises(EnvironmentFailure, match="goal_rule: the rule raised KeyError"):
        adagoal.explore("grid", radius=8, goal_rule=breaks)
    with pytest.raises(EnvironmentFailure, match="observe: the function raised KeyError"):
        adagoal.explore("grid", radius=8, observe=breaks)
    within = CostEstimator(breaks)
    with pytest.raises(EnvironmentFailure, match="observe: the function raised KeyError"):
        adagoal.explore("grid", radius=8, observe=within)


def test_error_of_a_built_in_observer_is_raised_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CostEstimator, "_estimate_cost", lambda self, run: {}["a mistake of ours"])
    with pytest.raises(KeyError, match="a mistake of ours"):
        adagoal.explore("grid", radius=8, observe=CostEstimator(lambda run: None))


# --- observers that end a run ---


def test_observer_that_returns_false_ends_the_run() -> None:
    calls: list[int] = []

    def enough(run: ExplorationRun) -> bool:
        calls.append(run.steps)
        return len(calls) < 5

    result = adagoal.explore("grid", radius=8, observe=enough)
    assert (result.status, len(calls), result.steps) == (Status.INTERRUPTED, 5, calls[-1])


# --- void ---


def test_lost_transition_voids_the_resumed_run(tmp_path: Path) -> None:
    env = fragile()
    with pytest.raises(EnvironmentFailure):
        adagoal.explore(env, radius=6, epsilon=3.0, out=tmp_path)
    assert adagoal.load(tmp_path).status is Status.INTERRUPTED  # the data so far is complete
    result = adagoal.resume(tmp_path, env=env)
    assert result.status is Status.VOID
    assert "1 transition" in result.void[0]
    assert result.certified_radius is None


def test_drift_across_a_resume_is_detected(tmp_path: Path) -> None:
    """The dynamics change exactly at the resume; each part alone looks stationary."""
    env = Drifting(toy_models.chain_model(n_states=6, slip=0.1))
    first = adagoal.explore(env, radius=8, epsilon=0.05, budget=3_990, out=tmp_path)
    assert (first.status, first.void) == (Status.BUDGET, [])
    second = adagoal.resume(tmp_path, budget=5_000, env=env)
    assert second.status is Status.VOID
    assert any("changed during the run" in reason for reason in second.void)


def test_void_run_has_its_exit_code_and_headline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adagoal.envs.simulator.ModelSimulator.void_reasons", ["the sky fell"], raising=False)
    monkeypatch.setattr("adagoal.envs.simulator.ModelSimulator.__setattr__", _all_but_void)
    assert command(["explore", "chain", "--radius", "3", "--quiet", "--out", str(tmp_path)]) == 4
    output = capsys.readouterr()
    assert "Void" in output.out
    assert "void: the sky fell" in output.err
    assert adagoal.load(tmp_path).void == ["the sky fell"]
    assert "the sky fell" in (tmp_path / "report.html").read_text()


def _all_but_void(self: Any, name: str, value: Any) -> None:
    if name != "void_reasons":
        object.__setattr__(self, name, value)


# --- no code from a folder ---


def test_rule_file_named_only_by_the_folder_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark, rule = tmp_path / "ran", tmp_path / "rule.py"
    text = "def even(known):\n    return known.eligible.astype(float)\n"
    rule.write_text(f"import pathlib; pathlib.Path({str(mark)!r}).touch()\n{text}")
    spec, folder = f"{rule}:even", tmp_path / "run"
    assert command(["explore", "chain", "--radius", "5", "--budget", "50", "--goal-rule", spec, "--quiet",
                    "--out", str(folder)]) == 3  # fmt: skip
    mark.unlink()
    go_on = ["resume", str(folder), "--budget", "90", "--quiet"]
    assert command(go_on) == 2
    assert not mark.exists()
    assert "--goal-rule: the run has the rule" in capsys.readouterr().err
    assert command([*go_on, "--goal-rule", spec]) == 3
    assert command(["resume", str(folder), "--budget", "130", "--quiet", "--trust"]) == 3
    assert mark.exists()


def test_module_named_only_by_the_folder_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = tmp_path / "ran"
    (tmp_path / "evil_world.py").write_text(f"import pathlib; pathlib.Path({str(mark)!r}).touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "run"
    assert (
        command(["explore", "FrozenLake-v1", "--radius", "3", "--budget", "50", "--quiet", "--out", str(folder)]) == 3
    )
    damaged_folders.forged_json(folder, "result.json", lambda data: data.update(env="evil_world:FrozenLake-v1"))
    command(["audit", str(folder)])
    command(["report", str(folder)])
    assert not mark.exists()


# --- bad input, other runs, signals and full disks ---


@pytest.mark.parametrize("function", [adagoal.play, adagoal.load, adagoal.resume])
def test_invalid_path_gives_one_line_error(function: Any) -> None:
    with pytest.raises(adagoal.InputError, match="must be the path of a run's folder, got 5"):
        function(5)
    with pytest.raises(adagoal.InputError, match="out: must be the path of a run's folder, got 5"):
        adagoal.explore("chain", 4, budget=9, out=5)  # type: ignore[arg-type]
    with pytest.raises(adagoal.InputError, match="out: must be the path of a run's folder, got ''"):
        adagoal.explore("chain", 4, budget=9, out="")


LONG: Any = 10**5000


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"radius": 10**400}, r"radius: must be a number in \[1, 1e\+09\] or auto.*, got a whole number of 1329 bits"),
        ({"radius": LONG}, "radius: must be a number"),
        ({"epsilon": LONG}, "epsilon: must be a number"),
        ({"delta": 10**400}, "delta: must be a number"),
        ({"budget": LONG}, "budget: must be a whole number in"),
        ({"workers": LONG}, "workers: must be a whole number in"),
        ({"step_timeout": LONG}, "step_timeout: must be a number"),
        ({"method_args": 5}, "method_args: must be a dictionary of named values, got 5"),
        ({"method_args": {5: 5}}, "method_args: must be a dictionary of named values"),
        ({"out": "x" * 5000}, r"out: 'x+' cannot be the path of a run's folder \(File name too long\)"),
        ({"goals": "x" * 5000 + ".py:f"}, "goals: no such file"),
        ({"goal_rule": "x" * 5000 + ".py:f"}, "goal_rule: no such file"),
        ({"env": np.full((1, 32_767, 1), 1.0)}, "the model has 32767 actions; at most 32766 are possible"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_too_large_values_and_wrong_types_give_one_line_error(given: dict[str, Any], said: str) -> None:
    with pytest.raises(adagoal.InputError, match=said) as output:
        adagoal.explore(**{"env": "chain", "radius": 4, **given})
    assert "\n" not in str(output.value)


@pytest.mark.parametrize("function", [adagoal.play, adagoal.load, adagoal.resume, adagoal.transitions, adagoal.show])
def test_too_long_path_gives_one_line_error(function: Any) -> None:
    with pytest.raises(adagoal.InputError, match="File name too long"):
        function("x" * 5000)


@pytest.mark.parametrize("radius", ["auto", "all"])
def test_resume_of_a_finished_curriculum_does_nothing(tmp_path: Path, radius: str) -> None:
    chain = {"n_states": 4, "slip": 0.0}
    done = adagoal.explore("chain", radius, env_args=chain, out=tmp_path, budget=40_000)
    assert done.status == "certified"
    assert done.certified_radius > 2.0, "more than one stage"
    again = adagoal.resume(tmp_path)
    assert (again.status, again.steps, again.certified_radius) == ("certified", done.steps, done.certified_radius)
    assert again.certificates == done.certificates


def test_curriculum_that_may_not_end_gives_a_warning() -> None:
    """State 2 is unreachable, so no radius is large enough for all goals."""
    P = np.zeros((3, 1, 3))
    P[[0, 1, 2], 0, [1, 1, 2]] = 1.0
    radii = []
    with pytest.warns(RunWarning, match="no goal has been found beyond a radius of 2, and those within 16 are"):
        adagoal.explore(P, radius="all", observe=lambda run: radii.append(run.estimates.L) or run.estimates.L < 128)
    assert max(radii) == 128


def test_run_on_another_model_is_not_overwritten(tmp_path: Path) -> None:
    """All models given as matrices have the same name."""
    P = np.zeros((3, 1, 3))
    P[[0, 1, 2], 0, [1, 2, 2]] = 1.0
    Q = P.copy()
    Q[0, 0] = 0.5, 0.5, 0.0
    first = adagoal.explore(P, radius=4, out=tmp_path / "run")
    other = adagoal.explore(Q, radius=4)
    with pytest.raises(adagoal.InputError, match=r"out: .* holds a run with another model"):
        adagoal.explore(Q, radius=4, out=tmp_path / "run")
    with pytest.raises(adagoal.InputError, match="another model"):
        other.save(tmp_path / "run")
    assert adagoal.load(tmp_path / "run").certificates == first.certificates
    with pytest.warns(RunWarning, match="already contains this finished run; overwrite=True runs it again"):
        again = adagoal.explore(P, radius=4, out=tmp_path / "run")
    assert again.certificates == first.certificates
    assert adagoal.explore(Q, radius=4, out=tmp_path / "run", overwrite=True).certificates == other.certificates


def test_rule_cannot_be_replaced_on_resume(tmp_path: Path) -> None:
    adagoal.explore("chain", 3, budget=10, out=tmp_path / "named")
    for other in ("unigoal", lambda known: known.E):
        with pytest.raises(adagoal.InputError, match=r"^goal_rule: the run has the rule 'adagoal', not .*; leave"):
            adagoal.resume(tmp_path / "named", budget=20, goal_rule=other)
    assert adagoal.resume(tmp_path / "named", budget=20, goal_rule="adagoal").steps == 20
    adagoal.explore("chain", 3, budget=10, goal_rule=lambda known: known.E, out=tmp_path / "own")
    with pytest.raises(adagoal.InputError, match="the run has the rule '<lambda>', not 'unigoal'; give it again"):
        adagoal.resume(tmp_path / "own", budget=20, goal_rule="unigoal")
    assert adagoal.resume(tmp_path / "own", budget=20, goal_rule=lambda known: known.E).steps == 20


def test_arguments_may_be_numpy_numbers(tmp_path: Path) -> None:
    given: dict[str, Any] = {"env": "grid", "radius": 3, "env_args": {"rows": np.int64(2), "cols": np.int64(2)}}
    result = adagoal.explore(**given, out=tmp_path / "run")
    assert json.loads(json.dumps(result.to_dict()))["env_args"] == {"rows": 2, "cols": 2}
    with pytest.warns(RunWarning, match="already contains this finished run"):
        adagoal.explore(**given, out=tmp_path / "run")
    by_seed = [adagoal.explore("Taxi-v4", 2, start_seed=seed) for seed in (3, np.int64(3))]
    assert by_seed[0].certificates == by_seed[1].certificates
    with pytest.raises(adagoal.InputError, match="holds a run with another env_args, goals;"):
        adagoal.explore("grid", 3, goals=[1], out=tmp_path / "run")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"env": ModelEnv(toy_models.chain_model(n_states=5, slip=0.1))}, "an environment object"),
        ({"env": "chain", "goals": lambda state: state}, "goals that are functions"),
        ({"env": "chain", "goal_rule": lambda known: known.E}, "a goal rule that is a function"),
    ],
)
def test_run_that_cannot_be_compared_is_not_overwritten(tmp_path: Path, given: dict[str, Any], named: str) -> None:
    adagoal.explore(**given, radius=3, out=tmp_path / "run")
    before = (tmp_path / "run" / MANIFEST_FILE).read_bytes()
    with pytest.raises(adagoal.InputError, match=f"out: .* holds a finished run with {named}, which may differ"):
        adagoal.explore(**given, radius=3, out=tmp_path / "run")
    assert (tmp_path / "run" / MANIFEST_FILE).read_bytes() == before
    adagoal.explore(**given, radius=3, out=tmp_path / "run", overwrite=True)


def test_ctrl_c_does_not_interrupt_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ExplorationSession.result

    def pressed(self: ExplorationSession, status: Status) -> adagoal.Result:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        return made(self, status)

    monkeypatch.setattr(ExplorationSession, "result", pressed)
    assert adagoal.explore("chain", 8, budget=300, out=tmp_path).status == "budget"
    assert adagoal.load(tmp_path).steps == 300


def press_twice() -> None:
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)


def test_second_ctrl_c_does_not_interrupt_adagoal_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rollout, calls = ModelSimulator.rollout, []

    def pressed(*given: Any) -> Any:
        outcome = rollout(*given)
        calls.append(1)
        if len(calls) == 50:
            press_twice()
        return outcome

    monkeypatch.setattr(ModelSimulator, "rollout", pressed)
    result = adagoal.explore("grid", radius=8, epsilon=0.1, out=tmp_path)
    assert result.status is Status.INTERRUPTED
    assert result.steps == result.arrays["visits"].sum()
    monkeypatch.undo()
    whole = adagoal.explore("grid", radius=8, epsilon=0.1, budget=20_000)
    assert adagoal.resume(tmp_path, budget=20_000).certificates == whole.certificates, "the rollout came to its end"


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, SystemError])
def test_second_ctrl_c_interrupts_an_environment(error: type[BaseException] | None, tmp_path: Path) -> None:
    class Hanging(ModelEnv):
        steps = 0

        def step(self, action: Any) -> Any:
            self.steps += 1
            if self.steps == 5_000:
                try:
                    press_twice()
                    raise AssertionError("it was not interrupted")
                except KeyboardInterrupt:
                    if error is not None:
                        raise error from None
            return super().step(action)

    env = Hanging(toy_models.chain_model(n_states=6, slip=0.1))
    result = adagoal.explore(env, radius=8, epsilon=0.01, out=tmp_path)
    assert (result.status, result.void) == (Status.INTERRUPTED, [])
    assert result.steps == result.arrays["visits"].sum() > env.steps - 1
    assert adagoal.resume(tmp_path, budget=result.steps + 1_000, env=env).warnings == result.warnings


BURST = """
import signal, sys
import adagoal
from adagoal.envs import toy_models
from model_env import ModelEnv

signal.signal(signal.SIGINT, signal.SIG_IGN)  # after the run

def ready(run):
    if run.steps > 20_000:
        print("ready", flush=True)

env = ModelEnv(toy_models.chain_model(n_states=30, slip=0.1))
result = adagoal.explore(env, radius=40, epsilon=0.05, budget=10**6, out=sys.argv[1], observe=ready)
print(result.status, int(result.arrays["visits"].sum()) - result.steps)
"""


def test_burst_of_signals_loses_no_data(tmp_path: Path) -> None:
    where = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", BURST, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=where) as child:
        assert child.stdout is not None
        child.stdout.readline()
        while child.poll() is None:
            child.send_signal(signal.SIGINT)
            time.sleep(0.0003)
        out, error = child.communicate()
    assert (child.returncode, out.splitlines()[-1], error) == (0, "interrupted 0", "")
    assert adagoal.load(tmp_path).steps > 20_000


def test_run_continues_with_a_warning_while_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, saves = run_folder.RunFolder._write_staged_file, iter([False, True])

    def full(self: run_folder.RunFolder, *arguments: Any) -> Any:
        if next(saves, False):
            raise adagoal.InputError("checkpoint.npz: cannot be written (No space left on device)")
        return real(self, *arguments)

    monkeypatch.setattr(run_folder, "MIN_SAVE_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(run_folder, "MAX_SAVE_TIME_SHARE", 1e9)
    monkeypatch.setattr(run_folder.RunFolder, "_write_staged_file", full)
    with pytest.warns(FolderWarning, match=r"No space left on device\); the run goes on, and tries again later"):
        result = adagoal.explore("chain", 8, budget=300, out=tmp_path / "run")
    assert result.steps == adagoal.load(tmp_path / "run").steps == 300


@pytest.mark.parametrize("room", ["folder", "temporary", "nowhere"])
def test_result_is_saved_elsewhere_if_the_disk_is_full(
    room: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run can be resumed from its last checkpoint."""
    out, real, begun = tmp_path / "full", run_folder.RunFolder._write_staged_file, []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()

    def full(self: run_folder.RunFolder, name: str, *rest: Any) -> Any:
        small = room == "folder" and name not in ("checkpoint.npz", "transitions.npz")
        if begun and not small and (self.path == out or room != "temporary"):
            raise adagoal.InputError(f"{name}: cannot be written (No space left on device)")
        return real(self, name, *rest)

    given: dict[str, Any] = {"env": toy_models.chain_model(n_states=5), "radius": 8, "epsilon": 2.0, "record": True}
    whole = adagoal.explore(**given, out=tmp_path / "whole")
    monkeypatch.setattr(run_folder.RunFolder, "_write_staged_file", full)
    says = r"No space left on device\); the answer \(certified, 5 goals within 8 steps\) "
    with pytest.raises(adagoal.InputError, match=says) as output:
        adagoal.explore(**given, out=out, observe=lambda run: begun.append(run.steps))
    monkeypatch.setattr(run_folder.RunFolder, "_write_staged_file", real)
    kept = next((tmp_path / "temporary").iterdir()) if room == "temporary" else out
    where = "could not be saved elsewhere either" if room == "nowhere" else f"is in {kept}"
    assert str(output.value).endswith(f" {where}; {out} holds an earlier checkpoint, from which the run can go on")
    if room != "nowhere":
        assert adagoal.load(kept).certificates == whole.certificates
        assert adagoal.audit(adagoal.load(kept)).ok, "the model, which only the first save writes, is there too"
    assert adagoal.resume(out).certificates == whole.certificates
    np.testing.assert_array_equal(adagoal.transitions(out)["action"], adagoal.transitions(tmp_path / "whole")["action"])


def test_environment_that_changes_the_current_folder_moves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is written to the same relative path in another folder, which may hold another run."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    adagoal.explore("chain", 3, 2.0, out=elsewhere / "run")
    before = {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()}
    moves = ["failing_envs:Moves-v0", "--env-arg", f"to={elsewhere}"]
    asked = ["--radius", "9", "--budget", "300", "--out", "run", "--record", "--quiet"]
    monkeypatch.chdir(here)
    assert command(["explore", *moves, *asked]) == 3
    assert "report: run/report.html\n" in capsys.readouterr().out
    assert {"result.json", "transitions.npz", "report.html"} <= {path.name for path in (here / "run").iterdir()}
    monkeypatch.chdir(here)
    assert command(["resume", "run", "--env", "failing_envs:Moves-v0", "--budget", "600", "--quiet"]) == 3
    assert adagoal.load(here / "run").steps == 600
    assert {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()} == before


def test_out_of_memory_error_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def greedy(self: CertifiedExplorer, wanted: Any) -> bool:
        raise MemoryError

    monkeypatch.setattr(CertifiedExplorer, "refresh_columns", greedy)
    assert command(["explore", "chain", "--radius", "5", "--out", str(tmp_path), "--quiet"]) == 2
    said = f"(allocation failed); what had been learnt is in {tmp_path}\n"
    assert capsys.readouterr().err == f"error: not enough memory for a problem of this size {said}"


def checkpoint(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the checkpoint of a folder, without its seconds."""
    saved = find_saved_run(folder)
    assert saved is not None
    arrays, facts = saved.checkpoint_files().load_arrays("checkpoint.npz")
    return dict(arrays), facts | {"seconds": 0}


@pytest.mark.parametrize("ended", ["budget", "interrupted"])
def test_result_of_an_early_end_uses_all_data(ended: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goals with outdated bounds are updated for the result; this does not change the resumed run."""
    whole: dict[str, Any] = {"env": "two-room", "radius": 20, "epsilon": 2.0, "seed": 3}
    some: dict[str, Any] = {"budget": 20_000} if ended == "budget" else {"observe": lambda run: run.steps < 20_000}
    now = adagoal.explore(**whole, **some, out=tmp_path / "now")
    with monkeypatch.context() as patch:
        patch.setattr(CertifiedExplorer, "finalize", lambda self, wanted: None)
        late = adagoal.explore(**whole, **some, out=tmp_path / "late")
    assert now.status == late.status == ended
    assert len(now.open_goals) < len(late.open_goals)
    assert adagoal.audit(now).certificates
    kept, same = (checkpoint(tmp_path / name) for name in ("now", "late"))
    for name, array in kept[0].items():
        np.testing.assert_array_equal(array, same[0][name])
    assert kept[1] == same[1]
    if ended == "interrupted":  # a budget may split a rollout, and then the goals are evaluated once more
        again, straight = adagoal.resume(tmp_path / "now", budget=25_000), adagoal.explore(**whole, budget=25_000)
        assert (again.steps, again.plans, again.certificates) == (straight.steps, straight.plans, straight.certificates)


MIXTURES = ("likelihood", "vtr", "vtr-pooled")
SLOW = {"vtr": 1_000, "bayes": 500}
"""Budgets of methods with slow planning."""


@pytest.mark.parametrize("name", methods.METHODS)
def test_wall_seconds_count_planning_and_playing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every method counts both, so seconds can be compared.

    Processor time of this thread stands for wall time, so a busy machine changes nothing. The first run compiles.
    """
    env = "mixture-windy" if name in MIXTURES else "grid"
    arguments = {"constants": "scaled=0.01"} if "constants" in methods.accepted_arguments(name) else {}
    goal = (3,) if name == "bpi-ucbvi" else None
    setting = ExplorationSettings(env, method=name, method_args=arguments, radius=6, epsilon=1.0, goal_space=goal)
    monkeypatch.setattr(time, "perf_counter", time.thread_time)
    gc.disable()  # garbage collection would be charged to whichever code allocates
    try:
        for _ in range(2):
            adapter, _ = registry.make_single_env(env, {}, None, None)
            session = ExplorationSession.from_settings(setting, adapter, goal_rules.resolve_rule("adagoal"))
            began = time.thread_time()
            methods.find_method(name).run_loop(session.run, SLOW.get(name, 5000))
            took = time.thread_time() - began
    finally:
        gc.enable()
    assert 0.9 * took <= session.run.seconds <= took


def test_wall_seconds_exclude_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ExplorationSession.from_settings(
        ExplorationSettings("chain", radius=3),
        ModelSimulator(toy_models.chain_model()),
        goal_rules.resolve_rule("adagoal"),
    ).run
    now = 0.0
    for module, name in ((time, "perf_counter"), (event, "timer")):
        monkeypatch.setattr(module, name, lambda: now)
    with run.measure_seconds():
        now += 2.0
        with event.trigger_event("numba:compiler_lock"):
            now += 5.0
    assert run.seconds == 2.0
