"""Read the data block of a report page, as the page's script does."""

import json
import math
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


def unpack_data_block(block: bytes) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Return the values and the arrays of a block."""
    whole = zlib.decompress(block)
    end = 8 + int.from_bytes(whole[:8], "little")
    head = json.loads(whole[8:end])
    arrays = {}
    for name, entry in head["arrays"].items():
        flat = np.frombuffer(whole, entry["type"], math.prod(entry["shape"]), end + entry["at"])
        arrays[name] = flat.reshape(entry["shape"])
    return head["facts"], arrays
