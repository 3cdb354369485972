"""Plug-ins: environments, goal rules and methods of other installed packages."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import adagoal
from adagoal import goal_rules, methods
from adagoal.cli.main import run_command_line
from adagoal.core import user_code
from adagoal.envs import registry

EXAMPLE = Path(__file__).parents[1] / "examples" / "adagoal-corridor"
GROUPS = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, package: str, groups: dict[str, dict[str, str]]) -> None:
    """Write the entry points of a package as an installer does."""
    info = folder / f"{package.replace('-', '_')}-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1.0\n")
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in names.items()) for group, names in groups.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(folder)


@pytest.fixture
def corridor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The example package, as if it were installed."""
    install(monkeypatch, tmp_path / "site", "adagoal-corridor", GROUPS)
    monkeypatch.syspath_prepend(EXAMPLE)


@pytest.mark.usefixtures("corridor")
def test_run_with_environment_rule_and_method_of_another_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    asked = "--env-arg length=5 --radius 8 --goal-rule nearby --method cautious --quiet"
    assert run_command_line(["explore", "corridor", *asked.split(), "--budget", "500", "--out", str(folder)]) == 3
    assert (
        run_command_line(["resume", str(folder), "--budget", "10000000", "--quiet"]) == 0
    )  # a run folder may name installed code
    assert run_command_line(["audit", str(folder)]) == 0
    assert adagoal.load(folder).goals == [0, 1, 2, 3, 4]
    assert (
        run_command_line(
            [
                "compare",
                "corridor",
                "--out",
                str(tmp_path / "table"),
                *["--seeds", "1", "--radius", "8", "--methods", "cautious", "--goal-rules", "nearby"],
            ]
        )
        == 0
    )
    assert run_command_line(["envs"]) == 0
    assert "corridor" in capsys.readouterr().out


@pytest.mark.usefixtures("corridor")
def test_error_of_an_unknown_name_lists_plugins() -> None:
    with pytest.raises(adagoal.InputError, match="nearby"):
        goal_rules.resolve_rule("neerby")
    with pytest.raises(adagoal.InputError, match="cautious"):
        methods.find_method("cautios")
    with pytest.raises(adagoal.InputError, match="did you mean corridor"):
        adagoal.explore("coridor", 5)
    with pytest.raises(adagoal.InputError, match="env_args: corridor has no argument 'width'"):
        adagoal.explore("corridor", 5, env_args={"width": 3})


def test_plugins_cannot_replace_built_in_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    groups = {
        user_code.PluginGroup.ENVIRONMENTS: {"grid": "nowhere:grid"},
        user_code.PluginGroup.GOAL_RULES: {"adagoal": "nowhere:rule"},
        user_code.PluginGroup.METHODS: {"certified": "nowhere:METHOD"},
    }
    install(monkeypatch, tmp_path, "taker", groups)
    assert goal_rules.resolve_rule("adagoal") is goal_rules.adagoal
    assert methods.find_method("certified") is methods.METHODS["certified"]
    assert registry.make_exact_model("grid", {}, None) is not None


def test_broken_plugin_gives_one_line_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "odd_package.py").write_text("number = 3\ndef world(): return number\ndef broken(): 1 / 0\n")
    odd = {"gone": "nowhere:world", "three": "odd_package:number", "odd": "odd_package:world"}
    odd |= {"broken": "odd_package:broken", "twice": "odd_package:world"}
    install(
        monkeypatch,
        tmp_path,
        "odd-package",
        dict.fromkeys(
            (user_code.PluginGroup.ENVIRONMENTS, user_code.PluginGroup.GOAL_RULES, user_code.PluginGroup.METHODS), odd
        ),
    )
    install(
        monkeypatch, tmp_path / "other", "odd-too", {user_code.PluginGroup.ENVIRONMENTS: {"twice": "odd_package:world"}}
    )
    for name, said in {
        "gone": "env: 'gone' of the package odd-package cannot be loaded .ModuleNotFoundError",
        "three": "env: 'three' of an installed package is not a function",
        "odd": "env: odd of an installed package gave a int, not a Model",
        "broken": "env: broken cannot be made .ZeroDivisionError",
        "twice": "env: 'twice' is declared by several packages: odd-package, odd-too",
    }.items():
        with pytest.raises(adagoal.InputError, match=said):
            adagoal.explore(name, 5)
    with pytest.raises(adagoal.InputError, match="goal_rule: 'three' of an installed package is not a function"):
        goal_rules.resolve_rule("three")
    with pytest.raises(adagoal.InputError, match="method: 'odd' of an installed package is not an adagoal"):
        methods.find_method("odd")
    assert {"gone", "odd"} <= {
        row.name for row in registry.list_environments()
    }  # one broken plug-in does not break the list
