"""The report in a real browser: every control shows the data of the run."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import browser as driver
from adagoal.api import explore as api
from adagoal.cli.main import run_command_line as main
from adagoal.report import exploration_page, write_report
from adagoal.report.exploration_page import ExplorationSource, PageLimits
from adagoal.report.html_page import Panel, PanelContent
from adagoal.report.show import show
from adagoal.runs.load_result import load_result
from adagoal.runs.result import Result, StateMetadata

pytestmark = pytest.mark.skipif(driver.found() is None, reason=driver.HOW)

HOSTILE = (
    "<script>window.hit = 1</script>",
    '"><img src=x onerror="window.hit=1">',
    "$\\frac{",
    "$$\\unicode{x}$$",
    "שלום עולם",
    "{{ 7 * 7 }} ${window.hit=1}",
    "</script><svg onload=window.hit=1>",
    "@name{safe} &lt;b&gt;",
    "javascript:window.hit=1",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[driver.Browser]:
    with driver.Browser() as started:
        yield started


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on a grid."""
    folder = tmp_path_factory.mktemp("run")
    write_report(api.explore("grid", 6, env_args={"rows": 3, "cols": 3}, out=folder), folder)
    return folder


def opened(browser: driver.Browser, folder: Path, **options: Any) -> driver.Page:
    page = browser.open((folder / "report.html").as_uri(), **options)
    page.wait("document.body.dataset.ready === 'yes'")
    return page


def text(page: driver.Page, element: str) -> str:
    return str(page.evaluate(f"document.getElementById('{element}').textContent"))


def click_state(page: driver.Page, state: int) -> None:
    """Return the position of a state on the map, after the map stopped moving."""
    page.evaluate("document.getElementById('map').scrollIntoView({block: 'center'})")
    places: list[Any] = [None]
    while len(places) < 2 or places[-1] != places[-2]:
        places.append(
            page.evaluate(f"""new Promise(tell => requestAnimationFrame(() => setTimeout(() => {{
            const view = [...Bokeh.index].find(view => view.model.name === "map");
            const box = view.el.getBoundingClientRect();
            const place = page.places[page.at[{state}]];
            tell([box.x + view.frame.x_scale.compute(place.x), box.y + view.frame.y_scale.compute(place.y)]);
        }}, 30)))""")
        )
    time.sleep(0.35)  # Bokeh treats two clicks within 300 ms as a double click
    page.click(*places[-1])


def interval_text(lower: float, upper: float) -> str:
    return f"{lower:.3f} to {upper:.3f} expected steps"


def test_click_on_a_goal_shows_its_certificate(browser: driver.Browser, run: Path) -> None:
    page = opened(browser, run)
    rows = {row["goal"]: row for row in json.loads((run / "result.json").read_text())["goals"]}
    for goal in (4, 8):
        click_state(page, goal)
        page.wait(f"document.getElementById('goal-title').textContent.startsWith('Goal {goal} ')")
        assert text(page, "interval-text") == interval_text(rows[goal]["lower"], rows[goal]["upper"])
        assert f"error at most {rows[goal]['error']:.3f}" in text(page, "goal-text")
    walked = page.evaluate("[part('path').data.x.length, part('arrows').data.x0.length]")
    assert walked[0] >= 3, "the most likely path to the far corner"
    assert walked[1] > 0
    assert page.troubles() == []


def test_path_goes_on_after_a_state_that_is_rarely_left(browser: driver.Browser, tmp_path: Path) -> None:
    forward = np.zeros((4, 2, 4))
    for state in range(4):
        forward[state, 0, state] += 0.6
        forward[state, 0, min(state + 1, 3)] += 0.4
        forward[state, 1, 0] = 1.0
    write_report(api.explore(forward, 10, out=tmp_path), tmp_path)
    page = opened(browser, tmp_path)
    page.evaluate("choose(page.row[3])")
    assert text(page, "path-text").startswith("Most likely path (3 steps): 0 → 1 → 2 → 3")


def test_slider_shows_earlier_times(browser: driver.Browser, run: Path) -> None:
    page = opened(browser, run)
    arrays = _arrays(run)
    page.evaluate("choose(page.row[8])")
    place = int(np.flatnonzero(arrays["past_lower"][:, 8])[0])  # the first time at which the goal has bounds
    assert 0 < place < len(arrays["past_steps"]) - 1
    page.evaluate(f"$('moment').value = {place}; $('moment').dispatchEvent(new Event('input'))")
    assert f"after {arrays['past_steps'][place]:,} steps" in text(page, "moment-text")
    lower, upper = (float(arrays[f"past_{name}"][place][8]) for name in ("lower", "upper"))
    shown = text(page, "interval-text")
    assert f"{lower:.3f}" in shown
    assert (f"{upper:.3f}" in shown) == (upper < 1e300)
    assert page.evaluate("part('now-shrink').location") == arrays["past_steps"][place]
    page.evaluate("$('play-time').click()")
    page.wait(f"page.moment > {place}")
    page.evaluate("$('play-time').click()")
    assert page.troubles() == []


def test_arrows_path_and_headline_follow_the_slider(browser: driver.Browser, run: Path) -> None:
    page, result, arrays = opened(browser, run), _result(run), _arrays(run)
    goal, moments = 8, len(arrays["past_steps"])
    bounded = np.isfinite(arrays["past_upper"])
    rows = np.cumsum(bounded).reshape(bounded.shape) - 1
    own = [rows[f, goal] if bounded[f, goal] else -1 for f in range(moments)]
    shown = page.evaluate(
        f"""choose(page.row[{goal}]); [...Array({moments}).keys()].map(f => {{
        const policy = page.model.policyAt(page.goal, f);
        return policy && [...policy];
    }})"""
    )
    assert own[0] == -1 < own[-1], "the goal gets a policy during the run"
    for f, row in enumerate(own):
        assert shown[f] == (arrays["past_policy"][row].tolist() if row >= 0 else None)
    first = next(f for f, row in enumerate(own) if row >= 0)
    move = "$('moment').value = {}; $('moment').dispatchEvent(new Event('input'))"
    drawn = "[part('arrows').data.x0.length, part('path').data.x.length]"
    page.evaluate(move.format(first - 1))
    assert page.evaluate(drawn) == [0, 0], "before there is a policy nothing is drawn"
    assert "no policy with an upper bound" in text(page, "path-text")
    assert page.evaluate("$('then').checkVisibility({visibilityProperty: true})")
    assert not page.evaluate("document.querySelector('#words section').checkVisibility({visibilityProperty: true})")
    assert f"After {arrays['past_steps'][first - 1]:,} steps" in text(page, "then-title")
    open_then = int((arrays["past_stand"][first - 1] == 1).sum())
    assert f"and {open_then} open" in text(page, "then-text")
    page.evaluate(move.format(first))
    assert min(page.evaluate(drawn)) > 0
    assert "of the policy of this time" in text(page, "path-text")
    page.evaluate("$('then-end').click()")
    assert page.evaluate("page.moment === last() && $('then').hidden")
    np.testing.assert_array_equal(
        page.evaluate("[...page.model.policyAt(page.goal, last())]"), result.policy(8).actions[0]
    )
    page.evaluate(move.format(first) + "; $('try-one').click()")
    assert page.evaluate("page.moment === last()"), "an episode shows the policy that plays it"
    assert page.troubles() == []


def test_final_arrows_are_hidden_at_earlier_times_without_policies(browser: driver.Browser, tmp_path: Path) -> None:
    result = api.explore("grid", 6, env_args={"rows": 3, "cols": 3}, budget=3000)
    del result.arrays["past_policy"]
    write_report(result, tmp_path)
    page = opened(browser, tmp_path)
    assert page.evaluate("part('arrows').data.x0.length") > 0
    page.evaluate("$('moment').value = last() - 1; $('moment').dispatchEvent(new Event('input'))")
    assert page.evaluate("[part('arrows').data.x0.length, part('path').data.x.length]") == [0, 0]
    assert "no policies of earlier times" in text(page, "path-text")
    assert page.troubles() == []


@pytest.mark.parametrize(
    ("env", "names"), [("FrozenLake-v1", {"hole": 4, "goal": 1}), ("CliffWalking-v1", {"cliff": 10})]
)
def test_map_draws_named_cells(browser: driver.Browser, tmp_path: Path, env: str, names: dict[str, int]) -> None:
    write_report(api.explore(env, 5, budget=2000, out=tmp_path), tmp_path)
    page = opened(browser, tmp_path)
    words = page.evaluate("part('cell-words').data")
    assert {name: words["text"].count(name) for name in set(words["text"])} == names
    cells = {(round(-y), x) for x, y in zip(words["x"], words["y"], strict=True)}
    named = {
        (row, column) for cells in load_result(tmp_path).view.layout.marks.values() for row, column in cells.tolist()
    }
    assert cells == named
    assert page.troubles() == []


def test_a_small_graph_has_labels(browser: driver.Browser, tmp_path: Path) -> None:
    labels = ("start", "a corridor with a long name", "c", "d", "the end")
    result = api.explore("chain", 5, env_args={"n_states": 5}, budget=2000)
    write_report(replace(result, view=StateMetadata(0, labels, None)), tmp_path)
    words = "part('node-words').data.text"
    page = opened(browser, tmp_path)
    shown = page.evaluate(words)
    assert (shown[0], shown[4]) == ("0 start", "4 the end")
    assert shown[1].startswith("1 a corridor")
    assert shown[1].endswith("…")
    assert page.troubles() == []
    write_report(api.explore("chain", 30, env_args={"n_states": 30}, budget=3000), tmp_path / "long")
    assert opened(browser, tmp_path / "long").evaluate(words) == [], "there is no room for them"


def test_search_for_an_unknown_goal_shows_a_message(browser: driver.Browser, run: Path) -> None:
    page = opened(browser, run)
    search = "$('goal-search').value = {!r}; $('goal-search').dispatchEvent(new Event('input'))"
    chosen = "page.data.goal[page.goal]"
    for words in ("(1,2)", "(1, 2)", "5"):
        page.evaluate("choose(page.row[0])")
        page.evaluate(search.format(words))
        assert page.evaluate(chosen) == 5
        assert text(page, "search-answer") == ""
    page.evaluate(search.format("(1, 7)"))
    assert page.evaluate(chosen) == 5
    assert text(page, "search-answer").startswith("No goal is called “(1, 7)”. Did you mean ")
    page.evaluate("document.querySelector('#search-answer button').click()")
    assert page.evaluate(chosen) != 5
    page.evaluate(search.format("<b>the kitchen of a house</b>"))
    assert text(page, "search-answer") == "No goal is called “<b>the kitchen of a house</b>”."
    page.evaluate("location.hash = '#goal=99'")
    page.wait("$('search-answer').textContent.startsWith('No goal is called “99”.')")
    assert page.troubles() == []


def test_shown_python_code_plays_the_goal(
    browser: driver.Browser, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = browser.open((run / "report.html").as_uri() + "#goal=5")
    page.wait("document.body.dataset.ready === 'yes'")
    code = text(page, "python-code")
    names: dict[str, Any] = {}
    exec(code, names)
    result = _result(run)
    assert names["policy"].goal == names["trial"].goal == 5
    assert len(names["trial"].steps) == 100
    assert capsys.readouterr().out.startswith(str(result.certificate(5)))
    page.evaluate("navigator.clipboard.writeText = text => { window.copied = text; }; $('copy-python').click()")
    page.wait("$('copy-answer').textContent === 'Copied.'")
    assert page.evaluate("window.copied") == code
    page.evaluate("navigator.clipboard.writeText = () => { throw new Error('no'); }; $('copy-python').click()")
    page.wait("$('copy-answer').textContent.startsWith('Selected')")
    assert page.evaluate("String(getSelection()).trim()") == code.strip()
    (tmp_path / "shown.html").write_text(show(result).html)
    page = browser.open((tmp_path / "shown.html").as_uri())
    page.wait("document.body.dataset.ready === 'yes'")
    exec(text(page, "python-code"), {"result": result})
    assert page.troubles() == []


def test_parameters_have_explanations(browser: driver.Browser, run: Path) -> None:
    page = opened(browser, run, width=390)
    entry = "[...document.querySelectorAll('dt')].find(dt => dt.textContent === '{}').nextElementSibling.innerText"
    for name, words in {"radius": "L: the run looks", "epsilon": "more than the best", "delta": "probability"}.items():
        assert words in page.evaluate(entry.format(name))


def test_page_is_small(browser: driver.Browser, run: Path) -> None:
    assert (run / "report.html").stat().st_size < 700_000
    page = opened(browser, run)
    assert page.troubles() == []


def test_played_policy_fills_the_histogram(browser: driver.Browser, run: Path) -> None:
    page = opened(browser, run)
    result = _result(run)
    page.evaluate("choose(page.row[8]); $('try-clear').click(); for (let i = 0; i < 20; i++) $('try-many').click()")
    steps = page.evaluate("page.tries[page.goal].steps")
    assert len(steps) == 2000
    mean, (lower, upper) = sum(steps) / len(steps), result.certificate(8)
    assert lower - 1 < mean < upper + 1, "the observed model is close to the world by now"
    measured = re.search(r"Measured: ([\d.]+) ±", text(page, "try-text"))
    assert measured is not None
    assert abs(float(measured[1]) - mean) < 0.0051, "the browser may round a half the other way"
    assert f"certified: {lower:.2f} to {upper:.2f}" in text(page, "try-text")
    assert sum(page.evaluate("part('bars').data.top")) == 2000
    page.evaluate("$('try-one').click()")
    page.wait("page.tries[page.goal].steps.length === 2001")
    page.evaluate("$('try-clear').click()")
    assert "Nothing measured yet" in text(page, "try-text")
    page.evaluate("playMany(1)")
    assert re.match(r"Measured: \d+ steps? in one episode on the observed model; certified", text(page, "try-text"))
    assert page.troubles() == []


def test_page_opens_with_the_farthest_goal(browser: driver.Browser, run: Path) -> None:
    page = opened(browser, run)
    result = _result(run)
    farthest = max(result.goals, key=lambda g: result.certificates[g].upper)
    assert page.evaluate("page.data.goal[page.goal]") == farthest
    assert text(page, "interval-text") == interval_text(*result.certificate(farthest))
    for chart in ("band", "bars", "certified", "path"):
        columns = page.evaluate(f"Object.values(part('{chart}').data).map(column => column.length)")
        assert min(columns) > 0, f"{chart} is drawn"
    assert "over 100 episodes" in text(page, "try-text")
    assert page.troubles() == []


def test_page_of_an_unfinished_run_opens_with_the_largest_error(browser: driver.Browser, tmp_path: Path) -> None:
    result = api.explore("grid", 6, env_args={"rows": 3, "cols": 3}, budget=3000)
    write_report(result, tmp_path)
    page = opened(browser, tmp_path)
    bounded = [g for g in result.open_goals if result.certificates[g].upper < 1e300]
    assert bounded, "some open goals have an upper bound already"
    assert page.evaluate("page.data.goal[page.goal]") == max(bounded, key=lambda g: result.errors[g])
    assert page.troubles() == []


UNBOUNDED = {"method": "ucbexplore", "method_args": {"constants": "scaled=0.00001"}}


@pytest.mark.parametrize(
    ("env", "arguments"),
    [("two-room", {"budget": 1}), ("chain", {"budget": 50_000, **UNBOUNDED}), ("chain", {"budget": 300})],
)
def test_no_chart_is_empty(browser: driver.Browser, tmp_path: Path, env: str, arguments: dict[str, Any]) -> None:
    """Charts without a curve are omitted: a run of one step, a method without bounds, an early end."""
    write_report(api.explore(env, 4, **arguments), tmp_path)
    page = opened(browser, tmp_path)
    parts = {"shrink": "band", "tries": "bars", "error": "trace-error", "open": "trace-open"}
    for element, source in parts.items():
        if page.evaluate(f"$('{element}').checkVisibility()"):
            assert page.evaluate(f"Object.values(part('{source}').data)[0].length") >= 1 + (element != "tries")
    hidden = [element for element in parts if not page.evaluate(f"$('{element}').checkVisibility()")]
    if env == "two-room":
        assert hidden == ["shrink", "error", "open"]
    elif "method" in arguments:
        assert "shrink" in hidden
        assert page.evaluate("page.data.goal[page.goal]") == 4, "the farthest goal, not the start"
    else:
        assert hidden == []
    page.evaluate("$('shrink-part').hidden = false")  # as a live page does with new data
    page.wait("[...Bokeh.index].find(view => view.model.name === 'shrink').el.getBoundingClientRect().width > 200")
    assert page.troubles() == []


def test_ticks_of_the_largest_error_do_not_collide(browser: driver.Browser, run: Path) -> None:
    page = opened(browser, run)
    ticks = page.evaluate("plots.error.left[0].ticker.ticks")
    low, high = page.evaluate("[plots.error.y_range.start, plots.error.y_range.end]")
    shown = [tick for tick in ticks if low <= tick <= high]
    assert len(shown) >= 2
    assert min(b / a for a, b in pairwise(shown)) > 1.9
    assert page.troubles() == []


def test_link_selects_a_goal(browser: driver.Browser, run: Path) -> None:
    chosen = "page.data.goal[page.goal]"
    page = browser.open((run / "report.html").as_uri() + "#goal=5")
    page.wait("document.body.dataset.ready === 'yes'")
    assert page.evaluate(chosen) == 5
    assert text(page, "interval-text") == interval_text(*_result(run).certificate(5))
    page.evaluate("location.hash = '#goal=2'")
    page.wait(f"{chosen} === 2")
    page.evaluate("choose(page.row[7])")
    page.wait("location.hash === '#goal=7'")
    for unknown in ("#goal=99", "#goal=-1", "#goal=<b>", "#words"):
        page.evaluate(f"location.hash = '{unknown}'")
    assert page.evaluate(chosen) == 7, "an unknown goal changes nothing"
    assert page.troubles() == []


def test_table_can_be_searched_sorted_and_clicked(browser: driver.Browser, run: Path) -> None:
    page = opened(browser, run)
    result = _result(run)
    first = "document.querySelector('#table tbody tr td').textContent"
    page.evaluate("document.querySelectorAll('#table th button')[2].click()")
    page.evaluate("document.querySelectorAll('#table th button')[2].click()")
    assert page.evaluate("document.querySelectorAll('#table th')[2].getAttribute('aria-sort')") == "descending"
    farthest = max(result.certificates, key=lambda g: result.certificates[g].upper)
    assert page.evaluate(first).split()[0] == str(farthest)
    page.evaluate("$('search').value = '5 '; $('search').dispatchEvent(new Event('input'))")
    assert page.evaluate(first).split()[0] == "5"
    page.evaluate("document.querySelector('#table tbody button').click()")
    assert text(page, "interval-text") == interval_text(*result.certificate(5))
    assert page.troubles() == []


def test_page_works_with_the_keyboard(browser: driver.Browser, run: Path) -> None:
    page = opened(browser, run)
    page.evaluate("choose(page.row[4]); $('map-frame').focus()")
    for key, goal in (("ArrowRight", 5), ("ArrowUp", 2), ("ArrowLeft", 1), ("ArrowDown", 4)):
        page.press(key)
        assert page.evaluate("page.data.goal[page.goal]") == goal
    named = "[...document.querySelectorAll('button, input, select, [tabindex]')]"
    nameless = (
        f"{named}.filter(e => !(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length)).length"
    )
    assert page.evaluate(nameless) == 0, "everything that can be focused has a name"
    assert page.troubles() == []


@pytest.mark.parametrize("measure", ["lower", "upper", "width", "stand", "visits", "choices"])
def test_map_can_be_coloured_by_other_measures(browser: driver.Browser, run: Path, measure: str) -> None:
    page = opened(browser, run, width=390, height=800, dark=True)
    page.evaluate(f"$('measure').value = '{measure}'; $('measure').dispatchEvent(new Event('change'))")
    fills = page.evaluate("part('places').data.fill")
    assert len(fills) == 9
    assert (len(set(fills)) == 1) == (measure == "stand"), "all are finished, and differ in everything else"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390, "nothing sticks out on a phone"
    assert page.troubles() == []


def test_hostile_names_run_no_code(browser: driver.Browser, tmp_path: Path) -> None:
    result = api.explore("chain", 5, budget=2000, env_args={"n_states": 9})
    write_report(replace(result, view=StateMetadata(0, HOSTILE, None)), tmp_path)
    page = opened(browser, tmp_path)
    for state in range(3):
        click_state(page, state)
        page.wait(f"page.goal >= 0 && page.data.goal[page.goal] === {state}")
    page.evaluate("for (let g = 0; g < page.data.goal.length; g++) choose(g)")
    assert page.evaluate("window.hit === undefined && document.querySelector('img, svg[onload]') === null")
    names = page.evaluate("[...document.querySelectorAll('#table tbody td:first-child')].map(cell => cell.textContent)")
    assert set(names) == {f"{state} {HOSTILE[state]}" for state in result.certificates}
    assert page.troubles() == []


def test_the_page_works_in_a_notebook(browser: driver.Browser, run: Path, tmp_path: Path) -> None:
    result = load_result(run)
    shown = f"<!doctype html><body>{result._repr_html_()}{show(result)._repr_html_()}</body>"
    (tmp_path / "cell.html").write_text(shown)
    page = browser.open((tmp_path / "cell.html").as_uri())
    inside = "document.querySelector('iframe').contentDocument"
    page.wait(f"{inside}.body.dataset.ready === 'yes'")
    assert page.evaluate(f"{inside}.querySelectorAll('#table tbody tr').length") == len(result.goals)
    assert page.evaluate("document.querySelectorAll('body > div tbody tr').length") == len(result.goals)
    assert page.troubles() == []


def test_new_panel_is_shown(browser: driver.Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One function returns data, and one script draws it and follows the chosen goal."""

    def largest_bounds(source: ExplorationSource) -> PanelContent:
        return PanelContent({"unit": "<b>steps</b>"}, {"bounds": np.array([1.0, 2.0, 4.0])})

    script = tmp_path / "bounds.js"
    script.write_text("""{
      const text = document.createElement("p"), box = document.createElement("div");
      box.id = "bounds-plot";
      $("bounds").append(text, box);
      const plot = newPlot("bounds", "bounds-plot", 200, "number", "bound");
      addGlyph(plot, "line", newSource("bounds-line", "x", "y"), {x: "@x", y: "@y", line_color: BLUE});
      addPanel({
        show(data) { fill("bounds-line", {x: [0, 1, 2], y: [...data.bounds]}); setRange(plot, [0, 2], [0, 4]); },
        draw() { text.textContent = `goal ${page.goal}, in ${page.data.facts.unit}`; },
      });
    }""")
    panel = Panel("bounds", "Bounds", largest_bounds, (script,))
    monkeypatch.setattr(exploration_page, "PANELS", (*exploration_page.PANELS, panel))
    write_report(api.explore("chain", 5, budget=500), tmp_path / "run")
    page = opened(browser, tmp_path / "run")
    page.evaluate("choose(1)")
    assert text(page, "bounds").strip() == "goal 1, in <b>steps</b>"
    assert page.evaluate("part('bounds-line').data.y") == [1, 2, 4]
    assert page.evaluate("[...Bokeh.index].some(view => view.model.name === 'bounds')"), "the plot is drawn"
    assert page.troubles() == []


def test_unfinished_run_shows_what_is_missing(browser: driver.Browser, tmp_path: Path) -> None:
    result = api.explore("grid", 6, env_args={"rows": 3, "cols": 3}, budget=3000)
    write_report(result, tmp_path)
    page = opened(browser, tmp_path)
    assert f"Open goals: {len(result.open_goals)} of {len(result.goals)}" in text(page, "unknown")
    assert f"adagoal resume {tmp_path}" in text(page, "unknown")
    worst = max(result.errors, key=lambda g: result.errors[g])
    page.evaluate("document.querySelector('#unknown button').click()")
    assert page.evaluate("page.data.goal[page.goal]") == worst
    assert page.troubles() == []


def _result(folder: Path) -> Result:
    return load_result(folder)


def _arrays(folder: Path) -> Any:
    return _result(folder).arrays


def test_set_goal_is_reached_in_any_of_its_states(browser: driver.Browser, tmp_path: Path) -> None:
    ends = {"far <b>": lambda state: state in (3, 4), "the middle": lambda state: state == 2}
    result = api.explore("chain", 6, env_args={"n_states": 5}, goals=ends, budget=3000, out=tmp_path)
    write_report(result, tmp_path)
    page = opened(browser, tmp_path)
    for goal, name in enumerate(ends):
        page.evaluate(f"choose(page.row[{goal}])")
        assert text(page, "goal-title") == f"Goal {goal} {name}"
        assert sorted(page.evaluate("[...targets(page.goal)]")) == result.members(goal)
        assert len(page.evaluate("part('marks').data.x")) == 1 + len(result.members(goal)), "the start, and every state"
        page.evaluate("$('try-clear').click(); playMany(50)")
        assert len(page.evaluate("page.tries[page.goal].steps")) == 50
    assert page.troubles() == []


def test_a_comparison_has_curves_with_switches(browser: driver.Browser, tmp_path: Path) -> None:
    command = ["compare", "chain", "--radius", "5", "--goal-rules", "adagoal,unigoal", "--seeds", "2", "--jobs", "1"]
    assert main([*command, "--budget", "5000", "--out", str(tmp_path), "--quiet"]) == 0
    page = browser.open((tmp_path / "table.html").as_uri())
    page.wait("document.body.dataset.ready === 'yes'")
    data = json.loads((tmp_path / "table.json").read_text())
    assert page.evaluate("part('lines0').data.name") == ["certified, adagoal", "certified, unigoal"], "the medians"
    page.evaluate("$('seeds').click()")
    assert len(page.evaluate("part('lines0').data.name")) == 2 + len(data["runs"])
    page.evaluate("document.querySelectorAll('#names input')[1].click()")
    assert set(page.evaluate("part('lines0').data.name")) == {"certified, adagoal"}
    assert "3 of 6 curves" in text(page, "curve-text")
    stops = {row["goal_rule"]: row["own_stop"] for row in data["rows"]}
    page.evaluate("for (const _ of [0, 1]) document.querySelectorAll('#table0 th button')[4].click()")
    rows = page.evaluate(
        "[...document.querySelectorAll('#table0 tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    assert [row[2] for row in rows] == sorted(stops, key=lambda rule: -stops[rule]), "most steps first"
    assert [row[4] for row in rows] == [f"{stop:,.0f}" for stop in sorted(stops.values(), reverse=True)]
    assert page.troubles() == []


@pytest.mark.slow
def test_page_of_a_run_with_10000_states(browser: driver.Browser, tmp_path: Path) -> None:
    """The run stops at its budget with hundreds of open goals, and its page estimates the steps that are left."""
    env = {"rows": 100, "cols": 100}
    result = api.explore("grid", 30, epsilon=3.0, env_args=env, budget=8_000_000, out=tmp_path)
    write_report(result, tmp_path)
    size = (tmp_path / "report.html").stat().st_size
    assert size < 10_000_000
    page = opened(browser, tmp_path)
    print(page.evaluate("performance.now()"), "ms,", size, "bytes")
    # States are numbered as they are met, so the map has a cell for each state that the run has seen.
    assert page.evaluate("part('places').data.x.length") == result.n_states > 5_000
    assert re.search(r"about [\d,]+ more steps", text(page, "unknown"))
    assert f"adagoal resume {tmp_path}" in text(page, "unknown")
    n_policies = PageLimits.policy_entries // result.arrays["policy"][0].size
    assert page.evaluate("page.data.policy_row.filter(row => row >= 0).length") == n_policies < len(result.goals)
    page.evaluate("choose(page.row[202]); $('try-clear').click(); playMany(10)")
    assert text(page, "interval-text") == interval_text(*result.certificate(202))
    assert page.evaluate("page.tries[page.goal].steps.length") == 10
    page.evaluate("choose(page.data.policy_row.indexOf(-1))")
    assert "not in this file" in text(page, "path-text")
    assert f"adagoal watch {tmp_path}" in text(page, "path-text")
    assert page.troubles() == []
