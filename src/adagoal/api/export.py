"""What a run knows about its world, for model checkers: intervals that hold the true kernel, and the empirical one.

Three models with the same states (the numbers are those of the run) and the reset as an action of every state:

``certified``
    Every probability of the true kernel lies in its interval, all of them at once, with probability 1 - delta
    (:mod:`adagoal.certified.events`). Two states stand for what is not known. The mass of successors never observed
    goes to the state *elsewhere*, from which anything may follow: its one choice costs nothing and leads to every
    state with a probability in [0, 1]. A pair never tried leads there too. Where the number of states is not known,
    one state *unseen* stands for all that have never been entered. Where the world cannot vouch for its start, the
    reset too leads *elsewhere* with a probability of at most :attr:`BelievedReset.q` (lemma 10). So nature, who picks
    the probabilities, can do whatever the true world may do, and robust values enclose the true ones.

``graph-preserving``
    Model checkers decide by the graph which states can be reached at all, and want lower ends above zero. This model
    assumes that every successor of a pair that was tried has been observed (there is no *elsewhere*), that each has a
    probability of at least :data:`MIN_GRAPH_PROBABILITY`, that the reset leads to the start, and that pairs never tried
    need not be considered (they are left out).

``empirical``
    The frequencies, without any guarantee. Pairs never tried are left out.

``policies.json`` has the goals of the result with their certificates and policies. In the models, the goal g has the
label ``goal_g``.

``certificates.csv`` is the table of certificates alone, of any run.
"""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from adagoal.api import explore as api
from adagoal.certified.events import conditional_intervals
from adagoal.certified.explorer import CertifiedExplorer
from adagoal.certified.reset import UncertainReset
from adagoal.core.argument_checks import check_folder_path
from adagoal.core.environment import TabularEnv
from adagoal.core.errors import InputError
from adagoal.core.file_io import write_json, write_text
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.types import Bools, Floats, Longs
from adagoal.envs import storm_formats
from adagoal.envs.simulator import ModelSimulator
from adagoal.envs.storm_formats import ExplicitModel
from adagoal.planning.model_arrays import EmpiricalModel
from adagoal.runs.result import Result, load_result

EXPORT_FORMATS = ("drn", "umb", "csv")
CERTIFICATES_FILE = "certificates.csv"
MIN_GRAPH_PROBABILITY = 1e-9
"""The least lower end of the graph-preserving model."""
RESET_ACTION_NAME, UNTRIED, ANYTHING = "reset", "untried", "anything"
GRAPH_ASSUMPTION_TEXT = (
    f"It assumes that every successor of a tried pair has been observed "
    f"and has a probability of at least {MIN_GRAPH_PROBABILITY:g}, "
    "and that the reset leads to the start. Pairs never tried are left out."
)


class ExportedRun(NamedTuple):
    """What the three models are made of."""

    world: TabularEnv
    counts: TransitionCounts
    empirical: EmpiricalModel
    reset_q: float
    """A bound on the probability with which the reset leads elsewhere; 0 where the world vouches for its start"""
    n_states: int
    """N: the states of the run that are written"""
    label_sets: dict[str, Bools]
    """Labels, each [N]"""

    @property
    def has_known_size(self) -> bool:
        """Whether the number of states is known."""
        return self.world.initial_states == self.world.state_bound


class ExportedChoice(NamedTuple):
    """One choice of a state, as it will be written."""

    name: str
    cost: float
    successors: Longs
    low: Floats
    high: Floats


def export(
    run: str | Path,
    format: str = "drn",
    out: str | Path | None = None,
    *,
    env: api.EnvOverride = None,
    trust: bool = False,
) -> list[Path]:
    """Write what a run knows, for other programs; returns the files.

    With "drn" and "umb": the certified interval MDP of a run, a graph-preserving one, the empirical model, and the
    policies. With "csv": ``certificates.csv``, one row per goal that was seen.

    Parameters
    ----------
    run: the folder of a run; of the method "certified", but for "csv".
    format: "drn" (Storm's text format), "umb" (needs the extra ``storm``) or "csv".
    out: a folder; ``export`` in the folder of the run by default.
    env: the environment, for a run on an object or on code that is not installed (or ``trust`` the folder's word).
    """
    if format not in EXPORT_FORMATS:
        raise InputError(f"must be one of {', '.join(EXPORT_FORMATS)}, got {format!r}", "format")
    folder = check_folder_path("run", run)
    target = folder / "export" if out is None else check_folder_path("out", out)
    result = load_result(folder)
    if format == "csv":
        write_text(target / CERTIFICATES_FILE, _certificates_to_csv(result))
        return [target / CERTIFICATES_FILE]
    known = _load_exported_run(folder, result, env, trust)
    level = f"probability {1 - result.setting.delta:g}"
    models = {
        "certified": _certified_model(known, f"With {level} every true transition probability lies in its interval."),
        "graph-preserving": _graph_preserving_model(
            known, f"With {level}, and under an assumption. {GRAPH_ASSUMPTION_TEXT}"
        ),
        "empirical": _frequency_model(known, "Frequencies, without a guarantee. Pairs never tried are left out."),
    }
    paths = []
    for name, model in models.items():
        paths.append(target / f"{name}.{format}")
        storm_formats.write_explicit_model(model, paths[-1])
    paths.append(target / "policies.json")
    write_json(paths[-1], _policies_to_json(known, result))
    return paths


def _certificates_to_csv(result: Result) -> str:
    """The rows of :meth:`Result.table`. A number that is not known is left empty; truths are 0 or 1."""
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
    """The counts of a run and what they say, as its last checkpoint left them."""
    with api.open_restored_session(folder, env, trust) as session:
        estimates, world = session.run.estimates, session.run.env
    reset_q = 0.0
    if isinstance(estimates, UncertainReset):
        reset_q, estimates = estimates.q, estimates.exact
    if not isinstance(estimates, CertifiedExplorer):
        text = f"the method {result.setting.method} has no intervals for single transitions, only certified has"
        raise InputError(text, "run")
    if world.void_reasons:
        raise InputError(
            f"the certificates of this run are void ({world.void_reasons[0]}), so its intervals are too", "run"
        )
    estimates.confidence.update_radii()
    counts = estimates.counts
    fixed = world.initial_states == world.state_bound
    states = counts.n_states if fixed else int(np.flatnonzero(counts.seen).max()) + 1
    sets = {f"goal_{g}": np.isin(np.arange(states), result.members(g)) for g in result.goals}
    if isinstance(world, ModelSimulator):
        sets |= {name: members for name, members in world.mdp.sets.items() if name != "init"}
    return ExportedRun(world, counts, estimates.confidence.empirical_model(), reset_q, states, sets)


# --- the three models ---


def _certified_model(known: ExportedRun, comment: str) -> ExplicitModel:
    """The full model; see the module's text."""
    low, high = conditional_intervals(known.empirical)
    unseen = [] if known.has_known_size else [known.n_states]
    elsewhere = known.n_states + len(unseen)
    rows = [_choices_of_state(known, s, low, high, elsewhere) for s in range(known.n_states)]
    rows += [[_deterministic_choice(UNTRIED, elsewhere), _reset_choice(known, elsewhere)] for _ in unseen]
    anywhere = np.arange(elsewhere)
    rows.append([ExportedChoice(ANYTHING, 0.0, anywhere, np.zeros(elsewhere), np.ones(elsewhere))])
    return _join_choices(known, comment, rows, ["unseen", "elsewhere"][-1 - len(unseen) :])


def _graph_preserving_model(known: ExportedRun, comment: str) -> ExplicitModel:
    low, high = conditional_intervals(known.empirical)
    rows = [
        _choices_of_state(known, s, np.maximum(low, MIN_GRAPH_PROBABILITY), high, None) for s in range(known.n_states)
    ]
    return _join_choices(known, comment, rows, [])


def _frequency_model(known: ExportedRun, comment: str) -> ExplicitModel:
    p = known.empirical.p
    rows = [_choices_of_state(known, s, p, p, None) for s in range(known.n_states)]
    return _join_choices(known, comment, rows, [])


def _choices_of_state(
    known: ExportedRun, state: int, low: Floats, high: Floats, elsewhere: int | None
) -> list[ExportedChoice]:
    """The choices of a state of the run; bounds [X, K] are on p(. | O). Without ``elsewhere`` nothing is unseen."""
    model, counts, choices = known.empirical, known.counts, []
    for action in range(0 if counts.terminal[state] else counts.n_actions):
        x = state * counts.n_actions + action
        if counts.absent[x]:
            continue
        used = slice(int(model.support[x]))
        successors, ends = model.successor[x, used].astype(np.int64), (low[x, used], high[x, used])
        if elsewhere is None:
            if model.support[x]:
                choices.append(ExportedChoice(_exported_action_name(known, x), 1.0, successors, *ends))
        elif not model.support[x]:
            choices.append(_deterministic_choice(_exported_action_name(known, x), elsewhere))
        else:
            q = float(model.q[x])
            unseen = [elsewhere] if q > 0 else []
            bounds = np.append((1 - q) * ends[0], [0.0] * len(unseen)), np.append(ends[1], [q] * len(unseen))
            choices.append(
                ExportedChoice(
                    _exported_action_name(known, x), 1.0, np.append(successors, unseen).astype(np.int64), *bounds
                )
            )
    return [*choices, _reset_choice(known, elsewhere)]


def _reset_choice(known: ExportedRun, elsewhere: int | None) -> ExportedChoice:
    """The reset, which may lead ``elsewhere`` where the world cannot vouch for its start."""
    if elsewhere is None or known.reset_q == 0.0:
        return _deterministic_choice(RESET_ACTION_NAME, known.counts.start)
    successors = np.array([known.counts.start, elsewhere])
    return ExportedChoice(
        RESET_ACTION_NAME, 1.0, successors, np.array([1 - known.reset_q, 0.0]), np.array([1.0, known.reset_q])
    )


def _deterministic_choice(name: str, successor: int) -> ExportedChoice:
    """A choice with one successor."""
    return ExportedChoice(name, 1.0, np.array([successor]), np.ones(1), np.ones(1))


def _join_choices(
    known: ExportedRun, comment: str, rows: list[list[ExportedChoice]], extra: list[str]
) -> ExplicitModel:
    """The choices of every state, joined; ``extra`` are the names of the states that the run does not have."""
    choices = [choice for row in rows for choice in row]
    mine = [_exported_state_name(known, s) for s in range(known.n_states)]
    room = (0, len(extra))
    return ExplicitModel(
        comment=comment,
        start=known.counts.start,
        state_names=(*mine, *extra),
        first_choice=np.cumsum([0, *map(len, rows)]),
        choice_actions=tuple(choice.name for choice in choices),
        choice_costs=np.array([choice.cost for choice in choices]),
        indptr=np.cumsum([0, *(len(choice.successors) for choice in choices)]),
        successors=np.concatenate([choice.successors for choice in choices]),
        low=np.concatenate([choice.low for choice in choices]),
        high=np.concatenate([choice.high for choice in choices]),
        label_sets={name: np.pad(members, room) for name, members in known.label_sets.items()}
        | {name: np.array([*[""] * known.n_states, *extra]) == name for name in extra},
    )


# --- names and policies ---


def _exported_state_name(known: ExportedRun, state: int) -> str:
    labels = known.world.labels
    return labels[state] if state < len(labels) else ""


def _exported_action_name(known: ExportedRun, pair: int) -> str:
    names = known.world.mdp.actions if isinstance(known.world, ModelSimulator) else ()
    return names[pair] if names else f"a{pair % known.counts.n_actions}"


def _policies_to_json(known: ExportedRun, result: Result) -> dict[str, Any]:
    """The goals with their certificates and policies; actions are numbers, the last one is the reset."""

    def row(goal: int) -> dict[str, Any]:
        lower, upper = result.certificate(goal)
        return {
            "goal": goal,
            "label": f"goal_{goal}",
            "name": result.goal_label(goal) if result.goal_names else _exported_state_name(known, goal),
            "states": result.members(goal),
            "lower": lower,
            "upper": upper if math.isfinite(upper) else None,
            "actions": result.policy(goal).actions[0, : known.n_states].tolist(),
        }

    return {
        "delta": result.setting.delta,
        "radius": result.radius,
        "status": result.status,
        "reset_action": result.reset_action,
        "goals": [row(goal) for goal in result.goals],
    }
