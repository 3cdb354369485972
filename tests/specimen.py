"""A small run, for tests of the run folder: every entry of a save says which save it belongs to."""

from pathlib import Path

import numpy as np

from adagoal.core import files
from adagoal.core.schema import Array
from adagoal.runs.folder import hold
from adagoal.runs.saved import Saved, read

KIND = "exploration"
SIZES = {"A": 2}
STATE = {
    "successor": Array("int32", ("S*A", "K"), low=0, below="S"),
    "visits": Array("i", ("S",), low=0),
    "values": Array("f", ("S",), low=0, finite=False),
    "seen": Array("b", ("S",)),
    "order": Array("i", ("M",), low=0, below="S", rising=True),
    "extra": Array("f", optional=True),
}
FACTS = {
    "type": "object",
    "required": ["steps", "rng"],
    "additionalProperties": False,
    "properties": {"steps": {"type": "integer", "minimum": 0}, "rng": {"type": "integer", "minimum": 0}},
}
RESULT = {
    "type": "object",
    "required": ["status", "steps", "goals"],
    "properties": {
        "status": {"enum": ["done", "budget"]},
        "steps": {"type": "integer", "minimum": 0},
        "goals": {"type": "array", "items": {"type": "object", "properties": {"goal": {"type": "integer"}}}},
    },
}


def arrays(number: int) -> dict[str, np.ndarray]:
    """A state that says in every entry which one it is."""
    return {
        "successor": np.full((10, 3), number % 5, np.int32),
        "visits": np.full(5, number),
        "values": np.array([number, 1.0, np.inf, 0.0, 2.0]),
        "seen": np.ones(5, bool),
        "order": np.array([0, 2, 4]),
    }


def state(number: int) -> dict[str, files.Content]:
    return {"checkpoint.npz": files.arrays_content(arrays(number), {"steps": number, "rng": 2**127}, compress=False)}


def results(number: int) -> dict[str, files.Content]:
    return {
        "result.json": files.json_content({"status": "done", "steps": number, "goals": [{"goal": 1}]}),
        "model.npz": files.arrays_content({"policy": np.full((2, 5), number)}),
        "report.html": files.text_content(f"<p>{number}</p>"),
    }


def look_state(saved: Saved) -> int:
    found, facts = saved.state().arrays("checkpoint.npz", STATE, SIZES, FACTS)
    assert facts["rng"] == 2**127
    for name, array in arrays(facts["steps"]).items():
        assert (found[name] == array).all()
    return int(facts["steps"])


def look_results(saved: Saved) -> int | None:
    here = saved.results()
    if "result.json" not in here:
        return None
    data = here.json("result.json", RESULT)
    model, _ = here.arrays("model.npz", {"policy": Array("i", ("G", "S"))})
    assert (model["policy"] == data["steps"]).all()
    with here._open("report.html") as (_, file, _):
        assert file.read(100) == f"<p>{data['steps']}</p>".encode()
    return int(data["steps"])


def look(path: Path) -> tuple[int, int | None]:
    """The numbers of the state and of the results; that each is of one piece is checked on the way."""
    return read(path, lambda saved: (look_state(saved), look_results(saved)))


def build(path: Path, *numbers: int) -> Path:
    with hold(path, KIND) as folder:
        for number in numbers:
            folder.save(state(number), results(number))
    return path
