"""The state of a random generator, put back from data that may have been forged.

NumPy takes whatever it is given: a place beyond the end of a Mersenne Twister's table is read from foreign memory. So
the numbers that are used as places are checked here; wrong types and sizes NumPy finds by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

POSITION_FIELDS = {"MT19937": ("state", "pos", 624), "Philox": ("", "buffer_pos", 4)}
"""Where a generator keeps a place in a table (under which entry, under which name), and the largest one."""
POSITIONLESS_GENERATORS = ("PCG64", "PCG64DXSM", "SFC64")
"""Generators that keep none."""


def check_rng_state(state: Any) -> None:
    """A ``ValueError`` where this is not the state of a generator."""
    kind = state.get("bit_generator") if isinstance(state, dict) else None
    if kind not in (*POSITION_FIELDS, *POSITIONLESS_GENERATORS):  # a tuple: what is asked for may be unhashable
        raise ValueError("the state of the random generator is of an unknown kind")
    restore_rng_state(np.random.Generator(getattr(np.random, kind)(0)), state)


def restore_rng_state(generator: np.random.Generator, state: Any) -> None:
    """Give a generator a state that was saved; a ``ValueError`` where it is not one of this kind of generator."""
    bits = generator.bit_generator
    try:
        kind = state["bit_generator"]
        if kind != type(bits).__name__ or kind not in (*POSITION_FIELDS, *POSITIONLESS_GENERATORS):
            raise ValueError(f"is of a {str(kind)[:40]}")
        for name, most in (("has_uint32", 1), ("uinteger", 2**32 - 1)):
            _check_field_range(state.get(name, 0), most)
        if kind in POSITION_FIELDS:
            under, name, most = POSITION_FIELDS[kind]
            _check_field_range((state[under] if under else state)[name], most)
        bits.state = state
    except (TypeError, ValueError, KeyError, IndexError, OverflowError, AttributeError) as error:
        raise ValueError(f"the state of the random generator is not one ({error})") from None


def rng_states_equal(one: Any, other: Any) -> bool:
    """Return whether two states are equal; some generators keep arrays in theirs."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(rng_states_equal(one[name], other[name]) for name in one)
    return bool(np.array_equal(one, other))


def _check_field_range(value: Any, most: int) -> None:
    if not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"holds {str(value)[:40]} instead of a number in 0..{most}")
