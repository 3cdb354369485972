"""Run the examples of docs/goals.md."""

import re
import shlex
from pathlib import Path

import pytest

from adagoal.cli.main import run_command_line

PAGE = (Path(__file__).parents[1] / "docs/goals.md").read_text()
BLOCKS = re.findall(r"```(python|console)\n(.*?)```", PAGE, re.S)


def test_the_examples_of_the_page(tmp_path, monkeypatch):
    pytest.importorskip("minigrid")
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def row(label):\n    return label[1]\n")
    space: dict[str, object] = {}
    for kind, text in BLOCKS:
        if kind == "python":
            exec(text, space)
        else:
            for line in text.splitlines():
                assert run_command_line(shlex.split(line.removeprefix("$ adagoal "))) == 0, line
    assert PAGE.count("```") == 2 * (len(BLOCKS) + PAGE.count("```text"))  # all of them were found
