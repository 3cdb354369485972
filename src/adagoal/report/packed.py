"""Facts and arrays in one compressed block, which a page unpacks with what every browser has.

The block is zlib over three parts, each filled up with blanks to a multiple of eight bytes: the length of the head
(little-endian), the head as JSON, and the arrays. The head has the ``facts`` and, by name, the type, the shape and the
place of every array. ``static/common.js`` is the other side.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

JAVASCRIPT_TYPES = ("<f8", "<f4", "<i4", "<u4", "<u2", "|u1")
"""What JavaScript has typed arrays for."""


def pack_data_block(facts: object, arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The block; equal input gives equal bytes."""
    places: dict[str, Any] = {}
    body = bytearray()
    for name, array in arrays.items():
        if array.dtype.str not in JAVASCRIPT_TYPES:
            raise ValueError(f"{name} holds {array.dtype}, which no page can read")
        places[name] = {"type": array.dtype.str, "shape": array.shape, "at": len(body)}
        body += _pad_to_eight_bytes(array.tobytes())
    head = _pad_to_eight_bytes(json.dumps({"facts": facts, "arrays": places}, default=_to_python_number).encode())
    return zlib.compress(len(head).to_bytes(8, "little") + head + bytes(body), 6)


def unpack_data_block(block: bytes) -> tuple[Any, dict[str, NDArray[Any]]]:
    """The facts and the arrays of a block."""
    whole = zlib.decompress(block)
    end = 8 + int.from_bytes(whole[:8], "little")
    head = json.loads(whole[8:end])
    arrays = {}
    for name, entry in head["arrays"].items():
        count = int(np.prod(entry["shape"], dtype=int))
        flat = np.frombuffer(whole, entry["type"], count, end + entry["at"])
        arrays[name] = flat.reshape(entry["shape"])
    return head["facts"], arrays


def _to_python_number(value: Any) -> Any:
    """NumPy's numbers as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} is no fact")


def _pad_to_eight_bytes(data: bytes) -> bytes:
    return data + b" " * (-len(data) % 8)
