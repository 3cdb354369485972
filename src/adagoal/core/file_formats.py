"""Check arrays by a table of shapes and JSON by a part of JSON Schema; read and write ``.npz``, which may be forged.

Every kind of file declares its arrays in one table::

    COUNTS = {"successor": ArraySpec("int32", ("S*A", "K"), low=0, below="S"), "visits": ArraySpec("i", ("S",), low=0)}
    sizes = check_headers(COUNTS, headers, {"A": 4})      # types and shapes, before anything is unpacked
    check_array_values(COUNTS, arrays, sizes)             # ranges, finiteness, order

A size is a number, a name that stands for the same number in the whole table, or a product of these. Bounds may name
sizes too, so an index is known to be in range before it reaches a compiled kernel. An error is a ``ValueError`` that
names the entry; the reader of the file adds the name of the file.

An ``.npz`` is a zip of ``.npy`` files. It could hold pickled objects, which run code, or a few kilobytes that unpack to
gigabytes. So :func:`read_npz` unpacks nothing before the zip's directory and the header of every entry agree: only
numbers in this machine's byte order, exactly the bytes that the shape needs, and sizes within bounds.
"""

from __future__ import annotations

import math
import os
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_UNPACKED_BYTES = 2**30  # of all compressed entries of a file together; larger arrays are stored plainly

AxisSizes = dict[str, int]


@dataclass(frozen=True)
class ArraySpec:
    """What an array must be."""

    dtype: str  # a name ("int32"), or letters of accepted kinds: "b" boolean, "i" integer, "u" unsigned, "f" float
    shape: tuple[int | str, ...] | None = None  # None accepts every shape
    low: float | str | None = None
    high: float | str | None = None  # inclusive
    below: float | str | None = None  # exclusive, for indices
    finite: bool = True  # refuse infinities; NaN is always refused
    increasing: bool = False  # one axis: every value is larger than the one before it
    optional: bool = False


ArraySchema = Mapping[str, ArraySpec]


class ArrayHeader(NamedTuple):
    """Header of an array in a file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool = False
    start: int = 0  # first byte of the data


def check_headers(
    schema: ArraySchema, headers: Mapping[str, ArrayHeader], sizes: Mapping[str, int] | None = None
) -> AxisSizes:
    """Check names, types and shapes; return the sizes. ``sizes`` are those that are known from elsewhere."""
    for name in headers:
        if name not in schema:
            raise ValueError(f"entry {name[:80]!r} does not belong there")
    known: AxisSizes = dict(sizes or {})
    for name, spec in schema.items():
        if name not in headers:
            if not spec.optional:
                raise ValueError(f"entry {name!r} is missing")
            continue
        dtype, shape = headers[name].dtype, headers[name].shape
        if not (dtype.kind in spec.dtype if set(spec.dtype) <= set("biuf") else dtype.name == spec.dtype):
            raise ValueError(f"entry {name!r} holds {dtype}, which is of the wrong type")
        if spec.shape is None:
            continue
        if len(shape) != len(spec.shape):
            raise ValueError(f"entry {name!r} has {len(shape)} axes instead of {len(spec.shape)}")
        for length, size in zip(shape, spec.shape, strict=True):
            if isinstance(size, str) and size.isidentifier():
                known.setdefault(size, length)
    # A second pass, because a product may name a size that only a later entry fixes.
    for name, header in headers.items():
        wanted = schema[name].shape
        if wanted is not None and header.shape != (expected := tuple(_resolve(size, known) for size in wanted)):
            raise ValueError(f"entry {name!r} has the shape {header.shape} instead of {expected}")
    return known


def check_arrays(
    schema: ArraySchema, arrays: Mapping[str, NDArray[Any]], sizes: Mapping[str, int] | None = None, exact: bool = False
) -> AxisSizes:
    """Check arrays that were read already; return the sizes. ``exact`` refuses arrays that the schema does not name."""
    chosen = {name: array for name, array in arrays.items() if exact or name in schema}
    known = check_headers(schema, {name: ArrayHeader(a.dtype, a.shape) for name, a in chosen.items()}, sizes)
    check_array_values(schema, arrays, known)
    return known


def check_array_values(schema: ArraySchema, arrays: Mapping[str, NDArray[Any]], sizes: Mapping[str, int]) -> None:
    """Check ranges, finiteness and order of arrays whose headers are right."""
    for name, spec in schema.items():
        array = arrays.get(name)
        if array is None or array.size == 0:
            continue
        # Two reductions instead of masks, which would allocate as much as the array. A NaN makes the minimum NaN.
        smallest, largest = array.min(), array.max()
        if array.dtype.kind == "f":
            if np.isnan(smallest):
                raise ValueError(f"entry {name!r} holds NaN")
            if spec.finite and not (np.isfinite(smallest) and np.isfinite(largest)):
                raise ValueError(f"entry {name!r} holds an infinity")
        if spec.low is not None and smallest < (bound := _resolve(spec.low, sizes)):
            raise ValueError(f"entry {name!r} holds {smallest}, less than {bound}")
        if spec.high is not None and largest > (bound := _resolve(spec.high, sizes)):
            raise ValueError(f"entry {name!r} holds {largest}, more than {bound}")
        if spec.below is not None and largest >= (bound := _resolve(spec.below, sizes)):
            raise ValueError(f"entry {name!r} holds {largest}, not below {bound}")
        if spec.increasing and not (array[1:] > array[:-1]).all():
            raise ValueError(f"entry {name!r} does not rise")


def _resolve(size: float | str, sizes: Mapping[str, int]) -> float:
    if not isinstance(size, str):
        return size
    return math.prod(int(part) if part.isdigit() else sizes[part] for part in size.split("*"))


# JSON schema of a number of something. The limit is that of a budget: half the range of int64.
COUNT_SCHEMA: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 2**62}


def object_schema(**properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of an object with exactly these entries."""
    names = list(properties)
    return {"type": "object", "required": names, "additionalProperties": False, "properties": properties}


def nullable_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same schema, with null allowed."""
    return {**schema, "type": [schema["type"], "null"]}


def check_json_value(schema: Mapping[str, Any], value: Any, path: str = "") -> None:
    """Check that ``value`` conforms to a schema that uses the keywords of JSON Schema handled here.

    Unlike JSON Schema, a whole number written as 1.0 is not an integer, and numbers must be finite.
    """
    names = schema.get("type", [])
    names = [names] if isinstance(names, str) else names
    if names and not any(_has_json_type(value, name) for name in names):
        raise ValueError(f"{path or 'it'} must be {' or '.join(names)}")
    for keyword, wanted in schema.items():
        if not _obeys_keyword(value, keyword, wanted):
            raise ValueError(f"{path or 'it'} breaks the rule {keyword} {str(wanted)[:80]}")
    if isinstance(value, dict):
        for name in schema.get("required", ()):
            if name not in value:
                raise ValueError(f"{path or 'it'} has no entry {name!r}")
        properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        for name, inner in value.items():
            rule = properties.get(name, others)
            if rule is False:
                raise ValueError(f"{path or 'it'} has the unknown entry {name[:80]!r}")
            if isinstance(rule, Mapping):
                check_json_value(rule, inner, f"{path}.{name[:80]}" if path else name[:80])
    if isinstance(value, list) and "items" in schema:
        for index, inner in enumerate(value):
            check_json_value(schema["items"], inner, f"{path}[{index}]")


def _has_json_type(value: Any, name: str) -> bool:
    # bool is a subclass of int in Python, but not a number in JSON. Neither are NaN and infinities.
    if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        return isinstance(value, bool) and name == "boolean"
    types: dict[str, Any] = {"object": dict, "array": list, "string": str, "boolean": bool, "null": NoneType}
    return isinstance(value, (types | {"integer": int, "number": int | float})[name])


def _obeys_keyword(value: Any, keyword: str, wanted: Any) -> bool:
    # As in JSON Schema, a keyword accepts every value of another type than its own.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match keyword:
        case "enum":
            # Types are compared too, because True == 1 == 1.0 in Python.
            return any(type(value) is type(entry) and value == entry for entry in wanted)
        case "minimum":
            return not is_number or value >= wanted
        case "maximum":
            return not is_number or value <= wanted
        case "exclusiveMinimum":
            return not is_number or value > wanted
        case "exclusiveMaximum":
            return not is_number or value < wanted
        case "minLength" | "minItems":
            return not isinstance(value, str if keyword == "minLength" else list) or len(value) >= wanted
        case "maxLength" | "maxItems":
            return not isinstance(value, str if keyword == "maxLength" else list) or len(value) <= wanted
    # A misspelt keyword in one of our schemas must not pass as a check.
    structure = "type", "required", "properties", "additionalProperties", "items", "$schema", "title", "description"
    if keyword not in structure:
        raise KeyError(keyword)
    return True


def write_npz(file: IO[bytes], arrays: Mapping[str, NDArray[Any]], compress: bool) -> None:
    """Write arrays of numbers; equal arrays give equal bytes."""
    # Half of the limit is for the headers.
    large = sum(np.asarray(array).nbytes for array in arrays.values()) > MAX_UNPACKED_BYTES // 2
    method = zipfile.ZIP_DEFLATED if compress and not large else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy")  # with a constant date, not the current one
            entry.compress_type = method
            with archive.open(entry, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), version=(1, 0), allow_pickle=False)


def read_npz(
    file: IO[bytes], size: int, check: Callable[[Mapping[str, ArrayHeader]], None] | None = None
) -> dict[str, NDArray[Any]]:
    """Read the arrays of a file of ``size`` bytes. ``check`` sees all headers before anything is unpacked.

    Raises ``ValueError``, or whatever the zip reader raises, if the file is damaged or forged.
    """
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        # All sizes are claims of the file. They are checked against each other here, and against the data later.
        if len(entries) > 10_000:
            raise ValueError("has more than 10000 entries")
        if sum(e.file_size for e in entries if e.compress_type != zipfile.ZIP_STORED) > MAX_UNPACKED_BYTES:
            raise ValueError(f"would unpack to more than {MAX_UNPACKED_BYTES} bytes")
        if sum(entry.compress_size for entry in entries) > size:
            raise ValueError("its entries claim more bytes than it has")
        if sum(entry.file_size for entry in entries) > total_memory_bytes():
            raise ValueError("holds more than fits into this machine's memory")
        headers: dict[str, ArrayHeader] = {}
        for entry in entries:
            name = entry.filename.removesuffix(".npy")
            # The zip directory may name an entry twice; the checked header and the data read must be of the same one.
            if name in headers:
                raise ValueError(f"entry {name[:80]!r} is there twice")
            headers[name] = _read_array_header(archive, entry)
        if check is not None:
            check(headers)
        return {
            name: _read_array_data(archive, entry, header)
            for entry, (name, header) in zip(entries, headers.items(), strict=True)
        }


def total_memory_bytes() -> int:
    """Return the memory of this machine in bytes, or a guess if the system does not say."""
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
    # NumPy would evaluate the header as Python. This pattern accepts only what NumPy writes for plain numbers.
    pattern = (
        rb"\{'descr': '([<|][biuf][0-9]{1,2})', 'fortran_order': (True|False), "
        rb"'shape': \(((?:[0-9]{1,18}, ?)*(?:[0-9]{1,18})?)\), \} *\n"
    )
    magic = b"\x93NUMPY\x01\x00"
    with archive.open(entry) as member:
        prefix = member.read(len(magic) + 2)
        length = int.from_bytes(prefix[-2:], "little")
        is_npy = prefix[:-2] == magic and length <= 10_000
        match = re.fullmatch(pattern, member.read(length)) if is_npy else None
    if match is None:
        raise ValueError(f"{name} is not an array of numbers")
    dtype = np.dtype(match[1].decode())
    shape = tuple(int(part) for part in match[3].split(b",") if part.strip())
    start = len(prefix) + length
    if entry.file_size != start + dtype.itemsize * math.prod(shape) or len(shape) > 16:
        raise ValueError(f"{name} has not the size that its shape needs")
    return ArrayHeader(dtype, shape, match[2] == b"True", start)


def _read_array_data(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, header: ArrayHeader) -> NDArray[Any]:
    # In chunks into the final array: a single read would need the memory twice.
    flat = np.empty(math.prod(header.shape), header.dtype)
    buffer, filled = flat.view(np.uint8), 0
    with archive.open(entry) as member:
        member.read(header.start)
        while filled < len(buffer):
            chunk = member.read(min(2**20, len(buffer) - filled))
            if not chunk:
                raise ValueError(f"entry {entry.filename[:80]!r} is cut off")
            buffer[filled : filled + len(chunk)] = np.frombuffer(chunk, np.uint8)
            filled += len(chunk)
        member.read(1)  # reading to the end checks the checksum
    # Compiled code may index with booleans, so a byte of 2 could read past an array.
    if header.dtype.kind == "b" and len(buffer) and buffer.max() > 1:
        raise ValueError(f"entry {entry.filename[:80]!r} holds booleans that are neither true nor false")
    return flat.reshape(header.shape, order="F" if header.fortran_order else "C")
