"""Compiled code: the caches of Numba and JAX, and threads for compiled functions.

*Numba* compiles a function again when the file of that function changes, but not when a function that it calls, and has
inlined, changes in another file. So this module removes the cache entries of every module that imports a changed
module, directly or through others.

*JAX* keeps compiled programs in ``~/.cache/adagoal`` (or ``$XDG_CACHE_HOME/adagoal``), in one folder per kind of
processor: machines may share a home folder, and code for one processor may crash on another. JAX names an entry after
the program, its own version, the device and the compiler options. A kill or a full disk leaves incomplete entries; this
module removes them.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib
import os
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, wait
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, overload

_P = ParamSpec("_P")
_T = TypeVar("_T")

COMPILED_FUNCTIONS: dict[str, Any] = {}  # every function under @compiled, by module.name
# Without these a function would take the options of whichever compiled function called it first in this process, and
# results would depend on what was compiled before.
_OWN_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": False, "error_model": "python", "forceinline": False}


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
    # Here, because the command imports this module before it prints its help. Any: two options have no type.
    njit: Any = importlib.import_module("numba").njit

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
    from numba import types
    from numba.extending import typeof_impl

    njit: Any = importlib.import_module("numba").njit
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


def enable_jax_cache(min_compile_seconds: float = 0.1) -> None:
    """Let JAX keep programs that took this long to compile; do nothing if the user's cache folder is not writable.

    The setting ``JAX_COMPILATION_CACHE_DIR`` wins over this function. ``JAX_ENABLE_COMPILATION_CACHE=false`` switches
    the cache off.
    """
    import jax

    config: Any = jax.config
    if config.jax_compilation_cache_dir is not None:
        return
    try:
        folder = _jax_cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        _remove_broken_entries(folder)
    except (OSError, RuntimeError):  # the home folder is missing or read-only
        return
    # JAX compiles a program again if its entry cannot be read, so the user need not act on the warning.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")
    config.update("jax_compilation_cache_dir", str(folder))
    config.update("jax_persistent_cache_min_compile_time_secs", min_compile_seconds)


def _jax_cache_folder() -> Path:
    import llvmlite.binding as llvm

    processor = f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"
    given = os.environ.get("XDG_CACHE_HOME", "")
    cache = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    return cache / "adagoal" / hashlib.sha256(processor.encode()).hexdigest()[:12]


def _remove_broken_entries(folder: Path) -> None:
    # JAX never overwrites an entry, so a broken one would make every later process compile again.
    for path in folder.glob("*-cache"):
        with contextlib.suppress(OSError):  # another process removed it, or the folder is read-only
            entry, stream = path.read_bytes(), zlib.decompressobj()
            # JAX compresses with zstandard if that is installed, else with zlib. Only a zlib stream, which starts with
            # this byte, can be checked with the standard library.
            is_zlib = entry[:1] == b"\x78"
            if is_zlib:
                with contextlib.suppress(zlib.error):
                    stream.decompress(entry)
            if not (stream.eof if is_zlib else entry):
                path.unlink()


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
