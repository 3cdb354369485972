"""Methods of results, misspelt arguments, and install commands for missing extras."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import adagoal
import adagoal.sb3
from adagoal.core import installation
from adagoal.core.errors import InputError, RunWarning
from adagoal.core.installation import install_command
from adagoal.core.validation import unknown_argument_error
from adagoal.envs import toy_models
from model_env import PairEnv

SLIPPERY = toy_models.chain_model(n_states=6, slip=0.2)

GRID: dict[str, Any] = {"radius": 3, "env_args": {"rows": 2, "cols": 2}}


@pytest.fixture(scope="module")
def result() -> adagoal.Result:
    return adagoal.explore("grid", **GRID)


def test_methods_equal_the_public_functions(result: adagoal.Result, tmp_path: Path) -> None:
    assert result.audit() == adagoal.audit(result)
    assert [t.mean for t in result.play([1], 20, seed=3)] == [t.mean for t in adagoal.play(result, [1], 20, seed=3)]
    assert result.show().html == adagoal.show(result).html
    assert result.export("csv", tmp_path)[0].read_text().startswith("goal,label,")
    assert str(result.audit()).startswith("The audit found no error.\nAll 4 policies are within epsilon = 1 ")


def test_goals_without_an_upper_bound_have_no_error_bound() -> None:
    unfinished = adagoal.explore("grid", radius=5, budget=1000)
    unbounded = [goal for goal in unfinished.goals if math.isinf(unfinished.certificate(goal).upper)]
    assert unbounded
    assert all(math.isinf(unfinished.error(goal)) for goal in unbounded)
    assert len(unbounded) < len([goal for goal in unfinished.goals if unfinished.error(goal) > 0])


def test_audit_takes_a_folder(result: adagoal.Result, tmp_path: Path) -> None:
    result.save(tmp_path / "run")
    assert adagoal.audit(tmp_path / "run") == adagoal.audit(result)
    with pytest.raises(InputError, match="path: must be the path of a run's folder, got 3"):
        adagoal.audit(3)  # type: ignore[arg-type]


def test_a_label_leads_back_to_its_state() -> None:
    unnamed = adagoal.explore(PairEnv(SLIPPERY), radius=3)
    for run in (unnamed, adagoal.explore("chain", radius=3, env_args={"n_states": 4})):
        assert [run.state(run.label(state)) for state in range(run.n_states)] == list(range(run.n_states))


def test_figures_are_shown_in_notebooks(result: adagoal.Result) -> None:
    assert result.plot()._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(adagoal.InputError, match="run: must be the result of an exploration or of training, got int"):
        adagoal.plot(3)  # type: ignore[arg-type]


def test_data_frames(result: adagoal.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses a stand-in, because pandas is not a dependency."""

    class Frame(dict[str, Any]):
        def __init__(self, rows: Any, columns: Any = None) -> None:
            super().__init__(rows=rows, columns=columns)

        def astype(self, kinds: dict[str, str]) -> Frame:
            assert set(kinds) <= set(self["columns"])
            return self

        def set_index(self, name: str) -> Frame:
            assert name in self["rows"][0]
            return self

    monkeypatch.setitem(sys.modules, "pandas", type(sys)("pandas"))
    monkeypatch.setattr("pandas.DataFrame", Frame, raising=False)
    assert [row["goal"] for row in result.frame()["rows"]] == [row["goal"] for row in result.table()]
    history = result.history()
    assert history["columns"] == ("steps", "episodes", "largest_error", "open_goals")
    assert history["rows"][-1][0] <= result.steps
    monkeypatch.setitem(sys.modules, "pandas", None)
    for method in (result.frame, result.history):
        with pytest.raises(adagoal.InputError, match=r"^a data frame needs pandas: .* install pandas$"):
            method()


def test_play_and_export_of_states_numbered_as_found_need_the_folder(tmp_path: Path) -> None:
    env = PairEnv(SLIPPERY, (0,))
    saved = adagoal.explore(env, 4, max_states=20, out=tmp_path / "run")
    assert saved.folder == tmp_path / "run" == adagoal.load(tmp_path / "run").folder
    assert all(trial.agrees for trial in saved.play(episodes=20, env=env))
    with pytest.raises(adagoal.InputError, match="run: this result has no folder; explore with out="):
        replace(saved, folder=None).play(env=env)
    assert {path.name for path in saved.export("drn", env=env)} >= {"certified.drn", "policies.json"}
    adagoal.explore(PairEnv(SLIPPERY, (0,)), 3, max_states=20, out=tmp_path / "run", overwrite=True)
    with pytest.raises(adagoal.InputError, match="holds another run by now"):
        saved.play(env=env)
    with pytest.raises(adagoal.InputError, match="holds another run by now"):
        saved.export("csv")


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: adagoal.explore("grid", radus=3), "explore has no argument 'radus'. Did you mean 'radius'?"),
        (lambda: adagoal.train("point-mass", stpes=3), "train has no argument 'stpes'. Did you mean 'steps'?"),
        (
            lambda: adagoal.train("point-mass", recipie="light"),
            "train has no argument 'recipie'. Did you mean 'recipe'?",
        ),
        (lambda: adagoal.certify("runs/x", raduis=3), "certify has no argument 'raduis'. Did you mean 'radius'?"),
        (lambda: adagoal.compare("grid", sedes=3), "compare has no argument 'sedes'. Did you mean 'seeds'?"),
        (
            lambda: adagoal.explore("grid", xyz=3),
            "explore has no argument 'xyz'; help(adagoal.explore) lists its arguments",
        ),
    ],
)
def test_misspelt_arguments_get_suggestions(call: Callable[[], Any], line: str) -> None:
    with pytest.raises(adagoal.InputError) as error:
        call()
    assert str(error.value) == line


def test_unknown_argument_gives_one_line_error() -> None:
    assert "\n" not in str(unknown_argument_error("explore", "a\nb", ["radius"]))


def test_warning_points_to_the_calling_line(tmp_path: Path) -> None:
    adagoal.explore("grid", **GRID, out=tmp_path / "run")
    with pytest.warns(RunWarning, match="already contains this finished run") as caught:
        adagoal.explore("grid", **GRID, out=tmp_path / "run")
    assert caught[0].filename == __file__


# --- install commands for missing extras ---


@pytest.mark.parametrize(
    ("prefix", "origin", "extra", "package"),
    [
        ("/home/a/venv", {}, "{pip} install 'adagoal[deep]'", "{pip} install pandas"),
        (
            "/home/a/venv",
            {"url": "https://example.org/adagoal.git", "vcs_info": {"vcs": "git", "commit_id": "12ab"}},
            "{pip} install 'adagoal[deep] @ git+https://example.org/adagoal.git@12ab'",
            "{pip} install pandas",
        ),
        (
            "/home/a/venv",
            {"url": "file:///tmp/adagoal-0.2-py3-none-any.whl", "archive_info": {}},
            "{pip} install 'adagoal[deep] @ file:///tmp/adagoal-0.2-py3-none-any.whl'",
            "{pip} install pandas",
        ),
        (
            "/home/a/.local/share/pipx/venvs/adagoal",
            {},
            "pipx install --force 'adagoal[deep]'",
            "pipx inject adagoal pandas",
        ),
        (
            "/home/a/.local/share/uv/tools/adagoal",
            {},
            "uv tool install 'adagoal[deep]'",
            "uv tool install adagoal --with pandas",
        ),
        (
            "/home/a/.cache/uv/archive-v0/x",
            {},
            "uvx --from 'adagoal[deep]' adagoal",
            "uvx --from adagoal --with pandas adagoal",
        ),
    ],
)
def test_install_command_fits_the_installation(
    prefix: str, origin: dict[str, Any], extra: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", prefix)
    monkeypatch.setattr(installation, "_checkout", lambda: None)
    monkeypatch.setattr(installation, "_origin", lambda: origin)
    monkeypatch.setattr("shutil.which", lambda name: None)
    pip = f"{sys.executable} -m pip"
    assert install_command("deep") == extra.format(pip=pip)
    assert install_command("pandas") == package.format(pip=pip)
    monkeypatch.setattr("shutil.which", lambda name: f"{Path(sys.executable).parent}/{name}")
    assert install_command("deep") == extra.format(pip="pip"), "the environment is activated"


def test_install_command_in_a_uv_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\nuv = 0.5.1\n")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(installation, "_checkout", lambda: Path("/home/a/adagoal"))
    expected = f"uv pip install --python {sys.executable} -e '/home/a/adagoal[deep]'"
    assert install_command("deep") == expected


def test_training_environment_gives_a_hint_instead_of_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    # Another test may have registered the environments of gymnasium_robotics in this process.
    for name in [name for name in gymnasium.registry if name.startswith("FetchReach")]:
        monkeypatch.delitem(gymnasium.registry, name)
    with pytest.raises(
        adagoal.InputError, match="env: FetchReach-v4 has continuous actions, so it is for adagoal train"
    ):
        adagoal.explore("FetchReach-v4", 5)


@pytest.mark.parametrize("command", ["train", "check"])
def test_error_names_the_missing_extra_of_an_environment(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in [name for name in gymnasium.registry if name.startswith("FetchReach")]:
        monkeypatch.delitem(gymnasium.registry, name)
    said = f"FetchReach-v4 needs gymnasium_robotics: {install_command('deep')}"
    if command == "check":
        assert adagoal.check_env("FetchReach-v4").errors == [said]
    else:
        with pytest.raises(adagoal.InputError) as error:
            adagoal.train("FetchReach-v4")
        assert str(error.value) == said


def test_sb3_wrapper_imports_no_torch() -> None:
    code = "import sys, adagoal.sb3; adagoal.sb3.ChosenGoal; assert not {'torch', 'jax', 'numba'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_missing_stable_baselines3_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "stable_baselines3" else find(name))
    with pytest.raises(InputError, match=r"needs stable_baselines3: .*\[sb3\]"):
        _ = adagoal.sb3.ChooseGoals
    with pytest.raises(AttributeError):
        _ = adagoal.sb3.Nothing
