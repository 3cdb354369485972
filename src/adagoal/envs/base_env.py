"""Base classes of all environments: their common fields, and warnings and reasons that make certificates void."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, NamedTuple, final

from adagoal.core.file_formats import COUNT_SCHEMA, check_json_value, object_schema
from adagoal.core.linear_mixture import LinearMixture
from adagoal.core.types import GridLayout, ObservedStates
from adagoal.envs.assumption_tests import MarkovTests
from adagoal.envs.observation_keys import StateKey

LabelledStates = list[tuple[StateKey, str]]  # keys and labels, in the order of the state numbers


@dataclass
class Diagnostics:
    """Warnings, and reasons for which no certificate can be given, one line each."""

    warnings: list[str] = field(default_factory=list)
    void_reasons: list[str] = field(default_factory=list)
    lost_transitions: int = 0  # transitions in which the environment failed
    LINES_SCHEMA: ClassVar[dict[str, Any]] = {"type": "array", "items": {"type": "string"}}
    FACTS_SCHEMA: ClassVar[dict[str, Any]] = object_schema(
        warnings=LINES_SCHEMA, void_reasons=LINES_SCHEMA, lost_transitions=COUNT_SCHEMA
    )

    def add_warning(self, line: str) -> None:
        """Add a warning, once."""
        if line not in self.warnings:
            self.warnings.append(line)

    def add_void_reason(self, line: str) -> None:
        """Add a reason, once."""
        # Lines that agree up to the first comma are the same reason: the rest names the first state that showed it.
        if not any(line.split(",")[0] == known.split(",")[0] for known in self.void_reasons):
            self.void_reasons.append(line)

    def report_reset_mismatch(self, next_state: int) -> None:
        """Add a void reason: a reset did not lead to the start."""
        self.add_void_reason(f"a reset led to another state than the start, the first time to state {next_state}")

    def report_terminal_mismatch(self, state: int, state_bound: int) -> None:
        """Add a void reason: a state was terminal at one visit only."""
        self.add_void_reason(
            f"a state ended the episode at one visit and not at another, first state {state}; "
            # Twice as many: every observation may be a terminal state and another one.
            f"max_states={2 * state_bound} (--max-states {2 * state_bound}) makes the two visits different states"
        )

    def report_mask_conflict(self, state: int) -> None:
        """Add a void reason: the action mask of a state changed."""
        self.add_void_reason(f"a state had other actions at one visit than at another, first state {state}")

    def report_lost_transitions(self) -> None:
        """Add a void reason if transitions were lost."""
        # Called when the run continues. Whether a step fails may depend on its outcome, so the data are biased.
        if self.lost_transitions:
            self.add_void_reason(
                f"the environment failed and the run continued, so the data lack {self._lost_text} and the estimates "
                "may be biased"
            )

    def list_warnings(self) -> list[str]:
        """Return all warnings, and one about lost transitions."""
        if not self.lost_transitions:
            return list(self.warnings)
        text = f"the environment failed in {self._lost_text}; the data lack what happened, so a resumed run is void"
        return [*self.warnings, text]

    @property
    def _lost_text(self) -> str:
        return f"{self.lost_transitions} transition{'s' if self.lost_transitions > 1 else ''}"

    def state(self) -> dict[str, Any]:
        """Return a JSON-ready snapshot."""
        return asdict(self)

    def restore(self, facts: dict[str, Any]) -> None:
        """Restore a snapshot."""
        # Its lines are added to those of this object, which were added while the environment was made again.
        check_json_value(self.FACTS_SCHEMA, facts)
        for line in facts["warnings"]:
            self.add_warning(line)
        for line in facts["void_reasons"]:
            self.add_void_reason(line)
        self.lost_transitions = int(facts["lost_transitions"])


class BaseEnv:
    """Common fields of all environments; :class:`~adagoal.core.environment.TabularEnv` says what they mean."""

    POSITION_SCHEMA: ClassVar[dict[str, Any]] = {  # state, goal column (-1: none), steps of the episode
        **{"type": "array", "minItems": 3, "maxItems": 3},
        "items": {"type": "integer", "minimum": -1, "maximum": 2**62},
    }

    def __init__(
        self, name: str, n_actions: int, start: int, state_bound: int, initial_states: int, start_is_certain: bool
    ) -> None:
        self.name, self.n_actions, self.start = name, n_actions, start
        self.state_bound, self.initial_states = state_bound, initial_states
        # The union over pairs is fixed before the first step, so it is over the pairs that could exist.
        self.pair_bound = state_bound * n_actions
        self.start_is_certain, self.uses_action_masks = start_is_certain, True
        self.layout: GridLayout | None = None
        self.mixture: LinearMixture | None = None
        self._diagnostics = Diagnostics()

    @final
    def add_warning(self, line: str) -> None:
        """Add a warning, once."""
        self._diagnostics.add_warning(line)

    @final
    def add_void_reason(self, line: str) -> None:
        """Add a reason for which certificates are void, once."""
        self._diagnostics.add_void_reason(line)


class EnvProperties(NamedTuple):
    """What is known of an environment before the first step; all workers must agree on it."""

    n_actions: int
    start: int
    state_bound: int
    initial_states: int
    has_virtual_start: bool  # the start is a state of its own, before the random first observation
    first_states: LabelledStates | None  # states known at first, without the virtual start; None if all are declared
    observed_states: ObservedStates  # how observations identify states; with the digests of the first states
    reseeded: tuple[str, ...]  # random generators that every reset puts into the same state


class MonitoredEnv(BaseEnv, ABC):
    """An environment of the user: its transitions are tested, and its code may fail at any step."""

    MAX_CONSECUTIVE_KILLS = 3  # times in a row that a process may be killed before its first step

    def __init__(self, name: str, properties: EnvProperties) -> None:
        n_actions, start, state_bound, initial_states, has_virtual_start, *_ = properties
        # Every reset leads to a virtual start by definition. Any other start is inferred from resets that agreed.
        super().__init__(name, n_actions, start, state_bound, initial_states, start_is_certain=has_virtual_start)
        self._markov_tests = MarkovTests(n_actions)
        self._given_labels: tuple[str, ...] = ()
        # Raised by the next rollout: raised at once, it would lose the transitions of this rollout.
        self._pending_failure: BaseException | None = None
        self._consecutive_kills = 0  # times in a row that a process was killed before its first step
        if properties.reseeded:
            self.add_warning(
                f"every reset seeds the same random numbers ({', '.join(properties.reseeded)}): if steps draw them, "
                "all episodes are alike and the certificates are wrong"
            )

    @abstractmethod
    def _observed_labels(self) -> tuple[str, ...]:
        """Labels of the states met so far; empty if the environment declares its states."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the states: those that were assigned, or the observations so far."""
        # Toy-text environments have better labels than their observations, which are plain numbers.
        return self._given_labels or self._observed_labels()

    @labels.setter
    def labels(self, labels: tuple[str, ...]) -> None:
        self._given_labels = labels

    @final
    @property
    def void_reasons(self) -> list[str]:
        """Reasons for which no certificate can be given, those that the tests found included."""
        return list(dict.fromkeys([*self._diagnostics.void_reasons, *self._markov_tests.describe_violations()]))

    @final
    def _list_env_warnings(self, ever_truncated: bool) -> list[str]:
        truncated = ["the environment ends episodes by itself (truncated); each time it was reset"]
        return [*self._diagnostics.list_warnings(), *(truncated if ever_truncated else [])]

    @final
    def _raise_pending_failure(self) -> None:
        if self._pending_failure is not None:
            failure, self._pending_failure = self._pending_failure, None
            raise failure
