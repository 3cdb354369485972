"""Names in a result: which state an observation is, and the goals as rows of a table."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core.errors import InputError
from adagoal.core.names import numbered
from adagoal.runs.view import View
from adagoal.worlds import keys

if TYPE_CHECKING:
    from adagoal.runs.result import Result


class Finder:
    """The numbers of states by their observations; a table is made when it is first asked."""

    def __init__(self, view: View, digests: NDArray[np.uint8] | None, n_states: int) -> None:
        self._view, self._digests, self._n_states = view, digests, n_states
        self._find: Callable[[Any], int | None] | None = None

    def __reduce__(self) -> Any:
        return Finder, (self._view, self._digests, self._n_states)

    def __call__(self, observation: Any) -> int | None:
        """The state; None for an observation that was never met."""
        if self._find is None:
            self._find = self._made()
        try:
            return self._find(observation)
        except InputError:
            raise
        except Exception as error:
            text = f"this is no observation of the environment ({type(error).__name__}: {error})"
            raise InputError(text, "observation") from None

    def _made(self) -> Callable[[Any], int | None]:
        view, n_states = self._view, self._n_states
        if view.space is None:
            return lambda given: numbered(given, view.labels, n_states, "state")
        if view.space["kind"] == "states":
            first = view.space["first"]
            return lambda given: numbered(index(given) - first, (), n_states, "observation")
        digests = () if self._digests is None else self._digests
        known = {row.tobytes(): state for state, row in enumerate(digests) if row.any()}
        read = keys.reader(view.space)
        return lambda observation: known.get(keys.digest(read(observation)))


def rows(result: Result) -> list[dict[str, Any]]:
    """One row per goal that was seen, those of the result first; see :meth:`Result.table`."""
    chosen, still = set(result.goals), set(result.open_goals)

    def row(goal: int) -> dict[str, Any]:
        lower, upper = result.certificates[goal]
        return {
            "goal": goal,
            "label": result.goal_label(goal),
            "states": len(result.members(goal)),
            "lower": lower,
            "upper": upper,
            "error": result.errors.get(goal, math.nan),
            "within": goal in chosen,
            "open": goal in still,
        }

    return [row(goal) for goal in (*result.goals, *(g for g in result.certificates if g not in chosen))]
