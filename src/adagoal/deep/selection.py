"""From (D, E) of N candidate goals to the goal of each episode, through the rules of :mod:`adagoal.goals`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from adagoal import goals
from adagoal.core.errors import InputError
from adagoal.core.types import Floats, Singles
from adagoal.deep.config import Config
from adagoal.deep.goalspace import GoalSpace
from adagoal.deep.learner import State, compile_values

SELECT, EVALUATE = 2, 3
"""Purposes of random streams, beside those of the workers (0 and 1)."""


class Selector:
    """Chooses goals for S runs."""

    def __init__(
        self,
        configs: Sequence[Config],
        train: Sequence[GoalSpace],
        test: Sequence[GoalSpace],
        per_cycle: int,
        rule: goals.Rule | None = None,
    ) -> None:
        self.configs, self.train, self.test, self.per_cycle = configs, train, test, per_cycle
        self.rules = [_rule(config, rule) for config in configs]
        self.blind = not any(config.needs_ensemble or config.needs_density for config in configs)
        self._values = compile_values(configs)

    def choose(self, state: State, starts: Singles, cycle: int) -> tuple[Floats, list[dict[str, float]]]:
        """Training goals ``[S, B, goal]`` for the starts ``[S, B, observation]``, and means of what was known."""
        S, B = starts.shape[:2]
        N = self.configs[0].candidates
        rngs = [np.random.default_rng([config.seed, SELECT, cycle]) for config in self.configs]
        candidates = np.stack([f(rng, B * N) for f, rng in zip(self.train, rngs, strict=True)]).reshape(S, B, N, -1)
        if self.blind:
            D = E = visits = np.zeros((S, B, N))
        else:
            keys = jax.vmap(lambda c: jax.random.fold_in(jax.random.key(0), c))(np.full(S, cycle))
            found = self._values(state, starts, candidates.astype(np.float32), keys)
            D, E, visits = (np.asarray(x, np.float64) for x in found)
        chosen = np.zeros((S, B, candidates.shape[-1]))
        notes = []
        for s, (rule, rng) in enumerate(zip(self.rules, rngs, strict=True)):
            L = self.configs[s].radius_at(cycle * self.per_cycle)
            weights = [goals.weights(rule, known(D[s, b], E[s, b], visits[s, b], L)) for b in range(B)]
            picks = [goals.draw(w, rng) for w in weights]
            chosen[s] = candidates[s, np.arange(B), picks]
            notes.append(
                {
                    "distance": float(D[s, np.arange(B), picks].mean()),
                    "error": float(E[s, np.arange(B), picks].mean()),
                    "reachable": float((D[s] <= L).mean()),
                }
            )
        return chosen, notes

    def tests(self, cycle: int, rounds: int, episodes: int) -> Floats:
        """Test goals ``[rounds, S, B, goal]``, uniform in the test space."""
        rngs = [np.random.default_rng([config.seed, EVALUATE, cycle]) for config in self.configs]
        drawn = [f(rng, rounds * episodes) for f, rng in zip(self.test, rngs, strict=True)]
        return np.stack([d.reshape(rounds, episodes, d.shape[-1]) for d in drawn], 1)

    def values(self, state: State, starts: Singles, goals: Floats) -> tuple[Floats, Floats]:
        """D and sigma ``[S, n]`` of pairs of starts ``[S, n, observation]`` and goals ``[S, n, goal]``."""
        keys = jax.random.split(jax.random.key(0), len(starts))
        D, E, _ = self._values(state, starts, goals[:, :, None].astype(np.float32), keys)
        return np.asarray(D, np.float64)[..., 0], np.asarray(E, np.float64)[..., 0]

    def maps(self, state: State, starts: Singles, grid: Floats) -> tuple[Floats, Floats]:
        """D and E ``[S, n]`` over a grid of goals ``[n, goal]``, averaged over the starts ``[S, B, observation]``."""
        S, B = starts.shape[:2]
        wide = np.broadcast_to(grid.astype(np.float32), (S, B, *grid.shape))
        keys = jax.random.split(jax.random.key(0), S)
        D, E, _ = self._values(state, starts, wide, keys)
        return np.asarray(D, np.float64).mean(1), np.asarray(E, np.float64).mean(1)


def _rule(config: Config, given: goals.Rule | None) -> goals.Rule:
    if not config.rule_is_a_function:
        return goals.get(config.goal_rule)
    if given is None:
        raise InputError(f"the rule was a {config.goal_rule.replace(':', ' ')}; give it again", name="goal_rule")
    return given


def known(D: Floats, E: Floats, visits: Floats, L: float) -> goals.Known:
    """What a rule sees of N candidates; success counts per goal do not exist in a continuous space."""
    none: Any = np.zeros_like(D)
    return goals.Known(D, E, L, np.ones(len(D), bool), visits, none, none, none, none)
