"""Which actions the states have, as the environment says it at every visit (``info["action_mask"]``)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from adagoal.core.types import Longs
from adagoal.worlds.body import Mask


class Masks:
    """The masks of the states met; ``used`` is False for a method that takes all actions for there."""

    def __init__(self, n_actions: int, absent: Iterable[int], used: bool) -> None:
        self._n_actions, self._used = n_actions, used
        self.absent = set(absent)
        """Pairs s * A + a that do not exist"""
        self.entered: dict[int, Mask] = {}
        """Of the states that were new"""
        self._known: dict[int, Mask] = {}

    def enter(self, state: int, mask: Mask) -> Longs:
        """A state was entered for the first time: the pairs that are left out from now on."""
        if not self._used:
            return np.zeros(0, np.int64)
        self.entered[state] = self._known[state] = mask
        if mask is None:
            return np.zeros(0, np.int64)
        pairs = state * self._n_actions + np.flatnonzero(np.frombuffer(mask, np.uint8) == 0)
        self.absent.update(pairs.tolist())
        return pairs

    def differs(self, state: int, mask: Mask) -> bool:
        """Whether a state has another mask than before: what an action leads to would not be one distribution."""
        if not self._used:
            return False
        if state not in self._known:
            first = state * self._n_actions
            here = bytes(pair not in self.absent for pair in range(first, first + self._n_actions))
            self._known[state] = here if 0 in here else None
        return self._known[state] != mask


def torn(state: int) -> str:
    """What is wrong where a mask differs."""
    return f"a state had other actions at one visit than at another, first state {state}"
