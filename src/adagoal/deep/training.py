"""Algorithm 1 of the paper in the deep world: (i) choose goals, (ii) play, (iii) update, cycle by cycle.

Rollouts of cycle c and learning from cycle c - 1 run at the same time; the order of every random draw and
every update is fixed, so the same seeds give the same curves, whether or not the run was interrupted.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from adagoal.core.errors import InputError
from adagoal.core.files import alone_in
from adagoal.core.types import Floats, Singles
from adagoal.deep import checkpoint, envs, goalspace, learner, normaliser
from adagoal.deep.config import Config, one_program
from adagoal.deep.fleet import Fleet
from adagoal.deep.history import History
from adagoal.deep.selection import Selector
from adagoal.deep.worker import Actor, Episodes

Watch = Callable[[History], None]

CHECKPOINT = "checkpoint.npz"


@dataclass(frozen=True)
class TrainResult:
    """What a training returns; the folder holds the rest."""

    status: str
    """``done``, ``budget`` (the minutes were spent) or ``interrupted``."""
    history: History
    actors: list[Actor]
    maps: dict[str, NDArray[Any]]
    """Final D and E over the training space (see :func:`_maps`)."""
    folder: Path | None


def train(
    configs: Sequence[Config],
    out: Path | None = None,
    *,
    workers: int = 0,
    minutes: float = float("inf"),
    checkpoint_every: int = 50,
    watch: Watch | None = None,
) -> TrainResult:
    """Train S runs side by side; ``workers`` 0 takes one process per core; checkpoints every so many cycles."""
    one_program(configs)
    with alone_in(out):
        return _Training(list(configs), out, workers, checkpoint_every, watch).run(minutes)


def resume(
    folder: Path,
    *,
    steps: int = 0,
    workers: int = 0,
    minutes: float = float("inf"),
    checkpoint_every: int = 50,
    watch: Watch | None = None,
) -> TrainResult:
    """Go on where a folder's last checkpoint stopped; ``steps`` 0 keeps the planned length."""
    arrays = checkpoint.read_arrays(folder / CHECKPOINT)
    try:
        configs = [Config.from_json(data) for data in checkpoint.untext(arrays["configs"])]
        if steps:
            configs = [replace(config, steps=steps) for config in configs]
        training = _Training(configs, folder, workers, checkpoint_every, watch)
        training.restore(arrays)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"--resume: {folder / CHECKPOINT} is damaged or incomplete ({error})") from None
    with alone_in(folder):
        return training.run(minutes)


class _Training:
    """The state of the loop."""

    def __init__(
        self, configs: list[Config], out: Path | None, workers: int, checkpoint_every: int, watch: Watch | None
    ) -> None:
        self.configs, self.out, self.checkpoint_every, self.watch = configs, out, checkpoint_every, watch
        self.workers = workers or os.cpu_count() or 1
        first = configs[0]
        env = envs.make(first.env)
        self.sizes = envs.dimensions(env, first.env, first.horizon)
        self.per_cycle = first.episodes * self.sizes.horizon
        if first.buffer < self.per_cycle:
            raise InputError(f"--buffer: {first.buffer} is less than one cycle; at least {self.per_cycle}")
        if first.batch > first.buffer or first.ensemble_batch > first.buffer:
            raise InputError(f"--batch: larger than the buffer; accepted 1 to {first.buffer}")
        self.rounds = -(-first.eval_episodes // first.episodes)
        train_spaces = [goalspace.goal_space(env, "--train-goals", c.train_goals) for c in configs]
        test_spaces = [goalspace.goal_space(env, "--test-goals", c.test_goals) for c in configs]
        self.selector = Selector(configs, train_spaces, test_spaces, self.per_cycle)
        self.history = History.start(configs, train_spaces, test_spaces, goalspace.table(env), self.sizes)
        env.close()
        fixed = [space(np.random.default_rng(0), 4096) for space in test_spaces]
        states = [learner.initial(c, self.sizes, goals) for c, goals in zip(configs, fixed, strict=True)]
        self.state: learner.State = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
        self.knobs = learner.knobs(configs)
        self.learn = learner.compile_cycle(configs, self.sizes)
        self.pending: Episodes | None = None
        self.cycle = 0

    def run(self, minutes: float) -> TrainResult:
        began, before = time.monotonic(), self.history.wall_seconds
        last = -(-self.configs[0].steps // self.per_cycle)
        status = "done"
        fleet = Fleet(self.configs, self.sizes.horizon, self.workers)
        try:
            with _Stop() as stop:
                starts = fleet.reset(self.cycle)
                while self.cycle < last:
                    starts = self._cycle(fleet, starts)
                    self.history.wall_seconds = before + time.monotonic() - began
                    if self.watch is not None:
                        self.watch(self.history)
                    status = "interrupted" if stop.asked else "budget" if _minutes(began) >= minutes else "done"
                    if status != "done" or self.cycle % self.checkpoint_every == 0:
                        self.save()
                    if status != "done":
                        break
            if status == "done":
                self.save()
                self._learn()
                self._final_test(fleet)
        finally:
            fleet.close()
        self.history.wall_seconds = before + time.monotonic() - began
        maps = _maps(self.selector, self.history, self.state, starts)
        return TrainResult(status, self.history, self._actors(), maps, self.out)

    def _cycle(self, fleet: Fleet, starts: Singles) -> Singles:
        """Choose goals, start the rollouts, learn from the previous ones meanwhile, collect."""
        config = self.configs[0]
        goals, notes = self.selector.choose(self.state, starts, self.cycle)
        rounds = self.rounds if self.cycle % config.eval_every == 0 else 0
        fleet.start(self.cycle, self._actors(), goals, self.selector.tests(self.cycle, rounds, config.episodes))
        losses = self._learn()
        self.pending, distances, starts = fleet.wait()
        self.history.add(self.cycle, goals, notes, losses, self.pending, distances)
        self.cycle += 1
        return starts

    def _learn(self) -> dict[str, Any]:
        """Learn from the episodes that wait; returns at once, the device works on."""
        if self.pending is None:
            return {}
        p = self.pending
        new = tuple(jnp.asarray(x) for x in (p.observation, p.achieved, p.action, p.goal, p.length))
        self.state, losses = self.learn(self.state, self.knobs, new)
        return dict(losses)

    def _final_test(self, fleet: Fleet) -> None:
        goals, _ = self.selector.choose(self.state, fleet.reset(self.cycle), self.cycle)
        fleet.start(
            self.cycle,
            self._actors(),
            goals,
            self.selector.tests(self.cycle, self.rounds, self.configs[0].episodes),
        )
        _, distances, _ = fleet.wait()
        self.history.add_test(self.cycle, distances)

    def _actors(self) -> list[Actor]:
        s = self.state
        parts = (s.actor.online, s.observations.mean, jax.vmap(normaliser.scale)(s.observations),
                 s.goals.mean, jax.vmap(normaliser.scale)(s.goals))  # fmt: skip
        layers, o_mean, o_std, g_mean, g_std = jax.device_get(parts)
        return [
            Actor([(w[i], b[i]) for w, b in layers], o_mean[i], o_std[i], g_mean[i], g_std[i], normaliser.CLIP)
            for i in range(len(self.configs))
        ]

    def save(self) -> None:
        if self.out is None:
            return
        held = int(min(int(self.state.replay.added[0]), self.state.replay.goal.shape[1]))
        ring = {name: getattr(self.state.replay, name)[:, :held] for name in self.state.replay._fields[:-1]}
        arrays = checkpoint.flatten(self.state._replace(replay=self.state.replay._replace(**ring)), "state")
        assert self.pending is not None
        arrays |= {f"pending.{name}": np.asarray(value) for name, value in vars(self.pending).items()}
        arrays |= self.history.to_arrays()
        arrays |= {
            "format": np.array(checkpoint.FORMAT),
            "cycle": np.array(self.cycle),
            "configs": checkpoint.text([config.to_json() for config in self.configs]),
        }
        checkpoint.write_arrays(self.out / CHECKPOINT, arrays)
        self.history.write_csv(self.out / "log.csv")

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.state = jax.tree.map(jnp.asarray, checkpoint.unflatten(self.state, arrays, "state"))
        self.pending = Episodes(**{n[8:]: a for n, a in arrays.items() if n.startswith("pending.")})
        self.history.restore(arrays)
        self.cycle = int(arrays["cycle"])


def _maps(selector: Selector, history: History, state: learner.State, starts: Singles) -> dict[str, Floats]:
    """D and E ``[S, 41, 41]`` over the first two goal coordinates of the widest training space."""
    box = np.stack([np.min([b[0] for b in history.train_boxes], 0), np.max([b[1] for b in history.train_boxes], 0)])
    axes = [np.linspace(box[0][i], box[1][i], 41) for i in range(min(2, box.shape[1]))]
    grid = np.zeros((*(len(axis) for axis in axes), box.shape[1])) + history.test_boxes[0].mean(0)
    for i, mesh in enumerate(np.meshgrid(*axes, indexing="ij")):
        grid[..., i] = mesh
    if box.shape[1] > 2:
        grid[..., 2:] = history.test_boxes[0][0, 2:]
    D, E = selector.maps(state, starts[:, :4], grid.reshape(-1, box.shape[1]))
    shape = (len(starts), *grid.shape[:-1])
    return {"D": D.reshape(shape), "E": E.reshape(shape), "low": box[0], "high": box[1]}


def _minutes(began: float) -> float:
    return (time.monotonic() - began) / 60.0


class _Stop:
    """Ctrl-C and SIGTERM end the loop after the current cycle, with everything saved."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> _Stop:
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._ask) for s in (signal.SIGINT, signal.SIGTERM)}
        else:
            self._before = {}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, *_: object) -> None:
        self.asked = True
