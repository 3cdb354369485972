"""Models of experiments and tests that are not built-in environments: random families, and the separation instance.

The same arguments give the same model; the start is state 0.
"""

from __future__ import annotations

import numpy as np

from adagoal.core.run_settings import ExplorationSettings
from adagoal.core.validation import check_integer, check_number
from adagoal.envs import registry
from adagoal.envs.model import TabularMDP, model_from_rows
from adagoal.envs.toy_models import make_model_generator, random_distribution, random_sparse


def random_deterministic(*, n_states: int = 20, n_actions: int = 3, seed: int = 0) -> TabularMDP:
    """Every pair leads to one random state; action 0 is a random cycle, so s0 reaches all states."""
    rng = make_model_generator(n_states, n_actions, seed)
    targets = rng.integers(n_states, size=(n_states, n_actions))
    order = np.concatenate([[0], 1 + rng.permutation(n_states - 1)])
    targets[order, 0] = np.roll(order, -1)
    rows = [{int(target): 1.0} for target in targets.ravel()]
    return model_from_rows(rows, n_actions, name="random-deterministic")


def random_traps(
    *, n_states: int = 20, n_actions: int = 3, traps: int = 4, branching: int = 3, seed: int = 0
) -> TabularMDP:
    """A sparse model whose last ``traps`` states form a region that only the reset leaves.

    Pairs outside draw their successors from all states, pairs inside from the region.
    """
    rng = make_model_generator(n_states, n_actions, seed)
    check_integer("traps", traps, 1, n_states - 1)
    check_integer("branching", branching, 1, n_states)
    sizes = np.repeat([n_states, traps], [(n_states - traps) * n_actions, traps * n_actions])
    rows = [
        random_distribution(rng, n_states - size + rng.choice(size, min(branching, size), replace=False))
        for size in sizes.tolist()
    ]
    return model_from_rows(rows, n_actions, name="random-traps")


def random_unreachable(
    *, n_states: int = 20, n_actions: int = 3, hidden: int = 5, branching: int = 3, seed: int = 0
) -> TabularMDP:
    """A sparse model whose last ``hidden`` states cannot be reached from s0, but lead to the others."""
    rng = make_model_generator(n_states, n_actions, seed)
    check_integer("hidden", hidden, 1, n_states - 1)
    check_integer("branching", branching, 1, n_states)
    highs = np.repeat([n_states - hidden, n_states], [(n_states - hidden) * n_actions, hidden * n_actions])
    rows = [random_distribution(rng, rng.choice(high, min(branching, high), replace=False)) for high in highs.tolist()]
    return model_from_rows(rows, n_actions, name="random-unreachable")


def random_waiting(
    *, n_states: int = 20, n_actions: int = 3, stay: float = 0.99, branching: int = 3, seed: int = 0
) -> TabularMDP:
    """A sparse model where about half of the states, never s0, keep the agent with probability ``stay``."""
    check_number("stay", stay, 0, 1, closed="[)")
    base = random_sparse(n_states=n_states, n_actions=n_actions, branching=branching, seed=seed)
    rng = np.random.default_rng([seed, 1])
    slow = np.concatenate([[False], rng.random(n_states - 1) < 0.5])
    rows = []
    for s in range(n_states):
        for a in range(n_actions):
            successors, probabilities = base.row(s, a)
            row = dict(zip(successors.tolist(), probabilities.tolist(), strict=True))
            if slow[s]:
                row = {target: p * (1 - stay) for target, p in row.items()}
                row[s] = row.get(s, 0.0) + stay
            rows.append({target: p for target, p in row.items() if p > 0})
    return model_from_rows(rows, n_actions, name="random-waiting")


def random_rare_exits(
    *, n_states: int = 20, n_actions: int = 3, rare: int = 4, p: float = 0.001, branching: int = 3, seed: int = 0
) -> TabularMDP:
    """A sparse model on the first states; one pair enters each of the last ``rare``, with probability p."""
    rng = make_model_generator(n_states, n_actions, seed)
    check_integer("rare", rare, 1, n_states - 1)
    check_number("p", p, 0, 1, closed="(]")
    check_integer("branching", branching, 1, n_states)
    common = n_states - rare
    check_integer("rare", rare, 1, common * n_actions)
    rows = [
        random_distribution(rng, rng.choice(common, min(branching, common), replace=False))
        for _ in range(n_states * n_actions)
    ]
    for exit_state, pair in enumerate(rng.choice(common * n_actions, rare, replace=False).tolist(), start=common):
        rows[pair] = {target: (1 - p) * q for target, q in rows[pair].items() if p < 1} | {exit_state: p}
    return model_from_rows(rows, n_actions, name="random-rare-exits")


def separation_instance(*, n_actions: int = 4, radius: float = 10.0, eta: float = 0.001, best: int = 0) -> TabularMDP:
    """The instance that separates exploration with and without a reset (``lemma_exp_sep``, ``fig:mdp-separation``).

    s0 leads to x, or with probability eta to a fork (s~). x leads to g with probability zeta = 1/(L - 1) a step. In the
    fork the action ``best`` leads to g and every other one to a pit, which leads to g with probability eta/2 a step. g
    leads to s0. The goal space of the lemma is {g}, state 1.

    *Without the reset* (``optimal_values(..., reset=False)``): V*(s0 -> g) = 1 + eta + (1 - eta)(L - 1) <= L, a
    policy pi that errs in the fork loses exactly 2 > epsilon, and the fork is met once in about (L + 1)/eta
    steps: no learner can be sure in less than the order of the diameter. *With it*, a policy that errs in
    the fork and resets in the pit loses eta (1 + V^pi), so the fork need never be seen.
    """
    check_integer("n_actions", n_actions, 2, 10_000)
    check_number("radius", radius, 2, 1e9)
    check_number("eta", eta, 0, 1, closed="()")
    check_integer("best", best, 0, n_actions - 1)
    zeta = 1 / (radius - 1)
    start, goal, x, fork, pit = range(5)
    rows: list[dict[int, float]] = [{x: 1 - eta, fork: eta}] * n_actions
    rows += [{start: 1.0}] * n_actions
    rows += [{goal: zeta, x: 1 - zeta} if zeta < 1 else {goal: 1.0}] * n_actions
    rows += [{goal if a == best else pit: 1.0} for a in range(n_actions)]
    rows += [{goal: eta / 2, pit: 1 - eta / 2}] * n_actions
    return model_from_rows(rows, n_actions, name="separation", labels=("s0", "g", "x", "fork", "pit"))


def make_known_model(setting: ExplorationSettings) -> TabularMDP:
    """Return the exact model of an environment that has one."""
    model = registry.make_exact_model(setting.env, setting.env_args, setting.start_seed)
    assert model is not None, f"{setting.env} has no model"
    return model


def waiting_chain(*, n_states: int = 5, stay: float = 0.9) -> TabularMDP:
    """A line: action 1 stays with probability ``stay``, else goes right; action 0 returns to s0.

    V*(s0 -> g) = g / (1 - stay), with a standard deviation of nearly the same size.
    """
    last = n_states - 1
    rows: list[dict[int, float]] = []
    for s in range(last):
        rows += [{0: 1.0}, {s + 1: 1 - stay, s: stay}]
    rows += [{0: 1.0}, {last: 1.0}]
    return model_from_rows(rows, 2, name="waiting-chain")
