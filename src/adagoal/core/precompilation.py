"""Compile functions before a run needs them, in several processes that share Numba's cache.

``signatures.json`` lists, per group, the compiled functions that a small run calls and the types of their arguments. A
group is a method, or something else that calls compiled functions. The list only saves time: a run compiles what the
list lacks when it first calls it. ``tests/test_precompilation.py`` writes the list and checks it.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from adagoal.core import compiled_code, safe_imports

SIGNATURE_FILE = Path(__file__).with_name("signatures.json")
MAX_PROCESSES = 8  # each needs 200 MB, and the largest function takes a quarter of the time of a small run
MIN_FUNCTIONS = 5  # a process takes a second to start, in which this one compiles a few small functions

# Names of functions (module.name) with the types of their arguments, as parse_type reads them, once per signature.
Signatures = Mapping[str, Sequence[Sequence[Any]]]


def read_signatures(*groups: str) -> dict[str, list[list[Any]]]:
    """Return the signatures of these groups, or of all."""
    listed = json.loads(SIGNATURE_FILE.read_bytes())
    signatures: dict[str, list[list[Any]]] = {}
    for group in groups or listed:
        for name, *types in listed.get(group, ()):
            known = signatures.setdefault(name, [])
            if types not in known:
                known.append(types)
    return signatures


def compile_group(group: str) -> None:
    """Compile what a small run of the group needs, unless Numba's cache has it."""
    signatures = read_signatures(group)
    missing = {name: signatures[name] for name in find_missing(signatures)}
    if len(missing) >= MIN_FUNCTIONS:
        compile_in_processes(missing)


def find_missing(names: Iterator[str] | Signatures) -> list[str]:
    """Return the functions without an entry in Numba's cache."""
    cached: dict[str, set[str]] = {}
    missing = []
    for name in names:
        function = find_function(name)
        # It is gone if the list is outdated. With NUMBA_DISABLE_JIT it is a Python function, and nothing is compiled.
        if not hasattr(function, "stats"):
            continue
        folder = function.stats.cache_path
        # One entry per function tells enough: compiled_code removes stale ones, and a run compiles what is missing.
        if folder not in cached:
            cached[folder] = {path.name.rpartition("-")[0] for path in Path(folder).glob("*.nbi")}
        if ".".join(name.split(".")[-2:]) not in cached[folder]:
            missing.append(name)
    return missing


def compile_in_processes(signatures: Signatures) -> int:
    """Compile functions in other processes, and return the number of signatures that were not in the cache.

    Failures are ignored here: they come up again, with their traceback, when a run calls the function.
    """
    start, waiting, n_compiled = time.monotonic(), list(signatures.items()), list[int]()
    _show(f"compiling, first run only: 0 of {len(signatures)} functions")
    processes = [_start_process() for _ in range(min(n_processes(), len(signatures)))]

    def feed(process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        # Until nothing is waiting (IndexError), or the process has ended (OSError, or an empty answer).
        with contextlib.suppress(IndexError, OSError, ValueError):
            while True:
                print(json.dumps(waiting.pop(0)), file=process.stdin, flush=True)
                n_compiled.append(int(process.stdout.readline()))

    with ThreadPoolExecutor(MAX_PROCESSES) as threads:
        running = {threads.submit(feed, process) for process in processes}
        try:
            while running:
                _, running = wait(running, timeout=0.5)
                done, seconds = len(n_compiled), time.monotonic() - start
                _show(f"compiling, first run only: {done} of {len(signatures)} functions, {seconds:.0f} s")
        finally:
            for process in processes:
                process.kill()
    for process in processes:
        with contextlib.suppress(OSError), process:  # what was not yet written is for a process that has ended
            pass
    return sum(n_compiled)


def n_processes() -> int:
    """Return the number of processes that compile at the same time."""
    return min(len(os.sched_getaffinity(0)), MAX_PROCESSES)


def _start_process() -> subprocess.Popen[str]:
    numba: Any = importlib.import_module("numba")
    package = str(Path(__file__).parents[2])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, **safe_imports.safe_path_variables(), "PYTHONPATH": os.pathsep.join(paths)}
    if numba.config.CACHE_DIR:
        variables["NUMBA_CACHE_DIR"] = numba.config.CACHE_DIR
    return subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import serve_requests; serve_requests()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=variables,
        text=True,
        start_new_session=True,  # Ctrl-C reaches only this process, which then kills the others
    )


def serve_requests() -> None:
    """In another process: compile one function per line of standard input, and answer how many signatures were new."""
    answers, sys.stdout = sys.stdout, sys.stderr
    _lock_cache_writes()
    for line in sys.stdin:
        name, signatures = json.loads(line)
        answers.write(f"{compile_function(name, signatures)}\n")
        answers.flush()


def _lock_cache_writes() -> None:
    """Let one process at a time write into Numba's cache, from now on.

    Numba reads the index of a function, adds an entry, and writes both. Two processes that do so at the same time for
    different types can give two entries the same file.
    """
    cache: Any = importlib.import_module("numba.core.caching").FunctionCache
    save = cache.save_overload

    def save_locked(self: Any, signature: Any, result: Any) -> None:
        with SIGNATURE_FILE.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            save(self, signature, result)

    cache.save_overload = save_locked


def compile_function(name: str, signatures: Sequence[Sequence[Any]]) -> int:
    """Compile a function for these types and cache it; return the number of signatures that the cache did not have."""
    function = find_function(name)
    if function is None:
        return 0
    for types in signatures:
        with contextlib.suppress(Exception):
            function.compile(tuple(map(parse_type, types)))
    return sum(function.stats.cache_misses.values())


def find_function(name: str) -> Any:
    """Return the compiled function of this name, and import its module if necessary; None if the list is outdated."""
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module(name.rpartition(".")[0])
    return compiled_code.COMPILED_FUNCTIONS.get(name)


_watchers: list[Callable[[str], None]] = []  # those of the displays that are open


@contextlib.contextmanager
def watch_compilation(show: Callable[[str], None]) -> Iterator[None]:
    """In this block, call ``show`` with a line of text whenever a function is compiled."""
    from numba.core import event

    class Listener(event.Listener):
        def on_start(self, event: Any) -> None:
            _show(f"compiling, first run only: {event.data['dispatcher'].__name__}")

        def on_end(self, event: Any) -> None:
            pass

    _watchers.append(show)
    try:
        with event.install_listener("numba:compile", Listener()):
            yield
    finally:
        _watchers.remove(show)


def _show(line: str) -> None:
    # Only the innermost display: two would draw over each other.
    if _watchers:
        _watchers[-1](line)


def parse_type(text: Any) -> Any:
    """Return the Numba type of JSON: "float64 2C" for arrays, lists for tuples, {class: fields} for named tuples."""
    types: Any = importlib.import_module("numba.types")
    if isinstance(text, dict):
        ((name, fields),) = text.items()
        module, _, class_name = name.rpartition(".")
        cls = getattr(importlib.import_module(module), class_name)
        return types.BaseTuple.from_types(list(map(parse_type, fields)), cls)
    if isinstance(text, list):
        return types.BaseTuple.from_types(list(map(parse_type, text)))
    name, *array = text.split()
    scalar = {"bool": types.boolean, "NumPyRandomGeneratorType": types.npy_rng}.get(name) or getattr(types, name)
    if not array:
        return scalar
    return types.Array(scalar, int(array[0][:-1]), array[0][-1], readonly=len(array) > 1)
