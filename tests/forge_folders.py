"""Forge run folders (content and manifest altered together) and pass them to everything that reads them.

    python tests/forge_folders.py SEED CASES      # prints one line per crash, traceback or hang

Each case changes one array or one entry in the files of a genuine run, as an attacker would. A child process then
resumes, plays, loads, audits and reports it. An input error is fine, and so are values that could be genuine. A
segmentation fault, a traceback or a hang is a failure. ``test_forged_folders.py`` calls it.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import adagoal
import damaged_folders
from adagoal.report import write_report
from adagoal.runs import run_folder as folders
from adagoal.runs.run_folder import find_saved_run, staged_file_path
from kill_runs import CASES

TIME_LIMIT = 20
"""Processor seconds after which a case counts as hanging; the wall-clock limit is ten times as long."""
NASTY: tuple[Any, ...] = (-1, 0, 10**9, 10**30, 1e308, True, None, "x", "(((", [], {}, [[-1]], -0.5)


def arrays_of(path: Path) -> dict[str, Any]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def changes(array: Any, rng: random.Random) -> Iterator[tuple[str, Any]]:
    """Yield variants of an array, most of them invalid."""
    kind, flat = array.dtype.kind, array.reshape(-1)
    values: list[Any] = [True, False] if kind == "b" else [-1, -2, 0, 7]
    if kind in "iu":
        values += [np.iinfo(array.dtype).max, np.iinfo(array.dtype).min]
    if kind == "f":
        values += [np.nan, np.inf, -np.inf, 1e308]
    for value in values:
        changed = np.array(value).astype(array.dtype)  # an unsigned -1 wraps to the largest number
        yield f"all {value}", np.full_like(array, changed)
        if len(flat):
            other = flat.copy()
            other[rng.randrange(len(flat))] = changed
            yield f"one {value}", other.reshape(array.shape)
    yield "cut", array[:-1] if array.ndim else array.reshape(1)
    yield "empty", array[:0] if array.ndim else array.reshape(1)[:0]
    yield "flat", flat
    yield "of another type", array.astype(np.complex128 if kind == "f" else np.float64)
    yield "twice", np.concatenate([array, array]) if array.ndim else array


def entries(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths to all entries of a JSON object, and to the first two entries of every list."""
    if at:
        yield at
    if isinstance(data, dict):
        for name in data:
            yield from entries(data[name], (*at, name))
    if isinstance(data, list):
        for place in range(min(len(data), 2)):
            yield from entries(data[place], (*at, place))


def replaced(data: Any, at: tuple[Any, ...], value: Any) -> Any:
    data = inner = copy.deepcopy(data)
    for name in at[:-1]:
        inner = inner[name]
    inner[at[-1]] = value
    return data


def forgeries(folder: Path, rng: random.Random) -> Iterator[tuple[str, str, Callable[[], bytes]]]:
    """Yield (what, file, content) of every forgery of a folder; ``content()`` makes the bytes."""
    manifest = find_saved_run(folder).manifest
    files = [
        str(staged_file_path(folder, n, e.generation).relative_to(folder)) for n, e in manifest.checkpoints[0].items()
    ]
    for name in [*files, "policies.npz", "result.json", "view.json"]:
        if name.endswith(".json"):
            data = json.loads((folder / name).read_text())
            for at in entries(data):
                for value in NASTY:
                    yield f"{name} {at} = {value!r}", name, partial(texted, data, at, value)
            continue
        arrays = arrays_of(folder / name)
        for key, array in arrays.items():
            if key == "__facts__":
                facts = json.loads(array.tobytes())
                for at in entries(facts):
                    for value in NASTY:
                        yield f"{name} {at} = {value!r}", name, partial(packed, arrays, facts, at, value)
            else:
                for label, other in changes(array, rng):
                    yield f"{name} {key}: {label}", name, partial(packed, {**arrays, key: other})


def texted(data: Any, at: tuple[Any, ...], value: Any) -> bytes:
    return json.dumps(replaced(data, at, value)).encode()


def packed(arrays: dict[str, Any], facts: Any = None, at: tuple[Any, ...] = (), value: Any = None) -> bytes:
    if at:
        arrays = {**arrays, "__facts__": np.frombuffer(texted(facts, at, value), np.uint8)}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def use(folder: Path, file: str, env: Any, budget: int) -> None:
    """Call everything that reads the file; ignore input errors."""

    def report() -> None:
        write_report(adagoal.load(folder), folder)

    def play() -> None:
        adagoal.play(folder, episodes=1, env=env)

    def resume() -> None:
        adagoal.resume(folder, budget, env=env)

    def audit() -> None:
        adagoal.audit(adagoal.load(folder))

    works = {"view.json": (report,), "policies.npz": (play, audit, report), "result.json": (play, audit)}
    for work in works.get(file, (play, resume)):
        with contextlib.suppress(adagoal.InputError):
            work()


def use_in_child_process(folder: Path, file: str, env: Any, budget: int) -> str:
    """Return how the child process failed, or an empty string."""
    child = os.fork()
    if not child:
        signal.setitimer(signal.ITIMER_PROF, TIME_LIMIT)
        signal.alarm(10 * TIME_LIMIT)
        try:
            np.seterr(all="ignore")
            use(folder, file, env, budget)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return "raised" if os.WEXITSTATUS(status) else ""


def main(seed: int, wanted: int) -> int:
    """Try ``wanted`` forgeries and return the number of failures."""
    folders.save_interval_elapsed = lambda since, cost: True
    os.fsync = lambda handle: None
    rng, wrong = random.Random(seed), 0
    with tempfile.TemporaryDirectory() as place:
        cases: list[tuple[str, Path, Any, int, str, str, Callable[[], bytes]]] = []
        names = rng.sample(sorted(CASES), len(CASES) if wanted > 300 else 2)
        for name in names:
            arguments = dict(CASES[name])
            env = arguments.pop("env")
            make = env if callable(env) else None
            path = Path(place) / name
            found = adagoal.explore(env if make is None else make(), **{**arguments, "budget": 700}, out=path)
            write_report(found, path)
            warm = shutil.copytree(path, Path(place) / "warm" / name)
            for file in ("policies.npz", "checkpoint"):
                use(warm, file, make and make(), found.steps + 50)  # compiles
            cases += [(name, path, make, found.steps + 50, *one) for one in forgeries(path, rng)]
        print(f"{len(cases)} forgeries of {', '.join(names)}", flush=True)
        chosen = rng.sample(cases, min(wanted, len(cases)))
        for name, path, make, budget, what, file, content in chosen:
            forged = shutil.copytree(path, Path(place) / "forged")
            damaged_folders.forged(forged, file, content())
            problem = use_in_child_process(forged, file, make and make(), budget)
            if problem:
                wrong += 1
                print(f"{name}: {what}: {problem}", flush=True)
            shutil.rmtree(forged)
        assert not damaged_folders.EVIL.exists()
    print(f"{len(chosen)} of {len(cases)} tried: {wrong} failures")
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(int(sys.argv[1]), int(sys.argv[2])), 1))
