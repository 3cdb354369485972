"""The Gymnasium adapter has the semantics of the simulator."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces, wrappers
from numpy.typing import NDArray
from scipy import stats

from adagoal.api import explore as api
from adagoal.core.environment import ExplorationPlan
from adagoal.core.errors import InputError, RunWarning
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs import registry, toy_models
from adagoal.envs.gym_adapter import GymAdapter
from adagoal.envs.observation_keys import label_observation
from adagoal.envs.simulator import ModelSimulator
from experiments import extra_models
from model_env import NEVER, ModelEnv, PairEnv, SelfTruncating, play, same_counts, with_terminal

# --- equal to the simulator ---


@pytest.mark.parametrize("goal", [3, 7, 11])
def test_deterministic_model_gives_the_counts_of_the_simulator(goal: int) -> None:
    mdp = with_terminal(extra_models.random_deterministic(n_states=12, seed=goal), 5)
    simulated, episodes = play(ModelSimulator(mdp), 3000, goals=[goal])
    stepped, again = play(GymAdapter(ModelEnv(mdp), "model"), 3000, goals=[goal])
    assert same_counts(simulated, stepped)
    assert episodes == again
    assert len(episodes) > 20


def test_transition_frequencies_are_those_of_the_model() -> None:
    mdp = with_terminal(toy_models.random_sparse(n_states=8, n_actions=2, seed=1), 6)
    counts, _ = play(GymAdapter(ModelEnv(mdp), "model"), 40_000)
    p_hat, p = counts.empirical_kernel(), mdp.kernel().toarray()
    assert counts.n[12:14].tolist() == [0, 0]
    assert counts.terminal.tolist() == mdp.terminal.tolist()
    for pair in np.flatnonzero(counts.n):
        possible = p[pair] > 0
        assert not p_hat[pair, ~possible].any()
        seen = p_hat[pair, possible] * counts.n[pair]
        assert stats.chisquare(seen, p[pair, possible] * counts.n[pair]).pvalue > 1e-5
    assert counts.visits.sum() == 40_000


def test_states_numbered_as_found_give_the_same_graph() -> None:
    mdp = extra_models.random_deterministic(n_states=200, n_actions=2, seed=0)
    env = GymAdapter(PairEnv(mdp), "pairs", max_states=400)
    counts, _ = play(env, 20_000)
    assert env.initial_states == 64
    assert counts.n_states > 128
    assert not counts.seen[-1]
    number = {tuple(int(i) for i in label.strip("[]").split()): s for s, label in enumerate(env.labels) if s}
    number[0, 0] = 0
    for state in range(200):
        here = number.get(divmod(state, 7))
        for action in range(2):
            pair = -1 if here is None else here * 2 + action
            if pair >= 0 and counts.n[pair]:
                assert counts.support[pair] == 1
                assert counts.successor[pair, 0] == number[divmod(int(mdp.row(state, action)[0][0]), 7)]


def test_rollout_returns_for_a_state_without_a_row_in_the_plan() -> None:
    env = GymAdapter(PairEnv(toy_models.chain_model(n_states=200)), "pairs")
    counts = TransitionCounts(env.initial_states, env.n_actions, env.start)
    rows = counts.n_states
    plan = ExplorationPlan(np.ones((1, rows, 1), np.int16), np.array([rows - 1]), 10**6, np.full(rows * 2, NEVER))
    rng = np.random.default_rng(0)
    assert env.rollout(plan, np.ones(1), counts, rng, (10**6, 1)).goals == [rows - 1]
    far = ExplorationPlan(plan.policy, np.array([NEVER]), 10**6, plan.replan_thresholds)
    steps = env.rollout(far, np.ones(1), counts, rng, (10**6, 1)).steps
    assert steps <= rows
    assert counts.n_states > rows


def test_new_states_end_the_rollout_if_the_plan_says_so() -> None:
    env = GymAdapter(PairEnv(toy_models.chain_model(n_states=9)), "pairs")
    counts = TransitionCounts(env.initial_states, env.n_actions, env.start)
    plan = ExplorationPlan(np.ones((1, 64, 1), np.int16), np.array([-1]), 100, np.full(128, NEVER))
    for expected in range(1, 9):
        outcome = env.rollout(plan, np.ones(1), counts, np.random.default_rng(0), (1000, 100))
        assert (outcome.steps, outcome.goals, outcome.reached) == (1, [-1], [True])
        assert counts.seen.sum() == 1 + expected


def test_thresholds_end_the_rollout() -> None:
    env = GymAdapter(ModelEnv(toy_models.chain_model(n_states=4)), "chain")
    counts = TransitionCounts(4, 2, 0)
    threshold = np.full(8, NEVER)
    threshold[3] = 5
    plan = ExplorationPlan(np.ones((1, 4, 1), np.int16), np.array([3]), 100, threshold)
    env.rollout(plan, np.ones(1), counts, np.random.default_rng(0), (1000, 100))
    assert counts.n[3] == 5
    env.rollout(plan, np.ones(1), counts, np.random.default_rng(0), (1000, 100))
    assert counts.n[3] == 6


def test_periodic_policies_are_played_by_stage() -> None:
    env = GymAdapter(ModelEnv(toy_models.chain_model(n_states=6)), "chain")
    counts = TransitionCounts(6, 2, 0)
    policy = np.array([1, 1, 0, 1, 1])[:, None, None].repeat(6, axis=1).astype(np.int16)
    plan = ExplorationPlan(policy, np.array([5]), 5, np.full(12, NEVER))
    outcome = env.rollout(plan, np.ones(1), counts, np.random.default_rng(0), (1000, 1))
    assert (outcome.steps, outcome.reached) == (6, [False])
    assert counts.n.reshape(6, 2).tolist() == [[0, 1], [0, 2], [1, 1], [0, 0], [0, 0], [0, 0]]


# --- starts, ends, limits ---


def test_random_starts_are_drawn_at_a_virtual_start() -> None:
    mdp = toy_models.chain_model(n_states=6, slip=0.2)
    env = GymAdapter(ModelEnv(mdp, starts=(1, 2, 4)), "starts")
    assert (env.start, env.state_bound) == (6, 7)
    counts, _ = play(env, 20_000)
    drawn = counts.empirical_kernel()[12:14] * counts.n[12:14, None]
    assert drawn.sum(axis=0)[[0, 3, 5, 6]].tolist() == [0, 0, 0, 0]
    assert stats.chisquare(drawn.sum(axis=0)[[1, 2, 4]]).pvalue > 1e-5
    hidden = GymAdapter(PairEnv(mdp, starts=(1, 2, 4)), "starts")
    found, _ = play(hidden, 2000)
    assert (hidden.start, hidden.labels[0]) == (0, "start")
    assert set(found.successor[0, : found.support[0]].tolist()) <= set(range(1, 7))


def test_a_start_that_never_repeats_is_warned_about() -> None:
    mdp = toy_models.chain_model(n_states=3000)
    with pytest.warns(RunWarning, match=r"each of 16 resets of pairs led to another state.*start_seed=0 explores"):
        GymAdapter(PairEnv(mdp, starts=tuple(range(3000))), "pairs")
    GymAdapter(PairEnv(mdp, starts=tuple(range(3000))), "pairs", "random")
    GymAdapter(PairEnv(mdp, starts=(1, 2, 4)), "pairs")


def first_steps(start_seed: int | None) -> NDArray[np.bool_]:
    """Return whether the first step of each episode slipped."""
    env = ModelEnv(toy_models.chain_model(n_states=9, slip=0.3), starts=(3, 4, 5))
    adapter = GymAdapter(env, "starts", start_seed)
    counts, slips = TransitionCounts(adapter.initial_states, 2, adapter.start), []
    policy = np.full((1, counts.n_states, 1), 1, np.int16)
    plan = ExplorationPlan(policy, np.array([NEVER]), 1, np.full(counts.n_states * 2, NEVER))
    for _ in range(2000):
        before = counts.empirical_kernel()[adapter.start * 2 + 1] * counts.n[adapter.start * 2 + 1]
        adapter.rollout(plan, np.ones(1), counts, np.random.default_rng(0), (100, 1))
        after = counts.empirical_kernel()[adapter.start * 2 + 1] * counts.n[adapter.start * 2 + 1]
        slips.append(int(np.argmax(after - before)) < adapter.start)
    return np.array(slips)


def test_a_start_seed_fixes_the_start_and_not_the_dynamics() -> None:
    slips = first_steps(start_seed=0)
    assert stats.binomtest(int(slips.sum()), len(slips), 0.3).pvalue > 1e-5
    again = stats.binomtest(int((slips[1:] & slips[:-1]).sum()), len(slips) - 1, 0.09)
    assert again.pvalue > 1e-5


class Wrapped(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A user's wrapper around a time limit."""


def test_time_limits_are_removed_without_changing_the_object() -> None:
    limited = Wrapped(wrappers.TimeLimit(ModelEnv(toy_models.chain_model(n_states=30)), 5))
    env = GymAdapter(limited, "chain")
    counts = TransitionCounts(env.initial_states, 2, 0)
    plan = ExplorationPlan(np.ones((1, 30, 1), np.int16), np.array([29]), 100, np.full(60, NEVER))
    outcome = env.rollout(plan, np.ones(1), counts, np.random.default_rng(0), (1000, 1))
    assert (outcome.reached, outcome.steps, env.warnings, env.void_reasons) == ([True], 30, [], [])
    assert isinstance(limited.env, wrappers.TimeLimit)


def test_environment_that_truncates_itself_is_reset_with_a_warning() -> None:
    env = GymAdapter(SelfTruncating(toy_models.chain_model(n_states=10)), "impatient")
    counts, _ = play(env, 3000)
    [warning] = env.warnings
    assert "each time that it truncated an episode" in warning
    assert "remove the limit" in warning
    assert not counts.seen[8:].any()


def test_babyai_has_no_time_limit() -> None:
    env, _ = registry.make_single_env("BabyAI-GoToRedBallGrey-v0", {}, 1, None)
    assert isinstance(env, GymAdapter)
    env.reset_with_seed(0)
    assert not any(env.backend.step(0)[3] for _ in range(100))  # the limit of the environment is 64


def test_state_that_ends_only_some_episodes_gives_a_warning() -> None:
    mdp = with_terminal(toy_models.chain_model(n_states=6), 3)

    class Merged(ModelEnv):
        def observe(self) -> int:
            return min(self.state, 2)

    env = GymAdapter(Merged(mdp), "merged")
    play(env, 3000)
    assert any("ended the episode at one visit and not at another" in line for line in env.void_reasons)


class Exit(ModelEnv):
    """Action 1 in state 2 ends the episode with probability 0.2 and shows the same observation again."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.state == 2 and action == 1 and self.np_random.random() < 0.2:
            return self.observe(), 0.0, True, False, {}
        return super().step(action)


@pytest.mark.parametrize("starts", [(0,), (0, 1)])
def test_with_max_states_a_terminated_observation_is_a_separate_state(starts: tuple[int, ...]) -> None:
    env = Exit(toy_models.chain_model(n_states=4), starts)
    torn = api.explore(env, 12, 1.0, seed=0)
    (line,) = torn.void
    bound = 2 * (4 + (len(starts) > 1))
    assert line.endswith(f"; max_states={bound} (--max-states {bound}) makes the two visits different states")
    result = api.explore(env, 12, 1.0, seed=0, max_states=bound)
    assert (result.status, result.void) == ("certified", [])
    still, ended = result.state("2"), result.state("2 (end)")
    assert result.certificate(ended).lower > result.certificate(still).upper
    policy = result.policy(ended)
    assert policy.act(2) == policy(still) == 1


def test_toy_text_keeps_its_numbers_with_max_states() -> None:
    env, _ = registry.make_single_env(gymnasium.make("FrozenLake-v1"), {}, None, 100)
    assert env.initial_states == env.state_bound == 16
    assert env.labels[15] == "(3, 3) goal"


def test_states_numbered_as_found_have_separate_terminal_states() -> None:
    env, _ = registry.make_single_env("Blackjack-v1", {}, None, None)
    counts, _ = play(env, 5000, goals=[NEVER])
    assert isinstance(env, GymAdapter)
    assert not any("at another" in line for line in env.void_reasons)
    shown = {label for label, ends in zip(env.labels, counts.terminal, strict=False) if not ends}
    ended = {label for label, ends in zip(env.labels, counts.terminal, strict=False) if ends}
    assert all(label.endswith(" (end)") for label in ended)
    assert {label.removesuffix(" (end)") for label in ended} & shown
    assert not ended & shown


def test_wrong_spaces_give_one_line_error() -> None:
    env = ModelEnv(toy_models.chain_model())
    env.action_space = spaces.MultiDiscrete([2, 2])
    with pytest.raises(InputError, match="actions of type MultiDiscrete"):
        GymAdapter(env, "wrong")
    env = ModelEnv(toy_models.chain_model())
    env.observation_space = spaces.Graph(spaces.Box(0, 1), None)
    with pytest.raises(InputError, match="observations of type Graph"):
        GymAdapter(env, "wrong")
    env.observation_space = spaces.Discrete(2)
    with pytest.raises(InputError, match="not in its space"):
        play(GymAdapter(env, "wrong"), 30_000, goals=[NEVER])


def test_structured_observations_and_shifted_spaces() -> None:
    class Structured(ModelEnv):
        def observe(self) -> Any:
            return {"a": (self.state % 2, np.array([self.state // 2])), "b": "x" * self.state}

    mdp = toy_models.chain_model(n_states=6)
    env = Structured(mdp)
    inner = spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 9, (1,), np.int64)])
    env.observation_space = spaces.Dict({"a": inner, "b": spaces.Text(9)})
    assert play(GymAdapter(env, "structured"), 2000)[0].seen.sum() == 6

    class Shifted(ModelEnv):
        def observe(self) -> int:
            return self.state - 3

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return super().step(action - 5)

    shifted = Shifted(mdp)
    shifted.observation_space, shifted.action_space = spaces.Discrete(6, start=-3), spaces.Discrete(2, start=5)
    assert same_counts(play(GymAdapter(shifted, "a"), 1000)[0], play(GymAdapter(ModelEnv(mdp), "b"), 1000)[0])


def test_too_many_states_error_names_the_option() -> None:
    with pytest.raises(InputError, match="max_states: pairs has more than 20 states"):
        play(GymAdapter(PairEnv(extra_models.random_deterministic(n_states=50)), "pairs", max_states=20), 50_000)


class Shown(ModelEnv):
    """A chain whose observations are made by a function of the state."""

    def __init__(self, space: spaces.Space[Any], show: Callable[[int], Any]) -> None:
        super().__init__(toy_models.chain_model(n_states=4))
        self.observation_space, self.show = space, show

    def observe(self) -> Any:
        return self.show(self.state)


@pytest.mark.parametrize(
    ("space", "show", "said"),
    [
        (spaces.Discrete(4), lambda s: 2.7 if s == 2 else s, "must be integers, got 2.7"),
        (spaces.Discrete(4), lambda s: str(s), "must be integers, got '0'"),
        (spaces.Discrete(4), lambda s: s + 1, "4, which is not in its space"),
        (spaces.Discrete(4), lambda s: s + 7, "7, which is not in its space"),
        (
            spaces.Box(0, 9, (1,), np.int64),
            lambda s: np.array([s / 2]),
            r"must be int64, as their space says, got \[0.5\]",
        ),
        (
            spaces.Box(0, 255, (1,), np.uint8),
            lambda s: np.array([300 * s]),
            r"must be uint8, as their space says, got \[300\]",
        ),
        (
            spaces.Box(0, 9, (1,), np.int64),
            lambda s: np.array([s, s]),
            r"must have the shape \(1,\) of their space, got \(2,\)",
        ),
        (spaces.Box(0, 9, (1,)), lambda s: np.array([np.nan if s == 2 else s]), "must not contain NaN"),
    ],
)
def test_invalid_observations_are_refused(space: spaces.Space[Any], show: Callable[[int], Any], said: str) -> None:
    """Observations that need rounding are refused, because two states might become one."""
    with pytest.raises(InputError, match=said):
        api.explore(Shown(space, show), 6, max_states=20, budget=3000)


def test_negative_zero_is_the_same_state() -> None:
    signs = itertools.cycle((1.0, -1.0))
    env = GymAdapter(
        Shown(spaces.Box(-9, 9, (1,)), lambda s: np.array([s * next(signs) if s == 0 else s])), "zeros", max_states=9
    )
    assert not env._env.has_virtual_start
    assert play(env, 2000)[0].seen.sum() == 4


class Unstartable(ModelEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        raise RuntimeError("no power\nat all")


def test_failing_reset_gives_one_line_error() -> None:
    line = r"^env: dead cannot be reset: RuntimeError: no power at all \(test_gym_adapter\.py, line \d+\)$"
    with pytest.raises(InputError, match=line):
        GymAdapter(Unstartable(toy_models.chain_model()), "dead")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "OldStep",
            r"step\(\) must return \(observation, reward, terminated, truncated, info\), it returned 4 values; this is",
        ),
        (
            "OldReset",
            r"reset\(\) must return \(observation, info\), it returned int; this is the interface of the older gym",
        ),
        ("PairReset", r"reset\(\) must return \(observation, info\), it returned 2 values"),
        ("NoStep", "it returned NoneType"),
        ("LongStep", "it returned 6 values"),
        ("Exits", "raised SystemExit: 7"),
        ("Unmakeable", r"cannot be made \(SystemExit: no licence\)"),
    ],
)
def test_wrong_return_values_and_exits_give_one_line_error(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        api.explore(f"failing_envs:{name}-v0", 6, epsilon=0.1, budget=3000)
    assert "\n" not in str(caught.value)


def test_escape_sequences_are_removed_from_messages() -> None:
    class Colourful(ModelEnv):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            raise ValueError("\x1b[31mred\x1b[0m\n\u202esdrawkcab " + "x" * 10_000)

    with pytest.raises(InputError) as caught:
        api.explore(Colourful(toy_models.chain_model()), 6)
    assert "red" in str(caught.value)
    assert not set("\x1b\n\u202e") & set(str(caught.value))
    assert len(str(caught.value)) < 700


def test_changed_start_during_set_up_is_reported() -> None:
    """Resets before the first step of the run must lead to the start too."""

    class Wanders(ModelEnv):
        resets = 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            self.resets += 1
            self.state = 2 if self.resets == 20 else 0
            return self.observe(), {}

    env = GymAdapter(Wanders(toy_models.chain_model()), "wanders")
    play(env, 1)
    assert any("led to another state than the start" in r and "--start random" in r for r in env.void_reasons)


def test_too_many_actions_give_one_line_error() -> None:
    env = ModelEnv(toy_models.chain_model())
    env.action_space = spaces.Discrete(40_000)
    with pytest.raises(InputError, match="at most 32766"):
        GymAdapter(env, "wide")


def test_terminated_may_be_any_truth_value() -> None:
    class Sloppy(ModelEnv):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            state, reward, terminated, truncated, info = super().step(action)
            return state, reward, terminated or None, truncated, info  # type: ignore[return-value]

    mdp = with_terminal(toy_models.chain_model(n_states=5), 4)
    env = GymAdapter(Sloppy(mdp), "sloppy")
    assert same_counts(play(env, 2000)[0], play(GymAdapter(ModelEnv(mdp), "tidy"), 2000)[0])
    assert env.warnings == env.void_reasons == []


def test_labels_of_long_observations_show_what_differs() -> None:
    first = {"pos": np.zeros(40, int), "note": "x" * 40, "flags": (1, 2)}
    second = {**first, "pos": np.eye(1, 40, 7, int)[0], "flags": (1, 3)}
    assert label_observation(second, first) == "pos[7]=1, flags[1]=3"
    assert label_observation(np.eye(1, 90, 3, int)[0], np.zeros(90, int)) == "[3]=1"
    words = "You are in the kitchen, next to a stove and a fridge that hums. The door is {}."
    assert label_observation(words.format("open"), words.format("closed")) == "open."
    assert label_observation(np.array([1, 2]), np.zeros(2, int)) == "[1 2]"
    assert label_observation(first, first).endswith("\N{HORIZONTAL ELLIPSIS}")


class LongObservations(ModelEnv):
    """Observations that are too long for a label: one entry is 1, all others are 0."""

    def __init__(self) -> None:
        super().__init__(toy_models.chain_model(n_states=6))
        self.observation_space = spaces.MultiBinary(60)

    def observe(self) -> Any:
        return np.eye(60, dtype=np.int8)[self.state]


def test_states_with_long_observations_have_different_labels() -> None:
    env = GymAdapter(LongObservations(), "long", max_states=20)
    play(env, 500)
    assert len(set(env.labels)) == len(env.labels) > 2
    assert env.labels[1] == "[0]=0, [1]=1"
