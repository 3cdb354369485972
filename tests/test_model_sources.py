"""Models from matrices and files: valid ones are kept exactly, invalid ones give one-line errors."""

import numpy as np
import pytest
from scipy import sparse

import adagoal
from adagoal.cli.main import run_command_line
from adagoal.core.file_io import arrays_content, write_atomically
from adagoal.envs import toy_models
from adagoal.envs.model_sources import model_from_argument
from adagoal.envs.toy_models import random_dense

P = np.array(random_dense(n_states=5, n_actions=2, seed=3).kernel().toarray()).reshape(5, 2, 5)
NAMES = {"labels": list("abcde"), "actions": ["left", "right"]}


def test_dense_and_sparse_matrices_give_the_same_model():
    dense = adagoal.Model.from_dense(P, start=2, terminal=[4])
    listed = adagoal.Model.from_sparse([sparse.coo_matrix(P[:, a]) for a in range(2)], start=2, terminal=[4])
    for name in ("indptr", "successors", "probabilities", "terminal"):
        assert (getattr(dense, name) == getattr(listed, name)).all()
    assert np.array_equal(dense.kernel().toarray().reshape(5, 2, 5), P)


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_probabilities_of_short_types_are_normalised(kind):
    short = P.astype(kind)
    short[4] = 0.0
    made = [adagoal.Model.from_dense(short, terminal=[4])]
    if kind == np.float32:  # SciPy has no sparse matrices of float16
        listed = [sparse.csr_matrix(short[:, 0]), sparse.csr_matrix(short[:, 1], dtype=float)]
        made.append(adagoal.Model.from_sparse(listed, terminal=[4]))
    for model in made:
        assert np.abs(model.kernel().toarray()[:8] - P.reshape(10, 5)[:8]).max() < 4 * np.finfo(kind).eps
        np.testing.assert_allclose(model.kernel().sum(axis=1), 1.0, atol=1e-15)
    with pytest.raises(adagoal.InputError, match="state 0, action 0: the probabilities sum to"):
        adagoal.Model.from_dense(short * kind(1.02), terminal=[4])


def test_sets_are_states_or_booleans():
    given = {"x": [3, 4], "y": [False, False, False, True, True], "z": np.arange(5) > 2, "none": []}
    sets = adagoal.Model.from_dense(P, sets=given).sets
    assert {name: np.flatnonzero(members).tolist() for name, members in sets.items()} == given | {
        "y": [3, 4],
        "z": [3, 4],
    }


def test_tiny_negative_probabilities_become_zero():
    model = adagoal.Model.from_dense(broken((1, 0), [1.0, -1e-17, 0.0, 0.0, 0.0]))
    assert [part.tolist() for part in model.row(1, 0)] == [[0], [1.0]]


def test_rows_of_terminal_states_may_be_empty():
    empty = P.copy()
    empty[4] = 0.0
    model = adagoal.Model.from_dense(empty, terminal=np.arange(5) == 4)
    assert (model.kernel().toarray()[8:] == np.eye(5)[[4, 4]]).all()


@pytest.mark.parametrize(
    "model", [toy_models.two_room_grid(), adagoal.Model.from_dense(P, sets={"x": np.arange(5) > 2}, **NAMES)]
)
def test_saved_model_is_loaded_unchanged(tmp_path, model):
    again = adagoal.Model.load(model.save(tmp_path / "m.npz"))
    for name in ("indptr", "successors", "probabilities", "terminal"):
        assert (getattr(again, name) == getattr(model, name)).all()
        assert getattr(again, name).dtype == getattr(model, name).dtype
    for name in ("n_states", "n_actions", "start", "name", "labels", "actions"):
        assert getattr(again, name) == getattr(model, name)
    assert {name: list(members) for name, members in again.sets.items()} == {
        name: list(members) for name, members in model.sets.items()
    }
    assert (again.layout is None) == (model.layout is None)
    if model.layout is not None:
        assert again.layout.shape == model.layout.shape
        assert (again.layout.cells == model.layout.cells).all()
        assert (again.layout.walls == model.layout.walls).all()


def broken(place, value):
    wrong = P.copy()
    wrong[place] = value
    return wrong


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: adagoal.Model.from_dense(broken((1, 1, 2), np.nan), **NAMES), "state 1 (b), action 1 (right): nan is"),
        (lambda: adagoal.Model.from_dense(broken((2, 0, 0), -0.1)), "state 2, action 0: -0.1 is not a probability"),
        (lambda: adagoal.Model.from_dense(broken((0, 1), 0.1)), "state 0, action 1: the probabilities sum to 0.5, not"),
        (
            lambda: adagoal.Model.from_dense(P * (1 + 1e-8)),
            "state 0, action 0: the probabilities sum to 1.00000001, not to one; if that is rounding, divide",
        ),
        (lambda: adagoal.Model.from_dense(broken((4, 0), 0.0)), "state 4, action 0: the probabilities sum to 0, not"),
        (lambda: adagoal.Model.from_dense(P[0]), "P: must have the shape [S, A, S], got [2, 5]"),
        (
            lambda: adagoal.explore(P.transpose(1, 0, 2), 4),
            "P: must have the shape [S, A, S], got [2, 5, 5]; an array [A, S, S] must be transposed: np.transpose",
        ),
        (
            lambda: adagoal.explore([P[:, 0], P[:, 1]], 4),
            "P: must have the shape [S, A, S], got [2, 5, 5]; an array [A, S, S] must be transposed: np.transpose",
        ),
        (lambda: adagoal.Model.from_dense("P"), "P: must be an array of numbers"),
        (lambda: adagoal.Model.from_dense(P, start=5), "start: must be one state in 0..4, got 5"),
        (lambda: adagoal.Model.from_dense(P, start=1.5), "start: must be one state in 0..4, got 1.5"),
        (lambda: adagoal.Model.from_dense(P, start=True), "start: must be one state in 0..4, got True"),
        (lambda: adagoal.Model.from_dense(P + 0j), "P: must be an array of numbers P[s, a, s'] (these are complex)"),
        (lambda: adagoal.Model.from_dense(np.zeros((0, 0, 0))), "P: must have the shape [S, A, S], got [0, 0, 0]"),
        (lambda: adagoal.Model.from_dense(P, terminal=[7]), "terminal: must be states in 0..4"),
        (
            lambda: adagoal.Model.from_dense(P, terminal=[True, False]),
            "terminal: must be states in 0..4, or 5 booleans",
        ),
        (lambda: adagoal.Model.from_dense(P, terminal=["a"]), "terminal: must be states in 0..4"),
        (lambda: adagoal.Model.from_dense(P, labels=["a"]), "labels: must have 5 entries, got 1"),
        (
            lambda: adagoal.Model.from_dense(P, sets={"x": np.arange(6)}),
            "sets: 'x' must be states in 0..4, or 5 booleans",
        ),
        (lambda: adagoal.Model.from_dense(P, sets={"x": [True, False]}), "sets: 'x' must be states in 0..4, or 5"),
        (lambda: adagoal.Model.from_dense(P, sets=["x"]), "sets: must be names with states, got ['x']"),
        (
            lambda: adagoal.explore(broken((4,), 0.0), 4, start=[0.5, 0.5, 0, 0, 0], terminal=[4]),
            "start: must be one state in 0..4, got [0.5, 0.5, 0, 0, 0]",
        ),
        (
            lambda: adagoal.Model.from_sparse(sparse.eye(5, format="csr")),
            "P: must be a list of sparse matrices, one [S, S] per action, even for one action",
        ),
        (
            lambda: adagoal.explore(sparse.eye(5, format="csr"), 4, terminal=[4]),
            "P: must be a list of sparse matrices, one [S, S] per action, even for one action",
        ),
        (lambda: adagoal.Model.from_sparse([]), "P: must be a list of sparse matrices"),
        (lambda: adagoal.Model.from_sparse([P[:, 0]]), "P: must be a list of sparse matrices"),
        (
            lambda: adagoal.Model.from_sparse([sparse.eye(5), sparse.eye(4)]),
            "P: action 1: must have the shape [S, S], got [4, 4]",
        ),
        (lambda: adagoal.Model.from_dense(P, **NAMES).states("f"), "has no state and no set of states called 'f'"),
        (lambda: adagoal.Model.from_dense(P).save("model.txt"), "path: must end in .npz"),
        (lambda: adagoal.explore("chain", 4, start=1), "start: is for matrices"),
        (lambda: adagoal.explore(adagoal.Model.from_dense(P), 4, terminal=[1]), "terminal: is for matrices"),
        (lambda: adagoal.explore("no.npz", 4), "no.npz: no such file"),
        (
            lambda: adagoal.explore(P, 4, start=2, terminal=[2]),
            "start: state 2 is terminal, so no other",
        ),
        (
            lambda: adagoal.explore(P, 4, env_args={"a": 1}),
            "env_args: matrix is a complete model and takes no arguments",
        ),
    ],
)
def test_bad_matrices_give_one_line_error(make, line):
    with pytest.raises(adagoal.InputError) as caught:
        make()
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_files_give_one_line_error(tmp_path):
    model = adagoal.Model.from_dense(P)
    path = model.save(tmp_path / "m.npz")
    damaged = path.read_bytes()
    (tmp_path / "cut.npz").write_bytes(damaged[: len(damaged) // 2])
    (tmp_path / "text.npz").write_text("no zip")
    facts = {"format": 1, "name": "m", "n_actions": 2, "start": 0, "labels": [], "actions": [], "sets": []}
    arrays = {name: getattr(model, name) for name in ("indptr", "successors", "probabilities", "terminal")}
    arrays["sets"] = np.zeros((0, 5), bool)
    write_atomically(tmp_path / "sums.npz", arrays_content(arrays | {"probabilities": model.probabilities / 2}, facts))
    write_atomically(tmp_path / "far.npz", arrays_content(arrays | {"successors": model.successors + 1}, facts))
    write_atomically(tmp_path / "short.npz", arrays_content(arrays | {"indptr": model.indptr[:-1]}, facts))
    write_atomically(tmp_path / "start.npz", arrays_content(arrays, facts | {"start": 9}))
    write_atomically(tmp_path / "names.npz", arrays_content(arrays, facts | {"labels": ["a"]}))
    write_atomically(tmp_path / "facts.npz", arrays_content(arrays, {}))
    for name in ("cut", "text", "sums", "far", "short", "start", "names", "facts"):
        with pytest.raises(adagoal.InputError, match=f"{name}.npz: "):
            adagoal.Model.load(tmp_path / f"{name}.npz")


def test_run_folder_stores_the_matrix(tmp_path):
    """The run can be resumed, audited and played without passing the matrix again, as with a named model."""
    named = {"n_states": 5, "n_actions": 2, "seed": 3}
    for folder, env, arguments in (("named", "random-dense", named), ("run", P, {})):
        adagoal.explore(env, 20, 2.0, seed=1, budget=500, env_args=arguments, out=tmp_path / folder)
        adagoal.resume(tmp_path / folder, 10**7)
    result = adagoal.load(tmp_path / "run")
    assert result.status == "certified"
    assert result.certificates == adagoal.load(tmp_path / "named").certificates
    assert adagoal.audit(result).ok
    for run_or_result in (tmp_path / "run", result):
        assert [trial.goal for trial in adagoal.play(run_or_result, episodes=5)] == result.goals


def test_new_run_in_the_folder_removes_the_matrix(tmp_path):
    adagoal.explore(P, 20, 2.0, budget=500, out=tmp_path / "run")
    adagoal.explore("chain", 4, budget=500, out=tmp_path / "run", overwrite=True)
    assert not (tmp_path / "run" / "model.npz").exists()
    assert adagoal.load(tmp_path / "run").model is None


def test_command_line_reads_model_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    adagoal.Model.from_dense(P, name="five", sets={"far": np.arange(5) > 2}, **NAMES).save("five.npz")
    assert (
        run_command_line(["explore", "five.npz", "--radius", "20", "--epsilon", "2", "--goals", "far", "--out", "r"])
        == 0
    )
    (tmp_path / "five.npz").unlink()
    assert adagoal.load("r").goal_names == ("far",)
    assert adagoal.load("r").members("far") == [3, 4]
    for command in ("audit", "play", "report", "export"):
        assert run_command_line([command, "r"]) == 0
    capsys.readouterr()
    assert run_command_line(["explore", "five.npz", "--radius", "20"]) == 2
    assert run_command_line(["explore", "grid", "--radius", "20", "--goals", "far"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "error: five.npz: no such file"
    assert lines[1].startswith("error: --goals: ")
    assert len(lines) == 2


def test_error_of_a_wrong_file_says_how_to_make_a_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.save("P.npy", P)
    np.savez("P.npz", P)
    (tmp_path / "mine.py").write_text("")
    for name in ("P.npy", "P.npz", "mine.py", "mine.py:Env"):
        assert run_command_line(["explore", name, "--radius", "20"]) == 2
    array, arrays, *files = capsys.readouterr().err.splitlines()
    for line in (array, arrays):
        assert "adagoal.Model.from_dense(P).save(...)" in line
    for line in files:
        assert "write mine:ID, with an ID that mine registers at Gymnasium" in line


def test_check_reads_model_files(tmp_path, capsys):
    path = adagoal.Model.from_dense(P).save(tmp_path / "five.npz")
    assert run_command_line(["check", str(path)]) == 0
    assert "A run can be audited" in capsys.readouterr().out


def test_other_things_are_not_models():
    assert model_from_argument("two-room", {}) is None
    assert model_from_argument(3, {}) is None


def test_altered_matrix_in_the_folder_is_detected(tmp_path):
    adagoal.explore(P, 20, 2.0, budget=500, out=tmp_path / "run")
    path = tmp_path / "run" / "model.npz"
    path.write_bytes(path.read_bytes()[:-40])
    for read in (adagoal.load, adagoal.resume):
        with pytest.raises(adagoal.InputError, match=r"model\.npz: "):
            read(tmp_path / "run")
