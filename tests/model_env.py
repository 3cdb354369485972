"""Known models as Gymnasium environments, correct or with a flaw, and a function that plays them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces

from adagoal.envs.model import TabularMDP

if TYPE_CHECKING:  # environment processes start faster without them
    from adagoal.core.environment import TabularEnv
    from adagoal.core.transition_data import TransitionCounts

NEVER = 2**60


def play(
    env: TabularEnv, steps: int, seed: int = 0, goals: list[int] | None = None, counts: TransitionCounts | None = None
) -> tuple[TransitionCounts, list[tuple[int, bool]]]:
    """Play random policies for the given goals, in rollouts of at most 300 steps."""
    from adagoal.core.environment import ExplorationPlan
    from adagoal.core.transition_data import TransitionCounts

    counts = counts or TransitionCounts(env.initial_states, env.n_actions, env.start)
    rng, done, episodes = np.random.default_rng(seed), 0, list[tuple[int, bool]]()
    choose = np.random.default_rng([seed, 1])
    while done < steps:
        S = counts.n_states
        goal_state = np.arange(S) if goals is None else np.array(goals)
        policy = (choose.integers(4 * env.n_actions + 1, size=(1, S, len(goal_state))) // 4).astype(np.int16)
        plan = ExplorationPlan(policy, goal_state, 25, np.full(S * env.n_actions, NEVER))
        outcome = env.rollout(plan, np.ones(len(goal_state)), counts, rng, (min(steps - done, 300), 10**6))
        done += outcome.steps
        episodes += zip(outcome.goals, outcome.reached, strict=True)
    return counts, episodes


def same_counts(one: TransitionCounts, two: TransitionCounts) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one.state().values(), two.state().values(), strict=True))


def with_terminal(mdp: TabularMDP, *states: int) -> TabularMDP:
    mdp.terminal[list(states)] = True
    return mdp


class ModelEnv(gymnasium.Env[Any, Any]):
    """Steps a model with the environment's generator; the start may be drawn from ``starts``."""

    def __init__(self, mdp: TabularMDP, starts: tuple[int, ...] | None = None) -> None:
        self.mdp, self.starts = mdp, starts or (mdp.start,)
        self.observation_space: spaces.Space[Any] = spaces.Discrete(mdp.n_states)
        self.action_space: spaces.Space[Any] = spaces.Discrete(mdp.n_actions)
        self.state = mdp.start

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = self.starts[0]
        if len(self.starts) > 1:
            self.state = self.starts[int(self.np_random.integers(len(self.starts)))]
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        successors, p = self.mdp.row(self.state, int(action))
        place = int(np.searchsorted(np.cumsum(p), self.np_random.random()))
        self.state = int(successors[min(place, len(p) - 1)])
        return self.observe(), 0.0, bool(self.mdp.terminal[self.state]), False, {}

    def observe(self) -> Any:
        return self.state


class PairEnv(ModelEnv):
    """Shows states as pairs of numbers, so the number of states is not declared."""

    def __init__(self, mdp: TabularMDP, starts: tuple[int, ...] | None = None) -> None:
        super().__init__(mdp, starts)
        self.observation_space = spaces.MultiDiscrete([1000, 1000])

    def observe(self) -> Any:
        return np.array(divmod(self.state, 7))


class Aliased(ModelEnv):
    """Two neighbouring states share one observation."""

    def observe(self) -> Any:
        return self.state // 2


class Reseeded(ModelEnv):
    """Every reset seeds the generator, so all episodes draw the same numbers."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=7)


class MersenneTwister(ModelEnv):
    """Draws with a generator whose state contains arrays."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.np_random = np.random.Generator(np.random.MT19937(seed))
        self.state = 0
        return self.observe(), {}


class LeakyReset(ModelEnv):
    """The first slip of an episode depends on the last state of the previous episode."""

    memory = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.memory = self.state % 2
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return super().step(action ^ self.memory)


class NoReset(ModelEnv):
    """Only the first hundred resets return to the start."""

    resets = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        state = self.state
        super().reset(seed=seed)
        self.resets += 1
        self.state = self.state if self.resets < 100 else state
        return self.observe(), {}


class Drifting(ModelEnv):
    """Actions change their meaning after some steps."""

    steps = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return super().step(1 - action if self.steps > 4000 else action)


class Ageing(ModelEnv):
    """Actions change their meaning eight steps after the reset."""

    age = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.age = 0
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.age += 1
        return super().step(1 - action if self.age > 8 else action)


class Breaking(ModelEnv):
    """Raises after some steps."""

    steps = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps > 700:
            raise RuntimeError("the motor is on fire")
        return super().step(action)


class SelfTruncating(ModelEnv):
    """Truncates its own episodes."""

    age = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.age = 0
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.age += 1
        state, reward, terminated, _, info = super().step(action)
        return state, reward, terminated, self.age >= 6, info
