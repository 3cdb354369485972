"""Steps that the stopping rule of a baseline needs at least, computed on the known model.

Nobody has to run these. The empirical kernel is taken to be the true one, which only leaves out the mistakes:

* UcbExplore evaluates the policy of each state u of the incrementally reachable set, nearest first, for the number of
  episodes that its rule says, each of which takes the best restricted policy V*_K(s0 -> u) steps on average;
* DisCo takes phi(K) samples of every pair of K x A, for K the incrementally reachable set;
* VALAE takes phi(K) samples of every pair of K x A, then plays lambda episodes for every state of K, for K the
  incrementally reachable set, which is the smallest that its DisCo can find; the samples of DisCo are not counted;
* LAE plays lambda episodes for every state of K to find it, and as many again to make its policy final; before either
  it takes samples of every pair of K x A;
* GOSPRL takes b(x) samples of every pair x, first for the guess W that is the power of two next to the diameter, then
  with the true diameter for its estimate; it never ends where some state cannot be reached.

Samples are steps; the way to them is not counted.
"""

from __future__ import annotations

import math

import numpy as np

from adagoal.baselines.disco import VALAE, DisCo
from adagoal.baselines.gosprl import Gosprl
from adagoal.baselines.lae import LAE, LAEPhase
from adagoal.baselines.ucbexplore import UcbExplore
from adagoal.core.array_types import Bools, Floats
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs.model import TabularMDP
from experiments import exact_policies, incremental

TRIES = 1e9
"""Enough that rounding to whole counts does not matter."""
ROUNDS = 8


def ucbexplore(mdp: TabularMDP, L: float, epsilon: float, delta: float, constants: str = "paper") -> float:
    """The episodes of all evaluations, in steps, or the trials of state discovery, if these are more."""
    explorer = UcbExplore(exact(mdp), L, epsilon, delta, None, constants)
    inside = np.isin(np.arange(mdp.n_states), incremental.incremental_set(mdp, L))
    best = incremental.restricted_distances(mdp, inside)
    steps = 0.0
    for state in sorted(np.flatnonzero(inside & ~explorer.known_states), key=lambda s: float(best[s])):
        steps += explorer.evaluation_episodes() * best[state]
        explorer.known_states[state] = True
    return max(float(steps), explorer.discovery_trials() * _pairs(mdp, explorer.known_states))


def disco(mdp: TabularMDP, L: float, epsilon: float, delta: float, constants: str = "paper") -> float:
    """The samples of K x A."""
    explorer = DisCo(exact(mdp), L, epsilon, delta, None, constants)
    explorer.known_states[incremental.incremental_set(mdp, L)] = True
    return explorer.samples_per_pair() * _pairs(mdp, explorer.known_states)


def valae(mdp: TabularMDP, L: float, epsilon: float, delta: float, constants: str = "paper") -> float:
    """The samples of K x A, and the episodes."""
    explorer = VALAE(exact(mdp), L, epsilon, delta, None, constants)
    explorer.known_states[incremental.incremental_set(mdp, L)] = True
    best = incremental.restricted_distances(mdp, explorer.known_states)[explorer.known_states]
    return explorer.samples_per_pair() * _pairs(mdp, explorer.known_states) + explorer.episodes_of_round() * float(
        best.sum()
    )


def lae(mdp: TabularMDP, L: float, epsilon: float, delta: float, constants: str = "paper") -> float:
    """The samples of K x A, and the episodes as if every round were a success, in the order that asks for least."""
    explorer = LAE(exact(mdp), L, epsilon, delta, None, constants)
    inside = np.isin(np.arange(mdp.n_states), incremental.incremental_set(mdp, L))
    best = np.sort(incremental.restricted_distances(mdp, inside)[inside])[1:]  # s0 is there from the start
    episodes = [
        explorer.episodes_of_round(i + 1, LAEPhase.LAYER_ROUNDS)
        + explorer.episodes_of_round(i + 1, LAEPhase.CONSOLIDATION)
        for i in range(len(best))
    ]
    explorer.known_states[inside] = True
    samples = explorer.small_bonus_samples(delta) * _pairs(mdp, inside)
    return 2.0 * samples + float(np.dot(episodes, best[::-1]))


def gosprl(mdp: TabularMDP, L: float, epsilon: float, delta: float, constants: str = "paper") -> float:
    """The samples of all pairs."""
    D = exact_policies.diameter(mdp)
    if not math.isfinite(D):
        return math.inf
    explorer = Gosprl(exact(mdp), L, epsilon, delta, None, constants)
    explorer.W = 2.0 ** math.ceil(math.log2(D))
    for _ in range(ROUNDS):  # b depends on the counts, through their logarithms
        explorer.counts = exact(mdp, np.ceil(explorer.required_counts()))
    for_diameter, explorer.diameter = explorer.required_counts(), D
    return float(np.maximum(for_diameter, explorer.required_counts())[np.repeat(~mdp.terminal, mdp.n_actions)].sum())


RIVALS = {"ucbexplore": ucbexplore, "disco": disco, "valae": valae, "lae": lae, "gosprl": gosprl}


def exact(mdp: TabularMDP, tries: Floats | None = None) -> TransitionCounts:
    """Counts as if every pair had been tried so often ([X], or ``TRIES``), in the exact proportion of its kernel."""
    counts = TransitionCounts(mdp.n_states, mdp.n_actions, mdp.start, int(np.diff(mdp.indptr).max()))
    many = np.full(len(counts.n), TRIES) if tries is None else tries
    for x, (first, last) in enumerate(zip(mdp.indptr, mdp.indptr[1:], strict=False)):
        counts.support[x] = last - first
        counts.successor[x, : last - first] = mdp.successors[first:last]
        counts.count[x, : last - first] = np.rint(many[x] * mdp.probabilities[first:last])
    counts.n[:] = counts.count.sum(1)
    counts.seen[:], counts.terminal[:] = True, mdp.terminal
    return counts


def _pairs(mdp: TabularMDP, known: Bools) -> int:
    """The number of pairs of K x A that can be tried."""
    return int((known & ~mdp.terminal).sum()) * mdp.n_actions
