"""Result of an exploration: goals, certificates, policies, status, history, and names and cells of its states.

:mod:`adagoal.runs.load_result` reads it from a folder.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# The methods of a result call public functions of higher layers, which the package imports when they are called. Runs
# themselves depend on nothing above them.
import adagoal
from adagoal.core.array_types import Longs
from adagoal.core.environment import CallTexts, GridLayout, Policy, TabularEnv
from adagoal.core.errors import InputError, Status, to_single_line
from adagoal.core.file_io import FileContents, arrays_content, json_content
from adagoal.core.goal_space import membership_mask
from adagoal.core.installation import install_command
from adagoal.core.run_settings import ExplorationSettings
from adagoal.core.validation import check_folder_path, resolve_number
from adagoal.envs import model_sources, observation_keys
from adagoal.envs.model import TabularMDP
from adagoal.runs.result_text import Measure, measure_of, most_likely_path, result_to_html, write_script
from adagoal.runs.run_folder import MANIFEST_FORMAT, RunKind, open_locked_folder, read_saved_run

if TYPE_CHECKING:
    from adagoal.exact.audit import Audit


@dataclass(frozen=True)
class StateMetadata:
    """The start state, names of states, their cells on a map, and how observations are read."""

    start: int | None = None
    labels: tuple[str, ...] = ()
    layout: GridLayout | None = None
    key_format: dict[str, Any] | None = None  # see :class:`adagoal.core.environment.ObservedStates`
    actions: tuple[str, ...] = ()  # names of the actions of a log
    call_texts: CallTexts | None = None  # of a state machine

    file_name = "view.json"

    def numbered_label(self, state: int) -> str:
        """Return the state's number, with its name if it has one, as plain text."""
        return f"{state} {to_single_line(self.labels[state])}" if state < len(self.labels) else str(state)

    @staticmethod
    def from_env(env: TabularEnv) -> StateMetadata:
        """Return what an environment says about its states."""
        observed = env.observed_states() if hasattr(env, "observed_states") else None
        key_format = None if observed is None else observed.key_format
        actions = tuple(getattr(env, "action_labels", ()))
        calls = getattr(env, "call_texts", None)
        return StateMetadata(env.start, tuple(env.labels), env.layout, key_format, actions, calls)

    def has_virtual_start(self, digests: NDArray[np.uint8] | None) -> bool:
        """Return whether the start is a state of its own, from which the first step draws the first observation."""
        if self.start is None or self.key_format is None:
            return False
        if self.key_format["kind"] == "states":
            return bool(self.start >= self.key_format["size"])
        # A row of zeros is a state without an observation.
        return digests is not None and self.start < len(digests) and not digests[self.start].any()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        layout: dict[str, Any] | None = None
        if self.layout is not None:
            walls = np.argwhere(self.layout.walls).tolist()
            layout = {"shape": list(self.layout.shape), "cells": self.layout.cells.tolist(), "walls": walls}
            layout["marks"] = {to_single_line(name): cells.tolist() for name, cells in self.layout.marks.items()}
        # Labels are text from user code; a terminal or a browser would obey control characters in them.
        labels = [to_single_line(label) for label in self.labels]
        data = {"start": self.start, "labels": labels, "layout": layout, "space": self.key_format}
        data |= {"actions": list(map(to_single_line, self.actions))} if self.actions else {}
        return data if self.call_texts is None else data | {"calls": self.call_texts._asdict()}


class StateFinder:
    """Finds the number of a state by its observation; the lookup table is made on the first call."""

    def __init__(self, view: StateMetadata, digests: NDArray[np.uint8] | None, n_states: int) -> None:
        self._metadata, self._digests, self._n_states = view, digests, n_states
        self._lookup: Callable[[Any], int | None] | None = None

    def __reduce__(self) -> Any:
        # Without the lookup: it is a closure, which cannot be pickled.
        return StateFinder, (self._metadata, self._digests, self._n_states)

    def __call__(self, observation: Any) -> int | None:
        """Return the state, None for an observation that was never seen."""
        if self._lookup is None:
            self._lookup = self._make_lookup()
        try:
            return self._lookup(observation)
        except InputError:
            raise
        # An object of any class may be passed here, and reading it may raise anything.
        except Exception as error:
            text = f"this is not an observation of the environment ({type(error).__name__}: {error})"
            raise InputError(text, "observation") from None

    def _make_lookup(self) -> Callable[[Any], int | None]:
        view, n_states = self._metadata, self._n_states
        if view.key_format is None:
            return lambda given: resolve_number(given, view.labels, n_states, "state")
        if view.key_format["kind"] == "states":
            first = view.key_format["first"]
            return lambda given: resolve_number(index(given) - first, (), n_states, "observation")
        digests = () if self._digests is None else self._digests
        # A row of zeros is a state without an observation, such as a virtual start.
        known = {row.tobytes(): state for state, row in enumerate(digests) if row.any()}
        read = observation_keys.make_key_reader(view.key_format)
        return lambda observation: known.get(observation_keys.hash_state_key(read(observation)))


class Certificate(NamedTuple):
    """Bounds on expected steps from s0: the best policy needs at least ``lower``, the returned at most ``upper``.

    In a run with ``within``, bounds on probabilities: the returned policy has at least ``lower``, none more than
    ``upper``.
    """

    lower: float
    upper: float


@dataclass(frozen=True)
class Result:
    """Outcome of :func:`adagoal.explore`; :func:`adagoal.load` returns it again.

    Examples
    --------
    The examples of the methods use this result:

    >>> result = adagoal.explore("grid", radius=3, env_args={"rows": 2, "cols": 2}, seed=0)
    """

    setting: ExplorationSettings
    status: Status
    radius: float
    """Radius of the result. If the setting says "auto" or "all", the largest certified radius, if any."""
    certified_radius: float | None
    """Radius for which the whole result is certified (C1 and C2). None if the stopping rule does not hold yet, or if
    the method proves nothing. An unfinished "auto" or "all" has that of its last finished stage."""
    goals: list[int]
    """The set X: goals with D <= L, certified if the status is "certified"."""
    certificates: dict[int, Certificate]
    """Bounds for every goal that was seen, in X or not."""
    errors: dict[int, float]
    """For every goal in X, how many expected steps its policy may be worse than the best one; infinite as long as
    ``upper`` is. It may be less than upper - lower, because a policy can be known to be good before its value is
    known. It is the error estimate E, which is no bound if the method has no guarantee."""
    open_goals: list[int]
    """Members of X whose certificate is not finished; empty if the status is "certified"."""
    guarantee: bool
    """Whether the method proves its certificates (with probability 1 - delta)."""
    steps: int
    episodes: int
    plans: int
    wall_seconds: float
    """Seconds of goal selection, planning and stepping, without compilation, saves and observers."""
    reset_action: int
    warnings: list[str]
    """What a user should know about the environment."""
    void: list[str]
    """Why the status is "void": checks that the certificates rest on have failed."""
    arrays: Mapping[str, NDArray[Any]]
    """policy [G', T, S] for ``policy_goals`` [G'], episode_goals, episode_reached, trace [*, 4], visits [S], how the
    intervals shrank (:mod:`adagoal.core.exploration_run`) and the empirical model
    (``TransitionCounts.EMPIRICAL_MODEL_SCHEMA``)."""
    model: TabularMDP | None = None
    """The model, if the user gave one as a matrix, a Model or a file; it is saved with the run."""
    goal_names: tuple[str, ...] | None = None
    """Names of the goals 0, 1, ..., if goals are sets of states; None if they are states."""
    view: StateMetadata = field(default_factory=StateMetadata)
    """Names of the states, and how they are drawn."""
    folder: Path | None = field(default=None, compare=False)
    """Folder of the run; None if it was not saved."""

    # Fields that have the same form in result.json.
    _plain_fields = (
        *("status", "certified_radius", "guarantee", "open_goals", "steps", "episodes", "plans", "wall_seconds"),
        *("reset_action", "warnings", "void"),
    )

    def __repr__(self) -> str:
        problem = f"{self.setting.env} within {self.setting.radius} steps"
        if self.setting.probability is not None:
            problem += f" with probability {self.setting.probability:g}"
        outcome = f"{len(self.goals)} goals, {len(self.open_goals)} of them open"
        return f"<Result of {problem}, {self.status}: {outcome}, after {self.steps:,} steps>"

    def _repr_html_(self) -> str:
        return result_to_html(self)

    @property
    def measure(self) -> Measure:
        """What the bounds measure: expected steps, or probabilities in a run with ``within``.

        Examples
        --------
        >>> result.measure.quantity
        'expected steps'
        """
        return measure_of(self)

    def goal(self, goal: int | str) -> int:
        """Return the number of a goal given by its number or its name.

        Parameters
        ----------
        goal: its number or its name.

        Examples
        --------
        >>> result.goal("(0, 1)")
        1
        """
        names = self.view.labels if self.goal_names is None else self.goal_names
        return resolve_number(goal, names, self.n_states if self.goal_names is None else len(names), "goal")

    def goal_label(self, goal: int) -> str:
        """Return the name of a goal.

        Parameters
        ----------
        goal: its number.

        Examples
        --------
        >>> result.goal_label(1)
        '(0, 1)'
        """
        return self.label(goal) if self.goal_names is None else to_single_line(self.goal_names[goal])

    def members(self, goal: int | str) -> list[int]:
        """Return the known states of a goal, which is reached in any of them; without states to avoid.

        Parameters
        ----------
        goal: its number or its name.

        Examples
        --------
        >>> result.members(1)
        [1]
        """
        number = self.goal(goal)
        states = [number]
        if self.goal_names is not None:
            states = np.flatnonzero(membership_mask(self.arrays["goals_at"], number)).tolist()
        avoided = self.arrays.get("avoided")
        return states if avoided is None else [state for state in states if not avoided[state]]

    def certificate(self, goal: int | str) -> Certificate:
        """Return bounds on the expected number of steps from s0 to the goal.

        Parameters
        ----------
        goal: number or name of a goal that was seen.

        Examples
        --------
        >>> lower, upper = result.certificate(1)
        >>> 1.0 <= lower < upper
        True
        """
        number = self._goal_number(goal)
        if number not in self.certificates:
            raise InputError(f"goal {goal} is not among the goals that were seen; result.table() lists them")
        return self.certificates[number]

    def error(self, goal: int | str) -> float:
        """Return how many expected steps the goal's policy may be worse than the best one (see ``errors``).

        Parameters
        ----------
        goal: number or name of a goal of the result.

        Examples
        --------
        >>> result.error(1) <= result.setting.epsilon
        True
        """
        number = self._goal_number(goal)
        if number not in self.errors:
            raise InputError(
                f"goal {goal} is not among the {len(self.goals)} goals of the result; result.goals lists them"
            )
        return self.errors[number]

    def policy(self, goal: int | str) -> Policy:
        """Return the policy for a goal: (state) -> action, and ``act(observation)``; the reset is ``reset_action``.

        Parameters
        ----------
        goal: number or name of a goal of the result.

        Examples
        --------
        >>> policy = result.policy("(0, 1)")
        >>> policy(0) == policy.act("(0, 0)")
        True
        """
        number = self._goal_number(goal)
        rows = np.flatnonzero(self.arrays["policy_goals"] == number)
        if not len(rows):
            raise InputError(f"goal {goal} has no policy, unlike the {len(self.goals)} goals in result.goals")
        table = np.asarray(self.arrays["policy"][rows[0]], np.int16)
        finder = None
        if self.view.start is not None:
            finder = StateFinder(self.view, self.arrays.get("observations"), self.n_states)
        one_attempt = self.setting.within is not None
        # The reset of the environment has then taken the first step of the attempt: it drew the first observation.
        first_step = int(one_attempt and self.view.has_virtual_start(self.arrays.get("observations")))
        return Policy(number, table, self.reset_action, finder, one_attempt, first_step)

    def script(self, goal: int | str) -> str:
        """Return a test in Python that makes the calls on the most likely way to a goal.

        Without randomness it is the shortest way. The calls are those of :func:`adagoal.machine`, or steps of a
        Gymnasium environment.

        Parameters
        ----------
        goal: number or name of a goal that was seen.

        Examples
        --------
        >>> stack = adagoal.machine(list, {"append": [1], "pop": []}, len, deterministic=True)
        >>> print(adagoal.explore(stack, radius=3, epsilon=0.5).script("2"))
        def test_2():
            machine = list()
            machine.append(1)
            machine.append(1)
            assert len(machine) == 2
        <BLANKLINE>
        """
        if self.view.start is None:
            raise InputError("the result lacks its start, which a script needs; load it from the folder of the run")
        digests = self.arrays.get("observations")
        path = most_likely_path(self.arrays, self.reset_action, self.view.start, self.members(goal))
        # No call leads out of a virtual start.
        if self.view.has_virtual_start(digests):
            path = path._replace(actions=path.actions[1:])
        find_state, name = StateFinder(self.view, digests, self.n_states), self.goal_label(self.goal(goal))
        return write_script(self.view.call_texts, path, self.label(path.end), name, find_state)

    def _goal_number(self, goal: int | str) -> int:
        return goal if isinstance(goal, int) else self.goal(goal)

    @property
    def n_states(self) -> int:
        """Number of states: all that the environment declares, or else those that were visited.

        Examples
        --------
        >>> result.n_states
        4
        """
        return len(self.arrays.get("observations", self.arrays["visits"]))

    def label(self, state: int) -> str:
        """Return the name of a state, or its number if it has no name.

        Parameters
        ----------
        state: its number.

        Examples
        --------
        >>> result.label(3)
        '(1, 1)'
        """
        return _label_or_number(self.view.labels, resolve_number(state, (), self.n_states, "state"))

    def state(self, label: str) -> int:
        """Return the state with a name.

        Parameters
        ----------
        label: the name of the state.

        Examples
        --------
        >>> result.state("(1, 1)")
        3
        """
        return resolve_number(label, [self.label(state) for state in range(self.n_states)], self.n_states, "state")

    def table(self) -> list[dict[str, Any]]:
        """Return one row per goal that was seen, those of the result first, by their lower bounds.

        ``in_result`` says whether the goal is one of the result, ``open`` whether its certificate is unfinished.
        ``error`` is NaN for goals outside of the result. ``states`` is the number of the goal's states.

        Examples
        --------
        >>> nearest = result.table()[0]
        >>> nearest["label"], nearest["in_result"], nearest["upper"]
        ('(0, 0)', True, 0.0)
        """

        def row(goal: int) -> dict[str, Any]:
            lower, upper = self.certificates[goal]
            return {
                "goal": goal,
                "label": self.goal_label(goal),
                "states": len(self.members(goal)),
                "lower": lower,
                "upper": upper,
                "error": self.errors.get(goal, math.nan),
                "in_result": goal in chosen,
                "open": goal in still_open,
            }

        chosen, still_open = set(self.goals), set(self.open_goals)
        return [
            row(g) for g in sorted(self.certificates, key=lambda g: (g not in chosen, self.certificates[g].lower, g))
        ]

    def pairs_to_try(self) -> list[dict[str, Any]]:
        """Return what to try next if data leave goals open (:func:`adagoal.certify_data`): most tries first.

        A row has the names of the state and the action, their ``tries`` so far, and the ``more`` tries that would close
        all goals, roughly: if further tries have the frequencies of the data.

        Examples
        --------
        >>> open_result = adagoal.certify_data([("off", "press", "on")] * 9, radius=2, start="off", n_states=2)
        >>> [(row["state"], row["action"], row["tries"]) for row in open_result.pairs_to_try()]
        [('on', 'press', 0), ('off', 'press', 9)]
        """
        more = self.arrays.get("more_tries", np.zeros(0, np.int64))
        tries = np.bincount(self.arrays["moves_pair"], self.arrays["moves_count"], minlength=len(more))
        pairs = np.flatnonzero(more)
        return [
            {
                "state": self.label(pair // self.reset_action),
                "action": _label_or_number(self.view.actions, pair % self.reset_action),
                "tries": int(tries[pair]),
                "more": int(more[pair]),
            }
            for pair in pairs[np.argsort(-more[pairs], kind="stable")].tolist()
        ]

    @property
    def is_from_data(self) -> bool:
        """Whether the result is one of :func:`adagoal.certify_data`: all its transitions were recorded elsewhere.

        Examples
        --------
        >>> result.is_from_data
        False
        """
        # Only logs name their actions.
        return bool(self.view.actions)

    def frame(self) -> Any:
        """Return the table as a pandas data frame, one row per goal.

        Examples
        --------
        >>> result.frame().loc[1, "label"]  # doctest: +SKIP
        '(0, 1)'
        """
        return to_data_frame(self.table()).set_index("goal")

    def history(self) -> Any:
        """Return the run over its steps as a pandas data frame: episodes, open goals and their largest error.

        Examples
        --------
        >>> list(result.history().columns)  # doctest: +SKIP
        ['steps', 'episodes', 'largest_error', 'open_goals']
        """
        names = ("steps", "episodes", "largest_error", "open_goals")
        whole_numbers = {"steps": "int64", "episodes": "int64", "open_goals": "int64"}
        return to_data_frame(self.arrays["trace"], columns=names).astype(whole_numbers)

    def audit(self, env: Any = None, *, trust: bool = False) -> Audit:
        """Check the result exactly against the known model; see :func:`adagoal.audit`.

        Examples
        --------
        >>> result.audit().ok
        True
        """
        return adagoal.audit(self, env, trust=trust)

    def play(
        self, goals: Sequence[int | str] | None = None, episodes: int = 100, **options: Any
    ) -> list[adagoal.Trial]:
        """Play the policies and compare the steps with the certificates; see :func:`adagoal.play`.

        Examples
        --------
        >>> [trial] = result.play(goals=["(0, 1)"], episodes=10)
        >>> trial.agrees
        True
        """
        return adagoal.play(self, goals, episodes, **options)

    def show(self) -> adagoal.Page:
        """Return the interactive page; see :func:`adagoal.show`.

        Examples
        --------
        >>> result.show().title
        'adagoal: grid'
        """
        return adagoal.show(self)

    def plot(self) -> Any:
        """Return a Matplotlib figure: the bounds of every goal.

        Examples
        --------
        >>> result.plot().savefig("grid.png")
        """
        return adagoal.plot(self)

    def export(self, format: str = "drn", out: str | Path | None = None, **options: Any) -> list[Path]:
        """Write the result for other programs; see :func:`adagoal.export`.

        Examples
        --------
        >>> [path.name for path in result.export("csv", "tables")]
        ['certificates.csv']
        """
        return adagoal.export(self, format, out, **options)

    def saved_folder(self) -> Path:
        """Return the folder of the run, if it still holds this result.

        Examples
        --------
        >>> adagoal.load(result.save("runs/grid")).saved_folder().name
        'grid'
        """
        if self.folder is None:
            raise InputError("this result has no folder; explore with out=..., or load it from one", "run")
        # Imported here, because that module reads results.
        from adagoal.runs.load_result import RESULT_SCHEMA

        saved = read_saved_run(self.folder, lambda saved: saved.result_files().load_json("result.json", RESULT_SCHEMA))
        if saved != json.loads(json.dumps(self.to_dict())):
            raise InputError(f"{self.folder} holds another run by now; load it again", "run")
        return self.folder

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: the setting, the outcome, and one row {goal, lower, upper, error} per goal of X.

        Examples
        --------
        >>> result.to_dict()["env"]
        'grid'
        """
        chosen = set(self.goals)
        return {
            "format": MANIFEST_FORMAT,
            "kind": RunKind.EXPLORATION,
            **asdict(self.setting),
            "radius_setting": self.setting.radius,
            **{name: getattr(self, name) for name in self._plain_fields},
            # Replaces the radius of the setting, which may be "auto" and is kept as radius_setting.
            "radius": self.radius,
            "goals": [self._goal_row_to_json(g) for g in self.goals],
            "other_goals": [self._goal_row_to_json(g) for g in self.certificates if g not in chosen],
            "goal_names": None if self.goal_names is None else list(self.goal_names),
        }

    def _goal_row_to_json(self, goal: int) -> dict[str, Any]:
        low, up = self.certificates[goal]
        row: dict[str, Any] = {"goal": goal, "lower": _infinity_to_none(low), "upper": _infinity_to_none(up)}
        row["label"] = self.goal_label(goal)
        if self.goal_names is not None:
            row["states"] = len(self.members(goal))
        return {**row, "error": _infinity_to_none(self.errors[goal])} if goal in self.errors else row

    def contents(self) -> FileContents:
        """Return the files: the result, its arrays, names and map of the states, the model if the user gave one.

        Examples
        --------
        >>> sorted(result.contents())
        ['policies.npz', 'result.json', 'view.json']
        """
        files: FileContents = {"result.json": json_content(self.to_dict()), "policies.npz": arrays_content(self.arrays)}
        files[self.view.file_name] = json_content(self.view.to_dict())
        return files | model_sources.model_folder_contents(self.model)

    def save(self, path: str | Path) -> Path:
        """Write the result into a folder, in one commit; another run there is not overwritten.

        Parameters
        ----------
        path: the folder; it is created.

        Examples
        --------
        >>> result.save("runs/grid").name
        'grid'
        """
        from adagoal.runs.load_result import refuse_different_run

        folder = check_folder_path("path", path)
        with open_locked_folder(folder, RunKind.EXPLORATION) as held:
            if held.saved_run is not None:
                refuse_different_run(held.saved_run, self.setting, self.model)
            held.save_files(results=self.contents())
        return folder


def to_data_frame(rows: Any, **options: Any) -> Any:
    """Return ``pandas.DataFrame(rows)``; pandas is no dependency of adagoal, so it may be missing."""
    try:
        import pandas
    except ImportError:
        raise InputError(f"a data frame needs pandas: {install_command('pandas')}") from None
    return pandas.DataFrame(rows, **options)


def numbers_states_as_met(result: Result) -> bool:
    """Return whether the run numbered the states of a large model, or other whole numbers, as it met them."""
    return result.view.key_format == {"kind": "whole"}


def find_model_states(result: Result, n_states: int) -> Longs:
    """Return [N] the model's numbers of the states of such a run, in a model of ``n_states`` states."""
    numbers = {row.tobytes(): number for number, row in enumerate(result.arrays["observations"])}
    states = np.full(len(numbers), -1)
    for state in range(n_states):
        number = numbers.get(observation_keys.hash_state_key(state))
        if number is not None:
            states[number] = state
    if (states < 0).any():
        raise InputError(
            f"the result is about other states than the {n_states} of the model; give the model of the run"
        )
    return states


def find_contradicted_goals(certificates: Mapping[int, Certificate]) -> list[int]:
    """Return goals whose lower bound lies above the upper one, by more than rounding."""
    # Relative, because bounds of thousands of steps round by more than bounds of a few.
    return [g for g, (low, up) in certificates.items() if low > up + 1e-6 * (1.0 + up)]


def _label_or_number(labels: Sequence[str], number: int) -> str:
    """Return the label of a state or action as plain text, or its number if it has no label."""
    return to_single_line(labels[number]) if number < len(labels) else str(number)


def _infinity_to_none(value: float) -> float | None:
    # JSON has no infinity.
    return value if math.isfinite(value) else None
