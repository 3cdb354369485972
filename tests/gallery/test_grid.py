"""Generated levels: the certificate contains the length of the shortest solution, or there is none."""

from __future__ import annotations

from collections import deque

import pytest
from grid_tasks import RADIUS, Level, is_solved

import adagoal


def shortest_solution(level: Level) -> float:
    """Search breadth first, by playing every sequence of actions that leads to a new state."""
    start, _ = level.reset()
    paths, queue = {start: ()}, deque([start])
    while queue:
        state = queue.popleft()
        for action in range(6):
            level.reset()
            for earlier in paths[state]:
                level.step(earlier)
            observation, _, ended, *_ = level.step(action)
            if is_solved(observation):
                return len(paths[state]) + 1
            if observation not in paths and not ended:
                paths[observation] = (*paths[state], action)
                queue.append(observation)
    return float("inf")


@pytest.mark.parametrize(
    ("task", "seed", "hide_key"),
    [
        ("MiniGrid-DoorKey-5x5-v0", 1, False),
        ("MiniGrid-DoorKey-5x5-v0", 0, True),
        ("BabyAI-GoToRedBallNoDists-v0", 1, False),
    ],
)
def test_solvable_or_not(task: str, seed: int, hide_key: bool) -> None:
    level = Level(task, seed, hide_key)
    result = adagoal.explore(level, RADIUS, seed=1, goals={"solved": is_solved})
    assert result.status == "certified"
    shortest = shortest_solution(level)
    assert bool(result.goals) == (shortest <= RADIUS)
    if result.goals:
        lower, upper = result.certificate("solved")
        assert lower <= shortest <= upper
