"""What an exploration returns: goals, certificates, policies, a status, and the history, on disk as plain files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adagoal.core.errors import InputError
from adagoal.core.files import read_arrays, read_json, write_arrays, write_json
from adagoal.core.policy import Policy
from adagoal.core.status import Status
from adagoal.runs.setting import Setting
from adagoal.worlds import storage
from adagoal.worlds.model import TabularMDP

FORMAT = 1


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
    """policy [G', T, S] for ``policy_goals`` [G'], episode_goals, episode_reached, trace [*, 4], visits [S]"""
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
        return {"format": FORMAT, **setting, **outcome, "radius": self.radius, "goals": rows, "other_goals": others}

    def _row(self, goal: int) -> dict[str, Any]:
        low, up = self.certificates[goal]
        row = {"goal": goal, "lower": _finite(low), "upper": _finite(up)}
        return {**row, "error": _finite(self.errors[goal])} if goal in self.errors else row

    def save(self, path: str | Path) -> Path:
        """Write ``result.json`` and ``model.npz`` into a folder, each atomically."""
        folder = Path(path)
        write_arrays(folder / "model.npz", self.arrays, {})
        if self.model is not None:
            self.model.save(folder / storage.WORLD)
        write_json(folder / "result.json", self.to_dict())
        return folder


def load(path: str | Path) -> Result:
    """Read a saved result; nothing in the files is executed."""
    folder = Path(path)
    data = read_json(folder / "result.json")
    arrays, _ = read_arrays(folder / "model.npz")
    try:
        if data["format"] != FORMAT:
            raise InputError(f"{folder}: format {data['format']} is not known to this version (it reads {FORMAT})")
        names = Setting.__dataclass_fields__
        setting = {name: data[name] for name in names if name != "radius"} | {"radius": data["radius_setting"]}
        if setting["goal_space"] is not None:
            setting["goal_space"] = tuple(setting["goal_space"])
        rows = [*data["goals"], *data["other_goals"]]
        certificates = {row["goal"]: Certificate(_number(row["lower"]), _number(row["upper"])) for row in rows}
        result = Result(
            setting=Setting(**setting),
            goals=[row["goal"] for row in data["goals"]],
            certificates=certificates,
            errors={row["goal"]: _number(row["error"]) for row in data["goals"]},
            arrays=arrays,
            certified_radius=data.get("certified_radius"),  # results of earlier versions do not say
            status=Status(data["status"]),
            **{name: data[name] for name in ("radius", "open_goals", "guarantee")},
            **{name: data[name] for name in ("steps", "episodes", "plans", "wall_seconds", "reset_action", "warnings")},
            void=data.get("void", []),
            model=storage.stored(folder),
        )
        if not _fits(result):
            raise InputError(f"{folder}: result.json and model.npz are damaged, or not of the same run")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{folder / 'result.json'}: damaged or incomplete ({error})") from None
    return result


def _fits(result: Result) -> bool:
    """Whether the parts are of the right kind and speak of the same states and goals."""
    setting, arrays = result.setting, result.arrays
    numbers = (result.radius, setting.epsilon, setting.delta, result.steps, result.episodes, result.wall_seconds)
    if not all(isinstance(value, int | float) for value in numbers):
        return False
    policy, policy_goals, visits = (arrays.get(name, np.zeros(0)) for name in ("policy", "policy_goals", "visits"))
    reached, tried, trace = (arrays.get(name, np.zeros(1)) for name in ("episode_reached", "episode_goals", "trace"))
    return bool(
        policy.dtype.kind == "i"
        and policy.ndim == 3
        and len(policy) == len(policy_goals)
        and visits.shape == policy.shape[2:]
        and reached.shape == tried.shape
        and trace.shape[1:] == (4,)
        and set(result.goals) <= set(policy_goals.tolist())
        and set(result.open_goals) <= set(result.goals)
        and all(isinstance(g, int) and 0 <= g < len(visits) for g in result.certificates)
        and all(isinstance(pairs, dict) for pairs in (setting.env_args, setting.method_args))
        and all(isinstance(line, str) for line in result.warnings)
    )


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.inf if value is None else float(value)
