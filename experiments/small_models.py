"""A small model as dense matrices: values and visits of policies, exactly, on its own kernel or on any other."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy import sparse

from adagoal.core.array_types import Bools, Floats, Longs
from adagoal.core.errors import InputError
from adagoal.envs.model import TabularMDP
from experiments import exact_policies
from experiments.exact_policies import optimal_policy

MOST_STATES = 150
HARDLY = 1e6
"""Values beyond this are not told from infinity."""


class Slopes(NamedTuple):
    """The derivative of V(s0) by the probabilities of n pairs."""

    states: Longs
    """[n]"""
    actions: Longs
    """[n]"""
    values: Floats
    """[n, S]"""


class Small:
    """The part of a model that can be reached from its start; policies [S] have action A for the reset."""

    def __init__(self, mdp: TabularMDP) -> None:
        rows = sparse.csr_matrix((mdp.probabilities, mdp.successors, mdp.indptr), (len(mdp.indptr) - 1, mdp.n_states))
        usable = (~mdp.absent).reshape(mdp.n_states, mdp.n_actions) & ~mdp.terminal[:, None]
        pair = np.repeat(np.arange(mdp.n_states), mdp.n_actions)
        states, last = {mdp.start}, {mdp.start}
        while last:
            last = set(rows[np.isin(pair, list(last)) & usable.ravel()].indices.tolist()) - states
            states |= last
        if len(states) > MOST_STATES:
            raise InputError(f"at most {MOST_STATES} states may be within reach of the start, got {len(states)}", "mdp")
        order = np.array(sorted(states))
        self.states: Longs = order
        """[S] their numbers in the model"""
        self.start = int(np.searchsorted(order, mdp.start))
        self.usable: Bools = usable[order]
        """[S, A]"""
        kernel = rows[np.isin(pair, order)][:, order].toarray().reshape(len(order), mdp.n_actions, -1)
        kernel[~self.usable] = np.eye(len(order))[self.start]  # never used: any row will do
        self.kernel: Floats = kernel
        """[S, A, S]"""
        self.S, self.A, _ = kernel.shape

    def optima(self) -> tuple[Floats, Longs]:
        """V* [S, S] of every goal, and an optimal policy of each [S, S]."""
        model = TabularMDP.from_dense(self.kernel, start=self.start, terminal=~self.usable.any(axis=1))
        V = exact_policies.optimal_values(model)
        return V, optimal_policy(model, V).astype(int)

    def value(self, kernel: Floats, policy: Longs | None, goal: int) -> float:
        """V(s0) of a policy, infinite where it hardly arrives; 0 for no policy."""
        values = None if policy is None else self._values(self._chain(kernel, policy, goal), goal)
        return 0.0 if policy is None else math.inf if values is None else float(values[self.start])

    def solved(self, kernel: Floats, policy: Longs, goal: int) -> tuple[Floats, Floats] | None:
        """(values [S], visits [S] from the start) of a policy; None where it hardly arrives."""
        chain, start = self._chain(kernel, policy, goal), np.zeros(self.S)
        values = self._values(chain, goal)
        if values is None:
            return None
        start[self.start] = 1.0
        visits = np.linalg.solve(chain.T, start).astype(float)
        visits[goal] = 0.0
        return values, visits

    def slopes(self, kernel: Floats, policy: Longs, goal: int) -> Slopes | None:
        """The derivative of V(s0) by every p_x(s'): visits of x times V(s')."""
        solved = self.solved(kernel, policy, goal)
        if solved is None:
            return None
        values, visits = solved
        states = np.flatnonzero((visits > 1e-9) & (policy < self.A))
        return Slopes(states, policy[states], visits[states, None] * values)

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

    def _chain(self, kernel: Floats, policy: Longs, goal: int) -> Floats:
        """[S, S] I - P for the policy, with the goal cut off."""
        chain = np.zeros((self.S, self.S))
        acts = np.flatnonzero(policy < self.A)
        chain[acts] = -kernel[acts, policy[acts]]
        chain[policy == self.A, self.start] = -1.0
        chain[goal], chain[:, goal] = 0.0, 0.0
        chain[np.arange(self.S), np.arange(self.S)] += 1.0
        return chain

    def _values(self, chain: Floats, goal: int) -> Floats | None:
        steps = np.ones(self.S)
        steps[goal] = 0.0
        try:
            values: Floats = np.linalg.solve(chain, steps).astype(float)
        except np.linalg.LinAlgError:
            return None
        return values if (values >= (1.0 - 1e-9) * steps).all() and values.max() < HARDLY else None
