"""The cache of JAX's compiled programs, for the next process.

JAX keeps them in ``~/.cache/adagoal`` (or ``$XDG_CACHE_HOME/adagoal``), in one folder per kind of processor: machines
may share a home folder, and code for one processor may crash on another. JAX names an entry after the program, its own
version, the device and the compiler options. A kill or a full disk leaves incomplete entries; this module removes them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import warnings
import zlib
from pathlib import Path
from typing import Any

import jax
import llvmlite.binding as llvm


def enable_jax_cache(min_compile_seconds: float = 0.1) -> None:
    """Let JAX keep programs that took this long to compile; do nothing if the user's cache folder is not writable.

    The setting ``JAX_COMPILATION_CACHE_DIR`` wins over this function. ``JAX_ENABLE_COMPILATION_CACHE=false`` switches
    the cache off.
    """
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
