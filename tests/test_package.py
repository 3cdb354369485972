"""The package as installed: version, workflows, tab completion, and the wheel in an empty environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import adagoal
from adagoal import goal_rules, methods
from adagoal.cli import completion
from adagoal.cli.main import run_command_line
from adagoal.core import user_code
from adagoal.envs import registry

ROOT = Path(__file__).parents[1]
GRID = ["explore", "grid", "--radius", "6", "--epsilon", "2", "--env-arg", "slip=0", "--quiet"]


def test_version_is_the_same_everywhere() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == adagoal.__version__
    assert adagoal.__version__.removesuffix(".dev0") in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("file", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda file: file.stem)
def test_workflows_run_targets_that_exist(file: Path) -> None:
    """Workflows cannot run here, so the test looks up the make targets that they call."""
    targets = {line.partition(":")[0] for line in (ROOT / "Makefile").read_text().splitlines() if ": " in line}
    workflow = yaml.safe_load(file.read_text())
    assert {"name", "permissions", "jobs"} <= workflow.keys()
    assert True in workflow  # the key "on", as YAML 1.1 reads it
    jobs = workflow["jobs"]
    for job in jobs.values():
        assert {"runs-on", "steps"} <= job.keys()
        assert {job.get("needs")} <= {None, *jobs}
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step)
            if "run" in step:
                program, target = step["run"].split()
                assert program == "make"
                assert target in targets


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["completion", shell]) == 0
    assert f"_ADAGOAL_COMPLETE={shell}_complete" in capsys.readouterr().out


def complete(line: str) -> tuple[list[str], str]:
    """Return the completions of a line, and the modules that were imported for them."""
    code = "import atexit, sys; atexit.register(lambda: print(sorted(sys.modules), file=sys.stderr));"
    code += "from adagoal.cli.main import main; main()"
    asked = {"_ADAGOAL_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **asked}, check=True
    )
    return [offer.partition(",")[2] for offer in done.stdout.splitlines() if offer], done.stderr


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("adagoal ex", ["explore", "export"]),
        ("adagoal explore two", ["two-room"]),
        ("adagoal check Fetch", ["FetchReach-v4", "FetchPush-v4", "FetchPickAndPlace-v4", "FetchSlide-v4"]),
        ("adagoal train po", ["point-mass"]),
        ("adagoal compare chain gr", ["grid", "grid-file"]),
        ("adagoal explore grid --method cert", ["certified"]),
        ("adagoal train point-mass --goal-rule uni", ["unigoal"]),
        ("adagoal compare grid --methods bayes,cert", ["bayes,certified"]),
        ("adagoal compare grid --goal-rules adagoal,uni", ["adagoal,unigoal"]),
        ("adagoal explore grid --goal-r", ["--goal-rule"]),
        ("adagoal show runs", ["runs"]),
        ("adagoal nonsense x", []),
    ],
)
def test_tab_completion(line: str, offers: list[str]) -> None:
    found, modules = complete(line)
    assert found == offers
    assert modules.startswith("["), "a message would appear in the middle of the line"
    for heavy in ("'jax'", "'matplotlib'", "'numba'", "'scipy'", "'gymnasium'", "'rich.console'"):
        assert heavy not in modules


def test_completed_names_equal_the_registries() -> None:
    listed = [entry.name for entry in registry.list_environments() if " " not in entry.name]
    plugins = [*user_code.list_plugin_names(user_code.PluginGroup.ENVIRONMENTS)]
    assert sorted(completion.EXPLORED_ENVS) == sorted(set(listed) - set(plugins))
    assert list(completion.METHODS) == list(methods.METHODS)
    assert list(completion.GOAL_RULES) == list(goal_rules.BUILTIN_RULES)
    assert all(name.startswith(registry.TRAINING_FAMILIES) for name in completion.TRAINED_ENVS)


# --- the wheel in empty environments ---


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the working tree through the source archive."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], check=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.mark.slow
def test_wheel_contains_every_file_of_the_package(wheel: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "src/adagoal"], cwd=ROOT, capture_output=True, text=True, check=True)
    ours = {name.removeprefix("src/") for name in listed.stdout.split()}
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("adagoal/")}
    assert held == ours


@pytest.mark.slow
@pytest.mark.parametrize("extras", ["", "[minigrid,deep]"])
def test_wheel_works_in_an_empty_environment(wheel: Path, extras: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    bin = tmp_path / "venv" / "bin"
    install = [bin / "python", "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt"]
    subprocess.run([*install, f"{wheel}{extras}", ROOT / "examples" / "adagoal-corridor"], check=True)

    def adagoal(*arguments: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(
            [bin / "adagoal", *arguments], capture_output=True, text=True, cwd=tmp_path, env=clean, check=False
        )

    assert adagoal("--version").stdout.startswith("adagoal, version ")
    found = adagoal(*GRID, "--out", "runs/grid")
    assert found.returncode == 0, found.stderr
    assert (tmp_path / "runs/grid/report.html").stat().st_size > 10_000
    for command in (["audit", "runs/grid"], ["play", "runs/grid", "--episodes", "2"], ["report", "runs/grid"]):
        done = adagoal(*command)
        assert done.returncode == 0, done.stderr
    assert adagoal("export", "runs/grid", "--format", "csv").returncode == 0
    compare = adagoal("compare", "chain", "--radius", "2", "--seeds", "1", "--budget", "300", "--out", "runs/compare")
    assert compare.returncode == 0, compare.stderr
    png = adagoal("report", "runs/grid", "--png")
    assert "corridor" in adagoal("envs").stdout
    trained = adagoal("train", "point-mass", "--steps", "400", "--recipe", "light", "--out", "runs/point")
    minigrid = adagoal("explore", "MiniGrid-Empty-5x5-v0", "--radius", "3", "--budget", "200", "--quiet")
    if extras:
        assert png.returncode == 0, png.stderr
        assert trained.returncode in (0, 3), trained.stderr
        assert minigrid.returncode in (0, 3), minigrid.stderr
    else:
        listed = subprocess.run([bin / "python", "-m", "pip", "list"], capture_output=True, text=True, check=True)
        assert not re.findall(r"(?i)^(?:bokeh|matplotlib|pillow|jax|pandas)", listed.stdout, flags=re.MULTILINE)
        assert png.returncode == 2
        assert png.stderr.startswith("error: figures need matplotlib: "), png.stderr
        assert trained.returncode == minigrid.returncode == 2
        assert "needs" in trained.stderr
        assert "minigrid" in minigrid.stderr
