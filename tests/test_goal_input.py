"""Goals that are sets, given as files, options or functions; bad input gives one-line errors."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adagoal
from adagoal.cli.main import run_command_line
from adagoal.cli.options import split_goals
from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.envs import toy_models
from goal_sets import GRID
from model_env import PairEnv


def test_code_named_only_by_a_folder_is_not_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def row(label):\n    return label[:2]\n")
    explore = ["explore", "grid", "--env-arg", "rows=3", "--radius", "6", "--quiet"]
    assert run_command_line([*explore, "--goals", "mine.py:row", "--budget", "200", "--out", "r"]) == 3
    Path("mine.py").write_text("raise SystemExit('this must not run')\n")
    for command in ("audit", "play", "report", "export"):
        assert run_command_line([command, "r"]) in (0, 1)  # 1: an unfinished run may miss a goal
    capsys.readouterr()
    assert run_command_line(["resume", "r", "--budget", "400", "--quiet"]) == 2
    line = "the run uses goals from 'mine.py:row', a file to execute; give the goals again, or pass --trust"
    assert capsys.readouterr().err == f"error: --goals: {line}\n"
    Path("mine.py").write_text("def row(label):\n    return label[:2]\n")
    assert run_command_line(["resume", "r", "--budget", "400", "--quiet", "--trust"]) == 3
    assert run_command_line(["resume", "r", "--budget", "100000", "--quiet", "--goals", "mine.py:row"]) == 0
    stored = json.loads(Path("r/result.json").read_text())
    assert stored["goal_names"] == ["(0", "(1", "(2"]
    assert [(row["label"], row["states"]) for row in stored["goals"]] == [("(0", 5), ("(1", 5), ("(2", 5)]


def test_goals_from_command_line_options(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    explore = ["explore", "grid", "--env-arg", "rows=2", "--env-arg", "cols=2", "--radius", "6", "--quiet"]
    for i, goals in enumerate((["(0, 1), (1, 1)"], ["1, 3"], ["1,'(1, 1)'"], ["(0, 1)", "3"])):
        typed = [word for value in goals for word in ("--goals", value)]
        assert run_command_line([*explore, *typed, "--out", f"run{i}"]) == 0
        assert adagoal.load(f"run{i}").goals == [1, 3], "single states keep their numbers"
    assert run_command_line([*explore, "--goals", "(1, 1)", "--out", "one"]) == 0
    assert adagoal.load("one").goals == [3]
    capsys.readouterr()
    assert run_command_line([*explore, "--goals", "1", "--goals", "keys:0"]) == 2
    assert run_command_line([*explore, "--goals", "1,,2"]) == 2
    assert run_command_line([*explore, "--goals", "(0 1)"]) == 2
    several, empty, unknown = capsys.readouterr().err.splitlines()
    assert several == "error: --goals: a file or keys cannot be combined with other goals; give it once"
    assert empty.startswith("error: --goals: must be states or labels with commas between them, FILE.py:NAME, or keys:")
    assert unknown.startswith(
        "error: --goals: open-grid-2x2 has no state and no set of states called '(0 1)'; there are '(0, 1)'"
    )


@pytest.mark.parametrize(
    ("text", "goals"),
    [
        ("(4, 5)", ["(4, 5)"]),
        ("(4, 5), (1, 2)", ["(4, 5)", "(1, 2)"]),
        ("((1, 2), 0), [3, 4]", ["((1, 2), 0)", "[3, 4]"]),
        ("3", [3]),
        ("3,-7", [3, -7]),
        ("'3', \"a, b\", it's", ["3", "a, b", "it's"]),
        ("upstairs", ["upstairs"]),
        ("mine.py:row", "mine.py:row"),
        ("keys:0,1", "keys:0,1"),
    ],
)
def test_command_line_and_python_give_the_same_goals(text, goals):
    assert split_goals(text) == goals


def flip():
    """Return a different value in every call."""
    count = iter(range(10**6))
    return lambda label: next(count)


@pytest.mark.parametrize(
    ("goals", "text"),
    [
        (["(0, 9)"], r"has no state and no set of states called '\(0, 9\)'; there are '\(0, "),
        (
            {"door": lambda label: 1 / 0},
            r"the goal 'door' raised ZeroDivisionError: .* \(test_goal_input.py, line \d+\) for",
        ),
        (lambda label: label.no_such, "the function raised AttributeError"),
        (lambda label: [1, 2], "a function of observations returns a number, a text, a tuple of them, or None; got li"),
        (lambda label: 1 if label[1] == "0" else "1", "the values '1' and 1 are written the same way"),
        (lambda label: math.nan, "^goals: a function of observations must not return NaN; return None for no goal"),
        (flip(), r"the same observation belonged to \['0'\] in one call and not in the next"),
        (lambda label: None, "no state belongs to any of the goals"),
        ({"door": lambda label: False}, "no state belongs to any of the goals"),
        ("keys:0", r"^goals: an observation such as '\(0, 0\)' has no entries \(it is str\); give a function"),
        ({}, "there must be at least one goal"),
        ({"door": "open"}, "must be names with functions, or with lists of states"),
        ({"door": []}, "^goals: the goal 'door' has no states; give it one"),
        ({"door": [99]}, r"must be one or more states in 0\.\.11, got 99"),
        (3, "must be states, labels, a function of observations, or named predicates, got 3"),
        ([True], "must be states"),
        ("no.py:fn", "no such file 'no.py'"),
    ],
)
def test_bad_goals_give_one_line_error(goals, text):
    with pytest.raises(InputError, match=text) as caught:
        adagoal.explore("grid", 5.0, env_args=GRID, goals=goals)
    assert "\n" not in str(caught.value)


def test_data_is_saved_if_a_goal_function_raises(tmp_path):
    def picky(observation: Any) -> Any:
        if observation[1] == 4:
            raise RuntimeError("not this one")
        return int(observation[1])

    with pytest.raises(EnvironmentFailure, match=r"the function raised RuntimeError: not this one.*what had been"):
        adagoal.explore(PairEnv(toy_models.chain_model(n_states=8)), 9.0, goals=picky, max_states=20, out=tmp_path)
    assert len(adagoal.load(tmp_path).goals) == 4


def test_states_numbered_as_found_cannot_be_goals_by_number():
    env = PairEnv(toy_models.chain_model(n_states=4))
    with pytest.raises(InputError, match="numbered as they are found, so states cannot name goals in advance; use la"):
        adagoal.explore(env, 3.0, goals=[1])
    result = adagoal.explore(env, 4.0, goals=["[0 2]"], max_states=10)
    assert [result.label(s) for s in result.members("[0 2]")] == ["[0 2]"]


@pytest.mark.parametrize(
    ("goals", "names"),
    [
        (lambda label: -0.0 if label[1] == "0" else 0.0, ("0.0",)),
        (lambda label: (1, (np.float32(-0.0) if label[1] == "0" else 0.0,)), ("(1, (0.0,))",)),
    ],
)
def test_negative_zero_is_the_same_goal(goals, names):
    assert adagoal.explore("grid", 5.0, env_args=GRID, goals=goals, budget=10).goal_names == names


def test_predicate_without_a_state_gives_a_warning():
    result = adagoal.explore("grid", 5.0, env_args=GRID, goals={"top": lambda l: l[1] == "0", "sky": lambda l: False})
    assert "no state belongs to the goal sky" in result.warnings
    assert result.goals == [0]
    assert adagoal.audit(result).ok
