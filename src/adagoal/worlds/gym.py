"""Any Gymnasium environment with discrete actions as a world, stepped as it is.

States are the observations (see :mod:`adagoal.worlds.keys`), numbered as the environment numbers them if they are
``Discrete`` (unless ``max_states`` is above their number), else in the order in which they are met. The reset is one
more action. In a ``terminated`` state every action is the reset; where states are numbered on the fly, an observation
that ends the episode is another state than the same one that does not. Time limits are not part of the state and are
switched off. A random initial state is handled with a *virtual start*, a state whose every action draws it; or it is
fixed with a start seed: every reset then uses that seed, and the generator of the dynamics is saved before and put back
after, so that episodes stay independent. Whether the start is random is declared (start seed "random") or found out,
from resets that agree or do not.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import seeding
from numpy.typing import NDArray

from adagoal.core.counts import Counts
from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.core.goalspace import GoalSpace
from adagoal.core.layout import Layout
from adagoal.core.mixture import LinearMixture
from adagoal.core.names import Observed
from adagoal.core.schema import COUNT, check_json, record
from adagoal.core.types import Floats
from adagoal.core.world import Outcome, Plan
from adagoal.worlds import episode
from adagoal.worlds.adapter import Adapter, StartSeed
from adagoal.worlds.body import Body, Local
from adagoal.worlds.process import Killed, Remote
from adagoal.worlds.sanity import Doubted, Doubts
from adagoal.worlds.stepping import Stepping

REPLAY = 100_000
"""Steps since the last reset that a snapshot can hold."""
FACTS = record(
    place=episode.PLACE,
    adrift={"type": "boolean"},
    seed={"type": ["integer", "null"], "minimum": 0, "maximum": 2**63},
    doubts=Doubts.FACTS,
    generator={"type": "object"},
    actions={"type": ["array", "null"], "maxItems": REPLAY, "items": COUNT},
    states={"type": "array"},
    labels={"type": "array", "items": {"type": "string"}},
)
"""What a checkpoint holds. ``states`` are the keys of the states as JSON."""
OWN_DICE = (
    "the environment draws at random without Gymnasium's generator (np_random), which alone can be put back: a run "
    "that was resumed is as valid as one that was not, but not the same"
)
DEATHS = 3
"""Times in a row that the process of an environment may be killed before it has made a step."""


class GymWorld(Doubted):
    """A :class:`~adagoal.core.world.World` that steps a Gymnasium environment."""

    def __init__(
        self,
        env: gymnasium.Env[Any, Any] | Remote,
        name: str,
        start_seed: StartSeed = None,
        max_states: int | None = None,
    ) -> None:
        body = env if isinstance(env, Remote) else Local(env, name, max_states)
        self._adapter = adapter = Adapter(body, name, start_seed, max_states)
        super().__init__(adapter.n_actions, adapter.reseeded)
        self.name, self.n_actions, self.start = name, adapter.n_actions, adapter.start
        self.state_bound, self.initial_states = adapter.state_bound, adapter.initial_states
        self.pair_bound = adapter.state_bound * adapter.n_actions
        self.sure_start = adapter.virtual
        """A fixed start is inferred from resets that agreed; a virtual one is where every reset leads by definition."""
        self.masked = True
        self.layout: Layout | None = None
        self.mixture: LinearMixture | None = None
        """The kernels of which the environment is said to be a mixture."""
        self._labels: tuple[str, ...] = ()
        self._place = [self.start, -1, 0]  # state, goal column aimed at (-1: none), steps of the episode
        self._seed: int | None = None  # of the environment's randomness; None before the first rollout
        self._failure: BaseException | None = None
        self._adrift = False  # nobody knows where the agent stands: a step failed, or a signal came in its middle
        self._deaths = 0

    @property
    def body(self) -> Body:
        """The environment itself."""
        return self._adapter.body

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the states: given from outside, or the observations met so far."""
        return self._labels or self._adapter.labels

    @labels.setter
    def labels(self, labels: tuple[str, ...]) -> None:
        self._labels = labels

    # --- playing ----------------------------------------------------------------------------------------------

    def rollout(
        self, plan: Plan, weights: Floats, counts: Counts, rng: np.random.Generator, max_steps: int, max_episodes: int
    ) -> Outcome:
        """Play until a threshold is met, a state is new, or ``max_steps`` or ``max_episodes`` is spent.

        What the environment raises is raised by the next call, so that what was seen before is not lost.
        """
        self._raise_failure()
        if self._seed is None:
            self.restart(int(rng.integers(2**31)))
        self._doubts.go_on()
        if self._adrift:
            self._go_back()
        stage = Stepping(self._adapter, plan, counts, self._recorder, self._doubts, self.masked)
        log = np.zeros((min(max_episodes, episode.EPISODES), 2), np.int64)
        given = episode.in_python(episode.orders(plan, weights, self.n_actions, self.start))
        try:
            steps, ended = episode.play(stage, given, self._place, rng, min(max_steps, plan.steps), log)
        except BaseException:
            self._adrift = True
            raise
        finally:
            stage.flush()
        self._take(stage.failure, steps)
        if not steps:
            self._raise_failure()
        return episode.outcome(steps, ended, log)

    def _take(self, failure: BaseException | None, steps: int) -> None:
        """What a rollout failed with. A process that was killed is begun anew, as nothing is missing but time."""
        self._adrift = isinstance(failure, InputError)
        self._deaths = 0 if steps else self._deaths + 1
        if isinstance(failure, Killed) and self._deaths <= DEATHS:
            self.note(f"{failure.reason}; the run went on from a reset in a new one")
            return
        self._failure = failure

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _go_back(self) -> None:
        """From a reset on, because nobody knows where the agent stands."""
        self.note("the environment could not be put back into the state it was in: the run went on from a reset")
        self.restart((self._seed or 0) + 1)  # another seed: samples that repeat themselves would be counted as new ones
        self._adrift = False

    def restart(self, seed: int) -> None:
        """Back to the start, with the environment's randomness seeded anew."""
        self._seed = seed
        landed = self._adapter.seed(seed)
        if landed != self.start:
            self._doubts.astray(landed)
        self._place = [self.start, -1, 0]

    def classify(self, space: GoalSpace) -> bool:
        """The observation is what the environment gives; of MiniGrid it is the whole state, not the window."""
        return self._adapter.classify(space, self.labels)

    def observed(self) -> Observed:
        """How the states are known by their observations."""
        return self._adapter.observed()

    @property
    def warnings(self) -> list[str]:
        """What a user should know about the environment."""
        return self._told(self._adapter.truncates)

    # --- saving -----------------------------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """An episode is restored by replaying it from its reset, unless it is very long."""
        return len(self._adapter.actions) <= REPLAY

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Where the agent stands, how it got there from the last reset, and what the sanity checks know so far."""
        waiting = self._seed is None or (self._adapter.virtual and self._place[0] == self.start)
        facts = {
            "place": [int(part) for part in self._place],
            "adrift": self._adrift,
            "seed": self._seed,
            "doubts": self._doubts.state(),
        }
        return self._recorder.state(), facts | self._adapter.snapshot(waiting, self._adrift)

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Back to where the agent stood; exact for environments whose randomness is all in ``np_random``.

        A generator of the environment's own cannot be put back. It gets another seed, so that what it draws from now
        on is not what it drew before: samples that repeat themselves would be counted as new ones.
        """
        check_json(FACTS, facts)
        self._doubts.restore(facts["doubts"])
        self._recorder.restore(arrays)
        self._adapter.recall(facts)
        if facts["seed"] is not None and self._recorder.random and facts["generator"] == _untouched(facts["seed"]):
            self.note(OWN_DICE)
        if facts["seed"] is not None:
            self.restart(int(facts["seed"]) + 1)
        self._place = [int(part) for part in facts["place"]]
        if facts["adrift"] or not self._replayed(facts):
            self._go_back()

    def _replayed(self, facts: dict[str, Any]) -> bool:
        """Whether the episode under way could be replayed."""
        try:
            return self._adapter.replay(facts) == self._place[0]
        except EnvironmentFailure:
            return False


def _untouched(seed: int) -> dict[str, Any]:
    """The state of a generator of Gymnasium's that was seeded and not used since."""
    return dict(seeding.np_random(seed)[0].bit_generator.state)
