"""Goal selection: candidates, their distance D and error E, the goal that a goal rule picks, and test goals."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from typing import Any

import jax
import numpy as np

from adagoal import goal_rules
from adagoal.core.array_types import Floats, Singles
from adagoal.core.errors import InputError
from adagoal.core.random_streams import StreamPurpose, jax_key_data, random_stream
from adagoal.deep import learner
from adagoal.deep.config import KNOWN_GOAL_FIELDS, ONWARD_GOAL_FIELDS, Config
from adagoal.deep.env_inspection import GoalSampler
from adagoal.deep.learner import LearnerState
from adagoal.deep.value_formulas import make_goal_info


class GoalSelector:
    """Chooses the goals of S runs; ``rule`` is the function behind the setting ``function:NAME``."""

    def __init__(
        self,
        configs: Sequence[Config],
        train_samplers: Sequence[GoalSampler],
        test_samplers: Sequence[GoalSampler],
        rule: goal_rules.GoalRule | None = None,
    ) -> None:
        self.configs = configs
        self.train_samplers, self.test_samplers = train_samplers, test_samplers
        self.rules = [_resolve_run_rule(config, rule) for config in configs]
        self.is_value_free = not any(config.needs_ensemble or config.needs_density for config in configs)
        self._estimate_values = learner.compile_values(configs)
        # asked of the rules, not of the configs: a config holds only the name of a user's function
        self.required_fields = [goal_rules.required_fields(own, KNOWN_GOAL_FIELDS) for own in self.rules]
        self._sample_experience = None
        if any("experienced" in needs for needs in self.required_fields):
            n_achieved = configs[0].candidates - configs[0].candidates // 2
            self._sample_experience = learner.compile_experience(configs[0].episodes * n_achieved, len(configs))
        self._running_compilations: list[Future[Any]] = []

    def compile_ahead(self, state_shapes: LearnerState, shapes: Sequence[tuple[int, int]], executor: Executor) -> None:
        """Compile the goal values in threads, for pairs (starts B, goals N of each)."""
        S, O, G = len(self.configs), state_shapes.replay.observation.shape[-1], state_shapes.replay.goal.shape[-1]
        keys = jax.eval_shape(lambda: self._random_keys(StreamPurpose.CANDIDATE_VALUES))

        def compile_values(B: int, N: int) -> Any:
            start, goal = np.zeros((S, B, O), np.float32), np.zeros((S, B, N, G), np.float32)
            return self._estimate_values.lower(state_shapes, start, goal, keys).compile()

        self._running_compilations += [executor.submit(compile_values, B, N) for B, N in shapes]

    def _random_keys(self, purpose: StreamPurpose, *indices: int) -> Any:
        # one per run, from its own seed: a run draws the same alone and together with others
        words = [jax_key_data(config.seed, purpose, *indices) for config in self.configs]
        return learner.wrap_threefry_key(np.stack(words))

    def _goal_values(self, state: LearnerState, starts: Singles, goals: Floats, keys: Any) -> list[Floats]:
        """D, E and the density ``[S, B, N]`` of goals ``[S, B, N, G]`` from starts ``[S, B, O]``."""
        # JAX would compile the same program once more while a thread does
        while self._running_compilations:
            self._running_compilations.pop().result()
        return [np.asarray(x, np.float64) for x in self._estimate_values(state, starts, goals.astype(np.float32), keys)]

    def choose_goals(
        self, state: LearnerState, starts: Singles, cycle: int, radii: Sequence[float]
    ) -> tuple[Floats, list[dict[str, float]]]:
        """Training goals ``[S, B, G]`` for the starts ``[S, B, O]``, and for each run means over these goals, and L.

        ``radii`` holds the L of each run.
        """
        S, B = starts.shape[:2]
        N = self.configs[0].candidates
        rngs = [random_stream(config.seed, StreamPurpose.TRAINING_GOALS, cycle) for config in self.configs]
        drawn = [sample(rng, B * N) for sample, rng in zip(self.train_samplers, rngs, strict=True)]
        candidates = np.stack(drawn).reshape(S, B, N, -1)
        experience = [_no_experience(N, B, "experienced" in needs) for needs in self.required_fields]
        # nothing was achieved before the first cycle has been learnt from
        if self._sample_experience is not None and int(state.replay.added[0]) > 0:
            keys = self._random_keys(StreamPurpose.EXPERIENCE, cycle)
            experience = self._add_achieved_candidates(state, candidates, rngs, keys)
        D = E = visits = np.zeros((S, B, N))
        if not self.is_value_free:
            keys = self._random_keys(StreamPurpose.CANDIDATE_VALUES, cycle)
            D, E, visits = self._goal_values(state, starts, candidates, keys)
        chosen, means = np.zeros((S, B, candidates.shape[-1])), []
        for s, (rule, rng, L) in enumerate(zip(self.rules, rngs, radii, strict=True)):
            infos = [make_goal_info(D[s, b], E[s, b], visits[s, b], L, experience[s][b]) for b in range(B)]
            picks = [goal_rules.sample_goal(goal_rules.compute_weights(rule, info), rng) for info in infos]
            chosen[s] = candidates[s, np.arange(B), picks]
            distance, error = (float(values[s, np.arange(B), picks].mean()) for values in (D, E))
            means.append({"distance": distance, "error": error, "reachable": float((D[s] <= L).mean())})
            if not self.is_value_free:
                means[-1]["radius"] = L
        return chosen, means

    def _add_achieved_candidates(
        self, state: LearnerState, candidates: Floats, rngs: Sequence[np.random.Generator], keys: Any
    ) -> list[list[dict[str, Any]]]:
        """Overwrite the second half of the candidates ``[S, B, N, G]`` with achieved goals, if the run's rule asks.

        Returns the fields of :class:`adagoal.goal_rules.GoalInfo` about them, for each run and start.
        """
        assert self._sample_experience is not None
        S, B, N, G = candidates.shape
        half, M = N // 2, N - N // 2
        # candidates of the first start serve all: they are drawn from the same space, and a density costs time
        wanted = candidates[:, 0, : learner.N_DENSITY_POINTS].astype(np.float32)
        states, achieved, divergence = (np.asarray(x) for x in self._sample_experience(state, wanted, keys))
        targets = np.stack([sample(rng, B) for sample, rng in zip(self.test_samplers, rngs, strict=True)])
        # D and E from each achieved goal to the test goal of its episode, only if a rule (discover) asks
        onward = np.zeros((2, S, B * M))
        if any(needs & ONWARD_GOAL_FIELDS for needs in self.required_fields):
            pairs, keys = np.repeat(targets, M, 1)[:, :, None], self._random_keys(StreamPurpose.PAIR_VALUES)
            onward = np.stack([values[..., 0] for values in self._goal_values(state, states, pairs, keys)[:2]])
        result = []
        for s, needs in enumerate(self.required_fields):
            if "experienced" not in needs:
                result.append(_no_experience(N, B, False))
                continue
            candidates[s, :, half:] = achieved[s].reshape(B, M, G)
            D, E = np.concatenate([np.zeros((2, B, half)), onward[:, s].reshape(2, B, M)], -1)
            shared = {"experienced": np.arange(N) >= half, "divergence": float(divergence[s])}
            result.append([{**shared, "onward_D": D[b], "onward_E": E[b]} for b in range(B)])
        return result

    def values_on_grid(self, state: LearnerState, starts: Singles, grid: Floats) -> tuple[Floats, Floats]:
        """D and E ``[S, n]`` over a grid of goals ``[n, G]``, averaged over the starts ``[S, B, O]``."""
        goals = np.broadcast_to(grid, (*starts.shape[:2], *grid.shape))
        D, E, _ = self._goal_values(state, starts, goals, self._random_keys(StreamPurpose.MAP_VALUES))
        return D.mean(1), E.mean(1)

    def draw_test_goals(self, cycle: int, rounds: int, episodes: int) -> Floats:
        """Test goals ``[rounds, S, B, G]``, uniform in the test space."""
        rngs = [random_stream(config.seed, StreamPurpose.TEST_GOALS, cycle) for config in self.configs]
        drawn = [sample(rng, rounds * episodes) for sample, rng in zip(self.test_samplers, rngs, strict=True)]
        return np.stack([goals.reshape(rounds, episodes, goals.shape[-1]) for goals in drawn], 1)


def _resolve_run_rule(config: Config, function: goal_rules.GoalRule | None) -> goal_rules.GoalRule:
    if not config.rule_is_a_function:
        return goal_rules.resolve_rule(config.goal_rule)
    if function is None:
        raise InputError(f"the rule was a {config.goal_rule.replace(':', ' ')}; give it again", name="goal_rule")
    return function


def _no_experience(N: int, B: int, is_required: bool) -> list[dict[str, Any]]:
    # before the first cycle nothing was achieved, so the divergence from the wanted goals is infinite
    if not is_required:
        return [{}] * B
    zeros = np.zeros(N)
    return [{"experienced": np.zeros(N, bool), "divergence": np.inf, "onward_D": zeros, "onward_E": zeros}] * B
