"""Task engines: every task has an outcome although workers and nodes die, and results do not depend on the engine."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adagoal
from adagoal.cli.main import run_command_line
from adagoal.comparison import method_comparison
from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.core.exploration_run import ExplorationRun
from adagoal.core.installation import install_command
from adagoal.parallel import engines
from adagoal.parallel.engines import Engine, LocalEngine, RayHost, RayWorker, TaskInterrupted, TaskResources, WorkerLost
from adagoal.parallel.worker_process import WorkerDied, WorkerFailure, WorkerKilled, unwrap_reply
from engine_tasks import Buggy, begun, die, fail, refuse, slowly, square
from experiments import arena
from experiments import experiment as runner
from experiments.__main__ import run as run_experiment
from experiments.experiment import Experiment
from fake_ray import FakeRay, FakeRayActors

FRESH = TaskResources(fresh_process=True)


@pytest.mark.parametrize(
    ("jobs", "needs", "processes"), [(1, TaskResources(), 1), (2, TaskResources(), 2), (1, FRESH, 5)]
)
def test_local_tasks_return_their_outcomes(jobs: int, needs: TaskResources, processes: int) -> None:
    found = dict(LocalEngine(jobs, print).map(square, {str(x): (x,) for x in range(5)}, needs))
    assert {name: outcome[0] for name, outcome in found.items()} == {"0": 0, "1": 1, "2": 4, "3": 9, "4": 16}
    where = {outcome[1] for outcome in found.values()}
    assert len(where) <= processes
    assert (os.getpid() in where) == (jobs == 1 and not needs.fresh_process)
    assert len(where) == processes or not needs.fresh_process
    assert list(LocalEngine(jobs, print).map(square, {}, needs)) == []


def test_task_of_a_killed_worker_is_retried_and_finally_given_up(tmp_path: Path) -> None:
    said: list[str] = []
    tasks = {"once": (tmp_path / "once", 1), "always": (tmp_path / "always", 99), "never": (tmp_path / "never", 0)}
    found = []
    with pytest.raises(WorkerLost, match=r"^always failed 3 times: its process was killed \(SIGKILL\)"):
        found.extend(LocalEngine(2, said.append).map(die, tasks, TaskResources()))
    assert sorted(found) == [("never", "alive"), ("once", "alive")]
    assert said.count("always: its process was killed (SIGKILL); trying again") == 2
    assert sum(line.startswith("once: ") for line in said) == 1


@pytest.mark.parametrize("jobs", [1, 2])
def test_error_of_a_task_stops_all_tasks(jobs: int) -> None:
    tasks = {"a": (InputError("no", name="radius"),), "b": (InputError("no", name="radius"),)}
    with pytest.raises(InputError, match="radius: no"):
        list(LocalEngine(jobs, print).map(refuse, tasks, TaskResources()))
    assert not multiprocessing.active_children()


def test_task_that_was_interrupted() -> None:
    with pytest.raises(KeyboardInterrupt):
        list(LocalEngine(1, print).map(refuse, {"a": (TaskInterrupted("asked"),)}, TaskResources()))
    with pytest.raises(WorkerLost, match=r"^(a|b) and 1 more failed 3 times: asked"):
        list(
            LocalEngine(2, lambda line: None).map(
                refuse, {"a": (TaskInterrupted("asked"),), "b": (TaskInterrupted("asked"),)}, TaskResources()
            )
        )


WRONG = [
    ("bug", KeyError, "^1$"),
    ("unpicklable", RuntimeError, "^Unpicklable: odd$"),
    ("particular", RuntimeError, "^OneWayPickle: odd$"),
]


@pytest.mark.parametrize(("kind", "error", "message"), [*WRONG, ("answer", Exception, "pickle")])
def test_bug_in_a_local_task_keeps_its_traceback_and_is_not_retried(
    kind: str, error: type[Exception], message: str
) -> None:
    said: list[str] = []
    with pytest.raises(error, match=message) as raised:
        list(LocalEngine(1, said.append).map(fail, {"a": (kind,)}, FRESH))
    assert said == []
    assert ("in fail" if kind != "answer" else "pickle.dumps(reply)") in str(raised.value.__cause__)


@pytest.mark.parametrize(("kind", "error", "message"), WRONG)
def test_bug_in_a_task_on_ray_keeps_its_traceback(
    kind: str, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_ray(monkeypatch, set())
    with pytest.raises(error, match=message) as raised:
        list(engines.make_engine("ray", None, None, print).map(fail, {"a": (kind,)}, TaskResources()))
    assert "in fail" in str(raised.value.__cause__)


def test_bug_in_a_worker_on_ray_keeps_its_traceback() -> None:
    host = RayHost(pickle.dumps(Buggy))
    with pytest.raises(KeyError) as raised:
        unwrap_reply(host.call("step", "bug"))
    assert "in fail" in str(raised.value.__cause__)
    assert isinstance(RayHost(b"no pickle").call("step"), WorkerFailure)


def test_lost_workers_on_ray_are_classified(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRayActors()
    monkeypatch.setitem(sys.modules, "ray", ray)
    worker = RayWorker(Buggy, "the worker")

    def call_lost(**what: bool) -> EnvironmentFailure:
        worker.start()
        worker.send("step", "bug")
        with pytest.raises(KeyError):
            worker.receive(60)
        vars(worker._actor).update(what)
        worker.send("step", "bug")
        with pytest.raises(EnvironmentFailure) as raised:
            worker.receive(60)
        assert not worker.is_alive
        return raised.value

    assert str(call_lost(hangs=True)) == "the worker took longer than 60 s"
    by_itself = call_lost(is_dead=True)
    assert (type(by_itself), str(by_itself)) == (WorkerDied, "the worker ended by itself")
    ray.machine_is_alive = False
    killed = call_lost(is_dead=True)
    assert (type(killed), str(killed)) == (WorkerKilled, "the worker was killed (its machine is gone)")


def test_closing_the_iterator_stops_the_workers() -> None:
    began = time.monotonic()
    found = LocalEngine(2, print).map(time.sleep, {"short": (0.01,), "long": (600.0,)}, TaskResources())
    assert next(iter(found)) == ("short", None)
    found.close()  # type: ignore[attr-defined]
    assert time.monotonic() - began < 60
    assert not multiprocessing.active_children()


def test_importing_adagoal_imports_no_ray() -> None:
    code = "import sys, adagoal, adagoal.cli.main, adagoal.parallel.engines; assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_bad_engines_give_one_line_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    compare = ["compare", "chain", "--radius", "5", "--out", str(tmp_path)]
    assert run_command_line([*compare, "--engine", "ray"]) == 2
    assert capsys.readouterr().err.endswith(f"engine: needs ray: {install_command('ray')}\n")
    assert run_command_line([*compare, "--address", "here:1"]) == 2
    assert "address: works with the engine ray only" in capsys.readouterr().err
    with pytest.raises(InputError, match="engine: must be one of local, ray"):
        engines.make_engine("magic")


def test_experiment_continues_after_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small(monkeypatch)
    line = ["arena", "--seeds", "1", "--jobs", "1", "--budget", "5000", "--out", str(tmp_path)]
    measure, left = method_comparison.write_json, [2]

    def stop(path: Path, data: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        measure(path, data)

    monkeypatch.setattr(method_comparison, "write_json", stop)
    assert run_experiment(line) == 3
    assert "interrupted: 2 of 4 runs are saved" in capsys.readouterr().err
    monkeypatch.setattr(method_comparison, "write_json", measure)
    assert run_experiment(line) == 0
    assert "2 of 4 runs are in the folder already" in capsys.readouterr().err
    left[0] = 0
    monkeypatch.setattr(method_comparison, "write_json", stop)
    assert run_experiment([*line[:-1], str(tmp_path / "other")]) == 130, "nothing is kept"


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use two methods on two environments."""
    monkeypatch.setattr(arena, "WORLDS", ({"env": "chain", "radius": 5.0}, {"env": "grid", "radius": 6.0}))
    monkeypatch.setattr(arena, "GOAL_RULES", ("adagoal",))
    monkeypatch.setattr(arena, "OTHERS", ("gosprl:constants=paper",))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head and a second node, of one core each."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path])
    )  # for the worker processes
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    room = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    soon = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 2}
    head = {"include_dashboard": False, "_system_config": soon, **room}
    found = Cluster(initialize_head=True, head_node_args=head)
    found.add_node(**room)
    yield found
    ray.shutdown()
    found.shutdown()


class LosesNode:
    """An engine that loses its second node after the first outcome, while that node is working."""

    def __init__(self, engine: Engine, cluster: Any, folder: Path) -> None:
        self.engine, self.cluster = engine, cluster
        (self.node,) = cluster.worker_nodes
        self.place = begun(folder, self.node.node_id)
        folder.mkdir()
        self.place.touch()

    def map(self, *arguments: Any) -> Iterator[tuple[str, Any]]:
        found = iter(self.engine.map(*arguments))
        yield next(found)
        while not self.place.stat().st_size:
            time.sleep(0.01)
        self.cluster.remove_node(self.node, allow_graceful=False)
        yield from found

    def close(self) -> None:
        self.engine.close()


def tables(experiment: Experiment, folder: Path, engine: Engine, **given: Any) -> tuple[str, set[str]]:
    """Return the tables of an arena, and the names of its cells."""
    runner.run_experiment(
        experiment,
        experiment.fill_in_defaults(out=folder, **given),
        engine,
        runner.RunsProgress(quiet=True),
    )
    engine.close()
    return (folder / "arena.md").read_text(), {file.name for file in (folder / "cells").iterdir()}


def without_ray(monkeypatch: pytest.MonkeyPatch, lost: set[int], *machines: dict[str, float]) -> FakeRay:
    found = FakeRay(lost, list(machines) or [{"CPU": 4.0}])
    monkeypatch.setitem(sys.modules, "ray", found)
    return found


def test_tables_do_not_depend_on_lost_and_retried_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow test below does the same with the real Ray."""
    small(monkeypatch)
    ray, said = without_ray(monkeypatch, {1, 8}), []  # the second run, and its first retry
    engine = engines.make_engine("ray", None, None, said.append)
    there = tables(arena.ARENA, tmp_path / "ray", engine, seeds=2, budget=2_000)
    assert [line.partition(": ")[2] for line in said] == ["its worker was lost (NodeDiedError); trying again"] * 2
    assert len(ray.begun) == 10
    assert ray.begun[1] == ray.begun[8] == ray.begun[9]
    assert not ray.up, "what was started here ends with the engine"
    assert there == tables(arena.ARENA, tmp_path / "local", LocalEngine(1, print), seeds=2, budget=2_000)


def test_tasks_on_ray_are_given_up_or_stop_all_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = without_ray(monkeypatch, {0, 2, 3})
    engine = engines.make_engine("ray", 2, None, lambda line: None)
    assert ray.options["num_cpus"] == 2
    found = []
    with pytest.raises(WorkerLost, match=r"^a failed 3 times: its worker was lost \(NodeDiedError\)"):
        found.extend(engine.map(square, {"a": (3,), "b": (4,)}, TaskResources()))
    assert [(name, outcome[0]) for name, outcome in found] == [("b", 16)]
    ray.lost.clear()
    with pytest.raises(WorkerLost, match=r"^c failed 3 times: asked"):
        list(engine.map(refuse, {"c": (TaskInterrupted("asked"),)}, TaskResources()))
    with pytest.raises(InputError, match="radius: no"):
        list(
            engine.map(
                refuse, {"d": (InputError("no", name="radius"),), "e": (InputError("x", name="y"),)}, TaskResources()
            )
        )
    assert ray.cancelled == [len(ray.begun) - 1], "that which was under way"


@pytest.mark.parametrize(
    ("needs", "share"),
    [
        (TaskResources(), {"num_cpus": 1, "num_gpus": 0, "max_retries": 0, "max_calls": 0}),
        (
            TaskResources(cores=8, gpu=True, fresh_process=True),
            {"num_cpus": 4, "num_gpus": 1, "max_retries": 0, "max_calls": 1},
        ),
    ],
)
def test_ray_resources_of_a_task(needs: TaskResources, share: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A task asks for at most the cores of the largest machine, and for a GPU if any machine has one."""
    ray = without_ray(monkeypatch, set(), {"CPU": 4.0}, {"CPU": 2.0, "GPU": 1.0})
    assert dict(engines.make_engine("ray", None, None, print).map(abs, {"a": (-1,)}, needs)) == {"a": 1}
    assert ray.share == share


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_ray_node_is_lost_without_losing_a_cell(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    said: list[str] = []
    ray = LosesNode(engines.make_engine("ray", None, cluster.address, said.append), cluster, tmp_path / "ray")
    there = tables(replace(arena.ARENA, measure_run=slowly), tmp_path / "ray", ray, seeds=2, budget=2_000)
    assert any("its worker was lost" in line for line in said)
    assert there == tables(arena.ARENA, tmp_path / "local", LocalEngine(1, print), seeds=2, budget=2_000)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_arena_on_ray_after_the_loss_of_a_node(cluster: Any, tmp_path: Path) -> None:
    """Run the command with all environments and methods and one seed; a node is killed half-way."""
    out = tmp_path / "ray"
    line = ["-m", "experiments", "arena", "--engine", "ray", "--address", cluster.address]
    line += ["--seeds", "1", "--budget", "20000", "--out", str(out)]
    child = subprocess.Popen([sys.executable, *line])
    wanted = len(arena.ARENA.list_runs(arena.ARENA.fill_in_defaults(seeds=1, budget=20_000)))
    while len(list(out.glob("cells/*.json"))) < wanted // 2:
        assert child.poll() is None
        time.sleep(0.05)
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
    assert child.wait(600) == 0
    there = (out / "arena.md").read_text(), {file.name for file in (out / "cells").iterdir()}
    assert there == tables(arena.ARENA, tmp_path / "local", LocalEngine(2, print), seeds=1, budget=20_000)
    assert len(there[1]) == wanted


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_run_with_workers_on_ray(cluster: Any) -> None:
    """Two nodes give the same run as local workers. After the loss of a node the answer still passes the audit."""
    lake: dict[str, Any] = {"env": "FrozenLake-v1", "radius": 8, "epsilon": 2.0, "workers": 4}
    ray: dict[str, Any] = {"engine": "ray", "address": cluster.address}
    there, here = (adagoal.explore(**lake, budget=5_000, **where) for where in (ray, {}))
    assert there.to_dict() | {"wall_seconds": 0} == here.to_dict() | {"wall_seconds": 0}
    for name, array in here.arrays.items():
        np.testing.assert_array_equal(there.arrays[name], array)
    (node,) = cluster.worker_nodes

    def kill(run: ExplorationRun) -> None:
        if run.steps > 20_000 and cluster.worker_nodes:
            cluster.remove_node(node, allow_graceful=False)

    result = adagoal.explore(**lake, **ray, observe=kill)
    assert not cluster.worker_nodes
    assert (result.status, result.void) == ("certified", [])
    assert any("FrozenLake-v1 was killed (its machine is gone)" in line for line in result.warnings)
    assert adagoal.audit(result).ok
