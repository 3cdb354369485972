"""Write files atomically, read them without executing code, and lock folders.

If the system refuses a write (a full disk, a read-only folder, a name that is too long), the error is one line that
names the file, and nothing is left behind. A read knows the size before it reads, and accepts only plain data.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core import file_formats
from adagoal.core.errors import InputError

MAX_JSON_BYTES = 2**27  # of one file; a parsed object takes about ten times as much memory

FileContent = Callable[[IO[bytes]], object]  # a function that writes the content of a file
FileContents = dict[str, FileContent]  # by the names of the files


def bytes_content(data: bytes) -> FileContent:
    """Return bytes as the content of a file."""
    return lambda file: file.write(data)


def json_content(data: object) -> FileContent:
    """Return JSON; numbers that JSON cannot hold (inf, nan) are an error, so write None for them."""
    return lambda file: file.write(_encode_json(data, allow_infinity=False, indent=1) + b"\n")


def arrays_content(arrays: Mapping[str, NDArray[Any]], facts: object = None, compress: bool = True) -> FileContent:
    """Return named arrays and, unless it is None, a JSON-ready object, in one ``.npz``."""

    def write(file: IO[bytes]) -> None:
        entries = dict(arrays)
        if facts is not None:
            encoded = np.frombuffer(_encode_json(facts, allow_infinity=True), np.uint8)
            entries = {"__facts__": encoded, **entries}
        file_formats.write_npz(file, entries, compress)

    return write


def _encode_json(data: object, allow_infinity: bool, **options: Any) -> bytes:
    """Encode JSON; raise ``ValueError`` for data that could not be read again (NaN, deep nesting, a huge number)."""
    try:
        encoded = json.dumps(data, default=_numpy_to_plain, **options).encode()
    except TypeError as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("nested too deep") from None
    # Read it back now. A checkpoint that the reader refuses would be noticed only when the run is resumed.
    parse_json(encoded, allow_infinity)
    return encoded


def _numpy_to_plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} {value!r} cannot be kept in a file")


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_atomically(path, bytes_content(text.encode()))


def write_json(path: Path, data: object) -> None:
    """Write JSON atomically."""
    write_atomically(path, json_content(data))


def write_atomically(path: Path, content: FileContent) -> None:
    """Write a file that gets its name only when it is complete."""
    with report_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # In the same folder, because a rename is atomic only within one file system.
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                content(file)
                file.flush()
                # Before the rename: some file systems make the new name durable before the data, so a power failure
                # would leave an empty file under the old name.
                os.fsync(file.fileno())
            Path(temporary).chmod(0o644)  # mkstemp makes files that only their owner can read
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def remove_partial_files(folder: Path) -> None:
    """Remove the temporary files that :func:`write_atomically` leaves when its process is killed."""
    with contextlib.suppress(OSError):  # a file that cannot be removed does no harm
        for path in folder.iterdir():
            # mkstemp's eight letters, after a suffix that we write: a user's own .part file must stay.
            if re.fullmatch(r".+\.(json|npz|html|png|csv|md)[a-z0-9_]{8}\.part", path.name):
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def report_write_errors(path: Path) -> Iterator[None]:
    """Turn errors while a file is written into one line that names it."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError) as error:  # ValueError: content that a file cannot hold, or a name it cannot have
        reason = error.strerror if isinstance(error, OSError) else None
        raise InputError(f"{path}: cannot be written ({reason or error})") from None


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    # Syncing a file covers its data, not its name: a power failure may still lose a rename.
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: Path) -> Any:
    """Read JSON; a missing or damaged file is an :class:`InputError`."""
    with open_regular_file(path) as (file, size), report_read_errors(path):
        return parse_json(file.read(min(size, MAX_JSON_BYTES + 1)))


def take_out_facts(arrays: dict[str, NDArray[Any]]) -> Any:
    """Remove and return the JSON-ready object stored with arrays. It may hold infinities."""
    return parse_json(arrays.pop("__facts__").tobytes(), allow_infinity=True)


@contextlib.contextmanager
def open_regular_file(path: Path) -> Iterator[tuple[IO[bytes], int]]:
    """Open a file for reading, and return its size too; refuse pipes and devices, which could hang the reader."""
    try:
        # Non-blocking, because opening a pipe would wait for a writer. The kind of file is tested on the open handle:
        # between a test of the name and the opening, a pipe could replace the file.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not readable ({getattr(error, 'strerror', None) or error})") from None
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        raise InputError(f"{path}: not readable (not a regular file)")
    with os.fdopen(handle, "rb") as file:
        yield file, status.st_size


@contextlib.contextmanager
def report_read_errors(path: Path) -> Iterator[None]:
    """Turn errors while a file is read into one line that names it."""
    try:
        yield
    except InputError:
        raise
    # Zip, zlib, header and key errors mean the same to the user, so only our own ValueErrors are quoted.
    except Exception as error:
        ours = isinstance(error, ValueError) and not isinstance(error, UnicodeError | json.JSONDecodeError)
        reason = str(error)[:200] if ours else type(error).__name__
        raise InputError(f"{path}: damaged or not readable ({reason})") from None


def parse_json(data: bytes, allow_infinity: bool = False) -> Any:
    """Parse JSON; refuse repeated keys, NaN, infinities (unless allowed), huge numbers and deep nesting."""

    def parse_constant(name: str) -> float:
        if not allow_infinity or name == "NaN":
            raise ValueError(f"holds {name}")
        return math.inf if name == "Infinity" else -math.inf

    if len(data) > MAX_JSON_BYTES:
        raise ValueError(f"larger than {MAX_JSON_BYTES} bytes")
    max_depth = 32
    try:
        value = json.loads(
            data.decode(),
            object_pairs_hook=_dict_of_unique_keys,
            parse_constant=parse_constant,
            parse_int=_parse_integer,
            parse_float=_parse_finite_float,
        )
    except RecursionError:
        raise ValueError(f"nested more than {max_depth} deep") from None
    # Level by level, without recursion. Deeper values could exhaust the stack of the recursive checks that follow.
    level = [value]
    for _ in range(max_depth):
        inner = [list(x.values()) if isinstance(x, dict) else x for x in level if isinstance(x, dict | list)]
        level = [y for x in inner for y in x]
    if level:
        raise ValueError(f"nested more than {max_depth} deep")
    # Half of a surrogate pair is legal in JSON, but could not be printed or saved. Encoding it raises an error.
    if b"\\ud" in data.lower():
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _dict_of_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Readers disagree on which of two equal keys counts, so such a file could mean two things.
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("an object has a key twice")
    return entries


def _parse_integer(digits: str) -> int:
    # int() takes quadratic time. 40 digits are enough for the 128 bits of a random generator's state.
    if len(digits) > 40:
        raise ValueError(f"holds a number of {len(digits)} digits")
    return int(digits)


def _parse_finite_float(digits: str) -> float:
    # json reads 1e999 as infinity without calling parse_constant.
    value = float(digits) if len(digits) <= 400 else math.inf
    if math.isinf(value):
        raise ValueError("holds a number that is too large or too long")
    return value


_locked_handles: set[int] = set()


def _release_locks_after_fork() -> None:
    while _locked_handles:
        os.close(_locked_handles.pop())


# A lock lives as long as any process holds the file open. A forked worker would keep that of a run that was killed.
os.register_at_fork(after_in_child=_release_locks_after_fork)


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Keep other runs out of a folder while this one writes there; a killed run leaves no lock behind.

    The folder is created if it does not exist. Folders created here are removed if they are empty at the end.
    """
    created = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    with report_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    _locked_handles.add(handle)
    try:
        _acquire_lock(folder, handle)
        yield
    finally:
        # Not in a process that was forked in the block: the folder and the lock belong to its parent.
        if handle in _locked_handles:
            try:
                # While the lock is held: afterwards another run may use the folder, which is still empty.
                with contextlib.suppress(OSError):
                    for path in created:
                        path.rmdir()
            finally:
                _locked_handles.discard(handle)
                os.close(handle)


def is_folder_locked(folder: Path) -> bool:
    """Return True if a run is writing in a folder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:  # another error: a file system without locks
        return isinstance(error, BlockingIOError)
    finally:
        os.close(handle)
    return False


def _acquire_lock(folder: Path, handle: int) -> None:
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.05)  # is_folder_locked, in another process, may have held it for a moment
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The last holder may have removed the folder between our opening and our locking.
        is_ours = folder.exists() and os.path.samestat(os.fstat(handle), folder.stat())
    except BlockingIOError:
        is_ours = False
    except OSError:
        is_ours = True  # a file system without locks
    if not is_ours:
        raise InputError(f"{folder}: another run is writing there; wait for it, or give another folder")
