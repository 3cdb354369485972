"""How many steps any certified explorer needs in a known model: an instance-dependent lower bound.

Let an algorithm return, in the model M, the same right answer with probability 1 - delta: the goals within L, with one
optimal policy pi_g for each. Let M' be a model in which this answer is wrong. By the change of measure of Kaufmann,
Cappe and Garivier (2016; for Markov decision processes Al Marjani and Proutiere 2021), the expected numbers of tries
n_x of the pairs x until it stops satisfy

    sum_x n_x KL(p_x, p'_x) >= kl(delta, 1 - delta) = (1 - 2 delta) ln((1 - delta)/delta).

Tries cannot be chosen freely: the agent must get to a pair, so that n is a flow of M with resets (up to one step, which
is left out). The least number of steps in all, resets included, that satisfies the inequality for *every* M' is the
limit. It is a linear program with infinitely many rows. Some of its rows give a smaller number, which is a lower bound
as well: so models M' are added one by one, each checked exactly, until no cheap one is found (cutting planes).

An answer is wrong in M' where one of three things holds:

    another policy is better:     V'^{pi_g}(s0) - V'^{other}(s0) >= epsilon
    a goal is too far:            V'^{pi_g}(s0) >= L + epsilon
    a goal is near after all:     V'^{other}(s0) <= L, for a goal beyond L + epsilon

Models M' are looked for in two ways. *Tilts* change what is known to happen: p' in proportion to p exp(k f / n),
where f is the derivative of the difference of values, with k as small as possible. *Jumps* let a single pair lead to
the goal with some probability although it never does so in M, which is what the bounds on unseen mass are about.

The same models measure what a run has learnt: with its own tries n, the least sum_x n_x KL(p_x, p'_x) over all M' is
the *evidence* that it holds, in nats. Any algorithm needs kl(delta, 1 - delta) of it.

What the limit is not: it holds for algorithms that always return these very policies, and is optimistic where several
are optimal; it is about the mean number of steps; and it knows no price for doing many things right at once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog

from adagoal.core.array_types import Floats, Longs
from adagoal.envs.model import TabularMDP
from experiments.small_models import Slopes, Small

FLOOR = 1e-3
"""Pairs that the current flow does not try count as tried by this share of the mean."""
LOOKED_AT, TRIED = 40, 3
"""Deviations per goal and round whose tilts are looked for, and those of them that are improved."""
ENOUGH = 0.97
"""Rounds end when every model found costs at least this share of what it must."""
ROUGHLY = 3.0
"""The factor by which an estimate of the second order may be wrong."""
STEEPEST, HALVINGS = 60, 12


class Case(NamedTuple):
    """A way to be wrong about a goal: V^up(s0) - V^down(s0) >= bar, where a missing policy has the value 0."""

    goal: int
    up: Longs | None
    """[S]"""
    down: Longs | None
    """[S]"""
    bar: float


class Found(NamedTuple):
    """A model in which the answer is wrong."""

    cost: float
    """sum_x n_x KL(p_x, p'_x) for the tries n that were given"""
    divergence: Floats
    """[S, A] KL(p_x, p'_x)"""
    kernel: Floats
    """[S, A, S] p'"""


class Limit(NamedTuple):
    """The solution of the linear program."""

    steps: float
    """The limit, to be multiplied by kl(delta, 1 - delta)"""
    models: int
    """Rows"""
    finished: bool
    """False where cheaper models were still found after the last round: the limit is a bit low"""


class Evidence(NamedTuple):
    """What some tries have told apart, in nats: the cheapest of the models that were found."""

    tilts: float | None
    """Of those that change what is known to happen; None where there are none"""
    jumps: float | None
    """Of those with a transition that was never seen, likewise"""


def kl(delta: float) -> float:
    """kl(delta, 1 - delta)."""
    return (1.0 - 2.0 * delta) * math.log((1.0 - delta) / delta)


def limit(mdp: TabularMDP, L: float, epsilon: float, rounds: int = 25) -> Limit:
    """The limit of a model with a small part within reach of its start (:mod:`experiments.small_models`)."""
    known = Small(mdp)
    V, policies = known.optima()
    cases = _first_cases(known, V, policies, L, epsilon)
    weights = np.ones(known.usable.shape)
    rows = [found.divergence for found in _jumps(known, cases, policies, weights)]
    steps, dear = 0.0, math.inf
    for done in range(rounds + 1):
        if rows:
            steps, tries = _fewest_steps(known, rows)
            weights, dear = np.maximum(tries, FLOOR * tries.mean()), ENOUGH
        if done == rounds:
            break
        new = [model.divergence for case in cases for model in _tilts(known, case, weights, dear) if model.cost < dear]
        if not new:
            return Limit(steps, len(rows), finished=True)
        rows += new
    return Limit(steps, len(rows), finished=False)


def evidence(mdp: TabularMDP, tries: Longs, L: float, epsilon: float) -> Evidence:
    """The evidence for the answer in ``tries`` [S A] of the pairs of a model."""
    known = Small(mdp)
    V, policies = known.optima()
    cases = _first_cases(known, V, policies, L, epsilon)
    weights = np.maximum(tries.reshape(-1, known.A)[known.states].astype(float), 1.0)
    tilts = (model.cost for case in cases for model in _tilts(known, case, weights, math.inf))
    jumps = (model.cost for model in _jumps(known, cases, policies, weights))
    return Evidence(min(tilts, default=None), min(jumps, default=None))


# --- models in which the answer is wrong ------------------------------------------------------------------------------


def _first_cases(known: Small, V: Floats, policies: Longs, L: float, epsilon: float) -> list[Case]:
    """The cases that do not depend on what is found; those of better policies have ``down`` equal to ``up`` here."""
    found = []
    for goal, distance in enumerate(V[known.start]):
        if goal == known.start or not math.isfinite(distance):
            continue
        policy = policies[:, goal]
        if distance <= L:
            found += [Case(goal, policy, policy, epsilon), Case(goal, policy, None, L + epsilon)]
        elif distance > L + epsilon:
            found.append(Case(goal, None, policy, -L))
    return found


def margin(known: Small, kernel: Floats, case: Case) -> float:
    """At least 0 where the answer is wrong in another kernel."""
    up, down = (known.value(kernel, policy, case.goal) for policy in (case.up, case.down))
    return -math.inf if math.isinf(up + down) else up - down - case.bar


def _deviations(known: Small, case: Case) -> list[Case]:
    """The case itself, or where it wants another policy those that differ in a single visited state."""
    if case.up is None or case.down is None:
        return [case]
    solved = known.solved(known.kernel, case.up, case.goal)
    assert solved is not None, "an optimal policy arrives"
    found = []
    for s in np.flatnonzero(solved[1] > 1e-3):
        for a in np.flatnonzero(known.usable[s]):
            if a != case.up[s]:
                other = case.up.copy()
                other[s] = a
                found.append(case._replace(down=other))
    return found


def _tilts(known: Small, case: Case, weights: Floats, dear: float) -> list[Found]:
    """The cheapest tilts of a case that are found; those that seem to be dear are not looked for."""
    ranked: list[tuple[float, int, Case]] = []
    for deviation in _deviations(known, case):
        slopes = _slopes(known, known.kernel, deviation)
        if slopes is not None:
            cost = _estimate(known, slopes, max(-margin(known, known.kernel, deviation), 0.0), weights)
            if cost < ROUGHLY * dear:
                ranked.append((cost, len(ranked), deviation))
    first = []
    for _, _, deviation in sorted(ranked, key=lambda entry: entry[:2])[:LOOKED_AT]:
        model = _tilt(known, deviation, weights, known.kernel)
        if model is not None:
            first.append((model, deviation))
    return [_improved(known, *entry, weights) for entry in sorted(first, key=lambda entry: entry[0].cost)[:TRIED]]


def _improved(known: Small, model: Found, case: Case, weights: Floats) -> Found:
    """A tilt again, with its own slopes, and with the policy that is best in the model found."""
    other = None if case.down is None else known.best_response(model.kernel, case.goal, case.down)
    if other is not None and (case.up is None or not np.array_equal(other, case.up)):
        case = case._replace(down=other)
    for _ in range(2):
        again = _tilt(known, case, weights, model.kernel)
        if again is None or again.cost >= model.cost:
            break
        model = again
    return model


def _slopes(known: Small, kernel: Floats, case: Case) -> Slopes | None:
    """Of the margin; pairs of both policies stand there once."""
    total: dict[tuple[int, int], Floats] = {}
    for sign, policy in ((1.0, case.up), (-1.0, case.down)):
        found = None if policy is None else known.slopes(kernel, policy, case.goal)
        if policy is not None and found is None:
            return None
        if found is not None:
            for s, a, values in zip(found.states.tolist(), found.actions.tolist(), found.values, strict=True):
                total[s, a] = total[s, a] + sign * values if (s, a) in total else sign * values
    pairs = np.array(list(total))
    return Slopes(pairs[:, 0], pairs[:, 1], np.array(list(total.values()))) if total else None


def _estimate(known: Small, slopes: Slopes, missing: float, weights: Floats) -> float:
    """The cost of a tilt to second order: missing^2 / (2 sum_x Var_x(slope)/n_x)."""
    at = slopes.states, slopes.actions
    p, f = known.kernel[at], slopes.values
    power = float((((p * f * f).sum(axis=1) - (p * f).sum(axis=1) ** 2) / weights[at]).sum())
    return missing**2 / (2.0 * power) if power > 0.0 else math.inf


def _tilt(known: Small, case: Case, weights: Floats, start: Floats) -> Found | None:
    """The smallest tilt, along the slopes at the kernel ``start``, after which the answer is wrong."""
    slopes = _slopes(known, start, case)
    if slopes is None:
        return None
    at = slopes.states, slopes.actions
    p, power = known.kernel[at], slopes.values / weights[at][:, None]

    def tilted(k: float) -> Floats:
        kernel, power_k = known.kernel.copy(), k * power
        most = np.where(p > 0.0, power_k, -math.inf).max(axis=1, keepdims=True)
        rows = p * np.exp(np.clip(power_k - most, -50.0, 0.0))
        kernel[at] = rows / rows.sum(axis=1, keepdims=True)
        return kernel

    high = 1e-3
    for _ in range(STEEPEST):
        if margin(known, tilted(high), case) >= 0.0:
            break
        high *= 2.0
    else:
        return None
    return _priced(known, tilted(_least(lambda k: margin(known, tilted(k), case), high)), case, weights)


def _jumps(known: Small, cases: list[Case], policies: Longs, weights: Floats) -> list[Found]:
    """For every case of a goal and every pair off its policy: the pair leads to the goal, as often as it must."""
    found = []
    for case in cases:
        if case.down is None:
            continue
        for s in range(known.S):
            toward = policies[:, s] if s != known.start else np.full(known.S, known.A)
            for a in np.flatnonzero(known.usable[s]):
                if s == case.goal or known.kernel[s, a, case.goal] > 0.0 or (case.up is not None and case.up[s] == a):
                    continue
                others = [np.where(np.arange(known.S) == s, a, policy) for policy in (case.down, toward)]
                models = [_jump(known, case._replace(down=other), int(s), int(a), weights) for other in others]
                found += sorted((m for m in models if m is not None), key=lambda m: m.cost)[:1]
    return found


def _jump(known: Small, case: Case, s: int, a: int, weights: Floats) -> Found | None:
    def jumping(q: float) -> Floats:
        kernel = known.kernel.copy()
        kernel[s, a] *= 1.0 - q
        kernel[s, a, case.goal] += q
        return kernel

    if margin(known, jumping(0.99), case) < 0.0:
        return None
    return _priced(known, jumping(_least(lambda q: margin(known, jumping(q), case), 0.99)), case, weights)


def _least(margin, high: float) -> float:  # type: ignore[no-untyped-def]
    """A number up to ``high``, where the margin is at least 0, that is hardly larger than it must be."""
    low = 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if margin(middle) >= 0.0 else (middle, high)
    return high


def _priced(known: Small, kernel: Floats, case: Case, weights: Floats) -> Found | None:
    if not margin(known, kernel, case) >= 0.0:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        divergence = np.where(known.kernel > 0.0, known.kernel * np.log(known.kernel / kernel), 0.0).sum(axis=2)
    return Found(float((weights * divergence).sum()), divergence, kernel)


# --- the linear program ---------------------------------------------------------------------------------------------


def _fewest_steps(known: Small, rows: list[Floats]) -> tuple[float, Floats]:
    """The least number of steps, and the tries [S, A], with sum_x n_x KL_x >= 1 for every row."""
    S, pairs = known.S, known.S * known.A
    home = np.zeros((S, S))
    home[known.start] = 1.0
    out = np.hstack([np.kron(np.eye(S), np.ones((1, known.A))), np.eye(S)])
    into = np.hstack([known.kernel.reshape(pairs, S).T, home])
    needed = np.array([np.append(row.ravel(), np.zeros(S)) for row in rows])
    bounds = [(0, None if usable else 0) for usable in known.usable.ravel()] + [(0, None)] * S
    found = linprog(np.ones(pairs + S), -needed, -np.ones(len(rows)), out - into, np.zeros(S), bounds=bounds)
    assert found.fun is not None, "every usable pair can be tried as often as one likes"
    return float(found.fun), np.asarray(found.x)[:pairs].reshape(S, known.A)
