"""Models in files: one ``.npz`` of plain arrays, with names and facts as JSON inside it.

The same file is what a user saves (``Model.save``) and what a run keeps beside its checkpoint under the name
:data:`MODEL_FILE`, so that a run on a matrix needs nothing given again.

Types, shapes and ranges are checked against :data:`MODEL_ARRAYS` and :data:`MODEL_FACTS`; that every row sums to one is
checked by the model itself. The kernels of a linear mixture are not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from adagoal.core import file_formats, file_io
from adagoal.core.errors import InputError
from adagoal.core.file_formats import ArraySpec
from adagoal.core.types import GridLayout, Longs
from adagoal.envs import storm_formats
from adagoal.envs.env_backends import TOY_TEXT
from adagoal.envs.indexed_env import RANDOM_START, StartSeed
from adagoal.envs.model import TabularMDP, model_from_rows
from adagoal.envs.simulator import ModelSimulator

MODEL_FILE = "model.npz"
"""The name of the file in a run's folder."""

MODEL_ARRAYS: file_formats.ArraySchema = {
    "indptr": ArraySpec("int64", ("N",), low=0),
    "successors": ArraySpec("int32", ("nnz",), low=0, below="S"),
    "probabilities": ArraySpec("float64", ("nnz",), low=0),
    "terminal": ArraySpec("b", ("S",)),
    "absent": ArraySpec("b", ("X",), optional=True),
    "sets": ArraySpec("b", ("K", "S")),
    "cells": ArraySpec("int64", ("S", 2), low=-1, optional=True),
    "walls": ArraySpec("b", ("rows", "columns"), optional=True),
}
_TEXTS = {"type": "array", "items": {"type": "string"}}
MODEL_FACTS: dict[str, Any] = {
    "type": "object",
    "required": ["format", "name", "n_actions", "start", "labels", "actions", "sets"],
    "additionalProperties": False,
    "properties": {
        "format": {"enum": [1]},
        "name": {"type": "string"},
        "n_actions": {"type": "integer", "minimum": 1, "maximum": 2**31},
        "start": {"type": "integer", "minimum": 0},
        "labels": _TEXTS,
        "actions": _TEXTS,
        "sets": _TEXTS,
    },
}


def model_content(model: TabularMDP) -> file_io.FileContent:
    """What the file of a model holds."""
    return file_io.arrays_content(*_model_parts(model))


def models_equal(one: TabularMDP | None, other: TabularMDP | None) -> bool:
    """Whether two models would have the same file."""
    if one is None or other is None:
        return one is other
    (arrays, facts), (others, other_facts) = _model_parts(one), _model_parts(other)
    alike = facts == other_facts and arrays.keys() == others.keys()
    return alike and all(np.array_equal(array, others[name]) for name, array in arrays.items())


def _model_parts(model: TabularMDP) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Arrays and facts, which follow :data:`MODEL_ARRAYS` and :data:`MODEL_FACTS`."""
    arrays: dict[str, NDArray[Any]] = {
        "indptr": model.indptr,
        "successors": model.successors,
        "probabilities": model.probabilities,
        "terminal": model.terminal,
        "sets": np.array(list(model.sets.values()), bool).reshape(len(model.sets), model.n_states),
    }
    if model.absent.any():
        arrays["absent"] = model.absent
    if model.layout is not None:
        arrays |= {"cells": np.asarray(model.layout.cells, np.int64), "walls": model.layout.walls}
    facts = {
        "format": 1,
        "name": model.name,
        "n_actions": model.n_actions,
        "start": model.start,
        "labels": list(model.labels),
        "actions": list(model.actions),
        "sets": list(model.sets),
    }
    return arrays, facts


def model_from_arrays(arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> TabularMDP:
    """The model of arrays and facts that have been found to follow :data:`MODEL_ARRAYS` and :data:`MODEL_FACTS`."""
    layout = GridLayout(arrays["walls"].shape, arrays["cells"], arrays["walls"]) if "walls" in arrays else None
    if len(facts["sets"]) != len(arrays["sets"]):
        raise ValueError("the sets of states and their names do not fit together")
    return TabularMDP(
        len(arrays["terminal"]),
        facts["n_actions"],
        arrays["indptr"],
        arrays["successors"],
        arrays["probabilities"],
        start=facts["start"],
        terminal=arrays["terminal"],
        absent=arrays.get("absent", np.zeros(0, bool)),
        name=facts["name"],
        labels=tuple(facts["labels"]),
        actions=tuple(facts["actions"]),
        sets=dict(zip(facts["sets"], arrays["sets"], strict=True)),
        layout=layout,
    )


def save_model(model: TabularMDP, path: Path) -> Path:
    """Write a model into one file, atomically."""
    if path.suffix != ".npz":
        raise InputError(f"must end in .npz, got {str(path)!r}", "path")
    file_io.write_atomically(path, model_content(model))
    return path


def load_model(path: Path) -> TabularMDP:
    """The model in a file; what is wrong with the file, or with the model in it, is one line."""
    sizes: file_formats.AxisSizes = {}

    def fits(heads: Mapping[str, file_formats.ArrayHeader]) -> None:
        if "__facts__" not in heads:
            raise InputError(f"{path}: holds arrays, but no model; adagoal.Model.from_dense(P).save(...) writes one")
        sizes.update(file_formats.check_headers({"__facts__": ArraySpec("u"), **MODEL_ARRAYS}, heads))

    with file_io.open_regular_file(path) as (file, size), file_io.report_read_errors(path):
        arrays = file_formats.read_npz(file, size, fits)
        facts = file_io.take_out_facts(arrays)
        file_formats.check_json_value(MODEL_FACTS, facts)
        file_formats.check_array_values(MODEL_ARRAYS, arrays, sizes)
        try:
            return model_from_arrays(arrays, facts)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None


def find_user_model(world: object) -> TabularMDP | None:
    """The model that the user brought, which nobody could build again from its name: a run must keep it."""
    return world.mdp if isinstance(world, ModelSimulator) and world.own else None


def model_folder_contents(model: TabularMDP | None) -> dict[str, file_io.FileContent]:
    """The file of a model in the folder of a run, if there is one."""
    return {} if model is None else {MODEL_FILE: model_content(model)}


# Models that a user brings: matrices, :class:`~adagoal.envs.model.TabularMDP` objects, and files of models.


MODEL_SUFFIXES = (".npz", *storm_formats.STORM_SUFFIXES)


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
    if path.endswith(storm_formats.STORM_SUFFIXES):
        return storm_formats.load_storm_model(Path(path), constants)
    _reject_arguments(constants, path)
    return load_model(Path(path))


def _reject_arguments(arguments: Mapping[str, Any], name: str) -> None:
    if arguments:
        raise InputError(f"{next(iter(arguments))} given, but {name} is a model, made already", "env_args")


# Gymnasium's toy-text environments as exact models: their own transition tables, so the same dynamics, compiled.
#
# A state that some transition enters with the done flag is terminal. The states keep the numbers that the
# environment gives them; if the initial state is random, one more state, the last, is the virtual start, all of
# whose actions lead to the initial distribution. Taxi says which actions its states have.


PLACES = ("red", "green", "yellow", "blue")
"""Where Taxi's passengers wait and want to go."""


def toy_text_model(env: gymnasium.Env[Any, Any], name: str, start_seed: StartSeed) -> TabularMDP | None:
    """The exact model, or None where ``env`` is no toy-text environment, wrapped, or does not play by its own table."""
    base: Any = env.unwrapped
    known = type(base).__module__.startswith(TOY_TEXT) and hasattr(base, "P")
    if not known or getattr(base, "fickle_passenger", False):
        return None
    n_states, n_actions = len(base.P), len(base.P[0])
    terminal = np.zeros(n_states, bool)
    rows: list[dict[int, float]] = []
    for state in range(n_states):
        for action in range(n_actions):
            row: dict[int, float] = {}
            for p, successor, _, done in base.P[state][action]:
                row[int(successor)] = row.get(int(successor), 0.0) + float(p)
                terminal[successor] |= done and p > 0
            rows.append(row)
    first = np.flatnonzero(base.initial_state_distrib)
    labels, layout = _toy_text_labels(base, n_states), _toy_text_layout(base)
    if isinstance(start_seed, int):
        start = int(env.reset(seed=start_seed)[0])
    elif len(first) == 1 and start_seed != RANDOM_START:
        start = int(first[0])
    else:
        start, n_states = n_states, n_states + 1
        rows += [{int(s): float(base.initial_state_distrib[s]) for s in first}] * n_actions
        terminal = np.append(terminal, False)
        labels = (*labels, "start") if labels else ()
        if layout is not None:
            layout = GridLayout(layout.shape, np.vstack([layout.cells, [-1, -1]]), layout.walls)
    mask = np.ones((n_states, n_actions), bool)
    if hasattr(base, "action_mask"):
        mask[: len(base.P)] = [base.action_mask(state) for state in range(len(base.P))]
    facts: dict[str, Any] = {"start": start, "terminal": terminal, "action_mask": mask}
    return model_from_rows(rows, n_actions, **facts, name=name, labels=labels, layout=layout)


def _toy_text_layout(base: Any) -> GridLayout | None:
    """The map, where there is one state per cell."""
    shape = _toy_text_shape(base)
    if shape is None:
        return None
    cells: Longs = np.argwhere(np.ones(shape, bool))
    return GridLayout(shape, cells, np.zeros(shape, bool))


def _toy_text_labels(base: Any, n_states: int) -> tuple[str, ...]:
    shape = _toy_text_shape(base)
    if shape is not None:
        special = {b"H": " hole", b"G": " goal"}
        marks = [special.get(c, "") for c in base.desc.ravel()] if hasattr(base, "desc") else [""] * n_states
        return tuple(f"({s // shape[1]}, {s % shape[1]}){mark}" for s, mark in enumerate(marks))
    if hasattr(base, "decode"):
        states = (base.decode(s) for s in range(n_states))
        return tuple(f"taxi ({r}, {c}), {(*PLACES, 'aboard')[p]} to {PLACES[d]}" for r, c, p, d in states)
    return ()


def _toy_text_shape(base: Any) -> tuple[int, int] | None:
    """Rows and columns of FrozenLake and CliffWalking."""
    if hasattr(base, "nrow") and hasattr(base, "ncol"):
        return int(base.nrow), int(base.ncol)
    if hasattr(base, "_cliff"):
        return int(base.shape[0]), int(base.shape[1])
    return None
