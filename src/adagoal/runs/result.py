"""What an exploration returns: goals, certificates, policies, a status, and the history, on disk as plain files."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adagoal.core import past
from adagoal.core.counts import MOVES
from adagoal.core.errors import InputError
from adagoal.core.files import Content, arrays_content, json_content
from adagoal.core.policy import Policy
from adagoal.core.status import Status
from adagoal.runs.folder import hold
from adagoal.runs.saved import Files, Saved, read, tell
from adagoal.runs.schemas import CHECKPOINT, FORMAT, KIND, MODEL, RESULT
from adagoal.runs.setting import Setting
from adagoal.worlds import storage
from adagoal.worlds.model import TabularMDP


class Certificate(NamedTuple):
    """Expected steps from s0: the best policy needs at least ``lower``, the returned one at most ``upper``."""

    lower: float
    upper: float


@dataclass(frozen=True)
class Result:
    """The outcome of :func:`adagoal.explore`; also what :func:`adagoal.load` gives back."""

    setting: Setting
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
    reset_action: int
    warnings: list[str]
    """What a user should know about the environment."""
    void: list[str]
    """Why the status is "void": checks that the certificates rest on have failed."""
    arrays: Mapping[str, NDArray[Any]]
    """policy [G', T, S] for ``policy_goals`` [G'], episode_goals, episode_reached, trace [*, 4], visits [S],
    and what the report draws: how the intervals shrank (:mod:`adagoal.core.past`) and the empirical model
    (:data:`adagoal.core.counts.MOVES`)"""
    model: TabularMDP | None = field(default=None, repr=False)
    """The world itself, where the user brought it as a matrix, a Model or a file; it is saved with the run."""

    def certificate(self, goal: int) -> Certificate:
        """Lower and upper bound on the expected number of steps from s0 to the goal."""
        if goal not in self.certificates:
            raise InputError(f"goal {goal} is not among the goals that were seen")
        return self.certificates[goal]

    def error(self, goal: int) -> float:
        """How many expected steps the goal's policy may be worse than the best one (see ``errors``)."""
        if goal not in self.errors:
            raise InputError(f"goal {goal} is not among the {len(self.goals)} goals of the result")
        return self.errors[goal]

    def policy(self, goal: int) -> Policy:
        """A policy to reach the goal, as a callable (state) -> action; the reset is action ``reset_action``."""
        places = np.flatnonzero(self.arrays["policy_goals"] == goal)
        if not len(places):
            raise InputError(f"goal {goal} has no policy: it is not among the {len(self.goals)} goals of the result")
        return Policy(goal, np.asarray(self.arrays["policy"][places[0]], np.int16), self.reset_action)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: the setting, the outcome, and one row {goal, lower, upper, error} per goal of X."""
        rows = [self._row(g) for g in self.goals]
        others = [self._row(g) for g in self.certificates if g not in set(self.goals)]
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
            "format": FORMAT,
            "kind": KIND,
            **setting,
            **outcome,
            "radius": self.radius,
            "goals": rows,
            "other_goals": others,
        }

    def _row(self, goal: int) -> dict[str, Any]:
        low, up = self.certificates[goal]
        row = {"goal": goal, "lower": _finite(low), "upper": _finite(up)}
        return {**row, "error": _finite(self.errors[goal])} if goal in self.errors else row

    def contents(self) -> dict[str, Content]:
        """The files of a result: ``result.json`` and ``model.npz``."""
        return {"result.json": json_content(self.to_dict()), "model.npz": arrays_content(self.arrays)}

    def save(self, path: str | Path) -> Path:
        """Write ``result.json`` and ``model.npz`` into a folder, in one commit; another run is not overwritten."""
        folder = Path(path)
        with hold(folder, KIND) as held:
            if held.saved is not None:
                earlier = stored_setting(held.saved)[0]
                refuse_another(folder, earlier, self.setting)
            held.save(results=self.contents() | storage.contents(self.model))
        return folder


# --- reading ---


def load(path: str | Path) -> Result:
    """Read a saved result; nothing in the files is executed, and nothing that does not fit together is accepted."""
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"must be the path of a run's folder, got {path!r}", "path")
    return read(Path(path), _load)


def _load(saved: Saved) -> Result:
    must_be_exploration(saved)
    here = saved.results()
    if "result.json" not in here:
        again = f"adagoal resume {quote(str(saved.path))}"
        raise InputError(f"{saved.path}: the run was cut off before its end; go on with: {again}")
    result = replace(read_result(here, "result.json", "model.npz"), model=stored_model(here))
    tell(saved)
    return result


def must_be_exploration(saved: Saved) -> None:
    """A training is pointed elsewhere."""
    if saved.kind != KIND:
        raise InputError(
            f"{saved.path}: a run of adagoal train; test it with: adagoal evaluate {quote(str(saved.path))}"
        )


def read_result(here: Files, text: str, model: str) -> Result:
    """The result in two files of a folder."""
    data = here.json(text, RESULT)
    arrays, _ = here.arrays(model, MODEL, {"A": data["reset_action"]})
    try:
        result = _from_data(data, arrays)
        _check(result, data["format"])
    except ValueError as error:
        raise InputError(f"{here.folder / text}: damaged, or not of the same run as {model} ({error})") from None
    return result


def stored_model(here: Files) -> TabularMDP | None:
    """The world of a run, where the user brought it."""
    if storage.WORLD not in here:
        return None
    arrays, facts = here.arrays(storage.WORLD, storage.ARRAYS, fact_rules=storage.FACTS)
    try:
        return storage.restored(arrays, facts)
    except ValueError as error:
        raise InputError(f"{here.folder / storage.WORLD}: damaged ({error})") from None


def stored_setting(saved: Saved) -> tuple[Setting, bool]:
    """The setting of the run in a folder, and whether it is finished."""
    must_be_exploration(saved)
    here = saved.results()
    if "result.json" in here:
        data = here.json("result.json", RESULT)
        return _setting(data | {"radius": data["radius_setting"]}), Status(data["status"]).finished
    _, facts = saved.state().arrays("checkpoint.npz", fact_rules=CHECKPOINT)
    return _setting(facts["setting"]), False


def refuse_another(folder: Path, earlier: Setting, setting: Setting) -> None:
    """A folder that holds a run of another setting (whatever its budget) is not for this one."""
    old, new = (json.loads(json.dumps(asdict(each))) for each in (earlier, setting))
    differs = ", ".join(name for name in new if name != "budget" and old[name] != new[name])
    if differs:
        raise InputError(f"{folder} holds another run ({differs} differ); give another folder, or overwrite it", "out")


def _setting(data: Mapping[str, Any]) -> Setting:
    found = {name: data[name] for name in Setting.__dataclass_fields__ if name in data}
    return Setting(**found | {"goal_space": None if found["goal_space"] is None else tuple(found["goal_space"])})


def _from_data(data: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Result:
    rows = [*data["goals"], *data["other_goals"]]
    certificates = {row["goal"]: Certificate(_number(row["lower"]), _number(row["upper"])) for row in rows}
    if len(certificates) < len(rows):
        raise ValueError("a goal is there twice")
    return Result(
        setting=_setting({**data, "radius": data["radius_setting"]}),
        goals=[row["goal"] for row in data["goals"]],
        certificates=certificates,
        errors={row["goal"]: _number(row["error"]) for row in data["goals"]},
        arrays=arrays,
        certified_radius=data.get("certified_radius"),
        status=Status(data["status"]),
        **{name: data[name] for name in ("radius", "open_goals", "guarantee")},
        **{name: data[name] for name in ("steps", "episodes", "plans", "wall_seconds", "reset_action", "warnings")},
        void=data.get("void", []),
    )


def _check(result: Result, form: int) -> None:
    """The parts speak of the same states, goals and run."""
    arrays, status = result.arrays, result.status
    goals, policy_goals = set(result.goals), arrays["policy_goals"].tolist()
    then = arrays["trace"][:, 0]
    rules = {
        "a radius that was not asked for": result.setting.growing or result.radius == result.setting.radius,
        "a goal that is no state": all(g < len(arrays["visits"]) for g in result.certificates),
        "a goal without a policy": goals <= set(policy_goals),
        "two policies for a goal": len(set(policy_goals)) == len(policy_goals),
        "an open goal that is none": set(result.open_goals) <= goals,
        "an open goal twice": len(set(result.open_goals)) == len(result.open_goals),
        "a lower bound above the upper one": status is Status.VOID or not contradicted(result.certificates),
        "more episodes in its history than episodes": len(arrays["episode_goals"]) <= result.episodes,
        "a history that goes back": (np.diff(then) >= 0).all() and then.max(initial=0) <= result.steps,
        "a part of its past, or of its moves": all(
            len(part.keys() & arrays.keys()) in (0, len(part)) for part in (past.SCHEMA, MOVES)
        ),
        "a past that is longer than the run": np.max(arrays.get("past_steps", 0), initial=0) <= result.steps
        and np.max(arrays.get("past_episodes", 0), initial=0) <= result.episodes,
        "a certificate with open goals": status is not Status.CERTIFIED or not result.open_goals,
        "a status that its method cannot give": status not in (Status.CERTIFIED, Status.STOPPED)
        or result.guarantee == (status is Status.CERTIFIED),
    }
    if form > 1:
        rules |= {
            "another certified radius": result.certified_radius in (None, result.radius)
            and (status is not Status.CERTIFIED or result.certified_radius is not None),
            "reasons to be void, or none": bool(result.void) == (status is Status.VOID),
        }
    for problem, holds in rules.items():
        if not holds:
            raise ValueError(f"it has {problem}")


def contradicted(certificates: Mapping[int, Certificate]) -> list[int]:
    """Goals whose lower bound lies above the upper one, by more than rounding."""
    return [g for g, (low, up) in certificates.items() if low > up + 1e-6 * (1.0 + up)]


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.inf if value is None else float(value)
