"""From (D, E) of N candidate goals to the goal of each episode, through the rules of :mod:`adagoal.goal_rules`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from typing import Any

import jax
import numpy as np

from adagoal import goal_rules
from adagoal.core.errors import InputError
from adagoal.core.random_streams import StreamPurpose, jax_key_data, random_stream
from adagoal.core.types import Floats, Singles
from adagoal.deep import learner
from adagoal.deep.config import KNOWN_GOAL_FIELDS, ONWARD_GOAL_FIELDS, Config
from adagoal.deep.goal_samplers import GoalSampler
from adagoal.deep.learner import LearnerState, compile_values


class GoalSelector:
    """Chooses goals for S runs."""

    def __init__(
        self,
        configs: Sequence[Config],
        train: Sequence[GoalSampler],
        test: Sequence[GoalSampler],
        per_cycle: int,
        rule: goal_rules.GoalRule | None = None,
    ) -> None:
        self.configs, self.train_samplers, self.test_samplers, self.steps_per_cycle = configs, train, test, per_cycle
        self.rules = [_resolve_run_rule(config, rule) for config in configs]
        self.is_value_free = not any(config.needs_ensemble or config.needs_density for config in configs)
        self._estimate_values = compile_values(configs)
        self._sample_experience = None
        # a function of the user's may declare more than its configuration, which holds its name alone, can know
        self.required_fields = [goal_rules.required_fields(own, KNOWN_GOAL_FIELDS) for own in self.rules]
        if any("experienced" in needs for needs in self.required_fields):
            first = configs[0]
            count = first.episodes * (first.candidates - first.candidates // 2)
            self._sample_experience = learner.compile_experience(configs, count)
        self._running_compilations: list[Future[Any]] = []

    def compile_ahead(self, like: LearnerState, shapes: Sequence[tuple[int, int]], beside: Executor) -> None:
        """Compile :meth:`_evaluate_goals` for pairs (starts, goals of each) while something else is done."""
        S, O, G = len(self.configs), like.replay.observation.shape[-1], like.replay.goal.shape[-1]
        keys = jax.eval_shape(lambda: self._random_keys(StreamPurpose.CANDIDATE_VALUES))
        for B, N in shapes:
            start, goal = np.zeros((S, B, O), np.float32), np.zeros((S, B, N, G), np.float32)
            self._running_compilations.append(
                beside.submit(
                    lambda start, goal: self._estimate_values.lower(like, start, goal, keys).compile(), start, goal
                )
            )

    def _random_keys(self, purpose: StreamPurpose, *indices: int) -> Any:
        """Return the random keys ``[S]`` of all runs."""
        return learner.wrap_threefry_key(
            np.stack([jax_key_data(config.seed, purpose, *indices) for config in self.configs])
        )

    def _evaluate_goals(self, state: LearnerState, starts: Singles, goals: Floats, keys: Any) -> list[Floats]:
        """D, sigma and the density ``[S, B, N]`` of goals ``[S, B, N, goal]`` from starts ``[S, B, observation]``."""
        while self._running_compilations:
            self._running_compilations.pop().result()
        return [np.asarray(x, np.float64) for x in self._estimate_values(state, starts, goals.astype(np.float32), keys)]

    def choose_goals(self, state: LearnerState, starts: Singles, cycle: int) -> tuple[Floats, list[dict[str, float]]]:
        """Training goals ``[S, B, goal]`` for the starts ``[S, B, observation]``, and means of what was known."""
        S, B = starts.shape[:2]
        N = self.configs[0].candidates
        rngs = [random_stream(config.seed, StreamPurpose.TRAINING_GOALS, cycle) for config in self.configs]
        candidates = np.stack([f(rng, B * N) for f, rng in zip(self.train_samplers, rngs, strict=True)]).reshape(
            S, B, N, -1
        )
        more = [_empty_experience(N, B, "experienced" in needs) for needs in self.required_fields]
        if self._sample_experience is not None and int(state.replay.added[0]) > 0:
            more = self._add_achieved_candidates(
                state, candidates, rngs, self._random_keys(StreamPurpose.EXPERIENCE, cycle)
            )
        if self.is_value_free:
            D = E = visits = np.zeros((S, B, N))
        else:
            D, E, visits = self._evaluate_goals(
                state, starts, candidates, self._random_keys(StreamPurpose.CANDIDATE_VALUES, cycle)
            )
        chosen = np.zeros((S, B, candidates.shape[-1]))
        notes = []
        for s, (rule, rng) in enumerate(zip(self.rules, rngs, strict=True)):
            L = self.configs[s].radius_after_steps(cycle * self.steps_per_cycle)
            seen = [make_goal_info(D[s, b], E[s, b], visits[s, b], L, more[s][b]) for b in range(B)]
            picks = [goal_rules.sample_goal(goal_rules.compute_weights(rule, each), rng) for each in seen]
            chosen[s] = candidates[s, np.arange(B), picks]
            notes.append(
                {
                    "distance": float(D[s, np.arange(B), picks].mean()),
                    "error": float(E[s, np.arange(B), picks].mean()),
                    "reachable": float((D[s] <= L).mean()),
                }
            )
        return chosen, notes

    def _add_achieved_candidates(
        self, state: LearnerState, candidates: Floats, rngs: Sequence[np.random.Generator], keys: Any
    ) -> list[list[dict[str, Any]]]:
        """Put achieved goals in the second half of the candidates ``[S, B, N, goal]`` of the runs whose rule asks.

        Returns, for each run and start, the fields of :class:`adagoal.goal_rules.GoalInfo` that speak of them.
        """
        assert self._sample_experience is not None
        S, B, N, G = candidates.shape
        half, M = N // 2, N - N // 2
        wanted = candidates[:, 0, : learner.N_DENSITY_POINTS].astype(np.float32)
        seen, achieved, apart = (np.asarray(x) for x in self._sample_experience(state, wanted, keys))
        targets = np.stack([test(rng, B) for test, rng in zip(self.test_samplers, rngs, strict=True)])
        D, E = np.zeros((S, B * M)), np.zeros((S, B * M))
        if any(needs & ONWARD_GOAL_FIELDS for needs in self.required_fields):
            D, E = self.values_of_pairs(state, seen, np.repeat(targets, M, 1))
        more = []
        for s, needs in enumerate(self.required_fields):
            if "experienced" not in needs:
                more.append(_empty_experience(N, B, False))
                continue
            candidates[s, :, half:] = achieved[s].reshape(B, M, G)
            onward = [np.concatenate([np.zeros((B, half)), x[s].reshape(B, M)], 1) for x in (D, E)]
            more.append(
                [
                    {
                        "experienced": np.arange(N) >= half,
                        "divergence": float(apart[s]),
                        "onward_D": onward[0][b],
                        "onward_E": onward[1][b],
                    }
                    for b in range(B)
                ]
            )
        return more

    def draw_test_goals(self, cycle: int, rounds: int, episodes: int) -> Floats:
        """Test goals ``[rounds, S, B, goal]``, uniform in the test space."""
        rngs = [random_stream(config.seed, StreamPurpose.TEST_GOALS, cycle) for config in self.configs]
        drawn = [f(rng, rounds * episodes) for f, rng in zip(self.test_samplers, rngs, strict=True)]
        return np.stack([d.reshape(rounds, episodes, d.shape[-1]) for d in drawn], 1)

    def values_of_pairs(self, state: LearnerState, starts: Singles, goals: Floats) -> tuple[Floats, Floats]:
        """D and sigma ``[S, n]`` of pairs of starts ``[S, n, observation]`` and goals ``[S, n, goal]``."""
        D, E, _ = self._evaluate_goals(state, starts, goals[:, :, None], self._random_keys(StreamPurpose.PAIR_VALUES))
        return D[..., 0], E[..., 0]

    def values_on_grid(self, state: LearnerState, starts: Singles, grid: Floats) -> tuple[Floats, Floats]:
        """D and E ``[S, n]`` over a grid of goals ``[n, goal]``, averaged over the starts ``[S, B, observation]``."""
        S, B = starts.shape[:2]
        D, E, _ = self._evaluate_goals(
            state, starts, np.broadcast_to(grid, (S, B, *grid.shape)), self._random_keys(StreamPurpose.MAP_VALUES)
        )
        return D.mean(1), E.mean(1)


def _resolve_run_rule(config: Config, given: goal_rules.GoalRule | None) -> goal_rules.GoalRule:
    if not config.rule_is_a_function:
        return goal_rules.resolve_rule(config.goal_rule)
    if given is None:
        raise InputError(f"the rule was a {config.goal_rule.replace(':', ' ')}; give it again", name="goal_rule")
    return given


def _empty_experience(N: int, B: int, asked: bool) -> list[dict[str, Any]]:
    """What is known beside D, E and the density before there is any experience, where a rule asks for it."""
    if not asked:
        return [{}] * B
    nothing = {"experienced": np.zeros(N, bool), "divergence": np.inf, "onward_D": np.zeros(N), "onward_E": np.zeros(N)}
    return [nothing] * B


def make_goal_info(
    D: Floats, E: Floats, visits: Floats, L: float, more: dict[str, Any] | None = None
) -> goal_rules.GoalInfo:
    """What a rule sees of N candidates; success counts per goal do not exist in a continuous space."""
    none: Any = np.zeros_like(D)
    return goal_rules.GoalInfo(D, E, L, np.ones(len(D), bool), visits, none, none, none, none, **(more or {}))
