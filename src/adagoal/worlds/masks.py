"""Which actions the states have, as the environment says it at every visit (``info["action_mask"]``)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from adagoal.core.types import Longs
from adagoal.worlds.body import ActionMask


class ActionMasks:
    """The masks of the states met; ``used`` is False for a method that takes all actions for there."""

    def __init__(self, n_actions: int, absent: Iterable[int], used: bool) -> None:
        self._n_actions, self._enabled = n_actions, used
        self.absent_pairs = set(absent)
        """Pairs s * A + a that do not exist"""
        self.masks_of_new_states: dict[int, ActionMask] = {}
        """Of the states that were new"""
        self._mask_of_state: dict[int, ActionMask] = {}

    def add_state_mask(self, state: int, mask: ActionMask) -> Longs:
        """A state was entered for the first time: the pairs that are left out from now on."""
        if not self._enabled:
            return np.zeros(0, np.int64)
        self.masks_of_new_states[state] = self._mask_of_state[state] = mask
        if mask is None:
            return np.zeros(0, np.int64)
        pairs = state * self._n_actions + np.flatnonzero(np.frombuffer(mask, np.uint8) == 0)
        self.absent_pairs.update(pairs.tolist())
        return pairs

    def conflicts_with_known(self, state: int, mask: ActionMask) -> bool:
        """Whether a state has another mask than before: what an action leads to would not be one distribution."""
        if not self._enabled:
            return False
        if state not in self._mask_of_state:
            first = state * self._n_actions
            here = bytes(pair not in self.absent_pairs for pair in range(first, first + self._n_actions))
            self._mask_of_state[state] = here if 0 in here else None
        return self._mask_of_state[state] != mask


def describe_mask_conflict(state: int) -> str:
    """What is wrong where a mask differs."""
    return f"a state had other actions at one visit than at another, first state {state}"
