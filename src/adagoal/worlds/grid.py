"""Grid worlds from text, and the two-room grid of the paper's experiments (appendix ``app_exp``).

A layout is one line per row: ``S`` the start, ``.`` a free cell, ``#`` a wall, ``B`` a free cell of the second
room. The free cells, read row by row, are the states. Actions are 0 up, 1 right, 2 down, 3 left.

Dynamics (the paper leaves them open; this is our choice). A move whose own direction is blocked, by a wall
or by the edge, stays with probability one. Any other move succeeds with probability 1 - slip; with
probability slip it goes to one of the *other three* directions, uniformly, and stays where that one is
blocked. If there is a second room, every action in the start state enters it with probability eta,
uniformly over its cells, and the ordinary moves from there are scaled by 1 - eta.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from adagoal.core.checks import check_integer, check_number
from adagoal.core.errors import InputError
from adagoal.core.layout import GridLayout
from adagoal.worlds.model import TabularMDP, model_from_rows

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
