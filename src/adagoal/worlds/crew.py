"""Several copies of an environment that play one plan at once, for environments whose steps are slow.

A *round*: every copy (:mod:`adagoal.worlds.copies`) plays the same plan for the same number of steps, in a process of
its own, and sends what it saw. The transitions are counted copy after copy, in the order of their numbers, whoever was
first. So a run follows from its seed and the number of copies, wherever they live. A round ends a rollout when, after
the merge, a pair has been tried often enough for a new plan or a state is new; otherwise another round follows. A
round grows with the run, so that the plan is never much older than :data:`GRAIN` allows.

A copy whose process is killed costs its round: what it saw is lost whatever that was, which no certificate minds
(docs/theory-more.md, "Several copies"); it goes on from a reset in a new process. One that ends by itself is a
transition lost because of what happened in it, as in :mod:`adagoal.worlds.gym`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core import generator
from adagoal.core.backup import Local, table
from adagoal.core.counts import Counts
from adagoal.core.errors import InputError
from adagoal.core.failures import Failure
from adagoal.core.goalspace import GoalSpace
from adagoal.core.layout import Layout
from adagoal.core.mixture import LinearMixture
from adagoal.core.names import DIGEST, Observed
from adagoal.core.schema import COUNT, Array, check_arrays, check_json, record
from adagoal.core.text import plain
from adagoal.core.types import Floats, Longs
from adagoal.core.world import Outcome, Plan
from adagoal.worlds import episode, keys
from adagoal.worlds.copies import Copy, Met, Part, Seen
from adagoal.worlds.gym import DEATHS, REPLAY
from adagoal.worlds.masks import Masks, torn
from adagoal.worlds.process import Killed, Process
from adagoal.worlds.roster import Hire, Roster
from adagoal.worlds.sanity import Doubted, Doubts

OWN_DICE = (
    "the environment draws at random without Gymnasium's generator (np_random): the certificates rest on your word "
    "that its copies do not draw the same numbers"
)
FEWEST, LONGEST, GRAIN = 32, 4096, 128
"""Steps of a copy in a round: all copies together take 1/GRAIN of the steps so far, each in these limits."""
SNAPSHOT = record(
    place=episode.PLACE,
    rng={"type": "object"},
    generator={"type": "object"},
    actions={"type": ["array", "null"], "maxItems": REPLAY, "items": COUNT},
)
FACTS = record(
    seed={"type": ["integer", "null"], "minimum": 0, "maximum": 2**63},
    lives={"type": "array", "items": COUNT},
    copies={"type": "array", "items": SNAPSHOT | {"type": ["object", "null"]}},
    doubts=Doubts.FACTS,
    truncates={"type": "boolean"},
    drew={"type": "boolean"},
    states={"type": "array"},
    labels={"type": "array", "items": {"type": "string"}},
)
"""What a checkpoint holds; a copy is null where nobody knows where it stands."""


class CrewWorld(Doubted):
    """A :class:`~adagoal.core.world.World` of several copies of a Gymnasium environment."""

    def __init__(self, makers: Sequence[Callable[[], Copy]], name: str, hire: Hire = Process) -> None:
        self.name, self._copies = name, Roster(makers, name, hire)
        self._traits = traits = self._copies.traits
        super().__init__(traits.n_actions, traits.reseeded)
        self.n_actions, self.start, self.sure_start = traits.n_actions, traits.start, traits.virtual
        self.state_bound, self.initial_states = traits.state_bound, traits.initial_states
        self.pair_bound, self.masked = self.state_bound * self.n_actions, True
        self.layout: Layout | None = None
        self.mixture: LinearMixture | None = None
        self._labels: tuple[str, ...] = ()
        self._met: Met = list(traits.met or [])  # all states that have a number, without a virtual start
        self._index = {key: s + traits.virtual for s, (key, _) in enumerate(self._met)}
        self._ages = [0] * len(makers)  # steps since the last reset of each copy
        self._threads = np.zeros((len(makers), 3), np.int64)  # where the recorder stands with each copy
        self._failure: BaseException | None = None
        self._deaths = 0
        self._truncates = self._drew = False

    @property
    def size(self) -> int:
        """How many copies there are."""
        return len(self._copies)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the states: given from outside, or the observations met so far."""
        if self._labels or self._traits.met is None:
            return self._labels
        return (*(("start",) if self._traits.virtual else ()), *(label for _, label in self._met))

    @labels.setter
    def labels(self, labels: tuple[str, ...]) -> None:
        self._labels = labels

    # --- playing ----------------------------------------------------------------------------------------------

    def rollout(
        self, plan: Plan, weights: Floats, counts: Counts, rng: np.random.Generator, max_steps: int, max_episodes: int
    ) -> Outcome:
        """Rounds until a threshold is met, a state is new, or ``max_steps`` or ``max_episodes`` is spent."""
        self._raise_failure()
        if self._copies.seed is None:
            self.restart(int(rng.integers(2**31)))
        self._doubts.go_on()
        self._revive()
        part = self._part(plan, weights, counts)
        outcome, over, max_steps = Outcome(), False, min(max_steps, max(plan.steps, FEWEST * self.size))
        while not over and outcome.steps < max_steps and len(outcome.goals) < max_episodes:
            try:
                found = self._round(part, counts, max_steps - outcome.steps, max_episodes - len(outcome.goals))
            except KeyboardInterrupt as error:  # raised by the next call, so the rounds before it are not lost
                self._failure = error
                break
            over = any(self._copies.adrift)
            for i, seen in found.items():
                over |= self._merge(i, seen, counts, plan.threshold)
                outcome.steps += len(seen.trail)
                outcome.goals += seen.log[:, 0].tolist()
                outcome.reached += (seen.log[:, 1] > 0).tolist()
            if part.fresh:
                part = part._replace(absent=np.flatnonzero(counts.absent).tolist(), fresh=False)
        self._deaths = 0 if outcome.steps else self._deaths + 1
        if not outcome.steps:
            self._raise_failure()
        return outcome

    def _part(self, plan: Plan, weights: Floats, counts: Counts) -> Part:
        columns = np.flatnonzero(weights > 0)
        if isinstance(plan.policy, Local):  # copies count nothing: what they follow stays as it is until they are back
            arrays = counts.successor, counts.count, counts.support, counts.n
            policy = table(columns, np.flatnonzero(counts.seen), plan.policy, *arrays)
        else:
            policy = np.ascontiguousarray(plan.policy[:, :, columns])
        orders = episode.part(plan, weights, columns, policy, self.n_actions, self.start)
        seen, terminal, absent = (
            np.flatnonzero(given).tolist() for given in (counts.seen, counts.terminal, counts.absent)
        )
        fresh = not counts.visits[self.start] and not self._traits.virtual
        return Part(orders, columns.tolist(), seen, terminal, absent, self.masked, fresh)

    def _round(self, part: Part, counts: Counts, steps: int, episodes: int) -> dict[int, Seen]:
        """What every copy saw; so many steps and episodes of all together, at most."""
        N = min(self.size, steps, episodes)
        each = min(max(int(counts.visits.sum()) // (GRAIN * N), FEWEST), LONGEST, steps // N)
        news = [self._copies.news(i, self._met) for i in range(N)]
        return self._copies.ask({i: ("play", part, news[i], each, episodes // N) for i in range(N)}, self._lost)

    def _lost(self, i: int, error: BaseException) -> None:
        """Copy i has answered with an exception, or not at all."""
        if isinstance(error, Killed) and self._deaths < DEATHS:
            self.note(f"{error.reason}; a round of copy {i} was lost, and it went on from a reset in a new one")
            return
        self._doubts.lost += not isinstance(error, Killed)
        self._failure = self._failure or error

    def _merge(self, i: int, seen: Seen, counts: Counts, threshold: Longs) -> bool:
        """Count what copy i saw; whether that ends the rollout."""
        if self._too_many(seen):
            text = f"{self.name} has more than {self.state_bound} states; give a larger number"
            nothing: dict[str, Any] = {"trail": seen.trail[:0], "met": [], "masks": {}, "torn": []}
            seen = seen._replace(**nothing, failure=Failure.of(InputError(text, "max_states")))
        numbers = self._numbers(i, seen)
        moves, landed, ended = self._numbered(numbers, seen)
        self._make_room(counts)
        self._look_at_masks(counts, numbers, seen)
        new = not counts.seen[landed].all()
        real = moves >= 0
        self._look_at_ends(counts, landed[real & (ended > 0)], landed[real & (ended == 0)])
        for stray in landed[~real & (landed != self.start)][:1]:
            self._doubts.astray(int(stray))
        self._threads[i] = self._recorder.add(moves, landed, self._threads[i])
        counts.add(moves, landed)
        self._truncates |= seen.truncates
        self._drew |= seen.drew
        self._ages[i] = seen.age
        if seen.failure is not None:
            self._copies.adrift[i] = True
            self._lost(i, seen.failure.exception())
        tried = np.unique(moves[real])
        tried = tried[tried < len(threshold)]
        return new or seen.failure is not None or bool((counts.n[tried] >= threshold[tried]).any())

    def _numbers(self, i: int, seen: Seen) -> Longs:
        """The numbers that states have here, by those that copy i has given them; none where these are the same."""
        if not seen.met:
            return np.zeros(0, np.int64)
        known = self._copies.told[i] + self._traits.virtual
        return np.concatenate([np.arange(known), [self._number(key, label) for key, label in seen.met]])

    def _numbered(self, numbers: Longs, seen: Seen) -> tuple[Longs, Longs, Longs]:
        """Moves, states after them and ends, with the numbers that states have here."""
        moves, landed, ended = np.ascontiguousarray(seen.trail.T)
        if not len(numbers):
            return moves, landed, ended
        A = self.n_actions
        states = numbers[np.where(moves >= 0, moves // A, -1 - moves)]
        return np.where(moves >= 0, states * A + moves % A, -1 - states), numbers[landed], ended

    def _number(self, key: keys.Key, label: str) -> int:
        if key not in self._index:
            self._index[key] = len(self._met) + self._traits.virtual
            self._met.append((key, label))
        return self._index[key]

    def _too_many(self, seen: Seen) -> bool:
        """Whether there is no number left for a state that a copy met."""
        new = sum(key not in self._index for key, _ in seen.met)
        return len(self._index) + self._traits.virtual + new > self.state_bound

    def _make_room(self, counts: Counts) -> None:
        """Rows for the states met so far, and one kept free for the next."""
        while len(self._index) + self._traits.virtual >= counts.n_states < self.state_bound:
            counts.grow_states(min(2 * counts.n_states, self.state_bound))

    def _look_at_masks(self, counts: Counts, numbers: Longs, seen: Seen) -> None:
        """Leave out what new states do not have; a state that several copies found must be the same to all."""
        if not seen.masks and not seen.torn:
            return
        theirs, differ = list(seen.masks), list(seen.torn)
        if len(numbers):
            theirs, differ = numbers[theirs].tolist(), numbers[differ].tolist()
        known = Masks(self.n_actions, np.flatnonzero(counts.absent).tolist(), used=True)
        for state, mask in zip(theirs, seen.masks.values(), strict=True):
            if not counts.visits[state] and (state == self.start or not counts.seen[state]):
                counts.leave_out(known.enter(state, mask))
            elif known.differs(state, mask):
                differ.append(state)
        for state in differ[:1]:
            self._doubts.add(torn(state))

    def _look_at_ends(self, counts: Counts, ended: Longs, open_: Longs) -> None:
        """Mark terminated states; whether a state ends the episode must not change."""
        torn = np.concatenate([ended[counts.seen[ended] & ~counts.terminal[ended]], np.intersect1d(ended, open_)])
        torn = np.concatenate([torn, open_[counts.terminal[open_]]])
        counts.terminal[ended] = True
        if len(torn):
            self._doubts.ends_now_and_then(int(torn[0]), self.state_bound)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def restart(self, seed: int) -> None:
        """All copies back to the start, with all their randomness seeded anew."""
        self._copies.seed, self._copies.adrift = seed, [True] * len(self._copies)
        self._revive()

    def _revive(self) -> None:
        """Copies of which nobody knows where they stand go on from a reset."""
        for i, landed in self._copies.revive(self._lost).items():
            self._threads[i] = self._ages[i] = 0
            if landed != self.start:
                self._doubts.astray(landed)
        self._raise_failure()

    def close(self) -> None:
        """End all copies."""
        self._copies.close()

    # --- goals and names --------------------------------------------------------------------------------------

    def classify(self, space: GoalSpace) -> bool:
        """The observation of a declared state is its number; others are seen by the copies alone."""
        if self._traits.met is not None:
            text = "must be states: what is observed elsewhere is in other processes; or explore with a single worker"
            raise InputError(text, "goals")
        first = self._traits.observed.space["first"]
        for state in range(self.state_bound - self._traits.virtual):
            space.add(state, first + state, self.labels[state] if self.labels else str(first + state))
        return True

    def observed(self) -> Observed:
        """How the states are known by their observations."""
        if self._traits.met is None:
            return self._traits.observed
        digests = np.zeros((len(self.labels), DIGEST), np.uint8)
        for key, state in self._index.items():
            digests[state] = np.frombuffer(keys.digest(key), np.uint8)
        return self._traits.observed._replace(digests=digests)

    @property
    def warnings(self) -> list[str]:
        """What a user should know about the environment."""
        dice = [OWN_DICE] if self._recorder.random and not self._drew else []
        return [*self._told(self._truncates), *dice]

    # --- saving -----------------------------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """Episodes are restored by replaying them; a checkpoint holds so many actions of all copies together."""
        return sum(self._ages) <= REPLAY

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Where every copy stands, how it got there from its last reset, and what the sanity checks know so far."""
        copies = self._copies
        news = {i: copies.news(i, self._met) for i in copies.steady() if copies.seed is not None}
        found = copies.ask({i: ("snapshot", new) for i, new in news.items()}, self._lost)
        facts = {
            "seed": copies.seed,
            "lives": list(copies.lives),
            "copies": [found.get(i) for i in range(len(copies))],
            "doubts": self._doubts.state(),
            "truncates": self._truncates,
            "drew": self._drew,
            "states": [keys.to_json(key) for key, _ in self._met],
            "labels": [label for _, label in self._met],
        }
        return self._recorder.state() | {"threads": self._threads}, facts

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Back to where every copy stood; what cannot be put back gets another seed."""
        check_json(FACTS, facts)
        copies, given = self._copies, facts["copies"]
        if not len(facts["lives"]) == len(given) == len(copies):
            raise ValueError(f"it has another number of copies than {len(copies)}")
        check_arrays({"threads": Array("int64", (len(copies), 3))}, arrays)
        for copy in given:
            self._check(copy)
        self._doubts.restore(facts["doubts"])
        self._recorder.restore({name: array for name, array in arrays.items() if name != "threads"})
        self._recall(facts)
        self._threads = np.array(arrays["threads"])
        self._truncates, self._drew = facts["truncates"], facts["drew"]
        copies.seed, copies.lives = facts["seed"], list(facts["lives"])
        if copies.seed is None:
            return
        self._ages = [len((copy or {}).get("actions") or ()) for copy in given]
        calls = {
            i: ("restore", copy, copies.news(i, self._met), copies.new_life(i))
            for i, copy in enumerate(given)
            if copy is not None
        }
        found = copies.ask(calls, self._lost)
        copies.adrift = [not found.get(i, False) for i in range(len(copies))]
        if any(copies.adrift):
            self.note("a copy could not be put back into the state it was in: it went on from a reset")

    def _check(self, copy: dict[str, Any] | None) -> None:
        """A ``ValueError`` where this is no snapshot of a copy."""
        if copy is not None:
            generator.check(copy["rng"])
            if copy["generator"]:
                generator.check(copy["generator"])
            if any(action >= self.n_actions for action in copy["actions"] or ()):
                raise ValueError("there is no such action")

    def _recall(self, facts: dict[str, Any]) -> None:
        """The numbers and names that states had."""
        if self._traits.met is None:
            return
        found = [keys.from_json(key) for key in facts["states"]]
        labels = [plain(label) for label in facts["labels"]]
        first = [key for key, _ in self._traits.met]
        if not len(labels) == len(found) == len(set(found)) or found[: len(first)] != first:
            raise ValueError("the states are not those of this environment, one number and one label each")
        self._met = list(zip(found, labels, strict=True))
        self._index = {key: s + self._traits.virtual for s, key in enumerate(found)}
