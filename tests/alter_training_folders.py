"""Run ``adagoal evaluate`` on a training folder, with every array and every entry altered in turn.

    python tests/alter_training_folders.py FOLDER     # the last line is a JSON list of the changes that raised

The manifest is altered with each file. Everything goes through ``python -m adagoal``, in one process.
``test_hostile_input.py`` calls it.
"""

from __future__ import annotations

import io
import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import damaged_folders

WRONG_VALUES = ([], {}, None, -1, "x", 1e308)


def altered_arrays(raw: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield each array removed, cut, with NaN, as text, and with one dimension more."""
    with np.load(io.BytesIO(raw)) as stored:
        arrays = dict(stored)
    for name, array in arrays.items():
        others = {key: value for key, value in arrays.items() if key != name}
        cut = array[:-1] if array.ndim else array.reshape(1)[:0]
        for other in (cut, array * np.nan, array.astype(str), array[None]):
            yield name, packed({**others, name: other})
        yield name, packed(others)


def packed(arrays: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def altered_entries(raw: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield each entry and each setting with a value of the wrong type or range."""
    facts = json.loads(raw)
    for value in WRONG_VALUES:
        for name in facts:
            yield f"{name} = {value!r}", json.dumps({**facts, name: value}).encode()
        for name in facts["config"]:
            config = {**facts["config"], name: value}
            yield f"config.{name} = {value!r}", json.dumps({**facts, "config": config}).encode()


def evaluate() -> str:
    """Return the name of an uncaught exception or a wrong exit code, else an empty string."""
    try:
        runpy.run_module("adagoal", run_name="__main__")
    except SystemExit as end:
        return "" if end.code in (None, 0, 2) else f"exit code {end.code}"
    except BaseException as error:
        return type(error).__name__
    return ""


def main(folder: Path) -> None:
    sys.argv = ["adagoal", "evaluate", str(folder), "--episodes", "1"]
    raised, tried = [], 0
    for file, altered in (("policy.npz", altered_arrays), ("result.json", altered_entries)):
        path = folder / file
        raw = path.read_bytes()
        for what, content in altered(raw):
            damaged_folders.forged(folder, file, content)
            tried += 1
            if error := evaluate():
                raised.append(f"{file} {what}: {error}")
        damaged_folders.forged(folder, file, raw)
    print(f"\n{len(raised)} of {tried} raised", file=sys.stderr)
    print(f"\n{json.dumps(raised)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
