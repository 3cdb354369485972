"""Model-checker formats: import of programs, export of interval MDPs, and the examples of docs/models.md."""

import importlib.util
import json
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import adagoal
from adagoal.certified.confidence_sets import conditional_intervals
from adagoal.cli.main import run_command_line
from adagoal.core.installation import install_command
from adagoal.envs import registry, toy_models
from adagoal.envs.storm_formats import ExplicitChoice, ExplicitState, write_explicit_model
from adagoal.exact import solver
from model_env import PairEnv

storm_missing = importlib.util.find_spec("stormpy") is None
needs_storm = pytest.mark.skipif(storm_missing, reason="stormpy is not installed (the extra storm)")

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "models.md").read_text()
BLOCKS = re.findall(r"(<!-- needs storm -->\n)?```(python|console|prism|text)\n(.*?)```", PAGE, re.S)
WALK, PROPERTIES = (next(text for _, kind, text in BLOCKS if kind == wanted) for wanted in ("prism", "text"))


def test_examples_of_the_pages(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("walk.prism").write_text(WALK)
    Path("walk.props").write_text(PROPERTIES)
    space: dict[str, object] = {}
    for needs, kind, text in BLOCKS:
        if needs and storm_missing:
            continue
        if kind == "python":
            exec(text, space)
        elif kind == "console":
            for line in text.splitlines():
                assert run_command_line(shlex.split(line.removeprefix("$ adagoal "))) == 0, line
    assert PAGE.count("```") == 2 * len(BLOCKS)  # all of them were found


# --- export ---


class ExplicitModel(NamedTuple):
    """A DRN file as arrays: S states and R choices, in the order of their states."""

    state_costs: np.ndarray  # [S]
    first_choice: np.ndarray  # [S + 1] the choices of state s are first_choice[s] to first_choice[s + 1]
    choice_actions: tuple[str, ...]  # [R]
    indptr: np.ndarray  # [R + 1] the transitions of choice c are indptr[c] to indptr[c + 1]
    successors: np.ndarray
    low: np.ndarray
    high: np.ndarray
    label_sets: dict[str, np.ndarray]


def robust(model: ExplicitModel, goal: int, hostile: bool) -> np.ndarray:
    """Return the least expected steps [S] if nature picks probabilities within the intervals.

    Hostile: iterates from the cap, every one of which bounds from above what the reset bounds by 1 + V(start). Helpful:
    from zero, from below.
    """
    S = len(model.first_choice) - 1
    V = np.full(S, 1e4 if hostile else 0.0)
    V[goal] = 0.0
    for _ in range(2000):
        old = V.copy()
        for s in range(S):
            if s == goal:
                continue
            values = []
            for c in range(model.first_choice[s], model.first_choice[s + 1]):
                k = slice(model.indptr[c], model.indptr[c + 1])
                order = np.argsort(V[model.successors[k]])
                order = order[::-1] if hostile else order
                p, left = model.low[k].copy(), 1.0 - model.low[k].sum()
                for i in order:
                    extra = min(left, (model.high[k] - model.low[k])[i])
                    p[i] += extra
                    left -= extra
                assert abs(left) < 1e-9
                values.append(model.state_costs[s] + p @ V[model.successors[k]])
            V[s] = min(values)
        if np.abs(V - old).max() < 1e-9:
            return V
    raise AssertionError("does not converge")


def read_drn(path: Path) -> ExplicitModel:
    """Read the file with code that is independent of the writer."""
    costs, first, names, indptr, successors, low, high, sets = [], [0], [], [0], [], [], [], {}
    start = -1
    body = path.read_text().split("@model\n")[1]
    blocks = re.split(r"^state ", body, flags=re.M)[1:]
    for s, block in enumerate(blocks):
        head, *lines = block.splitlines()
        number, cost, *labels = head.split()
        assert int(number) == s
        costs.append(float(cost.strip("[]")))
        start = s if "init" in labels else start
        for label in labels:
            sets.setdefault(label, np.zeros(len(blocks), bool))[s] = True
        for line in lines:
            if action := re.fullmatch(r"\taction (\w+) \[0\]", line):
                names.append(action[1])
                indptr.append(indptr[-1])
            elif move := re.fullmatch(r"\t\t(\d+) : \[(.*), (.*)\]", line):
                successors.append(int(move[1]))
                low.append(float(move[2]))
                high.append(float(move[3]))
                indptr[-1] += 1
        first.append(len(names))
    assert start >= 0
    arrays = [np.array(part) for part in (indptr, successors, low, high)]
    return ExplicitModel(np.array(costs), np.array(first), tuple(names), *arrays, sets)


@pytest.mark.parametrize(
    ("env", "arguments", "radius"),
    [("grid", {"rows": 3}, 8), ("two-room", {}, 9), ("FrozenLake-v1", {}, 12), ("rare-exit", {}, 8)],
)
def test_exported_intervals_contain_the_true_model(tmp_path, env, arguments, radius):
    result = adagoal.explore(env, radius, 1.0, env_args=arguments, budget=15_000, out=tmp_path / "run")
    truth = registry.make_exact_model(env, arguments, None)
    adagoal.export(tmp_path / "run", out=tmp_path / "out")
    model = read_drn(tmp_path / "out" / "certified.drn")
    elsewhere = len(model.first_choice) - 2
    assert model.label_sets["elsewhere"][elsewhere]
    for s in range(truth.n_states):
        choices = range(model.first_choice[s], model.first_choice[s + 1])
        assert model.choice_actions[choices[-1]] == "reset"
        for a, c in enumerate(choices[:-1]):
            k = slice(model.indptr[c], model.indptr[c + 1])
            bounds = {t: (lo, hi) for t, lo, hi in zip(model.successors[k], model.low[k], model.high[k], strict=True)}
            unseen = 0.0
            for t, p in zip(*truth.row(s, a), strict=True):
                if t in bounds:
                    assert bounds[t][0] <= p * (1 + 1e-12)
                    assert p <= bounds[t][1] * (1 + 1e-12)
                else:
                    unseen += p
            assert unseen <= bounds.get(elsewhere, (0, 0))[1] + 1e-12
    for goal in result.goals[:4]:
        V = solver.optimal_distances(truth, [goal])[0]
        low, high = (robust(model, goal, hostile)[truth.start] for hostile in (False, True))
        assert low <= V + 1e-6
        assert V <= high + 1e-6


def test_graph_preserving_export_has_no_zeros(tmp_path):
    adagoal.explore("two-room", 12, 1.0, budget=20_000, out=tmp_path / "run")
    paths = adagoal.export(tmp_path / "run")
    assert [path.name for path in paths] == [
        "certified.drn",
        "graph-preserving.drn",
        "empirical.drn",
        "policies.json",
    ]
    model = read_drn(paths[1])
    assert model.low.min() > 0
    assert "elsewhere" not in model.label_sets
    assert "assumes that every successor" in paths[1].read_text()
    assert "@value_type: double\n" in paths[2].read_text()


def test_export_of_states_numbered_as_found(tmp_path):
    """One additional state represents all unseen states."""
    env = PairEnv(toy_models.chain_model())
    adagoal.explore(env, 6, 1.0, max_states=10_000, budget=5_000, out=tmp_path / "run")
    adagoal.export(tmp_path / "run", out=tmp_path / "out", env=env)
    model = read_drn(tmp_path / "out" / "certified.drn")
    unseen, elsewhere = len(model.first_choice) - 3, len(model.first_choice) - 2
    assert model.label_sets["unseen"][unseen]
    assert model.label_sets["elsewhere"][elsewhere]
    assert model.choice_actions[model.first_choice[unseen] : model.first_choice[unseen + 1]] == ("untried", "reset")
    reset = slice(model.indptr[-3], model.indptr[-2])
    assert model.successors[reset].tolist() == [0, elsewhere]  # the start of this environment is not known
    assert 0 < model.low[reset][0] < 1
    last = slice(model.indptr[-2], model.indptr[-1])
    assert model.successors[last].tolist() == list(range(elsewhere))


def test_intervals_of_two_successors_equal_the_definition():
    """The definition is kl(p, end) = r, on both sides."""
    from types import SimpleNamespace

    p = np.array([[0.3, 0.7], [1.0, 0.0], [0.5, 0.5]])
    model = SimpleNamespace(p=p, p_split=p, support=np.array([2, 2, 1]), r=np.array([0.05, 0.2, 9.0]))
    low, high = conditional_intervals(model)
    for end in (low[0, 0], high[0, 0]):
        assert 0.3 * np.log(0.3 / end) + 0.7 * np.log(0.7 / (1 - end)) == pytest.approx(0.05)
    assert low[1] == pytest.approx([np.exp(-0.2), 0.0])
    assert high[1] == pytest.approx([1.0, 1 - np.exp(-0.2)])
    assert (low[2] == [1, 0]).all()
    assert (high[2] == [1, 0]).all()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["export", "RUN", "--format", "dot"], "--format: must be one of drn, umb, csv, got 'dot'"),
        (["export", "nowhere"], "nowhere (manifest.json is missing)"),
        (["export", "BAYES"], "DIR: the method bayes has no intervals"),
    ],
)
def test_bad_exports_give_one_line_error(tmp_path, monkeypatch, capsys, arguments, line):
    monkeypatch.chdir(tmp_path)
    adagoal.explore("chain", 4, budget=200, out="RUN")
    adagoal.explore("chain", 4, method="bayes", budget=200, out="BAYES")
    assert run_command_line(arguments) == 2
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1


def test_umb_without_stormpy_gives_one_line_error(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "stormpy", None)
    one = np.ones(1)
    state = ExplicitState("", 1.0, ["init"], [ExplicitChoice("a", np.zeros(1, int), one, one)])
    with pytest.raises(adagoal.InputError, match="format: umb needs stormpy: "):
        write_explicit_model(tmp_path / "x.umb", "", [state])


# --- import ---


def test_program_without_stormpy_gives_one_line_error(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "stormpy", None)
    (tmp_path / "walk.prism").write_text(WALK)
    assert run_command_line(["explore", str(tmp_path / "walk.prism"), "--radius", "9"]) == 2
    assert capsys.readouterr().err == f"error: ENV: walk.prism needs stormpy: {install_command('storm')}\n"


@needs_storm
@pytest.mark.parametrize(
    ("text", "arguments", "line"),
    [
        (WALK, [], "--model-constants: bad.prism needs values of its constants N"),
        (WALK, ["--model-constants", "N=3,M=1"], "has no open constant 'M'; it needs N"),
        (WALK, ["--model-constants", "N=3", "--goals", "done"], "--goals: 'done' is no label of bad.prism and no expr"),
        (WALK, ["--model-constants", "N=3", "--goals", "y = 1"], "--goals: 'y = 1' is no label of bad.prism and no ex"),
        (WALK, ["--model-constants", "N=3", "--goals", "x = 9"], "--goals: no state of bad.prism satisfies 'x = 9'"),
        (WALK, ["--model-constants", "N=3", "--goals", '"a" | x=1'], "--goals: Storm cannot find these states of bad"),
        (WALK, ["--model-constants", "N=3", "--goals", "x>1; x>2"], "--goals: 'x>1; x>2' contains 2 expressions"),
        (WALK, ["--model-constants", "N=3", "--goals", "P=? [G x<1]"], "no property asks to reach some states"),
        (WALK, ["--model-constants", "N=3", "--goals", "no.props"], "--goals: no.props: no such file"),
        (WALK, ["--model-constants", "N=3", "--goals", "a.pctl,x>1"], "--goals: a.pctl cannot be combined with"),
        (WALK, ["--model-constants", "N=3", "--avoid", "y=1"], "--avoid: 'y=1' is no label of bad.prism and no expr"),
        (WALK, ["--model-constants", "N"], "must look like key=value"),
        ("mdp\nmodule m\n x : [0..", [], "cannot be built by Storm"),
        ("ctmc\nmodule m\n x : [0..1];\n [] x=0 -> 2:(x'=1);\nendmodule", [], "is a CTMC; only DTMCs and MDPs"),
    ],
)
def test_bad_programs_give_one_line_error(tmp_path, monkeypatch, capfd, text, arguments, line):
    monkeypatch.chdir(tmp_path)
    Path("bad.prism").write_text(text)
    assert run_command_line(["explore", "bad.prism", "--radius", "9", *arguments]) == 2
    printed = capfd.readouterr()
    assert line in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


JANI = {
    "jani-version": 1,
    "name": "line",
    "type": "mdp",
    "variables": [
        {
            "name": "x",
            "type": {"kind": "bounded", "base": "int", "lower-bound": 0, "upper-bound": 3},
            "initial-value": 0,
        }
    ],
    "constants": [{"name": "N", "type": "int"}],
    "properties": [
        {
            "name": "reach N",
            "expression": {
                "op": "filter",
                "fun": "max",
                "states": {"op": "initial"},
                "values": {"op": "Pmax", "exp": {"op": "F", "exp": {"op": "=", "left": "x", "right": "N"}}},
            },
        }
    ],
    "automata": [
        {
            "name": "a",
            "locations": [{"name": "l"}],
            "initial-locations": ["l"],
            "edges": [
                {
                    "location": "l",
                    "guard": {"exp": {"op": "<", "left": "x", "right": 3}},
                    "destinations": [
                        {
                            "location": "l",
                            "assignments": [{"ref": "x", "value": {"op": "+", "left": "x", "right": 1}}],
                        }
                    ],
                }
            ],
        }
    ],
    "system": {"elements": [{"automaton": "a"}]},
}


@needs_storm
def test_jani_property_defines_its_target(tmp_path):
    """The model continues beyond the target."""
    (tmp_path / "line.jani").write_text(json.dumps(JANI))
    model = adagoal.Model.load(tmp_path / "line.jani", N=2)
    assert model.n_states == 4
    assert model.states("reach N") == [2]
    assert solver.optimal_distances(model, [3]) == pytest.approx([3.0])
    line = ["explore", str(tmp_path / "line.jani"), "--radius", "4", "--goals", "reach N", "--quiet"]
    assert run_command_line([*line, "--model-constants", "N=2", "--out", str(tmp_path / "run")]) == 0
    assert adagoal.load(tmp_path / "run").members("reach N") == [2]


MORE_PROPERTIES = """const int k;
Pmax=? [ !(x=1) U<=k x=3 | "finished" ];
Pmin=? [ G x<4 ];
"""


@needs_storm
def test_expressions_and_property_files_are_goals(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("walk.prism").write_text(WALK)
    Path("walk.props").write_text(MORE_PROPERTIES + PROPERTIES)
    line = ["explore", "walk.prism", "--model-constants", "N=4", "--radius", "14", "--quiet"]
    assert run_command_line([*line, "--goals", "walk.props", "--budget", "100", "--out", "file"]) == 3
    Path("walk.props").unlink()
    # The folder has the sets, so it needs neither the properties nor the program.
    Path("walk.prism").rename("other.prism")
    assert run_command_line(["resume", "file", "--budget", "100000", "--quiet"]) == 0
    result = adagoal.load("file")
    assert {name: result.members(name) for name in result.goal_names} == {
        "halfway": [2],
        "finished": [4],
        '(x = 3) | "finished"': [3, 4],
    }
    assert adagoal.audit(result).ok
    goals = ["x > 2 & x < N", '"finished" | x = 1', "finished", "x=2"]
    result = adagoal.explore("other.prism", 14, env_args={"N": 4}, goals=goals)
    assert list(result.goal_names) == goals
    assert [result.members(name) for name in goals] == [[3], [1, 4], [4], [2]]
    near = adagoal.explore("other.prism", within=9, probability=0.5, epsilon=0.3, env_args={"N": 4}, avoid=["x>3"])
    assert near.arrays["avoided"].tolist() == [False, False, False, False, True]


def test_stormvogel_reads_and_writes_our_files(tmp_path):
    stormvogel_umbi = pytest.importorskip("stormvogel.umbi")
    model_checking = pytest.importorskip("stormvogel.stormpy_utils.model_checking").model_checking
    adagoal.explore("chain", 8, 1.0, env_args={"n_states": 4, "slip": 0.1}, out=tmp_path / "run")
    certified, graph, empirical, _ = adagoal.export(tmp_path / "run", "umb")
    for path in (certified, graph):
        assert stormvogel_umbi.read_from_umb(path).is_interval_model()
    model = stormvogel_umbi.read_from_umb(empirical)
    steps = model_checking(model, 'R{"steps"}min=? [F "goal_3"]').at(model.initial_state)
    ours = adagoal.Model.load(empirical)
    assert steps == pytest.approx(solver.optimal_distances(ours, [3])[0], rel=1e-5)
    stormvogel_umbi.write_to_umb(model, tmp_path / "back.umb")
    back = adagoal.Model.load(tmp_path / "back.umb")
    assert (back.kernel() != ours.kernel()).nnz == 0
    assert back.actions == ours.actions
    assert back.states("goal_3") == [3]


@needs_storm
def test_imported_model_has_the_values_of_storm(tmp_path):
    """Storm computes expected steps on its own model with the reset; adagoal on the imported model."""
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
    import verification

    for case in verification.CASES[:10]:
        model = adagoal.Model.load(verification.MODELS / case.file, **case.constants)
        goals = model.states(case.label)
        assert solver.optimal_distances(model, goals) == pytest.approx(verification.exact(case, goals), rel=1e-5)


@needs_storm
def test_every_format_gives_the_same_model(tmp_path):
    import stormpy

    (tmp_path / "walk.prism").write_text(WALK)
    program = stormpy.parse_prism_program(tmp_path / "walk.prism")
    program, _ = stormpy.instantiate_constants(program, {"N": 4})
    built = stormpy.build_model(program, options=stormpy.BuilderOptions(build_full=True))
    stormpy.io.export_to_drn(built, tmp_path / "walk.drn")
    stormpy.io.export_to_umb(built, tmp_path / "walk.umb")
    first = adagoal.Model.load(tmp_path / "walk.prism", N=4)
    for ending in ("drn", "umb"):
        other = adagoal.Model.load(tmp_path / f"walk.{ending}")
        assert (other.kernel() != first.kernel()).nnz == 0
        assert other.actions == first.actions
        assert (other.sets["finished"] == first.sets["finished"]).all()
