"""The reference pages: commands from click, and the public names from their docstrings."""

from __future__ import annotations

import ast
import inspect
import io
import re
import textwrap
import tokenize
from typing import Any

import click

import adagoal
from adagoal.cli.main import COMMANDS, cli

_ROLE = re.compile(r":(?:\w+:)?\w+:`~?(?:[\w.]*\.)?([\w.]+)`")


def commands() -> str:
    """Every command with its options."""
    top = click.Context(cli, info_name="adagoal")
    parts = ["# Commands", "Each of them prints this with `--help`. [Exit codes](../architecture.md#exit-codes)."]
    for name, (_, about) in COMMANDS.items():
        command = cli.get_command(top, name)
        assert command is not None
        parts += _command(command, click.Context(command, info_name=name, parent=top), about, 2)
        if isinstance(command, click.Group):
            for inner in command.list_commands(top):
                sub = command.commands[inner]
                context = click.Context(sub, info_name=f"{name} {inner}", parent=top)
                parts += _command(sub, context, sub.get_short_help_str(200), 3)
    return "\n\n".join(parts) + "\n"


def _command(command: click.Command, context: click.Context, about: str, level: int) -> list[str]:
    usage = " ".join(["adagoal", str(context.info_name), *command.collect_usage_pieces(context)])
    records = [record for p in command.params if (record := p.get_help_record(context)) is not None]
    rows = [f"| <code>{_cell(left)}</code> | {_cell(right)} |" for left, right in records if left.startswith("-")]
    table = "\n".join(["| option | meaning |", "| --- | --- |", *rows]) if rows else ""
    example = (command.epilog or "").removeprefix("Example: ")
    parts = [
        f"{'#' * level} adagoal {context.info_name}",
        about,
        f"```console\n$ {usage}\n```",
        inspect.cleandoc(command.help or ""),
    ]
    return [part for part in [*parts, table, f"```console\n$ {example}\n```" if example else ""] if part]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "&#124;").replace("*", "\\*").replace("<", "&lt;")


TASKS = {
    "Explore an environment": ("explore", "certify_data", "Result", "Certificate", "Policy"),
    "Save, load and resume": ("load", "resume", "transitions"),
    "Check an answer": ("audit", "play", "Trial", "check_env", "Check"),
    "Show and export": ("show", "Page", "plot", "export"),
    "Compare methods": ("compare", "Comparison"),
    "Train and certify": ("train", "certify", "Certification"),
    "Bring a model": ("Model", "mixture", "machine"),
    "Handle errors": ("InputError",),
}
"""The public names by task, in the order of the page."""


def names() -> str:
    """Return the page of all public names with their signatures and docstrings, by task."""
    listed = [name for group in TASKS.values() for name in group]
    assert sorted(listed) == sorted(adagoal.__all__), "every public name belongs to one task"
    parts = ["# Python", "Everything that `import adagoal` offers, by task. Other names may change between versions."]
    rows = [f"| {task} | {', '.join(f'[`{n}`](#{n.lower()})' for n in group)} |" for task, group in TASKS.items()]
    parts.append("\n".join(["| task | names |", "| --- | --- |", *rows]))
    for task, group in TASKS.items():
        parts.append(f"## {task}")
        for name in group:
            parts += _name(name, getattr(adagoal, name), 3)
    return "\n\n".join(parts) + "\n"


def _name(name: str, found: Any, level: int) -> list[str]:
    plain = inspect.unwrap(found)
    head, about = f"{'#' * level} {name}", _told(inspect.getdoc(plain))
    if not inspect.isclass(plain):
        return [head, f"```python\ndef {name}{_signature(plain)}\n```", about]
    parts = [head, about, _fields(plain)]
    for member, value in vars(plain).items():
        function = value.__func__ if isinstance(value, staticmethod) else value
        if member.startswith("_") or not (inspect.isfunction(function) or isinstance(function, property)):
            continue
        if isinstance(function, property):
            parts += [f"{'#' * (level + 1)} {name}.{member}", _told(inspect.getdoc(function))]
        else:
            parts += _name(f"{name}.{member}", function, level + 1)
    return parts


def _fields(found: type) -> str:
    """Return the fields of a class as a list, with the string below or the comment behind each of them."""
    source = textwrap.dedent(inspect.getsource(found))
    (tree,) = ast.parse(source).body
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0]: token.string[1:].strip() for token in tokens if token.type == tokenize.COMMENT}
    assert isinstance(tree, ast.ClassDef)
    lines = []
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and not ast.unparse(node.target).startswith("_"):
            text = ast.literal_eval(after.value) if isinstance(after, ast.Expr) else comments.get(node.end_lineno, "")
            told = f": {' '.join(_told(text).split())}" if isinstance(text, str) and text else ""
            lines.append(f"- `{ast.unparse(node.target)}`, `{ast.unparse(node.annotation)}`{told}")
    return "\n".join(lines)


def _example_block(match: re.Match[str]) -> str:
    return f"```pycon\n{re.sub(r'  # doctest: .*', '', match[0])}\n```"


def _signature(found: Any) -> str:
    whole = inspect.signature(found)
    arguments = [str(p).replace("'", "") for p in whole.parameters.values() if p.name != "self"]
    back = f" -> {whole.return_annotation}" if whole.return_annotation is not whole.empty else ""
    flat = f"({', '.join(arguments)}){back}"
    return flat if len(flat) < 80 else "(\n" + "".join(f"    {argument},\n" for argument in arguments) + f"){back}"


def _told(docstring: str | None) -> str:
    """Return a docstring as Markdown: roles and double ticks become code, parameters a list, examples a block."""
    text = _ROLE.sub(r"`\1`", docstring or "").replace("``", "`")
    text = re.sub(r"^(Other Parameters|Examples?)\n-+\n", "", text, flags=re.M)
    text = re.sub(r"^>>> .*?(?=\n\n|\Z)", _example_block, text, flags=re.M | re.S)
    before, header, after = text.partition("Parameters\n----------\n")
    if not header:
        return before
    items = re.sub(r"^(\w[\w, ]*): ", r"- **\1**: ", after, flags=re.M)
    return f"{before}\n{items}"
