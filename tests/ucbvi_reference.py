"""A simple reference implementation of AdaGoal-UCBVI, and random models with random counts."""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import NDArray

from adagoal.core.transition_data import TransitionCounts
from adagoal.envs import toy_models
from adagoal.envs.model import TabularMDP
from experiments import extra_models

Floats = NDArray[np.float64]


def clip(x: float, low: float, high: float) -> float:
    return max(min(x, high), low)


def reference(
    p: Floats, n: Floats, terminal: NDArray[np.bool_], start: int, goal: int, n_goals: int, H: int, bonus: str
) -> tuple[float, float, NDArray[np.int16]]:
    """Return D, U and the policy [H, S] of one goal, by the paper; p [S, A, S], n [S, A], delta = 0.1."""
    S, A, _ = p.shape
    low, high, gap = np.zeros((3, S))
    policy = np.zeros((H, S), np.int16)
    for h in range(H, 0, -1):
        left = H - h + 1
        new_low, new_high, new_gap = np.zeros((3, S))
        for s in range(S):
            Q, Q_, U = [], [], []
            for a in range(A):
                if terminal[s]:
                    Q.append(math.inf)
                    Q_.append(math.inf)
                    U.append(math.inf)
                    continue
                mean, mean_high, mean_gap = p[s, a] @ low, p[s, a] @ high, p[s, a] @ gap
                variance = p[s, a] @ (low - mean) ** 2
                if n[s, a] == 0:
                    q, q_, u = -math.inf, math.inf, math.inf
                elif bonus == "simplified":
                    b = min(math.sqrt(1 / n[s, a]) + left / n[s, a], left)
                    q, q_, u = 1 - b + mean, 1 + b + mean_high, 2 * b + mean_gap
                else:
                    beta_star = math.log(3 * S * A * n_goals * H / 0.1) + math.log(8 * math.e * (n[s, a] + 1))
                    beta = math.log(3 * S * A / 0.1) + S * math.log(8 * math.e * (n[s, a] + 1))
                    root = math.sqrt(variance * beta_star / n[s, a])
                    b = 3 * root + 14 * H**2 * beta / n[s, a] + (mean_high - mean) / H
                    q, q_ = 1 - b + mean, 1 + b + mean_high
                    u = 6 * root + 36 * H**2 * beta / n[s, a] + (1 + 3 / H) * mean_gap
                Q.append(clip(q, 1, left))
                Q_.append(clip(q_, 1, left))
                U.append(clip(u, 0, left))
            Q.append(1 + low[start])
            Q_.append(1 + high[start])
            U.append(gap[start])
            policy[h - 1, s] = best = int(np.argmin(Q))
            new_low[s], new_high[s], new_gap[s] = Q[best], min(Q_), U[best]
        low, high, gap = new_low, new_high, new_gap
        low[goal] = high[goal] = gap[goal] = 0.0
    return float(low[start]), float(gap[start]), policy


def random_mdp(seed: int) -> TabularMDP:
    """Draw a sparse, dense or partly unreachable model, or one with traps; every other one has terminal states."""
    makers = (
        toy_models.random_sparse,
        toy_models.random_dense,
        extra_models.random_traps,
        extra_models.random_unreachable,
    )
    mdp = makers[seed % 4](n_states=6 + seed % 5, n_actions=2 + seed % 2, seed=seed)
    if seed % 8 >= 4:
        terminal = np.random.default_rng(seed).random(mdp.n_states) < 0.2
        terminal[mdp.start] = False
        object.__setattr__(mdp, "terminal", terminal)
    return mdp


def sampled(mdp: TabularMDP, n: NDArray[np.int64], rng: np.random.Generator) -> TransitionCounts:
    """Draw counts after n[x] transitions of every available pair x."""
    counts = TransitionCounts(mdp.n_states, mdp.n_actions, mdp.start, width=int(np.diff(mdp.indptr).max()))
    counts.terminal |= mdp.terminal
    counts.seen[:] = True
    for x, (s, a) in enumerate(itertools.product(range(mdp.n_states), range(mdp.n_actions))):
        if mdp.terminal[s] or n[x] == 0:
            continue
        successors, p = mdp.row(s, a)
        drawn = rng.multinomial(n[x], p)
        hit = drawn > 0
        counts.support[x], counts.n[x] = hit.sum(), n[x]
        counts.successor[x, : hit.sum()], counts.count[x, : hit.sum()] = successors[hit], drawn[hit]
    return counts


def random_counts(mdp: TabularMDP, rng: np.random.Generator, most: float) -> NDArray[np.int64]:
    """Draw counts of all orders of magnitude; some pairs have none."""
    pairs = mdp.n_states * mdp.n_actions
    return np.where(rng.random(pairs) < 0.1, 0, 10 ** rng.uniform(0, most, pairs)).astype(np.int64)
