"""What an exploration returns: goals, certificates, policies, a status, and the history, on disk as plain files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adagoal.core.argument_checks import check_folder_path
from adagoal.core.errors import InputError, Status, to_single_line
from adagoal.core.file_io import FileContent, arrays_content, json_content
from adagoal.core.goal_space import membership_mask
from adagoal.core.tabular_policy import Policy
from adagoal.core.types import resolve_number, state_label
from adagoal.envs import model_sources
from adagoal.envs.model import TabularMDP
from adagoal.runs.exploration_schemas import EXPLORATION_KIND, POLICIES_SCHEMA, RESULT_SCHEMA, RUN_CHECKPOINT_SCHEMA
from adagoal.runs.folder_reader import MANIFEST_FORMAT, FolderFiles, SavedRun, read_saved_run, warn_about_damage
from adagoal.runs.result_text import result_to_html
from adagoal.runs.run_folder import open_locked_folder
from adagoal.runs.state_metadata import StateFinder, StateMetadata, goal_table_rows, read_state_metadata
from adagoal.settings.exploration import ExplorationSettings


class Certificate(NamedTuple):
    """Expected steps from s0: the best policy needs at least ``lower``, the returned one at most ``upper``."""

    lower: float
    upper: float


@dataclass(frozen=True)
class Result:
    """The outcome of :func:`adagoal.explore`; also what :func:`adagoal.load` gives back."""

    setting: ExplorationSettings
    status: Status
    radius: float
    """The radius that the answer is about: where the setting says "auto" or "all" the largest certified one, if any."""
    certified_radius: float | None
    """The radius for which the whole answer is certified (C1 and C2); None where the rule has not stopped yet, or where
    the method proves nothing. An unfinished "auto" or "all" may have one: that of its last finished stage."""
    goals: list[int]
    """The set X: goals with D <= L, certified if the status is "certified"."""
    certificates: dict[int, Certificate]
    """Every goal of the goal space that was seen, in X or not, with what is known about it."""
    errors: dict[int, float]
    """The error estimate E of every goal in X. Where ``upper`` is finite its policy is at most this many expected steps
    worse than the best one; that may be less than upper - lower, as a policy can be known to be good before its value
    is known. Where it is infinite nothing is known about the policy yet, and E only says that the goal is open."""
    open_goals: list[int]
    """Members of X whose certificate is not finished; empty if the status is "certified"."""
    guarantee: bool
    """Whether the method proves its certificates (with probability 1 - delta)."""
    steps: int
    episodes: int
    plans: int
    wall_seconds: float
    """Of goal selection, planning and stepping; without compilation, saves and observers."""
    reset_action: int
    warnings: list[str]
    """What a user should know about the environment."""
    void: list[str]
    """Why the status is "void": checks that the certificates rest on have failed."""
    arrays: Mapping[str, NDArray[Any]]
    """policy [G', T, S] for ``policy_goals`` [G'], episode_goals, episode_reached, trace [*, 4], visits [S],
    and what the report draws: how the intervals shrank (:mod:`adagoal.core.exploration_run`) and the empirical model
    (:data:`adagoal.core.transition_data.EMPIRICAL_MODEL_SCHEMA`)"""
    model: TabularMDP | None = None
    """The world itself, where the user brought it as a matrix, a Model or a file; it is saved with the run."""

    goal_names: tuple[str, ...] | None = None
    """Names of the goals 0, 1, ..., where goals are sets of states; None where they are states."""
    view: StateMetadata = field(default_factory=StateMetadata)
    """Names of the states, and how they are drawn."""

    def __repr__(self) -> str:
        of = f"{self.setting.env} within {self.setting.radius} steps"
        found = f"{len(self.goals)} goals, {len(self.open_goals)} of them open"
        return f"<Result of {of}, {self.status}: {found}, after {self.steps:,} steps>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return result_to_html(self)

    # --- goals: by number or by name ---

    def goal(self, goal: int | str) -> int:
        """The number of a goal that is given by its number or its name."""
        names = self.view.labels if self.goal_names is None else self.goal_names
        return resolve_number(goal, names, self.n_states if self.goal_names is None else len(names), "goal")

    def goal_label(self, goal: int) -> str:
        """The name of a goal."""
        return self.label(goal) if self.goal_names is None else to_single_line(self.goal_names[goal])

    def members(self, goal: int | str) -> list[int]:
        """The states of a goal, as far as they are known: it is reached in any of them."""
        number = self.goal(goal)
        if self.goal_names is None:
            return [number]
        return [int(s) for s in np.flatnonzero(membership_mask(self.arrays["goals_at"], number))]

    def certificate(self, goal: int | str) -> Certificate:
        """Lower and upper bound on the expected number of steps from s0 to the goal."""
        number = self._goal_number(goal)
        if number not in self.certificates:
            raise InputError(f"goal {goal} is not among the goals that were seen")
        return self.certificates[number]

    def error(self, goal: int | str) -> float:
        """How many expected steps the goal's policy may be worse than the best one (see ``errors``)."""
        number = self._goal_number(goal)
        if number not in self.errors:
            raise InputError(f"goal {goal} is not among the {len(self.goals)} goals of the result")
        return self.errors[number]

    def policy(self, goal: int | str) -> Policy:
        """A policy to reach the goal: (state) -> action, and ``act(observation)``; the reset is ``reset_action``."""
        number = self._goal_number(goal)
        places = np.flatnonzero(self.arrays["policy_goals"] == number)
        if not len(places):
            raise InputError(f"goal {goal} has no policy: it is not among the {len(self.goals)} goals of the result")
        table = np.asarray(self.arrays["policy"][places[0]], np.int16)
        find = (
            None if self.view.start is None else StateFinder(self.view, self.arrays.get("observations"), self.n_states)
        )
        return Policy(number, table, self.reset_action, find)

    def _goal_number(self, goal: int | str) -> int:
        return self.goal(goal) if isinstance(goal, str) else goal

    # --- names ---

    @property
    def n_states(self) -> int:
        """States that have a number: all that the environment declares, or else those that were met."""
        return len(self.arrays.get("observations", self.arrays["visits"]))

    def label(self, state: int) -> str:
        """The name of a state; its number where it has none."""
        return state_label(self.view.labels, resolve_number(state, (), self.n_states, "state"))

    def state(self, label: str) -> int:
        """The state with a name."""
        return resolve_number(label, [to_single_line(name) for name in self.view.labels], self.n_states, "state")

    def table(self) -> list[dict[str, Any]]:
        """One row per goal that was seen, those of the result first.

        ``within`` says whether the goal is one of the result, ``open`` whether its certificate is unfinished; ``error``
        is NaN for other goals, and ``states`` is the number of its states.
        """
        return goal_table_rows(self)

    def frame(self) -> Any:
        """The table as a pandas data frame, one row per goal; needs pandas."""
        try:
            import pandas
        except ImportError:
            raise InputError("a data frame needs the pandas package: pip install pandas") from None
        return pandas.DataFrame(self.table()).set_index("goal")

    # --- files ---

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: the setting, the outcome, and one row {goal, lower, upper, error} per goal of X."""
        chosen = [self._goal_row_to_json(g) for g in self.goals]
        others = [self._goal_row_to_json(g) for g in self.certificates if g not in set(self.goals)]
        keep = (
            "status",
            "certified_radius",
            "guarantee",
            "open_goals",
            "steps",
            "episodes",
            "plans",
            "wall_seconds",
            "reset_action",
            "warnings",
            "void",
        )
        outcome = {name: getattr(self, name) for name in keep}
        setting = {**asdict(self.setting), "radius_setting": self.setting.radius}
        return {
            "format": MANIFEST_FORMAT,
            "kind": EXPLORATION_KIND,
            **setting,
            **outcome,
            "radius": self.radius,
            "goals": chosen,
            "other_goals": others,
            "goal_names": None if self.goal_names is None else list(self.goal_names),
        }

    def _goal_row_to_json(self, goal: int) -> dict[str, Any]:
        low, up = self.certificates[goal]
        row = {
            "goal": goal,
            "lower": _infinity_to_none(low),
            "upper": _infinity_to_none(up),
            "label": self.goal_label(goal),
        }
        if self.goal_names is not None:
            row["states"] = len(self.members(goal))
        return {**row, "error": _infinity_to_none(self.errors[goal])} if goal in self.errors else row

    def contents(self) -> dict[str, FileContent]:
        """The files of a result: ``result.json`` and ``model.npz``."""
        return {"result.json": json_content(self.to_dict()), "model.npz": arrays_content(self.arrays)}

    def save(self, path: str | Path) -> Path:
        """Write ``result.json`` and ``model.npz`` into a folder, in one commit; another run is not overwritten."""
        folder = check_folder_path("path", path)
        with open_locked_folder(folder, EXPLORATION_KIND) as held:
            if held.saved_run is not None:
                refuse_different_run(held.saved_run, self.setting, self.model)
            held.save_files(
                results=self.contents() | self.view.file_contents() | model_sources.model_folder_contents(self.model)
            )
        return folder


# --- reading ---


def load_result(path: str | Path) -> Result:
    """Read a saved result; nothing in the files is executed, and nothing that does not fit together is accepted."""
    return read_saved_run(check_folder_path("path", path), _load_saved_result)


def _load_saved_result(saved: SavedRun) -> Result:
    require_exploration(saved)
    here = saved.result_files()
    if "result.json" not in here:
        again = f"adagoal resume {quote(str(saved.path))}"
        raise InputError(f"{saved.path}: the run was cut off before its end; go on with: {again}")
    result = read_result_files(here, "result.json", "model.npz")
    result = replace(result, model=read_stored_model(here), view=read_state_metadata(here, result.n_states))
    warn_about_damage(saved)
    return result


def require_exploration(saved: SavedRun) -> None:
    """A training is pointed elsewhere."""
    if saved.kind != EXPLORATION_KIND:
        place = quote(str(saved.path))
        test, go_on = f"adagoal evaluate {place}", f"adagoal resume {place}"
        python = "in Python, adagoal.deep.evaluate and adagoal.deep.resume"
        raise InputError(f"{saved.path}: a run of adagoal train; test it with: {test}, go on with: {go_on} ({python})")


def read_result_files(here: FolderFiles, text: str, model: str) -> Result:
    """The result in two files of a folder."""
    data = here.load_json(text, RESULT_SCHEMA)
    arrays, _ = here.load_arrays(model, POLICIES_SCHEMA, {"A": data["reset_action"]})
    try:
        result = _result_from_json(data, arrays)
        _check_result_consistency(result)
    except ValueError as error:
        raise InputError(f"{here.folder / text}: damaged, or not of the same run as {model} ({error})") from None
    return result


def read_stored_model(here: FolderFiles) -> TabularMDP | None:
    """The world of a run, where the user brought it."""
    if model_sources.MODEL_FILE not in here:
        return None
    arrays, facts = here.load_arrays(
        model_sources.MODEL_FILE, model_sources.MODEL_ARRAYS, fact_rules=model_sources.MODEL_FACTS
    )
    try:
        return model_sources.model_from_arrays(arrays, facts)
    except ValueError as error:
        raise InputError(f"{here.folder / model_sources.MODEL_FILE}: damaged ({error})") from None


def read_stored_settings(saved: SavedRun) -> tuple[ExplorationSettings, bool]:
    """The setting of the run in a folder, and whether it is finished."""
    require_exploration(saved)
    here = saved.result_files()
    if "result.json" in here:
        data = here.load_json("result.json", RESULT_SCHEMA)
        return _settings_from_json(data | {"radius": data["radius_setting"]}), Status(data["status"]).finished
    _, facts = saved.checkpoint_files().load_arrays("checkpoint.npz", fact_rules=RUN_CHECKPOINT_SCHEMA)
    return _settings_from_json(facts["setting"]), False


def refuse_different_run(saved: SavedRun, setting: ExplorationSettings, model: TabularMDP | None) -> bool:
    """A folder that holds a run of another setting (whatever its budget), or on another model, is not for this one.

    Whether the run that it does hold is finished.
    """
    earlier, finished = read_stored_settings(saved)
    old, new = (json.loads(json.dumps(asdict(each))) for each in (earlier, setting))
    differ = [name for name in new if name != "budget" and old[name] != new[name]]
    if not differ and not model_sources.models_equal(read_stored_model(saved.result_files()), model):
        differ = ["the models"]
    if differ:
        text = f"{saved.path} holds another run ({', '.join(differ)} differ); give another folder, or overwrite it"
        raise InputError(text, "out")
    return finished


def _settings_from_json(data: Mapping[str, Any]) -> ExplorationSettings:
    found = {name: data[name] for name in ExplorationSettings.__dataclass_fields__}
    return ExplorationSettings(
        **found | {"goal_space": None if found["goal_space"] is None else tuple(found["goal_space"])}
    )


def _result_from_json(data: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Result:
    rows = [*data["goals"], *data["other_goals"]]
    certificates = {
        row["goal"]: Certificate(_none_to_infinity(row["lower"]), _none_to_infinity(row["upper"])) for row in rows
    }
    if len(certificates) < len(rows):
        raise ValueError("a goal is there twice")
    return Result(
        setting=_settings_from_json({**data, "radius": data["radius_setting"]}),
        goals=[row["goal"] for row in data["goals"]],
        certificates=certificates,
        errors={row["goal"]: _none_to_infinity(row["error"]) for row in data["goals"]},
        arrays=arrays,
        certified_radius=data["certified_radius"],
        status=Status(data["status"]),
        **{name: data[name] for name in ("radius", "open_goals", "guarantee")},
        **{name: data[name] for name in ("steps", "episodes", "plans", "wall_seconds", "reset_action", "warnings")},
        void=data["void"],
        goal_names=None if data["goal_names"] is None else tuple(data["goal_names"]),
    )


def _check_result_consistency(result: Result) -> None:
    """The parts speak of the same states, goals and run."""
    arrays, status = result.arrays, result.status
    goals, policy_goals = set(result.goals), arrays["policy_goals"].tolist()
    then = arrays["trace"][:, 0]
    sets = result.goal_names is not None
    numbers = len(result.goal_names or ()) if sets else len(arrays["visits"])
    used = (*result.certificates, *policy_goals, arrays["episode_goals"].max(initial=-1))
    rules = {
        "goals with names and no states, or the reverse": sets == ("goals_at" in arrays),
        "a radius that was not asked for": result.setting.has_growing_radius or result.radius == result.setting.radius,
        f"a goal that {'has no name' if sets else 'is no state'}": max(used, default=-1) < numbers,
        "a state of a goal without a name": "goals_at" not in arrays or arrays["goals_at"].max(initial=-1) < numbers,
        "a past of other goals": arrays["past_goals"].max(initial=-1) < numbers + sets,
        "more observations than states": result.n_states <= len(arrays["visits"]),
        "a goal without a policy": goals <= set(policy_goals),
        "two policies for a goal": len(set(policy_goals)) == len(policy_goals),
        "an open goal that is none": set(result.open_goals) <= goals,
        "an open goal twice": len(set(result.open_goals)) == len(result.open_goals),
        "a lower bound above the upper one": status is Status.VOID or not find_contradicted_goals(result.certificates),
        "more episodes in its history than episodes": len(arrays["episode_goals"]) <= result.episodes,
        "a history without end": np.isfinite(arrays["trace"][:, [0, 1, 3]]).all(),
        "a history that goes back": (np.diff(then) >= 0).all() and then.max(initial=0) <= result.steps,
        "a past that is longer than the run": arrays["past_steps"].max(initial=0) <= result.steps
        and arrays["past_episodes"].max(initial=0) <= result.episodes,
        "a certificate with open goals": status is not Status.CERTIFIED or not result.open_goals,
        "a status that its method cannot give": status not in (Status.CERTIFIED, Status.STOPPED)
        or result.guarantee == (status is Status.CERTIFIED),
        "another certified radius": result.certified_radius in (None, result.radius)
        and (status is not Status.CERTIFIED or result.certified_radius is not None),
        "reasons to be void, or none": bool(result.void) == (status is Status.VOID),
    }
    for problem, holds in rules.items():
        if not holds:
            raise ValueError(f"it has {problem}")


def find_contradicted_goals(certificates: Mapping[int, Certificate]) -> list[int]:
    """Goals whose lower bound lies above the upper one, by more than rounding."""
    return [g for g, (low, up) in certificates.items() if low > up + 1e-6 * (1.0 + up)]


def _infinity_to_none(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None


def _none_to_infinity(value: float | None) -> float:
    return math.inf if value is None else float(value)
