"""Names in a result: which state an observation is, and the goals as rows of a table."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core.errors import InputError
from adagoal.core.names import resolve_number
from adagoal.runs.view import StateMetadata
from adagoal.worlds import keys

if TYPE_CHECKING:
    from adagoal.runs.result import Result


class StateFinder:
    """The numbers of states by their observations; a table is made when it is first asked."""

    def __init__(self, view: StateMetadata, digests: NDArray[np.uint8] | None, n_states: int) -> None:
        self._metadata, self._digests, self._n_states = view, digests, n_states
        self._lookup: Callable[[Any], int | None] | None = None

    def __reduce__(self) -> Any:
        return StateFinder, (self._metadata, self._digests, self._n_states)

    def __call__(self, observation: Any) -> int | None:
        """The state; None for an observation that was never met."""
        if self._lookup is None:
            self._lookup = self._make_lookup()
        try:
            return self._lookup(observation)
        except InputError:
            raise
        except Exception as error:
            text = f"this is no observation of the environment ({type(error).__name__}: {error})"
            raise InputError(text, "observation") from None

    def _make_lookup(self) -> Callable[[Any], int | None]:
        view, n_states = self._metadata, self._n_states
        if view.observation_space is None:
            return lambda given: resolve_number(given, view.labels, n_states, "state")
        if view.observation_space["kind"] == "states":
            first = view.observation_space["first"]
            return lambda given: resolve_number(index(given) - first, (), n_states, "observation")
        digests = () if self._digests is None else self._digests
        known = {row.tobytes(): state for state, row in enumerate(digests) if row.any()}
        read = keys.make_key_reader(view.observation_space)
        return lambda observation: known.get(keys.hash_state_key(read(observation)))


def goal_table_rows(result: Result) -> list[dict[str, Any]]:
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
