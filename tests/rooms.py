"""The rooms of the house and who imports whom, read from the source.

python tests/rooms.py docs/figures/rooms.png                        # draw it
python tests/rooms.py before.png --source OTHER/src/adagoal         # of another checkout
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "adagoal"
ROOMS = (
    *("core", "worlds", "engines", "planning", "mdp", "tabular", "linear", "rivals", "deep"),
    *("loop", "methods", "runs", "api", "sb3", "report", "compare", "cli"),
)
"""From the bottom to the top: a room may import from the rooms before it, and from no other."""
LEARNERS = ("tabular", "linear", "rivals", "deep", "loop", "methods")
"""Rooms that may not know the truth, which is ``mdp``."""
MEMBERS = {"goals": "core", "__main__": "cli"}
"""Modules that stand outside the folder of their room."""
DOORS = ("__init__.py", "deep/__init__.py", "sb3/__init__.py")
"""Front doors, which name what lies above: they import it when it is asked for."""


def imports(source: Path = SOURCE) -> Iterator[tuple[str, str, str]]:
    """(file, room, room that it imports from) of every import of the package's own modules, inside functions too."""
    for file in sorted(source.rglob("*.py")):
        name = file.relative_to(source).as_posix()
        if name in DOORS:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                modules = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            else:
                continue
            for module in modules:
                parts = module.split(".")
                if parts[0] == "adagoal" and len(parts) > 1:
                    yield name, room(name.removesuffix(".py").split("/")[0]), room(parts[1])


def room(module: str) -> str:
    """The room of a top-level module or package."""
    return MEMBERS.get(module, module)


def misplaced(source: Path = SOURCE) -> list[str]:
    """Imports that point upwards, or from a learner to the truth."""
    found = []
    for file, own, other in imports(source):
        upwards = own != other and ROOMS.index(other) > ROOMS.index(own)
        if upwards or (own in LEARNERS and other == "mdp"):
            found.append(f"{file} ({own}) imports from {other}")
    return sorted(set(found))


def kindest(names: list[str], edges: Counter[tuple[str, str]]) -> list[str]:
    """An order of rooms that have none, with as few imports upwards as moving one room at a time can find."""

    def upwards(order: list[str]) -> int:
        return sum(count for (own, other), count in edges.items() if order.index(other) > order.index(own))

    order = sorted(names, key=lambda name: sum(own == name for own, _ in edges))
    while True:
        moves = []
        for name in names:
            rest = [other for other in order if other != name]
            moves += [[*rest[:i], name, *rest[i:]] for i in range(len(names))]
        best = min(moves, key=upwards)
        if upwards(best) >= upwards(order):
            return order
        order = best


def draw(path: Path, source: Path) -> None:
    """Who imports whom, as a table: rows import, columns are imported; what points upwards is orange."""
    from matplotlib.figure import Figure

    edges = Counter((own, other) for _, own, other in imports(source) if own != other)
    present = sorted({name for edge in edges for name in edge})
    order = [name for name in ROOMS if name in present] if set(present) <= set(ROOMS) else kindest(present, edges)
    size = 0.36 * len(order)
    figure = Figure((size + 1.6, size + 1.6), layout="constrained")
    ax = figure.subplots()
    up = 0
    for (own, other), count in edges.items():
        y, x = order.index(own), order.index(other)
        up += count * (x > y)
        colour = "#d55e00" if x > y else "#0072b2"
        ax.scatter(x, y, s=40 + 14 * min(count, 12), marker="s", color=colour, alpha=0.25 + 0.06 * min(count, 12))
        ax.text(x, y, str(count), ha="center", va="center", fontsize=8)
    ax.plot([-0.5, len(order) - 0.5], [-0.5, len(order) - 0.5], color="#9aa5b1", linewidth=0.8)
    ax.set_xticks(range(len(order)), order, rotation=60, ha="left")
    ax.set_yticks(range(len(order)), order)
    ax.xaxis.tick_top()
    ax.set(xlim=(-0.5, len(order) - 0.5), ylim=(-0.5, len(order) - 0.5), aspect="equal")
    ax.set_xlabel(f"{len(edges)} pairs of rooms, {up} imports upwards (orange)")
    ax.grid(color="#eef0f2")
    ax.set_axisbelow(True)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[3]) if "--source" in sys.argv else SOURCE)
