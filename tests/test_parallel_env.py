"""Several workers with one environment each: deterministic runs, merged data, and lost workers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

import adagoal
from adagoal.api.policy_trials import play as try_out
from adagoal.cli.main import run_command_line
from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.envs import registry, toy_models
from adagoal.envs.env_workers import EnvWorker
from adagoal.envs.parallel_env import ParallelEnv
from adagoal.parallel import engines
from adagoal.parallel.worker_process import WorkerFactory, WorkerKilled
from model_env import MersenneTwister, ModelEnv, PairEnv, SelfTruncating, play, same_counts, with_terminal
from test_action_masks import MaskedEnv, MaskedPairs, masked, never_played

LAKE: dict[str, Any] = {"env": "FrozenLake-v1", "radius": 8, "epsilon": 2.0, "budget": 4_000, "workers": 3}


class InProcessWorker:
    """A worker in this process; the ``failing`` calls, counted over all workers, raise."""

    failing: ClassVar[dict[int, EnvironmentFailure]] = {}
    calls = 0

    def __init__(self, make: Callable[[], EnvWorker], name: str) -> None:
        self._make, self._object = make, None
        self._answer: Any = None

    @property
    def is_alive(self) -> bool:
        return self._object is not None

    def start(self) -> None:
        self._object: Any = self._make()

    def send(self, method: str, *arguments: Any) -> None:
        self._answer = getattr(self._object, method)(*arguments)
        if method == "play_plan":
            InProcessWorker.calls += 1
            self._answer = InProcessWorker.failing.pop(InProcessWorker.calls, self._answer)

    def receive(self, timeout: float | None = None) -> Any:
        if isinstance(self._answer, EnvironmentFailure):
            self.stop()
            raise self._answer
        return self._answer

    def stop(self) -> None:
        self._object = None


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> type[InProcessWorker]:
    """Replace worker processes by workers in this process."""

    @contextlib.contextmanager
    def open_workers(engine: str, address: str | None) -> Iterator[WorkerFactory]:
        yield InProcessWorker

    monkeypatch.setattr(engines, "open_workers", open_workers)
    InProcessWorker.failing, InProcessWorker.calls = {}, 0
    return InProcessWorker


def vector(make: Callable[[], Any], size: int = 3) -> gymnasium.vector.SyncVectorEnv:
    return gymnasium.vector.SyncVectorEnv([make] * size)


def make_parallel_env(make: Callable[[], Any], size: int = 3, **given: Any) -> ParallelEnv:
    env, _ = registry.make_env(vector(make, size), {}, given.get("start_seed"), None, None, size, InProcessWorker)
    assert isinstance(env, ParallelEnv)
    return env


def plain(result: adagoal.Result) -> Any:
    arrays = {name: array.tolist() for name, array in result.arrays.items()}
    return json.dumps([result.to_dict() | {"wall_seconds": 0}, arrays])


def test_seed_and_number_of_workers_determine_the_run(in_process: type[InProcessWorker]) -> None:
    first, again, other = (adagoal.explore(**LAKE | {"workers": n}) for n in (3, 3, 2))
    assert plain(first) == plain(again)
    assert first.steps == other.steps == 4_000
    assert plain(first) != plain(other)
    assert first.setting.workers == 3


def test_worker_processes_give_the_same_run_as_in_process_workers(
    in_process: type[InProcessWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = adagoal.explore(**LAKE)
    monkeypatch.undo()
    assert plain(adagoal.explore(**LAKE)) == plain(expected)


def test_workers_support_every_numpy_generator(in_process: type[InProcessWorker]) -> None:
    counts, _ = play(make_parallel_env(lambda: MersenneTwister(toy_models.chain_model(n_states=5, slip=0.2))), 300)
    assert counts.visits.sum() == 300


def test_transition_frequencies_are_those_of_the_model(in_process: type[InProcessWorker]) -> None:
    mdp = with_terminal(toy_models.chain_model(n_states=6, slip=0.2), 5)
    counts, episodes = play(make_parallel_env(lambda: ModelEnv(mdp)), 30_000)
    assert counts.visits.sum() == 30_000
    assert counts.terminal.tolist() == mdp.terminal.tolist()
    tried = counts.n > 300
    tried[5 * mdp.n_actions :] = False
    assert tried.sum() >= 8
    assert np.abs(counts.empirical_kernel()[tried] - mdp.kernel().toarray()[tried]).max() < 0.12
    assert len(episodes) > 100


@pytest.mark.parametrize("starts", [(0,), (0, 2)])
def test_state_found_by_several_workers_gets_one_number(
    starts: tuple[int, ...], in_process: type[InProcessWorker]
) -> None:
    mdp = toy_models.chain_model(n_states=6, slip=0.2)
    env = make_parallel_env(lambda: PairEnv(mdp, starts))
    counts, _ = play(env, 20_000)
    virtual = len(starts) > 1
    assert len(set(env.labels)) == len(env.labels) == 6 + virtual
    assert counts.seen.sum() == 6 + virtual
    where = {label: s for s, label in enumerate(env.labels)}
    numbers = [0 if s == 0 and not virtual else where[f"[0 {s}]"] for s in range(6)]
    for s in range(6):
        for a in range(mdp.n_actions):
            x = numbers[s] * mdp.n_actions + a
            assert counts.n[x] > 200
            empirical = counts.empirical_kernel()[x, numbers]
            assert np.abs(empirical - mdp.kernel().toarray()[s * mdp.n_actions + a]).max() < 0.12
    assert env.void_reasons == []


@pytest.mark.parametrize(
    "make", [lambda: ModelEnv(toy_models.chain_model()), lambda: PairEnv(toy_models.chain_model(), (0, 2))]
)
def test_resume_equals_uninterrupted_run(
    make: Callable[[], Any], in_process: type[InProcessWorker], tmp_path: Path
) -> None:
    whole = adagoal.explore(vector(make), radius=5, budget=3_000)
    left = [4]

    def stop(run: Any) -> bool:
        left[0] -= 1
        return left[0] > 0

    cut = adagoal.explore(vector(make), radius=5, budget=3_000, out=tmp_path, observe=stop)
    assert cut.status == "interrupted"
    assert 0 < cut.steps < 3_000
    assert plain(adagoal.resume(tmp_path, env=vector(make))) == plain(whole)


def test_interrupted_round_keeps_earlier_rounds(
    in_process: type[InProcessWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    play_round, rounds = ParallelEnv._play_round, []

    def interrupted(self: ParallelEnv, *given: Any) -> Any:
        rounds.append(int(given[1].visits.sum()))
        if len(rounds) > 20 and rounds[-1] > run[0].steps:  # not the first round of its rollout
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)  # handled when the next round starts
        return play_round(self, *given)

    run: list[Any] = []

    def observe(this: Any) -> None:
        run[:] = [this]

    monkeypatch.setattr(ParallelEnv, "_play_round", interrupted)
    result = adagoal.explore(**LAKE | {"epsilon": 0.1, "budget": 40_000}, observe=observe)
    assert result.status == "interrupted"
    assert result.steps == result.arrays["visits"].sum() == rounds[-1]


def test_policies_of_a_parallel_run_can_be_played(in_process: type[InProcessWorker], tmp_path: Path) -> None:
    make = lambda: ModelEnv(toy_models.chain_model(n_states=4))  # noqa: E731
    result = adagoal.explore(vector(make), radius=6, epsilon=2.0, out=tmp_path)
    assert result.status == "certified"
    assert all(trial.agrees for trial in try_out(tmp_path, episodes=40, env=vector(make)))


def test_killed_worker_loses_only_its_round(in_process: type[InProcessWorker]) -> None:
    make = lambda: ModelEnv(toy_models.chain_model(n_states=4))  # noqa: E731
    in_process.failing = {n: WorkerKilled("the process was killed (SIGKILL)") for n in (2, 9, 10, 11)}
    result = adagoal.explore(vector(make), radius=6, epsilon=2.0)
    assert (result.status, result.void) == ("certified", [])
    assert any("a round of worker 1 was discarded" in line for line in result.warnings)
    assert adagoal.audit(result, toy_models.chain_model(n_states=4)).ok
    in_process.failing, in_process.calls = (
        {n: WorkerKilled("the process was killed (SIGKILL)") for n in range(1, 100)},
        0,
    )
    with pytest.raises(InputError, match="was killed"):
        adagoal.explore(vector(make), radius=6)


def test_worker_that_exits_ends_the_run_and_voids_it(in_process: type[InProcessWorker], tmp_path: Path) -> None:
    make = lambda: ModelEnv(toy_models.chain_model(n_states=4))  # noqa: E731
    in_process.failing = {8: EnvironmentFailure("the process ended by itself")}
    with pytest.raises(InputError, match="ended by itself"):
        adagoal.explore(vector(make), radius=6, epsilon=0.5, out=tmp_path)
    # At once: if the bounds stopped the run now, it would be certified by the rounds of the other workers.
    assert adagoal.load(tmp_path).status == "void"
    assert adagoal.resume(tmp_path, 4_000, env=vector(make)).status == "void"


def test_violated_assumptions_are_reported(in_process: type[InProcessWorker]) -> None:
    class Torn(ModelEnv):
        def step(self, action: Any) -> Any:
            state, reward, _, _, info = super().step(action)
            return state, reward, bool(state == 3 and self.np_random.random() < 0.5), False, info

    torn = make_parallel_env(lambda: Torn(toy_models.chain_model(slip=0.1)))
    play(torn, 2_000)
    assert any("ended the episode at one visit and not at another" in line for line in torn.void_reasons)
    late = make_parallel_env(lambda: SelfTruncating(toy_models.chain_model(slip=0.1)))
    play(late, 500)
    assert any("truncated" in line for line in late.warnings)


@pytest.mark.parametrize("kind", [MaskedEnv, MaskedPairs])
def test_masks_are_shared_between_workers(
    kind: type[MaskedEnv], in_process: type[InProcessWorker], tmp_path: Path
) -> None:
    """Workers respect masks that they find and masks that other workers found; the environment raises otherwise."""
    mdp = masked(2)
    setting: dict[str, Any] = {"radius": 5.0, "seed": 2, "workers": 3, "budget": 4_000}
    result = adagoal.explore(vector(lambda: kind(mdp)), **setting)
    assert (result.steps, result.void) == (4_000, [])
    counts, _ = play(make_parallel_env(lambda: kind(mdp)), 2_000)
    assert counts.absent.any()
    assert not counts.n[counts.absent].any()
    if kind is MaskedEnv:
        np.testing.assert_array_equal(counts.absent, mdp.absent)
        assert adagoal.audit(result, mdp).certificates
        assert never_played(result, mdp)


def test_changing_mask_is_detected(in_process: type[InProcessWorker]) -> None:
    class Moody(MaskedEnv):
        def mask(self) -> Any:
            mask = super().mask()
            return mask if self.np_random.random() < 0.9 else np.ones_like(mask)

        def step(self, action: Any) -> Any:
            return *ModelEnv.step(self, action)[:4], {"action_mask": self.mask().astype(np.int8)}

    env = make_parallel_env(lambda: Moody(masked(2)))
    play(env, 500)
    assert any("a state had other actions at one visit than at another" in line for line in env.void_reasons)


def test_restored_environment_gives_the_same_counts(in_process: type[InProcessWorker]) -> None:
    make = lambda: PairEnv(toy_models.chain_model(slip=0.1), (0, 2))  # noqa: E731
    one, two = make_parallel_env(make), make_parallel_env(make)
    counts, _ = play(one, 700)
    arrays, facts = one.state()
    two.restore({name: array.copy() for name, array in arrays.items()}, json.loads(json.dumps(facts)))
    before = counts.state()
    other = type(counts)(one.initial_states, one.n_actions, one.start)
    other.restore({name: array.copy() for name, array in before.items()})
    play(one, 900, seed=1, counts=counts)
    play(two, 900, seed=1, counts=other)
    assert same_counts(counts, other)
    assert one.labels == two.labels
    for broken in ({"restart_counts": [1]}, {"workers": [None]}, {"labels": []}, {"states": [1, 1]}):
        with pytest.raises(ValueError):
            make_parallel_env(make).restore(arrays, facts | broken)


def test_more_states_than_max_states_give_one_line_error(in_process: type[InProcessWorker], tmp_path: Path) -> None:
    make = lambda: PairEnv(toy_models.random_sparse(n_states=30))  # noqa: E731
    with pytest.raises(InputError, match=r"max_states: .* has more than 6 states"):
        adagoal.explore(vector(make), radius=9, max_states=6, out=tmp_path)
    # One row stands for the states that were never met.
    assert len(adagoal.load(tmp_path).arrays["visits"]) == 7


def test_recorded_steps_are_those_of_the_run(in_process: type[InProcessWorker], tmp_path: Path) -> None:
    result = adagoal.explore(**LAKE | {"budget": 500}, out=tmp_path, record=True)
    with np.load(next(tmp_path.glob("**/transitions*.npz"))) as kept:
        assert np.array_equal(np.bincount(kept["state"], minlength=16), result.arrays["visits"])


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"env": "two-room", "workers": 2}, "workers"),
        ({"env": "FrozenLake-v1", "workers": 0}, "workers"),
        ({"env": "FrozenLake-v1", "workers": 1000}, "workers"),
        ({"env": "FrozenLake-v1", "workers": 2.5}, "workers"),
        ({"env": "FrozenLake-v1", "workers": 2, "step_timeout": 3.0}, "step_timeout"),
        ({"env": "FrozenLake-v1", "workers": 2, "engine": "magic"}, "engine"),
        ({"env": "FrozenLake-v1", "workers": 2, "address": "here:1"}, "address"),
        ({"env": ModelEnv(toy_models.chain_model()), "workers": 2}, "workers"),
        ({"env": vector(lambda: ModelEnv(toy_models.chain_model())), "workers": 2}, "workers"),
    ],
)
def test_bad_input_gives_one_line_error(given: dict[str, Any], name: str) -> None:
    with pytest.raises(InputError, match=rf"^{name}: "):
        adagoal.explore(radius=5, **given)


def test_workers_from_the_command_line(
    in_process: type[InProcessWorker], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["explore", "FrozenLake-v1", "--radius", "5", "--budget", "600", "--workers", "2", "--quiet", "--json"]
    assert run_command_line([*line, "--out", str(tmp_path)]) == 3
    assert json.loads(capsys.readouterr().out)["workers"] == 2
    assert run_command_line(["resume", str(tmp_path), "--budget", "900", "--quiet", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["steps"] == 900


@pytest.mark.slow
def test_killed_run_and_killed_workers(tmp_path: Path) -> None:
    """The run is killed once, which does not change it, then one of its workers, which does not void it."""
    arguments = {**LAKE, "budget": 60_000}
    code = f"import adagoal; adagoal.explore(**{arguments!r}, out={str(tmp_path)!r})"
    child = subprocess.Popen([sys.executable, "-c", code])
    while not any(tmp_path.glob("**/checkpoint*")):
        time.sleep(0.05)
    time.sleep(3.0)
    child.kill()
    child.wait()
    assert plain(adagoal.resume(tmp_path)) == plain(adagoal.explore(**arguments))
    killed = []

    def kill(run: Any) -> None:
        if run.steps > 5_000 and not killed:
            process = run.env._workers._workers[1].process
            killed.append(os.kill(process.pid, signal.SIGKILL))

    result = adagoal.explore(**arguments, observe=kill)
    assert (result.status, result.void) == ("budget", [])
    assert any("was killed (SIGKILL); a round of worker 1 was discarded" in line for line in result.warnings)
