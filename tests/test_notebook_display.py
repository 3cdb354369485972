"""Display in Python: results in notebooks, their pages, and progress."""

from __future__ import annotations

import functools
import sys
import types
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rich.console
import rich.live
import rich.progress_bar
import rich.table

import adagoal
from adagoal.cli.main import run_command_line
from adagoal.core.errors import Status
from adagoal.runs import progress_display
from adagoal.runs.result import Certificate
from adagoal.runs.result_text import MAX_SUMMARY_ROWS

GRID: dict[str, Any] = {"env": "grid", "radius": 8, "env_args": {"rows": 4, "cols": 5}}
HOSTILE = "<script>hit()</script>"


class Read(HTMLParser):
    """Collects the tags, and the text of every cell of the table."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.kinds: set[str] = set()
        self.cells: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.kinds.add(tag)
        if tag == "tr":
            self.cells.append([])
        elif tag in ("td", "th"):
            self.cells[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.cells and self.cells[-1]:
            self.cells[-1][-1] += data


@pytest.fixture(scope="module")
def result() -> adagoal.Result:
    return adagoal.explore(**GRID)


def test_html_of_a_result_shows_the_nearest_goals(result: adagoal.Result) -> None:
    text = result._repr_html_()
    rows = Read(text).cells[1:]
    nearest = sorted(result.goals, key=lambda g: (result.certificate(g).lower, g))
    assert len(result.goals) > MAX_SUMMARY_ROWS == len(rows)
    assert [row[0] for row in rows[:3]] == [result.goal_label(g) for g in nearest[:3]]
    low, up = result.certificate(nearest[5])
    assert rows[5][1] == f"{low:.2f} to {up:.2f}"
    assert f"and {len(result.goals) - MAX_SUMMARY_ROWS} more" in text
    assert ">certified</b>" in text


def test_names_are_escaped_and_unknown_bounds_are_open() -> None:
    P = np.zeros((3, 1, 3))
    P[[0, 1, 2], 0, [1, 2, 2]] = 1.0
    model = adagoal.Model.from_dense(P, labels=["a", "b", HOSTILE])
    result = adagoal.explore(model, radius=5)
    g = result.goal(HOSTILE)
    result = replace(result, certificates={**result.certificates, g: Certificate(2.0, np.inf)}, open_goals=[g])
    read = Read(result._repr_html_())
    assert "script" not in read.kinds
    assert read.cells[-1][:2] == [HOSTILE, "2.00 or more"]
    assert read.cells[-1][3] == " (open)"


def test_void_result_shows_its_reason(result: adagoal.Result) -> None:
    void = replace(result, status=Status.VOID, void=["the reset leads <b>elsewhere</b>"], warnings=["slow & old"])
    text = void._repr_html_()
    assert "the reset leads &lt;b&gt;elsewhere&lt;/b&gt;" in text
    assert "slow &amp; old" in text


def test_result_and_its_folder_have_the_same_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = adagoal.explore("chain", 4, budget=50, out=tmp_path / "run")
    page = adagoal.show(result)
    assert "Continue with" not in page.html, "a result has no folder to continue in"
    assert f"adagoal resume {tmp_path / 'run'}" in adagoal.show(tmp_path / "run").html
    assert page.save(tmp_path / "new" / "page.html").read_text() == page.html
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    file = page.open()
    assert opened == [file.as_uri()]
    assert file.read_text() == page.html
    assert repr(page) == "Page(title='adagoal: chain')"


@pytest.mark.parametrize(
    ("run", "line"),
    [
        (5, r"run: must be the result of explore or certify, or the folder of a run \(.*\), got 5"),
        ("nowhere", "nowhere"),
    ],
)
def test_object_without_a_page_gives_one_line_error(run: Any, line: str) -> None:
    with pytest.raises(adagoal.InputError, match=line):
        adagoal.show(run)


def test_invalid_file_gives_one_line_error(result: adagoal.Result, tmp_path: Path) -> None:
    page = adagoal.show(result)
    with pytest.raises(adagoal.InputError, match="path: must be the path of a file, got 3"):
        page.save(3)  # type: ignore[arg-type]
    with pytest.raises(adagoal.InputError, match="cannot be written"):
        page.save(tmp_path)


def test_run_shows_its_progress(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_display, "PLAIN_LINE_SECONDS", 0.0)
    output: list[int] = []
    seen = adagoal.explore(
        "chain", 4, progress=True, observe=lambda run: output.append(run.steps), out=tmp_path / "run"
    )
    assert "steps" in capfd.readouterr().err
    assert output[-1] == seen.steps
    assert adagoal.explore("chain", 4).certificates == seen.certificates, "the run does not notice"
    assert capfd.readouterr().err == ""
    ended = adagoal.explore("chain", 4, progress=True, observe=lambda run: False)
    assert ended.status is Status.INTERRUPTED
    with pytest.raises(adagoal.InputError, match="observe: the function raised ZeroDivisionError"):
        adagoal.explore("chain", 4, progress=True, observe=lambda run: bool(1 / 0))
    capfd.readouterr()
    adagoal.resume(tmp_path / "run", progress=True)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the notebook kernel; return the HTML of everything displayed."""
    shown: list[str] = []

    class Handle:
        def update(self, bundle: dict[str, str], raw: bool) -> None:
            assert raw
            shown.append(bundle["text/html"])

    def display(bundle: dict[str, str], raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        shown.append(bundle["text/html"])
        return Handle()

    package, module = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    package.__dict__["version_info"] = (9, 0)  # Matplotlib reads it
    package.__dict__["get_ipython"] = lambda: types.SimpleNamespace(kernel=None)
    module.__dict__["display"] = display
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return shown


def test_a_notebook_shows_a_bar_before_the_first_rollout(notebook: list[str]) -> None:
    """The bar needs neither an argument nor ipywidgets, and disappears at the end."""
    seen: list[list[str]] = []
    adagoal.explore("chain", 4, observe=lambda run: seen.append(notebook.copy()))
    assert seen[0][0] == '<div>starting</div><progress style="width:30em"></progress>'
    assert "largest error" in notebook[1]
    assert notebook[-1] == ""
    notebook.clear()
    adagoal.explore("chain", 4, progress=False)
    assert notebook == []


def test_names_in_a_progress_display_are_escaped(notebook: list[str]) -> None:
    class Hostile(progress_display.ProgressDisplay):
        def describe(self) -> progress_display.Progress:
            return progress_display.Progress([HOSTILE], 0.25)

    with Hostile() as display:
        display()
    assert "&lt;script&gt;" in notebook[1]
    assert 'value="0.250"' in notebook[1]


def test_a_comparison_in_a_notebook_shows_its_runs(notebook: list[str], tmp_path: Path) -> None:
    comparison = adagoal.compare("chain", radius=4, goal_rules="adagoal", seeds=1, budget=500, out=tmp_path / "c")
    assert any("1 of 1 runs" in html and "chain certified adagoal seed 0: own stop" in html for html in notebook)
    assert not any("largest error" in html for html in notebook), "runs in this process have no display of their own"
    notebook.clear()
    again = adagoal.compare("chain", radius=4, goal_rules="adagoal", seeds=1, budget=500, out=tmp_path / "c")
    assert again.outcomes == comparison.outcomes
    assert (tmp_path / "c" / "table.html").is_file()


def test_terminal_display_rewrites_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every kind of run uses the same display; a comparison shows its table."""
    terminal = functools.partial(rich.console.Console, force_terminal=True, width=120, _environ={})
    monkeypatch.setattr(rich.console, "Console", terminal)
    adagoal.explore("chain", 4, progress=True)
    exploration = capsys.readouterr().err
    line = ["compare", "chain", "--radius", "4", "--goal-rules", "adagoal", "--seeds", "2", "--jobs", "1"]
    assert run_command_line([*line, "--budget", "500", "--out", str(tmp_path)]) == 0
    comparison = capsys.readouterr().err
    for shown, content in ((exploration, "largest error"), (comparison, "2 of 2 runs"), (comparison, "audit-stop")):
        assert content in shown
        assert "\x1b[2K" in shown, "the lines are erased before they are written again, and at the end"
    assert run_command_line([*line, "--budget", "500", "--out", str(tmp_path), "--quiet"]) == 0
    assert capsys.readouterr().err == ""
