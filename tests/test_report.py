"""The report is one self-contained page with the numbers of the result."""

from __future__ import annotations

import base64
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adagoal.api import explore as api
from adagoal.api.certify_data import certify_data
from adagoal.cli.main import run_command_line
from adagoal.core.errors import to_single_line
from adagoal.core.exploration_run import BoundsHistory
from adagoal.envs import toy_models
from adagoal.envs.simulator import ModelSimulator
from adagoal.report import exploration_page, write_report
from adagoal.report.exploration_page import ExplorationSource, layered_positions
from adagoal.report.html_page import Panel, PanelContent, pack_data_block
from adagoal.runs.load_result import load_result
from adagoal.runs.result import Result, StateMetadata
from adagoal.runs.result_text import make_headline
from data_block import unpack_data_block

ARGUMENTS = {"rows": 3, "cols": 3}


def own_part(page: Path) -> str:
    """Return the page without the script of Bokeh."""
    return re.sub(r'<script type="application/octet-stream" id="bokeh">[^<]*</script>', "", page.read_text())


def data_of(page: Path) -> tuple[Any, dict[str, Any]]:
    """Return the facts and arrays in a page."""
    (block,) = re.findall(r'<script type="application/octet-stream" id="data">([^<]*)</script>', page.read_text())
    return unpack_data_block(base64.b64decode(block))


@pytest.fixture(scope="module")
def certified() -> Result:
    return api.explore("grid", 6, env_args=ARGUMENTS)


@pytest.fixture(scope="module")
def partial() -> Result:
    return api.explore("grid", 6, env_args=ARGUMENTS, budget=3000)


def test_page_is_self_contained(certified: Result, tmp_path: Path) -> None:
    page = own_part(write_report(certified, tmp_path))
    rest = page.replace('<link rel="icon" href="data:,">', "")
    assert not re.findall(r"(?:src|href)=", rest)
    assert "http" not in rest.replace("http-equiv", "")
    assert "@import" not in page
    assert "Certified" in page
    assert "with probability 90% or more" in page.lower()
    assert "no guarantee" not in page
    assert "Open goals" not in page
    assert (tmp_path / "report.html").stat().st_size < 3_000_000
    names = {"report.html", "manifest.json", "manifest.backup.json"}
    assert {file.name for file in tmp_path.iterdir()} == names


def test_figures_are_written_on_request(certified: Result, tmp_path: Path) -> None:
    certified.save(tmp_path)
    assert run_command_line(["report", str(tmp_path), "--png"]) == 0
    assert {file.name for file in tmp_path.glob("*.png")} == {"goals.png", "progress.png"}


def test_every_number_is_in_the_page(certified: Result, tmp_path: Path) -> None:
    facts, arrays = data_of(write_report(certified, tmp_path))
    assert sorted(arrays["goal"].tolist()) == sorted(certified.certificates)
    for place, goal in enumerate(arrays["goal"].tolist()):
        assert (arrays["lower"][place], arrays["upper"][place]) == certified.certificate(goal)
        assert arrays["visits"][goal] == certified.arrays["visits"][goal]
        table = arrays["policy"][arrays["policy_row"][place]]
        np.testing.assert_array_equal(table, certified.policy(goal).actions)
    assert facts["steps"] == certified.steps
    tried, seen = certified.arrays["episode_goals"], arrays["moment_chosen"]
    assert seen[:, -1].sum() == (tried >= 0).sum() == arrays["tried"].sum()
    assert (np.diff(seen.astype(int), axis=1) >= 0).all()
    np.testing.assert_array_equal(arrays["moment_lower"][:, -1], arrays["lower"].astype(np.float32))
    order = arrays["goal"]
    np.testing.assert_array_equal(arrays["moment_upper"][:, :-1], certified.arrays["past_upper"].T[order])


def test_earlier_policies_match_earlier_upper_bounds(
    certified: Result, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The latest ones nearly equal those of the result; a run that is too large has none."""
    arrays, bounded = certified.arrays, np.isfinite(certified.arrays["past_upper"])
    assert arrays["past_policy"].shape == (bounded.sum(), 9)
    last = arrays["past_policy"][-int(bounded[-1].sum()) :]
    returned = [certified.policy(g).actions[0] for g in np.flatnonzero(bounded[-1])]
    assert np.mean(last == returned) > 0.8
    monkeypatch.setattr(BoundsHistory, "max_policy_entries", 100)
    large = api.explore("grid", 6, env_args=ARGUMENTS)
    assert "past_policy" not in large.arrays
    for name in large.arrays:
        np.testing.assert_array_equal(large.arrays[name], arrays[name], "nothing else depends on them")
    assert "moment_policy" not in data_of(write_report(large, tmp_path))[1]


def test_page_contains_the_observed_model(certified: Result, tmp_path: Path) -> None:
    _, arrays = data_of(write_report(certified, tmp_path))
    row, actions = arrays["row"], certified.reset_action
    assert len(row) == 9 * actions + 1
    tried = np.add.reduceat(arrays["count"], row[:-1][row[:-1] < row[1:]])
    resets = certified.arrays["visits"].sum() - tried.sum()
    assert 0 <= resets < certified.steps
    assert (np.diff(row.astype(int)) <= 9).all()


def test_page_of_a_large_run_is_small(certified: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adagoal.report.exploration_page.PageLimits.policy_entries", 4 * 9)
    _, arrays = data_of(write_report(certified, tmp_path))
    assert arrays["policy"].shape[0] == 4
    held = arrays["goal"][arrays["policy_row"] >= 0]
    assert len(held) == 4
    assert set(arrays["policy_row"]) == {-1, 0, 1, 2, 3}
    page = own_part(tmp_path / "report.html")
    assert '<p class="quiet small">This page holds the policies of 4 of 9 goals' in page
    assert f"adagoal watch {tmp_path}" in page


def test_panel_is_added_by_one_function_and_one_script(
    certified: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``test_report_in_browser.py`` shows the panel in the browser."""

    def episode_lengths(source: ExplorationSource) -> PanelContent:
        steps = source.result.arrays["past_steps"].astype(float)
        return PanelContent({"unit": "<steps>"}, {"lengths": steps})

    script = tmp_path / "lengths.js"
    script.write_text(
        "addPanel({show(data) { $('lengths').textContent = `${data.lengths.length} ${data.facts.unit}`; }});"
    )
    panel = Panel("lengths", "Episode lengths", episode_lengths, (script,))
    monkeypatch.setattr(exploration_page, "PANELS", (*exploration_page.PANELS, panel))
    page = write_report(certified, tmp_path / "run")
    assert '<h2 id="lengths-title">Episode lengths</h2>' in own_part(page)
    assert script.read_text() in own_part(page)
    facts, arrays = data_of(page)
    assert facts["unit"] == "<steps>"
    np.testing.assert_array_equal(arrays["lengths"], certified.arrays["past_steps"])
    monkeypatch.setattr(exploration_page, "PANELS", (panel, panel))
    with pytest.raises(AssertionError, match=r"panel lengths: another panel uses the names \['lengths', 'unit'\]"):
        write_report(certified, tmp_path / "run")


def test_layout_of_an_environment_without_a_map() -> None:
    """The graph is a diamond with a tail and one unconnected state."""
    source, target = np.array([0, 0, 1, 2, 3]), np.array([1, 2, 3, 3, 4])
    place = layered_positions(0, np.array([True] * 6 + [False]), source, target)
    assert place[:, 0].tolist()[:6] == [0, 1, 1, 2, 3, 4]
    assert place[1, 1] != place[2, 1]
    assert np.isnan(place[6]).all()


def test_data_block_is_unpacked_unchanged() -> None:
    arrays = {"a": np.arange(3, dtype=np.float32), "b": np.zeros((0, 2), np.uint8), "c": np.array([[1.5, np.inf]])}
    facts, found = unpack_data_block(pack_data_block({"text": "שלום"}, arrays))
    assert facts == {"text": "שלום"}
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
    with pytest.raises(ValueError, match="no page can read"):
        pack_data_block({}, {"a": np.zeros(2, np.int64)})


def test_unfinished_run_lists_its_open_goals(partial: Result, tmp_path: Path) -> None:
    assert partial.open_goals
    page = write_report(partial, tmp_path).read_text()
    assert "Not finished (budget spent)" in page
    assert f"{len(partial.open_goals)} are open" in page
    assert f"Open goals: {len(partial.open_goals)} of {len(partial.goals)}." in page
    assert f"adagoal resume {tmp_path}" in page
    _, arrays = data_of(tmp_path / "report.html")
    assert (arrays["stand"] == 1).sum() == len(partial.open_goals)
    unknown = replace(partial, certificates={g: c._replace(upper=math.inf) for g, c in partial.certificates.items()})
    assert np.isinf(data_of(write_report(unknown, tmp_path))[1]["upper"]).all()


def test_unfinished_curriculum_claims_only_finished_stages(tmp_path: Path) -> None:
    """An interrupted first stage has certified nothing, although no known goal is open."""
    early, late = (api.explore("two-room", "auto", budget=steps, out=tmp_path / str(steps)) for steps in (2, 30_000))
    assert (early.certified_radius, early.open_goals) == (None, [])
    assert "was certified" not in str(make_headline(early))
    assert "goals that were never seen may be missing" in str(make_headline(early))
    assert late.status == "budget"
    assert late.certified_radius == late.radius >= 2
    assert f"the largest radius that was certified is {late.radius:g}" in str(make_headline(late))
    assert api.audit(late).ok
    assert load_result(tmp_path / "30000").certified_radius == late.radius


@pytest.mark.parametrize("status", ["stopped", "budget", "interrupted"])
def test_missing_guarantee_is_stated_everywhere(partial: Result, status: str, tmp_path: Path) -> None:
    result = replace(partial, guarantee=False, status=status, open_goals=partial.open_goals[:1])
    page = own_part(write_report(result, tmp_path))
    assert page.count("no guarantee") >= 4, "title, status, what is unknown, estimates"
    assert "Certificates" not in page
    assert "no guarantee" in str(make_headline(result))


def test_warnings_come_first_and_text_is_escaped(certified: Result, tmp_path: Path) -> None:
    page = own_part(write_report(replace(certified, warnings=["<b>not</b> a reset"]), tmp_path))
    assert "&lt;b&gt;not&lt;/b&gt; a reset" in page
    assert page.index("not&lt;/b&gt;") < page.index("Certificates")


def test_report_is_the_same_from_the_stored_view(certified: Result, tmp_path: Path) -> None:
    view = StateMetadata.from_env(ModelSimulator(toy_models.open_grid_model(rows=3, cols=3)))
    certified.save(tmp_path)
    first = write_report(certified, tmp_path, view).read_bytes()
    stored = load_result(tmp_path).view
    assert write_report(load_result(tmp_path), tmp_path).read_bytes() == first
    assert (stored.start, stored.labels) == (view.start, view.labels)
    assert stored.layout is not None
    assert view.layout is not None
    np.testing.assert_array_equal(stored.layout.cells, view.layout.cells)
    np.testing.assert_array_equal(stored.layout.walls, view.layout.walls)


def test_state_names_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names contain markup, mathtext, escape sequences and direction marks."""
    assert (
        run_command_line(
            ["explore", "failing_envs:Named-v0", "--radius", "8", "--budget", "4000", "--out", str(tmp_path)]
        )
        == 3
    )
    page = own_part(tmp_path / "report.html")
    names = " ".join(data_of(tmp_path / "report.html")[0]["labels"])
    assert "<script>alert(1)" in names
    assert "<script>alert" not in page
    assert not set("\u202e\x1b\x07") & set(page + names)
    assert "$\\frac{0$" in names
    capsys.readouterr()
    assert run_command_line(["play", str(tmp_path), "--episodes", "2", "--trust"]) == 0
    shown = capsys.readouterr().out
    assert "[/x]0" in shown or "start" in shown
    assert "[bold]a b" in shown
    assert "$\\frac{0$" in shown
    assert not set("\u202e\x1b\x07") & set(shown)


def test_any_label_can_be_drawn(partial: Result, tmp_path: Path) -> None:
    odd = ("[/x]0", "$\\frac{0$", "$", "\u202egnp", "\x1b[31m", "\ud800", "x" * 10_000, "a\nb\tc")
    labels = tuple(f"{label}{state}" for state, label in enumerate(("$", *odd)))
    assert set(partial.goals) == set(range(9)), "all of them are drawn"
    facts, _ = data_of(write_report(replace(partial, view=StateMetadata(0, labels, None)), tmp_path, png=True))
    assert facts["labels"] == [f"{state} {to_single_line(name)}" for state, name in enumerate(labels)]


def test_prints_of_the_environment_are_not_in_json(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path)
    assert (
        run_command_line(
            ["explore", "failing_envs:Chatty-v0", "--radius", "6", "--budget", "500", "--out", folder, "--json"]
        )
        == 3
    )
    out, err = capfd.readouterr()
    assert json.loads(out)["steps"] == 500
    assert "from C" in err
    assert "welcome" in err
    for command in (["resume", folder, "--budget", "600"], ["play", folder, "--episodes", "1"]):
        run_command_line([*command, "--trust", "--json"])
        json.loads(capfd.readouterr().out)


def test_reports_of_environments_without_a_map(tmp_path: Path) -> None:
    for name, budget in (("chain", None), ("random-sparse", 2000)):
        result = api.explore(name, 5, budget=budget)
        facts, arrays = data_of(write_report(result, tmp_path / name, png=True))
        assert not facts["grid"]
        assert arrays["place"][facts["start"]].tolist() == [0.0, 0.5]
        assert len(arrays["edges"]) > 0
        assert (tmp_path / name / "goals.png").stat().st_size > 5000
    bare = write_report(replace(result, setting=replace(result.setting, env="object:Gone")), tmp_path / "bare")
    assert bare.exists(), "an environment that cannot be built again has numbers instead of names"


def test_report_of_a_run_without_steps(tmp_path: Path) -> None:
    assert write_report(api.explore("two-room", 40, budget=1), tmp_path / "two-room", png=True).exists()
    assert write_report(api.explore("CliffWalking-v1", 5, budget=1), tmp_path / "cliff", png=True).exists()
    from_data = certify_data([("off", "press", "on")] * 9, 2, start="off")
    assert write_report(from_data, tmp_path / "data", png=True).exists()
