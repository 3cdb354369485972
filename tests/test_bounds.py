"""Numerical checks of the four events and the inner problems of docs/theory.md."""

import math
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from scipy import optimize

from adagoal.certified.confidence_sets import ConfidenceSets, PairCounts, PairRadii, UnseenMassWindow, update_pair_radii
from adagoal.core import operators
from adagoal.core.transition_data import TransitionCounts
from adagoal.planning.model_arrays import EmpiricalModel


def compile_entry(helper: Any) -> Any:
    """Return a compiled function that calls the helper. Called from Python, the helper would run as Python code."""
    return numba.njit(lambda *arguments: helper(*arguments))


solve_low_dual, solve_low_dual_in_ball = map(
    compile_entry, (operators.solve_low_dual, operators.solve_low_dual_in_ball)
)
solve_up_dual, closed_form_up = map(compile_entry, (operators.solve_up_dual, operators.closed_form_up))
closed_form_low, closed_form_low_in_ball = map(
    compile_entry, (operators.closed_form_low, operators.closed_form_low_in_ball)
)

DELTA = 0.1


CAP = 10.0


def refresh(counts, recent, settled, log, branching=10**6):
    """Return the radii of one pair from its counts [K] and the counts since the last new successor."""
    K = len(counts)
    tally = PairCounts(
        *(counts[None].astype(np.int64), recent[None].astype(np.int64), np.array([np.count_nonzero(counts)], np.int32)),
        *(np.array([counts.sum()]), np.array([settled])),
    )
    found = PairRadii(*np.zeros((2, 1, K)), np.full(1, np.inf), np.full(1, np.inf), np.ones(1))
    update_pair_radii(np.array([0]), tally, np.full(3, log), np.zeros(1), branching, found)
    return tuple(array[0] for array in found)


def model(p, r_low=1e-2, r=1e-2, q=0.0):
    """Return a model of one pair with len(p) successors."""
    K = len(p)
    rows = np.arange(K, dtype=np.int32)[None]
    return EmpiricalModel(
        *(rows, p[None], p[None], np.array([K], np.int32)),
        *(
            np.array([r_low]),
            np.array([r]),
            np.array([q]),
            np.array([q == 0.0]),
            np.zeros(1),
            1.0,
            np.zeros(K, bool),
            0,
        ),
    )


def checkpoints(n):
    """Return the times at which the bounds are checked: all early ones, then geometrically fewer."""
    return sorted({int(1.25**k) for k in range(60)} & set(range(1, n + 1)) | {n})


def history(rng, p, n):
    """Return counts, counts since the last new successor, and its time, at every checkpoint of one run."""
    draws = rng.choice(len(p), n, p=p)
    order = list(dict.fromkeys(draws))
    found = {s: int(np.flatnonzero(draws == s)[0]) + 1 for s in order}
    for t in checkpoints(n):
        known = [s for s in order if found[s] <= t]
        settled = found[known[-1]]
        yield (
            t,
            known,
            np.array([np.sum(draws[:t] == s) for s in known]),
            np.array([np.sum(draws[settled:t] == s) for s in known]),
            settled,
        )


DISTRIBUTIONS = [
    np.array([0.5, 0.5]),
    np.array([0.97, 0.03]),
    np.array([0.9, 0.04, 0.03, 0.03]),
    np.full(8, 1 / 8),
    np.array([0.995, 0.004, 0.001]),
]


@pytest.mark.parametrize("p", DISTRIBUTIONS)
def test_fixed_function_coverage(p):
    rng = np.random.default_rng(1)
    misses = 0
    for _ in range(100):
        f = rng.uniform(0, CAP, len(p))
        missed = False
        for _, known, counts, recent, settled in history(rng, p, 400):
            p_hat, _, r_low, _, _ = refresh(counts, recent, settled, math.log(1 / DELTA))
            V = f[known][:, None]
            mean = p_hat @ f[known]
            variance = p_hat @ (f[known] - mean) ** 2
            low = solve_low_dual(0, 0, model(p_hat, r_low=r_low), CAP, V, variance, mean)
            closed_form = closed_form_low(mean, variance, r_low, CAP, 0.0)
            missed |= max(low, closed_form) > p @ f + 1e-9
        misses += missed
    assert misses <= 100 * DELTA


@pytest.mark.parametrize("p", DISTRIBUTIONS)
def test_kernel_coverage(p):
    rng = np.random.default_rng(2)
    misses = 0
    for _ in range(100):
        missed = False
        for t, known, counts, recent, settled in history(rng, p, 400):
            if t == settled:
                continue
            _, p_hat, _, r, _ = refresh(counts, recent, settled, math.log(1 / DELTA))
            inside = p[known] / p[known].sum()
            positive = p_hat > 0
            missed |= np.sum(p_hat[positive] * np.log(p_hat[positive] / inside[positive])) > r
            f = rng.uniform(0, CAP, len(known))
            mean, least = p_hat @ f, f.min()
            variance = p_hat @ (f - mean) ** 2
            low = solve_low_dual_in_ball(0, 0, model(p_hat, r=r), f[:, None], variance, mean, least)
            # lower bounds of lemma 4
            missed |= max(low, closed_form_low_in_ball(mean, variance, least, r, 0.0)) > inside @ f + 1e-9
        misses += missed
    assert misses <= 100 * DELTA


@pytest.mark.parametrize("p", DISTRIBUTIONS)
def test_unseen_mass_coverage(p):
    rng = np.random.default_rng(3)
    misses = 0
    for _ in range(100):
        missed = False
        for _, known, counts, recent, settled in history(rng, p, 400):
            q = refresh(counts, recent, settled, math.log(1 / DELTA))[4]
            missed |= 1 - p[known].sum() > q + 1e-12
        misses += missed
    assert misses <= 100 * DELTA


def test_quiet_windows_coverage():
    rng = np.random.default_rng(4)
    misses, runs, pairs = 0, 150, 6
    for _ in range(runs):
        rare = 10.0 ** rng.uniform(-4, -1, pairs)
        quiet, n, seen, missed = UnseenMassWindow(DELTA), np.zeros(pairs, np.int64), np.zeros((pairs, 2), bool), False
        settled = np.zeros(pairs, np.int64)
        for _ in range(40):
            for _ in range(50):
                x = rng.integers(pairs)
                side = int(rng.random() < rare[x])
                n[x] += 1
                settled[x] = settled[x] if seen[x, side] else n[x]
                seen[x, side] = True
            visits = quiet.update_visits(n, settled)
            unseen = np.where(seen[:, 0], 0, 1 - rare) + np.where(seen[:, 1], 0, rare)
            missed |= bool((unseen > quiet.unseen_mass_bounds(visits) + 1e-12).any()) or bool(
                visits @ unseen > quiet.log_inverse_delta
            )
        misses += missed
    assert misses <= runs * DELTA


def test_new_successor_ends_the_quiet_window():
    quiet, settled = UnseenMassWindow(DELTA), np.array([1, 1, 10, 1])
    n = np.array([50, 60, 70, 39])
    assert quiet.update_visits(n, settled).tolist() == [0, 0, 0, 0]  # the last pair has too few tries
    assert quiet.update_visits(n + 5, settled).tolist() == [5, 5, 5, 0]  # it enters now
    assert quiet.update_visits(n + 6, settled).tolist() == [6, 6, 6, 1]
    settled[0] = 57
    assert quiet.update_visits(n + 7, settled).tolist() == [0, 0, 0, 0]
    assert quiet.window_number == 2
    assert quiet.update_visits(n + 9, settled).tolist() == [
        0,
        2,
        2,
        2,
    ]  # later windows do not include the pair with the new successor
    assert quiet.update_visits(10 * n, settled)[0] == 0
    assert quiet.log_inverse_delta == pytest.approx(math.log(6 / DELTA))


def test_new_successor_outside_the_window_does_not_end_it():
    quiet, settled = UnseenMassWindow(DELTA), np.array([1, 10, 1])
    n = np.array([100, 100, 20])
    quiet.update_visits(n, settled)
    settled[2] = 22
    assert quiet.update_visits(n + 5, settled).tolist() == [5, 5, 0]


def test_bounds_of_quiet_windows():
    quiet = UnseenMassWindow(DELTA)
    assert quiet.unseen_mass_bounds(np.array([100.0, 0.0])) == pytest.approx(
        [1 - math.exp(-quiet.log_inverse_delta / 100), 1.0]
    )


@pytest.mark.parametrize("variance", [0.0, 1e-6, 1.0, 20.0])
@pytest.mark.parametrize("r", [1e-9, 1e-5, 1e-2, 0.5])
def test_nearest_level_loses_little(variance, r):
    """The closed form lies below max over levels t of m - r m - r t - Var / (2 t), and not far below the best t."""
    levels = CAP * operators.FINEST_LEVEL * operators.LEVEL_RATIO ** np.arange(operators.N_LEVELS - 1)
    best = max(5.0 - 5.0 * r - (r * levels + variance / (2 * levels)).min(), 0.0)
    found = closed_form_low(5.0, variance, r, CAP, 0.0)
    assert found <= best + 1e-12
    if 2 * r * (operators.FINEST_LEVEL * CAP) ** 2 <= variance <= 2 * r * (CAP / operators.FINEST_LEVEL) ** 2:
        assert found >= 5.0 - 5.0 * r - 1.03 * math.sqrt(2 * r * variance)


@pytest.mark.parametrize("seed", range(20))
def test_duals_equal_a_numerical_solver(seed):
    rng = np.random.default_rng(seed)
    K = rng.integers(2, 6)
    p = rng.dirichlet(np.ones(K))
    f = rng.uniform(0, 10, K)
    r = 10.0 ** rng.uniform(-4, -0.5)

    def worst(sign, least=0.0):
        """min over KL(p, q) <= r of sign * q f, on the simplex of the successors and one more at the extreme value."""
        ball = {"type": "ineq", "fun": lambda y: r - np.sum(p * np.log(p / y[:K]))}
        simplex = {"type": "eq", "fun": lambda y: y.sum() - 1}
        values = np.append(f, least if sign > 0 else f.max())
        start = np.append(p * 0.999, 0.001)
        bounds = [(1e-12, 1)] * (K + 1)
        solved = optimize.minimize(
            lambda y: sign * (y @ values), start, constraints=[ball, simplex], bounds=bounds, method="SLSQP",
            options={"maxiter": 500, "ftol": 1e-12},
        )  # fmt: skip
        return sign * solved.fun

    mean, V = p @ f, f[:, None]
    variance = p @ (f - mean) ** 2
    low = solve_low_dual(0, 0, model(p, r_low=r), CAP, V, variance, mean)
    up = solve_up_dual(0, 0, model(p, r=r), V, variance, mean, f.max(), f.max())
    exact_low, exact_up = worst(1), worst(-1)
    assert low <= exact_low + 1e-4
    assert low >= exact_low - 0.02 * (mean - exact_low) - 1e-4
    assert up >= exact_up - 1e-4
    assert up <= exact_up + 0.02 * (exact_up - mean) + 1e-4
    known, exact_known = (
        solve_low_dual_in_ball(0, 0, model(p, r=r), V, variance, mean, f.min()),
        worst(1, f.min()),
    )
    assert known <= exact_known + 1e-4
    closed_known = closed_form_low_in_ball(mean, variance, f.min(), r, 0.0)
    assert closed_known <= exact_known + 1e-4
    if r < 0.05:  # a search that begins at t = 0 ends early: a sweep takes the larger one of both
        assert known >= exact_known - 0.02 * (mean - exact_known) - 1e-4
        assert known >= closed_known - 1e-9
    assert max(low, 0.0) >= closed_form_low(mean, variance, r, CAP, 0.0) - 1e-9
    assert min(up, f.max()) <= closed_form_up(mean, variance, f.max(), r, 0.0, f.max()) + 1e-9


def test_worked_example_of_the_theory_page():
    """The numbers of docs/theory.md, from the code."""
    page = (Path(__file__).parents[1] / "docs/theory.md").read_text().partition("### A worked example")[2]
    rows = [row.split("|")[1:-1] for row in page.partition("## Lower bounds")[0].splitlines() if row.startswith("|")]
    printed = {row[0].strip(): row[2].strip() for row in rows if len(row) == 3}
    counts = TransitionCounts(20, 4, start=0, width=2)
    counts.add_steps(np.zeros(1000, np.int64), np.repeat([1, 2, 1, 2], [1, 1, 699, 299]).astype(np.int64))
    confidence = ConfidenceSets(counts, states=20, pairs=80, goals=20, delta=0.1, branching=20)
    alone = np.array([900.0])
    confidence.update_radii()
    cap, found = 11.0, confidence.empirical_model()
    found = found._replace(q=np.minimum(found.q, confidence.window.unseen_mass_bounds(alone)))
    V, Y = np.zeros((20, 1)), np.zeros((20, 1))
    V[1:3, 0], Y[1:3, 0] = (4, 7), (5, 8)
    mean, variance = found.p[0] @ (4, 7), found.p[0] @ (np.array([4, 7]) - 4.9) ** 2
    above, spread = found.p_split[0] @ (5, 8), found.p_split[0] @ (np.array([5, 8]) - found.p_split[0] @ (5, 8)) ** 2
    values = {
        "`r_low` (lemma 1)": found.r_low[0],
        "`r` (lemma 2)": found.r[0],
        "unseen mass (lemma 3a)": confidence.empirical_model().q[0],
        "unseen mass (lemma 3b)": confidence.window.unseen_mass_bounds(alone)[0],
        "mean of $V$ under $\\hat p$": mean,
        "Low, closed form": closed_form_low(mean, variance, found.r_low[0], cap, 0.0),
        "Low, best of the 25 levels": solve_low_dual(0, 0, found, cap, V, variance, mean),
        "mean of $Y$ under $\\hat p$": above,
        "Up, closed form": closed_form_up(above, spread, 8.0, found.r[0], found.q[0], 10.0),
        "Up, best $t$": solve_up_dual(0, 0, found, Y, spread, above, 8.0, 10.0),
    }
    assert printed.keys() - {"quantity"} >= values.keys()
    for name, value in values.items():
        assert printed[name] == f"{value:.{len(printed[name].partition('.')[2])}f}", name


def test_known_branching_removes_the_unseen_mass():
    counts = np.array([40, 60])
    assert refresh(counts, counts - 1, 2, 1.0)[4] > 0
    assert refresh(counts, counts - 1, 2, 1.0, branching=2)[4] == 0
