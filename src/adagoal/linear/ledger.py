"""The transitions of a run by place of the features, and what has come since the last look.

Value-targeted regression pairs every transition with a function that was fixed before it. Between two plans that
function does not change, so that the difference of two count tables says all there is to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from adagoal.core.counts import TransitionCounts
from adagoal.core.mixture import LinearMixture
from adagoal.core.schema import ArraySpec, check_arrays
from adagoal.core.types import Longs
from adagoal.linear.fit import WRONG_ENDS_TEXT, find_misfit


class MixtureCounts:
    """Counts [nnz] at the places of a mixture; complaints about its fit (see :func:`misfit`) go to ``note``."""

    def __init__(
        self, mixture: LinearMixture, counts: TransitionCounts, note: Callable[[str], None], simplex: bool
    ) -> None:
        self.mixture, self.counts, self.note, self.simplex = mixture, counts, note, simplex
        self.total = np.zeros(len(mixture.successors), np.int64)

    def restore_total(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take ``total`` out of a checkpoint; the counts are restored already."""
        c, m, now = self.counts, self.mixture, np.zeros_like(self.total)
        check_arrays({"total": ArraySpec("int64", (len(now),), low=0)}, arrays)
        tally_by_feature(c.successor, c.count, c.support, m.indptr, m.successors, now)
        if (arrays["total"] > now).any():
            raise ValueError("more transitions were taken in than there are")
        self.total = np.array(arrays["total"])

    def take_new_counts(self) -> Longs:
        """[nnz] the transitions since the last call."""
        c, m = self.counts, self.mixture
        total = np.zeros_like(self.total)
        lost = int(tally_by_feature(c.successor, c.count, c.support, m.indptr, m.successors, total))
        new, self.total = total - self.total, total
        for line in find_misfit(m, total, lost, self.simplex):
            self.note(line)
        if (c.terminal & ~m.terminal).any():
            self.note(WRONG_ENDS_TEXT)
        return new


@numba.njit(cache=True, nogil=True)
def tally_by_feature(successor, count, support, indptr, successors, total):  # type: ignore[no-untyped-def]
    """Counts by place of the features (``total`` [nnz]); returns how many transitions have no place there."""
    lost = 0
    for x in range(len(support)):
        for k in range(support[x]):
            place = -1
            for j in range(indptr[x], indptr[x + 1]):
                if successors[j] == successor[x, k]:
                    place = j
                    break
            if place < 0:
                lost += count[x, k]
            else:
                total[place] = count[x, k]
    return lost
