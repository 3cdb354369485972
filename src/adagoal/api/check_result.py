"""The result of ``adagoal check``: what is known about an environment before a run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from adagoal.core import errors


@dataclass
class Check:
    """Properties of an environment. None: not tried, or not applicable."""

    env: str
    errors: list[str] = field(default_factory=list)  # why the environment cannot be used
    void: list[str] = field(default_factory=list)  # what would void the certificates of a run
    warnings: list[str] = field(default_factory=list)
    plan: list[str] = field(default_factory=list)  # what a run will do with the environment
    known_model: bool | None = None  # the exact model is known, so a result can be audited
    n_actions: int | None = None
    observations: str | None = None
    n_states: int | None = None  # declared number of states, with a virtual start
    fixed_start: bool | None = None  # all resets led to one state
    seed_decides: bool | None = None  # the same seed gave the same steps twice
    one_generator: bool | None = None  # all randomness is in np_random, so a run can be resumed bit for bit
    in_space: bool | None = None  # all observations were in their space
    goal_size: int | None = None  # numbers in a goal, if the environment is goal-conditioned: then it is for training
    reached_within: float | None = None  # distance at which a goal counts as reached
    takes_goals: bool | None = None  # the environment accepts a goal
    memory: int | None = None  # bytes that training of the default length needs at most, without rollout workers
    time_limit: int | None = None
    action_masks: bool | None = None
    steps: int = 0
    steps_per_second: float | None = None
    states_met: int | None = None
    ends_met: int | None = None  # terminal states among the states met
    printed: int = 0  # lines that the environment printed

    @property
    def ok(self) -> bool:
        """Whether a run can use the environment and certify its results."""
        return not (self.errors or self.void)

    @property
    def exit_code(self) -> int:
        """0: fine, 1: certificates would be void, 2: the environment cannot be used."""
        return errors.ExitCode.BAD_INPUT if self.errors else errors.ExitCode.CONTRADICTED if self.void else 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain types for JSON."""
        return {**asdict(self), "ok": self.ok}

    def __str__(self) -> str:
        verdict = "cannot be used" if self.errors else "would be void" if self.void else "fine"
        properties = {
            "actions": self.n_actions,
            "observations": self.observations,
            "states declared": self.n_states,
            "exact model known": self.known_model,
            "one start": self.fixed_start,
            "seed decides": self.seed_decides,
            "only np_random": self.one_generator,
            "observations in space": self.in_space,
            "numbers in a goal": self.goal_size,
            "reached within": None if self.reached_within is None else f"{self.reached_within:g}",
            "takes goals": self.takes_goals,
            "time limit": self.time_limit,
            "action masks": self.action_masks,
            "steps tried": f"{self.steps:,}" if self.steps else None,
            "steps a second": None if self.steps_per_second is None else f"{self.steps_per_second:,.0f}",
            "states met": self.states_met,
            "terminal states": self.ends_met,
            "lines printed": self.printed or None,
        }
        words = {True: "yes", False: "no"}
        lines = [f"{self.env}: {verdict}"]
        for name, value in properties.items():
            if value is not None:
                lines.append(f"  {name:<22}{words[value] if isinstance(value, bool) else value}")
        kind = "A run" if self.goal_size is None else "Training"
        parts = ((kind, self.plan), ("warning:", self.warnings), ("void:", self.void), ("error:", self.errors))
        return "\n".join([*lines, *(f"{word} {line}" for word, texts in parts for line in texts)])
