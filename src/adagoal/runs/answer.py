"""What a run would answer now: its estimates as a result."""

from __future__ import annotations

import numpy as np

from adagoal.core.run import Run
from adagoal.core.status import Status
from adagoal.runs.result import Certificate, Result
from adagoal.runs.setting import Setting
from adagoal.runs.view import View
from adagoal.worlds import storage


def answer(setting: Setting, run: Run, status: Status) -> Result:
    """The goals believed to lie within the radius, with their bounds, policies and history; nothing in it changes."""
    estimates = run.estimates
    own = estimates.goal_state[estimates.column[estimates.goals]] >= 0
    met = np.isin(estimates.goals, run.space.at[: run.counts.n_states][run.counts.seen])
    seen = estimates.goals[own | met].tolist()
    chosen = [int(g) for g in estimates.goals[own] if estimates.D[estimates.column[g]] <= estimates.L]
    still = run.open_columns()
    policies = [estimates.policy(g) for g in chosen]
    S = run.counts.n_states
    run.space.grow(S)
    observed = run.world.observed() if hasattr(run.world, "observed") else None
    promised = _promised(run) if observed is not None and len(observed.digests) else []
    empty = np.zeros((0, 1, S), np.int16)
    return Result(
        setting=setting,
        status=status,
        radius=float(estimates.L),
        certified_radius=float(estimates.L) if status is Status.CERTIFIED else None,
        goals=chosen,
        certificates={g: Certificate(*estimates.bounds(g)) for g in seen},
        errors={g: float(estimates.E[estimates.column[g]]) for g in chosen},
        open_goals=[g for g in chosen if still[estimates.column[g]]],
        guarantee=estimates.guarantee,
        steps=run.steps,
        episodes=len(run.episode_goals),
        plans=estimates.plans,
        wall_seconds=run.seconds,
        reset_action=run.world.n_actions,
        warnings=[*run.world.warnings, *promised, *([] if estimates.guarantee else run.world.void)],
        void=[],
        model=storage.own(run.world),
        goal_names=None if run.space.names is None else tuple(run.space.names),
        view=View.of(run.world),
        arrays={
            "policy": np.stack(policies) if policies else empty,
            "policy_goals": np.array(chosen, np.int64),
            "episode_goals": np.array(run.episode_goals, np.int32),
            "episode_reached": np.array(run.episode_reached, bool),
            "trace": np.array(run.trace, float).reshape(-1, 4),
            "visits": run.counts.visits.copy(),
            **({} if run.space.own else {"goals_at": run.space.at[:S].astype(np.int32)}),
            **({"observations": observed.digests} if observed is not None and len(observed.digests) else {}),
            **run.past.arrays(),
            **run.counts.moves(),
            **estimates.extras(),
        },
    )


def _promised(run: Run) -> list[str]:
    """Where states are numbered as they are found: what may be a slip of the user, as nobody can check it."""
    met = run.space.at[: run.counts.n_states]
    lines = [f"no state of the goal {n} was met" for g, n in enumerate(run.space.names or ()) if not (met == g).any()]
    if run.counts.seen.sum() == run.world.state_bound:
        lines.append("the certificates rest on your word (max_states) that there are no other states than those met")
    return lines
