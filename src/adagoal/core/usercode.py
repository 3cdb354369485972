"""The user's own code: a file named as ``FILE.py:NAME``, loaded only where the user, not a folder, has named it; and
functions that are called on the way."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adagoal.core.errors import EnvironmentFailure, InputError


def is_file_spec(spec: object) -> bool:
    """Whether a text names code in a file."""
    return isinstance(spec, str) and ".py:" in spec


def load_from_file(spec: str, name: str) -> Any:
    """What the file calls NAME; ``name`` is the argument that is wrong where there is no such thing."""
    file, _, attribute = spec.rpartition(":")
    path = Path(file)
    if not os.path.isfile(path):  # unlike Path.is_file, which raises for a name that is too long
        raise InputError(f"no such file {file!r}", name)
    module_spec = importlib.util.spec_from_file_location(path.stem, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    try:
        module_spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise EnvironmentFailure(f"{file} could not be loaded: {type(error).__name__}: {error}", name) from error
    if not hasattr(module, attribute):
        raise InputError(f"{file} has no function {attribute!r}", name)
    return getattr(module, attribute)


def call_observer(observe: Callable[..., bool | None] | None, *told: object) -> bool:
    """Whether an observer, told this, wants to go on. What the user's raises is the user's, what one of ours is not."""
    if observe is None:
        return True
    try:
        return observe(*told) is not False
    except Exception as error:
        if (getattr(observe, "__module__", None) or "").partition(".")[0] == __name__.partition(".")[0]:
            raise
        raise EnvironmentFailure(f"the function raised {type(error).__name__}: {error}", "observe") from error
