"""Interval MDPs and L1 balls with robust value iteration: what the model-checking community does, in the same loop.

Everything is as in the certified method (:mod:`adagoal.tabular.certified`), the loop, the goal rule, the optimistic
policies and the stopping rule, except for two things: what the counts say about the kernel (:mod:`adagoal.rivals.looks`
has the three bounds, and what they pay for), and that bounds on values are all there is (no action gaps):

    D_g      from  V <- max(V, T_low V)
    upper_g  from  Y <- min(Y, T_up Y),   for the policy that attains it       (:mod:`adagoal.planning.robust`)
    E_g      = upper_g - D_g,   with C = L + 1 + epsilon in place of upper_g where there is no policy yet

The sets hold the true kernel at all times with probability 1 - delta, so that lemmas 5 and 6 and the consequence of the
theorem in docs/theory.md apply word by word: a run that stops by its rule is certified.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adagoal.core.counts import MAX_TRANSITIONS, TransitionCounts
from adagoal.core.goalspace import GoalSpace
from adagoal.core.schema import COUNT_SCHEMA, ArraySchema, ArraySpec, check_arrays, check_json_value, object_schema
from adagoal.core.types import Actions, Bools, Floats, Longs
from adagoal.core.world import ExplorationPlan
from adagoal.planning.backend import NUMBA_BACKEND, Backend
from adagoal.planning.model import GoalBlock
from adagoal.rivals.looks import FixedSampleSets
from adagoal.tabular.columns import GoalTable

MAX_ROBUST_SWEEPS = 20
"""Sweeps per plan, at most; the next plan goes on from where this one stopped."""


class IntervalEstimates(GoalTable):
    """Robust bounds on shared counts; see the module's text."""

    name = "intervals"
    guarantee = True
    episodes_per_plan = 1_000_000

    def __init__(
        self,
        counts: TransitionCounts,
        state_bound: int,
        L: float,
        epsilon: float,
        delta: float,
        space: GoalSpace | None = None,
        bound: str = "clopper-pearson",
        branching: int | None = None,
        pairs: int | None = None,
        backend: Backend = NUMBA_BACKEND,
    ) -> None:
        super().__init__(counts, L + 1.0 + epsilon, space or GoalSpace.from_states(counts.n_states, state_bound))
        self.L, self.epsilon, self._backend = L, epsilon, backend
        pairs = pairs or state_bound * counts.n_actions
        self.sample_sets = FixedSampleSets(counts, pairs, delta, branching or state_bound, bound)
        self.plans = 0
        self._sync_with_counts()

    @property
    def E(self) -> Floats:
        """[columns] error estimates."""
        missing: Floats = np.maximum(np.minimum(self.upper, self.cap) - self.D, 0.0)
        return missing

    def goal_policy(self, goal: int) -> Actions:
        """[1, S] the policy that the certificate speaks of; the optimistic one as long as there is none."""
        return self.proven_policy(goal, self.best)

    def refresh_columns(self, wanted: Bools) -> bool:
        """Bring one block of ``wanted`` [columns] up to date; False if none of them was stale."""
        self._sync_with_counts()
        wanted = np.pad(wanted, (0, len(self.D) - len(wanted)))
        todo = np.flatnonzero(self.stale & wanted)
        if not len(todo):
            return False
        worst_first = todo[np.argsort(-self.E[todo], kind="stable")]
        self._sweep_block(np.sort(worst_first[: self._backend.block_size]))
        return True

    def exploration_plan(self) -> ExplorationPlan:
        """The optimistic policies, until a pair is to be looked at."""
        limit = math.ceil(min(4 * self.cap * (self.L + 1) / self.epsilon, 2**62))
        return ExplorationPlan(
            self.optimistic[None],
            self.goal_state,
            limit,
            self.sample_sets.next_sample_counts,
            self.space.goals_of_states,
        )

    def set_radius(self, L: float, stage: int) -> None:
        """Go on with a larger radius (label ``cor_UB_increasingL``); the sets of kernels do not depend on it."""
        unfinished = ~np.isfinite(self.upper)
        self.L, self.cap = L, L + 1.0 + self.epsilon
        self.Y[:, unfinished], self.best[:, unfinished] = self.cap, self.counts.n_actions
        self.zero_at_goals(np.flatnonzero(unfinished))
        self.stale[:] = True

    def extra_arrays(self) -> dict[str, NDArray[Any]]:
        """None."""
        return {}

    def _sync_with_counts(self) -> None:
        """Take in new counts: room for what is new, and new looks."""
        self.add_rows()
        self.add_columns()
        if self.sample_sets.update_sets():
            self.stale[:] = True

    def _sweep_block(self, block: Longs) -> None:
        """Both bounds of the columns of the block."""
        model, start, order = self.sample_sets.robust_model(), self.counts.start, np.flatnonzero(self.counts.seen)
        setting = GoalBlock(
            order, self.block_columns(block), self.cap, True, MAX_ROBUST_SWEEPS, tolerance=1e-3 * self.epsilon
        )
        V, optimistic = self._backend.robust_lower_bounds(model, setting, self.V[:, block], self.optimistic[:, block])
        Y, best = self._backend.robust_upper_bounds(model, setting, self.Y[:, block], self.best[:, block])
        self.V[:, block], self.optimistic[:, block], self.Y[:, block], self.best[:, block] = V, optimistic, Y, best
        self.D[block] = np.maximum(self.D[block], V[start])
        self.upper[block] = np.where(Y[start] <= self.cap - 1.0, Y[start], np.inf)
        self.stale[block] = False
        self.plans += 1

    SAMPLE_SCHEMA: ClassVar[ArraySchema] = {"look_count": ArraySpec("int64", ("P", "K"), low=0, high=MAX_TRANSITIONS)}
    FACTS_SCHEMA = object_schema(plans=COUNT_SCHEMA)

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Everything that the counts do not determine."""
        return self.table_state() | {"look_count": self.sample_sets.sampled_counts}, {"plans": self.plans}

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """The inverse of :meth:`state`, on restored counts; the next plan takes them in as it would have."""
        check_json_value(self.FACTS_SCHEMA, facts)
        check_arrays(self.SAMPLE_SCHEMA, arrays)
        self.restore_table(arrays)
        self.sample_sets.restore_counts(arrays["look_count"])
        self.plans = facts["plans"]
