"""When planning pays: operations are counted, on both sides, and no clock is read.

The unit is one successor of one pair, looked at for one goal by a sweep with closed forms; it takes about a nanosecond.
There are three kinds of planning, each with a purse of its own:

    CLOSED   both bounds of a block of goals, with the closed forms of lemma 4
    DUALS    the same with exact duals, at about twenty times the price
    GAPS     the action gaps of one goal (lemmas 7 to 9), of which a dense inverse is the larger part; and hops to all
             open goals (lemma 12)

Every step of the agent earns :data:`TOKENS_PER_STEP` for each purse, about half of what it costs itself. A purse that
is not overdrawn may be spent, and what was bought is then paid for, so that at most one plan is bought on credit. At
first every purse holds a float, and it never holds more. A small world lives on its floats, and is planned for as often
as new counts are worth a look; a large one spends them in its first seconds, and plans as fast as it steps from then
on.

One small block is free every :meth:`Schedule.replan_interval` steps: it has the goals to be played next, and steps
towards goals of which nobody knows how they stand are wasted, however fast they are. That is not dear: there are
:data:`REPLAN_STEP_DIVISOR` of them while the steps grow by a factor e.

Between two looks the agent takes :meth:`Schedule.replan_interval` steps: its bounds are backed up on the way, so that
more than that is lost to goals which no longer need it, and less is not worth a look.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from adagoal.core.file_formats import object_schema
from adagoal.core.types import Floats

CLOSED_FORM_KIND, EXACT_DUAL_KIND, ACTION_GAP_KIND = 0, 1, 2
TOKEN_CAPACITY = (1e9, 2e8, 1e9)
"""What the purses hold at first, and at most."""
TOKENS_PER_STEP = 100.0
"""What each purse earns by a step."""
EXACT_DUAL_COST = 20.0
"""The price of an exact dual, in closed forms."""
COST_PER_PLAN = 1e5
"""What every plan costs whatever its size: its blocks are copied, and functions are called."""
MIN_REPLAN_STEPS, REPLAN_STEP_DIVISOR = 16, 256
"""A rollout takes one step for so many steps before it, and at least the first number."""


class PlanningBudget:
    """The purses of one run."""

    FACTS_SCHEMA = object_schema(
        purses={"type": "array", "minItems": 3, "maxItems": 3, "items": {"type": "number"}},
        paid={"type": "number", "minimum": 0},
        due={"type": "number", "minimum": 0},
    )

    def __init__(self) -> None:
        self.tokens: Floats = np.array(TOKEN_CAPACITY)
        """[3] what may be spent"""
        self._credited_steps = 0.0  # steps that have been paid for
        self._free_block_step = 0.0  # the steps from which on the next block is free

    def refill_tokens(self, steps: float) -> None:
        """The steps of the run so far, resets included."""
        self.tokens = np.minimum(self.tokens + TOKENS_PER_STEP * (steps - self._credited_steps), TOKEN_CAPACITY)
        self._credited_steps = steps

    @property
    def has_tokens(self) -> bool:
        """Whether a plan with closed forms is paid for, and not a free one."""
        return bool(self.tokens[CLOSED_FORM_KIND] >= 0.0)

    def can_afford(self, kind: int) -> bool:
        """Whether a plan of this kind may be bought now."""
        return bool(self.tokens[kind] >= 0.0) or (
            kind == CLOSED_FORM_KIND and self._credited_steps >= self._free_block_step
        )

    def spend_on_sweeps(self, work: float, exact: bool) -> None:
        """Pay for sweeps that take so many operations, or take the free block."""
        kind = EXACT_DUAL_KIND if exact else CLOSED_FORM_KIND
        if self.tokens[kind] >= 0.0:
            self.tokens[kind] -= COST_PER_PLAN + work
        else:
            self._free_block_step = self._credited_steps + self.replan_interval()

    def spend_on_gaps(self, states: int) -> float:
        """Pay for the action gaps of one goal; returns what they cost."""
        work = COST_PER_PLAN + 0.1 * states**3 + 40.0 * states**2
        self.tokens[ACTION_GAP_KIND] -= work
        return work

    def spend_on_hops(self, goals: int, pairs: int) -> None:
        """Pay for hops to so many goals over so many pairs, which are searched a few times for each."""
        self.tokens[ACTION_GAP_KIND] -= COST_PER_PLAN + 10.0 * goals * pairs

    def replan_interval(self) -> int:
        """Steps until the next look."""
        return max(MIN_REPLAN_STEPS, int(self._credited_steps) // REPLAN_STEP_DIVISOR)

    def budget_state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"purses": self.tokens.tolist(), "paid": self._credited_steps, "due": self._free_block_step}

    def restore_budget(self, facts: dict[str, Any]) -> None:
        """The inverse of :meth:`budget_state`."""
        self.tokens, self._credited_steps = np.array(facts["purses"], float), float(facts["paid"])
        self._free_block_step = float(facts["due"])
