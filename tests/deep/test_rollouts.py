"""Rollouts: exploration noise follows the settings, and a cycle can be replayed."""

from __future__ import annotations

import numpy as np
import pytest

from adagoal.deep.config import Config
from adagoal.deep.env_inspection import measure_dimensions
from adagoal.deep.goal_envs import EnvSource
from adagoal.deep.policy import NumpyActor
from adagoal.deep.rollouts import EnvBatch

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
