"""Coverage of the certificates: small versions of the coverage experiment, and the large one as a slow test."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

from adagoal import goal_rules
from adagoal.certified import confidence_sets, deterministic, gaps, probing
from adagoal.certified.explorer import CertifiedExplorer
from adagoal.core.confidence_bounds import clopper_pearson_interval
from adagoal.core.exploration_run import ExplorationRun
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs.model import model_from_rows
from adagoal.envs.simulator import ModelSimulator
from adagoal.exact import solver
from adagoal.parallel.engines import LocalEngine
from experiments import arena, coverage, coverage_worlds, price, scaling
from experiments import experiment as runner
from experiments.__main__ import run as run_experiment
from transition_recording import record_transition


def test_tasks_cover_every_family_rule_and_delta():
    cells = len(coverage_worlds.FAMILIES) * len(arena.GOAL_RULES) * len(coverage.DELTAS)
    found = coverage.tasks(cells, 0, 5)
    assert len({task[:3] for task in found}) == cells
    assert coverage.tasks(10, 0, 5) == found[:10]


@pytest.mark.parametrize("family", coverage_worlds.FAMILIES)
def test_models_stay_in_their_ranges(family):
    for seed in range(20):
        mdp, L, epsilon = coverage_worlds.case(family, seed)
        assert 4 <= mdp.n_states <= (17 if family == "surprises" else 12)
        assert 2 <= mdp.n_actions <= 3
        assert L >= 1
        assert 0.5 <= epsilon <= 2


def test_family_exactly_l_has_goals_at_distance_l():
    on_the_edge = 0
    for seed in range(20):
        mdp, L, _ = coverage_worlds.case("exactly-L", seed)
        on_the_edge += L in solver.optimal_distances(mdp)
    assert on_the_edge >= 18


@pytest.mark.parametrize("family", coverage_worlds.FAMILIES)
@pytest.mark.parametrize("rule", ["adagoal", "unigoal"])
def test_no_claim_is_false(family, rule, monkeypatch):
    monkeypatch.setattr(coverage, "BUDGET", 3_000)
    monkeypatch.setattr(coverage, "EVERY_STEP_BUDGET", 200)
    record = coverage.run_task(coverage.Task(family, rule, 0.01, 3))
    assert not coverage.broken(record)


def test_weakened_bounds_are_detected(monkeypatch):
    """The control tasks, which use invalid radii, yield false claims of every kind."""
    monkeypatch.setattr(coverage, "BUDGET", 5_000)
    records = [coverage.run_task(task) for task in coverage.tasks(0, 24, 0)]
    assert sum(map(coverage.broken, records)) >= 6
    kinds = {kind for record in records for kind in record["first_miss"]}
    assert {"lower", "upper", "tables"} <= kinds


WEAKENED = {"surprises": ("nothing", "window", "loss", "circles"), "rivals": ("nothing", "unseen mass", "rival")}


def weaken(what, monkeypatch):
    """Make a bound of lemma 3b, of lemma 12, or of lemmas 7 to 9 too narrow."""
    read, log = deterministic.read_deterministic_map, confidence_sets.UnseenMassWindow.log_inverse_delta.fget
    if what == "window":
        monkeypatch.setattr(confidence_sets.UnseenMassWindow, "log_inverse_delta", property(lambda own: log(own) / 3))
    if what == "loss":
        monkeypatch.setattr(
            deterministic,
            "read_deterministic_map",
            lambda *args: (m := read(*args)) and m._replace(loss=m.loss / 2),
        )
    if what == "circles":
        monkeypatch.setattr(
            deterministic,
            "least_value_elsewhere",
            lambda env, d, most: np.inf if d.max() < deterministic.NO_PATH else 1.0,
        )
    if what in ("unseen mass", "rival"):

        def narrower(order, goal, model, *others):
            q = model.q / 3
            if what == "rival":
                q = np.where(np.arange(len(q)) == coverage_worlds.RIVAL, q, model.q)
            return gaps.bound_suboptimality(order, goal, model._replace(q=q), *others)

        monkeypatch.setattr(probing, "bound_suboptimality", narrower)


def risk(family, seed, delta):
    """Return the probability that a claim is false: that no rare event occurs before the first false claim.

    For ``rivals`` the claims are the bounds on the sub-optimality.
    """
    mdp, L, epsilon = coverage_worlds.case(family, seed)
    pairs = range(mdp.n_states * mdp.n_actions)
    rows = [dict(zip(*(a.tolist() for a in mdp.row(*divmod(x, mdp.n_actions))), strict=True)) for x in pairs]
    rare = min(pairs, key=lambda x: min(rows[x].values()))
    likely = max(rows[rare], key=rows[rare].get)
    usual = model_from_rows([{likely: 1.0} if x == rare else rows[x] for x in pairs], mdp.n_actions)
    branching, often = (2, coverage.OFTEN) if family == "rivals" else (None, 1)
    counts = TransitionCounts(mdp.n_states, mdp.n_actions, 0)
    estimates = CertifiedExplorer(counts, mdp.n_states, L, epsilon, delta, branching=branching)
    run = ExplorationRun(ModelSimulator(usual), estimates, goal_rules.resolve_rule("adagoal"), np.random.default_rng(0))
    truth = coverage.Truth(mdp)
    coverage.sample(run, usual, truth, often)
    misses = [steps for kind, steps in truth.first_miss.items() if family == "surprises" or kind == "gap"]
    tries = min(misses, default=np.inf) / (1 + (len(pairs) - 1) * often)  # of the pair with the rare successor
    return rows[rare][likely] ** tries


@pytest.mark.parametrize(("family", "what"), [(family, what) for family in WEAKENED for what in WEAKENED[family]])
def test_extreme_claims_fail_at_most_with_their_share_of_delta(family, what, monkeypatch):
    """The first window has an eighth of delta. Narrower bounds fail more often than delta."""
    weaken(what, monkeypatch)
    risks = [risk(family, seed, delta=0.01) for seed in (3, 4, 5)]
    if what == "nothing":
        assert 0.01 / (80 if family == "surprises" else 200) < max(risks) <= 0.01 / 8
    else:
        assert max(risks) > 0.02


def test_clopper_pearson():
    assert coverage.at_most(0, 100) == pytest.approx(1 - 0.05 ** (1 / 100))
    assert coverage.at_most(100, 100) == 1.0
    assert coverage.at_most(3, 50) > 3 / 50
    exact = binomtest(3, 50).proportion_ci(0.95, "exact")
    assert clopper_pearson_interval(3, 50, 0.95) == pytest.approx(tuple(exact))
    assert clopper_pearson_interval(0, 5, 0.9)[0] == 0.0


def test_coverage_command_resumes_and_draws(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(coverage, "BUDGET", 3_000)
    records = [coverage.run_task(task) for task in coverage.tasks(3, 1, 0)]
    monkeypatch.setattr(coverage, "run_task", None)  # nothing may be left to run
    file = tmp_path / "coverage-chunks" / "chunk-run-000000-4.json"
    file.parent.mkdir()
    file.write_text(json.dumps(records))
    assert run_experiment(["coverage", "--runs", "3", "--control", "1", "--out", str(tmp_path), "--json"]) == 0
    assert (tmp_path / "coverage.png").stat().st_size > 10_000
    rows = json.loads((tmp_path / "coverage.json").read_text())["rows"]
    assert {"delta": 0.1, "family": "all", "runs": 3}.items() <= rows[0].items()


def test_empirical_model():
    counts = TransitionCounts(3, 1, 0)
    for successor in (1, 1, 2, 1):
        record_transition(counts, 0, 0, successor)
    model = price.empirical(counts)
    assert solver.optimal_distances(model).tolist() == pytest.approx([0.0, 5 / 3, 7.0])


def test_scaling_fit():
    points = [scaling.Point(L=L) for L in (10, 20, 40)]
    records = [{**p._asdict(), "rule": "adagoal", "seed": 0, "steps": 5 * p.L**3} for p in points]
    found = scaling.fit(points, "L", "adagoal", records)
    assert found["exponent"] == pytest.approx(3.0)
    assert found["standard_error"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.slow
def test_two_thousand_runs(tmp_path: Path):
    """For each delta, a confidence interval shows that at most delta of the runs have a false claim."""
    options = coverage.COVERAGE.fill_in_defaults(control=0, out=tmp_path)
    cells = coverage.COVERAGE.list_runs(options)
    found = runner.collect_outcomes(
        coverage.COVERAGE, cells, options, LocalEngine(2, print), runner.RunsProgress(quiet=True)
    )
    records = [record for chunk in found for record in chunk]
    for row in coverage.summary(records):
        if row["family"] == "all":
            assert row["at_most"] <= row["delta"]
    assert np.mean([record["status"] == "certified" for record in records]) > 0.5
