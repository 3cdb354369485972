"""Recorded transitions: input formats, certificates without steps, and their assumptions."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.random import Generator, default_rng

import adagoal
from adagoal.certified.confidence_sets import ConfidenceSets
from adagoal.cli.main import run_command_line
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs.logged_env import LoggedEnv
from adagoal.envs.recorded_transitions import read_transitions

Step = tuple[int, int, int]
SWITCH = [("off", "press", "on"), ("on", "press", "off")]


def model_of(rows: list[dict[int, float]], n_actions: int, **facts: Any) -> adagoal.Model:
    """Return a model from one {successor: probability} per pair."""
    P = np.zeros((len(rows) // n_actions, n_actions, len(rows) // n_actions))
    for pair, row in enumerate(rows):
        for successor, p in row.items():
            P[pair // n_actions, pair % n_actions, successor] = p
    return adagoal.Model.from_dense(P, **facts)


def lake_log(steps: int, seed: int) -> tuple[Any, ...]:
    """Return arrays (s, a, s', terminated) of uniform actions on FrozenLake 4x4."""
    P = gymnasium.make("FrozenLake-v1").unwrapped.P  # type: ignore[attr-defined]
    rng, state, rows = default_rng(seed), 0, []
    for action, k in zip(rng.integers(4, size=steps).tolist(), rng.integers(3, size=steps).tolist(), strict=True):
        # Every action has three outcomes of probability 1/3.
        _, successor, _, done = P[state][action][k]
        rows.append((state, action, successor, done))
        state = 0 if done else successor
    s, a, n, t = zip(*rows, strict=True)
    return np.array(s), np.array(a), np.array(n), np.array(t)


def in_order_of_appearance(log: tuple[Any, ...]) -> list[int]:
    """Return the states of a log in the order in which they appear."""
    return list(dict.fromkeys(np.column_stack([log[0], log[2]]).ravel().tolist()))


def lake_model(order: list[int]) -> adagoal.Model:
    """Return FrozenLake 4x4 with its states in another order."""
    table = gymnasium.make("FrozenLake-v1").unwrapped.P  # type: ignore[attr-defined]
    P, terminal = np.zeros((16, 4, 16)), np.zeros(16, bool)
    for s in range(16):
        for a in range(4):
            for p, successor, _, done in table[s][a]:
                P[s, a, successor] += p
                terminal[successor] |= done
    moved = P[order][:, :, order]
    return adagoal.Model.from_dense(moved, start=order.index(0), terminal=np.flatnonzero(terminal[order]))


@pytest.mark.parametrize(
    ("steps", "radius", "epsilon"), [(60_000, 6, 3.0), pytest.param(2_000_000, 20, 2.0, marks=pytest.mark.slow)]
)
def test_log_gives_the_certificate_of_a_run_with_the_same_counts(steps: int, radius: float, epsilon: float) -> None:
    log = lake_log(steps, seed=1)
    order = in_order_of_appearance(log)
    assert len(order) == 16
    result = adagoal.certify_data(log, radius, epsilon, start=0, n_states=16)
    assert result.status == "certified"
    assert result.steps == 0
    # The same states with the same numbers, in an environment that could be stepped.
    renumbered = tuple(np.argsort(order)[column] for column in (log[0], log[2]))
    data = renumbered[0], log[1], renumbered[1], log[3]
    # A log numbers its actions as they appear, too.
    assert result.view.actions == tuple(map(str, dict.fromkeys(log[1].tolist())))
    actions = np.array([int(name) for name in result.view.actions])
    data = data[0], np.argsort(actions)[data[1]], data[2], data[3]
    model = lake_model(order)
    model = adagoal.Model.from_dense(
        np.stack([model_rows(model)[:, a] for a in actions], axis=1),
        start=model.start,
        terminal=model.terminal.nonzero()[0],
    )
    run = adagoal.explore(model, radius, epsilon, data=data)
    assert run.status == "certified"
    assert run.steps == 0
    assert run.certificates == result.certificates
    assert run.errors == result.errors
    np.testing.assert_array_equal(run.arrays["policy"], result.arrays["policy"])
    assert adagoal.audit(run).ok
    assert adagoal.audit(result, "FrozenLake-v1").ok


def model_rows(model: adagoal.Model) -> Any:
    """P[s, a, s'] of a model."""
    P = np.zeros((model.n_states * model.n_actions, model.n_states))
    for x in range(len(P)):
        part = slice(model.indptr[x], model.indptr[x + 1])
        P[x, model.successors[part]] = model.probabilities[part]
    return P.reshape(model.n_states, model.n_actions, model.n_states)


def test_recorded_run_is_counted_as_in_the_run(tmp_path: Path) -> None:
    run = adagoal.explore("grid", 4, env_args={"rows": 3, "cols": 3, "slip": 0.2}, out=tmp_path / "r", record=True)
    steps = adagoal.transitions(tmp_path / "r")
    # A run also uses its earlier plans, which improves its bounds by one per cent here.
    result = adagoal.certify_data(steps, 4, 1.05, start=0, reset_action=run.reset_action, n_states=9)
    assert result.status == "certified"
    # A recorded reset is not a pair.
    assert len(result.view.actions) == run.reset_action
    assert result.arrays["moves_count"].sum() == run.arrays["moves_count"].sum()
    assert {result.label(g) for g in result.goals} == {str(g) for g in run.goals}


def test_order_inside_the_log_decides_when_a_pair_settled() -> None:
    log = read_transitions([(0, 0, 1), (0, 0, 0), (0, 0, 1), (0, 0, 1), (1, 0, 0)])
    counts = TransitionCounts(2, 1, 0)
    counts.add_steps(log.state + log.action, log.next_state)
    assert counts.settled.tolist() == [2, 1]
    assert counts.recent[0, :2].tolist() == [2, 0]


def write(path: Path, text: str) -> Path:
    """Write a file and return its path."""
    path.write_text(text)
    return path


def fake_minari(episodes: list[tuple[list[int], list[int], list[bool]]], states: int) -> Any:
    """Return a dataset with the attributes of Minari that adagoal reads."""
    parts = [
        SimpleNamespace(observations=np.array(o), actions=np.array(a), terminations=np.array(t)) for o, a, t in episodes
    ]
    spaces = {"observation_space": gymnasium.spaces.Discrete(states), "action_space": gymnasium.spaces.Discrete(2)}
    return SimpleNamespace(iterate_episodes=lambda: iter(parts), **spaces)


def test_all_formats_of_a_log_give_the_same_result(tmp_path: Path) -> None:
    rows = [(4, 1, 7, False, 0), (7, 0, 2, True, 0), (4, 1, 4, False, 1), (4, 0, 2, True, 1)]
    columns = dict(
        zip(("state", "action", "next_state", "terminated", "episode"), zip(*rows, strict=True), strict=True)
    )
    text = "\n".join(",".join(str(int(value)) for value in row) for row in rows)
    forms: list[Any] = [
        rows,
        iter(rows),
        tuple(np.array(column) for column in columns.values()),
        columns,
        {name: np.array(column) for name, column in columns.items()},
        fake_minari([([4, 7, 2], [1, 0], [False, True]), ([4, 4, 2], [1, 0], [False, True])], 8),
        write(tmp_path / "a.csv", f"state,action,next_state,terminated,episode\n{text}\n\n"),
        str(write(tmp_path / "b.csv", f"State;ACTION;next_state;terminated;case\n{text.replace(',', ';')}")),
    ]
    for form in forms:
        log = read_transitions(form)
        assert [str(state) for state in log.states] == ["4", "7", "2"]
        assert [str(action) for action in log.actions] == ["1", "0"]
        assert log.state.tolist() == [0, 1, 0, 0]
        assert log.action.tolist() == [0, 1, 0, 1]
        assert log.next_state.tolist() == [1, 2, 0, 2]
        assert log.terminated.tolist() == [False, True, False, True]
        assert log.begins_episode is not None
        assert log.begins_episode.tolist() == [True, False, True, False]


HAND = """state,action,next_state
lobby,badge,lobby
lobby,badge,hall
hall,badge,lift
lift,up,roof
lobby,up,lobby
lobby,badge,hall
hall,up,hall
hall,badge,lift
lift,badge,hall
hall,badge,lift
lift,up,roof
lobby,badge,lobby
lobby,badge,hall
hall,badge,lift
lift,up,lift
lift,up,roof
lobby,badge,hall
hall,badge,lift
lift,up,roof
lobby,badge,hall
"""


def test_short_log_lists_the_pairs_to_try_next(tmp_path: Path) -> None:
    result = adagoal.certify_data(write(tmp_path / "door.csv", HAND), 8, start="lobby", n_states=4)
    assert result.status == "budget"
    assert set(result.open_goals) <= set(result.goals)
    assert result.open_goals
    assert result.certificate("roof").upper == np.inf
    rows = result.pairs_to_try()
    assert {(row["state"], row["action"]) for row in rows} >= {("roof", "up"), ("hall", "badge")}
    assert next(row for row in rows if row["state"] == "hall" and row["action"] == "badge")["tries"] == 5
    assert result.is_from_data


def test_log_may_leave_a_state_that_it_never_enters() -> None:
    result = adagoal.certify_data([("a", "go", "b"), ("c", "go", "d")], 3, start="a")
    assert result.status == "budget"
    assert {row["state"] for row in result.pairs_to_try()} == {"a", "b"}
    # Nothing is known about the way to c.
    assert result.certificate("c") == (1.0, np.inf)


def test_suggested_tries_count_further_resets_if_the_start_is_believed() -> None:
    rng, rows = default_rng(0), []
    for episode in range(200):
        state, terminated = 0, False
        while not terminated:
            after = state + 1 if rng.random() < 0.5 else max(state - 1, 0)
            terminated = after == 3
            rows.append((state, 0, after, terminated, episode))
            state = after
    # The 200 resets of the log do not suffice: without further ones no number of tries does.
    assert 0 < max(row["more"] for row in adagoal.certify_data(rows, 13, 1.0).pairs_to_try()) < 100_000


class Frame:
    """What pandas and polars have in common."""

    columns = ("State", "action", "next_state", "reward")

    def __getitem__(self, name: str) -> Any:
        values = {"State": ["off", "on"], "action": ["press"] * 2, "next_state": ["on", "off"], "reward": [0.5, np.nan]}
        return np.array(values[name])


def test_data_frames_and_files_with_spaces_are_read(tmp_path: Path) -> None:
    file = write(tmp_path / "switch.csv", "state, action, next_state\noff, press, on\non, press, off\n")
    for data in (Frame(), file):
        result = adagoal.certify_data(data, 2, start="off", n_states=2)
        assert result.certificates == adagoal.certify_data(SWITCH, 2, start="off", n_states=2).certificates


def door(rng: Generator, state: str, action: str) -> str:
    """Return the true model of the log written by hand."""
    good = {("lobby", "badge"): "hall", ("hall", "badge"): "lift", ("lift", "up"): "roof", ("lift", "badge"): "hall"}
    return good[state, action] if (state, action) in good and rng.random() < 0.8 else state


def test_suggested_pairs_suffice_for_a_certificate(tmp_path: Path) -> None:
    rng, rows = default_rng(0), [tuple(line.split(",")) for line in HAND.splitlines()[1:]]
    result = adagoal.certify_data(rows, 8, start="lobby", n_states=4)
    rounds = 0
    while result.status != "certified":
        rounds += 1
        assert rounds <= 4
        for row in result.pairs_to_try():
            state, action = row["state"], row["action"]
            rows += [(state, action, door(rng, state, action)) for _ in range(row["more"])]
        result = adagoal.certify_data(rows, 8, start="lobby", n_states=4)
    assert {result.label(g) for g in result.goals} == {"lobby", "hall", "lift", "roof"}
    # At most a few times the steps of an exploration.
    assert len(rows) < 60_000


BAD = {
    "empty": ("", "the file is empty"),
    "no rows": ("state,action,next_state\n", "there are no transitions"),
    "column": ("state,action,then\na,b,c\n", "no column next_state among state, action, then"),
    "case": ("Case ID,activity\n1,a\n", "no column case among Case ID, activity"),
    "json": ('[{"state": ' + "0" * 900 + "}]\n", "…; an event log needs the columns case"),
    "event column": ("case,activity_name\n1,a\n", "no column state among case, activity_name"),
    "ragged": ("state,action,next_state\na,b,c\na,b\n", "line 3: 2 values, but the header has 3 columns"),
    "missing": ("state,action,next_state\na,b,c\na,b,\n", "line 3: the state is empty"),
    "not finite": ("state,action,next_state\na,b,c\nc,b,nan\n", "line 3: the state is nan"),
    "infinite": ("state,action,next_state\n1,inf,2\n", "line 2: the action is inf"),
    "flag": ("state,action,next_state,terminated\na,b,c,maybe\n", "line 2: terminated must be 0 or 1, got 'maybe'"),
    "left": (
        "state,action,next_state,terminated\na,b,c,1\nc,b,a,0\n",
        "line 3: the state 'c' is left, but line 2 says",
    ),
    "once": (
        "state,action,next_state,terminated\na,b,c,1\na,b,c,0\n",
        "line 3: the state 'c' does not end the episode",
    ),
    "not sorted": (
        "state,action,next_state,terminated,episode\nb,x,c,1,1\na,x,b,0,1\n",
        "line 3: the episode '1' goes on, but line 2 says that it is terminated; sort the rows by time",
    ),
    "twice": ("state,state,action,next_state\na,b,c,d\n", "two columns state"),
    "binary": ("state,action,next_state\na,\0,c\n", ""),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_give_one_line_error(tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    text, reason = BAD[case]
    path = write(tmp_path / "log.csv", text)
    if case == "binary":
        path.write_bytes(b"state,action,next_state\n\xff\xfe,b,c\n")
        reason = "not a text file in UTF-8"
    assert run_command_line(["certify-data", str(path), "--radius", "3", "--start", "a"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert reason in lines[0]


class Missing:
    """Looks like a missing value of pandas."""

    def __str__(self) -> str:
        return "<NA>"


@pytest.mark.parametrize(
    ("data", "arguments", "reason"),
    [
        (SWITCH, {"start": "dimmed"}, "start: 'dimmed' is not a state of the log, which has off, on"),
        (SWITCH, {}, "start: the log does not say where episodes begin"),
        (SWITCH, {"start": "off", "n_states": 1}, "n_states: must be a whole number, at least the 2 of the log, got 1"),
        (
            [*SWITCH, ("on", "press", "far")],
            {"start": "off", "n_states": 2},
            "n_states: must be a whole number, at least the 3 of the log, got 2",
        ),
        (SWITCH, {"start": "off", "actions": ["hold"]}, "actions: the log has an action 'press'"),
        (SWITCH, {"start": "off", "reset_action": "r"}, "reset_action: the log has no action 'r'; it has press"),
        (SWITCH, {"start": "off", "reset_action": "press"}, "the log has no action but the reset"),
        (
            [*SWITCH, ("on", "r", "on")],
            {"start": "off", "reset_action": "r"},
            "row 2: the reset leads to on, not to the",
        ),
        (SWITCH, {"start": "off", "columns": {"s": "t"}}, "columns: unknown column 's'"),
        (SWITCH, {"start": "off", "radius": "auto"}, "radius: "),
        ([("a", "b")], {"start": "a"}, "data: a transition has 3 to 5 parts"),
        ([("a", "b", "c"), ("a", "b")], {"start": "a"}, "data: transitions must all have the same length"),
        ([1, 2], {"start": 1}, "data: must be a CSV file"),
        (7, {"start": 1}, "data: must be a CSV file"),
        ([([0], 0, 1)], {"start": 1}, "data: states and actions must be hashable"),
        ([(1, 0, "1")], {"start": 1}, "data: the states 1 and '1' look alike; write one value in one way"),
        ([("1", 0, "1.0"), ("2.0", 0, "1")], {"start": 1}, "data: the states '1' and '1.0' look alike"),
        ([("a", "x", "b"), ("b ", "x", "a")], {"start": "a"}, "data: the states 'b' and 'b ' look alike"),
        (SWITCH, {"start": "off", "columns": ["state"]}, "columns: must be a dictionary such as"),
        (SWITCH, {"start": "off", "n_states": "2"}, "at least the 2 of the log, got '2'"),
        (
            (np.array([0.5]), np.array([0]), np.array([1])),
            {"start": 1},
            "state must be a whole number or text, got 0.5",
        ),
        ((np.zeros(2), np.zeros(3), np.zeros(2)), {"start": 0}, "the columns have different lengths"),
        ((np.array([np.inf]), np.array([0]), np.array([1])), {"start": 1}, "got inf"),
        ([("a", "b", "c", True)], {"start": "c"}, "start: state c is terminal"),
        ({"state": ["a", Missing()], "action": [0, 0], "next_state": ["a", "a"]}, {}, "row 1: the state is <na>"),
        (SWITCH, {"start": "off", "actions": 1}, "actions: must be a list of all actions, got 1"),
        (SWITCH, {"start": "off", "branching": 0}, "branching: must be a whole number >= 1, got 0"),
        ([*SWITCH, ("on", "press", "on")], {"start": "off", "branching": 1}, "branching: branching=1: a pair with"),
        ("minari:no/such", {}, "data: a Minari dataset needs the package minari"),
        ("no-such.csv", {"start": 0}, "no-such.csv: no such file"),
    ],
)
def test_bad_arguments_give_one_line_error(data: Any, arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(adagoal.InputError) as error:
        adagoal.certify_data(data, **{"radius": 3.0} | arguments)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


# Assumption: any rule may choose the actions, but no transition may be omitted because of its outcome.

# From state 0, action 0 reaches the goal 1 with probability 0.3 and action 1 with 0.5; from 1 both lead back.
COIN = model_of([{0: 0.7, 1: 0.3}, {0: 0.5, 1: 0.5}, {0: 1.0}, {0: 1.0}], 2)


def play_coin(rng: Generator, choose: Callable[[list[Step]], int | None], most: int = 400) -> list[Step]:
    """Play a behaviour that sees all previous steps and chooses an action, or None to end the log."""
    rows: list[Step] = []
    state = 0
    while len(rows) < most and (action := choose(rows)) is not None:
        p = (0.3, 0.5)[action] if state == 0 else 0.0
        successor = int(rng.random() < p)
        rows.append((state, action, successor))
        state = successor
    return rows


def chase_luck(rows: list[Step]) -> int | None:
    """Prefer the action with the better record, and end the log when action 0 looks too good."""
    tries = [[n for s, a, n in rows if s == 0 and a == action] for action in (0, 1)]
    if len(tries[0]) >= 40 and np.mean(tries[0]) > 0.45:
        return None
    return int(not tries[0] or ((len(tries[1]) > 0 and np.mean(tries[1]) > np.mean(tries[0])) and len(rows) % 3 > 0))


def avoid_surprise(rows: list[Step]) -> int | None:
    """Leave an action as soon as it has failed, and end after six successes of action 0 in ten tries."""
    last = [n for s, a, n in rows if s == 0 and a == 0][-10:]
    if len(last) == 10 and sum(last) >= 6:
        return None
    return 0 if not rows or rows[-1][2] == 1 else len(rows) % 2


def broken_logs(logs: Iterator[list[Step]], delta: float) -> tuple[int, int]:
    """Return the number of logs, and of those whose certificates contradict the model."""
    broken = total = 0
    for rows in logs:
        if len({s for row in rows for s in (row[0], row[2])}) < 2:
            continue
        result = adagoal.certify_data(rows, 3, 1.0, delta, start=0, actions=[0, 1], n_states=2)
        total += 1
        broken += not adagoal.audit(result, COIN).certificates
    return total, broken


@pytest.mark.parametrize("choose", [chase_luck, avoid_surprise])
def test_any_adaptive_behaviour_keeps_the_certificates(choose: Callable[[list[Step]], int | None]) -> None:
    total, broken = broken_logs((play_coin(default_rng(seed), choose) for seed in range(25)), delta=0.3)
    assert total >= 20
    # Each fails with probability 0.3 at most; the bounds are not tight.
    assert broken <= 2


def test_transitions_chosen_by_their_outcome_break_the_certificates() -> None:
    def filtered(seed: int) -> list[Step]:
        rows = play_coin(default_rng(seed), lambda rows: len(rows) % 2, 4000)
        rng = default_rng(seed + 100)
        # "Failed steps are not interesting": most of them are dropped.
        return [row for row in rows if row[0] == 1 or row[2] == 1 or rng.random() < 0.1]

    total, broken = broken_logs(map(filtered, range(4)), delta=0.3)
    assert total == broken == 4


def test_pairs_omitted_before_their_outcome_keep_the_certificates() -> None:
    def thinned(seed: int) -> list[Step]:
        rows = play_coin(default_rng(seed), lambda rows: len(rows) % 2, 2000)
        return [row for i, row in enumerate(rows) if i % 3]

    assert broken_logs(map(thinned, range(4)), delta=0.3) == (4, 0)


# Starts


def test_start_is_inferred_from_the_episodes() -> None:
    rows = [(0, 0, 1, False, i) for i in range(300)]
    given = adagoal.certify_data(rows, 2, start=0, n_states=2)
    believed = adagoal.certify_data(rows, 2, n_states=2)
    (_, sure), (_, wider) = given.certificate("1"), believed.certificate("1")
    assert sure < wider
    # Every episode but the first counts as a reset: the first one says which state the others must agree on.
    assert believed.arrays["visits"].sum() == 599


def test_a_reset_in_the_log_counts_once_for_a_believed_start() -> None:
    rows = [row for i in range(9) for row in ((0, "go", 1, False, i), (1, "back", 0, False, i))]
    env = LoggedEnv(read_transitions(rows, reset_action="back"))
    assert not env.start_is_certain
    assert (env.moves()[0] < 0).sum() == 9


def test_a_declared_number_of_states_does_not_count_those_that_adagoal_adds() -> None:
    # There are the states a and b. Nobody has tried what may lead from a to b.
    rows = [("a", "stay", "a", False, episode) for episode in range(5000)]
    result = adagoal.certify_data(rows, 3, start="random", actions=["stay", "go"], n_states=2)
    assert [result.label(goal) for goal in result.goals] == ["(start)", "a"]
    assert result.status == "budget"
    cases = LoggedEnv(read_transitions({"case": [1, 1, 2], "activity": ["order", "ship", "order"]}), n_states=3)
    assert (cases.initial_states, cases.state_bound) == (4, 5)  # one activity is not in the log


def test_several_first_states_give_a_virtual_start() -> None:
    rng = default_rng(0)
    rows = []
    for episode in range(3000):
        first = int(rng.random() < 0.25)
        rows.append((f"door {first}", "go", "room", True, episode))
    result = adagoal.certify_data(rows, 3, 0.5, n_states=3)
    assert result.status == "certified"
    assert result.label(int(result.view.start or 0)) == "(start)"
    lower, upper = result.certificate("room")
    assert lower <= 2.0 <= upper
    # A draw of the first state costs one step, and so does the reset before the next draw.
    lower, upper = result.certificate("door 0")
    assert lower <= 1 / 0.75 + (1 / 0.75 - 1) * 2 <= upper + 1


@pytest.mark.parametrize(
    ("firsts", "start", "share"),
    [("a", "a", 1.0), ("a", None, 0.5 * 0.95), ("ab", None, 0.5), ("ab", "random", 1.0), ("cases", None, 1.0)],
)
def test_a_start_that_the_log_decides_has_half_of_delta(
    firsts: str, start: str | None, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The events of a fixed and of a virtual start must both hold. A start that is only believed costs 5% besides."""
    deltas: set[float] = set()
    original = ConfidenceSets.__init__

    def record(self: ConfidenceSets, *args: Any, **kwargs: Any) -> None:
        deltas.add(inspect.signature(original).bind(self, *args, **kwargs).arguments["delta"])
        original(self, *args, **kwargs)

    monkeypatch.setattr(ConfidenceSets, "__init__", record)
    rows: Any = {"case": [0, 0, 1, 1], "activity": ["x", "y", "x", "y"]}
    if firsts != "cases":
        rows = [(firsts[i % len(firsts)], "go", "room", True, i) for i in range(20)]
    adagoal.certify_data(rows, 3, start=start, delta=0.2)
    assert list(deltas) == pytest.approx([0.2 * share])


def test_an_event_log_is_certified_by_activities(tmp_path: Path) -> None:
    rng, lines = default_rng(1), []
    for case in range(4000):
        lines += [(case, "order"), (case, "check")]
        while rng.random() < 0.2:
            lines.append((case, "check"))
        lines.append((case, "ship" if rng.random() < 0.9 else "cancel"))
    text = "case,activity\n" + "".join(f"{case},{activity}\n" for case, activity in lines)
    result = adagoal.certify_data(write(tmp_path / "orders.csv", text), 6, 0.5, n_states=4)
    assert result.status == "certified"
    lower, upper = result.certificate("check")
    assert lower <= 2.0 <= upper
    assert {result.label(g) for g in result.goals} == {"(start)", "order", "check", "ship", "(end)"}


def test_non_markovian_log_is_void() -> None:
    # Whether "b" is followed by "c" or "d" depends on what was before it.
    cases = [("a1", "b", "c"), ("a2", "b", "d")] * 200
    columns = {
        "case": [case for case, events in enumerate(cases) for _ in events],
        "activity": [event for events in cases for event in events],
    }
    result = adagoal.certify_data(columns, 4)
    assert result.status == "void"
    assert "depends on the step before it" in result.void[0]


# Data before the first step of a run


def test_data_reduces_the_steps_of_a_run(tmp_path: Path) -> None:
    setting: dict[str, Any] = {"env": "grid", "env_args": {"rows": 3, "cols": 3, "slip": 0.2}, "radius": 5}
    alone = adagoal.explore(**setting, out=tmp_path / "alone", record=True)
    steps = adagoal.transitions(tmp_path / "alone")
    data = {name: column[: alone.steps // 2] for name, column in steps.items()}
    run = adagoal.explore(**setting, data=data, out=tmp_path / "run")
    assert run.status == "certified"
    assert 0 < run.steps < 0.8 * alone.steps
    assert adagoal.audit(run).ok
    assert "recorded transitions" in run.warnings[0]
    with pytest.raises(adagoal.InputError, match="recorded data, which may differ"):
        adagoal.explore(**setting, out=tmp_path / "run")
    with pytest.raises(adagoal.InputError, match="holds a finished run with recorded data"):
        adagoal.explore(**setting, data=data, out=tmp_path / "run")


def test_resume_with_data_equals_uninterrupted_run(tmp_path: Path) -> None:
    setting: dict[str, Any] = {"env": "chain", "radius": 6, "data": [(0, 1, 1), (1, 1, 2)] * 50}
    whole = adagoal.explore(**setting)
    half = whole.steps // 2
    part = adagoal.explore(**setting, observe=lambda run: run.steps < half, out=tmp_path / "r")
    assert part.status == "interrupted"
    again = adagoal.resume(tmp_path / "r")
    assert again.certificates == whole.certificates
    assert again.steps == whole.steps


def test_data_for_a_gym_environment() -> None:
    env = gymnasium.make("FrozenLake-v1")
    s, a, n, t = lake_log(30_000, 3)
    run = adagoal.explore(env, 4, 2.0, data=(s, a, n, t))
    assert run.status == "certified"
    assert adagoal.audit(run, "FrozenLake-v1").ok
    with pytest.raises(adagoal.InputError, match="the data need the column terminated"):
        adagoal.explore(env, 4, 2.0, data=(s, a, n))


class FairCoin(gymnasium.Env[Any, Any]):
    """The only action leads from 0 to 1 or 2, and back. ``tossed`` keeps what came from 0."""

    observation_space: Any = gymnasium.spaces.Discrete(3)
    action_space: Any = gymnasium.spaces.Discrete(1)

    def __init__(self) -> None:
        self.state, self.tossed = 0, list[int]()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = 0
        return 0, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.state == 0:
            self.state = 1 + int(self.np_random.random() < 0.5)
            self.tossed.append(self.state)
        else:
            self.state = 0
        return self.state, 0.0, False, False, {}


def test_run_does_not_count_the_random_numbers_of_its_data_again() -> None:
    """The recorder had the seed of the run: 0, as most have."""
    recorded, rows, env = FairCoin(), list[Any](), FairCoin()
    state, _ = recorded.reset(seed=0)
    for _ in range(400):
        after, *_ = recorded.step(0)
        rows.append((state, 0, after, 0))
        state = after
    adagoal.explore(env, 10.0, 0.01, data=rows, budget=400)
    # A reset may have drawn numbers, too.
    for shift in range(-3, 4):
        pairs = zip(env.tossed[3:150], recorded.tossed[3 + shift : 150 + shift], strict=True)
        assert 0.3 < np.mean([a == b for a, b in pairs]) < 0.7


def test_runs_with_other_data_draw_other_random_numbers() -> None:
    """Data may be those of a run with the same seed, which may have begun with data as well."""
    streams: list[int] = []

    def note_stream(run: Any) -> None:
        streams.append(run.rng.bit_generator.state["state"]["inc"])

    for n in (0, 1, 2):
        data = {"data": [(0, 1, 1)] * n} if n else {}
        adagoal.explore("chain", 3.0, env_args={"n_states": 4}, budget=20, observe=note_stream, **data)
    assert len(set(streams)) == 3


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"data": [(0, 0, 9)]}, "this action cannot lead to 9 in the model"),
        ({"data": [(0, 3, 1)]}, "chain has no action '3'; it has 0 to 2"),
        ({"data": [(77, 0, 1)]}, "chain has no state '77'"),
        ({"data": [(0, 2, 1)]}, "a reset leads to the start, not to 1"),
        ({"data": [(0, 0, 1)], "method": "ucbvi"}, "works with the method certified only"),
    ],
)
def test_data_that_does_not_fit_the_environment_gives_one_line_error(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(adagoal.InputError) as error:
        adagoal.explore("chain", 3, **arguments)
    assert reason in str(error.value)


def test_audit_refuses_unknown_state_names() -> None:
    result = adagoal.certify_data(SWITCH * 400, 2, start="off", n_states=2)
    with pytest.raises(adagoal.InputError, match="has no state 'off', which the data have"):
        adagoal.audit(result, "chain")
    forged = replace(result, view=replace(result.view, actions=("press", "hold")))
    with pytest.raises(adagoal.InputError, match="does not name all states and actions"):
        adagoal.audit(forged, "chain")


# The command


def test_certify_data_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "door.csv", HAND)
    command = ["certify-data", "door.csv", "--radius", "8", "--start", "lobby", "--n-states", "4"]
    assert run_command_line(command) == 3
    out = capsys.readouterr().out
    assert "Not finished (the data do not suffice)" in out
    assert "It used 20 recorded transitions and took no step" in out
    assert "try next: up in roof, about" in out
    assert "resume" not in out
    folder = tmp_path / "runs" / "door-radius-8-start-lobby-n-states-4"
    assert (folder / "report.html").is_file()
    loaded = adagoal.load(folder)
    assert isinstance(loaded, adagoal.Result)
    assert loaded.view.actions == ("badge", "up")
    assert loaded.pairs_to_try()[0]["more"] > 0
    assert run_command_line([*command, "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["status"] == "budget"
    write(tmp_path / "switch.csv", "s,a,t\n" + "off,press,on\non,press,off\n" * 400)
    renamed = [word for name in ("state=s", "action=a", "next_state=t") for word in ("--column", name)]
    assert run_command_line(["certify-data", "switch.csv", "--radius", "2", "--start", "off", *renamed]) == 0
    assert "Certified" in capsys.readouterr().out


def test_probabilities_begin_without_data() -> None:
    with pytest.raises(adagoal.InputError, match=r"^data: cannot be combined with within"):
        adagoal.explore("chain", within=3, probability=0.5, epsilon=0.1, data=[(0, 0, 0)])


def test_numpy_numbers_are_numbers() -> None:
    """Arrays of floats, as np.loadtxt reads them, are whole numbers; so are sizes that NumPy computed."""
    rows = np.array([(0, 0, 1, 0), (1, 0, 2, 1)] * 300)
    read = read_transitions(rows.astype(float))
    assert read.states == (0, 1, 2)
    assert read.terminated.tolist() == [False, True] * 300
    assert read_transitions([tuple(map(float, row)) for row in rows]).terminated.sum() == 300
    plain = adagoal.certify_data(rows, 3, start=0, n_states=3, branching=1)
    assert plain.status == "certified"
    again = adagoal.certify_data(rows, 3, start=0, n_states=rows[:, 2].max() + 1, branching=np.int64(1))
    assert again.certificates == plain.certificates
