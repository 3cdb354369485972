"""Gymnasium's toy-text environments as exact models: their own transition tables, so the same dynamics, compiled.

A state that some transition enters with the done flag is terminal. The states keep the numbers that the
environment gives them; if the initial state is random, one more state, the last, is the virtual start, all of
whose actions lead to the initial distribution. Taxi says which actions its states have.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from adagoal.core.layout import GridLayout
from adagoal.core.types import Longs
from adagoal.worlds.adapter import RANDOM_START, StartSeed
from adagoal.worlds.body import TOY_TEXT
from adagoal.worlds.model import TabularMDP, model_from_rows

PLACES = ("red", "green", "yellow", "blue")
"""Where Taxi's passengers wait and want to go."""


def toy_text_model(env: gymnasium.Env[Any, Any], name: str, start_seed: StartSeed) -> TabularMDP | None:
    """The exact model, or None where ``env`` is no toy-text environment, wrapped, or does not play by its own table."""
    base: Any = env.unwrapped
    known = type(base).__module__.startswith(TOY_TEXT) and hasattr(base, "P")
    if not known or getattr(base, "fickle_passenger", False):
        return None
    n_states, n_actions = len(base.P), len(base.P[0])
    terminal = np.zeros(n_states, bool)
    rows: list[dict[int, float]] = []
    for state in range(n_states):
        for action in range(n_actions):
            row: dict[int, float] = {}
            for p, successor, _, done in base.P[state][action]:
                row[int(successor)] = row.get(int(successor), 0.0) + float(p)
                terminal[successor] |= done and p > 0
            rows.append(row)
    first = np.flatnonzero(base.initial_state_distrib)
    labels, layout = _toy_text_labels(base, n_states), _toy_text_layout(base)
    if isinstance(start_seed, int):
        start = int(env.reset(seed=start_seed)[0])
    elif len(first) == 1 and start_seed != RANDOM_START:
        start = int(first[0])
    else:
        start, n_states = n_states, n_states + 1
        rows += [{int(s): float(base.initial_state_distrib[s]) for s in first}] * n_actions
        terminal = np.append(terminal, False)
        labels = (*labels, "start") if labels else ()
        if layout is not None:
            layout = GridLayout(layout.shape, np.vstack([layout.cells, [-1, -1]]), layout.walls)
    mask = np.ones((n_states, n_actions), bool)
    if hasattr(base, "action_mask"):
        mask[: len(base.P)] = [base.action_mask(state) for state in range(len(base.P))]
    facts: dict[str, Any] = {"start": start, "terminal": terminal, "action_mask": mask}
    return model_from_rows(rows, n_actions, **facts, name=name, labels=labels, layout=layout)


def _toy_text_layout(base: Any) -> GridLayout | None:
    """The map, where there is one state per cell."""
    shape = _toy_text_shape(base)
    if shape is None:
        return None
    cells: Longs = np.argwhere(np.ones(shape, bool))
    return GridLayout(shape, cells, np.zeros(shape, bool))


def _toy_text_labels(base: Any, n_states: int) -> tuple[str, ...]:
    shape = _toy_text_shape(base)
    if shape is not None:
        special = {b"H": " hole", b"G": " goal"}
        marks = [special.get(c, "") for c in base.desc.ravel()] if hasattr(base, "desc") else [""] * n_states
        return tuple(f"({s // shape[1]}, {s % shape[1]}){mark}" for s, mark in enumerate(marks))
    if hasattr(base, "decode"):
        states = (base.decode(s) for s in range(n_states))
        return tuple(f"taxi ({r}, {c}), {(*PLACES, 'aboard')[p]} to {PLACES[d]}" for r, c, p, d in states)
    return ()


def _toy_text_shape(base: Any) -> tuple[int, int] | None:
    """Rows and columns of FrozenLake and CliffWalking."""
    if hasattr(base, "nrow") and hasattr(base, "ncol"):
        return int(base.nrow), int(base.ncol)
    if hasattr(base, "_cliff"):
        return int(base.shape[0]), int(base.shape[1])
    return None
