"""Models that are not built in: matrices, model objects, Gymnasium's toy text, and files (load and save).

The ``.npz`` file of a model holds plain arrays, and names and facts as JSON. ``Model.save`` writes it. A run stores the
model of its user in the same format beside its checkpoint (:attr:`ModelFile.NAME`), so a resumed run needs no model.
Reading a file checks types, shapes and ranges; the model itself checks that every row sums to one. The kernels of a
linear mixture are not stored.

Toy-text environments bring their own transition tables, so their exact models have the same dynamics, compiled. A state
is terminal if some transition enters it with the done flag. States keep their numbers. If the initial state is random,
the virtual start is one more state, the last; all its actions lead to the initial distribution. Taxi reports which
actions its states have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import ArrayLike, NDArray

from adagoal.core import file_formats, file_io
from adagoal.core.array_types import Longs
from adagoal.core.environment import GridLayout, TabularEnv
from adagoal.core.errors import InputError
from adagoal.core.file_formats import ArraySpec
from adagoal.envs import storm_formats
from adagoal.envs.env_backends import TOY_TEXT
from adagoal.envs.gym_adapter import StartSeed
from adagoal.envs.model import TabularMDP, model_from_rows
from adagoal.envs.simulator import ModelSimulator

MODEL_SUFFIXES = (".npz", *storm_formats.STORM_SUFFIXES)


class ModelFile:
    """The ``.npz`` file of a model: its name in a run folder, and the schemas of its arrays and facts."""

    NAME = "model.npz"
    ARRAYS: ClassVar[file_formats.ArraySchema] = {
        "indptr": ArraySpec("int64", ("N",), low=0),
        "successors": ArraySpec("int32", ("nnz",), low=0, below="S"),
        "probabilities": ArraySpec("float64", ("nnz",), low=0),
        "terminal": ArraySpec("b", ("S",)),
        "absent": ArraySpec("b", ("X",), optional=True),
        "sets": ArraySpec("b", ("K", "S")),
        "cells": ArraySpec("int64", ("S", 2), low=-1, optional=True),
        "walls": ArraySpec("b", ("rows", "columns"), optional=True),
    }
    FACTS = file_formats.object_schema(
        format={"enum": [1]},
        name={"type": "string"},
        n_actions={"type": "integer", "minimum": 1, "maximum": 2**31},
        start={"type": "integer", "minimum": 0},
        labels={"type": "array", "items": {"type": "string"}},
        actions={"type": "array", "items": {"type": "string"}},
        sets={"type": "array", "items": {"type": "string"}},
    )


def models_equal(one: TabularMDP | None, other: TabularMDP | None) -> bool:
    """Return whether two models have the same file."""
    if one is None or other is None:
        return one is other
    (arrays, facts), (other_arrays, other_facts) = _model_parts(one), _model_parts(other)
    same_names = facts == other_facts and arrays.keys() == other_arrays.keys()
    return same_names and all(np.array_equal(array, other_arrays[name]) for name, array in arrays.items())


def _model_parts(model: TabularMDP) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the arrays and facts of a model's file, see :class:`ModelFile`."""
    arrays = {name: getattr(model, name) for name in ("indptr", "successors", "probabilities", "terminal")}
    arrays["sets"] = np.array(list(model.sets.values()), bool).reshape(len(model.sets), model.n_states)
    if model.absent.any():
        arrays["absent"] = model.absent
    if model.layout is not None:
        arrays |= {"cells": np.asarray(model.layout.cells, np.int64), "walls": model.layout.walls}
    facts = {"format": 1, "name": model.name, "n_actions": model.n_actions, "start": model.start}
    return arrays, facts | {name: list(getattr(model, name)) for name in ("labels", "actions", "sets")}


def model_from_arrays(arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> TabularMDP:
    """Make a model of arrays and facts that were checked against :class:`ModelFile`."""
    layout = GridLayout(arrays["walls"].shape, arrays["cells"], arrays["walls"]) if "walls" in arrays else None
    if len(facts["sets"]) != len(arrays["sets"]):
        raise ValueError(f"it has {len(arrays['sets'])} sets of states, but {len(facts['sets'])} names of sets")
    fields: dict[str, Any] = {name: facts[name] for name in ("name", "n_actions", "start")}
    names = "indptr", "successors", "probabilities", "terminal", "absent"
    fields |= {name: arrays[name] for name in names if name in arrays}
    fields |= {name: tuple(facts[name]) for name in ("labels", "actions")}
    sets = dict(zip(facts["sets"], arrays["sets"], strict=True))
    return TabularMDP(len(arrays["terminal"]), **fields, sets=sets, layout=layout)


def save_model(model: TabularMDP, path: Path) -> Path:
    """Write a model into one file, atomically."""
    if path.suffix != ".npz":
        raise InputError(f"must end in .npz, got {str(path)!r}", "path")
    file_io.write_atomically(path, file_io.arrays_content(*_model_parts(model)))
    return path


def load_model(path: Path) -> TabularMDP:
    """Read a model from an ``.npz`` file."""
    sizes: file_formats.AxisSizes = {}

    # Called before any array is allocated, so a forged header cannot exhaust the memory.
    def check_headers(headers: Mapping[str, file_formats.ArrayHeader]) -> None:
        if "__facts__" not in headers:
            raise InputError(f"{path}: contains arrays, but no model; adagoal.Model.from_dense(P).save(...) writes one")
        sizes.update(file_formats.check_headers({"__facts__": ArraySpec("u"), **ModelFile.ARRAYS}, headers))

    with file_io.open_regular_file(path) as (file, size), file_io.report_read_errors(path):
        arrays = file_formats.read_npz(file, size, check_headers)
        facts = file_io.take_out_facts(arrays)
        file_formats.check_json_value(ModelFile.FACTS, facts)
        file_formats.check_array_values(ModelFile.ARRAYS, arrays, sizes)
        try:
            return model_from_arrays(arrays, facts)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None


def find_user_model(env: object) -> TabularMDP | None:
    """Return the model that the user brought, if any."""
    # A run must store it: its name does not say how to build it.
    return env.mdp if isinstance(env, ModelSimulator) and env.is_user_model else None


def model_folder_contents(model: TabularMDP | None) -> dict[str, file_io.FileContent]:
    """Return the files that a run folder holds of its user's model."""
    return {} if model is None else {ModelFile.NAME: file_io.arrays_content(*_model_parts(model))}


def convert_matrix_argument(env: Any, start: int | str | None, terminal: ArrayLike | None) -> Any:
    """Turn matrices into a model; return any other ``env`` unchanged.

    A matrix is an array P[s, a, s'] (or nested lists), or a list of sparse matrices, one per action. ``start`` (state 0
    by default) and ``terminal`` are for matrices only, except that ``start`` may declare a random start.
    """
    # Not scipy.sparse.issparse: importing it takes a tenth of a second, and runs without a matrix do without it.
    is_sparse = hasattr(env[0] if isinstance(env, list | tuple) and env else env, "tocsr")
    if is_sparse or isinstance(env, np.ndarray | list | tuple):
        if isinstance(start, str):
            raise InputError(f"must be a state, got {start!r}", "start")
        build: Callable[..., TabularMDP] = TabularMDP.from_sparse if is_sparse else TabularMDP.from_dense
        return build(env, start=0 if start is None else start, terminal=terminal, name="matrix")
    for name, value in (("start", None if start == "random" else start), ("terminal", terminal)):
        if value is not None:
            raise InputError("is for matrices P[s, a, s']; this environment defines its own, so leave it out", name)
    return env


def model_from_argument(env: Any, env_args: Mapping[str, Any]) -> TabularMDP | None:
    """Return the model of an object or of a model file; None for any other environment."""
    if isinstance(env, TabularMDP):
        _reject_arguments(env_args, env.name)
        return env
    return read_model_file(env, env_args) if isinstance(env, str) and env.endswith(MODEL_SUFFIXES) else None


def read_model_file(path: str, constants: Mapping[str, Any]) -> TabularMDP:
    """Read a model from a file, whose suffix is the format; ``constants`` are for programs of model checkers."""
    if path.endswith(storm_formats.STORM_SUFFIXES):
        return storm_formats.load_storm_model(Path(path), constants)
    _reject_arguments(constants, path)
    return load_model(Path(path))


def add_described_sets(
    env: TabularEnv, source: Any, constants: Mapping[str, Any], names: Sequence[int | str], argument: str
) -> list[int | str]:
    """Add the sets that expressions or a file of properties describe to the model of a PRISM or JANI program.

    Return the names with those of the properties in place of their file; ``argument`` is where the names are from.
    """
    is_program = isinstance(source, str) and source.endswith(storm_formats.PROGRAM_SUFFIXES)
    if not is_program or not isinstance(env, ModelSimulator):
        return list(names)
    known = {*env.mdp.sets, *env.mdp.labels}
    texts = [name for name in names if isinstance(name, str) and name not in known]
    files = [text for text in texts if text.endswith(storm_formats.PROPERTY_SUFFIXES)]
    if files and len(names) > 1:
        raise InputError(f"{files[0]} cannot be combined with other names; give it alone", argument)
    if not texts:
        return list(names)
    try:
        described = storm_formats.find_described_states(Path(source), constants, texts)
    except InputError as error:
        raise InputError(error.reason, error.name or argument) from None
    env.mdp = replace(env.mdp, sets={**env.mdp.sets, **described})
    return list(described) if files else list(names)


def _reject_arguments(arguments: Mapping[str, Any], name: str) -> None:
    if arguments:
        names = ", ".join(arguments)
        raise InputError(f"{name} is a complete model and takes no arguments, got {names}; leave them out", "env_args")


def toy_text_model(env: gymnasium.Env[Any, Any], name: str, start_seed: StartSeed) -> TabularMDP | None:
    """Return the exact model, or None if ``env`` is not a toy-text environment or deviates from its table."""
    base: Any = env.unwrapped
    has_table = type(base).__module__.startswith(TOY_TEXT) and hasattr(base, "P")
    # A fickle passenger changes its mind outside the table.
    if not has_table or getattr(base, "fickle_passenger", False):
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
    labels, shape = _toy_text_labels(base, n_states), _toy_text_shape(base)
    cells = None if shape is None else np.argwhere(np.ones(shape, bool))  # one state per cell
    if isinstance(start_seed, int):
        start = int(env.reset(seed=start_seed)[0])
    elif len(first) == 1 and start_seed != "random":
        start = int(first[0])
    else:
        start, n_states = n_states, n_states + 1
        rows += [{int(s): float(base.initial_state_distrib[s]) for s in first}] * n_actions
        terminal = np.append(terminal, False)
        labels = (*labels, "start") if labels else ()
        # The virtual start is outside the map.
        cells = None if cells is None else np.vstack([cells, [-1, -1]])
    # The virtual start has all actions, which all draw the initial state.
    mask = np.ones((n_states, n_actions), bool)
    if hasattr(base, "action_mask"):
        mask[: len(base.P)] = [base.action_mask(state) for state in range(len(base.P))]
    layout = (
        None
        if shape is None or cells is None
        else GridLayout(shape, cells, np.zeros(shape, bool), _toy_text_marks(base))
    )
    return model_from_rows(
        rows, n_actions, start=start, terminal=terminal, action_mask=mask, name=name, labels=labels, layout=layout
    )


def _toy_text_labels(base: Any, n_states: int) -> tuple[str, ...]:
    shape = _toy_text_shape(base)
    if shape is not None:
        names = {(r, c): f" {name}" for name, cells in _toy_text_marks(base).items() for r, c in cells.tolist()}
        return tuple(f"{cell}{names.get(cell, '')}" for cell in (divmod(s, shape[1]) for s in range(n_states)))
    if hasattr(base, "decode"):
        stops = ("red", "green", "yellow", "blue", "aboard")  # where Taxi's passenger is and wants to go
        states = (base.decode(s) for s in range(n_states))
        return tuple(f"taxi ({r}, {c}), {stops[p]} to {stops[d]}" for r, c, p, d in states)
    return ()


def _toy_text_marks(base: Any) -> dict[str, Longs]:
    """Return the cells that the map of FrozenLake or CliffWalking names, [n, 2] by name."""
    if hasattr(base, "_cliff"):
        return {"cliff": np.argwhere(base._cliff)}
    letters = {"hole": b"H", "goal": b"G"}
    return {name: np.argwhere(base.desc == letter) for name, letter in letters.items()}


def _toy_text_shape(base: Any) -> tuple[int, int] | None:
    """Return rows and columns of FrozenLake and CliffWalking, None for other environments."""
    if hasattr(base, "nrow") and hasattr(base, "ncol"):
        return int(base.nrow), int(base.ncol)
    if hasattr(base, "_cliff"):
        return int(base.shape[0]), int(base.shape[1])
    return None
