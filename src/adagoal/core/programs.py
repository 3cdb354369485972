"""Programs that JAX compiles are kept in a folder of the user's, so that the next process need not compile them again.

JAX keeps them under ``JAX_COMPILATION_CACHE_DIR`` where that is set, and then nothing is done here. Otherwise they are
in ``~/.cache/adagoal`` (or ``$XDG_CACHE_HOME/adagoal``), apart for every kind of processor: homes are shared by
machines, and what was compiled for one may not run on another. What JAX itself makes of a program (its own version,
the device, the compiler's options) is part of an entry's name. ``JAX_ENABLE_COMPILATION_CACHE=false`` switches it off.

What cannot be read is compiled again, and what cannot be written is not kept; neither is worth a word. JAX does not
write an entry anew, so that one that was cut off (a kill, a full disk) would never be of use again: it is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import warnings
import zlib
from pathlib import Path
from typing import Any

MIN_COMPILE_SECONDS = 0.1
"""Seconds of compilation from which on a program is kept."""


def enable_jax_cache() -> None:
    """Keep programs from now on, in this process. Where there is no place for them nothing changes."""
    import jax

    config: Any = jax.config
    if config.jax_compilation_cache_dir is not None:
        return
    try:
        folder = _jax_cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        _remove_broken_entries(folder)
    except (OSError, RuntimeError):  # a home that cannot be written, or none at all
        return
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")
    config.update("jax_compilation_cache_dir", str(folder))
    config.update("jax_persistent_cache_min_compile_time_secs", MIN_COMPILE_SECONDS)


def _jax_cache_folder() -> Path:
    import llvmlite.binding as llvm

    kind = f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"
    home = os.environ.get("XDG_CACHE_HOME", "")
    where = Path(home) if os.path.isabs(home) else Path.home() / ".cache"
    return where / "adagoal" / hashlib.sha256(kind.encode()).hexdigest()[:12]


def _remove_broken_entries(folder: Path) -> None:
    for path in folder.glob("*-cache"):
        with contextlib.suppress(OSError):  # another process may have removed it, or nobody can
            if not _is_complete_entry(path.read_bytes()):
                path.unlink()


def _is_complete_entry(entry: bytes) -> bool:
    """Whether what JAX compressed is all there; of another format than zlib's only that it is not empty."""
    if entry[:1] != b"\x78":
        return bool(entry)
    stream = zlib.decompressobj()
    try:
        stream.decompress(entry)
    except zlib.error:
        return False
    return stream.eof
