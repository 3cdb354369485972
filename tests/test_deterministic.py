"""Lemma 12: hop bounds hold however the unseen mass is distributed over the pairs."""

import numpy as np
import pytest

import adagoal
from adagoal.certified import deterministic
from adagoal.certified.explorer import CertifiedExplorer
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs.model import model_from_rows
from adagoal.exact import solver
from experiments import exact_policies, extra_models
from transition_recording import record_transition

LOG = 4.4


def random_counts(rng, states, actions, tries):
    """Return counts of a deterministic model with some untried pairs, and its map."""
    counts = TransitionCounts(states, actions, start=0)
    to = rng.integers(states, size=states * actions)
    to[: states * actions : actions] = np.minimum(np.arange(states) + 1, states - 1)  # the first action moves forward
    n = np.where(rng.random(len(to)) < 0.95, (tries * rng.random(len(to)) ** 2).astype(int) + 1, 0)
    n[:actions] = tries
    for x in np.flatnonzero(n):
        record_transition(counts, *divmod(int(x), actions), int(to[x]))
    counts.count[:, 0], counts.n[:] = n, n
    counts.seen[:] = True
    visits = n.astype(float)
    return counts, to, deterministic.read_deterministic_map(counts, visits, LOG)


def possible_models(rng, counts, to, goal, bad):
    """Yield models that fit the map: unseen mass on one, some or all pairs, to the best or the worst state."""
    pairs = np.flatnonzero(counts.n)
    for kind in range(12):
        share = np.zeros(len(to))
        chosen = rng.choice(pairs, [1, 3, len(pairs)][kind % 3], replace=False)
        share[chosen] = rng.dirichlet(np.ones(len(chosen)))
        q = -np.expm1(-LOG * share / np.maximum(counts.n, 1))
        rows = []
        for x in range(len(to)):
            row = {int(to[x]): 1.0 - q[x]} if counts.n[x] else {goal if not bad else x // counts.n_actions: 1.0}
            extra = goal if not bad else int(rng.integers(counts.n_states))
            row[extra] = row.get(extra, 0.0) + (q[x] if counts.n[x] else 0.0)
            rows.append({s: p for s, p in row.items() if p > 0})
        yield model_from_rows(rows, counts.n_actions, start=0)


def reference(counts, visits, goal):
    """Return hops_g of lemma 12, as written in docs/theory-sharper.md."""
    states, actions, best = counts.n_states, counts.n_actions, 0.0
    state, to = np.arange(states * actions) // actions, counts.successor[:, 0]
    single = (counts.support == 1) & (visits > 0)
    kappa = np.where(single, LOG / np.maximum(visits, 1), np.inf)
    for k in (1 / 2, 1 / 4, 1 / 8):
        known = np.flatnonzero(kappa <= k)
        d, r = (np.where(np.arange(states) == s, 0.0, np.inf) for s in (0, goal))
        exits = np.isin(np.arange(states), state[~(kappa <= k)])
        r_exit = np.where(exits, 1.0, np.inf)
        for _ in range(states):
            for x in known:
                d[to[x]] = min(d[to[x]], d[state[x]] + 1)
                for hops_left in (r, r_exit):
                    hops_left[state[x]] = min(hops_left[state[x]], 1 + hops_left[to[x]])
        if exits[0]:
            continue
        bounds = []
        for x in known[np.isfinite(d[state[known]])]:
            s, after = state[x], to[x]
            circle = 1 + max(d[s] - d[after], int(after != s))
            bounds.append(d[s] + 1 + (1 - kappa[x]) * r[after])
            bounds.append(d[s] + 1 + (1 - kappa[x]) * r_exit[after])
            bounds.append((1 - k) * max(d[s] + 1 - circle, 0.0) + circle * (1 / kappa[x] - 1 / 2))
        best = max(best, min(bounds))
    return best


@pytest.mark.parametrize("seed", range(30))
def test_hop_bounds_hold_in_every_model_that_fits_the_counts(seed):
    rng = np.random.default_rng(seed)
    counts, to, known = random_counts(rng, states=9, actions=3, tries=int(10 ** rng.uniform(1, 3)))
    at = np.arange(9)[:, None]
    upper, most = deterministic.hop_upper_bounds(known, at, 9)
    tight = 0
    for goal in rng.choice(np.arange(1, 9), 3, replace=False):
        lower = deterministic.hop_lower_bounds(known, at, np.array([goal]), np.zeros(1))[0]
        assert lower == pytest.approx(max(reference(counts, counts.n.astype(float), goal), 1.0))
        for other in possible_models(rng, counts, to, int(goal), bad=False):
            best = exact_policies.optimal_values(other, np.array([goal]))[0, 0]
            assert lower <= best + 1e-9
            tight += lower > 0.8 * best
        if np.isfinite(upper[goal]):
            policies = np.zeros((9, 9), np.int16)
            deterministic.write_hop_policies(known, at, np.array([goal]), most[[goal]], policies)
            for other in possible_models(rng, counts, to, int(goal), bad=True):
                assert solver.policy_values(other, policies[goal], int(goal))[0] <= upper[goal] + 1e-9
    assert tight or counts.n.max() < 100


@pytest.mark.parametrize("seed", range(20))
def test_unseen_goal_has_a_large_but_valid_lower_bound(seed):
    """Only unseen transitions lead to the goal, so a policy can only loop until one occurs."""
    rng = np.random.default_rng(seed)
    tries, states = int(rng.integers(10, 60)), int(rng.integers(2, 7))
    counts = TransitionCounts(states + 1, 2, start=0)
    to = rng.integers(states, size=2 * states + 2)
    to[: 2 * states : 2] = np.minimum(np.arange(states) + 1, states - 1)
    if seed % 2:
        to[1::2] = 0  # loops through the start
    n = rng.integers(tries // 2, 2 * tries, size=len(to))
    for x in range(2 * states):
        record_transition(counts, *divmod(x, 2), int(to[x]))
    counts.count[:, 0] = counts.n[:] = n
    counts.count[-2:], counts.n[-2:], n[-2:] = 0, 0, 0
    known = deterministic.read_deterministic_map(counts, n.astype(float), LOG)
    lower = deterministic.hop_lower_bounds(known, np.arange(states + 1)[:, None], np.array([states]), np.zeros(1))[0]
    least = np.inf
    for x in range(2 * states):  # all unseen mass on one pair
        q = -np.expm1(-LOG / n[x])
        rows = [{int(s): 1.0} for s in to]
        rows[x] = {int(to[x]): 1.0 - q, states: q}
        least = min(least, exact_policies.optimal_values(model_from_rows(rows, 2, start=0), np.array([states]))[0, 0])
    assert lower <= least + 1e-9
    assert lower >= 0.4 * least
    assert lower == pytest.approx(reference(counts, n.astype(float), states))


def test_unseen_mass_counts_once():
    """A corridor with 100 tries of every pair: the loss does not grow with the square of its length."""
    for length in (10, 20, 40):
        counts = TransitionCounts(length + 1, 1, start=0)
        for s in range(length):
            record_transition(counts, s, 0, s + 1)
        record_transition(counts, length, 0, length)
        counts.count[:, 0] = counts.n[:] = 100
        known = deterministic.read_deterministic_map(counts, np.full(length + 1, 100.0), LOG)
        lower = deterministic.hop_lower_bounds(known, np.arange(length + 1)[:, None], np.array([length]), np.zeros(1))
        assert lower[0] == pytest.approx(1 + (length - 1) * (1 - LOG / 100))


def test_deterministic_map_needs_a_known_start():
    counts = TransitionCounts(3, 2, start=0)
    record_transition(counts, 0, 0, 1)
    assert deterministic.read_deterministic_map(counts, np.array([5.0, 0, 0, 0, 0, 0]), LOG) is None
    record_transition(counts, 0, 1, 2)
    assert deterministic.read_deterministic_map(counts, np.array([5.0, 5.0, 0, 0, 0, 0]), LOG) is not None
    record_transition(counts, 0, 1, 1)  # two successors
    assert deterministic.read_deterministic_map(counts, np.array([5.0, 5.0, 0, 0, 0, 0]), LOG) is None


@pytest.mark.parametrize("seed", range(6))
def test_deterministic_models_are_certified_and_audited(seed):
    env = extra_models.random_deterministic(n_states=14, n_actions=3, seed=seed)
    result = adagoal.explore(env, radius=6, epsilon=1.0, seed=seed)
    assert result.status.finished
    assert adagoal.audit(result).ok


def test_hop_bounds_with_an_uncertain_reset():
    """An uncertain reset adds to the error, so half of epsilon is reserved for it."""
    counts, n = TransitionCounts(9, 1, start=0), 8
    estimates = CertifiedExplorer(counts, 9, L=9.0, epsilon=1.0, delta=0.1)
    errors = []
    for _ in range(39):
        counts.add_steps(np.repeat(np.arange(n + 1), 10), np.repeat(np.append(np.arange(1, n + 1), 0), 10))
        estimates.schedule.refill_completely()
        estimates.refresh_columns(np.zeros(len(estimates.D), bool))
        errors.append(estimates.E[estimates.column[n]])
    assert 1.0 < errors[0]
    assert 0.4 < errors[-1] <= 0.5
