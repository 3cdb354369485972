"""Rollouts: exploration noise, replayed cycles, idle workers, and user-defined rollout backends."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from small_training import TINY

import adagoal
from adagoal.core.array_types import Floats, Singles
from adagoal.core.errors import InputError, Status
from adagoal.deep import Config
from adagoal.deep.env_inspection import measure_dimensions
from adagoal.deep.goal_envs import EnvDimensions, EnvSource
from adagoal.deep.policy import NumpyActor
from adagoal.deep.rollouts import CycleRollouts, EnvBatch, EpisodeBatch, RolloutWorkers
from adagoal.deep.training import Training

SOURCE = EnvSource("point-mass")
SIZES = measure_dimensions(SOURCE.make_env(), SOURCE, 0)


def actor(bias: float) -> NumpyActor:
    """Return an actor that always outputs tanh(bias)."""
    layers = [(np.zeros((6, 2), np.float32), np.full(2, bias, np.float32))]
    return NumpyActor(layers, np.zeros(4), np.ones(4), np.zeros(2), np.ones(2), 5.0)


def test_exploration_follows_the_settings_of_each_run() -> None:
    configs = [Config("point-mass", noise=0.2, random=0.3), Config("point-mass", noise=0.05, random=0.0)]
    slots = EnvBatch(configs, [(run, k) for run in (0, 1) for k in range(20)], SOURCE, SIZES)
    slots.start_cycle(0)
    played = slots.play_cycle(0, {0: actor(0.0), 1: actor(0.5)}, np.zeros((40, 2)), np.zeros((1, 40, 2)))
    first, second = played.episodes.action[:20], played.episodes.action[20:]
    assert np.abs(first).max() <= 1.0
    assert (np.abs(first) > 0.8).any(-1).mean() == pytest.approx(0.3 * (1 - 0.8**2), abs=0.04)
    assert second.mean() == pytest.approx(np.tanh(0.5), abs=0.01)
    assert second.std() == pytest.approx(0.05, abs=0.005)
    end = played.episodes.achieved[:, -1]
    assert played.distances.shape == (1, 40, 25)
    assert np.isfinite(end).all()


def test_cycle_can_be_replayed() -> None:
    config = Config("point-mass", seed=3)
    goals = np.random.default_rng(0).uniform(-1, 1, (4, 2))
    found = []
    for slots in ([(0, 0), (0, 1), (0, 2), (0, 3)], [(0, 2), (0, 3)]):
        own = EnvBatch([config], slots, SOURCE, SIZES)
        own.start_cycle(7)
        part = goals[[k for _, k in slots]]
        found.append(own.play_cycle(7, {0: actor(0.1)}, part, part[None]))
    whole, part_of_it = found
    np.testing.assert_array_equal(whole.episodes.observation[2:], part_of_it.episodes.observation)
    np.testing.assert_array_equal(whole.distances[:, 2:], part_of_it.distances)
    np.testing.assert_array_equal(whole.next_starts[2:], part_of_it.next_starts)


class InProcessRollouts:
    """A rollout backend without worker processes: ``start_cycle`` plays at once."""

    def __init__(self, configs: Sequence[Config], source: EnvSource, sizes: EnvDimensions, workers: int) -> None:
        self.shape, self.horizon = (len(configs), configs[0].episodes), sizes.horizon
        slots = [(run, k) for run in range(self.shape[0]) for k in range(self.shape[1])]
        self.envs = EnvBatch(configs, slots, source, sizes)
        self.is_closed = False

    def by_run(self, array: Floats | Singles, axis: int = 0) -> Floats:
        return array.reshape(*array.shape[:axis], *self.shape, *array.shape[axis + 1 :])

    def reset(self, cycle: int) -> Singles:
        return self.by_run(self.envs.start_cycle(cycle)).astype(np.float32)

    def start_cycle(self, cycle: int, actors: Sequence[NumpyActor], goals: Floats, test_goals: Floats) -> None:
        flat = goals.reshape(-1, goals.shape[-1])
        flat_tests = test_goals.reshape(len(test_goals), *flat.shape)
        self.played = self.envs.play_cycle(cycle, dict(enumerate(actors)), flat, flat_tests)

    def collect_cycle(self) -> CycleRollouts:
        episodes, *tests, next_starts = self.played
        batch = EpisodeBatch(**{name: self.by_run(array) for name, array in vars(episodes).items()})
        return CycleRollouts(batch, *(self.by_run(array, 1) for array in tests), self.by_run(next_starts))

    def close(self) -> None:
        self.is_closed = True


def test_training_with_another_rollout_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """The results equal those of worker processes, and no process is started."""
    configs = [Config("point-mass", seed=seed, **TINY) for seed in (1, 2)]
    expected = Training(configs, workers=2)
    assert expected.run_until_pause() is Status.DONE

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", None)
    made = []

    def make(*arguments: object) -> InProcessRollouts:
        made.append(InProcessRollouts(*arguments))  # type: ignore[arg-type]
        return made[-1]

    training = Training(configs, make_rollouts=make)
    assert training.run_until_pause() is Status.DONE
    assert [backend.is_closed for backend in made] == [True]
    for mine, other in zip(training.current_policies(), expected.current_policies(), strict=True):
        for layer, same in zip(mine.actor.layers, other.actor.layers, strict=True):
            np.testing.assert_array_equal(
                np.concatenate([*map(np.ravel, layer)]), np.concatenate([*map(np.ravel, same)])
            )


def test_workers_beyond_the_episodes_of_a_cycle_play_tests() -> None:
    """Five workers for two episodes: one has nothing to do, and the tests are those of two workers."""
    config, tests = Config("point-mass", **TINY | {"episodes": 2, "eval_episodes": 10}), []
    for workers in (2, 5):
        training = Training([config], workers)
        assert training.run_until_pause() is Status.DONE
        rows = [{**row, "wall_seconds": 0.0} for row in training.history.rows]
        (model,) = training.error_models
        assert model is not None
        numbers = (training.history.value_maps.tests, *model)
        tests.append((rows, [np.asarray(each).tolist() for each in numbers]))
    assert tests[0] == tests[1]
    engine = RolloutWorkers(training.configs, training.source, training.sizes, 5)
    sent: list[list[str]] = []
    for worker in engine.workers:
        sent.append([])
        send = worker.send
        worker.send = lambda name, *given, log=sent[-1], send=send: (log.append(name), send(name, *given))[1]
    try:
        engine.reset(0)
        goals = np.zeros((1, 2, 2))
        engine.start_cycle(0, training.current_actors(), goals, np.zeros((3, *goals.shape)))
        assert engine.collect_cycle().distances.shape == (3, 1, 2, training.sizes.horizon)
    finally:
        engine.close()
    assert sent == [["start_cycle", "play_cycle"]] * 2 + [["play_tests"]] * 2


def test_public_functions_accept_a_rollout_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``train`` and ``resume`` use the given backend and start no process."""
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", None)
    made = []

    def make(*arguments: object) -> InProcessRollouts:
        made.append(InProcessRollouts(*arguments))  # type: ignore[arg-type]
        return made[-1]

    config = Config("point-mass", **TINY)
    adagoal.train(config, out=tmp_path / "run", observe=lambda history: False, make_rollouts=make)
    resumed = adagoal.resume(tmp_path / "run", make_rollouts=make)
    assert resumed.status is Status.DONE
    assert [backend.is_closed for backend in made] == [True, True]
    with pytest.raises(InputError, match="make_rollouts: must be a function that makes a RolloutBackend, got 3"):
        adagoal.train(config, make_rollouts=3)  # type: ignore[arg-type]
