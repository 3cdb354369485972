"""Goals that are sets against every state as a goal: steps to the certified stop, all else being equal.

    python benchmarks/goal_sets.py

Taxi by "the passenger is at place i", audited on its exact model. MiniGrid-FourRooms by cell, whatever the direction:
its exact model is not known to ``adagoal audit``, but it is deterministic, so that breadth-first search has the truth.
"""

from __future__ import annotations

import copy
import time
from typing import Any

import gymnasium

import adagoal
from adagoal.envs import registry
from adagoal.envs.observation_keys import minigrid_full_state, minigrid_state_key

PLACES = ("red", "green", "yellow", "blue", "aboard")
TAXI: dict[str, Any] = {"env": "Taxi-v4", "radius": 20, "start_seed": 0}
ROOMS: dict[str, Any] = {"env": "MiniGrid-FourRooms-v0", "radius": 4, "start_seed": 0, "max_states": 2000}


def passenger(state: int) -> str:
    """Where the passenger of a Taxi state is."""
    return PLACES[state // 4 % 5]


def run(name: str, right: Any, **setting: Any) -> None:
    """One run, with what the truth says about it."""
    began = time.process_time()
    result = adagoal.explore(**setting)
    seconds = time.process_time() - began
    found = f"{len(result.goals)} goals, {result.steps:,} steps, {seconds:.0f} s"
    print(f"{name}: {result.status}, {found}, {right(result)}", flush=True)


def audited(result: adagoal.Result) -> str:
    """The verdict of the exact audit."""
    return "audit holds" if adagoal.audit(result).ok else "audit FAILS"


def searched(result: adagoal.Result) -> str:
    """C1, C2 and the certificates of FourRooms, from breadth-first search and one walk of every policy."""
    env: Any = gymnasium.make(ROOMS["env"])
    env.reset(seed=ROOMS["start_seed"])
    L, epsilon = result.radius, result.setting.epsilon
    truth = _distances(env.unwrapped, int(L + epsilon) + 1, result.goal_names is not None)
    within = {name for name, steps in truth.items() if steps <= L}
    X = {result.goal_label(g) for g in result.goals}
    holds = within <= X and all(truth.get(name, L + 2) <= L + epsilon for name in X)
    for goal in result.goals:
        name, (lower, upper) = result.goal_label(goal), result.certificate(goal)
        steps = _walk(copy.deepcopy(env.unwrapped), result.policy(goal), _named(name, result.goal_names is not None))
        best = truth[name]
        holds &= lower <= best and steps <= upper and steps <= best + epsilon
    return f"the search agrees: {bool(holds)}"


def _label(base: Any, cells: bool) -> str:
    view = minigrid_full_state(base)
    return str(view["cell"]) if cells else f"{view['cell']} {view['direction']}"


def _named(name: str, cells: bool) -> Any:
    return lambda base, first: name == ("start" if first and not cells else _label(base, cells))


def _distances(base: Any, limit: int, cells: bool) -> dict[str, int]:
    """The fewest steps to every label; the start state is called so where goals are states."""
    found = {_label(base, cells) if cells else "start": 0}
    layer, seen = [base], {minigrid_state_key(base)}
    for steps in range(1, limit + 1):
        following = []
        for here in layer:
            for action in range(int(base.action_space.n)):
                there = copy.deepcopy(here)
                terminated = there.step(action)[2]
                key = (minigrid_state_key(there), terminated)
                if key[0] in seen:
                    continue
                seen.add(key[0])
                found.setdefault(_label(there, cells) + (" (end)" if terminated and not cells else ""), steps)
                following += [] if terminated else [there]
        layer = following
    return found


def _walk(base: Any, policy: Any, there: Any) -> int:
    """Steps of a policy from the start; a reset would go back to it and is not needed here."""
    for steps in range(100):
        if there(base, steps == 0):
            return steps
        base.step(policy.act(base))
    return 100


def main() -> None:
    """Print the four runs."""
    registry.find_gym_spec(ROOMS["env"])  # which registers MiniGrid's environments
    run("Taxi by place", audited, **TAXI, goals=passenger)
    run("Taxi by state", audited, **TAXI)
    run("FourRooms by cell", searched, **ROOMS, goals="keys:cell")
    run("FourRooms by state", searched, **ROOMS)


if __name__ == "__main__":
    main()
