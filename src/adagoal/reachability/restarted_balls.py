"""Confidence sets for reach probabilities: balls that restart while a pair is tried (docs/theory-more.md, lemma P1).

Lemma 2 restarts at every new successor and then pays (o - 1)/2 ln n for not knowing where the truth lies. Here a pair
restarts again whenever it has been tried eight times as often: the counts c0 before the restart become the prior, and
the price falls to (o - 1)/2 ln(n / |c0|) and the logarithm of the share of the restart.
"""

from __future__ import annotations

import math
from concurrent.futures import Executor
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adagoal.certified.confidence_sets import (
    ConfidenceSets,
    PairCounts,
    observed_ball_radius,
    unseen_mass_bound,
)
from adagoal.core.compiled_code import compiled
from adagoal.core.file_formats import ArraySchema, ArraySpec, check_arrays, check_json_value, object_schema
from adagoal.core.transition_data import MAX_TRANSITIONS
from adagoal.core.types import Longs
from adagoal.planning.model_arrays import EmpiricalModel

RESTART_FACTOR = 8  # growth of n between two restarts: less costs shares of delta, more costs a larger regret
FIRST_RESTART = 64  # tries before the first restart, which a pair with few tries could not pay


class RestartedBalls(ConfidenceSets):
    """Confidence sets whose balls use the counts since one of the last two restarts."""

    uses_lemma_1 = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        X, K = self.counts.successor.shape
        # [2, X, K] counts at the restart in use, and at the next one; [3, X] their numbers, and the support of both
        self.prior_counts: Longs = np.zeros((2, X, K), np.int64)
        self.restarts: Longs = np.zeros((3, X), np.int64)

    def compute_radii(self, pairs: Longs, threads: Executor | None) -> None:
        """Restart pairs that are due, and compute their balls and unseen mass again."""
        c = self.counts
        tally = PairCounts(c.count, c.recent, c.support, c.n, c.settled)
        logs = self.union_logs, self._pair_logs
        update_restarted_radii(pairs, tally, self.prior_counts, self.restarts, *logs, self.branching, self._radii)

    def grow_arrays(self) -> None:
        """Follow the counts to more pairs and successors."""
        super().grow_arrays()
        old, new = self.prior_counts.shape[1:], self.counts.successor.shape
        if old != new:
            room = (0, new[0] - old[0])
            self.prior_counts = np.pad(self.prior_counts, ((0, 0), room, (0, new[1] - old[1])))
            self.restarts = np.pad(self.restarts, ((0, 0), room))

    def update(self) -> bool:
        """Take in new counts; return False if nothing was counted since the last update."""
        return self.update_radii()

    def next_counts(self) -> None:
        """Return None: the events hold at all times, so any counts will do."""

    def model(self) -> EmpiricalModel:
        """Return centres, radii and unseen mass of all pairs."""
        return self.empirical_model()

    FACTS_SCHEMA: ClassVar[dict[str, Any]] = object_schema(**ConfidenceSets.FACT_SCHEMAS)
    RESTART_SCHEMA: ClassVar[ArraySchema] = {
        "prior_counts": ArraySpec("int64", (2, "X", "K"), low=0, high=MAX_TRANSITIONS),
        "restarts": ArraySpec("int64", (3, "X"), low=0, high=1000),
    }

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return what cannot be computed from the counts."""
        arrays, facts = super().state()
        return arrays | {"prior_counts": self.prior_counts, "restarts": self.restarts}, facts

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Continue from a saved :meth:`state`, on restored counts."""
        check_json_value(self.FACTS_SCHEMA, facts)
        super().restore(arrays, facts)
        sizes = check_arrays(self.RESTART_SCHEMA, arrays)
        X, K = sizes["X"], sizes["K"]
        prior, counts = arrays["prior_counts"], self.counts.count
        if X > len(counts) or K > counts.shape[1] or (prior > counts[:X, :K]).any():
            raise ValueError("the restarts do not fit the counts")
        self.prior_counts[:, :X, :K], self.restarts[:, :X] = prior, arrays["restarts"]


@compiled
def update_restarted_radii(pairs, tally, prior, restarts, logs, pair_logs, branching, out):  # type: ignore[no-untyped-def]
    """Restart these pairs if due, and write their frequencies and radii into ``out`` (PairRadii)."""
    recent, settled = tally.recent.copy(), tally.settled.copy()
    own = PairCounts(tally.counts, recent, tally.support, tally.n, settled)
    for x in pairs:
        n, o = tally.n[x], tally.support[x]
        if n == 0:
            continue
        if restarts[2, x] != o:
            # A new successor: the counts with it are the prior of the first ball for o successors.
            prior[0, x] = prior[1, x] = tally.counts[x] - tally.recent[x]
            restarts[0, x], restarts[1, x], restarts[2, x] = 0, 0, o
        elif n >= max(FIRST_RESTART, RESTART_FACTOR * prior[1, x].sum()):
            prior[0, x], restarts[0, x] = prior[1, x], restarts[1, x]
            prior[1, x], restarts[1, x] = tally.counts[x], restarts[1, x] + 1
        recent[x], settled[x] = tally.counts[x] - prior[0, x], prior[0, x].sum()
        fresh = n - settled[x]
        for k in range(o):
            out.p[x, k] = tally.counts[x, k] / n
            out.p_split[x, k] = recent[x, k] / fresh if fresh > 0 else out.p[x, k]
        # The j-th restart, from 0, has the share 1 / ((j + 1)(j + 2)) of the event of its pair and support.
        share = math.log((restarts[0, x] + 1.0) * (restarts[0, x] + 2.0))
        out.r[x] = observed_ball_radius(x, own, logs[1] + pair_logs[x] + share)
        out.q[x] = unseen_mass_bound(n - tally.settled[x], o, logs[2] + pair_logs[x]) if o < branching else 0.0
