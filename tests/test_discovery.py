"""Environments that do not declare how many states they have: the union over the order of discovery (lemma 14)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import adagoal
from adagoal.api.explore import open_restored_session
from adagoal.certified.confidence_sets import ConfidenceSets
from adagoal.core.errors import InputError
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs import toy_models
from adagoal.envs.logged_env import LoggedEnv
from adagoal.envs.model import TabularMDP, model_from_rows
from adagoal.envs.recorded_transitions import read_transitions
from adagoal.exact.solver import is_at_most
from adagoal.tabular.reach_probabilities import RestartedBalls
from experiments import discovery
from experiments.discovery import Queue
from experiments.exact_policies import optimal_values
from model_env import PairEnv, with_terminal
from test_parallel_env import InProcessWorker, in_process, plain, vector  # noqa: F401

DELTA = 0.1


def queue_model(size: int) -> TabularMDP:
    """The queue up to a length. It rises by one, so a goal's value does not depend on longer queues."""
    rows = []
    for n in range(size):
        for rise, fall in ((0.1, 0.6), (0.7, 0.1)):
            row = dict.fromkeys((n, min(n + 1, size - 1), max(n - 1, 0)), 0.0)
            row[min(n + 1, size - 1)] += rise
            row[max(n - 1, 0)] += fall
            row[n] += 1.0 - rise - fall
            rows.append({state: p for state, p in row.items() if p > 0})
    return model_from_rows(rows, 2, name="queue")


@pytest.fixture(scope="module")
def certified_queue() -> adagoal.Result:
    return adagoal.explore(Queue(), 12.0, 2.0, DELTA, seed=5)


def test_a_queue_of_any_length_is_certified_within_its_radius(certified_queue: adagoal.Result) -> None:
    result = certified_queue
    assert result.status == "certified"
    # Lengths are discovered one by one, so a length is the number of its state.
    size = result.arrays["policy"].shape[2]
    assert [result.label(g) for g in result.goals] == ["start", *(f"[{n}]" for n in range(1, len(result.goals)))]
    assert adagoal.audit(result, queue_model(size)).ok
    assert adagoal.audit(result, queue_model(size)).certificates
    exact = optimal_values(queue_model(size))[0]
    assert {g for g in range(size) if exact[g] <= 12.0} <= set(result.goals)
    assert not any("states" in line for line in result.warnings)


def test_max_states_does_not_change_the_bounds() -> None:
    """More than the rows of the first arrays, so these are the same too."""
    small, large = (adagoal.explore(Queue(), 6.0, 2.0, max_states=most) for most in (100, 10**7))
    assert small.status == "certified"
    assert (small.steps, small.certificates) == (large.steps, large.certificates)


@pytest.mark.parametrize("starts", [(0,), (0, 3)])
@pytest.mark.parametrize("extra", [0, 1, 500])
def test_finite_model_is_certified_with_exact_or_larger_max_states(starts: tuple[int, ...], extra: int) -> None:
    mdp = with_terminal(toy_models.random_sparse(n_states=5, n_actions=2, seed=2), 4)
    n_states = 5 + (len(starts) > 1)
    result = adagoal.explore(PairEnv(mdp, starts), 20.0, 4.0, max_states=n_states + extra)
    assert result.status == "certified"
    assert len(result.goals) == n_states
    # The virtual start of the second case is not a state of the model.
    exact = optimal_values(mdp)[0]
    for goal in result.goals[1:] if len(starts) == 1 else ():
        a, b = result.label(goal).removesuffix(" (end)").strip("[]").split()
        lower, upper = result.certificate(goal)
        assert is_at_most(lower, exact[7 * int(a) + int(b)])
        assert is_at_most(exact[7 * int(a) + int(b)], upper)


def test_more_states_than_max_states_give_one_line_error() -> None:
    mdp = toy_models.random_sparse(n_states=5, n_actions=2, seed=2)
    with pytest.raises(InputError, match=r"max_states: .* has more than 4 states; give a larger number"):
        adagoal.explore(PairEnv(mdp), 20.0, 4.0, max_states=4)


@pytest.mark.parametrize("given", [{}, {"within": 12, "probability": 0.5}])
def test_resume_equals_uninterrupted_run(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting: dict[str, Any] = {"seed": 3, "budget": 3_000, **given}
    setting |= {"epsilon": 0.2} if given else {"radius": 12.0, "epsilon": 1.0}
    whole, seen = adagoal.explore(Queue(), **setting), 0

    def crash(run: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == 7:
            raise SystemExit  # like a kill: nothing is saved after the last checkpoint

    with monkeypatch.context() as patch:
        patch.setattr("adagoal.runs.run_folder.save_interval_elapsed", lambda since, cost: True)
        with pytest.raises(SystemExit):
            adagoal.explore(Queue(), **setting, out=tmp_path, observe=crash)
    again = adagoal.resume(tmp_path, env=Queue())
    assert again.to_dict() | {"wall_seconds": 0} == whole.to_dict() | {"wall_seconds": 0}
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(array, again.arrays[name])


@pytest.mark.usefixtures("in_process")
def test_two_workers_discover_in_one_order() -> None:
    first, again = (adagoal.explore(vector(Queue, 2), 6.0, 2.0, seed=1, budget=400_000) for _ in range(2))
    assert plain(first) == plain(again)
    assert first.status == "certified"
    model = queue_model(first.arrays["policy"].shape[2])
    # Lengths are still discovered one by one, whoever meets them.
    assert [first.label(g) for g in first.goals[1:]] == [f"[{n}]" for n in range(1, len(first.goals))]
    assert adagoal.audit(first, model).ok


def test_probabilities_of_a_queue() -> None:
    result = adagoal.explore(Queue(), within=12, probability=0.5, epsilon=0.2, seed=1)
    assert result.status == "certified"
    verdict = adagoal.audit(result, queue_model(result.arrays["policy"].shape[2]))
    assert verdict.ok
    assert not any("states" in line for line in result.warnings)


@pytest.mark.parametrize("kind", ["discovered goals", "fixed goals", "probabilities"])
def test_the_shares_of_all_pairs_sum_to_delta(kind: str) -> None:
    """However many states are discovered. Lemma 1 has one event for each state and fixed goal, or no share."""
    counts, n_goals = TransitionCounts(50_000, 2, 0), 7
    if kind == "probabilities":
        sets: Any = RestartedBalls(counts, None, None, n_goals, DELTA, 2**62)
    else:
        sets = ConfidenceSets(counts, None, None, n_goals if kind == "fixed goals" else math.inf, DELTA, 2**62)
    first, second, third = np.exp(-sets.union_logs)
    # The weights of the pairs of a state are 1/A of its share; a state has one event for each goal.
    first *= n_goals / counts.n_actions
    assert first == (pytest.approx(0.35 * DELTA) if kind == "fixed goals" else 0.0)
    weights = np.exp(-sets._pair_logs)
    # The states that are still to come have the rest: c/(S + c).
    assert weights.sum() == pytest.approx(1.0 - 100 / 50_100)
    assert first + second + third + 0.25 * DELTA == pytest.approx(DELTA)
    assert (np.diff(weights) <= 0).all()
    before = sets._pair_logs.copy()
    counts.grow_states(60_000)
    sets.grow_arrays()
    np.testing.assert_array_equal(sets._pair_logs[: len(before)], before)


FIXED_GOALS: dict[str, Any] = {"three": lambda length: length[0] == 3, "five": lambda length: length[0] == 5}


def run_confidence(goals: Any, **setting: Any) -> ConfidenceSets:
    """Return the confidence sets of a run on the queue after 600 steps, with the radii of this moment."""
    seen: list[Any] = []
    adagoal.explore(Queue(), 6.0, 1.0, goals=goals, budget=600, observe=seen.append, **setting)
    sets: ConfidenceSets = seen[-1].estimates.exact.confidence
    sets.update_radii()
    return sets


@pytest.mark.parametrize(("goals", "n_goals"), [(FIXED_GOALS, 2), (["start", "[2]", "[4]"], 3)])
def test_goals_fixed_before_the_run_use_lemma_1(goals: Any, n_goals: int) -> None:
    """Their values are fixed functions, and no pair is tried before its state is discovered."""
    sets = run_confidence(goals)
    assert not sets.uses_ball.any()
    counts, delta = sets.counts, 0.95 * DELTA  # 0.05 pays for the start
    for x in np.flatnonzero((counts.n > 0) & (counts.support > 1)):
        k = x // 2 + 1
        share = 100 / ((k + 99) * (k + 100))
        radius = math.log(25 * n_goals / (0.35 * delta * share)) / counts.n[x]
        assert sets.empirical_model().r_low[x] == pytest.approx(radius)
        local = sets.local_lower_bounds(np.zeros((1, counts.n_states)), np.zeros((1, 1), np.int16), False, 8.0)
        assert local.logs[x // 2] / counts.n[x] == pytest.approx(radius)


@pytest.mark.parametrize("goals", [None, "keys:0", lambda length: int(length[0]) // 2])
def test_discovered_goals_use_no_fixed_function_bound(goals: Any) -> None:
    """Lemma 1 needs a function that is fixed in advance. The value of a goal that was discovered is not."""
    sets = run_confidence(goals)
    assert sets.uses_ball.all()
    tried = sets.counts.n > 0
    assert (sets.empirical_model().r_low[tried] > 1e6).all()
    # Lemma 2 has the share of lemma 1.
    assert run_confidence(FIXED_GOALS).union_logs[1] - sets.union_logs[1] == pytest.approx(math.log(2))


def test_inspected_checkpoint_has_the_radii_of_the_run(tmp_path: Path) -> None:
    """Without the code of the goals: the names in the checkpoint say whether goals are discovered."""
    for name, goals in (("fixed", FIXED_GOALS), ("found", lambda length: int(length[0]) // 2)):
        sets = run_confidence(goals, out=tmp_path / name)
        with open_restored_session(tmp_path / name, Queue(), trust=False) as session:
            estimates: Any = session.run.estimates
            again = estimates.exact.confidence
            again.update_radii()
        np.testing.assert_array_equal(again.union_logs, sets.union_logs)
        for mine, other in zip(again.empirical_model(), sets.empirical_model(), strict=True):
            np.testing.assert_array_equal(mine, other)


def test_discovered_goals_do_not_become_fixed_ones(tmp_path: Path) -> None:
    by_length = lambda length: "three" if length[0] == 3 else None  # noqa: E731
    three = {"three": FIXED_GOALS["three"]}
    for name, given, other in (("found", by_length, three), ("fixed", three, by_length)):
        adagoal.explore(Queue(), 6.0, 1.0, goals=given, budget=2_000, out=tmp_path / name)
        with pytest.raises(InputError, match=r"goals: the goals of the run are .*; give the same again"):
            adagoal.resume(tmp_path / name, budget=2_500, env=Queue(), goals=other)


class Hub(gymnasium.Env[Any, Any]):
    """The action leads to one of many leaves, which ends the episode. An observation has an entry beyond its space."""

    def __init__(self) -> None:
        self.action_space = gymnasium.spaces.Discrete(1)
        self.observation_space = gymnasium.spaces.Dict({"leaf": gymnasium.spaces.Box(0, 1_000, (1,), np.int64)})
        self.steps = 0

    def observe(self, leaf: int) -> dict[str, Any]:
        return {"leaf": np.array([leaf]), "steps": self.steps}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observe(0), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.observe(1 + int(self.np_random.integers(40))), 0.0, True, False, {}


def late_states(tmp_path: Path, kind: str) -> Any:
    """Goals that contain the states of the largest numbers: those that are found last."""
    late = {"late": list(range(26, 41)), "never": lambda observation: observation["leaf"][0] < 0}
    if kind == "mapping":
        return late
    (tmp_path / "late.py").write_text("late = {'late': list(range(26, 41))}\n")
    return f"{tmp_path / 'late.py'}:late"


class Walk(gymnasium.Env[Any, Any]):
    """A walk over all whole numbers. Action 0, which is tried first, leads away from the goal at -3."""

    observation_space = gymnasium.spaces.Box(-(10**6), 10**6, (1,), np.int64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.x = 0
        return np.array([0]), {}

    def step(self, action: int) -> Any:
        self.x += 1 if (action == 0) == (self.np_random.random() < 0.9) else -1
        return np.array([self.x]), 0.0, False, False, {}


@pytest.mark.parametrize("method", ["certified", "intervals"])
@pytest.mark.parametrize("goals", [{"left": lambda seen: seen[0] == -3}, ["[-3]"]])
@pytest.mark.parametrize("question", [{"radius": 5, "epsilon": 3.0}, {"within": 5, "probability": 0.5, "epsilon": 0.2}])
def test_agent_comes_back_from_endless_states(method: str, goals: Any, question: dict[str, Any]) -> None:
    """Without a reset it would walk on until there are more than max_states."""
    result = adagoal.explore(Walk(), method=method, goals=goals, max_states=400, seed=0, **question)
    assert result.status == "certified"
    assert len(result.goals) == 1


@pytest.mark.parametrize("kind", ["mapping", "file"])
def test_numbers_of_discovered_states_name_no_goals(kind: str, tmp_path: Path) -> None:
    """A set of the states found last has no visits for long, whatever its probability: lemma 1 would be wrong."""
    with pytest.raises(InputError, match="goals: the states of this environment are numbered as they are found"):
        adagoal.explore(Hub(), 6.0, 1.0, 0.3, goals=late_states(tmp_path, kind), budget=2_000)


def test_goal_that_depends_on_the_time_voids_the_run() -> None:
    env = Hub()
    result = adagoal.explore(env, 6.0, 1.0, goals={"late": lambda observation: env.steps > 20}, budget=500)
    assert result.status == "void"
    assert "a goal had other states at the end of the run" in result.void[0]


def test_goal_functions_see_only_what_tells_states_apart() -> None:
    with pytest.raises(InputError, match=r"KeyError: 'steps' .* for the observation \{'leaf': array\(\[0\]\)\}"):
        adagoal.explore(Hub(), 6.0, 1.0, goals={"late": lambda observation: observation["steps"] > 20}, budget=500)


def test_run_keeps_its_goals_when_it_is_resumed(tmp_path: Path) -> None:
    """Fewer goals would raise the share of each; another function of the same name would be another goal."""
    adagoal.explore(Queue(), 6.0, 1.0, goals=FIXED_GOALS, budget=1_000, out=tmp_path)
    first, *others = FIXED_GOALS
    another = {first: lambda length: length[0] == 1, **{name: FIXED_GOALS[name] for name in others}}
    for goals in ({first: FIXED_GOALS[first]}, another, {**FIXED_GOALS, "new": lambda length: False}):
        with pytest.raises(InputError, match="goals: these are not the goals of the run: they have other states"):
            adagoal.resume(tmp_path, budget=2_000, env=Queue(), goals=goals)
    assert adagoal.resume(tmp_path, budget=2_000, env=Queue(), goals=FIXED_GOALS).steps > 1_000


@pytest.mark.usefixtures("in_process")
def test_dropped_transitions_of_a_worker_void_the_run(tmp_path: Path) -> None:
    """Both find a state in the same round, and there is room for one."""
    with pytest.raises(InputError, match="has more than 6 states"):
        adagoal.explore(vector(Hub, 2), 6.0, 2.0, max_states=6, out=tmp_path)
    result = adagoal.load(tmp_path)
    assert result.status == "void"
    assert "the transitions of a worker were dropped" in result.void[0]


@pytest.mark.parametrize(
    ("given", "union"),
    [
        ({"goals": ["b"]}, math.inf),
        ({"goals": ["b"], "n_states": 9}, math.inf),
        ({"goals": lambda state: state}, math.inf),
        ({"goals": ["b"], "n_states": 3}, 3),  # labels of one state each
        ({"n_states": 9}, 9),
    ],
)
def test_goals_of_a_log_may_be_chosen_because_of_its_data(
    given: dict[str, Any], union: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So lemma 1 is for a union over all states, or not used."""
    unions: list[float] = []
    original = ConfidenceSets.__init__

    def record(self: ConfidenceSets, *args: Any, **kwargs: Any) -> None:
        unions.append(kwargs["goals"])
        original(self, *args, **kwargs)

    monkeypatch.setattr(ConfidenceSets, "__init__", record)
    steps = [("a", "go", "b"), ("b", "go", "c"), ("c", "go", "a")]
    rows = [(*step, False, episode) for episode in range(20) for step in steps]
    adagoal.certify_data(rows, radius=4, **{"start": "a"} | given)
    assert set(unions) == {union}


def test_other_methods_warn_that_they_assume_a_number_of_states() -> None:
    result = adagoal.explore(Queue(), 3.0, 2.0, method="intervals", max_states=100, budget=500)
    assert any("the proof of intervals assumes at most 100 states (max_states)" in line for line in result.warnings)


def test_a_log_numbers_states_in_the_order_in_which_it_is_counted() -> None:
    """Cases are counted one after the other, so their activities are not numbered in the order of the file."""
    log = read_transitions({"case": [1, 2, 1, 2], "activity": ["a", "b", "c", "d"]})
    assert log.states == ("(start)", "a", "c", "(end)", "b", "d")
    assert [log.states[s] for s in log.state] == ["(start)", "a", "c", "(start)", "b", "d"]
    assert [log.states[s] for s in log.next_state] == ["a", "c", "(end)", "b", "d", "(end)"]
    assert log.terminated.tolist() == [False, False, True] * 2


def test_the_virtual_start_of_a_log_is_its_first_state() -> None:
    """As the last one its share of delta would depend on how many states the log has."""
    rows = {"state": [3, 5, 4], "action": [0, 0, 0], "next_state": [4, 4, 5], "episode": [0, 1, 2]}
    env = LoggedEnv(read_transitions(rows), "random")
    assert (env.start, env.labels) == (0, ("(start)", "3", "4", "5"))
    moves, landed = env.moves()
    draws = moves == 0
    assert landed[draws].tolist() == [1, 3, 2]
    assert (env.pair_bound, env.initial_states, env.state_bound) == (None, 4, 5)


def test_a_log_needs_no_number_of_states() -> None:
    rows = [("off", "press", "on"), ("on", "press", "off")] * 2_000
    result = adagoal.certify_data(rows, radius=2, start="off")
    assert result.status == "certified"
    assert sorted(result.label(goal) for goal in result.goals) == ["off", "on"]


@pytest.mark.parametrize("goals", discovery.GOALS)
@pytest.mark.parametrize("family", discovery.FAMILIES)
def test_claims_hold_where_states_are_discovered(family: str, goals: str) -> None:
    record = discovery.run_task(discovery.Task(family, "adagoal", 0.1, 3, goals))
    assert not discovery.broken(record)


def test_weakened_bounds_are_detected() -> None:
    tasks = [
        discovery.Task(family, "adagoal", 0.0, 5, goals) for family in ("tree", "growth") for goals in discovery.GOALS
    ]
    assert all(discovery.broken(discovery.run_task(task)) for task in tasks)
