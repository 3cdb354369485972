"""Goals that are sets of states: exact values, certificates on random worlds, states found on the way, bad input."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adagoal
from adagoal.cli.main import run
from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.core.goalspace import GoalSpace, places
from adagoal.core.policy import Policy
from adagoal.mdp import incremental, solve
from adagoal.methods import METHODS
from adagoal.worlds import grid, random_models, toys
from adagoal.worlds.simulator import ModelWorld
from model_env import ModelEnv, PairEnv

WORLDS = {
    "sparse": random_models.random_sparse(n_states=8, n_actions=2, seed=3),
    "traps": random_models.random_traps(n_states=10, n_actions=2, seed=2),
    "unreachable": random_models.random_unreachable(n_states=10, n_actions=2, seed=0),
    "grid": grid.open_grid(rows=3, cols=3, slip=0.1),
}
GRID = {"rows": 3, "cols": 4}


def slow_values(mdp, members):
    """V* [S] to a set, by plain value iteration from below; and its greedy policy."""
    V, inside = np.zeros(mdp.n_states), np.isin(np.arange(mdp.n_states), list(members))
    for _ in range(4000):
        Q = 1.0 + (mdp.kernel() @ V).reshape(mdp.n_states, mdp.n_actions)
        Q[mdp.terminal] = np.inf
        Q = np.column_stack([Q, np.full(mdp.n_states, 1.0 + V[mdp.start])])
        V = np.where(inside, 0.0, np.minimum(Q.min(axis=1), 1e3))
    return V, Q.argmin(axis=1).astype(np.int16)


def random_sets(mdp, seed):
    """Some sets of states that overlap, one of them a single state and one with the start."""
    rng = np.random.default_rng(seed)
    sets = [rng.choice(mdp.n_states, size, replace=False).tolist() for size in (1, 2, 3, 4)]
    return [*sets, [mdp.start, *sets[1]]]


@pytest.mark.parametrize("world", WORLDS)
def test_exact_values_of_sets(world):
    mdp = WORLDS[world]
    sets = random_sets(mdp, 5)
    V = solve.optimal_values(mdp, sets)
    for j, members in enumerate(sets):
        slow, policy = slow_values(mdp, members)
        finite = np.isfinite(V[:, j])
        np.testing.assert_allclose(V[finite, j], slow[finite], rtol=1e-8, atol=1e-8)
        assert (slow[~finite] > 100).all()
        assert solve.distances(mdp, [members], within=6.0)[0] == pytest.approx(
            V[mdp.start, j] if V[mdp.start, j] <= 6 else np.inf
        )
        if finite[mdp.start]:
            value = solve.policy_value(mdp, Policy(0, policy[None], mdp.reset_action), members)
            assert value == pytest.approx(slow[mdp.start], abs=1e-8)
            many = np.repeat(policy[None], 400, axis=0)  # 400 stages: nearly surely there
            assert solve.periodic_value(mdp, many, members) == pytest.approx(slow[mdp.start], abs=1e-2)
    assert np.isinf(solve.distances(mdp, [[]])).all()


def test_places_of_overlapping_sets():
    at = places([[3], [0, 3], [], [3, 1]], 5)
    assert at.tolist() == [[1, -1, -1], [3, -1, -1], [-1, -1, -1], [0, 1, 3], [-1, -1, -1]]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("kind", ["partition", "overlapping"])
def test_certified_and_audited(world, kind):
    """Every bound on the way, and the whole answer at the end, against the exact model."""
    mdp = WORLDS[world]
    sets = [list(range(r, mdp.n_states, 3)) for r in range(3)] if kind == "partition" else random_sets(mdp, 1)
    names = {f"set {i}": members for i, members in enumerate(sets)}
    truth = solve.distances(mdp, sets)

    def check(running: Any) -> None:
        estimates = running.estimates
        for j in range(1, len(estimates.D)):
            goal = int(estimates.goal_state[j])
            assert estimates.D[j] <= truth[goal] + 1e-9
            if np.isfinite(estimates.upper[j]):
                value = solve.policy_values(mdp, estimates.returned[:, j], sets[goal])[mdp.start]
                assert value <= estimates.upper[j] + 1e-9
                assert value - truth[goal] <= estimates.gap[j] + 1e-9

    result = adagoal.explore(ModelWorld(mdp), 6.0, 1.0, goals=names, seed=2, observe=check)
    assert result.status == "certified"
    verdict = adagoal.audit(result, mdp)
    assert verdict.ok, verdict.failures
    assert {row.label for row in verdict.rows} == set(names)
    assert all(trial.agrees for trial in adagoal.play(result, episodes=200, env=ModelWorld(mdp)))


SCALES = {"ucbexplore": 1e-4, "disco": 0.01, "valae": 1e-5, "lae": 0.001}


@pytest.mark.parametrize("method", ["certified", *SCALES])
@pytest.mark.parametrize("budget", [100_000, 1_000])
def test_sets_of_one_state_are_the_states_bit_for_bit(method, budget):
    P, arguments = WORLDS["sparse"], {} if method == "certified" else {"constants": f"scaled={SCALES[method]}"}
    rest = {"seed": 4, "method": method, "method_args": arguments, "budget": budget}
    states = adagoal.explore(ModelWorld(P), 6.0, 1.0, **rest)
    values = adagoal.explore(ModelWorld(P), 6.0, 1.0, **rest, goals=lambda state: state)
    assert values.goal_names == tuple(map(str, range(8)))
    assert (values.certificates, values.steps, values.plans) == (states.certificates, states.steps, states.plans)
    for name in ("policy", "policy_goals", "episode_goals", "visits"):
        np.testing.assert_array_equal(values.arrays[name], states.arrays[name])


@pytest.mark.parametrize(
    ("method", "arguments", "env"),
    [
        ("ucbvi", {"bonus": "simplified", "horizon": 40}, "grid"),
        ("bayes", {}, "grid"),
        ("gosprl", {"constants": "scaled=0.001"}, "grid"),
        ("ucbexplore", {"constants": "scaled=0.001"}, "grid"),
        ("disco", {"constants": "scaled=0.001"}, "grid"),
        ("valae", {"constants": "scaled=0.00001"}, "grid"),
        ("lae", {"constants": "scaled=0.001"}, "grid"),
        ("intervals", {}, "grid"),
        ("likelihood", {}, "mixture-windy"),
        ("vtr-pooled", {}, "mixture-windy"),
        ("vtr", {"horizon": 10}, "mixture-windy"),
    ],
)
def test_every_method_that_can(method, arguments, env):
    """Rows of the grid; what a method proves is held against the truth, and every policy arrives."""
    env_args = GRID if env == "grid" else {"shape": "4x4"}
    result = adagoal.explore(
        *(env, 5.0, 2.0), goals=lambda label: label[:2], env_args=env_args, method=method, method_args=arguments,
        budget=20_000,
    )  # fmt: skip
    assert result.goal_names is not None
    assert len(result.goals) >= 2
    verdict = adagoal.audit(result)
    assert verdict.certificates
    assert all(np.isfinite(row.value) for row in verdict.rows if row.in_X and row.optimal == 0.0)


def test_this_list_has_every_method():
    """The others have tests of their own below and above."""
    (mark,) = [mark for mark in test_every_method_that_can.pytestmark if mark.name == "parametrize"]
    assert {case[0] for case in mark.args[1]} | {"certified", "bpi-ucbvi"} == set(METHODS)


# --- methods that grow a set of states ---

RIVALS = {method: {"constants": f"scaled={SCALES[method]}"} for method in ("ucbexplore", "disco")}


@pytest.mark.parametrize("method", RIVALS)
@pytest.mark.parametrize("kind", ["partition", "overlapping"])
@pytest.mark.parametrize("world", WORLDS)
def test_what_rivals_claim_of_sets(world, kind, method):
    """Sets within L for policies restricted to the incrementally L-reachable states, and none beyond L + epsilon;
    all reached within L + epsilon, by DisCo within epsilon of the best such policy.
    """
    mdp, L, epsilon = WORLDS[world], 5.0, 1.0
    sets = [list(range(r, mdp.n_states, 3)) for r in range(3)] if kind == "partition" else random_sets(mdp, 1)
    names = {f"set {i}": members for i, members in enumerate(sets)}
    result = adagoal.explore(
        ModelWorld(mdp), L, epsilon, goals=names, method=method, method_args=RIVALS[method], seed=2, budget=10**7
    )
    assert result.status == "stopped"
    inside = [np.isin(np.arange(mdp.n_states), incremental.incremental_set(mdp, r)) for r in (L, L + epsilon)]
    best, beyond = (solve.distances(incremental.restricted(mdp, known), sets) for known in inside)
    assert set(np.flatnonzero(best <= L)) <= set(result.goals) <= set(np.flatnonzero(beyond <= L + epsilon))
    verdict = adagoal.audit(result, mdp)
    assert verdict.certificates
    for row in verdict.rows:
        assert not row.in_X or row.value <= L + epsilon
        assert method != "disco" or not row.in_X or best[row.goal] > L or row.value <= best[row.goal] + epsilon
    assert all(trial.agrees for trial in adagoal.play(result, episodes=20, env=ModelWorld(mdp)))


@pytest.mark.parametrize("method", RIVALS)
def test_a_set_may_be_near_though_each_of_its_states_is_far(method, tmp_path, capsys):
    """The middle of the fan is one step away, each of its ten states 19; the report shows it, and a run goes on."""
    arguments = {"goals": {"middle": list(range(1, 11)), "first": [1, 2]}, "method": method, "seed": 1}
    arguments |= {"env_args": {"n_middle": 10}, "method_args": RIVALS[method]}
    whole = adagoal.explore("fan", 3.0, **arguments)
    assert [whole.goal_names[g] for g in whole.goals] == ["middle"]  # and the first two are 9 steps away
    assert adagoal.audit(whole).ok
    for part in (3, 9):
        adagoal.explore("fan", 3.0, **arguments, budget=whole.steps * part // 10, out=tmp_path, overwrite=True)
        again = adagoal.resume(tmp_path, budget=10**7)
        assert (again.status, again.steps, again.goals) == ("stopped", whole.steps, whole.goals)
        for name in ("policy", "visits", "episode_goals"):
            np.testing.assert_array_equal(again.arrays[name], whole.arrays[name])
    if method == "disco":
        assert run(["report", str(tmp_path)]) == 0
    assert run(["play", str(tmp_path), "--goal-label", "middle", "--episodes", "5"]) == 0
    for label, says in {
        "midle": "no goal is called 'midle'",
        "first": "'first' is number 1, which is not among",
    }.items():
        capsys.readouterr()
        assert run(["play", str(tmp_path), "--goal-label", label]) == 2
        assert capsys.readouterr().err.startswith(f"error: --goal-label: {says}")


@pytest.mark.parametrize("method", RIVALS)
def test_a_set_has_the_policy_of_its_best_state(method):
    """A far corner beside a near cell: the policy is that of the cell, or better."""
    arguments = {"env_args": GRID, "method": method, "method_args": RIVALS[method], "epsilon": 2.0}
    result = adagoal.explore("grid", 6.0, goals={"both": [11, 1], "start": [0, 11]}, **arguments)
    rows = {row.label: row for row in adagoal.audit(result).rows}
    assert rows["start"].value == 0.0
    assert rows["both"].value < 2.0


@pytest.mark.parametrize("method", RIVALS)
def test_rivals_where_states_belong_to_no_goal(method):
    def right(label):
        return "right" if label.endswith("3)") else None

    arguments = {"env_args": GRID, "method": method, "method_args": RIVALS[method], "epsilon": 2.0}
    result = adagoal.explore("grid", 5.0, goals=right, **arguments)
    assert result.members("right") == [3, 7, 11]
    assert set(result.arrays["episode_goals"]) <= {-1, 0}
    (row,) = adagoal.audit(result).rows
    assert row.in_X
    assert row.value <= row.optimal + 2.0


def test_a_comparison_with_sets(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def row(label):\n    return label[:2]\n")
    line = ["compare", "grid", "--radius", "4", "--epsilon", "2", "--goals", "mine.py:row", "--goal-rules", "adagoal"]
    line += ["--methods", "certified,ucbexplore,disco", "--constants", "scaled=0.001", "--seeds", "1", "--jobs", "1"]
    assert run([*line, "--out", "c", "--quiet"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| grid ")]
    assert [line.split("|")[-3].strip() for line in rows] == ["1/1"] * 3  # each passes the audit


@pytest.mark.parametrize("goals", [{"far": [2, 3]}, {"far": lambda state: state > 1}])
def test_one_set_as_the_goal_of_bpi(goals, tmp_path):
    world, arguments = ModelWorld(toys.chain(n_states=4)), {"horizon": 12, "constants": "scaled=0.01"}
    result = adagoal.explore(
        world, 3, goals=goals, method="bpi-ucbvi", method_args=arguments, budget=30_000, out=tmp_path
    )
    assert result.status == "stopped"
    assert result.members("far") == [2, 3]
    (trial,) = adagoal.play(tmp_path, ["far"], episodes=5, env=ModelWorld(toys.chain(n_states=4)))
    assert trial.mean == 2.0


# --- states that are found on the way ---


def second(observation):
    return int(observation[1])


def test_states_found_on_the_way_join_their_goals(tmp_path):
    """PairEnv shows state s as (s // 7, s % 7): by the second entry, states join goals that were seen before."""
    mdp = toys.chain(n_states=12, slip=0.1)
    result = adagoal.explore(PairEnv(mdp), 8.0, 1.0, goals=second, max_states=20, seed=1, out=tmp_path / "run")
    assert result.status == "certified"
    truth = solve.distances(mdp, [[s for s in range(12) if s % 7 == r] for r in range(7)])
    for goal in result.certificates:
        lower, upper = result.certificates[goal]
        assert lower <= truth[int(result.goal_names[goal])] + 1e-9
        assert upper >= truth[int(result.goal_names[goal])] - 1e-9
    loaded = adagoal.load(tmp_path / "run")
    assert loaded.goal_names == result.goal_names
    assert [loaded.members(g) for g in loaded.goals] == [result.members(g) for g in result.goals]
    assert all(trial.agrees for trial in adagoal.play(tmp_path / "run", episodes=50, env=PairEnv(mdp)))


@pytest.mark.parametrize("goals", [second, {"even": lambda o: o[1] % 2 == 0, "late": lambda o: o[1] > 4}, "keys:1"])
def test_an_interrupted_run_goes_on_bit_for_bit(tmp_path, goals):
    mdp = toys.chain(n_states=12, slip=0.1)
    setting = {"radius": 8.0, "max_states": 20, "seed": 3, "budget": 2_000}
    whole = adagoal.explore(PairEnv(mdp), goals=goals, **setting)
    rollouts = iter(range(10**6))
    adagoal.explore(PairEnv(mdp), goals=goals, **setting, out=tmp_path, observe=lambda running: next(rollouts) < 30)
    again = adagoal.resume(tmp_path, env=PairEnv(mdp), goals=None if isinstance(goals, str) else goals)
    assert (again.certificates, again.steps, again.goal_names) == (whole.certificates, whole.steps, whole.goal_names)


@pytest.mark.parametrize("method", RIVALS)
@pytest.mark.parametrize("goals", [None, second, {"even": lambda o: o[1] % 2 == 0, "late": lambda o: o[1] > 2}])
def test_rivals_number_states_as_they_are_found(tmp_path, monkeypatch, method, goals):
    """There is room for two states at first; the answer is that of the known model, and a cut run goes on."""
    monkeypatch.setattr("adagoal.worlds.adapter.FIRST_STATES", 2)
    mdp, L = toys.chain(n_states=12, slip=0.1), 4.0
    setting = {"method": method, "method_args": {"constants": "scaled=0.001"}, "seed": 3, "goals": goals}
    whole = adagoal.explore(PairEnv(mdp), L, **setting)
    assert whole.status == "stopped"
    assert len(whole.arrays["visits"]) == 8 > len(whole.view.labels)
    for s in incremental.incremental_set(mdp, L).tolist():
        state = whole.state("start" if s == 0 else f"[0 {s}]")
        holding = {g for g in whole.certificates if state in ([g] if goals is None else whole.members(g))}
        assert holding <= set(whole.goals)
    assert set(whole.certificates) == set(range(len(whole.goal_names or whole.view.labels)))
    for steps in (20, whole.steps // 2):
        adagoal.explore(
            PairEnv(mdp), L, **setting, out=tmp_path, overwrite=True, observe=lambda r, n=steps: r.steps < n
        )
        again = adagoal.resume(tmp_path, env=PairEnv(mdp), goals=goals)
        assert (again.status, again.steps, again.certificates) == ("stopped", whole.steps, whole.certificates)
        for name in ("policy", "policy_goals", "visits", "episode_goals"):
            np.testing.assert_array_equal(again.arrays[name], whole.arrays[name])
    assert all(trial.agrees for trial in adagoal.play(tmp_path, episodes=20, env=PairEnv(mdp)))


def test_a_run_does_not_go_on_with_other_goals(tmp_path):
    mdp = toys.chain(n_states=6)
    adagoal.explore(ModelEnv(mdp), 4.0, goals=lambda state: state % 2, budget=50, out=tmp_path)
    with pytest.raises(InputError, match="goals of the run are code of the program that ran it; give them again"):
        adagoal.resume(tmp_path, env=ModelEnv(mdp))
    with pytest.raises(InputError, match="not those of the run: they hold other states"):
        adagoal.resume(tmp_path, env=ModelEnv(mdp), goals=lambda state: state % 3)
    with pytest.raises(InputError, match="these are not the goals of the run"):
        adagoal.resume(tmp_path, env=ModelEnv(mdp), goals=[1, 2])
    assert adagoal.resume(tmp_path, 10_000, env=ModelEnv(mdp), goals=lambda state: state % 2).status == "certified"


# --- files, and what a folder may do ---


def test_code_that_a_folder_names_is_not_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def row(label):\n    return label[:2]\n")
    explore = ["explore", "grid", "--env-arg", "rows=3", "--radius", "6", "--quiet"]
    assert run([*explore, "--goals", "mine.py:row", "--budget", "200", "--out", "r"]) == 3
    Path("mine.py").write_text("raise SystemExit('this must not run')\n")
    for command in ("audit", "play", "report", "export"):
        assert run([command, "r"]) in (0, 1)  # 1: an unfinished run may miss a goal
    capsys.readouterr()
    assert run(["resume", "r", "--budget", "400", "--quiet"]) == 2
    line = "the run has the goals 'mine.py:row', a file to run; give the goals again, or trust the folder"
    assert capsys.readouterr().err == f"error: --goals: {line}\n"
    Path("mine.py").write_text("def row(label):\n    return label[:2]\n")
    assert run(["resume", "r", "--budget", "400", "--quiet", "--trust"]) == 3
    assert run(["resume", "r", "--budget", "100000", "--quiet", "--goals", "mine.py:row"]) == 0
    stored = json.loads(Path("r/result.json").read_text())
    assert stored["goal_names"] == ["(0", "(1", "(2"]
    assert [(row["label"], row["states"]) for row in stored["goals"]] == [("(0", 5), ("(1", 5), ("(2", 5)]


def test_options_of_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    explore = ["explore", "grid", "--env-arg", "rows=2", "--env-arg", "cols=2", "--radius", "6", "--quiet"]
    assert run([*explore, "--goal-label", "(0, 1)", "--goal-label", "(1, 1)", "--out", "two"]) == 0
    assert adagoal.load("two").goals == [1, 3]  # single states keep their numbers
    assert run([*explore, "--goal", "1", "--goal-label", "(1, 1)", "--out", "both"]) == 0
    assert adagoal.load("both").goals == [1, 3]
    capsys.readouterr()
    assert run([*explore, "--goal", "1", "--goal-keys", "0"]) == 2
    assert run([*explore, "--goals", "mine.txt"]) == 2
    first, other = capsys.readouterr().err.splitlines()
    assert first == "error: give --goals, --goal-keys, or --goal and --goal-label, not several of these"
    assert other.startswith("error: --goals: must look like FILE.py:NAME")


# --- bad input, each one line ---


def flip():
    """A function that never says the same twice."""
    count = iter(range(10**6))
    return lambda label: next(count)


@pytest.mark.parametrize(
    ("goals", "text"),
    [
        (["(0, 9)"], r"has no state and no set of states called '\(0, 9\)'; there are '\(0, "),
        ({"door": lambda label: 1 / 0}, "the goal 'door' raised ZeroDivisionError: division by zero for the obs"),
        (lambda label: label.no_such, "the function raised AttributeError"),
        (lambda label: [1, 2], "a function of observations returns a number, a text, a tuple of them, or None; got li"),
        (lambda label: 1 if label[1] == "0" else "1", "the values '1' and 1 are written the same way"),
        (flip(), r"the same observation belongs to \['0'\] at first and not the second time"),
        (lambda label: None, "no state belongs to any of the goals"),
        ({"door": lambda label: False}, "no state belongs to any of the goals"),
        ("keys:0", r"goal_keys: an observation such as '\(0, 0\)' has no entries: it is one str"),
        ({}, "there must be at least one goal"),
        ({"door": "open"}, "must be names with functions, or with lists of states"),
        ({"door": [99]}, r"goals must be states in 0\.\.11"),
        (3, "must be states, labels, a function of observations, or names with predicates; got 3"),
        ([True], "must be states"),
        ("no.py:fn", "no such file 'no.py'"),
    ],
)
def test_bad_goals_are_one_line(goals, text):
    with pytest.raises(InputError, match=text) as caught:
        adagoal.explore("grid", 5.0, env_args=GRID, goals=goals)
    assert "\n" not in str(caught.value)


def test_a_function_that_raises_on_the_way_keeps_what_was_learnt(tmp_path):
    def picky(observation: Any) -> Any:
        if observation[1] == 4:
            raise RuntimeError("not this one")
        return int(observation[1])

    with pytest.raises(EnvironmentFailure, match=r"the function raised RuntimeError: not this one.*what had been"):
        adagoal.explore(PairEnv(toys.chain(n_states=8)), 9.0, goals=picky, max_states=20, out=tmp_path)
    assert len(adagoal.load(tmp_path).goals) == 4


def test_states_cannot_be_named_before_they_are_found():
    env = PairEnv(toys.chain(n_states=4))
    with pytest.raises(InputError, match="numbered as they are found, so states cannot name goals in advance; use la"):
        adagoal.explore(env, 3.0, goals=[1])
    result = adagoal.explore(env, 4.0, goals=["[0 2]"], max_states=10)
    assert [result.label(s) for s in result.members("[0 2]")] == ["[0 2]"]


def test_a_predicate_without_a_state_is_told():
    result = adagoal.explore("grid", 5.0, env_args=GRID, goals={"top": lambda l: l[1] == "0", "sky": lambda l: False})
    assert "no state belongs to the goal sky" in result.warnings
    assert result.goals == [0]
    assert adagoal.audit(result).ok


def test_the_older_name_of_the_argument():
    with pytest.warns(DeprecationWarning, match="goal_space is now called goals"):
        result = adagoal.explore("grid", 5.0, env_args=GRID, goal_space=[1, 2])
    assert result.goals == [1, 2]
    with pytest.warns(DeprecationWarning, match="goals"), pytest.raises(InputError, match="give one of the two"):
        adagoal.explore("grid", 5.0, goal_space=[1], goals=[1])


def test_a_goal_space_is_what_its_checkpoint_says():
    class Sort:
        names, finds = ("a", "b"), False

        def __call__(self, state: int, observation: Any, label: str) -> list[str]:
            return ["a", "b"][: state % 3]

    space = GoalSpace.sets(Sort(), 4, 4)
    for state in range(4):
        space.add(state, None, "")
    arrays, names = space.state()
    other = GoalSpace.sets(Sort(), 4, 4)
    other.restore(arrays, names)
    np.testing.assert_array_equal(other.at, space.at)
    assert other.visits(np.array([1, 2, 3, 4]), other.numbers).tolist() == [2 + 3, 3]
    assert other.holds(2, other.numbers).tolist() == [True, True]
    for broken, said in (({"at": arrays["at"] + 1}, "one name each"), ({"at": arrays["at"].astype(float)}, "type")):
        with pytest.raises(ValueError, match=said):
            other.restore(broken, names)
    with pytest.raises(ValueError, match="the goals are states, or they are not"):
        other.restore(arrays, None)
