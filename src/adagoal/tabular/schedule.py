"""When planning pays: operations are counted, on both sides, and no clock is read.

The unit is one successor of one pair, looked at for one goal by a sweep with closed forms; it takes about a nanosecond.
There are three kinds of planning, each with a purse of its own:

    CLOSED   both bounds of a block of goals, with the closed forms of lemma 4
    DUALS    the same with exact duals, at about twenty times the price
    GAPS     the action gaps of one goal (lemmas 7 to 9), of which a dense inverse is the larger part; and hops to all
             open goals (lemma 12)

Every step of the agent earns :data:`STEP` for each purse, about half of what it costs itself. A purse that is not
overdrawn may be spent, and what was bought is then paid for, so that at most one plan is bought on credit. At first
every purse holds a float, and it never holds more. A small world lives on its floats, and is planned for as often as
new counts are worth a look; a large one spends them in its first seconds, and plans as fast as it steps from then on.

One small block is free every :meth:`Schedule.patience` steps: it has the goals to be played next, and steps towards
goals of which nobody knows how they stand are wasted, however fast they are. That is not dear: there are :data:`GRAIN`
of them while the steps grow by a factor e.

Between two looks the agent takes :meth:`Schedule.patience` steps: its bounds are backed up on the way, so that more
than that is lost to goals which no longer need it, and less is not worth a look.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from adagoal.core.schema import record
from adagoal.core.types import Floats

CLOSED, DUALS, GAPS = 0, 1, 2
FLOATS = (1e9, 2e8, 1e9)
"""What the purses hold at first, and at most."""
STEP = 100.0
"""What each purse earns by a step."""
EXACT = 20.0
"""The price of an exact dual, in closed forms."""
CALL = 1e5
"""What every plan costs whatever its size: its blocks are copied, and functions are called."""
SHORTEST, GRAIN = 16, 256
"""A rollout takes one step for so many steps before it, and at least the first number."""


class Schedule:
    """The purses of one run."""

    FACTS = record(
        purses={"type": "array", "minItems": 3, "maxItems": 3, "items": {"type": "number"}},
        paid={"type": "number", "minimum": 0},
        due={"type": "number", "minimum": 0},
    )

    def __init__(self) -> None:
        self.purses: Floats = np.array(FLOATS)
        """[3] what may be spent"""
        self._paid = 0.0  # steps that have been paid for
        self._due = 0.0  # the steps from which on the next block is free

    def earn(self, steps: float) -> None:
        """The steps of the run so far, resets included."""
        self.purses = np.minimum(self.purses + STEP * (steps - self._paid), FLOATS)
        self._paid = steps

    @property
    def rich(self) -> bool:
        """Whether a plan with closed forms is paid for, and not a free one."""
        return bool(self.purses[CLOSED] >= 0.0)

    def pays(self, kind: int) -> bool:
        """Whether a plan of this kind may be bought now."""
        return bool(self.purses[kind] >= 0.0) or (kind == CLOSED and self._paid >= self._due)

    def pay(self, work: float, exact: bool) -> None:
        """Pay for sweeps that take so many operations, or take the free block."""
        kind = DUALS if exact else CLOSED
        if self.purses[kind] >= 0.0:
            self.purses[kind] -= CALL + work
        else:
            self._due = self._paid + self.patience()

    def gaps(self, states: int) -> float:
        """Pay for the action gaps of one goal; returns what they cost."""
        work = CALL + 0.1 * states**3 + 40.0 * states**2
        self.purses[GAPS] -= work
        return work

    def hops(self, goals: int, pairs: int) -> None:
        """Pay for hops to so many goals over so many pairs, which are searched a few times for each."""
        self.purses[GAPS] -= CALL + 10.0 * goals * pairs

    def patience(self) -> int:
        """Steps until the next look."""
        return max(SHORTEST, int(self._paid) // GRAIN)

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"purses": self.purses.tolist(), "paid": self._paid, "due": self._due}

    def restore(self, facts: dict[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        self.purses, self._paid = np.array(facts["purses"], float), float(facts["paid"])
        self._due = float(facts["due"])
