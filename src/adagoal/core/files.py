"""Files that are either whole or not there: atomic writes, and reads that never execute code."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from adagoal.core.errors import InputError

try:
    import fcntl
except ImportError:  # Windows: no locks
    fcntl = None  # type: ignore[assignment]


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    replace(path, lambda file: file.write(text.encode()))


def write_json(path: Path, data: object) -> None:
    """Write JSON atomically; numbers that JSON cannot hold (inf, nan) are an error, so write None for them."""
    write_text(path, _encoded(path, data, indent=1, allow_nan=False) + "\n")


def write_arrays(path: Path, arrays: Mapping[str, NDArray[np.generic]], facts: object, compress: bool = True) -> None:
    """Write named arrays and a JSON-ready object into one .npz, atomically."""
    encoded = np.frombuffer(_encoded(path, facts).encode(), np.uint8)
    save: Any = np.savez_compressed if compress else np.savez
    replace(path, lambda file: save(file, __facts__=encoded, **arrays))


def read_json(path: Path) -> Any:
    """Read JSON; a missing or damaged file is one clear line."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: damaged or not readable ({type(error).__name__})") from None


def read_arrays(path: Path) -> tuple[dict[str, NDArray[Any]], Any]:
    """The inverse of :func:`write_arrays`; pickled objects are refused."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        facts = json.loads(arrays.pop("__facts__").tobytes())
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except Exception as error:  # zip, zlib, header and key errors all mean the same to the user
        raise InputError(f"{path}: damaged or not readable ({type(error).__name__})") from None
    return arrays, facts


@contextlib.contextmanager
def alone_in(folder: Path | None) -> Iterator[None]:
    """Keep other runs out of a folder while this one writes there; a killed run leaves no lock behind."""
    if folder is None or fcntl is None:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except (OSError, ValueError) as error:
        raise _unwritable(folder, error) from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{folder}: another run is writing there") from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(handle)


def _encoded(path: Path, data: object, **options: Any) -> str:
    """JSON; NumPy's numbers and arrays become plain ones, and nothing else is bent into shape."""
    try:
        return json.dumps(data, default=_plain, **options)
    except TypeError as error:
        raise InputError(f"{path}: cannot be written ({error})") from None


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} {value!r} cannot be kept in a file")


def replace(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Let ``write`` fill a file that gets its name only once it is whole; what the system refuses is one clear line."""
    try:
        _replace(path, write)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError | ValueError) -> InputError:
    """ValueError: a name that no file can have."""
    reason = error.strerror if isinstance(error, OSError) else None
    return InputError(f"{path}: cannot be written ({reason or error})")


def _replace(path: Path, write: Callable[[IO[bytes]], object]) -> None:
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
