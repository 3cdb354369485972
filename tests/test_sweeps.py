"""Compiled sweeps and the bound from action gaps equal reference implementations of docs/theory.md."""

import math

import numpy as np
import pytest
from scipy import optimize

from adagoal.certified import gaps, sweeps
from adagoal.certified.probing import plan_probing_actions
from adagoal.planning.model_arrays import EmpiricalModel, GoalBlock

S, A, CAP = 9, 2, 12.0
NO_DATA = 1e3
"""The radius r of a pair without a transition since its last new successor."""
GOALS = (3, -1, 5)
"""The goals of the block; -1 is the column of unseen goals."""
LEVELS = np.append(0.0, 0.01 * CAP * 1.5 ** np.arange(24))
ORDER = np.array([4, 0, 7, 3, 1, 2, 5, 6])
"""State 8 was never seen."""


def random_model(seed, r=0.1, sizes=(0, 1, 1, 2, 3, 4, 5, 7)):
    """Return a model with zero to seven successors per pair and different radii; state 7 is terminal."""
    rng = np.random.default_rng(seed)
    successor, p, p_split = np.zeros((S * A, 7), np.int32), *np.zeros((2, S * A, 7))
    support = rng.choice(sizes, S * A).astype(np.int32)
    support[8 * A :] = 0
    for x, o in enumerate(support):
        successor[x, :o] = rng.choice(8, o, replace=False)
        counts = rng.integers(1, 30, (2, o)) * [np.ones(o), rng.random(o) < 0.8]
        counts[1] += 1e-9 * (counts[1].sum() == 0)
        p[x, :o], p_split[x, :o] = (c / c.sum() for c in counts) if o else (0, 0)
    r_low, r, q = rng.uniform(0.01 * r, r, (3, S * A))
    r[3], q[3] = NO_DATA, 1.0
    window = rng.integers(0, 3, S * A) * 50.0
    terminal = np.arange(S) == 7
    return EmpiricalModel(successor, p, p_split, support, r_low, r, q, np.zeros(S * A, bool), window, 3.0, terminal, 1)


def known_model(seed):
    """Return the same model, where most pairs with several successors use the ball of lemma 2."""
    model = random_model(seed)
    complete = (np.random.default_rng([seed, 2]).random(S * A) < 0.7) & (model.support > 1) & (model.r < NO_DATA)
    # Half of the balls are of pairs whose successors are all known, half of states whose number is not declared.
    return model._replace(uses_ball=complete, q=np.where(complete & (seed % 2 == 0), 0.0, model.q))


def moments(model, kind, x, f):
    """Return the values of f on the observed successors of a pair, their probabilities, mean and variance."""
    o = model.support[x]
    values, p = f[model.successor[x, :o]], getattr(model, kind)[x, :o]
    mean = p @ values
    return values, p, mean, p @ (values - mean) ** 2


def low(model, x, f, exact):
    """Return Low_x(f) (lemmas 1, 3 and 4)."""
    if model.support[x] == 0:
        return 0.0
    if model.uses_ball[x]:
        values, p, mean, variance = moments(model, "p_split", x, f)
        r, least = model.r[x], values.min()
        found = max(mean - math.sqrt(2 * r * variance) - r * (mean - least), least)
        return (1 - model.q[x]) * (max(found, least + best_t(p, values - least, r)) if exact else found)
    values, p, mean, variance = moments(model, "p", x, f)
    r, near = model.r_low[x], (math.sqrt(1.5) + 1 / math.sqrt(1.5)) / 2
    width = max(math.sqrt(2 * r * max(variance, 2 * r * (0.01 * CAP) ** 2)), 0.01 * variance / CAP)
    bounds = [0.0, mean - r * mean - near * width]
    if exact and not (len(values) == 1 and model.q[x] < 1):  # such pairs use the next bound
        with np.errstate(divide="ignore"):
            bounds += [math.exp(p @ np.log(values + t) - r) - t for t in LEVELS]
    if len(values) == 1:
        bounds.append((1 - model.q[x]) * values[0])
    return max(bounds)


def best_t(p, w, r):
    """Return max over t of e^{-r} exp(sum p ln(w + t)) - t (lemma 4)."""

    def dual(log_t):
        t = math.exp(log_t)
        return t - math.exp(p @ np.log(w + t) - r)

    return -float(optimize.minimize_scalar(dual, bounds=(-20, 12), method="bounded", options={"xatol": 1e-9}).fun)


def up(model, x, f, top, exact):
    """Return Up_x(f) (lemma 4) by the closed form, or by the best t of the dual."""
    if model.support[x] == 0:
        return math.inf
    values, p, mean, variance = moments(model, "p_split", x, f)
    r, q, most = model.r[x], model.q[x], values.max()
    inside = min(mean + math.sqrt(2 * r * variance) + r * (most - mean), most)
    if exact:
        inside = min(inside, most - best_t(p, most - values, r))
    return (1 - q) * inside + q * top


def lower_reference(model, V, exact):
    """Apply one sweep of lemma 5, in place."""
    V, policy = V.copy(), np.full(V.shape, -1)
    for s in ORDER:
        for b, goal in enumerate(GOALS):
            Q = [] if model.terminal[s] else [1 + low(model, s * A + a, V[:, b], exact) for a in range(A)]
            Q.append(min(CAP, 1 + V[model.start, b]))
            if s != goal:
                policy[s, b] = A if len(Q) == 1 or min(Q) == Q[-1] else int(np.argmin(Q))
                V[s, b] = max(V[s, b], min(Q))
    return V, policy


def upper_reference(model, Y, best, exact):
    """Apply one sweep of lemma 6, in place; try the dual for the best action of the closed form."""
    Y, best = Y.copy(), best.copy()
    top = np.minimum(CAP, 1 + Y[model.start])
    for s in ORDER:
        best[s, Y[s] > top] = A
        Y[s] = np.minimum(Y[s], top)
    for s in ORDER:
        for b, goal in enumerate(GOALS):
            if s == goal or model.terminal[s]:
                continue
            Q = [1 + up(model, s * A + a, Y[:, b], top[b], False) for a in range(A)]
            a = int(np.argmin(Q))
            value = 1 + up(model, s * A + a, Y[:, b], top[b], exact)
            if value < Y[s, b]:
                Y[s, b], best[s, b] = value, a
    return Y, best


def start(seed):
    """Return bounds in the middle of a run, and the columns of the goals."""
    rng = np.random.default_rng([seed, 1])
    V, Y = rng.uniform(0, 5, (S, 3)), rng.uniform(5, 11, (S, 3))
    column = np.full((S, 1), -1)
    for b, goal in enumerate(GOALS):
        if goal >= 0:
            V[goal, b] = Y[goal, b] = 0.0
            column[goal, 0] = b
    V[8], Y[8] = 0.0, CAP
    return V, Y, column


def block(column, exact):
    return GoalBlock(ORDER, column, CAP, exact, sweeps=1, tolerance=0.0)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_lower_sweep(seed, exact):
    model, (V, _, column) = random_model(seed), start(seed)
    policy = np.full(V.shape, -1, np.int16)
    for _ in range(3):
        reference, actions = lower_reference(model, V, exact)
        sweeps.improve_lower_bounds(model, block(column, exact), V, policy)
        np.testing.assert_allclose(V, reference, atol=1e-12)
        inside = actions >= 0
        np.testing.assert_array_equal(policy[inside], actions[inside])


@pytest.mark.parametrize("seed", range(20))
def test_lower_sweep_in_balls(seed):
    model, (V, _, column) = known_model(seed), start(seed)
    policy = np.full(V.shape, -1, np.int16)
    least, most = (lower_reference(model, V, exact)[0] for exact in (False, True))
    searched = V.copy()
    sweeps.improve_lower_bounds(model, block(column, True), searched, policy)
    sweeps.improve_lower_bounds(model, block(column, False), V, policy)
    np.testing.assert_allclose(V, least, atol=1e-12)
    assert (searched >= least - 1e-9).all()
    assert (searched <= most + 1e-6).all()


@pytest.mark.parametrize("seed", range(20))
def test_upper_sweep(seed):
    model, (_, Y, column) = random_model(seed), start(seed)
    best = np.full(Y.shape, A, np.int16)
    for _ in range(3):
        reference, actions = upper_reference(model, Y, best, exact=False)
        sweeps.improve_upper_bounds(model, block(column, False), Y, best)
        np.testing.assert_allclose(Y, reference, atol=1e-12)
        np.testing.assert_array_equal(best, actions)


@pytest.mark.parametrize("seed", range(20))
def test_exact_upper_sweep(seed):
    """A few Newton steps give a t between the closed form and the optimum."""
    model, (_, Y, column) = random_model(seed), start(seed)
    best = np.full(Y.shape, A, np.int16)
    least, most = (upper_reference(model, Y, best, exact)[0] for exact in (True, False))
    sweeps.improve_upper_bounds(model, block(column, True), Y, best)
    assert (least - 1e-6 <= Y).all()
    assert (most + 1e-9 >= Y).all()
    if (most - least).max() > 0.1:
        assert (most - Y).max() > 0.1 * (most - least).max()


@pytest.mark.parametrize("seed", range(5))
def test_bounds_of_a_goal_do_not_depend_on_other_goals(seed):
    """The numbers are equal alone and in a block larger than sixteen lanes."""
    model, (V, Y, column) = known_model(seed), start(seed)
    copies = np.arange(3 * 7) % 3
    wide = np.where(column >= 0, column + 3 * np.arange(7), -1)
    for sweep, values in ((sweeps.improve_lower_bounds, V), (sweeps.improve_upper_bounds, Y)):
        policy = np.full(values.shape, A, np.int16)
        # Same memory order as in runs; another one would be compiled for this test only.
        widened = [np.ascontiguousarray(x[:, copies]) for x in (values, policy)]
        many, actions = sweep(model, block(wide, False), *widened)
        few, action = sweep(model, block(column, False), values, policy)
        np.testing.assert_array_equal(many[ORDER], few[ORDER][:, copies])
        np.testing.assert_array_equal(actions[ORDER], action[ORDER][:, copies])


def gap_reference(goal, model, V, Y, policy, all_seen):
    """Return (gap, value, largest value) of lemmas 7 to 9, with dense rows over the seen states, zero at the goal."""
    states, first = list(ORDER), list(ORDER).index(model.start)
    place = {s: i for i, s in enumerate(states)}
    N, top = len(states), max(1 + Y[model.start], Y[ORDER].max())
    resets = [bool(policy[s] == A or model.terminal[s]) for s in states]
    off = [i for i, s in enumerate(states) if s != goal]

    def row(x):
        p = np.zeros(N)
        for k in range(model.support[x]):
            p[place[model.successor[x, k]]] += model.p_split[x, k]
        return p, [place[s] for s in model.successor[x, : model.support[x]]]

    def width(x, f):
        p, seen = row(x)
        sd = math.sqrt(max(p @ (f - p @ f) ** 2, 0.0))
        return math.sqrt(2 * model.r[x]) * sd + model.r[x] * np.ptp(f[seen])

    P = np.stack([np.eye(N)[first] if resets[i] else row(s * A + policy[s])[0] for i, s in enumerate(states)])
    W = np.zeros((N, N))
    W[np.ix_(off, off)] = np.linalg.inv(np.eye(len(off)) - P[np.ix_(off, off)])
    v = W.sum(axis=1)
    pairs = {i: states[i] * A + policy[states[i]] for i in off if not resets[i]}

    b, K, beta = np.zeros(N), np.zeros((N, N)), np.zeros(N)
    for i, x in pairs.items():
        b[i], K[i] = width(x, v), [width(x, W[:, y]) for y in range(N)]
        beta[i] = min(math.sqrt(2 * model.r[x]) + model.r[x] + model.q[x], 1.0) * top
    unseen = np.zeros(N)
    unseen[list(pairs)] = [model.q[x] for x in pairs.values()]
    for _ in range(gaps.MAX_GAP_ITERATIONS):
        before, beta = beta, np.minimum(beta, b + unseen * top + K @ beta)
        if np.abs(before - beta).max() < 1e-6:
            break

    inside = {i: model.window_visits[x] for i, x in pairs.items() if model.window_visits[x] > 0}

    def error(weights):
        shared = max((weights[i] / m for i, m in inside.items()), default=0.0) * model.window_log
        mass = min(weights @ unseen, shared + sum(weights[i] * unseen[i] for i in pairs if i not in inside))
        return weights @ (b + K @ beta) + top * mass

    values = [min(v[i] + error(W[i]), Y[states[i]]) for i in range(N)]

    def gain(i, a):
        s = states[i]
        x = s * A + a
        if a == A:
            near = v[i] - 1 - v[first] + error(np.abs(W[i] - W[first]))
            return 0.0 if policy[s] == A else min(near, Y[s] - 1 - V[model.start])
        if a == policy[s]:
            return 0.0
        if model.support[x] == 0:
            return Y[s] - 1
        p = row(x)[0]
        noise = width(x, v) + np.array([width(x, W[:, y]) for y in range(N)]) @ beta
        noise += model.q[x] * min(top, p @ v + (p @ W) @ beta)
        return min(Y[s] - 1, v[i] - 1 - p @ v + error(np.abs(p @ W - W[i])) + noise)

    gains = {i: [gain(i, a) for a in range(A + 1)] for i in off}
    Z = np.array([0.0 if s == goal else max(Y[s] - V[s], 0.0) for s in states])
    for sweep in range(gaps.MAX_GAP_ITERATIONS):
        ceiling, change = max(0.0 if all_seen else top - 1, Z.max()), 0.0
        for i in off if sweep % 2 == 0 else off[::-1]:
            s, best = states[i], gains[i][A] + Z[first]
            for a in range(0 if model.terminal[s] else A):
                x, more = s * A + a, 0.0
                if model.support[x]:
                    p, seen = row(x)
                    m, r = p @ Z, model.r[x]
                    most = Z[seen].max()
                    spread = math.sqrt(2 * r * (p @ (Z - m) ** 2)) + r * (most - m)
                    more = (1 - model.q[x]) * min(m + spread, most) + (a == policy[s]) * model.q[x] * ceiling
                best = max(best, gains[i][a] + more)
            change = max(change, Z[i] - max(best, 0.0))
            Z[i] = min(Z[i], max(best, 0.0))
        if change < 1e-4:
            break
    return Z[first], values[first], max(*values, 1 + values[first])


def greedy(model, goal):
    """Return the best policy for the empirical kernel on the tried pairs."""
    V = np.zeros(S)
    for _ in range(200):
        Q = np.full((S, A + 1), math.inf)
        Q[:, A] = 1 + V[model.start]
        for x in np.flatnonzero((model.support > 0) & ~np.repeat(model.terminal, A)):
            Q[divmod(x, A)] = 1 + moments(model, "p_split", x, V)[2]
        V = np.where(np.arange(S) == goal, 0.0, Q.min(axis=1))
    return Q.argmin(axis=1).astype(np.int16)


def test_suboptimality():
    """The policy is proper under the empirical kernel. The bound is often sharper than its start Y - V."""
    proper, sharper, goal = 0, 0, 3
    for seed in range(80):
        clear = seed % 2 == 0  # every pair was tried, and the policy is the best for the empirical kernel
        model = random_model(seed, 10.0 ** -(1 + seed % 5), (1, 2, 3, 5) if clear else (0, 1, 2, 3, 5))
        rng = np.random.default_rng([seed, 2])
        V, Y = (bounds[:, 0].copy() for bounds in start(seed)[:2])
        for x in rng.permutation(S * A)[:S]:  # about half of the pairs have a path to the goal
            if model.support[x] and goal not in model.successor[x, : model.support[x]]:
                model.successor[x, 0] = goal
        policy = greedy(model, goal)
        if clear:
            model.r[3], model.q[3] = model.r[4], model.q[4]
        else:
            policy[rng.integers(8)] = A
        probe = np.full(S, -1, np.int16)
        all_seen = seed % 3 == 0
        *found, chain = gaps.bound_suboptimality(ORDER, np.arange(S) == goal, model, V, Y, policy, all_seen, probe)
        if math.isfinite(found[0]):
            reference = gap_reference(goal, model, V, Y, policy, all_seen)
            np.testing.assert_allclose(found, reference, rtol=1e-7, atol=1e-9)
            assert ((probe[ORDER] >= 0) | (ORDER == goal)).all()
            plan_probing_actions(ORDER, chain, model, probe, 4.0, 30)
            assert ((probe[ORDER] >= -1) & (probe[ORDER] <= A)).all()
            proper += 1
            sharper += found[0] < 0.9 * (Y[1] - V[1])
        else:
            with pytest.raises((np.linalg.LinAlgError, AssertionError)):
                assert gap_reference(goal, model, V, Y, policy, all_seen)[1] < gaps.MAX_VALUE_RATIO * CAP
    assert proper > 50
    assert sharper > 20
