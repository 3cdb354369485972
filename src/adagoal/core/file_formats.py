"""What a file must hold, said in one table: arrays with shapes that agree, and JSON by a part of JSON Schema.

    COUNTS = {"successor": Array("int32", ("S*A", "K"), low=0, below="S"), "visits": Array("i", ("S",), low=0)}
    sizes = check_heads(COUNTS, heads, {"A": 4})      # types and shapes, before anything is unpacked
    check_values(COUNTS, arrays, sizes)               # ranges, finiteness, order

A size is a number, a letter that means the same number in the whole table, or a product of these; bounds may name sizes
too, so that an index is known to be in range before it reaches a kernel. What is wrong is a ``ValueError`` that names
the entry; the reader of the file adds the file's name.
"""

from __future__ import annotations

import math
import os
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SizeSpec = int | str
AxisSizes = dict[str, int]


@dataclass(frozen=True)
class ArraySpec:
    """What an array must be."""

    dtype: str
    """A type by its name ("int32"), or letters of the kinds that are accepted: "b" booleans, "i" integers, "u" unsigned
    ones, "f" floats."""
    shape: tuple[SizeSpec, ...] | None = None
    """Sizes; None accepts every shape."""
    low: float | str | None = None
    high: float | str | None = None
    """Inclusive."""
    below: float | str | None = None
    """Exclusive, for indices."""
    finite: bool = True
    """Floats: whether infinities are refused. NaN is always refused."""
    increasing: bool = False
    """One axis: every value is larger than the one before it."""
    optional: bool = False


ArraySchema = Mapping[str, ArraySpec]


def check_headers(
    schema: ArraySchema, heads: Mapping[str, ArrayHeader], sizes: Mapping[str, int] | None = None
) -> AxisSizes:
    """Names, types and shapes; returns the sizes. ``sizes`` are those that are known from elsewhere."""
    for name in heads:
        if name not in schema:
            raise ValueError(f"entry {name[:80]!r} does not belong there")
    found: AxisSizes = dict(sizes or {})
    present = {name: wanted for name, wanted in schema.items() if name in heads}
    for name, wanted in schema.items():
        if name not in heads and not wanted.optional:
            raise ValueError(f"entry {name!r} is missing")
    for name, wanted in present.items():
        dtype, shape = heads[name].dtype, heads[name].shape
        if not (dtype.kind in wanted.dtype if set(wanted.dtype) <= set("biuf") else dtype.name == wanted.dtype):
            raise ValueError(f"entry {name!r} holds {dtype}, which is of the wrong type")
        if wanted.shape is None:
            continue
        if len(shape) != len(wanted.shape):
            raise ValueError(f"entry {name!r} has {len(shape)} axes instead of {len(wanted.shape)}")
        for have, size in zip(shape, wanted.shape, strict=True):
            if isinstance(size, str) and size.isidentifier():
                found.setdefault(size, have)
    for name, wanted in present.items():
        if wanted.shape is not None:
            expected = tuple(_resolve_size(size, found) for size in wanted.shape)
            if heads[name].shape != expected:
                raise ValueError(f"entry {name!r} has the shape {heads[name].shape} instead of {expected}")
    return found


def check_arrays(
    schema: ArraySchema,
    arrays: Mapping[str, NDArray[Any]],
    sizes: Mapping[str, int] | None = None,
    exact: bool = False,
) -> AxisSizes:
    """Check arrays that were read already; return the sizes. ``exact`` refuses arrays that the schema does not name."""
    heads = {
        name: ArrayHeader(array.dtype, array.shape, False, 0)
        for name, array in arrays.items()
        if exact or name in schema
    }
    found = check_headers(schema, heads, sizes)
    check_array_values(schema, arrays, found)
    return found


def check_array_values(schema: ArraySchema, arrays: Mapping[str, NDArray[Any]], sizes: Mapping[str, int]) -> None:
    """Ranges, finiteness and order of arrays whose heads are right."""
    for name, wanted in schema.items():
        array = arrays.get(name)
        if array is None or array.size == 0:
            continue
        smallest, largest = array.min(), array.max()
        if array.dtype.kind == "f":
            if np.isnan(smallest):  # the minimum of an array with a NaN is NaN
                raise ValueError(f"entry {name!r} holds NaN")
            if wanted.finite and not (np.isfinite(smallest) and np.isfinite(largest)):
                raise ValueError(f"entry {name!r} holds an infinity")
        if wanted.low is not None and smallest < _resolve_bound(wanted.low, sizes):
            raise ValueError(f"entry {name!r} holds {smallest}, less than {_resolve_bound(wanted.low, sizes)}")
        if wanted.high is not None and largest > _resolve_bound(wanted.high, sizes):
            raise ValueError(f"entry {name!r} holds {largest}, more than {_resolve_bound(wanted.high, sizes)}")
        if wanted.below is not None and largest >= _resolve_bound(wanted.below, sizes):
            raise ValueError(f"entry {name!r} holds {largest}, not below {_resolve_bound(wanted.below, sizes)}")
        if wanted.increasing and not (array[1:] > array[:-1]).all():
            raise ValueError(f"entry {name!r} does not rise")


def _resolve_bound(bound: float | str, sizes: Mapping[str, int]) -> float:
    return _resolve_size(bound, sizes) if isinstance(bound, str) else bound


def _resolve_size(size: SizeSpec, sizes: Mapping[str, int]) -> int:
    if isinstance(size, int):
        return size
    return math.prod(int(part) if part.isdigit() else sizes[part] for part in size.split("*"))


# --- JSON ---

COUNT_SCHEMA: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 2**62}
"""A number of something."""


def object_schema(**properties: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an object with exactly these entries."""
    return {
        "type": "object",
        "required": list(properties),
        "additionalProperties": False,
        "properties": properties,
    }


def nullable_schema(rule: Mapping[str, Any]) -> dict[str, Any]:
    """The same, or null."""
    return {**rule, "type": [rule["type"], "null"]}


_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "integer": (int,),
    "number": (int, float),
}
_STRUCTURAL_KEYWORDS = {
    "type",
    "required",
    "properties",
    "additionalProperties",
    "items",
    "$schema",
    "title",
    "description",
}


def check_json_value(schema: Mapping[str, Any], value: Any, where: str = "") -> None:
    """``value`` conforms to the schema, which may use the words of JSON Schema that are handled here.

    ``where`` is the path to the value. A whole number written as 1.0 is not an integer, and a number is finite.
    """
    names = schema.get("type", [])
    names = [names] if isinstance(names, str) else names
    if names and not any(_has_json_type(value, name) for name in names):
        raise ValueError(f"{where or 'it'} must be {' or '.join(names)}")
    for word, wanted in schema.items():
        if word not in _STRUCTURAL_KEYWORDS and not _KEYWORD_CHECKS[word](value, wanted):
            raise ValueError(f"{where or 'it'} breaks the rule {word} {str(wanted)[:80]}")
    if isinstance(value, dict):
        for name in schema.get("required", ()):
            if name not in value:
                raise ValueError(f"{where or 'it'} has no entry {name!r}")
        known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        for name, inner in value.items():
            rule = known.get(name, others)
            if rule is False:
                raise ValueError(f"{where or 'it'} has the unknown entry {name[:80]!r}")
            if isinstance(rule, Mapping):
                check_json_value(rule, inner, f"{where}.{name[:80]}" if where else name[:80])
    if isinstance(value, list) and "items" in schema:
        for place, inner in enumerate(value):
            check_json_value(schema["items"], inner, f"{where}[{place}]")


def _has_json_type(value: Any, name: str) -> bool:
    if isinstance(value, bool) and name != "boolean":
        return False
    return isinstance(value, _JSON_TYPES[name]) and not (isinstance(value, float) and not math.isfinite(value))


def _is_json_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_KEYWORD_CHECKS: dict[str, Any] = {
    "enum": lambda value, wanted: any(type(value) is type(w) and value == w for w in wanted),
    "minimum": lambda value, wanted: not _is_json_number(value) or value >= wanted,
    "maximum": lambda value, wanted: not _is_json_number(value) or value <= wanted,
    "exclusiveMinimum": lambda value, wanted: not _is_json_number(value) or value > wanted,
    "exclusiveMaximum": lambda value, wanted: not _is_json_number(value) or value < wanted,
    "minLength": lambda value, wanted: not isinstance(value, str) or len(value) >= wanted,
    "maxLength": lambda value, wanted: not isinstance(value, str) or len(value) <= wanted,
    "minItems": lambda value, wanted: not isinstance(value, list) or len(value) >= wanted,
    "maxItems": lambda value, wanted: not isinstance(value, list) or len(value) <= wanted,
}


# Arrays in one ``.npz``, read as data that may have been damaged or made to do harm.
#
# An ``.npz`` is a zip of ``.npy`` files. Two things in it can hurt a careless reader: pickled objects, which run code,
# and a few kilobytes that unpack to gigabytes. So nothing is unpacked before the zip's directory and the head of every
# entry have been read and agree: numbers only (booleans, integers, floats, of this machine's byte order), exactly as
# many bytes as the shape needs, and sizes within bounds. Entries that are stored plainly cannot unpack to more than the
# file holds. Compressed entries may unpack to :data:`MAX_UNPACKED_BYTES` bytes together; the writer stores larger ones
# plainly.


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
