"""All messages of input errors in one file, ``messages.txt``, so that they can be read in one sitting.

If a change is intended, write the file again and review its diff:

    python tests/test_messages.py
"""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "adagoal"
SNAPSHOT = Path(__file__).with_name("messages.txt")
ERRORS = ("InputError", "EnvironmentFailure", "UsageError", "BadParameter")


def message_text(node: ast.expr) -> str:
    """Return the text of a message; ``{...}`` stands for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(message_text(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return message_text(node.left) + message_text(node.right)
    return "{" + ast.unparse(node.value if isinstance(node, ast.FormattedValue) else node) + "}"


def all_messages() -> list[str]:
    """Return ``file: [argument] message`` for every input error that the package can raise, in the order of files."""
    found = []
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ERRORS and node.args:
                names = [*node.args[1:2], *(keyword.value for keyword in node.keywords if keyword.arg == "name")]
                name = f"[{message_text(names[0])}] " if names else ""
                found.append(f"{file.relative_to(SOURCE)}: {name}{' '.join(message_text(node.args[0]).split())}")
    return found


def test_the_list_of_messages_is_up_to_date() -> None:
    assert all_messages() == SNAPSHOT.read_text().splitlines(), "run: python tests/test_messages.py"


if __name__ == "__main__":
    SNAPSHOT.write_text("\n".join(all_messages()) + "\n")
