"""``adagoal export``: certificates as CSV, or policies and interval MDPs of a run for model checkers (DRN, UMB).

Three models have the same states (numbered as in the run) and the reset as an action of every state. docs/models.md
says why their intervals hold.

``certified``
    Interval MDP: with probability 1 - delta every probability of the true kernel lies in its interval. The mass of
    successors that were never observed goes to the state *elsewhere*, and pairs never tried lead there; its only choice
    costs nothing and leads to every state with a probability in [0, 1]. If the number of states is unknown, the state
    *unseen* stands for all states never entered. If the start is uncertain, the reset leads *elsewhere* with a
    probability of at most :attr:`UncertainReset.q` (lemma 10).

``graph-preserving``
    The observed successors only, with lower ends of at least :data:`MIN_GRAPH_PROBABILITY`, for model checkers that
    decide by the graph which states can be reached.

``empirical``
    The frequencies, without any guarantee.

A run with ``within`` asks for probabilities in k steps without a reset, so its models have no reset, and a state
without a choice stays. A detour over *elsewhere* would take a step, so unobserved mass may go to two states that are
never left: *anything*, which counts as every goal, and *nothing*. ``properties.props`` has the question of every goal.

In the models the goal g has the label ``goal_g``. ``policies.json`` has the goals with their certificates and
policies. ``certificates.csv`` is the table of certificates of any run.
"""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from adagoal.api import explore as api
from adagoal.certified.confidence_sets import ConfidenceSets, conditional_intervals
from adagoal.certified.explorer import CertifiedExplorer
from adagoal.certified.uncertain_reset import UncertainReset
from adagoal.core.array_types import Bools, Floats
from adagoal.core.environment import TabularEnv
from adagoal.core.errors import InputError
from adagoal.core.file_io import write_json, write_text
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.validation import check_folder_path
from adagoal.envs import storm_formats
from adagoal.envs.simulator import ModelSimulator
from adagoal.envs.storm_formats import ExplicitChoice, ExplicitState
from adagoal.planning.model_arrays import EmpiricalModel
from adagoal.runs.load_result import load_result
from adagoal.runs.result import Result
from adagoal.tabular.reach_probabilities import ReachProbabilities

# Smallest lower end in the graph-preserving model. Model checkers treat 0 as "no edge", so it must be positive.
MIN_GRAPH_PROBABILITY = 1e-9


class ExportedRun(NamedTuple):
    """What the three models are made from."""

    env: TabularEnv
    counts: TransitionCounts
    empirical: EmpiricalModel
    reset_q: float  # largest probability with which the reset leads elsewhere; 0: the start is certain
    n_states: int  # N: the states of the run that are written
    label_sets: dict[str, Bools]  # by label, whether a state has it [N]
    has_known_size: bool  # whether the number of states is known
    has_reset: bool  # False: the run is about attempts without a reset (``within``)


def export(
    run: str | Path | Result,
    format: str = "drn",
    out: str | Path | None = None,
    *,
    env: api.EnvOverride = None,
    trust: bool = False,
) -> list[Path]:
    """Write the results of a run for other programs and return the paths of the files.

    "drn" and "umb" write the certified interval MDP, a graph-preserving one, the empirical model, and the policies.
    "csv" writes ``certificates.csv`` with one row per goal that was seen.

    Parameters
    ----------
    run: the folder of a run, or a result. "drn" and "umb" need the folder, and a run of the method "certified".
    format: "drn" (Storm's text format), "umb" (needs the extra ``storm``) or "csv".
    out: a folder; by default ``export`` in the folder of the run.
    env: the environment, if the run used an object or code that is not installed.
    trust: run the code that the folder names.

    Examples
    --------
    >>> folder = result.save("runs/grid")
    >>> [path.name for path in adagoal.export(folder, "csv")]
    ['certificates.csv']
    """
    formats = ("drn", "umb", "csv")
    if format not in formats:
        raise InputError(f"must be one of {', '.join(formats)}, got {format!r}", "format")
    result = run if isinstance(run, Result) else load_result(check_folder_path("run", run))
    target = result.saved_folder() / "export" if out is None else check_folder_path("out", out)
    if format == "csv":
        path = target / "certificates.csv"
        write_text(path, _certificates_to_csv(result))
        return [path]
    exported = _load_exported_run(result.saved_folder(), result, env, trust)
    level = f"probability {1 - result.setting.delta:g}"
    low, high = conditional_intervals(exported.empirical)
    p = exported.empirical.p
    assumption = (
        f"It assumes that every successor of a tried pair has been observed and has a probability of at least "
        f"{MIN_GRAPH_PROBABILITY:g}, and that the reset leads to the start. Pairs never tried are left out."
    )
    certified = f"With {level} every true transition probability is in its interval."
    graph = f"With {level}, and under an assumption. {assumption}"
    empirical = "Frequencies, without a guarantee. Pairs never tried are left out."
    models = {
        "certified": (certified, _certified_states(exported, low, high)),
        "graph-preserving": (graph, _observed_states(exported, np.maximum(low, MIN_GRAPH_PROBABILITY), high)),
        "empirical": (empirical, _observed_states(exported, p, p)),
    }
    paths = []
    for name, model in models.items():
        paths.append(target / f"{name}.{format}")
        storm_formats.write_explicit_model(paths[-1], *model)
    paths.append(target / "policies.json")
    write_json(paths[-1], _policies_to_json(exported, result))
    if result.setting.within is not None:
        paths.append(target / "properties.props")
        questions = [f'Pmax=? [ !"avoid" U<={result.setting.within} "goal_{g}" ];\n' for g in result.goals]
        write_text(paths[-1], "".join(questions))
    return paths


def _certificates_to_csv(result: Result) -> str:
    """Return the rows of :meth:`Result.table`; unknown numbers are empty, booleans are 0 or 1."""
    text = io.StringIO()
    rows = [{name: _csv_value(value) for name, value in row.items()} for row in result.table()]
    table = csv.DictWriter(text, rows[0] if rows else ["goal"], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def _csv_value(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    return "" if isinstance(value, float) and not math.isfinite(value) else value


def _load_exported_run(folder: Path, result: Result, env: api.EnvOverride, trust: bool) -> ExportedRun:
    """Read the counts and confidence sets from the last checkpoint."""
    with api.open_restored_session(folder, env, trust) as session:
        estimates, run_env = session.run.estimates, session.run.env
    reset_q = 0.0
    # If the start is only inferred, the intervals of single transitions are those of the wrapped estimates.
    if isinstance(estimates, UncertainReset):
        reset_q, estimates = estimates.q, estimates.exact
    sets: Any = estimates.sets if isinstance(estimates, ReachProbabilities) else None
    if isinstance(estimates, CertifiedExplorer):
        sets = estimates.confidence
    if not isinstance(sets, ConfidenceSets):
        text = f"the method {result.setting.method} has no intervals for single transitions, only certified has"
        raise InputError(f"{text}; use the format csv", "run")
    if run_env.void_reasons:
        reason = run_env.void_reasons[0]
        raise InputError(f"the run is void ({reason}), so it has no valid intervals; mend the cause, run again", "run")
    # A run updates its radii when it plans, so a checkpoint may have counts that they do not include yet.
    sets.update_radii()
    counts = estimates.counts
    has_known_size = run_env.initial_states == run_env.state_bound
    # New states are numbered in order, so the largest number seen bounds the numbers given so far.
    n_states = counts.n_states if has_known_size else int(np.flatnonzero(counts.seen).max()) + 1
    label_sets = {f"goal_{g}": np.isin(np.arange(n_states), result.members(g)) for g in result.goals}
    # "init" is the format's own label of the start; the writer adds it. A set of the model that is called like the
    # label of a goal is left out.
    if isinstance(run_env, ModelSimulator):
        own, states = {"init", *label_sets}, run_env.model_states[:n_states]
        label_sets |= {name: members[states] for name, members in run_env.mdp.sets.items() if name not in own}
    has_reset = result.setting.within is None
    if not has_reset:
        label_sets["avoid"] = result.arrays["avoided"][:n_states]
    empirical = sets.empirical_model()
    return ExportedRun(run_env, counts, empirical, reset_q, n_states, label_sets, has_known_size, has_reset)


def _certified_states(run: ExportedRun, low: Floats, high: Floats) -> list[ExplicitState]:
    N = run.n_states
    if not run.has_reset:
        goals = [name for name in run.label_sets if name.startswith("goal_")]
        # "Anything" counts as every goal.
        anything = ExplicitState("anything", 1.0, [*goals, "anything"], [_deterministic_choice("stay", N)])
        nothing = ExplicitState("nothing", 1.0, ["nothing"], [_deterministic_choice("stay", N + 1)])
        return [*_observed_states(run, low, high, (N, N + 1)), anything, nothing]
    elsewhere = N if run.has_known_size else N + 1
    states = _observed_states(run, low, high, (elsewhere,))
    if not run.has_known_size:
        choices = [_deterministic_choice("untried", elsewhere), _reset_choice(run, (elsewhere,))]
        states.append(ExplicitState("unseen", 1.0, ["unseen"], choices))
    anywhere = ExplicitChoice("anything", np.arange(elsewhere), np.zeros(elsewhere), np.ones(elsewhere))
    # "Elsewhere" costs nothing: the state before counted the step there.
    return [*states, ExplicitState("elsewhere", 0.0, ["elsewhere"], [anywhere])]


def _observed_states(
    run: ExportedRun, low: Floats, high: Floats, elsewhere: tuple[int, ...] = ()
) -> list[ExplicitState]:
    """Return the states of the run; bounds [X, K] are on the observed successors."""
    states = []
    for s in range(run.n_states):
        labels = [name for name, members in run.label_sets.items() if members[s]]
        labels = ["init", *labels] if s == run.counts.start else labels
        choices = _choices_of_state(run, s, low, high, elsewhere)
        states.append(ExplicitState(_exported_state_name(run, s), 1.0, labels, choices))
    return states


def _choices_of_state(
    run: ExportedRun, state: int, low: Floats, high: Floats, elsewhere: tuple[int, ...]
) -> list[ExplicitChoice]:
    """Return the choices of a state. Bounds [X, K] are on p(. | O), the kernel given an observed successor.

    ``elsewhere`` are the states for unobserved successors; without any the model omits them.
    """
    model, counts, choices = run.empirical, run.counts, []
    action_names: tuple[str, ...] = ()
    if isinstance(run.env, ModelSimulator) and run.env.mdp.actions:
        first = int(run.env.model_states[state]) * counts.n_actions
        action_names = run.env.mdp.actions[first : first + counts.n_actions]
    for action in range(0 if counts.terminal[state] else counts.n_actions):
        x = state * counts.n_actions + action
        if counts.absent[x]:
            continue
        name = action_names[action] if action_names else f"a{action}"
        used = slice(int(model.support[x]))
        successors, ends = model.successor[x, used].astype(np.int64), (low[x, used], high[x, used])
        if not elsewhere:
            if model.support[x]:
                choices.append(ExplicitChoice(name, successors, *ends))
        elif not model.support[x] and len(elsewhere) == 1:
            choices.append(_deterministic_choice(name, elsewhere[0]))
        else:
            q = float(model.q[x]) if model.support[x] else 1.0
            unseen = elsewhere if q > 0 else ()
            # p = p(. | O) * P(O) and P(O) is in [1 - q, 1]: the lower end shrinks, the upper end stays.
            bounds = np.append((1 - q) * ends[0], [0.0] * len(unseen)), np.append(ends[1], [q] * len(unseen))
            successors = np.append(successors, unseen).astype(np.int64)
            choices.append(ExplicitChoice(name, successors, *bounds))
    if run.has_reset:
        return [*choices, _reset_choice(run, elsewhere)]
    return choices or [_deterministic_choice("stay", state)]


def _reset_choice(run: ExportedRun, elsewhere: tuple[int, ...]) -> ExplicitChoice:
    """Return the reset; it may lead ``elsewhere`` if the start is uncertain."""
    if not elsewhere or run.reset_q == 0.0:
        return _deterministic_choice("reset", run.counts.start)
    successors = np.array([run.counts.start, *elsewhere])
    return ExplicitChoice("reset", successors, np.array([1 - run.reset_q, 0.0]), np.array([1.0, run.reset_q]))


def _deterministic_choice(name: str, successor: int) -> ExplicitChoice:
    return ExplicitChoice(name, np.array([successor]), np.ones(1), np.ones(1))


def _exported_state_name(run: ExportedRun, state: int) -> str:
    labels = run.env.labels
    return labels[state] if state < len(labels) else ""


def _policies_to_json(run: ExportedRun, result: Result) -> dict[str, Any]:
    """Return the goals with their certificates and policies; actions are numbers, the largest is the reset."""

    def row(goal: int) -> dict[str, Any]:
        lower, upper = result.certificate(goal)
        actions = result.policy(goal).actions[:, : run.n_states]
        return {
            "goal": goal,
            "label": f"goal_{goal}",
            "name": result.goal_label(goal) if result.goal_names else _exported_state_name(run, goal),
            "states": result.members(goal),
            "lower": lower,
            "upper": upper if math.isfinite(upper) else None,
            # One table, or with ``within`` one for each step.
            "actions": actions.tolist() if result.setting.within is not None else actions[0].tolist(),
        }

    return {
        "delta": result.setting.delta,
        "radius": result.radius,
        "probability": result.setting.probability,
        "status": result.status,
        "reset_action": result.reset_action,
        "goals": [row(goal) for goal in result.goals],
    }
