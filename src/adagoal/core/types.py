"""Names for arrays, by what they hold. Shapes stand in the docstrings of those who use them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Bools = NDArray[np.bool_]
Longs = NDArray[np.int64]
Ints = NDArray[np.int32]
Actions = NDArray[np.int16]
MAX_ACTIONS = 32_766
"""Policies are tables of 16-bit numbers, and the reset is one more action."""
