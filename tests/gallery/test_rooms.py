"""The certificates of gymnax's four rooms contain the values of its model."""

from __future__ import annotations

import numpy as np
from jax_rooms import RADIUS, FourRooms, cell

import adagoal

FAILURE = 4 / 9  # probability of a random action: fail_prob * 4 / 3


def true_distances(free_cells: np.ndarray, start: tuple[int, int]) -> dict[tuple[int, int], float]:
    """Return the expected steps from the start to every cell, by value iteration. The reset is a fifth action."""
    cells = {(int(y), int(x)): number for number, (y, x) in enumerate(np.argwhere(free_cells))}
    P = np.zeros((len(cells), 5, len(cells)))
    P[:, 4, cells[start]] = 1
    for (y, x), state in cells.items():
        moves = [cells.get((y + dy, x + dx), state) for dy, dx in ((-1, 0), (0, 1), (1, 0), (0, -1))]
        for action, successor in enumerate(moves):
            P[state, action, successor] += 1 - FAILURE
            for drawn in moves:
                P[state, action, drawn] += FAILURE / 4
    V = np.zeros((len(cells), len(cells)))  # [state, goal]
    for _ in range(600):
        V = 1 + np.min(P @ V, axis=1)
        np.fill_diagonal(V, 0)
    return {cell: float(V[cells[start], number]) for cell, number in cells.items()}


def test_certificates_contain_the_true_values() -> None:
    env = FourRooms()
    result = adagoal.explore(env, RADIUS, epsilon=3, seed=1, goals=cell)
    assert result.status == "certified"
    true = true_distances(env.free_cells, (4, 1))
    for goal, (lower, upper) in result.certificates.items():
        row, column = map(int, result.goal_label(goal).strip("()").split(","))
        assert lower <= true[row, column] <= upper
    assert len(result.goals) > 10
