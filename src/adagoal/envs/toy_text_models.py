"""Gymnasium's toy-text environments as exact models: their own transition tables, so the same dynamics, compiled.

A state is terminal if some transition enters it with the done flag. States keep their numbers. If the initial state is
random, the virtual start is one more state, the last; all its actions lead to the initial distribution. Taxi reports
which actions its states have.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from adagoal.core.types import GridLayout
from adagoal.envs.env_backends import TOY_TEXT
from adagoal.envs.indexed_env import RANDOM_START, StartSeed
from adagoal.envs.model import TabularMDP, model_from_rows


def toy_text_model(env: gymnasium.Env[Any, Any], name: str, start_seed: StartSeed) -> TabularMDP | None:
    """Return the exact model, or None if ``env`` is not a toy-text environment or deviates from its table."""
    base: Any = env.unwrapped
    has_table = type(base).__module__.startswith(TOY_TEXT) and hasattr(base, "P")
    if not has_table or getattr(base, "fickle_passenger", False):  # such a passenger changes its mind outside the table
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
    labels, shape = _toy_text_labels(base, n_states), _toy_text_shape(base)
    cells = None if shape is None else np.argwhere(np.ones(shape, bool))  # one state per cell
    if isinstance(start_seed, int):
        start = int(env.reset(seed=start_seed)[0])
    elif len(first) == 1 and start_seed != RANDOM_START:
        start = int(first[0])
    else:
        start, n_states = n_states, n_states + 1
        rows += [{int(s): float(base.initial_state_distrib[s]) for s in first}] * n_actions
        terminal = np.append(terminal, False)
        labels = (*labels, "start") if labels else ()
        cells = None if cells is None else np.vstack([cells, [-1, -1]])  # the virtual start is outside the map
    mask = np.ones((n_states, n_actions), bool)
    if hasattr(base, "action_mask"):
        mask[: len(base.P)] = [base.action_mask(state) for state in range(len(base.P))]
    layout = None if shape is None or cells is None else GridLayout(shape, cells, np.zeros(shape, bool))
    return model_from_rows(
        rows, n_actions, start=start, terminal=terminal, action_mask=mask, name=name, labels=labels, layout=layout
    )


def _toy_text_labels(base: Any, n_states: int) -> tuple[str, ...]:
    shape = _toy_text_shape(base)
    if shape is not None:
        special = {b"H": " hole", b"G": " goal"}
        marks = [special.get(c, "") for c in base.desc.ravel()] if hasattr(base, "desc") else [""] * n_states
        return tuple(f"({s // shape[1]}, {s % shape[1]}){mark}" for s, mark in enumerate(marks))
    if hasattr(base, "decode"):
        stops = ("red", "green", "yellow", "blue", "aboard")  # where Taxi's passenger is and wants to go
        states = (base.decode(s) for s in range(n_states))
        return tuple(f"taxi ({r}, {c}), {stops[p]} to {stops[d]}" for r, c, p, d in states)
    return ()


def _toy_text_shape(base: Any) -> tuple[int, int] | None:
    """Return rows and columns of FrozenLake and CliffWalking, None for other environments."""
    if hasattr(base, "nrow") and hasattr(base, "ncol"):
        return int(base.nrow), int(base.ncol)
    if hasattr(base, "_cliff"):
        return int(base.shape[0]), int(base.shape[1])
    return None
