"""All messages of input errors in one file, ``messages.txt``, so that they can be read in one sitting.

If a change is intended, write the file again and review its diff:

    python tests/test_messages.py
"""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "adagoal"
SNAPSHOT = Path(__file__).with_name("messages.txt")
ERRORS = ("InputError", "EnvironmentFailure", "UsageError", "BadParameter")
TEXT_VARIABLES = ("text", "problem", "reason", "what", "hint", "expected", "accepted", "wanted", "kinds")


def message_texts(node: ast.expr, function: ast.AST) -> list[str]:
    """Return the texts that a message can have; ``{...}`` stands for what is filled in.

    A variable stands for the texts that the function assigns to it.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return ["".join(parts) for parts in itertools.product(*(message_texts(part, function) for part in node.values))]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = message_texts(node.left, function), message_texts(node.right, function)
        return ["".join(parts) for parts in itertools.product(*sides)]
    if isinstance(node, ast.IfExp):
        return message_texts(node.body, function) + message_texts(node.orelse, function)
    value = node.value if isinstance(node, ast.FormattedValue) else node
    if isinstance(value, ast.Name) and value.id in TEXT_VARIABLES:
        assigned = [
            step.value
            for step in ast.walk(function)
            if isinstance(step, ast.Assign) and [ast.unparse(target) for target in step.targets] == [value.id]
        ]
        if assigned:
            return [text for other in assigned for text in message_texts(other, function)]
    return ["{" + ast.unparse(value) + "}"]


def all_messages() -> list[str]:
    """Return ``file: [argument] message`` for every input error that the package can raise, in the order of files."""
    found = []
    for file in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(file.read_text())
        inside: dict[ast.AST, ast.AST] = {}  # the innermost function of every node
        for function in [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))]:
            inside |= dict.fromkeys(ast.walk(function), function)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ERRORS and node.args:
                names = [*node.args[1:2], *(keyword.value for keyword in node.keywords if keyword.arg == "name")]
                name = f"[{message_texts(names[0], inside[node])[0]}] " if names else ""
                texts = message_texts(node.args[0], inside[node])
                found += [f"{file.relative_to(SOURCE)}: {name}{' '.join(text.split())}" for text in texts]
    return found


def test_list_of_messages_is_up_to_date() -> None:
    assert all_messages() == SNAPSHOT.read_text().splitlines(), "run: python tests/test_messages.py"


if __name__ == "__main__":
    SNAPSHOT.write_text("\n".join(all_messages()) + "\n")
