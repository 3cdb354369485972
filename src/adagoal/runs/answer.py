"""What a run would answer now: its estimates as a result."""

from __future__ import annotations

import numpy as np

from adagoal.core.run import ExplorationRun
from adagoal.core.status import Status
from adagoal.runs.result import Certificate, Result
from adagoal.runs.setting import ExplorationSettings
from adagoal.runs.view import StateMetadata
from adagoal.worlds import storage


def build_result(setting: ExplorationSettings, run: ExplorationRun, status: Status) -> Result:
    """The goals believed to lie within the radius, with their bounds, policies and history; nothing in it changes."""
    estimates = run.estimates
    own = estimates.goal_state[estimates.column[estimates.goals]] >= 0
    met = np.isin(estimates.goals, run.goal_space.goals_of_states[: run.counts.n_states][run.counts.seen])
    seen = estimates.goals[own | met].tolist()
    chosen = [int(g) for g in estimates.goals[own] if estimates.D[estimates.column[g]] <= estimates.L]
    still = run.open_columns()
    policies = [estimates.goal_policy(g) for g in chosen]
    S = run.counts.n_states
    run.goal_space.grow_states(S)
    observed = run.env.observed_states() if hasattr(run.env, "observed_states") else None
    promised = _unverified_assumptions(run) if observed is not None and len(observed.digests) else []
    empty = np.zeros((0, 1, S), np.int16)
    return Result(
        setting=setting,
        status=status,
        radius=float(estimates.L),
        certified_radius=float(estimates.L) if status is Status.CERTIFIED else None,
        goals=chosen,
        certificates={g: Certificate(*estimates.distance_bounds(g)) for g in seen},
        errors={g: float(estimates.E[estimates.column[g]]) for g in chosen},
        open_goals=[g for g in chosen if still[estimates.column[g]]],
        guarantee=estimates.guarantee,
        steps=run.steps,
        episodes=len(run.episode_goals),
        plans=estimates.plans,
        wall_seconds=run.seconds,
        reset_action=run.env.n_actions,
        warnings=[*run.env.warnings, *promised, *([] if estimates.guarantee else run.env.void_reasons)],
        void=[],
        model=storage.find_user_model(run.env),
        goal_names=None if run.goal_space.names is None else tuple(run.goal_space.names),
        view=StateMetadata.from_env(run.env),
        arrays={
            "policy": np.stack(policies) if policies else empty,
            "policy_goals": np.array(chosen, np.int64),
            "episode_goals": np.array(run.episode_goals, np.int32),
            "episode_reached": np.array(run.episode_reached, bool),
            "trace": np.array(run.trace, float).reshape(-1, 4),
            "visits": run.counts.visits.copy(),
            **(
                {}
                if run.goal_space.goals_are_states
                else {"goals_at": run.goal_space.goals_of_states[:S].astype(np.int32)}
            ),
            **({"observations": observed.digests} if observed is not None and len(observed.digests) else {}),
            **run.bounds_history.to_arrays(),
            **run.counts.empirical_model_arrays(),
            **estimates.extra_arrays(),
        },
    )


def _unverified_assumptions(run: ExplorationRun) -> list[str]:
    """Where states are numbered as they are found: what may be a slip of the user, as nobody can check it."""
    met = run.goal_space.goals_of_states[: run.counts.n_states]
    lines = [
        f"no state of the goal {n} was met" for g, n in enumerate(run.goal_space.names or ()) if not (met == g).any()
    ]
    if run.counts.seen.sum() == run.env.state_bound:
        lines.append("the certificates rest on your word (max_states) that there are no other states than those met")
    return lines
