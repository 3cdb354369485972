"""The certificates hold: small versions of the coverage experiment, and the large one as a slow test."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

from adagoal.cli.main import run
from adagoal.core.counts import Counts
from adagoal.core.intervals import clopper_pearson
from adagoal.engines.local import Local
from adagoal.experiments import arena, coverage, coverage_worlds, price, runner, scaling
from adagoal.mdp import solve


def test_tasks_cover_every_family_rule_and_delta_and_extend_each_other():
    cells = len(coverage_worlds.FAMILIES) * len(arena.GOAL_RULES) * len(coverage.DELTAS)
    found = coverage.tasks(cells, 0, 5)
    assert len({task[:3] for task in found}) == cells
    assert coverage.tasks(10, 0, 5) == found[:10]


@pytest.mark.parametrize("family", coverage_worlds.FAMILIES)
def test_worlds_stay_in_their_ranges(family):
    for seed in range(20):
        mdp, L, epsilon = coverage_worlds.case(family, seed)
        assert 4 <= mdp.n_states <= 12
        assert 2 <= mdp.n_actions <= 3
        assert L >= 1
        assert 0.5 <= epsilon <= 2


def test_exactly_L_is_exact():
    on_the_edge = 0
    for seed in range(20):
        mdp, L, _ = coverage_worlds.case("exactly-L", seed)
        on_the_edge += L in solve.distances(mdp)
    assert on_the_edge >= 18


@pytest.mark.parametrize("family", coverage_worlds.FAMILIES)
@pytest.mark.parametrize("rule", ["adagoal", "unigoal"])
def test_no_claim_is_ever_false(family, rule, monkeypatch):
    monkeypatch.setattr(coverage, "BUDGET", 15_000)
    monkeypatch.setattr(coverage, "EVERY_STEP_BUDGET", 200)
    record = coverage.run_task(coverage.Task(family, rule, 0.01, 3))
    assert not coverage.broken(record)


def test_the_check_is_not_blind(monkeypatch):
    """With radii that promise nothing, misses of every kind are found."""
    monkeypatch.setattr(coverage, "BUDGET", 30_000)
    records = [coverage.run_task(task) for task in coverage.tasks(0, 24, 0)]
    assert sum(map(coverage.broken, records)) >= 6
    kinds = {kind for record in records for kind in record["first_miss"]}
    assert {"lower", "upper", "tables"} <= kinds


def test_clopper_pearson():
    assert coverage.at_most(0, 100) == pytest.approx(1 - 0.05 ** (1 / 100))
    assert coverage.at_most(100, 100) == 1.0
    assert coverage.at_most(3, 50) > 3 / 50
    exact = binomtest(3, 50).proportion_ci(0.95, "exact")
    assert clopper_pearson(3, 50, 0.95) == pytest.approx(tuple(exact))
    assert clopper_pearson(0, 5, 0.9)[0] == 0.0


def test_command_resumes_and_draws(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(coverage, "BUDGET", 3_000)
    records = [coverage.run_task(task) for task in coverage.tasks(3, 1, 0)]
    monkeypatch.setattr(coverage, "run_task", None)  # nothing may be left to run
    file = tmp_path / "coverage-chunks" / "chunk-run-000000-4.json"
    file.parent.mkdir()
    file.write_text(json.dumps(records))
    assert run(["reproduce", "coverage", "--runs", "3", "--control", "1", "--out", str(tmp_path), "--json"]) == 0
    assert (tmp_path / "coverage.png").stat().st_size > 10_000
    rows = json.loads((tmp_path / "coverage.json").read_text())["rows"]
    assert {"delta": 0.1, "family": "all", "runs": 3}.items() <= rows[0].items()


def test_empirical_model():
    counts = Counts(3, 1, 0)
    for successor in (1, 1, 2, 1):
        counts.record(0, 0, successor)
    model = price.empirical(counts)
    assert solve.distances(model).tolist() == pytest.approx([0.0, 5 / 3, 7.0])


def test_scaling_fit():
    points = [scaling.Point(L=L) for L in (10, 20, 40)]
    records = [{**p._asdict(), "rule": "adagoal", "seed": 0, "steps": 5 * p.L**3} for p in points]
    found = scaling.fit(points, "L", "adagoal", records)
    assert found["exponent"] == pytest.approx(3.0)
    assert found["standard_error"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.slow
def test_two_thousand_runs(tmp_path: Path):
    """At most delta of the runs are broken, for each delta, with confidence."""
    options = coverage.COVERAGE.chosen(control=0, out=tmp_path)
    cells = coverage.COVERAGE.cells(options)
    found = runner.outcomes(coverage.COVERAGE, cells, options, Local(2, print), runner.Display(quiet=True))
    records = [record for chunk in found for record in chunk]
    for row in coverage.summary(records):
        if row["family"] == "all":
            assert row["at_most"] <= row["delta"]
    assert np.mean([record["status"] == "certified" for record in records]) > 0.5
