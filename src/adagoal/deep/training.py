"""Algorithm 1 of the paper in the deep world: (i) choose goals, (ii) play, (iii) update, cycle by cycle.

Rollouts of cycle c and learning from cycle c - 1 run at the same time; the order of every random draw and
every update is fixed, so the same seeds give the same curves, whether or not the run was interrupted. The cycle is
compiled while the workers start, unless an earlier process has compiled it (:mod:`adagoal.core.programs`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from adagoal.core import npz, programs
from adagoal.core.errors import InputError
from adagoal.core.random import Purpose, stream
from adagoal.core.status import Status
from adagoal.core.types import Floats, Singles
from adagoal.deep import checkpoint, learner, likeness, trees, values
from adagoal.deep.actor import Actor
from adagoal.deep.config import Config, one_program
from adagoal.deep.envs import Source
from adagoal.deep.fleet import Collected, Fleet
from adagoal.deep.history import History
from adagoal.deep.past import POINTS
from adagoal.deep.policy import Policy
from adagoal.deep.selection import Selector
from adagoal.deep.survey import survey
from adagoal.deep.worker import Episodes
from adagoal.goals import Rule

Observer = Callable[[History], bool | None]
"""Called after every cycle; False ends the training, with everything learnt so far."""
Kept = tuple[dict[str, NDArray[Any]], dict[str, Any]]
"""What :meth:`Training.state` gave: arrays, and JSON-ready facts."""
GRID = 41
"""Points per axis of the final maps of D and E."""
CALIBRATION_EPISODES, MOST_TESTS = 384, 4
"""Episodes that calibrate E at the end of a training, unless they are more than so many usual tests.

The share of episodes that ``uncertainty`` covers differs between trainings with a standard deviation of
sqrt(0.9 * 0.1 / episodes): 3% after one usual test of 96 episodes, 1.5% after 384.
"""
MAPPED = 4
"""Starts over which maps are averaged, at most."""


class Training:
    """S runs side by side, between two cycles: all that they have learnt and seen, and what they will play next.

    ``source`` makes the environments where that is not for their name to do, ``rule`` is the function that stands for
    the goal rule ``function:NAME``. ``kept`` is the state to go on from; what does not fit the configurations is a
    ``ValueError``.
    """

    def __init__(
        self,
        configs: Sequence[Config],
        workers: int = 0,
        kept: Kept | None = None,
        source: Source | None = None,
        rule: Rule | None = None,
    ) -> None:
        programs.keep()
        one_program(configs)
        self.source, self.workers = source or Source(configs[0].env), workers or os.cpu_count() or 1
        asked = [(name, getattr(c, name)) for name in ("train_goals", "test_goals") for c in configs]
        self.sizes, spaces, table = survey(self.source, configs[0].horizon, asked)
        self.configs = configs = [config.on_time_scale(self.sizes.horizon, self.sizes.fetch) for config in configs]
        first = configs[0]
        self.per_cycle = first.episodes * self.sizes.horizon
        if first.buffer < self.per_cycle:
            raise InputError(f"{first.buffer} is less than one cycle; at least {self.per_cycle}", name="buffer")
        for name in ("batch", "ensemble_batch"):
            if getattr(first, name) > first.buffer:
                raise InputError(f"larger than the buffer; accepted 1 to {first.buffer}", name=name)
        self.rounds = -(-first.eval_episodes // first.episodes)
        train_spaces, test_spaces = spaces[: len(configs)], spaces[len(configs) :]
        self.selector = Selector(configs, train_spaces, test_spaces, self.per_cycle, rule)
        self.history = History.start(configs, train_spaces, test_spaces, table, self.sizes)
        self.knobs = learner.knobs(configs)
        self.pending: Episodes | None = None
        """Episodes that were played and not learnt from yet."""
        self.calibrations: list[float | None] = [None] * len(configs)
        """Of E, run by run; known at the end."""
        self.cycle = 0
        self.pause = first.steps
        """Steps after which it ends with a test, to go on later; by default all."""
        self._starts: Singles
        rngs = [stream(config.seed, Purpose.NORMALISER_GOALS) for config in configs]
        fixed = np.stack([space(rng, 4096) for space, rng in zip(test_spaces, rngs, strict=True)])
        like = learner.shapes(configs, self.sizes)
        taken = len(configs) * first.capacity * self.sizes.episode_bytes
        if taken > npz.memory():
            text = f"a replay buffer of {first.capacity * self.sizes.horizon:,} steps takes {taken / 1e9:,.1f} GB"
            text += (
                f", more than the {npz.memory() / 1e9:,.1f} GB of this machine; give fewer steps or a smaller buffer"
            )
            raise InputError(text, name="steps")
        self._learn = self._compile(like)
        if kept is None:
            self.learnt = learner.begin(configs, self.sizes, fixed)
        else:
            self._restore(like, *kept)

    def _compile(self, like: learner.State) -> Future[Any]:
        """The cycle for states of these shapes, traced and compiled in threads while the workers start, as the rest."""
        first = self.configs[0]
        new = learner.episodes_like(like, first.episodes)
        cycle, acting = learner.compile_cycle(self.configs, self.sizes), learner.compile_acting(first.algorithm)
        beside = ThreadPoolExecutor(4)
        compiled = beside.submit(lambda: cycle.lower(like, self.knobs, new).compile())
        shapes = [] if self.selector.blind else [(first.episodes, first.candidates)]
        shapes.append((min(MAPPED, first.episodes), POINTS ** min(2, self.sizes.goal)))
        self.selector.compile(like, shapes, beside)
        beside.submit(lambda: acting.lower(like).compile())
        beside.shutdown(wait=False)
        return compiled

    @property
    def played(self) -> bool:
        """Whether all steps of training before its pause have been played."""
        return self.complete or self.cycle * self.per_cycle >= self.pause

    @property
    def complete(self) -> bool:
        """Whether all steps of training have been played."""
        return self.cycle * self.per_cycle >= self.configs[0].steps

    def run(self, observe: Observer = lambda history: None) -> Status:
        """Play and learn to the end or the pause, or until ``observe`` says False; whole cycles either way."""
        began, before = time.monotonic(), self.history.wall_seconds
        fleet = Fleet(self.configs, self.source, self.sizes, self.workers)
        try:
            self._starts = fleet.reset(self.cycle)
            while not self.played:
                self._starts = self.one_cycle(fleet, self._starts)
                self.history.wall_seconds = before + time.monotonic() - began
                if observe(self.history) is False:
                    return Status.INTERRUPTED
            self.learn_pending()
            self._final_test(fleet)
        finally:
            fleet.close()
        self.history.wall_seconds = before + time.monotonic() - began
        return Status.DONE

    def one_cycle(self, fleet: Fleet, starts: Singles) -> Singles:
        """Choose goals, start the rollouts, learn from the previous ones meanwhile, collect; returns next starts."""
        config = self.configs[0]
        goals, notes = self.selector.choose(self.learnt, starts, self.cycle)
        past = self.history.past
        believed = self._maps(starts, POINTS) if past.due(self.cycle) else None
        rounds = self.rounds if self.cycle % config.eval_every == 0 else 0
        fleet.start(self.cycle, self.actors(), goals, self.selector.tests(self.cycle, rounds, config.episodes))
        losses = self.learn_pending()
        played = fleet.wait()
        self.pending = played.episodes
        self.history.add(self.cycle, goals, notes, losses, self.pending, played.distances)
        if believed is not None:
            past.add_map(self.cycle, believed["D"], believed["E"])
        if rounds:
            past.add_test(played.away, played.distances[..., -1] <= self.sizes.success)
        self.cycle += 1
        return played.starts

    def learn_pending(self) -> dict[str, Any]:
        """Learn from the episodes that wait; returns at once, the device works on."""
        if self.pending is None:
            return {}
        p, self.pending = self.pending, None
        new = jax.device_put((p.observation, p.achieved, p.action, p.goal, p.length, p.terminated))
        self.learnt, losses = self._learn.result()(self.learnt, self.knobs, new)
        return dict(losses)

    def _final_test(self, fleet: Fleet) -> None:
        episodes = self.configs[0].episodes
        goals, _ = self.selector.choose(self.learnt, fleet.reset(self.cycle), self.cycle)
        rounds = max(self.rounds, min(MOST_TESTS * self.rounds, -(-CALIBRATION_EPISODES // episodes)))
        tests = self.selector.tests(self.cycle, rounds, episodes)
        fleet.start(self.cycle, self.actors(), goals, tests)
        played = fleet.wait()
        distances = played.distances[: self.rounds]  # the history compares tests of the same size
        self.history.add_test(self.cycle, distances)
        self.history.past.add_test(played.away[: self.rounds], distances[..., -1] <= self.sizes.success)
        self._calibrate(tests, played)

    def _calibrate(self, tests: Floats, played: Collected) -> None:
        """Compare the policies' D and E for fresh episodes with the steps that they took."""
        taken = values.taken(played.distances, self.sizes.success)
        for s, policy in enumerate(self.policies()):
            if policy.critics is not None:
                starts = played.tested[:, s].reshape(-1, self.sizes.observation).astype(np.float64)
                goals = tests[:, s].reshape(-1, self.sizes.goal)
                D, E = policy.critics(policy.actor.normalised(starts, goals), policy.actor(starts, goals))
                self.calibrations[s] = values.calibration(D, E, taken[:, s].reshape(-1), self.sizes.horizon)

    def actors(self) -> list[Actor]:
        """The actor of each run, as it is now."""
        return learner.actors(self.configs[0], self.learnt)

    def policies(self) -> list[Policy]:
        """The policy of each run, as it is now."""
        critics = learner.all_critics(self.configs, self.learnt, self.calibrations)
        sizes = self.sizes
        return [
            Policy(self.source.name, actor, own, sizes.low, sizes.high, sizes.shape, sizes.with_achieved, sizes.success)
            for actor, own in zip(self.actors(), critics, strict=True)
        ]

    def maps(self) -> dict[str, Floats]:
        """D and E ``[S, GRID, GRID]`` over the first two goal coordinates of the widest training space."""
        return self._maps(self._starts, GRID)

    def _maps(self, starts: Singles, points: int) -> dict[str, Floats]:
        low = np.min([box[0] for box in self.history.train_boxes], 0)
        high = np.max([box[1] for box in self.history.train_boxes], 0)
        test = self.history.test_boxes[0]
        axes = [np.linspace(low[i], high[i], points) for i in range(min(2, len(low)))]
        grid = np.zeros((*(len(axis) for axis in axes), len(low))) + test.mean(0)
        for i, mesh in enumerate(np.meshgrid(*axes, indexing="ij")):
            grid[..., i] = mesh
        grid[..., 2:] = test[0, 2:]
        D, E = self.selector.maps(self.learnt, starts[:, :MAPPED], grid.reshape(-1, len(low)))
        shape = (len(self.configs), *grid.shape[:-1])
        return {"D": D.reshape(shape), "E": E.reshape(shape), "low": low, "high": high}

    def state(self) -> Kept:
        """Arrays and facts from which another training goes on, bit for bit where a cycle had ended."""
        memory = self.learnt.replay
        held = int(min(int(memory.added[0]), memory.goal.shape[1]))
        ring = {name: getattr(memory, name)[:, :held] for name in memory._fields if name != "added"}
        arrays = trees.flatten(self.learnt._replace(replay=memory._replace(**ring)), "learnt")
        if self.pending is not None:
            arrays |= {f"pending.{name}": np.asarray(value) for name, value in vars(self.pending).items()}
        past, facts = self.history.state()
        arrays |= {f"history.{name}": array for name, array in past.items()}
        facts = {"configs": [c.to_json() for c in self.configs], "cycle": self.cycle, "history": facts}
        return arrays, facts | {"env": likeness.kept(self.sizes)}

    def _restore(self, like: learner.State, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """The inverse of :meth:`state`; ``like`` has the shapes of what is learnt."""
        likeness.check(self.source.name, facts["env"], self.sizes)
        checkpoint.check(like, arrays, facts, self.configs, self.sizes)
        self.learnt = jax.tree.map(jnp.asarray, trees.unflatten(like, arrays, "learnt"))
        waiting = _under("pending.", arrays)
        self.pending = Episodes(**waiting) if waiting else None
        self.history.restore(_under("history.", arrays), facts["history"])
        self.cycle = int(facts["cycle"])


def _under(prefix: str, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
