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
    *("loop", "methods", "runs", "api", "report", "experiments", "cli"),
)
"""From the bottom to the top: a room may import from the rooms before it, and from no other."""
LEARNERS = ("tabular", "linear", "rivals", "deep", "loop", "methods")
"""Rooms that may not know the truth, which is ``mdp``."""
MEMBERS = {"goals": "core", "__main__": "cli"}
"""Modules that stand outside the folder of their room."""
DOORS = ("__init__.py", "deep/__init__.py")
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


def draw(path: Path, source: Path) -> None:
    """The graph of rooms: one row a room, arrows to what it imports; those that point upwards in orange."""
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyArrowPatch

    edges = Counter((own, other) for _, own, other in imports(source) if own != other)
    present = {name for edge in edges for name in edge}
    order = [name for name in ROOMS if name in present] + sorted(present - set(ROOMS))
    figure = Figure((9.0, 0.42 * len(order) + 0.6), layout="constrained")
    ax = figure.subplots()
    for (own, other), count in edges.items():
        y, end = order.index(own), order.index(other)
        upwards = end > y
        bend = (0.35 if upwards else -0.35) * abs(end - y) ** -0.25
        x = 0.56 if upwards else 0.44
        style = {"color": "#d55e00" if upwards else "#0072b2", "alpha": 0.9 if upwards else 0.45}
        width = 0.6 + 0.25 * min(count, 8)
        arrow = FancyArrowPatch((x, y), (x, end), arrowstyle="-|>", mutation_scale=9, linewidth=width,
                                connectionstyle=f"arc3,rad={bend}", **style)  # fmt: skip
        ax.add_patch(arrow)
    for y, name in enumerate(order):
        box = {"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": "#616e7c"}
        ax.text(0.5, y, name, ha="center", va="center", fontsize=9, bbox=box)
    up = sum(count for (own, other), count in edges.items() if order.index(other) > order.index(own))
    ax.set(xlim=(0, 1), ylim=(-0.6, len(order) - 0.4), title=f"{len(edges)} arrows between rooms, {up} imports upwards")
    ax.axis("off")
    figure.savefig(path, dpi=140)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[3]) if "--source" in sys.argv else SOURCE)
