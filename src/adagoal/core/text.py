"""Text from outside (labels of environments, messages of exceptions) as plain data."""

from __future__ import annotations

import unicodedata

LABEL = 60
"""Characters of a label, at most."""
OBJECT = "object:"
"""Begins the name, in results, of an environment that was given as an object."""
HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn")
"""Unicode categories that a terminal or a browser obeys instead of showing: control characters and escape sequences,
changes of direction, half characters."""


def plain(text: object, most: int = LABEL) -> str:
    """One line of at most ``most`` characters, with a replacement character for everything that cannot be seen."""
    try:
        line = " ".join(str(text)[: 4 * most].split())
    except Exception:  # text that cannot be told, of a class from outside
        line = type(text).__name__
    shown = "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in HIDDEN else c for c in line)
    return shown if len(shown) <= most else shown[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"


def told(error: BaseException) -> str:
    """An exception in one line: its kind and what it says."""
    return f"{type(error).__name__}: {plain(error, 500)}"
