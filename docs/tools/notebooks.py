"""Tutorials: notebooks in Jupyter's percent format, which are plain Python files.

A line ``# %% [markdown]`` begins a cell of text, whose lines are comments; ``# %%`` begins a cell of code. Editors open
such a file as a notebook (in Jupyter through Jupytext). :func:`play` runs the cells as a notebook does; :func:`page`
and :func:`notebook` write what came out as Markdown and as an ``.ipynb``.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

TEXT, CODE = "markdown", "code"


class Cell(NamedTuple):
    """One cell, with what it printed and showed once it was played."""

    kind: str
    source: str
    output: str = ""
    picture: bytes = b""


def cells(file: Path) -> Iterator[Cell]:
    """The cells of a file."""
    kind, lines = TEXT, list[str]()
    for line in [*file.read_text().splitlines(), "# %%"]:
        if line.startswith("# %%"):
            if kind == TEXT:
                lines = [text.removeprefix("#").removeprefix(" ") for text in lines]
            if source := "\n".join(lines).strip("\n"):
                yield Cell(kind, source)
            kind, lines = TEXT if "[markdown]" in line else CODE, []
        else:
            lines.append(line)


def play(file: Path) -> list[Cell]:
    """Run the cells of code one after another, in one namespace; what one raises ends it."""
    space: dict[str, Any] = {"__name__": "__main__", "__file__": str(file)}
    return [_played(cell, space, f"{file.name}, cell {i}") for i, cell in enumerate(cells(file), 1)]


def _played(cell: Cell, space: dict[str, Any], where: str) -> Cell:
    """Run a cell; the value of its last expression is shown, as in a notebook."""
    if cell.kind == TEXT:
        return cell
    tree, last, printed = ast.parse(cell.source), None, io.StringIO()
    if isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, where, "exec"), space)
        value = None if last is None else eval(compile(last, where, "eval"), space)
    if hasattr(value, "savefig"):
        image = io.BytesIO()
        value.savefig(image, format="png", dpi=110)
        return cell._replace(output=printed.getvalue(), picture=image.getvalue())
    shown = "" if value is None else repr(value)
    return cell._replace(output="\n".join(part for part in (printed.getvalue().rstrip("\n"), shown) if part))


def page(played: list[Cell], pictures: Path, name: str) -> str:
    """The cells as Markdown; pictures are written into a folder beside the page."""
    parts = []
    for i, cell in enumerate(played):
        if cell.kind == TEXT:
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        if cell.output:
            parts.append(f"```{{ .text .output }}\n{cell.output}\n```")
        if cell.picture:
            (pictures / f"{name}-{i}.png").write_bytes(cell.picture)
            parts.append(f"![what the cell draws]({name}-{i}.png)")
    return "\n\n".join(parts) + "\n"


def notebook(played: list[Cell]) -> str:
    """The cells as a Jupyter notebook."""

    def written(cell: Cell, number: int) -> dict[str, Any]:
        common = {"cell_type": cell.kind, "id": f"cell-{number}", "metadata": {}, "source": cell.source}
        if cell.kind == TEXT:
            return common
        data: dict[str, Any] = {"text/plain": cell.output} if cell.output else {}
        if cell.picture:
            data["image/png"] = base64.b64encode(cell.picture).decode()
        shown = [{"output_type": "display_data", "metadata": {}, "data": data}] if data else []
        return {**common, "execution_count": None, "outputs": shown}

    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    body = [written(cell, number) for number, cell in enumerate(played)]
    return json.dumps({"cells": body, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}, indent=1)
