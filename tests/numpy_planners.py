"""Reference implementations of the planners, in NumPy on whole arrays without loops over states, pairs or goals."""

import numpy as np
from scipy import sparse

from adagoal.core.operators import FINEST_LEVEL, NEAREST_LEVEL_FACTOR


def moments(model, p, F):
    """Return mean, variance and maximum [X, B] of F [S, B] over the successors of every pair."""
    inside = (np.arange(p.shape[1]) < model.support[:, None])[:, :, None]
    values, weight = F[model.successor], np.where(inside, p[:, :, None], 0.0)
    mean = (weight * values).sum(axis=1)
    variance = (weight * (values - mean[:, None]) ** 2).sum(axis=1)
    return mean, variance, np.where(inside, values, 0.0).max(axis=1)


def by_state(model, Q, reset):
    """Return [S, A + 1, B]: the values Q [X, B] of the actions (none in terminal states) and of the reset [B]."""
    S = len(model.terminal)
    Q = np.where(model.terminal[:, None, None], np.inf, Q.reshape(S, -1, Q.shape[1]))
    return np.concatenate([Q, np.broadcast_to(reset, (S, 1, Q.shape[2]))], axis=1)


def lower(model, block, V, policy, low=None):
    """Lemma 5 for all states at once, with the closed form of lemma 4 or another ``low`` of means."""
    tried, cap = model.support[:, None] > 0, block.cap
    r = np.where(tried, model.r_low[:, None], 0.0)
    sure = np.where(model.support == 1, 1.0 - model.q, 0.0)[:, None]
    swept = np.isin(np.arange(len(V)), block.order)[:, None]
    away = (block.column[:, :, None] != np.arange(V.shape[1])).all(axis=1)
    for _ in range(block.sweeps):
        mean, variance, _ = moments(model, model.p, V)
        width = np.maximum(
            np.sqrt(2 * r * np.maximum(variance, 2 * r * (FINEST_LEVEL * cap) ** 2)), variance * FINEST_LEVEL / cap
        )
        below = mean * (1.0 - r) - NEAREST_LEVEL_FACTOR * width if low is None else low(mean)
        Q = np.where(tried, 1.0 + np.maximum(below, sure * mean), 1.0)
        Q = by_state(model, Q, np.minimum(cap, 1.0 + V[model.start]))
        policy = np.where(swept, Q.argmin(axis=1), policy).astype(np.int16)
        rise = np.where(swept & away, np.maximum(Q.min(axis=1) - V, 0.0), 0.0)
        V = V + rise
        if rise.max() < block.tolerance:
            break
    return V, policy


def upper(model, block, Y, policy, up=None):
    """Lemma 6 for all states at once, with the closed form of lemma 4 or another ``up`` of means and largest values."""
    tried = model.support[:, None] > 0
    r, q = np.where(tried, model.r[:, None], 0.0), model.q[:, None]
    swept = np.isin(np.arange(len(Y)), block.order)[:, None]
    away = (block.column[:, :, None] != np.arange(Y.shape[1])).all(axis=1)
    for _ in range(block.sweeps):
        top = np.minimum(block.cap, 1.0 + Y[model.start])
        mean, variance, most = moments(model, model.p_split, Y)
        above = mean + np.sqrt(2 * r * variance) + r * (most - mean) if up is None else up(mean, most)
        inside = np.minimum(above, most)
        Q = by_state(model, np.where(tried, 1.0 + (1.0 - q) * inside + q * top, np.inf), top)
        better = swept & away & (Q.min(axis=1) < Y)
        fall = np.where(better, Y - Q.min(axis=1), 0.0)
        policy = np.where(better, Q.argmin(axis=1), policy).astype(np.int16)
        Y = np.where(better, Q.min(axis=1), Y)
        if fall.max() < block.tolerance:
            break
    return Y, policy


def exact(model, targets, V, cap, tolerance, sweeps):
    """Run value iteration. A Bellman operator never increases a residual, so the last change bounds the next one."""
    S = len(model.terminal)
    X = len(model.indptr) - 1
    p = sparse.csr_array((model.probabilities, model.successors, model.indptr), shape=(X, S)).tocoo()
    leaves = p.row // (X // S) != p.col
    p = sparse.csr_array((p.data[leaves], (p.row[leaves], p.col[leaves])), shape=(X, S))
    leaving = np.asarray(p.sum(axis=1))[:, None]
    other = model.reset & (np.arange(S) != model.start)[:, None]
    for _ in range(sweeps):
        Q = np.divide(1.0 + p @ V, leaving, out=np.full((X, targets.size), np.inf), where=leaving > 0)
        best = np.minimum(by_state(model, Q, np.inf).min(axis=1), np.where(other, 1.0 + V[model.start], np.inf))
        best = np.minimum(best, cap)
        best[(targets.column[:, :, None] == np.arange(targets.size)).any(axis=1)] = 0.0
        change = np.abs(np.where(np.isfinite(V), best, 0.0) - np.where(np.isfinite(V), V, 0.0)).max(axis=0)
        V = best
        if change.max() <= tolerance:
            break
    return V, change


def stages(kernel, bonus, targets, horizon):
    """Run the recursion of AdaGoal-UCBVI, one stage at a time."""
    S, G, c = len(kernel.terminal), targets.size, bonus.correction
    low, high, gap = np.zeros((3, S, G))
    policy = np.zeros((horizon, S, G), np.int16)
    for h in range(horizon - 1, -1, -1):
        left = float(horizon - h)
        (mean, variance, _), high_mean, gap_mean = (
            moments(kernel, kernel.p, low),
            moments(kernel, kernel.p, high)[0],
            moments(kernel, kernel.p, gap)[0],
        )
        root = np.sqrt(bonus.weight[:, None] * variance) * (c > 0)
        b = 3 * root + (bonus.flat + left * bonus.slope)[:, None] + c * (high_mean - mean)
        u = 6 * root + (bonus.flat_u + 2 * left * bonus.slope)[:, None] + (1 + 3 * c) * gap_mean
        Q = by_state(kernel, np.clip(1 - b + mean, 1, left), 1 + low[kernel.start])
        R = by_state(kernel, np.clip(1 + b + high_mean, 1, left), 1 + high[kernel.start])
        U = by_state(kernel, np.clip(u, 0, left), gap[kernel.start])
        policy[h] = choice = Q.argmin(axis=1)
        low, high, gap = Q.min(axis=1), R.min(axis=1), np.take_along_axis(U, choice[:, None], axis=1)[:, 0]
        for values in (low, high, gap):
            values[(targets.column[:, :, None] == np.arange(G)).any(axis=1)] = 0.0
    return policy, low[kernel.start], gap[kernel.start]
