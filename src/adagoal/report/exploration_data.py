"""What the page of an exploration shows, from the result and the view alone: plain facts, and arrays.

This is the one place that knows where a result keeps things. Over S states, A actions, G goals (those that were seen,
members of X first, near ones first) and F moments of the run, of which the last is its end:

    goal, lower, upper, error, stand, tried, reached  [G]      its number, its certificate, and its attempts
    member_row [G + 1], member                                 its states: member[member_row[g]..member_row[g + 1]]
    moment_steps, moment_episodes  [F]                         when
    moment_lower, moment_upper, moment_stand, moment_chosen [G, F]   what was known then, and choices until then
    visits [S], place [S, 2], walls [W, 2], edges [M, 2]       the map: column and row, or layer and height
    row [S*A + 1], to [M], count [M]                           the empirical model: successors of x are row[x]..row[x+1]
    policy [P, T, S], policy_row [G]                           tables of actions, and which one is the goal's (-1: none)
    trace [N, 4]                                               steps, episodes, largest error, open goals
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core.exploration_run import GoalStanding
from adagoal.core.types import Bools, Floats, Longs
from adagoal.runs.result import Result
from adagoal.runs.state_metadata import StateMetadata

MAX_POLICY_ENTRIES = 3_000_000
"""Entries of the policies inside a page, at most; the others are there on request (``adagoal watch``)."""
MAX_MOMENT_ENTRIES = 1_000_000
"""Goals times moments of a page, at most."""
MIN_MOMENTS = 12
MAX_DRAWN_EDGES = 4_000
"""Edges of a graph that are drawn, at most."""

PageArrays = dict[str, NDArray[Any]]


def collect_page_data(result: Result, view: StateMetadata) -> tuple[dict[str, Any], PageArrays]:
    """Facts and arrays for the page."""
    order = _order_goals(result)
    goals = np.array(order, np.int64)
    states = len(result.arrays["visits"])
    drawn, place = _map_arrays(result, view)
    moments = _moment_arrays(result, goals)
    facts = {
        "guarantee": result.guarantee,
        "radius": result.radius,
        "epsilon": result.setting.epsilon,
        "steps": result.steps,
        "reset": result.reset_action,
        "start": None if view.start is None else int(view.start),
        "grid": view.layout is not None,
        "shape": drawn,
        "labels": [view.numbered_label(state) for state in range(states)],
        "names": None if result.goal_names is None else [f"{g} {result.goal_label(g)}" for g in order],
    }
    members = [result.members(g) for g in order]
    return facts, {
        **_goal_arrays(result, goals),
        "member_row": np.cumsum([0, *map(len, members)]).astype(np.uint32),
        "member": np.array([state for part in members for state in part], np.uint32),
        **moments,
        **place,
        **_empirical_model_rows(result),
        **_policy_tables(result, goals),
    }


def policy_arrays(result: Result, goal: int) -> PageArrays:
    """The policy of one goal, for a page that does not hold it."""
    return {"policy": _compact_actions(result.policy(goal).actions, result.reset_action)}


def _order_goals(result: Result) -> list[int]:
    X = set(result.goals)
    return sorted(result.certificates, key=lambda g: (g not in X, *result.certificates[g], g))


def _goal_arrays(result: Result, goals: Longs) -> PageArrays:
    """What is known about every goal at the end."""
    X, still = set(result.goals), set(result.open_goals)
    bounds = np.array([result.certificates[g] for g in goals.tolist()], float).reshape(-1, 2)
    kinds = GoalStanding
    stand = [kinds.OPEN if g in still else kinds.DONE if g in X else kinds.BEYOND for g in goals.tolist()]
    tried, reached = count_goal_attempts(result)
    return {
        "goal": goals.astype(np.int32),
        "lower": bounds[:, 0].copy(),
        "upper": bounds[:, 1].copy(),
        "error": np.array([result.errors.get(g, math.nan) for g in goals.tolist()], float),
        "stand": np.array(stand, np.uint8),
        "tried": tried[goals].astype(np.uint32),
        "reached": reached[goals].astype(np.uint32),
        "visits": result.arrays["visits"].astype(float),
        "trace": result.arrays["trace"].astype(float),
    }


def count_goal_attempts(result: Result) -> tuple[Longs, Longs]:
    """[N] how often every goal was chosen, and how often it was then reached."""
    chosen, size = result.arrays["episode_goals"], _n_goal_numbers(result)
    known = chosen >= 0
    return (
        np.bincount(chosen[known], minlength=size),
        np.bincount(chosen[known & result.arrays["episode_reached"]], minlength=size),
    )


def _n_goal_numbers(result: Result) -> int:
    """N, one more than the largest number of a goal: goals are states, or sets with names."""
    return len(result.arrays["visits"]) if result.goal_names is None else len(result.goal_names)


def _moment_arrays(result: Result, goals: Longs) -> PageArrays:
    """What was known in the course of the run."""
    arrays = result.arrays
    steps, episodes = arrays["past_steps"], arrays["past_episodes"]
    most = max(MIN_MOMENTS, min(80, MAX_MOMENT_ENTRIES // max(len(goals), 1)))
    taken = np.unique(np.linspace(0, len(steps) - 1, most).round().astype(int)) if len(steps) else np.zeros(0, int)
    steps, episodes = np.append(steps[taken], result.steps), np.append(episodes[taken], result.episodes)
    found: PageArrays = {
        "moment_steps": steps.astype(float),
        "moment_episodes": episodes.astype(float),
        "moment_chosen": _cumulative_choices(arrays["episode_goals"], episodes, goals, _n_goal_numbers(result)),
    }
    column = np.full(_n_goal_numbers(result) + 1, -1)  # the last stands for sets not found yet
    known = arrays["past_goals"] < len(column)  # a checkpoint may name any number
    column[arrays["past_goals"][known]] = np.flatnonzero(known)
    blank = {"past_lower": 0.0, "past_upper": np.inf, "past_stand": 0}
    for name, empty in blank.items():
        table = np.full((len(goals), len(taken) + 1), empty, arrays[name].dtype)
        there = column[goals] >= 0
        table[there, :-1] = arrays[name][np.ix_(taken, column[goals[there]])].T
        found[name.replace("past", "moment")] = table
    found["moment_stand"] = found["moment_stand"].astype(np.uint8)
    end = _goal_arrays(result, goals)
    for name in ("lower", "upper", "stand"):
        found[f"moment_{name}"][:, -1] = end[name]
    return found


def _cumulative_choices(chosen: NDArray[Any], episodes: Longs, goals: Longs, states: int) -> NDArray[np.uint32]:
    """[G, F] how often every goal had been chosen after so many episodes."""
    parts = np.split(chosen, np.clip(episodes[:-1], 0, len(chosen))) if len(episodes) > 1 else [chosen]
    counted = [np.bincount(part[part >= 0], minlength=states)[goals] for part in parts[: len(episodes)]]
    return np.ascontiguousarray(np.cumsum(counted, axis=0).T.reshape(len(goals), len(episodes)), np.uint32)


def _map_arrays(result: Result, view: StateMetadata) -> tuple[list[int], PageArrays]:
    """Shape of the map; place of every state, walls and edges."""
    states = len(result.arrays["visits"])
    if view.layout is not None:
        place = np.full((states, 2), np.nan, np.float32)
        cells = view.layout.cells[:states]
        inside = cells[:, 0] >= 0
        place[: len(cells)][inside] = cells[inside][:, ::-1]
        walls = np.argwhere(view.layout.walls)[:, ::-1].astype(np.float32)
        return list(view.layout.shape), {"place": place, "walls": walls, "edges": np.zeros((0, 2), np.int32)}
    source, target = _observed_edges(result)
    seen = result.arrays["visits"] > 0
    seen[[state for goal in result.certificates for state in result.members(goal)]] = True
    start = view.start if view.start is not None else int(result.arrays["visits"].argmax())
    place = layered_positions(start, seen, source, target).astype(np.float32)
    layers = int(np.nanmax(place[:, 0], initial=0)) + 1
    edges = np.stack([source, target], 1) if len(source) <= MAX_DRAWN_EDGES else np.zeros((0, 2))
    return [1, layers], {"place": place, "walls": np.zeros((0, 2), np.float32), "edges": edges.astype(np.int32)}


def _observed_edges(result: Result) -> tuple[Longs, Longs]:
    """Different (state, successor) that were observed."""
    arrays, states = result.arrays, len(result.arrays["visits"])
    source, target = arrays["moves_pair"] // result.reset_action, arrays["moves_to"].astype(np.int64)
    both = np.unique((source * states + target)[source != target])
    return both // states, both % states


def _empirical_model_rows(result: Result) -> PageArrays:
    """The empirical model, in compressed rows."""
    arrays = result.arrays
    pairs = len(arrays["visits"]) * result.reset_action
    order = np.argsort(arrays["moves_pair"], kind="stable")
    lengths = np.bincount(arrays["moves_pair"], minlength=pairs)
    return {
        "row": np.append(0, np.cumsum(lengths)).astype(np.uint32),
        "to": arrays["moves_to"][order].astype(np.uint32),
        "count": arrays["moves_count"][order].astype(float),
    }


def _policy_tables(result: Result, goals: Longs) -> PageArrays:
    """Policies of as many goals as fit: first of those with an upper bound, spread evenly from near to far."""
    tables = result.arrays["policy"]
    owner = {int(g): i for i, g in enumerate(result.arrays["policy_goals"])}
    wanted = [place for place, g in enumerate(goals.tolist()) if g in owner]
    room = max(MAX_POLICY_ENTRIES // max(math.prod(tables.shape[1:]), 1), 1)
    upper = {place: result.certificates[int(goals[place])].upper for place in wanted}
    bounded, others = ([p for p in wanted if math.isfinite(upper[p]) == known] for known in (True, False))
    first = _spread_evenly(bounded, room)
    wanted = sorted([*first, *_spread_evenly(others, room - len(first))])
    policy_row = np.full(len(goals), -1, np.int32)
    policy_row[wanted] = np.arange(len(wanted))
    rows = [owner[int(goals[place])] for place in wanted]
    return {"policy": _compact_actions(tables[rows], result.reset_action), "policy_row": policy_row}


def _spread_evenly(places: list[int], room: int) -> list[int]:
    """As many of the places as there is room for, evenly."""
    if len(places) <= room:
        return places
    return [places[i] for i in np.unique(np.linspace(0, len(places) - 1, room).round().astype(int))]


def _compact_actions(tables: NDArray[Any], reset: int) -> NDArray[Any]:
    return np.ascontiguousarray(tables, np.uint8 if reset < 256 else np.uint16)


# Where states are drawn in a world without a map: in layers, by the fewest observed transitions from the start.
#
# Within a layer, states stand in the order of the mean height of their predecessors in the layer before, which keeps
# most edges short (the barycentre rule of layered graph drawing).


def layered_positions(start: int, seen: Bools, source: Longs, target: Longs) -> Floats:
    """[S, 2] places (layer, height in 0..1) of the seen states, NaN for others; edges [M] as source and target."""
    layer = _layers_from_start(start, seen, source, target)
    place = np.full((len(seen), 2), np.nan)
    height = np.full(len(seen), 0.5)
    for number in range(int(layer.max(initial=-1)) + 1):
        members = np.flatnonzero(layer == number)
        into = (layer[target] == number) & (layer[source] == number - 1)
        total = np.bincount(target[into], height[source[into]], minlength=len(seen))[members]
        count = np.bincount(target[into], minlength=len(seen))[members]
        wish = np.where(count > 0, total / np.maximum(count, 1), 0.5)
        members = members[np.argsort(wish, kind="stable")]
        height[members] = (np.arange(len(members)) + 0.5) / max(len(members), 1)
        place[members, 0], place[members, 1] = number, height[members]
    return place


def _layers_from_start(start: int, seen: Bools, source: Longs, target: Longs) -> Longs:
    """[S] fewest transitions from the start, -1 for states never seen; what cannot be reached so comes last."""
    layer = np.full(len(seen), -1)
    layer[start] = 0
    for number in range(1, len(seen) + 1):
        fresh = target[(layer[source] == number - 1) & (layer[target] < 0)]
        if not len(fresh):
            break
        layer[fresh] = number
    lost = seen & (layer < 0)
    layer[lost] = layer.max() + 1
    return layer
