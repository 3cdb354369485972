"""Models in files: one ``.npz`` of plain arrays, with names and facts as JSON inside it.

The same file is what a user saves (``Model.save``) and what a run keeps beside its checkpoint under the name
:data:`MODEL_FILE`, so that a run on a matrix needs nothing given again. (``model.npz`` in a run's folder is something else:
the policies and the history of the result.)

Types, shapes and ranges are checked against :data:`MODEL_ARRAYS` and :data:`MODEL_FACTS`; that every row sums to one is checked by
the model itself. The kernels of a linear mixture are not stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core import files, npz, schema
from adagoal.core.errors import InputError
from adagoal.core.layout import GridLayout
from adagoal.core.schema import ArraySpec
from adagoal.worlds.model import TabularMDP
from adagoal.worlds.simulator import ModelSimulator

MODEL_FILE = "world.npz"
"""The name of the file in a run's folder."""

MODEL_ARRAYS: schema.ArraySchema = {
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


def model_content(model: TabularMDP) -> files.FileContent:
    """What the file of a model holds."""
    return files.arrays_content(*_model_parts(model))


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
    files.write_atomically(path, model_content(model))
    return path


def load_model(path: Path) -> TabularMDP:
    """The model in a file; what is wrong with the file, or with the model in it, is one line."""
    sizes: schema.AxisSizes = {}

    def fits(heads: Mapping[str, npz.ArrayHeader]) -> None:
        if "__facts__" not in heads:
            raise InputError(f"{path}: holds arrays, but no model; adagoal.Model.from_dense(P).save(...) writes one")
        sizes.update(schema.check_headers({"__facts__": ArraySpec("u"), **MODEL_ARRAYS}, heads))

    with files.open_regular_file(path) as (file, size), files.report_read_errors(path):
        arrays = npz.read_npz(file, size, fits)
        facts = files.take_out_facts(arrays)
        schema.check_json_value(MODEL_FACTS, facts)
        schema.check_array_values(MODEL_ARRAYS, arrays, sizes)
        try:
            return model_from_arrays(arrays, facts)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None


def find_user_model(world: object) -> TabularMDP | None:
    """The model that the user brought, which nobody could build again from its name: a run must keep it."""
    return world.mdp if isinstance(world, ModelSimulator) and world.own else None


def model_folder_contents(model: TabularMDP | None) -> dict[str, files.FileContent]:
    """The file of a model in the folder of a run, if there is one."""
    return {} if model is None else {MODEL_FILE: model_content(model)}
