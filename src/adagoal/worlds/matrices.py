"""Models that a user brings: matrices, :class:`~adagoal.worlds.model.TabularMDP` objects, and files of models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from adagoal.core.errors import InputError
from adagoal.worlds import storage, verification
from adagoal.worlds.adapter import RANDOM_START
from adagoal.worlds.model import TabularMDP

MODEL_SUFFIXES = (".npz", *verification.STORM_SUFFIXES)


def convert_matrix_argument(env: Any, start: int | str | None, terminal: ArrayLike | None) -> Any:
    """``env`` as it is, except that matrices become a model.

    A matrix is an array P[s, a, s'] (nested lists will do) or a list of sparse matrices, one per action. ``start``
    (state 0 by default) and ``terminal`` belong to matrices alone: all other environments have their own, but it may be
    declared that its start is random.
    """
    listed = sparse.issparse(env[0] if isinstance(env, list | tuple) and env else env)
    if listed or isinstance(env, np.ndarray | list | tuple):
        if isinstance(start, str):
            raise InputError(f"must be a state, got {start!r}", "start")
        facts = {"start": 0 if start is None else start, "terminal": terminal, "name": "matrix"}
        made: Callable[..., TabularMDP] = TabularMDP.from_sparse if listed else TabularMDP.from_dense
        return made(env, **facts)
    for name, value in (("start", None if start == RANDOM_START else start), ("terminal", terminal)):
        if value is not None:
            raise InputError("is for matrices P[s, a, s']; other environments say it themselves", name)
    return env


def model_from_argument(env: Any, env_args: Mapping[str, Any]) -> TabularMDP | None:
    """The model, where the user brings one: as an object, or in a file whose ending says so."""
    if isinstance(env, TabularMDP):
        _reject_arguments(env_args, env.name)
        return env
    return read_model_file(env, env_args) if isinstance(env, str) and env.endswith(MODEL_SUFFIXES) else None


def read_model_file(path: str, constants: Mapping[str, Any]) -> TabularMDP:
    """The model in a file; the ending says of which format it is."""
    if path.endswith(verification.STORM_SUFFIXES):
        return verification.load_storm_model(Path(path), constants)
    _reject_arguments(constants, path)
    return storage.load_model(Path(path))


def _reject_arguments(arguments: Mapping[str, Any], name: str) -> None:
    if arguments:
        raise InputError(f"{next(iter(arguments))} given, but {name} is a model, made already", "env_args")
