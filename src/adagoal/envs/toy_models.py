"""Small worlds with known answers: chains, traps, and the two instances of the paper's lower bounds.

All builders take keyword arguments of simple types and return a :class:`TabularMDP`; the start is state 0.
Each docstring gives V*(s0 -> g) where it has a closed form.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from adagoal.core.argument_checks import check_integer, check_number, check_total_size
from adagoal.core.errors import InputError
from adagoal.core.types import GridLayout
from adagoal.envs.model import TabularMDP, model_from_rows

MAX_MODEL_STATES = 100_000
TransitionRow = dict[int, float]


def chain_model(*, n_states: int = 10, slip: float = 0.0) -> TabularMDP:
    """A line of states; action 0 goes left, 1 right, and with probability ``slip`` the other way; ends block.

    V*(s0 -> g) = h_0 + ... + h_{g-1} with h_0 = 1/(1 - slip), h_i = (1 + slip h_{i-1})/(1 - slip).
    """
    check_integer("n_states", n_states, 2, MAX_MODEL_STATES)
    check_number("slip", slip, 0, 0.5, closed="[]")
    rows = []
    for s in range(n_states):
        left, right = max(s - 1, 0), min(s + 1, n_states - 1)
        rows += [_merge_successors((left, 1 - slip), (right, slip)), _merge_successors((right, 1 - slip), (left, slip))]
    return model_from_rows(rows, 2, name="chain")


def waiting_chain(*, n_states: int = 5, stay: float = 0.9) -> TabularMDP:
    """A line of waiting states: action 1 moves right with probability 1 - ``stay``, action 0 goes back to s0.

    V*(s0 -> g) = g / (1 - stay), with a standard deviation of nearly the same size.
    """
    check_integer("n_states", n_states, 2, MAX_MODEL_STATES)
    check_number("stay", stay, 0, 1, closed="[)")
    rows = []
    for s in range(n_states):
        rows += [{0: 1.0}, _merge_successors((min(s + 1, n_states - 1), 1 - stay), (s, stay))]
    return model_from_rows(rows, 2, name="waiting-chain")


def rare_exit_chain(*, n_states: int = 4, p: float = 0.001) -> TabularMDP:
    """A walk of n - 2 sure steps, at whose end action 1 finds the exit with probability p and else returns to s0.

    V*(s0 -> exit) = (n - 1)/p; all other states lie within n - 2 steps.
    """
    check_integer("n_states", n_states, 2, MAX_MODEL_STATES)
    check_number("p", p, 0, 1, closed="(]")
    rows: list[TransitionRow] = []
    for s in range(n_states - 2):
        rows += [{0: 1.0}, {s + 1: 1.0}]
    rows += [{0: 1.0}, _merge_successors((n_states - 1, p), (0, 1 - p))]
    rows += [{n_states - 1: 1.0}, {n_states - 1: 1.0}]
    return model_from_rows(rows, 2, name="rare-exit")


def trap_chain(*, n_states: int = 6, p: float = 0.1) -> TabularMDP:
    """A line where every step to the right falls into a trap, the last state, with probability p.

    Nothing but the reset leaves the trap. With q = 1 - p, V*(s0 -> g) = (1 + q + ... + q^{g-1} + 1 - q^g) / q^g
    for g < n - 1, and V*(s0 -> trap) = 1/p.
    """
    check_integer("n_states", n_states, 3, MAX_MODEL_STATES)
    check_number("p", p, 0, 1, closed="()")
    trap = n_states - 1
    rows: list[TransitionRow] = []
    for s in range(trap):
        rows += [{max(s - 1, 0): 1.0}, _merge_successors((min(s + 1, trap - 1), 1 - p), (trap, p))]
    rows += [{trap: 1.0}, {trap: 1.0}]
    return model_from_rows(rows, 2, name="trap-chain")


def fan_model(*, n_middle: int = 10) -> TabularMDP:
    """Reliably reachable, but not incrementally: s0 leads to one of n middle states by chance, each of them to g.

    V*(s0 -> g) = 2 for the last state g, and 2n - 1 for a middle state. For 2 <= L < 2n - 1 the set G_L is
    {s0, g}, while the incrementally reachable set (Lim and Auer 2012) is {s0}: every way to g passes
    through a state outside of it.
    """
    check_integer("n_middle", n_middle, 1, MAX_MODEL_STATES)
    goal = n_middle + 1
    rows: list[TransitionRow] = [{1 + i: 1 / n_middle for i in range(n_middle)}]
    rows += [{goal: 1.0}] * n_middle + [{goal: 1.0}]
    return model_from_rows(rows, 1, name="fan")


def lower_bound_instance(
    *, n_decisions: int = 1, n_actions: int = 4, radius: float = 10.0, epsilon: float = 0.5, best: int = 0
) -> TabularMDP:
    """The hard instance of the lower bound (lemmas ``lemma_LB`` and ``BPI_SSP``, figure ``fig:mdp-lower-bound``).

    From s0 the agent waits, leaves with probability q, and meets a decision state, where every action leads to
    the goal s_g with probability 1/2 and to s_b, which leads back to s0, otherwise; one action of one
    decision state, the pair number ``best`` = decision * A + action, has 1/2 + e.

    *Which decision state* is met is up to the agent, else the one good pair would hardly matter: the
    action with which it leaves s0 chooses. With up to A decision states S = n + 3, as in the paper; for
    more, an A-ary tree of inner states with sure moves stands between, all leaves at the same depth, as in
    Domingues et al. (2021). An action beyond the number of children counts modulo that number.

    With d inner levels, H = floor((L - 3)/2) - d, q = 1/H and e = epsilon / (2 (H + d + 2)),

        V*(s0 -> s_g) = (H + d + 3/2 - e)/(1/2 + e) <= L,

    and a policy that misses the good pair loses 2 epsilon / (1 + 2e) > epsilon. The paper's H = ceil(L/2 - 1) and
    (H + 1)/(1/2 + e) leave out the step from s_b to s0; with it, its V* would exceed L.
    States: s0, s_g, s_b, inner levels, decision states.
    """
    check_integer("n_actions", n_actions, 1, 10_000)
    check_integer("n_decisions", n_decisions, 1, MAX_MODEL_STATES)
    check_total_size("n_decisions, n_actions", n_decisions, n_actions)
    check_number("epsilon", epsilon, 0, 1, closed="(]")
    check_integer("best", best, 0, n_decisions * n_actions - 1)
    if n_actions == 1 and n_decisions > 1:
        raise InputError("n_actions: must be at least 2 with more than one decision state, got 1")
    levels = [n_decisions]
    while levels[0] > n_actions:
        levels.insert(0, math.ceil(levels[0] / n_actions))
    depth = len(levels) - 1
    check_number("radius", radius, 5 + 2 * depth, 1e9)
    wait = math.floor((radius - 3) / 2) - depth
    advantage = epsilon / (2 * (wait + depth + 2))
    goal, bad = 1, 2
    first = [3 + sum(levels[:level]) for level in range(len(levels))]

    def child(level: int, node: int, action: int) -> int:
        """The state on ``level`` that ``action`` chooses under the given node of the level above."""
        children = range(node * n_actions, min((node + 1) * n_actions, levels[level])) if level else range(levels[0])
        return first[level] + children[action % len(children)]

    rows: list[TransitionRow] = [
        _merge_successors((child(0, 0, a), 1 / wait), (0, 1 - 1 / wait)) for a in range(n_actions)
    ]
    rows += [{goal: 1.0}] * n_actions + [{0: 1.0}] * n_actions
    for level in range(depth):
        rows += [{child(level + 1, node, a): 1.0} for node in range(levels[level]) for a in range(n_actions)]
    for pair in range(n_decisions * n_actions):
        good = 0.5 + advantage * (pair == best)
        rows.append({goal: good, bad: 1 - good})
    return model_from_rows(rows, n_actions, name="lower-bound", labels=_lower_bound_labels(levels))


def separation_instance(*, n_actions: int = 4, radius: float = 10.0, eta: float = 0.001, best: int = 0) -> TabularMDP:
    """The instance that separates exploration with and without a reset (``lemma_exp_sep``, ``fig:mdp-separation``).

    s0 leads to x, or with probability eta to a fork (s~); x waits for g with zeta = 1/(L - 1); in the fork the
    action ``best`` leads to g and every other one to a pit, which is left for g with probability eta/2 a
    step; g leads to s0. The goal space of the lemma is {g}, state 1.

    *Without the reset* (``optimal_values(..., reset=False)``): V*(s0 -> g) = 1 + eta + (1 - eta)(L - 1) <= L, a
    policy pi that errs in the fork loses exactly 2 > epsilon, and the fork is met once in about (L + 1)/eta
    steps: no learner can be sure in less than the order of the diameter. *With it*, a policy that errs in
    the fork and resets in the pit loses eta (1 + V^pi), so that the fork need never be seen.
    """
    check_integer("n_actions", n_actions, 2, 10_000)
    check_number("radius", radius, 2, 1e9)
    check_number("eta", eta, 0, 1, closed="()")
    check_integer("best", best, 0, n_actions - 1)
    zeta = 1 / (radius - 1)
    start, goal, x, fork, pit = range(5)
    rows: list[TransitionRow] = [{x: 1 - eta, fork: eta}] * n_actions
    rows += [{start: 1.0}] * n_actions
    rows += [_merge_successors((goal, zeta), (x, 1 - zeta))] * n_actions
    rows += [{goal if a == best else pit: 1.0} for a in range(n_actions)]
    rows += [{goal: eta / 2, pit: 1 - eta / 2}] * n_actions
    return model_from_rows(rows, n_actions, name="separation", labels=("s0", "g", "x", "fork", "pit"))


def _lower_bound_labels(levels: list[int]) -> tuple[str, ...]:
    inner = [f"inner {level}.{node}" for level, size in enumerate(levels[:-1]) for node in range(size)]
    return ("s0", "goal", "bad", *inner, *(f"decision {i}" for i in range(levels[-1])))


def _merge_successors(*entries: tuple[int, float]) -> TransitionRow:
    """Successors with their probabilities, equal ones added, impossible ones left out."""
    row: TransitionRow = {}
    for state, p in entries:
        if p > 0:
            row[state] = row.get(state, 0.0) + p
    return row


# Grid worlds from text, and the two-room grid of the paper's experiments (appendix ``app_exp``).
#
# A layout is one line per row: ``S`` the start, ``.`` a free cell, ``#`` a wall, ``B`` a free cell of the second
# room. The free cells, read row by row, are the states. Actions are 0 up, 1 right, 2 down, 3 left.
#
# Dynamics (the paper leaves them open; this is our choice). A move whose own direction is blocked, by a wall
# or by the edge, stays with probability one. Any other move succeeds with probability 1 - slip; with
# probability slip it goes to one of the *other three* directions, uniformly, and stays where that one is
# blocked. If there is a second room, every action in the start state enters it with probability eta,
# uniformly over its cells, and the ordinary moves from there are scaled by 1 - eta.


GRID_MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""Row and column steps of the actions up, right, down, left."""

MAX_GRID_CELLS = 1_000_000

TWO_ROOM_LAYOUTS = {
    "left": """\
S.......##
#######.##
......#.##
.####.#.##
.#....#.##
.######.##
........##
......####
......##BB
.#######BB""",
    "right": """\
S.......
........
######..
.....#..
.#####..
..#.....
..#..###
..#..#BB
.....#BB""",
}
"""52 cells each, 48 of them in a first room with a spiral; the text of the paper does not show the layout."""

GridCell = tuple[int, int]


def grid_from_text(
    layout: str, *, slip: float = 0.1, eta: float = 0.001, start: GridCell | None = None, name: str = "grid"
) -> TabularMDP:
    """A grid world from its text; ``start`` (row, column) stands in for a missing ``S``."""
    check_number("slip", slip, 0, 1, closed="[)")
    check_number("eta", eta, 0, 1, closed="[)")
    rows = layout.strip("\n").splitlines()
    walls, start_cell = _parse_grid_layout(rows, start)
    cells = [(r, c) for r, c in np.argwhere(~walls).tolist()]
    number_of = {cell: state for state, cell in enumerate(cells)}
    room = [number_of[r, c] for r, c in cells if rows[r][c] == "B"]

    def neighbour(cell: GridCell, move: GridCell) -> GridCell:
        there = cell[0] + move[0], cell[1] + move[1]
        return there if there in number_of else cell

    transitions: list[dict[int, float]] = []
    for cell in cells:
        for own in GRID_MOVES:
            row: dict[int, float] = {}
            if neighbour(cell, own) == cell:
                row[number_of[cell]] = 1.0
            else:
                for move in GRID_MOVES:
                    target = number_of[neighbour(cell, move)]
                    row[target] = row.get(target, 0.0) + (1 - slip if move == own else slip / 3)
            if room and cell == start_cell:
                row = {target: p * (1 - eta) for target, p in row.items()}
                for target in room:
                    row[target] = row.get(target, 0.0) + eta / len(room)
            transitions.append({target: p for target, p in row.items() if p > 0})
    return model_from_rows(
        transitions,
        len(GRID_MOVES),
        start=number_of[start_cell],
        name=name,
        labels=tuple(str(cell) for cell in cells),
        layout=GridLayout((walls.shape[0], walls.shape[1]), np.array(cells, np.int64), walls),
    )


def grid_from_file(*, path: str, slip: float = 0.1, eta: float = 0.001) -> TabularMDP:
    """A grid world from a text file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, TypeError, ValueError) as error:
        raise InputError(f"path: {path!r} cannot be read as a text file ({type(error).__name__})") from error
    return grid_from_text(text, slip=slip, eta=eta, name=Path(path).stem)


def two_room_grid(*, layout: str = "left", eta: float = 0.001, slip: float = 0.1) -> TabularMDP:
    """The 52-state two-room grid: a spiral room around s0, and a closed 2 x 2 room entered by chance alone."""
    if layout not in list(TWO_ROOM_LAYOUTS):
        raise InputError(f"layout: must be one of {', '.join(TWO_ROOM_LAYOUTS)}, got {layout!r}")
    return grid_from_text(TWO_ROOM_LAYOUTS[layout], slip=slip, eta=eta, name=f"two-room-{layout}")


def open_grid_model(*, rows: int = 4, cols: int = 5, slip: float = 0.1) -> TabularMDP:
    """A rectangle without walls; the start is the upper left corner."""
    check_integer("rows", rows, 1, 1000)
    check_integer("cols", cols, 1, 1000)
    text = "\n".join("." * cols for _ in range(rows))
    return grid_from_text(text, slip=slip, start=(0, 0), name=f"open-grid-{rows}x{cols}")


def random_maze(
    *, rows: int = 15, cols: int = 15, openings: float = 0.05, slip: float = 0.1, seed: int = 0
) -> TabularMDP:
    """A random maze of rooms and doors, every room reachable; 2 rows cols - 1 cells and the extra ``openings``.

    A spanning tree of the rows x cols rooms by random depth-first search; of the walls between rooms
    that it leaves, the share ``openings`` is opened as well.
    """
    check_integer("rows", rows, 1, 200)
    check_integer("cols", cols, 1, 200)
    check_number("openings", openings, 0, 1)
    check_integer("seed", seed, 0, 2**63 - 1)
    rng = np.random.default_rng(seed)
    free = np.zeros((2 * rows - 1, 2 * cols - 1), bool)
    free[0, 0] = True
    path = [(0, 0)]
    while path:
        r, c = path[-1]
        ahead = [(r + 2 * i, c + 2 * j) for i, j in GRID_MOVES]
        ahead = [(i, j) for i, j in ahead if 0 <= i < free.shape[0] and 0 <= j < free.shape[1] and not free[i, j]]
        if not ahead:
            path.pop()
            continue
        i, j = ahead[rng.integers(len(ahead))]
        free[i, j] = free[(r + i) // 2, (c + j) // 2] = True
        path.append((i, j))
    parity = np.add.outer(np.arange(free.shape[0]), np.arange(free.shape[1])) % 2
    free |= (parity == 1) & (rng.random(free.shape) < openings)
    text = "\n".join("".join(".#"[not cell] for cell in row) for row in free.tolist())
    return grid_from_text(text, slip=slip, start=(0, 0), name=f"maze-{rows}x{cols}-{seed}")


def _parse_grid_layout(
    rows: list[str], start: GridCell | None
) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.bool_]], GridCell]:
    """The walls [rows, columns] and the start cell of a layout, or one clear line about what is wrong with it."""
    if not rows or not rows[0]:
        raise InputError("layout: is empty; one line per row, of S (start), . (free), # (wall), B (second room)")
    for r, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise InputError(f"layout: row {r} has {len(row)} cells, row 0 has {len(rows[0])}; all must be equal")
        for c, character in enumerate(row):
            if character not in "S.#B":
                raise InputError(f"layout: unknown character {character!r} at row {r}, column {c}; use S . # B")
    if len(rows) * len(rows[0]) > MAX_GRID_CELLS:
        raise InputError(f"layout: more than {MAX_GRID_CELLS} cells")
    walls = np.array([[character == "#" for character in row] for row in rows])
    starts = [(r, c) for r, row in enumerate(rows) for c, character in enumerate(row) if character == "S"]
    if start is None:
        if len(starts) != 1:
            raise InputError(f"layout: needs exactly one start S, has {len(starts)}")
        return walls, starts[0]
    if starts and starts != [start]:
        raise InputError("start: given although the layout has an S")
    inside = 0 <= start[0] < walls.shape[0] and 0 <= start[1] < walls.shape[1]
    if not inside or walls[start]:
        raise InputError(f"start: {start} is not a free cell of the layout")
    return walls, start
