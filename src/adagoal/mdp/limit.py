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

What the limit is not: it holds for algorithms that always return these very policies, and is optimistic where several
are optimal; it is about the mean number of steps; and it knows no price for doing many things right at once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from adagoal.core.types import Bools, Floats, Longs
from adagoal.mdp import solve
from adagoal.worlds.model import TabularMDP

MOST_STATES = 150
"""Dense matrices: larger models take too long."""
FLOOR = 1e-3
"""Pairs that the current flow does not try count as tried by this share of the mean."""
LOOKED_AT, TRIED = 40, 3
"""Deviations per goal and round whose tilts are looked for, and those of them that are improved."""
ENOUGH = 0.97
"""Rounds end when every model found costs at least this share of what it must."""
ROUGHLY = 3.0
"""The factor by which an estimate of the second order may be wrong."""
STEEPEST, HALVINGS = 60, 12
HARDLY = 1e6
"""Values beyond this are not told from infinity."""


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


def kl(delta: float) -> float:
    """kl(delta, 1 - delta)."""
    return (1.0 - 2.0 * delta) * math.log((1.0 - delta) / delta)


def limit(mdp: TabularMDP, L: float, epsilon: float, rounds: int = 25) -> Limit:
    """The limit of a model with at most MOST_STATES states within reach of its start."""
    known = _Dense(*_reachable(mdp))
    V, policies = known.optima()
    cases = _first_cases(known, V, policies, L, epsilon)
    weights = np.ones(known.usable.shape)
    rows = [found.divergence for found in _jumps(known, cases, policies, weights)]
    steps, finished = 0.0, False
    for _ in range(rounds):
        if rows:
            steps, tries = _fewest_steps(known, rows)
            weights = np.maximum(tries, FLOOR * tries.mean())
        dear = ENOUGH if rows else math.inf
        new = [model.divergence for case in cases for model in _tilts(known, case, weights, dear) if model.cost < dear]
        finished = not new
        if finished:
            break
        rows += new
    return Limit(steps, len(rows), finished)


# --- the model ------------------------------------------------------------------------------------------------------


def _reachable(mdp: TabularMDP) -> tuple[Floats, int, Bools]:
    """Kernel [S, A, S], start and usable pairs [S, A] of the part that can be reached from the start."""
    rows = sparse.csr_matrix((mdp.probabilities, mdp.successors, mdp.indptr), (len(mdp.indptr) - 1, mdp.n_states))
    usable = (~mdp.absent).reshape(mdp.n_states, mdp.n_actions) & ~mdp.terminal[:, None]
    pair = np.repeat(np.arange(mdp.n_states), mdp.n_actions)
    states, last = {mdp.start}, {mdp.start}
    while last:
        inside = np.isin(pair, list(last)) & usable.ravel()
        last = set(rows[inside].indices.tolist()) - states
        states |= last
    order = np.array(sorted(states))
    kernel = rows.toarray().reshape(mdp.n_states, mdp.n_actions, -1)[np.ix_(order, np.arange(mdp.n_actions), order)]
    kernel[~usable[order]] = np.eye(len(order))[int(np.searchsorted(order, mdp.start))]  # never used: any row will do
    return kernel, int(np.searchsorted(order, mdp.start)), usable[order]


class _Dense:
    """A small model; policies [S] have action A for the reset."""

    def __init__(self, kernel: Floats, start: int, usable: Bools) -> None:
        self.kernel, self.start, self.usable = kernel, start, usable
        self.S, self.A, _ = kernel.shape

    def optima(self) -> tuple[Floats, Longs]:
        """V* [S, S] of every goal, and an optimal policy of each [S, S]."""
        model = TabularMDP.from_dense(self.kernel, start=self.start, terminal=~self.usable.any(axis=1))
        V = solve.optimal_values(model)
        return V, solve.optimal_policy(model, V).astype(int)

    def _chain(self, kernel: Floats, policy: Longs, goal: int) -> Floats:
        """[S, S] I - P for the policy, with the goal cut off."""
        chain = np.zeros((self.S, self.S))
        acts = np.flatnonzero(policy < self.A)
        chain[acts] = kernel[acts, policy[acts]]
        chain[policy == self.A, self.start] = 1.0
        chain[goal], chain[:, goal] = 0.0, 0.0
        return np.eye(self.S) - chain

    def value(self, kernel: Floats, policy: Longs | None, goal: int) -> float:
        """V(s0) of a policy, infinite where it hardly arrives; 0 for no policy."""
        values = None if policy is None else self._values(self._chain(kernel, policy, goal), goal)
        return 0.0 if policy is None else math.inf if values is None else float(values[self.start])

    def _values(self, chain: Floats, goal: int) -> Floats | None:
        """[S] of a policy that arrives; None where it hardly does so, and nothing can be trusted."""
        steps = (np.arange(self.S) != goal).astype(float)
        try:
            values = np.linalg.solve(chain, steps)
        except np.linalg.LinAlgError:
            return None
        return values if (values >= (1.0 - 1e-9) * steps).all() and values.max() < HARDLY else None

    def solved(self, kernel: Floats, policy: Longs, goal: int) -> tuple[Floats, Floats] | None:
        """(values [S], visits [S] from the start) of a policy that arrives."""
        chain, start = self._chain(kernel, policy, goal), np.zeros(self.S)
        values = self._values(chain, goal)
        if values is None:
            return None
        start[self.start] = 1.0
        visits = np.linalg.solve(chain.T, start).astype(float)
        visits[goal] = 0.0
        return values, visits

    def margin(self, kernel: Floats, case: Case) -> float:
        """At least 0 where the answer is wrong."""
        up, down = (self.value(kernel, policy, case.goal) for policy in (case.up, case.down))
        return -math.inf if math.isinf(up + down) else up - down - case.bar

    def slopes(self, kernel: Floats, case: Case) -> dict[tuple[int, int], Floats] | None:
        """[S] the derivative of the margin by every p_x(s'), for the pairs x that it depends on."""
        found: dict[tuple[int, int], Floats] = {}
        for sign, policy in ((1.0, case.up), (-1.0, case.down)):
            if policy is None:
                continue
            solved = self.solved(kernel, policy, case.goal)
            if solved is None:
                return None
            values, visits = solved
            for s in np.flatnonzero((visits > 1e-9) & (policy < self.A)):
                pair = int(s), int(policy[s])
                found[pair] = found.get(pair, np.zeros(self.S)) + sign * visits[s] * values
        return found

    def best_response(self, kernel: Floats, goal: int, policy: Longs) -> Longs:
        """An optimal policy of another kernel, by policy iteration."""
        for _ in range(self.S):
            solved = self.solved(kernel, policy, goal)
            if solved is None:
                break
            values = solved[0]
            choices = np.column_stack([1.0 + kernel @ values, np.full(self.S, 1.0 + values[self.start])])
            choices[:, : self.A][~self.usable] = math.inf
            better = choices.min(axis=1) < choices[np.arange(self.S), policy] - 1e-9
            better[goal] = False
            if not better.any():
                break
            policy = np.where(better, choices.argmin(axis=1), policy)
        return policy


# --- models in which the answer is wrong ------------------------------------------------------------------------------


def _first_cases(known: _Dense, V: Floats, policies: Longs, L: float, epsilon: float) -> list[Case]:
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


def _deviations(known: _Dense, case: Case) -> list[Case]:
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


def _tilts(known: _Dense, case: Case, weights: Floats, dear: float) -> list[Found]:
    """The cheapest tilts of a case that are found; those that seem to be dear are not looked for."""
    ranked: list[tuple[float, int, Case]] = []
    for deviation in _deviations(known, case):
        slopes = known.slopes(known.kernel, deviation)
        if slopes is not None:
            missing = max(-known.margin(known.kernel, deviation), 0.0)
            cost = _estimate(known, slopes, missing, weights)
            if cost < ROUGHLY * dear:
                ranked.append((cost, len(ranked), deviation))
    first = []
    for _, _, deviation in sorted(ranked, key=lambda entry: entry[:2])[:LOOKED_AT]:
        model = _tilt(known, deviation, weights, known.kernel)
        if model is not None:
            first.append((model, deviation))
    return [_improved(known, *entry, weights) for entry in sorted(first, key=lambda entry: entry[0].cost)[:TRIED]]


def _improved(known: _Dense, model: Found, case: Case, weights: Floats) -> Found:
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


def _estimate(known: _Dense, slopes: dict[tuple[int, int], Floats], missing: float, weights: Floats) -> float:
    """The cost of a tilt to second order: missing^2 / (2 sum_x Var_x(slope)/n_x)."""
    power = 0.0
    for (s, a), slope in slopes.items():
        p = known.kernel[s, a]
        power += (p @ slope**2 - (p @ slope) ** 2) / weights[s, a]
    return missing**2 / (2.0 * power) if power > 0.0 else math.inf


def _tilt(known: _Dense, case: Case, weights: Floats, at: Floats) -> Found | None:
    """The smallest tilt, along the slopes at the kernel ``at``, after which the answer is wrong."""
    slopes = known.slopes(at, case)
    if not slopes:
        return None

    def tilted(k: float) -> Floats:
        kernel = known.kernel.copy()
        for (s, a), slope in slopes.items():
            p = known.kernel[s, a]
            power = slope * k / weights[s, a]
            p = p * np.exp(np.clip(power - power[p > 0].max(), -50.0, 0.0))
            kernel[s, a] = p / p.sum()
        return kernel

    high = 1e-3
    for _ in range(STEEPEST):
        if known.margin(tilted(high), case) >= 0.0:
            break
        high *= 2.0
    else:
        return None
    return _priced(known, tilted(_least(lambda k: known.margin(tilted(k), case), high)), case, weights)


def _jumps(known: _Dense, cases: list[Case], policies: Longs, weights: Floats) -> list[Found]:
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


def _jump(known: _Dense, case: Case, s: int, a: int, weights: Floats) -> Found | None:
    def jumping(q: float) -> Floats:
        kernel = known.kernel.copy()
        kernel[s, a] *= 1.0 - q
        kernel[s, a, case.goal] += q
        return kernel

    if known.margin(jumping(0.99), case) < 0.0:
        return None
    return _priced(known, jumping(_least(lambda q: known.margin(jumping(q), case), 0.99)), case, weights)


def _least(margin, high: float) -> float:  # type: ignore[no-untyped-def]
    """A number up to ``high``, where the margin is at least 0, that is hardly larger than it must be."""
    low = 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if margin(middle) >= 0.0 else (middle, high)
    return high


def _priced(known: _Dense, kernel: Floats, case: Case, weights: Floats) -> Found | None:
    if not known.margin(kernel, case) >= 0.0:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        divergence = np.where(known.kernel > 0.0, known.kernel * np.log(known.kernel / kernel), 0.0).sum(axis=2)
    return Found(float((weights * divergence).sum()), divergence, kernel)


# --- the linear program ---------------------------------------------------------------------------------------------


def _fewest_steps(known: _Dense, rows: list[Floats]) -> tuple[float, Floats]:
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
