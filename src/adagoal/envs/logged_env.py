"""An environment known from recorded transitions only: a run can plan for it, but not step it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from adagoal.core.array_types import Bools, Floats, Longs
from adagoal.core.environment import ExplorationPlan, ObservedStates, RolloutLimits, RolloutOutcome
from adagoal.core.errors import InputError, to_single_line
from adagoal.core.goal_space import GoalSpace
from adagoal.core.transition_data import TransitionCounts
from adagoal.envs.base_env import BaseEnv
from adagoal.envs.markov_tests import MarkovTests
from adagoal.envs.recorded_transitions import EVENT_START, RecordedTransitions, describe_states, find_value


class LoggedEnv(BaseEnv):
    """A :class:`~adagoal.core.environment.TabularEnv` of recorded transitions.

    ``start``: the state to which the reset leads; None: the state in which all episodes of the log begin; "random":
    a virtual start, whose only action draws the first state of an episode. ``actions``: all actions, if the log lacks
    some. ``n_states``: the number of states, seen or not, or a bound on it, without (start) and (end) that a log has
    not; None if it is not known.
    """

    layout = None  # a log has no map
    is_recorded = True

    def __init__(
        self,
        log: RecordedTransitions,
        start: Any = None,
        actions: Sequence[Any] | None = None,
        n_states: int | None = None,
    ) -> None:
        self.log = log
        self.action_labels = _action_labels(log, actions)
        start_state, is_virtual, is_certain = _find_start(log, start)
        if is_virtual:
            # Its number is the first, because states are numbered in the order of their discovery.
            log = self.log = log.with_first_state(EVENT_START)
        n_known, n_recorded = len(log.states), len(log.states) - log.n_added_states
        if n_states is not None and (not isinstance(n_states, int) or n_states < n_recorded):
            text = f"must be a whole number, at least the {n_recorded:,} of the log, got {n_states!r}"
            raise InputError(text, "n_states")
        # The user counts the states of the environment, and knows of no other. A bound that is one too small would
        # say that a state never seen does not exist.
        state_bound = n_known + 1 if n_states is None else n_states + log.n_added_states
        sizes = len(self.action_labels), start_state, state_bound, n_known
        super().__init__(log.name, *sizes, is_certain, states_declared=n_states is not None)
        self.labels = tuple(to_single_line(state) for state in log.states)
        self.has_virtual_start = is_virtual
        # If the log decides between a fixed and a virtual start, the events of both must hold.
        self.n_possible_starts = 2 if start is None and (is_virtual or not is_certain) else 1
        self.terminal: Bools = np.zeros(n_known, bool)  # [S]
        self.terminal[log.next_state[log.terminated]] = True
        if self.terminal[start_state]:
            raise InputError(
                f"state {self.labels[start_state]} is terminal, so no other can be reached; choose another", "start"
            )
        resets = np.flatnonzero(log.action < 0)
        if len(resets) and is_virtual:
            raise InputError(
                "cannot be combined with a random start; mark episodes by a column instead", "reset_action"
            )
        if len(wrong := resets[log.next_state[resets] != start_state]):
            led_to = self.labels[log.next_state[wrong[0]]]
            log.fail_at(int(wrong[0]), f"the reset leads to {led_to}, not to the start {self.labels[start_state]}")
        # The virtual start has one action: all others count as the reset.
        first_pair = start_state * self.n_actions
        self.absent_pairs: Longs = np.arange(first_pair + 1, first_pair + self.n_actions if is_virtual else 0)
        self._markov_tests = MarkovTests(self.n_actions)
        self._markov_tests.add_transitions(*self._moves_with_resets(self._find_boundaries()))

    def moves(self) -> tuple[Longs, Longs]:
        """Return the steps to count, as :meth:`TransitionCounts.add_steps` takes them: moves, and states after them.

        A reset is counted where the log says that an episode begins in the start.
        """
        if self.has_virtual_start or self.start_is_certain:
            return self._moves_with_resets(self._episode_beginnings() & self.has_virtual_start)
        # Resets are evidence for the start (lemma 10), except the first one, which says what the start is. A reset of
        # the log is counted already, so an episode that follows it adds no evidence.
        follows_reset = np.append(True, self.log.action[:-1] < 0)
        return self._moves_with_resets(self._episode_beginnings() & ~follows_reset)

    def _episode_beginnings(self) -> Bools:
        return np.zeros(len(self.log), bool) if self.log.begins_episode is None else self.log.begins_episode

    def _find_boundaries(self) -> Bools:
        """[N] transitions that do not continue the one before."""
        log = self.log
        continues = np.append(False, (log.state[1:] == log.next_state[:-1]) & ~log.terminated[:-1])
        return ~continues | self._episode_beginnings()

    def _moves_with_resets(self, boundaries: Bools) -> tuple[Longs, Longs]:
        """Return the moves of the log with a reset before those of ``boundaries`` [N], and the states after them.

        If the start is virtual, a draw of the first state follows the reset before every episode.
        """
        log = self.log
        moves = np.where(log.action >= 0, log.state * self.n_actions + log.action, -1 - log.state)
        resets = np.flatnonzero(boundaries)
        draws = np.flatnonzero(self._episode_beginnings() & self.has_virtual_start)
        previous = np.where(resets > 0, log.next_state[resets - 1], self.start)
        # np.insert keeps the order of values with the same place, so a draw comes after its reset.
        places = np.concatenate([resets, draws])
        inserted = np.concatenate([-1 - previous, np.full(len(draws), self.start * self.n_actions)])
        landed = np.concatenate([np.full(len(resets), self.start), log.state[draws]])
        return np.insert(moves, places, inserted), np.insert(log.next_state, places, landed)

    def rollout(
        self, plan: ExplorationPlan, weights: Floats, counts: TransitionCounts, rng: Generator, limits: RolloutLimits
    ) -> RolloutOutcome:
        """Refuse: a log has no further steps."""
        raise InputError(f"{self.name} is a log, which cannot be stepped; use adagoal.certify_data", "env")

    def assign_states_to_goals(self, space: GoalSpace) -> bool:
        """Add all states of the log; the observation is the state as the log has it."""
        for number, state in enumerate(self.log.states):
            # A virtual start has no observation, so it belongs to no goal.
            if not (self.has_virtual_start and number == self.start):
                space.add_state(number, state, self.labels[number])
        return self.state_bound == self.initial_states

    def observed_states(self) -> ObservedStates | None:
        """Return None: policies find the states of a log by their labels."""
        return None

    @property
    def void_reasons(self) -> list[str]:
        """Reasons for which no certificate can be given, those that the tests found included."""
        return [*self._diagnostics.void_reasons, *self._markov_tests.describe_violations()]

    def reset_with_seed(self, seed: int) -> None:
        """Do nothing: a log has no position."""

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return nothing: the log itself is not saved."""
        return {}, {}

    def restore(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Do nothing."""


def _action_labels(log: RecordedTransitions, actions: Sequence[Any] | None) -> tuple[str, ...]:
    """Return the names of all actions, those of the log first."""
    if actions is not None and not isinstance(actions, Iterable):
        raise InputError(f"must be a list of all actions, got {actions!r}", "actions")
    names = [str(action) for action in log.actions]
    others = [str(action) for action in actions or ()]
    if actions is not None and (unknown := [name for name in names if name not in others]):
        raise InputError(f"the log has an action {unknown[0]!r}, which is not among them; list all actions", "actions")
    return tuple(to_single_line(name) for name in dict.fromkeys([*names, *others]))


def _find_start(log: RecordedTransitions, start: Any) -> tuple[int, bool, bool]:
    """Return the start state, whether it is virtual, and whether the reset is certain to lead to it."""
    number = None if start is None else find_value(log.states, start)
    if number is not None:
        return number, False, True
    if start not in (None, "random"):
        raise InputError(f"{start!r} is not a state of the log, which has {describe_states(log)}", "start")
    if log.begins_episode is None:
        text = "the log does not say where episodes begin; give the start state, or a column episode (or case)"
        raise InputError(text, "start")
    first = np.unique(log.state[log.begins_episode])
    if len(first) == 1 and start is None:
        # In an event log the start is the beginning of a case, by definition.
        is_event_log = log.states[int(first[0])] == EVENT_START
        return int(first[0]), False, is_event_log
    return 0, True, True
