"""Play a policy in a Gymnasium environment: one episode for each goal or start."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adagoal.certification.certifier import ROLLOUTS_PER_BLOCK
from adagoal.certification.criteria import Criterion, Episode
from adagoal.certification.policies import BatchPolicy, check_action
from adagoal.certification.start_setters import StartSetter, find_start_setter, goal_setter, user_start_setter
from adagoal.certification.value_spaces import ValueSpace
from adagoal.core.errors import EnvironmentFailure, InputError, describe_exception
from adagoal.core.random_streams import StreamPurpose, random_stream
from adagoal.core.types import Bools, Floats
from adagoal.envs.env_checker import find_time_limit


@dataclass(frozen=True)
class EpisodeTask:
    """Everything that the episodes of a certification have in common."""

    env_name: str
    make_env: Callable[[], Any]
    make_policy: Callable[[], BatchPolicy]
    subject: str  # "goal" or "start"
    space: ValueSpace
    criterion: Criterion
    seed: int
    set_start: Callable[[Any, Any], Any] | None = None  # of the user
    find_goal_setter: Callable[[Any], Callable[[Any], None] | None] | None = None
    radius: int = 1  # steps of an episode, at most

    def prepare_env(self, probes: Sequence[Any] = ()) -> tuple[Any, StartSetter]:
        """Make an environment, and find out how to put it into a start; ``probes`` are starts to try."""
        env = self.make_env()
        with self.convert_exceptions():
            if self.set_start is not None:
                return env, user_start_setter(self.set_start)
            set_goal = self.find_goal_setter(env) if self.subject == "goal" and self.find_goal_setter else None
            if set_goal is not None:
                return env, goal_setter(env, set_goal)
            return env, find_start_setter(env, self.space.names, probes)

    def find_radius(self, given: int | None) -> int:
        """Return the steps of an episode: as given, those of ``survive:N``, or the limit of the environment."""
        probes = [self.space.split_names(value) for value in self.space.tree_values[[0, -1]]]
        env, start = self.prepare_env(probes)
        limit = find_time_limit(env)
        radius = given or self.criterion.steps or limit
        if radius is None:
            raise InputError(f"missing; the episodes of {self.env_name} have no time limit", "radius")
        if limit is not None and radius > limit:
            # an episode that the environment cuts off says nothing about later steps
            text = f"must be a whole number in 1..{limit}, the steps of an episode, got {radius}"
            raise InputError(text, "radius" if given else "criterion")
        if self.criterion.steps not in (None, radius):
            raise InputError(
                f"{radius} steps do not fit the criterion {self.criterion.text}; leave radius out", "radius"
            )
        with self.convert_exceptions():
            first = start(env, 0, probes[0])
            seen = env.step(env.action_space.sample())[0]
            env.close()
        # an environment that ends its episodes at a goal of its own would make the certificate false
        shown = seen.get("desired_goal") if self.subject == "goal" and isinstance(seen, dict) else None
        if shown is not None and not np.allclose(shown, first["desired_goal"]):
            raise InputError(f"{self.env_name} does not keep the goal that was set; give set_start", "goals")
        return radius

    @contextlib.contextmanager
    def convert_exceptions(self) -> Iterator[None]:
        """Turn exceptions of the environment in this block into an EnvironmentFailure."""
        try:
            yield
        except InputError:
            raise
        except (Exception, SystemExit) as error:
            raise EnvironmentFailure(f"{self.env_name} raised {describe_exception(error)}", "env") from error


class EpisodePlayer:
    """A :class:`adagoal.certification.players.Player` for Gymnasium environments.

    The episodes of a block are played in step, so a network computes the actions of all of them at once.
    """

    def __init__(self, task: EpisodeTask) -> None:
        self._task, self._policy = task, task.make_policy()
        self._envs = [task.prepare_env() for _ in range(ROLLOUTS_PER_BLOCK)]

    def play_blocks(self, blocks: Sequence[tuple[int, Floats]], round_: int) -> list[Bools]:
        """See :meth:`Player.play_blocks`."""
        return [self._play_block(values, round_, block) for block, values in blocks]

    def _play_block(self, values: Floats, round_: int, block: int) -> Bools:
        task, n = self._task, len(values)
        rngs = [random_stream(task.seed, StreamPurpose.CERTIFIED_EPISODE, round_, k, block) for k in range(n)]
        episodes = [self._start_episode(*slot) for slot in zip(self._envs, rngs, values, strict=False)]
        success: list[bool | None] = [None] * n
        for t in range(task.radius):
            running = [k for k in range(n) if success[k] is None]
            if not running:
                break
            actions = self._policy([episodes[k].observations[-1] for k in running], [rngs[k] for k in running])
            for k, action in zip(running, actions, strict=True):
                env, episode = self._envs[k][0], episodes[k]
                self._step(env, episode, action)
                is_over = episode.terminated or episode.truncated or t + 1 == task.radius
                success[k] = task.criterion.judge(env, episode, is_over)
        return np.array(success, bool)

    def _start_episode(self, env: tuple[Any, StartSetter], rng: np.random.Generator, value: Floats) -> Episode:
        seed, named = int(rng.integers(2**31)), self._task.space.split_names(value)
        with self._task.convert_exceptions():
            return Episode(named, [env[1](env[0], seed, named)])

    def _step(self, env: Any, episode: Episode, action: Any) -> None:
        action = check_action(env.action_space, action)
        with self._task.convert_exceptions():
            observation, reward, episode.terminated, episode.truncated, info = env.step(action)
            episode.rewards.append(float(reward))
        episode.observations.append(observation)
        episode.actions.append(action)
        episode.infos.append(info)
