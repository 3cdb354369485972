"""Any Gymnasium environment with discrete actions as a world, stepped as it is.

States are the observations (see :mod:`adagoal.worlds.keys`), numbered as the environment numbers them if they are
``Discrete``, else in the order in which they are met. The reset is one more action. In a ``terminated`` state every
action is the reset; where states are numbered on the fly, an observation that ends the episode is another state than
the same one that does not. Time limits are not part of the state and are switched off. A random initial state is
handled with a *virtual start*, a state whose every action draws it; or it is fixed with a start seed: every reset then
uses that seed, and the generator of the dynamics is saved before and put back after, so that episodes stay independent.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import gymnasium
import numba
import numpy as np

from adagoal.core.counts import Counts, record
from adagoal.core.layout import Layout
from adagoal.core.mixture import LinearMixture
from adagoal.core.types import Floats
from adagoal.core.world import Outcome, Plan
from adagoal.worlds.adapter import Adapter
from adagoal.worlds.keys import Key
from adagoal.worlds.sanity import VOID, Recorder

EPISODES = 4096
"""Episodes per rollout, at most."""
BATCH = 65_536
"""Steps after which counts are brought up to date."""
REPLAY = 100_000
"""Steps since the last reset that a snapshot can hold."""


class GymWorld:
    """A :class:`~adagoal.core.world.World` that steps a Gymnasium environment."""

    def __init__(
        self, env: gymnasium.Env[Any, Any], name: str, start_seed: int | None = None, max_states: int | None = None
    ) -> None:
        self._adapter = adapter = Adapter(env, name, start_seed, max_states)
        self.name, self.n_actions, self.start = name, adapter.n_actions, adapter.start
        self.state_bound, self.initial_states = adapter.state_bound, adapter.initial_states
        self.labels: tuple[str, ...] = adapter.labels
        self.layout: Layout | None = None
        self.mixture: LinearMixture | None = None
        """The kernels of which the environment is said to be a mixture."""
        self._place = (self.start, -1, 0)  # state, goal column aimed at (-1: none), steps of the episode
        self._overdue = False  # the environment ended the episode by itself
        self._seed: int | None = None  # of the environment's randomness; None before the first rollout
        self._failure: Exception | None = None
        self._notes: list[str] = []
        self._recorder = Recorder(self.n_actions)

    # --- playing ----------------------------------------------------------------------------------------------

    def rollout(
        self,
        plan: Plan,
        weights: Floats,
        counts: Counts,
        rng: np.random.Generator,
        max_steps: int,
        max_episodes: int,
    ) -> Outcome:
        """Play until a threshold is met, a state is new, or ``max_steps`` or ``max_episodes`` is spent.

        An exception of the environment is raised by the next call, so that what was seen before is not lost.
        """
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if self._seed is None:
            self.restart(int(rng.integers(2**31)))
        trail, outcome = _Trail(counts, self._recorder), Outcome()
        try:
            self._play(plan, weights, rng, max_steps, min(max_episodes, EPISODES), trail, outcome)
        except Exception as error:
            if not outcome.steps:
                raise
            self._failure = error
        finally:
            trail.flush()
        return outcome

    def restart(self, seed: int) -> None:
        """Back to the start, with the environment's randomness seeded anew."""
        self._seed, self._place, self._overdue = seed, (self.start, -1, 0), False
        self._adapter.seed(seed)

    def _play(
        self,
        plan: Plan,
        weights: Floats,
        rng: np.random.Generator,
        max_steps: int,
        max_episodes: int,
        trail: _Trail,
        outcome: Outcome,
    ) -> None:
        """The loop of :func:`adagoal.worlds.simulator.simulate`, around ``env.step``."""
        adapter, counts, n_actions, start = self._adapter, trail.counts, self.n_actions, self.start
        virtual = start if adapter.virtual else -1
        cumulative, goal_state = np.cumsum(weights).tolist(), plan.goal_state.tolist()
        curious = min(goal_state) == -1
        (stages, rows, _), policy = plan.policy.shape, plan.policy.item
        known, terminal = set(np.flatnonzero(counts.seen).tolist()), set(np.flatnonzero(counts.terminal).tolist())
        missing, left = plan.threshold - counts.n[: len(plan.threshold)], dict[int, int]()
        move, land, env_step, read = trail.moves.append, trail.landed.append, adapter.env.step, adapter.read
        steps = 0
        state, aim, clock = self._place
        if aim >= 0 and weights[aim] <= 0:
            aim = -1  # the goal lost its weight: choose another one, from here
        try:
            while steps < max_steps:
                if aim < 0:
                    aim = min(bisect_right(cumulative, rng.random() * cumulative[-1]), len(cumulative) - 1)
                    clock = 0
                if state == goal_state[aim] or clock >= plan.limit:
                    reached = state == goal_state[aim]
                    if state != start:
                        state = self._reset(state, trail)
                        steps += 1
                    outcome.goals.append(goal_state[aim])
                    outcome.reached.append(reached)
                    aim = -1
                    if len(outcome.goals) == max_episodes or state >= rows:
                        break
                    continue
                forced = self._overdue or state in terminal
                action = n_actions if forced else policy(clock if stages > 1 else 0, state, aim)
                if action == n_actions:
                    state = self._reset(state, trail)
                    steps += 1
                    clock += 1
                    if state >= rows:
                        break
                    continue
                if state == virtual:
                    observation, terminated, truncated = adapter.enter(), False, False
                else:
                    observation, _, ended, truncated, _ = env_step(action + adapter.first_action)
                    terminated = bool(ended)
                key = adapter.end(read(observation)) if terminated else read(observation)
                successor = adapter.index.get(key)
                if successor is None:
                    successor = self._number(key, observation, counts)
                if state != virtual:
                    adapter.actions.append(action)
                pair = state * n_actions + action
                move(pair)
                land(successor)
                steps += 1
                clock += 1
                state = successor
                left[pair] = more = left.get(pair, missing[pair]) - 1
                if terminated != (state in terminal):
                    self._end(state, terminated, state in known, counts)
                    terminal.add(state)
                if truncated and not terminated:
                    self._overdue = True
                    self.note("the environment ends episodes by itself (truncated); each time it was reset")
                if len(trail.moves) >= BATCH:
                    trail.flush()
                if state not in known:
                    known.add(state)
                    counts.seen[state] = True
                    if goal_state[aim] < 0:
                        outcome.goals.append(-1)
                        outcome.reached.append(True)
                        aim = -1
                    if curious or state >= rows:
                        break
                elif more <= 0:
                    break
        finally:
            self._place, outcome.steps = (state, aim, clock), steps

    def _reset(self, state: int, trail: _Trail) -> int:
        """The reset action, taken in ``state``: the state after it."""
        adapter, landed = self._adapter, self.start
        if adapter.virtual:
            adapter.actions.clear()
        else:
            observation = adapter.enter()
            key = adapter.read(observation)
            landed = adapter.index.get(key, -1)
            if landed != self.start:
                landed = landed if landed >= 0 else self._number(key, observation, trail.counts)
                trail.counts.seen[landed] = True
                self.note(f"a reset led to another state than the start, the first time to state {landed}; {VOID}")
        self._overdue = False
        trail.moves.append(-1 - state)
        trail.landed.append(landed)
        return landed

    def _number(self, key: Key, observation: Any, counts: Counts) -> int:
        """A number for a new state, and a row kept free for the next one."""
        state = self._adapter.number(key, observation)
        self.labels = self._adapter.labels
        if state + 1 >= counts.n_states and counts.n_states < self.state_bound:
            counts.grow_states(min(2 * counts.n_states, self.state_bound))
        return state

    def _end(self, state: int, terminated: bool, known: bool, counts: Counts) -> None:
        """A terminated state was entered for the first time, or one entered before did not terminate now."""
        counts.terminal[state] = True
        if known or not terminated:
            self.note(f"a state ended the episode at one visit and not at another, first state {state}; {VOID}")

    # --- what is said about it, and saving --------------------------------------------------------------------

    def note(self, line: str) -> None:
        """Add a warning; of lines that differ in a number only the first is kept."""
        if not any(line.split(",")[0] == old.split(",")[0] for old in self._notes):
            self._notes.append(line)

    @property
    def warnings(self) -> list[str]:
        """What looks wrong with the environment so far."""
        return list(dict.fromkeys([*self._notes, *self._recorder.warnings()]))

    @property
    def settled(self) -> bool:
        """An episode is restored by replaying it from its reset, unless it is very long."""
        return len(self._adapter.actions) <= REPLAY

    def snapshot(self) -> dict[str, Any]:
        """Where the agent stands, how it got there from the last reset, and what the sanity checks found so far."""
        waiting = self._seed is None or (self._adapter.virtual and self._place[0] == self.start)
        facts = {"place": self._place, "seed": self._seed, "warnings": self.warnings}
        return facts | self._adapter.snapshot(waiting)

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Back to where the agent stood; exact for environments whose randomness is all in ``np_random``.

        A generator of the environment's own cannot be put back. It gets another seed, so that what it draws from now
        on is not what it drew before: samples that repeat themselves would be counted as new ones.
        """
        state, aim, clock = snapshot["place"]
        self._notes = list(snapshot["warnings"])
        if snapshot["seed"] is not None:
            self._seed = int(snapshot["seed"]) + 1
            self._adapter.seed(self._seed)
        landed, self._overdue = self._adapter.restore(snapshot)
        self.labels = self._adapter.labels or self.labels
        self._place = (state, aim, clock)
        if landed != state:
            self.note("the environment could not be put back into the state it was in: the run went on from a reset")
            self._place, self._overdue = (self.start, -1, 0), False
            if not self._adapter.virtual:
                self._adapter.enter()


class _Trail:
    """Steps not counted yet: pairs s * A + a, or -1 - s for a reset taken in s, and the states after them."""

    def __init__(self, counts: Counts, recorder: Recorder) -> None:
        self.counts, self.recorder = counts, recorder
        self.moves: list[int] = []
        self.landed: list[int] = []

    def flush(self) -> None:
        """Bring counts and sanity checks up to date."""
        counts = self.counts
        moves, landed = np.array(self.moves, np.int64), np.array(self.landed, np.int64)
        self.moves.clear()
        self.landed.clear()
        states = np.where(moves >= 0, moves // counts.n_actions, -1 - moves)
        counts.visits += np.bincount(states, minlength=counts.n_states)
        self.recorder.add(moves, landed)
        real = moves >= 0
        pairs, successors, done = moves[real], landed[real], 0
        while done < len(pairs):
            done = _record_all(
                *(pairs, successors, done, counts.successor, counts.count, counts.recent),
                *(counts.support, counts.n, counts.settled),
            )
            if done < len(pairs):
                counts.widen(2 * counts.successor.shape[1])


@numba.njit(cache=True, nogil=True)
def _record_all(pairs, landed, done, successor, count, recent, support, n, settled):  # type: ignore[no-untyped-def]
    """Count transitions from number ``done`` on; returns where a row had no place left, or the end."""
    for i in range(done, len(pairs)):
        if not record(pairs[i], landed[i], successor, count, recent, support, n, settled):
            return i
    return len(pairs)
