"""Mutants of the lemmas: each is one small change of a copy of the package that a named test must catch.

If a mutant passes, no test depends on that term of the lemma. The copy keeps Numba's cache, so only the
changed file and the files that import it are compiled again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import adagoal

REPOSITORY = Path(__file__).parents[1]
PACKAGE = Path(adagoal.__file__).parent
RUN = """
import importlib.util, sys, pytest
# not imported here: pytest warns if a plug-in was imported before it, and warnings are errors
origin = importlib.util.find_spec("adagoal").origin
assert origin.startswith(sys.argv[1]), "the tests would import another package than the copy"
sys.exit(pytest.main(sys.argv[2:]))
"""


class Mutant(NamedTuple):
    """A change of one file, and the test that must fail with it."""

    statement: str
    file: str
    """Relative to the package."""
    text: str
    """Must occur exactly once."""
    instead: str
    test: str


SETS, OPERATORS, SWEEPS = "certified/confidence_sets.py", "core/operators.py", "certified/sweeps.py"
GAPS, HOPS = "certified/gaps.py", "certified/deterministic.py"
RESET = "certified/uncertain_reset.py"
EXAMPLE = "test_bounds.py::test_worked_example_of_the_theory_page"
SHARES = "test_certified.py::test_the_events_share_delta"
DISCOVERED = "test_discovery.py::test_the_shares_of_all_pairs_sum_to_delta"
FIXED = "test_discovery.py::test_goals_fixed_before_the_run_use_lemma_1"
FOUND = "test_discovery.py::test_discovered_goals_use_no_fixed_function_bound"
MOMENT = "test_local_backups.py::test_backup_has_the_radii_of_a_plan_at_this_moment"
ROOM = "test_discovery.py::test_finite_model_is_certified_with_exact_or_larger_max_states"
IN_BALLS = "test_sweeps.py::test_lower_sweep_in_balls"
QUIET = "test_bounds.py::test_new_successor_ends_the_quiet_window"
SWEEP_DOWN, SWEEP_UP = "test_sweeps.py::test_lower_sweep", "test_sweeps.py::test_upper_sweep"
GAP_TWIN = "test_sweeps.py::test_suboptimality"
GAP_EDGE = "test_certified.py::test_gap_is_nearly_attained_at_the_edge_of_the_confidence_set"
RIVAL_EDGE = "test_coverage.py::test_extreme_claims_fail_at_most_with_their_share_of_delta[rivals-nothing]"
RESET_BOUNDS, RESET_ERROR = (
    "test_uncertain_reset.py::test_lemma_10_on_exact_values",
    "test_uncertain_reset.py::test_error_grows_as_in_lemma_10c",
)
MUTANTS = (
    Mutant("shares: more than delta", SETS, "(0.35, 0.35, 0.05, 0.25)", "(0.5, 0.35, 0.05, 0.25)", SHARES),
    Mutant("shares: lemma 1 without its union over states", SETS, "(states * goals,", "(goals,", SHARES),
    Mutant("lemma 1: levels for free", SETS, "(union_log + math.log(N_LEVELS)) / n", "union_log / n", EXAMPLE),
    Mutant("lemma 2: no price for restarts", SETS, "union_log + restart + regret", "union_log + regret", EXAMPLE),
    Mutant("lemma 2: the prior is forgotten", SETS, " + math.lgamma(count - c + 0.5)", "", EXAMPLE),
    Mutant("lemma 3a: no price for restarts", SETS, "union_log + math.log(o * (o + 1.0))", "union_log", EXAMPLE),
    Mutant(
        *("lemma 3b: every window has all of its share", SETS, "self.window_number * (self.window_number + 1)"),
        *("1.0", QUIET),
    ),
    Mutant("lemma 3b: visits before a pair entered", SETS, "max(n[x] - starts[x], 0)", "n[x]", QUIET),
    Mutant(
        "lemma 14: no price for later states", SETS, "later * (later + 1.0) / DISCOVERY_OFFSET", "later", DISCOVERED
    ),
    Mutant("lemma 14: actions for free", SETS, "np.log(counts.n_actions * later", "np.log(later", DISCOVERED),
    Mutant(
        "lemma 14: goals that the data chose", SETS, "uses_lemma_1 and not has_lemma_1", "uses_lemma_1 and False", FOUND
    ),
    Mutant("lemma 14: goals for free", SETS, "(goals / counts.n_actions, 1, 1)", "(1, 1, 1)", FIXED),
    Mutant("lemma 14: lemma 1 for free", SETS, "radius(n, logs[0] + pair_logs[x])", "radius(n, logs[0])", FIXED),
    Mutant("lemma 14: no unseen mass", OPERATORS, "return (1.0 - q) * max(mean - ", "return max(mean - ", IN_BALLS),
    Mutant("lemma 14: backups without o(o + 1)", SETS, "float(log_3a) + math.log(2.0) if", "float(log_3a) if", MOMENT),
    Mutant(
        "lemma 14: backups of later states",
        SETS,
        "log + self._pair_logs[:: c",
        "log + 0 * self._pair_logs[:: c",
        MOMENT,
    ),
    Mutant("lemma 1: backups without levels", SETS, "float(log_1) + math.log(N_LEVELS)", "float(log_1)", MOMENT),
    Mutant("lemma 14: no spare row", "envs/gym_adapter.py", "0, max_states + 1", "0, max_states", ROOM),
    Mutant("lemma 4, Low: between two levels", OPERATORS, "2.0 * r * NEAREST_LEVEL_FACTOR**2 *", "2.0 * r *", EXAMPLE),
    Mutant("lemma 4, Low: no loss of r m", OPERATORS, "mean * (1.0 - r) - width", "mean - width", EXAMPLE),
    Mutant("lemma 4, Up: no r (M - m)", OPERATORS, " + r * (most - mean), most)", ", most)", SWEEP_UP),
    Mutant("lemma 4, Up: unseen like seen", OPERATORS, ", most) + q * top", ", most) + q * most", SWEEP_UP),
    Mutant(
        *("lemma 5: the reset is forgotten", SWEEPS, "1.0 + load_lanes(V, model.start, first)"),
        *("broadcast_lanes(cap)", SWEEP_DOWN),
    ),
    Mutant(
        *("lemma 6: reset not recorded", SWEEPS, "select_where_less(most, own, A, "),
        *("select_where_less(own, own, A, ", SWEEP_UP),
    ),
    Mutant("lemma 7: no errors of errors", GAPS, "beta, np.maximum(b + K @ beta, 0.0)", "beta, b", GAP_TWIN),
    Mutant(
        *("lemma 7: no spread of the value", GAPS, "b[i] = ball_width(r, sd[N], span[N])"),
        *("b[i] = ball_width(r, 0.0, span[N])", GAP_EDGE),
    ),
    Mutant("corollary of lemma 7: no mass in the window", GAPS, "alone + shared * window_log", "alone", GAP_TWIN),
    Mutant(
        "lemma 8: no spread of the rival", GAPS, "ball_width(r, spread, reach)", "ball_width(r, 0.0, reach)", GAP_EDGE
    ),
    Mutant("lemma 8: no unseen mass of the rival", GAPS, " + q * min(size, top)", "", RIVAL_EDGE),
    Mutant(
        *("lemma 9: gains do not add up", GAPS, "closed_form_up(m, variance, most, model.r[x], model.q[x], "),
        *("closed_form_up(0.0, 0.0, 0.0, model.r[x], model.q[x], ", RIVAL_EDGE),
    ),
    Mutant("lemma 9: no ceiling", GAPS, "ceiling if policy[s] == a else 0.0", "0.0", GAP_TWIN),
    Mutant("lemma 10a: D as it is", RESET, "1.0 / (1.0 / D[j] + q)", "D[j]", RESET_BOUNDS),
    Mutant("lemma 10b: upper as it is", RESET, "upper[j] / (1.0 - q * (C - upper[j]))", "upper[j]", RESET_BOUNDS),
    Mutant("lemma 10c: only U", RESET, "(C - D[j] + upper[j])", "upper[j]", RESET_ERROR),
    Mutant(
        *("lemma 12a: 1/kappa", HOPS, "(1.0 / max(graph.loss[x], 1e-12) - 0.5)", "(1.0 / max(graph.loss[x], 1e-12))"),
        "test_deterministic.py::test_unseen_goal_has_a_large_but_valid_lower_bound",
    ),
    Mutant(
        *("lemma 12a: nothing is lost", HOPS, "(1.0 - graph.loss[x]) * (r[", "(r["),
        "test_deterministic.py::test_unseen_mass_counts_once",
    ),
    Mutant(
        *("lemma 12b: a second try is free", HOPS, "math.expm1(most) * (near[j] + 1.0)", "0.0"),
        "test_deterministic.py::test_hop_bounds_hold_in_every_model_that_fits_the_counts",
    ),
    Mutant(
        *("lemma 13a: V_h(g)", SWEEPS, "back = Y[below, g]", "back = V[below, g]"),
        "test_triangle.py::test_bounds_by_a_neighbour_hold_with_inexact_bounds",
    ),
    Mutant(
        *("lemma 13b: V_g(h)", SWEEPS, "onward = Y[j, goal_state[above]]", "onward = V[j, goal_state[above]]"),
        "test_triangle.py::test_bounds_by_a_neighbour_equal_exact_values",
    ),
)


def run(folder: Path, tests: list[str]) -> subprocess.CompletedProcess[str]:
    """Run tests with the copy of the package in this folder."""
    command = [sys.executable, "-c", RUN, str(folder), "-x", "-p", "no:cacheprovider"]
    nodes = [f"tests/{test}" for test in tests]
    environment = os.environ | {"PYTHONPATH": str(folder), "COLUMNS": "400"}  # wide enough for whole messages
    return subprocess.run([*command, *nodes], cwd=REPOSITORY, env=environment, capture_output=True, text=True)


def copied(folder: Path) -> Path:
    """Copy the package with its cache of compiled code."""
    shutil.copytree(PACKAGE, folder / "adagoal")
    return folder


@pytest.mark.slow
def test_unchanged_package_passes(tmp_path):
    done = run(copied(tmp_path), sorted({mutant.test for mutant in MUTANTS}))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.statement for mutant in MUTANTS])
def test_a_mutant_is_caught(mutant, tmp_path):
    file = copied(tmp_path) / "adagoal" / mutant.file
    before, *after = file.read_text().split(mutant.text)
    assert len(after) == 1, f"{mutant.file} holds this text {len(after)} times: {mutant.text}"
    file.write_text(before + mutant.instead + after[0])
    done = run(tmp_path, [mutant.test])
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert done.returncode == 1, done.stdout + done.stderr
    # a mutant that does not compile fails every test, and says nothing about this one
    assert any(word in line.casefold() for line in failed for word in ("assert", "inputerror")), failed
