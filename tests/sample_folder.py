"""A small run folder for tests, in which every entry contains the number of its save."""

from pathlib import Path

import numpy as np

from adagoal.core import file_io
from adagoal.core.file_formats import ArraySpec
from adagoal.runs.run_folder import SavedRun, open_locked_folder, read_saved_run

KIND = "exploration"
SIZES = {"A": 2}
STATE = {
    "successor": ArraySpec("int32", ("S*A", "K"), low=0, below="S"),
    "visits": ArraySpec("i", ("S",), low=0),
    "values": ArraySpec("f", ("S",), low=0, finite=False),
    "seen": ArraySpec("b", ("S",)),
    "order": ArraySpec("i", ("M",), low=0, below="S", increasing=True),
    "extra": ArraySpec("f", optional=True),
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
    """Return arrays that contain this number."""
    return {
        "successor": np.full((10, 3), number % 5, np.int32),
        "visits": np.full(5, number),
        "values": np.array([number, 1.0, np.inf, 0.0, 2.0]),
        "seen": np.ones(5, bool),
        "order": np.array([0, 2, 4]),
    }


def state(number: int) -> dict[str, file_io.FileContent]:
    return {"checkpoint.npz": file_io.arrays_content(arrays(number), {"steps": number, "rng": 2**127}, compress=False)}


def results(number: int) -> dict[str, file_io.FileContent]:
    return {
        "result.json": file_io.json_content({"status": "done", "steps": number, "goals": [{"goal": 1}]}),
        "policies.npz": file_io.arrays_content({"policy": np.full((2, 5), number)}),
        "report.html": file_io.bytes_content(f"<p>{number}</p>".encode()),
    }


def read_state(saved: SavedRun) -> int:
    found, facts = saved.checkpoint_files().load_arrays("checkpoint.npz", STATE, SIZES, FACTS)
    assert facts["rng"] == 2**127
    for name, array in arrays(facts["steps"]).items():
        assert (found[name] == array).all()
    return int(facts["steps"])


def read_results(saved: SavedRun) -> int | None:
    here = saved.result_files()
    if "result.json" not in here:
        return None
    data = here.load_json("result.json", RESULT)
    model, _ = here.load_arrays("policies.npz", {"policy": ArraySpec("i", ("G", "S"))})
    assert (model["policy"] == data["steps"]).all()
    with here.open_verified("report.html") as (_, file, _):
        assert file.read(100) == f"<p>{data['steps']}</p>".encode()
    return int(data["steps"])


def read_numbers(path: Path) -> tuple[int, int | None]:
    """Return the save numbers of the state and of the results, after a check that neither mixes two saves."""
    return read_saved_run(path, lambda saved: (read_state(saved), read_results(saved)))


def write_folder(path: Path, *numbers: int) -> Path:
    with open_locked_folder(path, KIND) as folder:
        for number in numbers:
            folder.save_files(state(number), results(number))
    return path
