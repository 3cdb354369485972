"""Policies as tables: the action, or the reset, for every state on the way to one goal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import index
from typing import Any

import numpy as np

from adagoal.core.array_types import Actions, Longs
from adagoal.core.errors import InputError, to_single_line


@dataclass
class Policy:
    """A table of actions ``[T, S]`` for one goal.

    T = 1 is a stationary policy. T = H is the paper's non-stationary policy (Algorithm ``algo``, output): the actions
    of stages 1 to H, then the reset, and again from stage 1. Calling the policy with a state returns the action and,
    for T > 1, advances its clock. A reset that the table itself chooses does not change the clock, unless
    ``one_attempt``: then the policy has given the attempt up, and the next one begins. ``policy(state, step)`` reads
    the table at a step (0, 1, ...) and leaves the clock alone.

    >>> policy = result.policy(goal)
    >>> action = policy.act(observation)
    >>> step = env.reset() if action == policy.reset_action else env.step(action)
    """

    goal: int
    actions: Actions
    reset_action: int
    # Maps an observation to its state, or to None if the run never saw it.
    find: Callable[[Any], int | None] | None = field(default=None, repr=False)
    one_attempt: bool = False  # whether the table is for one attempt of T steps (docs/probabilities.md)
    first_step: int = 0  # step of the first observation: 1 if drawing it took a step, because the start is random
    _clock: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.restart()

    @property
    def stationary(self) -> bool:
        """Whether the action depends on the state alone."""
        return len(self.actions) == 1

    def restart(self) -> None:
        """Set the clock back to the first observation."""
        self._clock = self.first_step

    def act(self, observation: Any) -> int:
        """Return the action for an observation; ``reset_action`` asks for ``env.reset()``.

        The policy resets if the run never saw the observation. For MiniGrid pass the environment itself as the
        observation, because the agent's view does not determine the state.
        """
        if self.find is None:
            raise InputError("the run did not keep its observations: call the policy with the number of a state")
        state = self.find(observation)
        # The upper bound of a certificate holds for a policy that resets in every state never seen (lemma 6).
        if state is None or state >= self.actions.shape[1]:
            if self.one_attempt:
                self.restart()
            return self.reset_action
        return self(state)

    def __call__(self, state: int, step: int | None = None) -> int:
        try:
            known = 0 <= index(state) < self.actions.shape[1]
        except TypeError:
            known = False
        if not known:
            text = f"must be in 0..{self.actions.shape[1] - 1}, got {to_single_line(state)}; act() takes observations"
            raise InputError(text, "state")
        if self.stationary and not self.one_attempt:
            return int(self.actions[0, state])
        stage, horizon = self._clock if step is None else index(step), self.actions.shape[0]
        action = int(self.actions[stage, state]) if 0 <= stage < horizon else self.reset_action
        if step is None:
            self._clock = stage + 1
            gives_up = self.one_attempt and action == self.reset_action
            if gives_up or self._clock > horizon:
                self.restart()
        return action


def renumber_policies(policies: Mapping[int, Policy], states: Longs, n_states: int) -> dict[int, Policy]:
    """Return policies for other numbers: state i becomes ``states[i]`` of ``n_states``. In other states they reset."""
    renumbered = {}
    for goal, policy in policies.items():
        actions = np.full((len(policy.actions), n_states), policy.reset_action, policy.actions.dtype)
        actions[:, states] = policy.actions[:, : len(states)]
        renumbered[int(states[goal])] = Policy(int(states[goal]), actions, policy.reset_action)
    return renumbered
