"""``adagoal.certify_data``: certify goals from recorded transitions, or begin an exploration with their counts.

Transitions are counted in order and planned without a step; pairs to try next come from imagined further tries. The
four events of docs/theory.md hold at all times at once, so it does not matter who chose the actions. Two of them
depend on the order of the transitions: lemma 2 starts again at every new successor, and pairs enter the window of
lemma 3b at times that depend on the past alone. So the log is counted in its order, and the estimates look at the
counts again and again on the way, as in a run.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from threadpoolctl import threadpool_limits

from adagoal import goal_rules, methods
from adagoal.certified.uncertain_reset import ExactResetEstimates
from adagoal.core.array_types import Bools, Longs
from adagoal.core.environment import RolloutOutcome
from adagoal.core.errors import OBJECT_ENV_PREFIX, InputError, Status, to_single_line
from adagoal.core.exploration_run import ExplorationRun, PlanningEstimates, SupportsFinalize, record_rollout
from adagoal.core.goal_spec import GoalsArgument, parse_goals
from adagoal.core.random_streams import StreamPurpose, random_stream
from adagoal.core.run_settings import ExplorationSettings
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.validation import check_arguments, check_folder_path, to_python_scalar
from adagoal.envs.gym_adapter import GymAdapter
from adagoal.envs.logged_env import LoggedEnv
from adagoal.envs.recorded_transitions import RecordedTransitions, read_transitions
from adagoal.envs.simulator import ModelSimulator
from adagoal.runs.exploration_session import ExplorationSession
from adagoal.runs.result import Result

DATA_WARNING = "recorded transitions, and the certificates assume that none was left out because of its outcome"


def certify_data(
    data: Any,
    radius: float | str,
    epsilon: float = 1.0,
    delta: float = 0.1,
    *,
    start: Any = None,
    goals: GoalsArgument | None = None,
    actions: Sequence[Any] | None = None,
    reset_action: Any = None,
    columns: Mapping[str, str] | None = None,
    n_states: int | None = None,
    branching: int | None = None,
    out: str | Path | None = None,
) -> Result:
    """Certify which goals can be reached within a radius, from recorded transitions alone (docs/logs.md).

    The status is "certified" if the data suffice for every goal, and otherwise "budget": ``result.open_goals`` are not
    decided, and ``result.pairs_to_try()`` lists what to try next. Anybody may have chosen the actions. But every
    transition must be there, in the order in which it was taken, whatever its outcome was.

    Parameters
    ----------
    data: a CSV file with the columns state, action, next_state and, if known, terminated and episode; an event log with
        the columns case and activity; a data frame or mapping of such columns; arrays (s, a, s'[, terminated[,
        episode]]); an iterable of such transitions; or a Minari dataset with discrete observations and actions
        ("minari:ID").
    radius: L >= 1, in expected steps from the start.
    epsilon: accuracy in steps, > 0.
    delta: probability that the answer is wrong, in (0, 1).
    start: the state to which the reset leads. By default the state in which all episodes begin; if they begin in
        several, or with "random", a virtual start draws the first state.
    goals: as in :func:`adagoal.explore`; every state by default.
    actions: all actions, if some of them are not in the data.
    reset_action: the action that stands for the reset, if the data contain resets.
    columns: the names of the columns, if they differ: {"state": "s", "next_state": "s2"}.
    n_states: the number of states that exist, seen or not, or a bound on it, if you know one; a virtual start, and the
        start and the end of an event log, are not counted.
    branching: no pair has more than this many successors, if you know it.
    out: folder for the result.

    Examples
    --------
    A switch that is on or off, tried 400 times each way:

    >>> rows = [("off", "press", "on"), ("on", "press", "off")] * 400
    >>> result = adagoal.certify_data(rows, radius=2, start="off", n_states=2)
    >>> str(result.status), [result.label(goal) for goal in result.goals]
    ('certified', ['off', 'on'])
    """
    folder = None if out is None else check_folder_path("out", out)
    check_arguments(ExplorationSettings, radius=radius)
    # "auto" and "all" are radii of explorations.
    if isinstance(radius, str):
        raise InputError(f"must be a number >= 1, got {radius!r}; a log has no further steps to grow with", "radius")
    goal_spec = parse_goals(goals)
    log = read_transitions(data, columns, reset_action)
    env = LoggedEnv(log, start, actions, to_python_scalar(n_states))
    setting = ExplorationSettings(
        env=f"{OBJECT_ENV_PREFIX}{Path(log.name).stem or 'log'}",
        method_args={} if branching is None else {"branching": branching},
        radius=radius,
        epsilon=epsilon,
        delta=delta,
        goal_space=goal_spec.states,
        goal_sets=goal_spec.description,
        max_states=n_states,
    )
    with _name_branching_in_errors():
        session = ExplorationSession.from_settings(setting, env, goal_rules.resolve_rule("adagoal"), goal_spec.code)
    env.add_warning(f"the data are {len(log):,} {DATA_WARNING}")
    for goal, name in enumerate(session.run.goal_space.names or ()):
        if not session.run.goal_space.states_of_goal(goal).any():
            env.add_warning(f"no state of the goal {to_single_line(name)} is in the data")
    with _name_branching_in_errors():
        result = certify_log(session)
    if folder is not None:
        result.save(folder)
    return result


@contextlib.contextmanager
def _name_branching_in_errors() -> Iterator[None]:
    """Name the argument ``branching`` in errors about the arguments of the method; it is the only one."""
    try:
        yield
    except InputError as error:
        if error.name != "method_args":
            raise
        raise InputError(error.reason.removeprefix("branching "), "branching") from None


def begin_with_data(session: ExplorationSession, data: Any) -> None:
    """Count recorded transitions of the environment of a run before its first step."""
    run, env = session.run, session.run.env
    if session.setting.method != "certified":
        text = f"works with the method certified only: {session.setting.method} needs data that it has chosen itself"
        raise InputError(text, "data")
    if not isinstance(env, ModelSimulator | GymAdapter) or env.initial_states < env.state_bound:
        text = f"the states of {env.name} have no numbers before the run; certify_data certifies data by themselves"
        raise InputError(text, "data")
    log = read_transitions(data)
    # The seed alone may be that of the recorder: the run would draw the same numbers, and count them as new ones.
    digest = zlib.crc32(np.concatenate([log.state, log.action, log.next_state]).tobytes())
    run.rng = random_stream(session.setting.seed, StreamPurpose.AFTER_DATA, digest)
    if isinstance(env, GymAdapter):
        env.reset_with_seed(int(run.rng.integers(2**31)))
        if env.has_action_mask:
            text = f"{env.name} has action masks, which the data lack; give the environment by its name"
            raise InputError(text, "data")
    moves, landed = _translate(log, env)
    if isinstance(env, ModelSimulator):
        run.counts.mark_absent_pairs(np.flatnonzero(env.mdp.absent))
        run.counts.terminal[landed] = env.mdp.terminal[landed]
    else:
        if not log.has_terminated:
            raise InputError(f"{env.name} may end episodes, so the data need the column terminated (0 or 1)", "data")
        run.counts.terminal[landed[log.terminated]] = True
    env.add_warning(f"the run began with {len(log):,} {DATA_WARNING}")
    with run.measure_seconds():
        count_recorded_steps(run, moves, landed)
        plan_until_settled(run)


def _translate(log: RecordedTransitions, env: ModelSimulator | GymAdapter) -> tuple[Longs, Longs]:
    """Return the moves of a log, and the states after them, in the numbers of the environment."""
    states = _find_numbers(log.states, env.labels, env.state_bound, "state", env.name)
    # The action after the last one is the reset, as in adagoal.transitions.
    actions = _find_numbers(log.actions, (), env.n_actions + 1, "action", env.name)
    state, action, landed = states[log.state], actions[log.action], states[log.next_state]
    is_reset = action == env.n_actions
    moves: Longs = np.where(is_reset, -1 - state, state * env.n_actions + action)
    problems = {"a reset leads to the start, not to {}": is_reset & (landed != env.start)}
    if isinstance(env, ModelSimulator):
        mdp = env.mdp
        problems["it leaves a terminal state for {}"] = mdp.terminal[state] & ~is_reset
        possible = np.repeat(np.arange(len(mdp.indptr) - 1), np.diff(mdp.indptr)) * mdp.n_states + mdp.successors
        # Beyond the model there is no room in the arrays of the compiled simulator.
        impossible = ~np.isin(moves * mdp.n_states + landed, possible) & ~is_reset
        problems["this action cannot lead to {} in the model"] = impossible & ~mdp.absent[np.maximum(moves, 0)]
    for text, wrong in problems.items():
        if wrong.any():
            i = int(np.argmax(wrong))
            log.fail_at(i, text.format(to_single_line(log.states[log.next_state[i]])))
    if isinstance(env, ModelSimulator):
        # An action that the state does not have is known to be the reset, and is not counted.
        kept = is_reset | ~env.mdp.absent[np.maximum(moves, 0)]
        return moves[kept], landed[kept]
    return moves, landed


def _find_numbers(values: Sequence[Any], labels: Sequence[str], size: int, kind: str, env: str) -> Longs:
    """Return the numbers of states or actions: those of their labels, or the numbers that they are."""
    known = {str(number): number for number in range(size)} | {label: number for number, label in enumerate(labels)}
    for value in values:
        if str(value) not in known:
            raise InputError(f"{env} has no {kind} {to_single_line(value)!r}; it has 0 to {size - 1}", "data")
    return np.array([known[str(value)] for value in values])


MIN_LOOK_STEPS, LOOK_DIVISOR = 16, 64  # the estimates look at the counts when these have grown by 1/64
MAX_PLANS = 50  # the most plans of all goals
PLAN_TOLERANCE = 1e-3  # plan again while all intervals together become shorter by this many epsilons
MAX_DESIGN_PAIRS = 4_000  # no pairs to try next are computed for larger logs: that takes about ten plans


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
    for _ in range(24):  # up to 2^25 tries
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
    n_tries = counts.n.sum()
    resets = counts.visits - counts.n.reshape(counts.n_states, -1).sum(axis=1)
    untried = pairs[counts.n[pairs] == 0]
    counts.successor[untried, 0], counts.support[untried] = counts.start, 1
    counts.count[untried, 0] = counts.n[untried] = counts.settled[untried] = 1
    added = np.round(counts.count[pairs] * ((m - counts.n[pairs]) / counts.n[pairs])[:, None]).astype(np.int64)
    counts.count[pairs] += added
    counts.recent[pairs] += added
    counts.n[pairs] += added.sum(axis=1)
    # As many resets per try as in the log: a start that is only believed needs them.
    counts.visits[:] = counts.n.reshape(counts.n_states, -1).sum(axis=1)
    counts.visits += np.round(resets * (counts.n.sum() / n_tries)).astype(np.int64)
