"""What was found out about an environment before a run, and how it is told."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from adagoal.core import errors


@dataclass
class Check:
    """What was found out about an environment; None is for what could not be tried, or need not be."""

    env: str
    errors: list[str] = field(default_factory=list)
    """Why it cannot be used."""
    void: list[str] = field(default_factory=list)
    """What would void the certificates of a run."""
    warnings: list[str] = field(default_factory=list)
    """What a user should know."""
    plan: list[str] = field(default_factory=list)
    """What a run will do with it."""
    known_model: bool | None = None
    """Whether the exact model is known, so that a result can be audited."""
    n_actions: int | None = None
    observations: str | None = None
    n_states: int | None = None
    """The number of states, where it is declared; a virtual start included."""
    fixed_start: bool | None = None
    """Whether all resets tried led to one state."""
    seed_decides: bool | None = None
    """Whether the same seed gave the same steps twice."""
    one_generator: bool | None = None
    """Whether all randomness is in ``np_random``, so that a run can be resumed bit for bit."""
    in_space: bool | None = None
    """Whether all observations met lie in their space."""
    goal_size: int | None = None
    """Numbers in a goal, where the environment is goal-conditioned; what follows is about a training then."""
    reached_within: float | None = None
    """The distance to a goal at which it counts as reached."""
    takes_goals: bool | None = None
    """Whether it can be told its goal."""
    memory: int | None = None
    """Bytes of memory that a training of the default length takes at most, without its rollout workers."""
    time_limit: int | None = None
    action_masks: bool | None = None
    steps: int = 0
    steps_per_second: float | None = None
    states_met: int | None = None
    ends_met: int | None = None
    """States met that end an episode."""
    printed: int = 0
    """Lines that the environment printed."""

    @property
    def ok(self) -> bool:
        """Whether nothing speaks against a run."""
        return not (self.errors or self.void)

    @property
    def exit_code(self) -> int:
        """0 fine, 1 something would void a certificate, 2 it cannot be used."""
        return errors.ExitCode.BAD_INPUT if self.errors else errors.ExitCode.CONTRADICTED if self.void else 0

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {**asdict(self), "ok": self.ok}

    def __str__(self) -> str:
        """In plain lines."""
        verdict = "cannot be used" if self.errors else "would be void" if self.void else "fine"
        told = {
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
            "of them ends": self.ends_met,
            "lines printed": self.printed or None,
        }
        words = {True: "yes", False: "no"}
        lines = [f"{self.env}: {verdict}"]
        for name, value in told.items():
            if value is not None:
                lines.append(f"  {name:<22}{words[value] if isinstance(value, bool) else value}")
        kind = "A run" if self.goal_size is None else "A training"
        parts = ((kind, self.plan), ("warning:", self.warnings), ("void:", self.void), ("error:", self.errors))
        return "\n".join([*lines, *(f"{word} {line}" for word, found in parts for line in found)])
