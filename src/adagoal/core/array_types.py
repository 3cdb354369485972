"""Names of array types by dtype, the number of actions that fit, and the length of observation digests."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Bools = NDArray[np.bool_]
Longs = NDArray[np.int64]
Ints = NDArray[np.int32]
Actions = NDArray[np.int16]
MAX_ACTIONS = 2**15 - 2  # the dtype of Actions holds this many, and one more for the reset
DIGEST_BYTES = 16  # of the hash that identifies an observation
