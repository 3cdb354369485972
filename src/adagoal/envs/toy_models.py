"""Built-in models: chains, the hard instance of the paper's lower bound, random models, and grids.

All builders take keyword arguments of simple types and return a :class:`TabularMDP`. The first line of a docstring is
shown by ``adagoal envs``. The start is state 0, except in grids. A docstring gives V*(s0 -> g) if it has a closed form.

**Grids** are made from text, one line per row: ``S`` is the start, ``.`` a free cell, ``#`` a wall, ``B`` a free cell
of the second room. The free cells, read row by row, are the states. Actions are 0 up, 1 right, 2 down, 3 left. The
paper leaves the dynamics open; this is our choice. A move into a wall or over the edge stays, with probability one. Any
other move succeeds with probability 1 - slip. With probability slip it goes in one of the *other three* directions,
uniformly, and stays if that one is blocked. If there is a second room, every action in the start state enters it with
probability eta, uniformly over its cells; the ordinary moves there are scaled by 1 - eta.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from adagoal.core.array_types import Bools, Longs
from adagoal.core.environment import GridLayout
from adagoal.core.errors import InputError
from adagoal.core.validation import check_integer, check_number, check_total_size
from adagoal.envs.model import TabularMDP, model_from_rows

MAX_MODEL_STATES = 100_000  # a larger model takes minutes to build, row by row
MAX_CELLS = 1_000_000
GRID_MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # row and column steps of the actions up, right, down, left

TWO_ROOM_LAYOUT = """\
S.......##
#######.##
......#.##
.####.#.##
.#....#.##
.######.##
........##
......####
......##BB
.#######BB"""
"""52 cells, 48 of them in a first room with a spiral. The layout is ours: the paper's text does not show one."""

TransitionRow = dict[int, float]
GridCell = tuple[int, int]


def chain_model(*, n_states: int = 10, slip: float = 0.0) -> TabularMDP:
    """A line: action 0 goes left, 1 goes right, and with probability ``slip`` the other way.

    V*(s0 -> g) = h_0 + ... + h_{g-1} with h_0 = 1/(1 - slip), h_i = (1 + slip h_{i-1})/(1 - slip).
    """
    check_integer("n_states", n_states, 2, MAX_MODEL_STATES)
    check_number("slip", slip, 0, 0.5, closed="[]")
    rows = []
    for s in range(n_states):
        left, right = max(s - 1, 0), min(s + 1, n_states - 1)
        rows += [_merge_successors((left, 1 - slip), (right, slip)), _merge_successors((right, 1 - slip), (left, slip))]
    return model_from_rows(rows, 2, name="chain")


def rare_exit_chain(*, n_states: int = 4, p: float = 0.001) -> TabularMDP:
    """A deterministic line; at its end action 1 finds the exit with probability p, else returns to s0.

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

    Only the reset leaves the trap. With q = 1 - p, V*(s0 -> g) = (1 + q + ... + q^{g-1} + 1 - q^g) / q^g
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
    """A goal that is reachable, but not incrementally: s0 leads to a random middle state, which leads to g.

    V*(s0 -> g) = 2 for the last state g, and 2n - 1 for a middle state. For 2 <= L < 2n - 1 the set G_L is
    {s0, g}, while the incrementally reachable set (Lim and Auer 2012) is {s0}: every path to g passes
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

    The agent waits in s0, leaves it with probability q and enters a decision state. There every action leads to the
    goal s_g with probability 1/2, and otherwise to s_b, which leads back to s0. One action of one decision state, the
    pair number ``best`` = decision * A + action, has probability 1/2 + e.

    The action that leaves s0 chooses *which* decision state is entered; otherwise the one good pair would hardly
    matter. With up to A decision states S = n + 3, as in the paper. For more, an A-ary tree of inner states with
    deterministic moves stands between, all leaves at the same depth, as in Domingues et al. (2021). An action beyond
    the number of children counts modulo that number.

    With d inner levels, H = floor((L - 3)/2) - d, q = 1/H and e = epsilon / (2 (H + d + 2)),

        V*(s0 -> s_g) = (H + d + 3/2 - e)/(1/2 + e) <= L,

    and a policy that misses the good pair loses 2 epsilon / (1 + 2e) > epsilon. The paper's H = ceil(L/2 - 1) and
    (H + 1)/(1/2 + e) omit the step from s_b to s0; with it, V* would exceed L.
    States: s0, s_g, s_b, inner levels, decision states.
    """
    check_integer("n_actions", n_actions, 1, 10_000)
    check_integer("n_decisions", n_decisions, 1, MAX_MODEL_STATES)
    check_total_size("n_decisions, n_actions", n_decisions, n_actions)
    check_number("epsilon", epsilon, 0, 1, closed="(]")
    check_integer("best", best, 0, n_decisions * n_actions - 1)
    if n_actions == 1 and n_decisions > 1:
        raise InputError("n_actions: must be at least 2 with more than one decision state, got 1")
    # Levels of the tree from the root to the decision states, built from below, so all leaves have the same depth.
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
        """Return the state on ``level`` that ``action`` chooses under a node of the level above."""
        children = range(node * n_actions, min((node + 1) * n_actions, levels[level])) if level else range(levels[0])
        return first[level] + children[action % len(children)]

    rows = [_merge_successors((child(0, 0, a), 1 / wait), (0, 1 - 1 / wait)) for a in range(n_actions)]
    rows += [{goal: 1.0}] * n_actions + [{0: 1.0}] * n_actions
    for level in range(depth):
        rows += [{child(level + 1, node, a): 1.0} for node in range(levels[level]) for a in range(n_actions)]
    for pair in range(n_decisions * n_actions):
        good = 0.5 + advantage * (pair == best)
        rows.append({goal: good, bad: 1 - good})
    inner = [f"inner {level}.{node}" for level, size in enumerate(levels[:-1]) for node in range(size)]
    labels = ("s0", "goal", "bad", *inner, *(f"decision {i}" for i in range(n_decisions)))
    return model_from_rows(rows, n_actions, name="lower-bound", labels=labels)


def _merge_successors(*entries: tuple[int, float]) -> TransitionRow:
    """Add the probabilities of equal successors, and omit impossible ones."""
    row: TransitionRow = {}
    for state, p in entries:
        if p > 0:
            row[state] = row.get(state, 0.0) + p
    return row


def random_dense(*, n_states: int = 10, n_actions: int = 3, seed: int = 0) -> TabularMDP:
    """Every pair leads to all states, with random probabilities, uniform on the simplex."""
    rng = make_model_generator(n_states, n_actions, seed, max_states=2_000)
    check_total_size("n_states twice, n_actions", n_states, n_states, n_actions)
    p = rng.dirichlet(np.ones(n_states), size=(n_states, n_actions))
    return TabularMDP.from_dense(p, name="random-dense")


def random_sparse(*, n_states: int = 20, n_actions: int = 3, branching: int = 3, seed: int = 0) -> TabularMDP:
    """Every pair leads to ``branching`` random states, with random probabilities, uniform on the simplex."""
    rng = make_model_generator(n_states, n_actions, seed)
    check_integer("branching", branching, 1, n_states)
    pairs = range(n_states * n_actions)
    rows = [random_distribution(rng, rng.choice(n_states, branching, replace=False)) for _ in pairs]
    return model_from_rows(rows, n_actions, name="random-sparse")


def random_distribution(rng: np.random.Generator, successors: Longs) -> TransitionRow:
    """Draw the probabilities of some successors, uniformly on the simplex."""
    probabilities = rng.dirichlet(np.ones(successors.size))
    return dict(zip(successors.tolist(), probabilities.tolist(), strict=True))


def make_model_generator(
    n_states: int, n_actions: int, seed: int, max_states: int = MAX_MODEL_STATES
) -> np.random.Generator:
    """Check the arguments that all random models share, and return their random generator."""
    check_integer("n_states", n_states, 2, max_states)
    check_integer("n_actions", n_actions, 1, 1_000)
    check_total_size("n_states, n_actions", n_states, n_actions)
    check_integer("seed", seed, 0, 2**63 - 1)
    return np.random.default_rng(seed)


def grid_from_text(
    layout: str, *, slip: float = 0.1, eta: float = 0.001, start: GridCell | None = None, name: str = "grid"
) -> TabularMDP:
    """Build a grid from its text; ``start`` (row, column) replaces a missing ``S``."""
    check_number("slip", slip, 0, 1, closed="[)")
    check_number("eta", eta, 0, 1, closed="[)")
    rows = layout.strip("\n").splitlines()
    walls, start_cell = _parse_grid_layout(rows, start)
    cells = [(r, c) for r, c in np.argwhere(~walls).tolist()]
    number_of = {cell: state for state, cell in enumerate(cells)}
    second_room = [number_of[r, c] for r, c in cells if rows[r][c] == "B"]

    def neighbour(cell: GridCell, move: GridCell) -> GridCell:
        target = cell[0] + move[0], cell[1] + move[1]
        return target if target in number_of else cell

    transitions: list[TransitionRow] = []
    for cell in cells:
        for chosen_move in GRID_MOVES:
            row: TransitionRow = {}
            if neighbour(cell, chosen_move) == cell:
                row[number_of[cell]] = 1.0
            else:
                for move in GRID_MOVES:
                    target = number_of[neighbour(cell, move)]
                    row[target] = row.get(target, 0.0) + (1 - slip if move == chosen_move else slip / 3)
            if second_room and cell == start_cell:
                row = {target: p * (1 - eta) for target, p in row.items()}
                for target in second_room:
                    row[target] = row.get(target, 0.0) + eta / len(second_room)
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
    """A grid from a text file of S (start), . (free), # (wall) and B (second room)."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, TypeError, ValueError) as error:
        raise InputError(f"path: {path!r} cannot be read as a text file ({type(error).__name__})") from error
    return grid_from_text(text, slip=slip, eta=eta, name=Path(path).stem)


def two_room_grid(*, eta: float = 0.001, slip: float = 0.1) -> TabularMDP:
    """The 52-state two-room grid: a spiral room around s0, and a closed 2 x 2 room entered by chance alone."""
    return grid_from_text(TWO_ROOM_LAYOUT, slip=slip, eta=eta, name="two-room")


def open_grid_model(*, rows: int = 4, cols: int = 5, slip: float = 0.1) -> TabularMDP:
    """A rectangle without walls; the start is the upper left corner."""
    check_integer("rows", rows, 1, 1000)
    check_integer("cols", cols, 1, 1000)
    text = "\n".join("." * cols for _ in range(rows))
    return grid_from_text(text, slip=slip, start=(0, 0), name=f"open-grid-{rows}x{cols}")


def random_maze(
    *, rows: int = 15, cols: int = 15, openings: float = 0.05, slip: float = 0.1, seed: int = 0
) -> TabularMDP:
    """A random maze of rows x cols rooms, all reachable; ``openings`` is the share of extra doors.

    A random depth-first search makes a spanning tree of the rooms, with 2 rows cols - 1 cells. The share ``openings``
    of the remaining walls between rooms is opened as well.
    """
    check_integer("rows", rows, 1, 200)
    check_integer("cols", cols, 1, 200)
    check_number("openings", openings, 0, 1)
    check_integer("seed", seed, 0, 2**63 - 1)
    rng = np.random.default_rng(seed)
    free = np.zeros((2 * rows - 1, 2 * cols - 1), bool)
    free[0, 0] = True
    # A stack, not recursion: a maze of 200 x 200 rooms exceeds Python's recursion limit.
    path = [(0, 0)]
    while path:
        r, c = path[-1]
        rooms = [(r + 2 * i, c + 2 * j) for i, j in GRID_MOVES]
        unvisited = [(i, j) for i, j in rooms if 0 <= i < free.shape[0] and 0 <= j < free.shape[1] and not free[i, j]]
        if not unvisited:
            path.pop()
            continue
        i, j = unvisited[rng.integers(len(unvisited))]
        free[i, j] = free[(r + i) // 2, (c + j) // 2] = True
        path.append((i, j))
    # Cells with an odd sum of coordinates are the walls between two rooms; the others are rooms and corners.
    parity = np.add.outer(np.arange(free.shape[0]), np.arange(free.shape[1])) % 2
    free |= (parity == 1) & (rng.random(free.shape) < openings)
    text = "\n".join("".join(".#"[not cell] for cell in row) for row in free.tolist())
    return grid_from_text(text, slip=slip, start=(0, 0), name=f"maze-{rows}x{cols}-{seed}")


def _parse_grid_layout(rows: list[str], start: GridCell | None) -> tuple[Bools, GridCell]:
    """Check a layout; return its walls [rows, columns] and the start cell."""
    if not rows or not rows[0]:
        raise InputError("layout: is empty; one line per row, of S (start), . (free), # (wall), B (second room)")
    for r, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise InputError(f"layout: row {r} has {len(row)} cells, row 0 has {len(rows[0])}; all must be equal")
        for c, character in enumerate(row):
            if character not in "S.#B":
                raise InputError(f"layout: unknown character {character!r} at row {r}, column {c}; use S . # B")
    if len(rows) * len(rows[0]) > MAX_CELLS:
        raise InputError(f"layout: has {len(rows)} x {len(rows[0])} cells; at most {MAX_CELLS} are possible")
    walls = np.array([[character == "#" for character in row] for row in rows])
    starts = [(r, c) for r, row in enumerate(rows) for c, character in enumerate(row) if character == "S"]
    if start is None:
        if len(starts) != 1:
            raise InputError(f"layout: needs exactly one start S, has {len(starts)}")
        return walls, starts[0]
    if starts and starts != [start]:
        raise InputError(f"start: {start} given although the layout has an S at {starts[0]}; leave one of them out")
    inside = 0 <= start[0] < walls.shape[0] and 0 <= start[1] < walls.shape[1]
    if not inside or walls[start]:
        raise InputError(f"start: must be (row, column) of a free cell of the layout, got {start}")
    return walls, start
