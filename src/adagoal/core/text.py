"""Text from outside (labels of environments, messages of exceptions) as plain data."""

from __future__ import annotations

import unicodedata

MAX_LABEL_LENGTH = 60
"""Characters of a label, at most."""
OBJECT_ENV_PREFIX = "object:"
"""Begins the name, in results, of an environment that was given as an object."""
UNPRINTABLE_CATEGORIES = ("Cc", "Cf", "Cs", "Co", "Cn")
"""Unicode categories that a terminal or a browser obeys instead of showing: control characters and escape sequences,
changes of direction, half characters."""


def to_single_line(text: object, most: int = MAX_LABEL_LENGTH) -> str:
    """One line of at most ``most`` characters, with a replacement character for everything that cannot be seen."""
    try:
        line = " ".join(str(text)[: 4 * most].split())
    except Exception:  # text that cannot be told, of a class from outside
        line = type(text).__name__
    shown = "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in UNPRINTABLE_CATEGORIES else c for c in line
    )
    return shown if len(shown) <= most else shown[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"


def describe_exception(error: BaseException) -> str:
    """An exception in one line: its kind and what it says."""
    return f"{type(error).__name__}: {to_single_line(error, 500)}"
