"""Where states are drawn in a world without a map: in layers, by the fewest observed transitions from the start.

Within a layer, states stand in the order of the mean height of their predecessors in the layer before, which keeps most
edges short (the barycentre rule of layered graph drawing).
"""

from __future__ import annotations

import numpy as np

from adagoal.core.types import Bools, Floats, Longs


def layered_positions(start: int, seen: Bools, source: Longs, target: Longs) -> Floats:
    """[S, 2] places (layer, height in 0..1) of the seen states, NaN for others; edges [M] as source and target."""
    layer = _layers_from_start(start, seen, source, target)
    place = np.full((len(seen), 2), np.nan)
    height = np.full(len(seen), 0.5)
    for number in range(int(layer.max(initial=-1)) + 1):
        members = np.flatnonzero(layer == number)
        into = (layer[target] == number) & (layer[source] == number - 1)
        total = np.bincount(target[into], height[source[into]], minlength=len(seen))[members]
        count = np.bincount(target[into], minlength=len(seen))[members]
        wish = np.where(count > 0, total / np.maximum(count, 1), 0.5)
        members = members[np.argsort(wish, kind="stable")]
        height[members] = (np.arange(len(members)) + 0.5) / max(len(members), 1)
        place[members, 0], place[members, 1] = number, height[members]
    return place


def _layers_from_start(start: int, seen: Bools, source: Longs, target: Longs) -> Longs:
    """[S] fewest transitions from the start, -1 for states never seen; what cannot be reached so comes last."""
    layer = np.full(len(seen), -1)
    layer[start] = 0
    for number in range(1, len(seen) + 1):
        fresh = target[(layer[source] == number - 1) & (layer[target] < 0)]
        if not len(fresh):
            break
        layer[fresh] = number
    lost = seen & (layer < 0)
    layer[lost] = layer.max() + 1
    return layer
