"""Comparison of methods: audits are exact and do not change runs, and finished runs are not repeated."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

import adagoal
from adagoal.api import explore as api
from adagoal.cli.main import run_command_line
from adagoal.comparison import method_comparison, method_scores
from adagoal.comparison.method_scores import (
    AnytimeAuditor,
    AuditCheck,
    compute_scores,
    make_error_plots,
    make_score_table,
)
from adagoal.core.environment import Policy
from adagoal.core.errors import InputError
from adagoal.core.exploration_run import ExplorationRun
from adagoal.core.run_settings import ExplorationSettings
from adagoal.envs import registry
from adagoal.exact.audit import audit_policies
from adagoal.parallel.engines import LocalEngine
from adagoal.report.figures import draw_curve_plots

GRID = ExplorationSettings("grid", {"rows": 3, "cols": 3}, radius=3.5, epsilon=0.5, budget=1_000_000)


def outcomes(cells: list[ExplorationSettings], folder: Path) -> list[Any]:
    tasks = {method_comparison.outcome_file_name(cell): (cell,) for cell in cells}
    found = method_comparison.collect_outcomes(
        *(method_comparison.measure_audited_run, tasks, folder, LocalEngine(1, print)),
        method_comparison.RunsProgress(quiet=True),
        lambda name, outcome: method_comparison.is_complete_outcome(tasks[name][0], outcome),
    )
    return list(found.values())


def measure(setting: ExplorationSettings) -> dict[str, Any]:
    return method_comparison.measure_audited_run(setting)


class FullAudit(AnytimeAuditor):
    """Compares every check with the full audit."""

    def check_output(self, steps: int, policies: Any) -> None:
        super().check_output(steps, policies)
        audit = audit_policies(self._mdp, policies, policies, 3.5, 0.5)
        assert self.checks[-1].holds == (audit.c1 and audit.c2)
        within = [row.gap for row in audit.rows if row.in_G_L]
        worst = math.inf if None in within else max(gap for gap in within if gap is not None)
        assert self.checks[-1].error == pytest.approx(max(worst, 0.0))


def test_anytime_checks_equal_the_full_audit_and_do_not_change_the_run() -> None:
    mdp = registry.make_exact_model("grid", GRID.env_args, None)
    assert mdp is not None
    auditor = FullAudit(mdp, 3.5, 0.5)
    arguments: dict[str, Any] = {"radius": 3.5, "epsilon": 0.5, "env_args": GRID.env_args}
    watched = api.explore("grid", **arguments, observe=auditor)
    assert len(auditor.checks) > 10
    assert {check.holds for check in auditor.checks} == {True, False}
    assert all(a.steps < b.steps for a, b in itertools.pairwise(auditor.checks))
    alone = api.explore("grid", **arguments)
    assert (alone.steps, alone.episodes, alone.certificates) == (watched.steps, watched.episodes, watched.certificates)


def test_missing_goal_is_an_infinite_error() -> None:
    mdp = registry.make_exact_model("grid", GRID.env_args, None)
    assert mdp is not None
    auditor = AnytimeAuditor(mdp, 3.5, 0.5)
    auditor.check_output(1, {})
    assert auditor.checks == [AuditCheck(1, math.inf, False)]


def test_audit_stop_is_the_step_after_which_every_check_holds() -> None:
    mdp = registry.make_exact_model("chain", {}, None)
    assert mdp is not None
    auditor = AnytimeAuditor(mdp, 5.0, 1.0)
    for holds, stop in ((False, None), (True, 2), (False, None), (True, 4), (True, 4)):
        auditor.checks.append(AuditCheck(len(auditor.checks) + 1, 0.0, holds))
        assert auditor.audit_stop == stop


def test_finished_runs_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = method_comparison.build_settings(
        {"grid": {"radius": 6.0, "env_args": GRID.env_args}}, ["certified"], ["adagoal"], 2, budget=500
    )
    records = outcomes(cells, tmp_path)
    assert [record["setting"]["seed"] for record in records] == [0, 1]
    assert all(record["own_stop"] is None for record in records), "500 steps are too few"
    monkeypatch.setattr(method_comparison, "run_settings", None)
    assert outcomes(cells, tmp_path) == records
    assert len({method_comparison.outcome_file_name(cell) for cell in [*cells, GRID]}) == 3


def test_seeds_start_at_the_given_number() -> None:
    cells = method_comparison.build_settings({"chain": {"radius": 5.0}}, ["certified"], ["adagoal"], 2, seed=7)
    assert [cell.seed for cell in cells] == [7, 8]


def test_damaged_run_gives_an_error_with_its_name(tmp_path: Path) -> None:
    (cell,) = method_comparison.build_settings({"chain": {"radius": 5.0}}, ["certified"], ["adagoal"], 1)
    file = tmp_path / method_comparison.outcome_file_name(cell)
    file.parent.mkdir()
    file.write_text("{}")
    with pytest.raises(InputError, match=f"{file.name}: damaged"):
        outcomes([cell], tmp_path)


def test_changed_rule_file_is_run_again(tmp_path: Path) -> None:
    file = tmp_path / "rule.py"
    file.write_text("def f(known):\n    return known.eligible.astype(float)\n")
    setting = ExplorationSettings("chain", goal_rule=f"{file}:f")
    before = method_comparison.outcome_file_name(setting)
    assert method_comparison.outcome_file_name(setting) == before
    file.write_text(file.read_text() + "# better\n")
    assert method_comparison.outcome_file_name(setting) != before


def test_run_with_a_wrong_answer_has_no_audit_stop() -> None:
    """On the fan DisCo stops without the goal, whatever the budget."""
    record = measure(ExplorationSettings("fan", method="disco", method_args={"constants": "scaled=0.01"}, radius=4.0))
    assert "| never | - | 0/1 |" in make_score_table(compute_scores([record])).to_markdown()


def test_table_and_figure_show_all_methods() -> None:
    won, lost = (
        measure(GRID),
        measure(ExplorationSettings(**{**GRID.__dict__, "goal_rule": "unigoal", "budget": 400})),
    )
    assert won["own_stop"] == won["steps"]
    assert won["audit_stop"] <= won["own_stop"]
    assert won["final"]["ok"]
    found = compute_scores([won, lost])
    text = make_score_table(found).to_markdown()
    assert "> 400 (0/1)" in text
    assert f"{won['own_stop']:,}" in text
    assert found[1].to_dict()["own_stop"] is None
    plots = make_error_plots([won, lost])
    assert [line.name for line in plots[0].lines if line.seed is None] == ["certified, adagoal", "certified, unigoal"]
    assert len(draw_curve_plots(plots).axes) == 1


def test_compare_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", "chain", "--radius", "5", "--goal-rules", "adagoal,unigoal", "--seeds", "1", "--jobs", "1"]
    assert run_command_line([*command, "--out", str(tmp_path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [row["goal_rule"] for row in shown] == ["adagoal", "unigoal"]
    assert all(row["holds"] == row["runs"] == 1 for row in shown)
    assert {"table.md", "table.json", "table.html", "figure.png", "cells"} == {file.name for file in tmp_path.iterdir()}
    assert run_command_line([*command, "--out", str(tmp_path)]) == 0
    assert "audit-stop" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gird"], "error: ENV: unknown environment"),
        (["chain", "--methods", "magic"], "methods: unknown method 'magic'"),
        (["chain", "--methods", "certified:x"], "methods: must look like key=value"),
        (["chain", "--goal-rules", "best"], "--goal-rules: unknown rule"),
        (["chain", "--radius", "-1"], "--radius"),
        (["chain", "grid", "fan", "--radius", "1,2"], "--radius: must be one number, or one for each environment (3)"),
        (["chain", "--budget", "0"], "--budget"),
        (["chain", "--seeds", "0"], "--seeds"),
        (["chain", "--delta", "1"], "--delta"),
        (["chain", "chain", "--radius", "5,6"], "ENV: chain is given 2 times"),
        (["chain", "--out", __file__], "--out"),
        (["chain", "--goals", "99"], "--goals"),
        (["chain", "--methods", "certified,bpi-ucbvi"], "--methods: bpi-ucbvi takes exactly one goal"),
        (["chain", "--methods", "certified,ucbvi:x=1"], "--methods: ucbvi has no argument 'x'"),
        (["chain", "--methods", "certified,likelihood"], "--methods: chain is not a linear mixture"),
        (["chain", "--methods", "certified,disco:constants=half"], "--constants"),
        (
            ["chain", "--constants", "paper"],
            "methods that take constants: ucbexplore, disco, valae, lae, gosprl, bpi-ucbvi",
        ),
    ],
)
def test_bad_input_gives_one_line_error(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments if "--radius" in arguments else [*arguments, "--radius", "5"]
    assert run_command_line(["compare", "--out", str(tmp_path), *given]) == 2
    assert not list(tmp_path.iterdir()), "said before anything is run"
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_rule_that_raises_is_named_by_its_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text("def rule(known):\n    return known.rank\n")
    command = ["compare", "chain", "--radius", "3", "--goal-rules", f"{tmp_path}/mine.py:rule", "--jobs", "1"]
    assert run_command_line([*command, "--out", str(tmp_path / "out"), "--quiet"]) == 2
    assert "error: --goal-rules: the rule raised AttributeError" in capsys.readouterr().err


def test_methods_for_one_goal_can_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The audit covers the requested goals only."""
    line = [
        "compare",
        "chain",
        "--env-arg",
        "n_states=3",
        "--radius",
        "4",
        "--goals",
        "1",
        "--seeds",
        "1",
        "--jobs",
        "1",
    ]
    methods = "certified,bpi-ucbvi:constants=scaled=0.01:horizon=8"
    assert (
        run_command_line(
            [*line, "--methods", methods, "--goal-rules", "adagoal", "--out", str(tmp_path), "--json", "--quiet"]
        )
        == 0
    )
    assert [(row["stopped"], row["holds"]) for row in json.loads(capsys.readouterr().out)] == [(1, 1), (1, 1)]


def test_start_as_the_only_goal_takes_no_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["compare", "chain", "--radius", "4", "--goals", "0", "--seeds", "1", "--jobs", "1", "--quiet"]
    assert run_command_line([*line, "--out", str(tmp_path), "--json"]) == 0
    assert [row["own_stop"] for row in json.loads(capsys.readouterr().out)] == [0.0, 0.0]
    assert (tmp_path / "figure.png").exists()


def test_files_of_a_killed_comparison_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure is drawn before its file is opened. The next run removes files left by a kill."""
    line = ["compare", "chain", "--radius", "4", "--epsilon", "3", "--goals", "1", "--seeds", "1", "--jobs", "1"]
    line += ["--goal-rules", "adagoal", "--quiet", "--out", str(tmp_path)]
    parts: list[Path] = []

    def drawn(self: Figure, *given: Any, **options: Any) -> None:
        parts.extend(tmp_path.glob("figure.png*.part"))

    left = [tmp_path / "table.md0123abc_.part", tmp_path / "cells" / "chain.json0123abc_.part"]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (tmp_path / "mine.part").touch()
    monkeypatch.setattr(Figure, "savefig", drawn)
    assert run_command_line(line) == 0
    assert not parts
    assert [path.exists() for path in left] == [False, False]
    assert (tmp_path / "mine.part").exists()


def test_environment_without_a_model_gives_one_line_error() -> None:
    with pytest.raises(InputError, match="the exact model of"):
        method_comparison.build_settings({"MiniGrid-Empty-5x5-v0": {"radius": 5.0}}, ["certified"], ["adagoal"], 1)


def test_audits_are_few() -> None:
    looks: list[int] = []

    class Counting(AnytimeAuditor):
        def check_output(self, steps: int, policies: dict[int, Policy]) -> None:  # type: ignore[override]
            looks.append(steps)

    mdp = registry.make_exact_model("chain", {}, None)
    assert mdp is not None
    counting = Counting(mdp, 5.0, 1.0)
    rollouts: list[int] = []

    def observe(run: ExplorationRun) -> None:
        rollouts.append(run.steps)
        counting(run)

    api.explore("chain", 5.0, budget=20_000, observe=observe)
    assert (
        len(looks) <= method_scores.CHECKS_PER_DECADE * math.log10(max(rollouts) / method_scores.FIRST_CHECK_STEPS) + 2
    )


def test_compare_from_python() -> None:
    """Table, HTML and figure have the numbers of the command line."""
    comparison = adagoal.compare("chain", ["certified", "bayes"], radius=4, goal_rules="adagoal", seeds=2, budget=2000)
    assert repr(comparison) == "<Comparison in chain: 2 methods and goal rules, 4 runs>"
    assert "| chain | certified | adagoal | 2 |" in str(comparison)
    assert "<td>bayes (no guarantee)</td>" in comparison._repr_html_()
    assert comparison.plot()._repr_png_().startswith(b"\x89PNG")
    assert [score.method for score in comparison.scores] == ["certified", "bayes"]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"env": 3}, "env: must be one or more names, got 3"),
        ({"env": "chian"}, "env: unknown environment 'chian'"),
        (
            {"env": ["chain", "grid"], "radius": [1, 2, 3]},
            "radius: must be one number, or one for each environment (2)",
        ),
        ({"env": "chain", "methods": "certifed"}, "methods: unknown method 'certifed'. Did you mean 'certified'?"),
        ({"env": "chain", "goal_rules": [len]}, "goal_rules: must be one or more names"),
        ({"env": "chain", "goals": len}, "goals: runs are in other processes"),
        ({"env": "chain", "seeds": 0}, "seeds: must be a whole number in 1..10000, got 0"),
        ({"env": "chain", "jobs": 0}, "jobs: must be a whole number in 1..1024"),
    ],
)
def test_bad_arguments_from_python(given: dict[str, Any], line: str) -> None:
    with pytest.raises(adagoal.InputError) as error:
        adagoal.compare(**{"radius": 4} | given)
    assert str(error.value).startswith(line)
