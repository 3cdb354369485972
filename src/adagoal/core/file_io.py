"""Files that are either whole or not there, and reads that never execute code, never hang and never take too much.

A write goes to a file beside, is synced, and gets its name only once it is whole; what the system refuses (a full disk,
a read-only folder, a name that is too long) is one line that names the file, and nothing is left behind. A read takes
regular files only (a pipe or a device would hang), knows the size before it reads, and refuses what is not plain data.
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
from typing import IO, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from adagoal.core import file_formats
from adagoal.core.errors import InputError

MAX_JSON_BYTES = 2**27
"""Bytes of the largest JSON file that is read."""
MAX_JSON_DEPTH = 32
MAX_JSON_DIGITS = 40
"""Digits of the largest whole number: enough for the 128 bits of a random generator's state."""

PARTIAL_FILE_PATTERN = re.compile(r".+\.(json|npz|html|png|csv|md)[a-z0-9_]{8}\.part")
"""The name of a file that is being written by :func:`write_atomically`."""

FileContent = Callable[[IO[bytes]], object]
"""Content of a file: a function that writes it."""
FileContents = dict[str, FileContent]
"""Contents of several files by their names."""

# --- what a file holds ---


def text_content(text: str) -> FileContent:
    """A text, in UTF-8."""
    return lambda file: file.write(text.encode())


def bytes_content(data: bytes) -> FileContent:
    """Bytes, as they are."""
    return lambda file: file.write(data)


def json_content(data: object) -> FileContent:
    """JSON; numbers that JSON cannot hold (inf, nan) are an error, so write None for them."""
    return lambda file: file.write(_encode_plain_json(data, infinite=False, indent=1) + b"\n")


def arrays_content(arrays: Mapping[str, NDArray[Any]], facts: object = None, compress: bool = True) -> FileContent:
    """Named arrays and, unless it is None, a JSON-ready object, in one ``.npz``."""

    def write(file: IO[bytes]) -> None:
        encoded = (
            {} if facts is None else {"__facts__": np.frombuffer(_encode_plain_json(facts, infinite=True), np.uint8)}
        )
        file_formats.write_npz(file, {**encoded, **arrays}, compress)

    return write


def _encode_plain_json(data: object, infinite: bool, **options: Any) -> bytes:
    """JSON; NumPy's numbers and arrays become plain ones, and nothing else is bent into shape.

    What could not be read again (NaN, deep nesting, a huge number) is not written.
    """
    try:
        encoded = json.dumps(data, default=_numpy_to_plain, **options).encode()
    except TypeError as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        _raise_too_deep()
    parse_json(encoded, infinite)
    return encoded


def _numpy_to_plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} {value!r} cannot be kept in a file")


# --- writing ---


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_atomically(path, text_content(text))


def write_json(path: Path, data: object) -> None:
    """Write JSON atomically."""
    write_atomically(path, json_content(data))


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], facts: object, compress: bool = True) -> None:
    """Write named arrays and a JSON-ready object into one .npz, atomically."""
    write_atomically(path, arrays_content(arrays, facts, compress))


def write_atomically(path: Path, write: FileContent) -> None:
    """Let ``write`` fill a file that gets its name only once it is whole; what the system refuses is one clear line."""
    with report_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(0o644)  # mkstemp makes files that only their owner can read
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def remove_partial_files(folder: Path) -> None:
    """Remove the files that :func:`write_atomically` left unfinished in a folder when its process was killed."""
    with contextlib.suppress(OSError):  # what cannot be removed does no harm
        for path in folder.iterdir():
            if PARTIAL_FILE_PATTERN.fullmatch(path.name):
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def report_write_errors(path: Path) -> Iterator[None]:
    """What goes wrong while this file is written is one line that names it."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError) as error:  # ValueError: content that a file cannot hold, or a name it cannot have
        reason = error.strerror if isinstance(error, OSError) else None
        raise InputError(f"{path}: cannot be written ({reason or error})") from None


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last: without this a file's new name may be lost with the power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- reading ---


def read_json(path: Path) -> Any:
    """Read JSON; a missing or damaged file is one clear line."""
    with open_regular_file(path) as (file, size), report_read_errors(path):
        return parse_json(file.read(min(size, MAX_JSON_BYTES + 1)))


def read_arrays(path: Path) -> tuple[dict[str, NDArray[Any]], Any]:
    """The inverse of :func:`write_arrays`; pickled objects are refused."""
    with open_regular_file(path) as (file, size), report_read_errors(path):
        arrays = file_formats.read_npz(file, size)
        return arrays, take_out_facts(arrays)


def take_out_facts(arrays: dict[str, NDArray[Any]]) -> Any:
    """Take the JSON-ready object out of the arrays that were read with it. It may hold infinities."""
    return parse_json(arrays.pop("__facts__").tobytes(), infinite=True)


@contextlib.contextmanager
def open_regular_file(path: Path) -> Iterator[tuple[IO[bytes], int]]:
    """A file opened for reading, and its size; pipes and devices, which could hang the reader, are refused."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for a writer.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not readable ({getattr(error, 'strerror', None) or error})") from None
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        os.close(handle)
        raise InputError(f"{path}: not readable (not a regular file)")
    with os.fdopen(handle, "rb") as file:
        yield file, found.st_size


@contextlib.contextmanager
def report_read_errors(path: Path) -> Iterator[None]:
    """What goes wrong while this file is read is one line that names it."""
    try:
        yield
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{path}: damaged or not readable ({_short_error_text(error)})") from None
    except Exception as error:  # zip, zlib, header and key errors all mean the same to the user
        raise InputError(f"{path}: damaged or not readable ({type(error).__name__})") from None


def _short_error_text(error: ValueError) -> str:
    named = isinstance(error, UnicodeError | json.JSONDecodeError)
    return type(error).__name__ if named else str(error)[:200]


def parse_json(data: bytes, infinite: bool = False) -> Any:
    """JSON as data: no key twice, no NaN, no infinity (unless wanted), no huge number, no deep nesting."""

    def constant(name: str) -> float:
        if not infinite or name == "NaN":
            raise ValueError(f"holds {name}")
        return math.inf if name == "Infinity" else -math.inf

    if len(data) > MAX_JSON_BYTES:
        raise ValueError(f"larger than {MAX_JSON_BYTES} bytes")
    try:
        value = json.loads(
            data.decode(),
            object_pairs_hook=_dict_of_unique_keys,
            parse_constant=constant,
            parse_int=_parse_integer,
            parse_float=_parse_finite_float,
        )
    except RecursionError:
        _raise_too_deep()
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        inner = [list(x.values()) if isinstance(x, dict) else x for x in level if isinstance(x, dict | list)]
        level = [y for x in inner for y in x]
    if level:
        _raise_too_deep()
    if b"\\ud" in data.lower():  # half of a pair is no text: it could not be printed
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _raise_too_deep() -> NoReturn:
    raise ValueError(f"nested more than {MAX_JSON_DEPTH} deep")


def _dict_of_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _parse_integer(digits: str) -> int:
    if len(digits) > MAX_JSON_DIGITS:
        raise ValueError(f"holds a number of {len(digits)} digits")
    return int(digits)


def _parse_finite_float(digits: str) -> float:
    value = float(digits) if len(digits) <= 400 else math.inf
    if math.isinf(value):
        raise ValueError("holds a number that is too large or too long")
    return value


# --- the lock ---

_locked_handles: set[int] = set()


def _release_locks_after_fork() -> None:
    """A worker that was forked must not keep the lock of a run that was killed."""
    while _locked_handles:
        os.close(_locked_handles.pop())


os.register_at_fork(after_in_child=_release_locks_after_fork)


@contextlib.contextmanager
def folder_lock(folder: Path | None) -> Iterator[None]:
    """Keep other runs out of a folder while this one writes there; a killed run leaves no lock behind.

    Folders that are made for it are removed again if they are still empty at the end.
    """
    if folder is None:
        yield
        return
    made = [place for place in (folder, *folder.parents) if not os.path.lexists(place)]
    with report_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    _locked_handles.add(handle)
    try:
        _acquire_lock(folder, handle)
        yield
    finally:
        if handle in _locked_handles:  # not so in a process that was forked meanwhile
            try:
                with contextlib.suppress(OSError):
                    for place in made:
                        place.rmdir()
            finally:
                _locked_handles.discard(handle)
                os.close(handle)


def is_folder_locked(folder: Path) -> bool:
    """Whether a run is writing in a folder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:  # or it is a file system without locks
        return isinstance(error, BlockingIOError)
    finally:
        os.close(handle)
    return False


def _acquire_lock(folder: Path, handle: int) -> None:
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.05)  # it may have been somebody who only looked: see busy
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mine = folder.exists() and os.path.samestat(os.fstat(handle), folder.stat())
    except BlockingIOError:
        mine = False
    except OSError:
        mine = True  # a file system without locks
    if not mine:  # locked, or removed by its last holder between our opening and our locking
        raise InputError(f"{folder}: another run is writing there")
