"""Arrays in one ``.npz``, read as data that may have been damaged or made to do harm.

An ``.npz`` is a zip of ``.npy`` files. Two things in it can hurt a careless reader: pickled objects, which run code,
and a few kilobytes that unpack to gigabytes. So nothing is unpacked before the zip's directory and the head of every
entry have been read and agree: numbers only (booleans, integers, floats, of this machine's byte order), exactly as many
bytes as the shape needs, and sizes within bounds. Entries that are stored plainly cannot unpack to more than the file
holds. Compressed entries may unpack to :data:`MAX_UNPACKED_BYTES` bytes together; the writer stores larger ones plainly.
"""

from __future__ import annotations

import math
import os
import re
import zipfile
from collections.abc import Callable, Mapping
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_UNPACKED_BYTES = 2**30
"""Bytes that the compressed entries of a file may unpack to."""
MAX_ENTRIES = 10_000
"""Entries of a file."""

_NPY_MAGIC = b"\x93NUMPY\x01\x00"
_NPY_HEADER_PATTERN = re.compile(
    rb"\{'descr': '([<|][biuf][0-9]{1,2})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:[0-9]{1,18}, ?)*(?:[0-9]{1,18})?)\), \} *\n"
)


class ArrayHeader(NamedTuple):
    """What an entry says about itself."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool
    start: int
    """The first byte of the data."""


def write_npz(file: IO[bytes], arrays: Mapping[str, NDArray[Any]], compress: bool) -> None:
    """Write the arrays; equal arrays give equal bytes. Objects are refused."""
    large = (
        sum(np.asarray(array).nbytes for array in arrays.values()) > MAX_UNPACKED_BYTES // 2
    )  # the other half is for heads
    method = zipfile.ZIP_DEFLATED if compress and not large else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy")  # the date is that of the format, not of today
            entry.compress_type = method
            with archive.open(entry, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), version=(1, 0), allow_pickle=False)


def read_npz(
    file: IO[bytes], size: int, fits: Callable[[Mapping[str, ArrayHeader]], None] | None = None
) -> dict[str, NDArray[Any]]:
    """The arrays of a file of ``size`` bytes. ``fits`` sees all heads before anything is unpacked, and may raise.

    What is wrong with a file is a ``ValueError``, or whatever the zip reader raises.
    """
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        packed = [entry for entry in entries if entry.compress_type != zipfile.ZIP_STORED]
        if len(entries) > MAX_ENTRIES:
            raise ValueError(f"has more than {MAX_ENTRIES} entries")
        if sum(entry.file_size for entry in packed) > MAX_UNPACKED_BYTES:
            raise ValueError(f"would unpack to more than {MAX_UNPACKED_BYTES} bytes")
        if sum(entry.compress_size for entry in entries) > size:
            raise ValueError("its entries claim more bytes than it has")
        if sum(entry.file_size for entry in entries) > total_memory_bytes():
            raise ValueError("holds more than fits into this machine's memory")
        heads: dict[str, ArrayHeader] = {}
        for entry in entries:
            name = entry.filename.removesuffix(".npy")
            if name in heads:
                raise ValueError(f"entry {name[:80]!r} is there twice")
            heads[name] = _read_array_header(archive, entry)
        if fits is not None:
            fits(heads)
        return {
            name: _read_array_data(archive, entry, head)
            for entry, (name, head) in zip(entries, heads.items(), strict=True)
        }


def total_memory_bytes() -> int:
    """Bytes of memory of this machine, or a guess where it does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 2**36


def _read_array_header(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> ArrayHeader:
    name = f"entry {entry.filename[:80]!r}"
    if entry.compress_type == zipfile.ZIP_STORED and entry.compress_size != entry.file_size:
        raise ValueError(f"{name} claims another size than it has")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name} is compressed in an unknown way")
    with archive.open(entry) as member:
        magic = member.read(len(_NPY_MAGIC) + 2)
        length = int.from_bytes(magic[-2:], "little")
        match = (
            _NPY_HEADER_PATTERN.fullmatch(member.read(length))
            if magic[:-2] == _NPY_MAGIC and length <= 10_000
            else None
        )
    if match is None:
        raise ValueError(f"{name} is not an array of numbers")
    dtype = np.dtype(match[1].decode())
    shape = tuple(int(part) for part in match[3].split(b",") if part.strip())
    start = len(magic) + length
    if entry.file_size != start + dtype.itemsize * math.prod(shape) or len(shape) > 16:
        raise ValueError(f"{name} has not the size that its shape needs")
    return ArrayHeader(dtype, shape, match[2] == b"True", start)


def _read_array_data(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, head: ArrayHeader) -> NDArray[Any]:
    """The numbers of an entry; reading to its end checks its checksum."""
    flat = np.empty(math.prod(head.shape), head.dtype)
    room, filled = flat.view(np.uint8), 0
    with archive.open(entry) as member:
        member.read(head.start)
        while filled < len(room):
            chunk = member.read(min(2**20, len(room) - filled))
            if not chunk:
                raise ValueError(f"entry {entry.filename[:80]!r} is cut off")
            room[filled : filled + len(chunk)] = np.frombuffer(chunk, np.uint8)
            filled += len(chunk)
        member.read(1)
    if head.dtype.kind == "b" and len(room) and room.max() > 1:
        raise ValueError(f"entry {entry.filename[:80]!r} holds booleans that are neither true nor false")
    return flat.reshape(head.shape, order="F" if head.fortran_order else "C")
