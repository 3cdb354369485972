"""Numba for this package: decorators, removal of outdated cache files, compilation before a run, and threads.

*The cache.* Numba compiles a function again when the file of that function changes, but not when a function that it
calls, and has inlined, changes in another file. So this module removes the cache entries of every module that imports a
changed module, directly or through others.

*Before a run* several processes that share the cache compile what it lacks. ``signatures.json`` lists, per group, the
compiled functions that a small run calls and the types of their arguments. A group is a method, or something else that
calls compiled functions. The list only saves time: a run compiles what the list lacks when it first calls it.
``tests/test_precompilation.py`` writes the list and checks it.
"""

from __future__ import annotations

import ast
import contextlib
import fcntl
import functools
import hashlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, wait
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from adagoal.core import user_code

if TYPE_CHECKING:
    import subprocess

_P = ParamSpec("_P")
_T = TypeVar("_T")

COMPILED_FUNCTIONS: dict[str, Any] = {}  # every function under @compiled, by module.name
# Without these a function would take the options of whichever compiled function called it first in this process, and
# results would depend on what was compiled before.
_OWN_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": False, "error_model": "python", "forceinline": False}

SIGNATURE_FILE = Path(__file__).with_name("signatures.json")
MAX_PROCESSES = 8  # each needs 200 MB, and the largest function takes a quarter of the time of a small run
MIN_FUNCTIONS = 5  # a process takes a second to start, in which this one compiles a few small functions

# Names of functions (module.name) with the types of their arguments, as parse_type reads them, once per signature.
Signatures = Mapping[str, Sequence[Sequence[Any]]]


@functools.cache
def _import_numba() -> Any:
    """Import Numba, but not scipy.linalg, which takes a tenth of the time of a small run.

    Numba imports it only to learn whether it exists. Compiled code that calls it imports it then.
    """
    # In a function, because the command imports this module before it prints its help. Any: two options have no type.
    # While this is in the list of modules, Numba finds it there and looks no further.
    placeholder = sys.modules.setdefault(name := "scipy.linalg.cython_blas", ModuleType("placeholder"))
    try:
        importlib.import_module("numba.np.arraymath")
    finally:
        if placeholder.__name__ == "placeholder":
            del sys.modules[name]
    return importlib.import_module("numba")


@overload
def compiled(function: Callable[_P, _T]) -> Callable[_P, _T]: ...
@overload
def compiled(**options: Any) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]: ...
def compiled(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a function that Python calls. Its machine code is cached, and runs without the interpreter lock.

    Use it as ``@compiled`` or ``@compiled(error_model="numpy")``; ``options`` are those of ``numba.njit``.
    """
    if function is None:
        return functools.partial(compiled, **options)
    njit = _import_numba().njit
    # The C entry is for function pointers, which adagoal does not use.
    dispatcher = njit(cache=True, no_cfunc_wrapper=True, **_OWN_OPTIONS | options)(function)
    COMPILED_FUNCTIONS[f"{function.__module__}.{function.__name__}"] = dispatcher
    return dispatcher


@overload
def compiled_helper(function: Callable[_P, _T]) -> Callable[_P, _T]: ...
@overload
def compiled_helper(**options: Any) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]: ...
def compiled_helper(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Let compiled functions call this function; ``options`` are those of ``numba.njit``.

    Called from Python it runs as Python code. A compiled entry for Python would convert models of a dozen arrays, which
    takes longer to compile than most helpers. The code of a helper is cached as a part of its callers only: two
    processes that cache one function for different types at the same time can mix up its entries.
    """
    if function is None:
        return functools.partial(compiled_helper, **options)
    njit = _import_numba().njit
    from numba import types
    from numba.extending import typeof_impl

    options = _OWN_OPTIONS | options
    # Never compiled by itself, and Numba inlines only its own objects.
    if options.get("inline") == "always":
        return njit(**options)(function)
    typeof_impl.register(CompiledHelper, lambda helper, _: types.Dispatcher(helper.dispatcher))
    return CompiledHelper(function, njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)(function))


class CompiledHelper:
    """A function that compiled functions call as Numba's ``dispatcher``, and Python as Python code.

    Python must not call the dispatcher: without an entry for Python, Numba crashes the process.
    """

    def __init__(self, function: Callable[..., Any], dispatcher: Any) -> None:
        self.py_func, self.dispatcher = function, dispatcher
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        """Run the function as Python code."""
        return self.py_func(*arguments)


def remove_stale_numba_cache(package: Path) -> None:
    """Remove the cache entries of each module that are older than the module or than anything it imports."""
    sources = {path: path.stat().st_mtime_ns for path in package.rglob("*.py")}
    entries = list(_numba_cache_entries({path.parent for path in sources}))
    newest = max(sources.values(), default=0)
    # The common case: no file has changed. Parsing all imports would delay every start of the command.
    if all(written >= newest for _, _, written in entries):
        return
    changed = _latest_source_changes(package, sources)
    for entry, source, written in entries:
        # An entry whose source is gone may belong to a renamed module: compared with the newest file, it goes too.
        with contextlib.suppress(OSError):  # another process was faster, or the folder is read-only
            if written < changed.get(source, newest):
                entry.unlink()
            else:
                # Marked as checked, so the next start need not parse the imports again. Not with the current time: a
                # file that changes meanwhile must still be newer than the entry.
                os.utime(entry, ns=(newest, newest))


def is_numba_cache_empty(package: Path) -> bool:
    """Return whether Numba has cached nothing for this folder of modules, without importing Numba."""
    # If the variable is set, Numba reads no other folder.
    override = os.environ.get("NUMBA_CACHE_DIR", "")
    return not any(str(entry).startswith(override) for entry, _, _ in _numba_cache_entries({package}))


def _numba_cache_entries(folders: set[Path]) -> Iterator[tuple[Path, Path, int]]:
    """Yield (index file, source file, modification time) of everything that Numba has cached for these folders."""
    override = os.environ.get("NUMBA_CACHE_DIR")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for folder in folders:
        # Numba's own naming of the folder that stands for a source folder.
        name = f"{folder.name}_{hashlib.sha1(str(folder).encode(), usedforsecurity=False).hexdigest()}"
        cached = folder / "__pycache__", Path(cache, "numba", name), *([Path(override, name)] if override else [])
        for entry in (entry for path in cached for entry in path.glob("*.nbi")):  # MODULE.FUNCTION-LINE.VERSION.nbi
            with contextlib.suppress(OSError):
                yield entry, folder / f"{entry.name.partition('.')[0]}.py", entry.stat().st_mtime_ns


def _latest_source_changes(package: Path, sources: dict[Path, int]) -> dict[Path, int]:
    """Return the latest modification time among each file and everything it imports from the package."""
    imports = {path: {file for file in _imported_files(package, path) if file in sources} for path in sources}
    latest = {}
    for path in sources:
        reached, todo = {path}, [path]
        while todo:
            new = imports[todo.pop()] - reached
            reached |= new
            todo += new
        latest[path] = max(sources[file] for file in reached)
    return latest


def _imported_files(package: Path, path: Path) -> Iterator[Path]:
    """Yield the files that the imports of one file may name: ``from a.b import c`` is a/b.py or a/b/c.py."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            if name.split(".")[0] == package.name:
                yield package.parent.joinpath(*name.split(".")).with_suffix(".py")


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
        # One entry per function tells enough: stale ones are removed, and a run compiles what is missing.
        if folder not in cached:
            cached[folder] = {path.name.rpartition("-")[0] for path in Path(folder).glob("*.nbi")}
        if ".".join(name.split(".")[-2:]) not in cached[folder]:
            missing.append(name)
    return missing


def compile_in_processes(signatures: Signatures) -> int:
    """Compile functions in other processes, and return the number of signatures that were not in the cache.

    Failures are ignored here: they come up again, with their traceback, when a run calls the function.
    """
    # Here, because the command imports this module before it prints its help.
    from concurrent.futures import ThreadPoolExecutor

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
    import subprocess

    numba: Any = importlib.import_module("numba")
    package = str(Path(__file__).parents[2])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, **user_code.safe_path_variables(), "PYTHONPATH": os.pathsep.join(paths)}
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
    return COMPILED_FUNCTIONS.get(name)


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


def run_jobs_in_threads(jobs: Sequence[Callable[[], None]], threads: Executor | None) -> None:
    """Run jobs that release the interpreter lock, in ``threads`` or, if None, one after the other."""
    if threads is None:
        for job in jobs:
            job()
        return
    futures = [threads.submit(job) for job in jobs]
    try:
        for future in futures:
            future.result()
    finally:
        # Also after an exception: the jobs write into arrays of the caller, which must not change after the return.
        wait(futures)
