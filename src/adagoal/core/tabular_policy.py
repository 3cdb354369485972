"""Policies as tables: what to do in each state to reach one goal, the reset included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import index
from typing import Any

from adagoal.core.errors import InputError
from adagoal.core.types import Actions


@dataclass
class Policy:
    """A table of actions ``[T, S]`` for one goal.

    T = 1 is a stationary policy. T = H is the paper's non-stationary policy (Algorithm ``algo``, output):
    the actions of stage h for h = 1..H, then the reset, and again from stage 1. Calling the policy with a
    state gives the action and, for T > 1, moves its clock on; :meth:`restart` sets the clock back.
    A reset chosen by the table of a periodic policy restarts nothing: the clock alone decides the stage.
    """

    goal: int
    actions: Actions
    reset_action: int
    find: Callable[[Any], int | None] | None = field(default=None, repr=False)
    """The number of the state with an observation; None for an observation that was never met"""
    _clock: int = field(default=0, repr=False)

    @property
    def stationary(self) -> bool:
        """True where the action depends on the state alone."""
        return len(self.actions) == 1

    def restart(self) -> None:
        """Back to stage 1."""
        self._clock = 0

    def act(self, observation: Any) -> int:
        """The action for what the environment returned; ``reset_action`` asks for ``env.reset()``.

        Of MiniGrid, whose window does not show the whole state, the environment itself is the observation. In a
        situation that the run has never met the answer is the reset.
        """
        if self.find is None:
            raise InputError("the run did not keep its observations: call the policy with the number of a state")
        state = self.find(observation)
        if state is None or state >= self.actions.shape[1]:
            return self.reset_action
        return self(state)

    def __call__(self, state: int) -> int:
        if not 0 <= index(state) < self.actions.shape[1]:
            raise InputError(f"state: must be in 0..{self.actions.shape[1] - 1}, got {state}")
        if self.stationary:
            return int(self.actions[0, state])
        stage, horizon = self._clock, self.actions.shape[0]
        self._clock = (stage + 1) % (horizon + 1)
        return self.reset_action if stage == horizon else int(self.actions[stage, state])
