"""The examples of docs/extending.md and docs/goals.md run, and the README shows the numbers of its run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import adagoal
from adagoal import methods
from adagoal.cli.main import run_command_line

ROOT = Path(__file__).parents[1]
EXTENDING = re.findall(r"```python\n(.*?)```", (ROOT / "docs/extending.md").read_text(), re.S)


def test_goal_rule_example(tmp_path: Path) -> None:
    file = tmp_path / "my_rule.py"
    file.write_text(EXTENDING[0])
    result = adagoal.explore("grid", 10, 1.0, goal_rule=f"{file}:frontier", seed=0, budget=10**6)
    assert result.status == "certified"
    assert adagoal.audit(result).ok


def test_method_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "METHODS", dict(methods.METHODS))
    space: dict[str, object] = {}
    exec(EXTENDING[1], space)
    exec(EXTENDING[2], space)
    result = adagoal.explore("grid", 10, 1.0, method="plain", env_args={"slip": 0.0}, seed=0, budget=10**5)
    assert result.status == "stopped"
    assert not result.guarantee
    assert len(result.goals) == 20


def test_examples_of_goals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("minigrid")
    page = (ROOT / "docs/goals.md").read_text()
    blocks = re.findall(r"```(python|console)\n(.*?)```", page, re.S)
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def row(label):\n    return label[1]\n")
    space: dict[str, object] = {}
    for kind, text in blocks:
        if kind == "python":
            exec(text, space)
        else:
            for line in text.splitlines():
                assert run_command_line(shlex.split(line.removeprefix("$ adagoal "))) == 0, line
    assert page.count("```") == 2 * (len(blocks) + page.count("```text"))  # all of them were found


@pytest.fixture(scope="module")
def demo() -> adagoal.Result:
    return adagoal.explore("two-room", radius=40, epsilon=1.0, delta=0.1, seed=0)


def test_readme_shows_the_certificate_of_its_run(demo: adagoal.Result) -> None:
    text = (ROOT / "README.md").read_text()
    lower, upper = demo.certificate(23)
    assert demo.status == "certified"
    assert f"Certificate(lower={lower:.1f}, upper={upper:.1f})" in text
    assert f"No policy reaches goal 23 in fewer than {lower:.1f} steps" in text
    assert f"needs at most {upper:.1f} steps" in text
    assert f'result.label(23)  # "{demo.label(23)}"' in text


def test_first_page_counts_the_squares_of_its_run(demo: adagoal.Result) -> None:
    assert f"{len(demo.goals)} of the 52 squares are returned" in (ROOT / "docs/index.md").read_text()
    assert len(demo.certificates) == 52
