"""Certificates from recorded transitions: count them in order, plan without a step, and say which pairs to try next.

The four events of docs/theory.md hold at all times at once, so it does not matter who chose the actions. Two of them
depend on the order of the transitions: lemma 2 starts again at every new successor, and pairs enter the window of
lemma 3b at times that depend on the past alone. So the log is counted in its order, and the estimates look at the
counts again and again on the way, as in a run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
from threadpoolctl import threadpool_limits

from adagoal import methods
from adagoal.certified.reset import ExactResetEstimates
from adagoal.core.environment import RolloutOutcome
from adagoal.core.errors import Status
from adagoal.core.exploration_run import ExplorationRun, PlanningEstimates, SupportsFinalize, record_rollout
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.types import Bools, Longs
from adagoal.envs.logged_env import LoggedEnv
from adagoal.runs.exploration_session import ExplorationSession
from adagoal.runs.result import Result

MIN_LOOK_STEPS, LOOK_DIVISOR = 16, 64  # the estimates look at the counts when these have grown by 1/64
MAX_PLANS = 50  # the most plans of all goals
PLAN_TOLERANCE = 1e-3  # plan again while all intervals together become shorter by this many epsilons
MAX_DESIGN_PAIRS = 4_000  # no pairs to try next are computed for larger logs: that takes about ten plans
MAX_TRIES_DOUBLINGS = 24


def count_recorded_steps(run: ExplorationRun, moves: Longs, landed: Longs) -> None:
    """Count steps in order (see :mod:`adagoal.core.transition_data`), and let the estimates look at them on the way."""
    estimates, done = cast(PlanningEstimates, run.estimates), 0
    while done < len(moves):
        end = done + max(MIN_LOOK_STEPS, done // LOOK_DIVISOR)
        run.counts.add_steps(moves[done:end], landed[done:end])
        # No goal is wanted, so nothing is planned: pairs enter the window, or close it.
        estimates.refresh_columns(np.zeros(len(estimates.D), bool))
        done = end


def certify_log(session: ExplorationSession) -> Result:
    """Return the result of a session on a :class:`LoggedEnv`, without a step.

    Its status is "certified" if no goal is open, and otherwise "budget".
    """
    run, env = session.run, cast(LoggedEnv, session.run.env)
    with threadpool_limits(limits=1, user_api="blas"), run.measure_seconds():
        run.counts.terminal |= env.terminal
        run.counts.mark_absent_pairs(env.absent_pairs)
        count_recorded_steps(run, *env.moves())
        plan_until_settled(run)
        record_rollout(run, RolloutOutcome())
        is_open = run.has_open_goals()
        result = session.result(Status.BUDGET if is_open else Status.CERTIFIED)
        if is_open and result.status is not Status.VOID and len(run.counts.n) <= MAX_DESIGN_PAIRS:
            result = replace(result, arrays={**result.arrays, "more_tries": _more_tries(session)})
    return replace(result, wall_seconds=run.seconds)


def plan_until_settled(run: ExplorationRun) -> None:
    """Plan all goals within the radius until no interval becomes shorter."""
    # Also goals that are not open: without further steps, planning is all that can sharpen their intervals.
    before = np.inf
    for _ in range(MAX_PLANS):
        cast(SupportsFinalize, run.estimates).finalize(np.ones(len(run.estimates.D), bool))
        width = _total_width(run)
        if before - width <= PLAN_TOLERANCE * run.estimates.epsilon:
            return
        before = width


def _total_width(run: ExplorationRun) -> float:
    estimates = cast(ExactResetEstimates, run.estimates)
    inside = estimates.D <= estimates.L
    return float((np.minimum(estimates.upper, estimates.cap) - estimates.D + run.estimates.E)[inside].sum())


def _more_tries(session: ExplorationSession) -> Longs:
    """[X] tries that pairs still need, roughly: the least m such that m tries of every pair in reach would do.

    Further tries are assumed to have the frequencies of those in the log, and tries of a pair that was never tried to
    lead to the start. Pairs in reach are those of states that the log reaches in at most L steps.
    """
    counts = session.run.counts
    in_reach = np.repeat(_states_in_reach(counts, session.run.estimates.L) & ~counts.terminal, counts.n_actions)
    pairs = np.flatnonzero(in_reach & ~counts.absent)
    tries, m = counts.n[pairs], 2
    for _ in range(MAX_TRIES_DOUBLINGS):
        m *= 2
        if m > tries.min() and not _would_be_open(session, pairs, m):
            break
    more = np.zeros(len(counts.n), np.int64)
    more[pairs] = np.maximum(m - tries, 0)
    return more


def _states_in_reach(counts: TransitionCounts, radius: float) -> Bools:
    """[S] states that observed transitions reach from the start in at most ``radius`` steps."""
    model = counts.empirical_model_arrays()
    source, target = model["moves_pair"] // counts.n_actions, model["moves_to"]
    reached = np.zeros(counts.n_states, bool)
    reached[counts.start] = True
    for _ in range(int(min(radius, counts.n_states))):
        before = int(reached.sum())
        reached[target[reached[source]]] = True
        if int(reached.sum()) == before:
            break
    return reached


def _would_be_open(session: ExplorationSession, pairs: Longs, m: int) -> bool:
    """Return whether a goal would be open after ``m`` tries of these pairs, as :func:`_more_tries` imagines them."""
    run, setting = session.run, session.setting
    counts = TransitionCounts(run.counts.n_states, run.counts.n_actions, run.counts.start)
    counts.restore(run.counts.state())
    problem = methods.ExplorationProblem(
        run.env, counts, run.estimates.L, setting.epsilon, setting.delta, run.goal_space, setting.seed
    )
    estimates = cast(PlanningEstimates, methods.build_estimates(setting.method, problem, setting.method_args))
    estimates.restore(*run.estimates.state())
    _imagine_tries(counts, pairs[counts.n[pairs] < m], m)
    imagined = ExplorationRun(run.env, estimates, run.goal_rule, run.rng, goal_space=run.goal_space)
    plan_until_settled(imagined)
    return imagined.has_open_goals()


def _imagine_tries(counts: TransitionCounts, pairs: Longs, m: int) -> None:
    """Raise the counts of pairs to about ``m``, with the same frequencies."""
    untried = pairs[counts.n[pairs] == 0]
    counts.successor[untried, 0], counts.support[untried] = counts.start, 1
    counts.count[untried, 0] = counts.n[untried] = counts.settled[untried] = 1
    added = np.round(counts.count[pairs] * ((m - counts.n[pairs]) / counts.n[pairs])[:, None]).astype(np.int64)
    counts.count[pairs] += added
    counts.recent[pairs] += added
    counts.n[pairs] += added.sum(axis=1)
    np.add.at(counts.visits, pairs // counts.n_actions, added.sum(axis=1))
