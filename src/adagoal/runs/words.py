"""A result in plain words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from adagoal.core.status import Status

if TYPE_CHECKING:
    from adagoal.runs.result import Result

NO_GUARANTEE_TEXT = "no guarantee"


@dataclass(frozen=True)
class Headline:
    """What happened: a mood for the colour, a title, and sentences."""

    mood: str
    """good, partial, or none (no guarantee)"""
    title: str
    sentences: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((f"{self.title}:", *self.sentences))


def make_headline(result: Result) -> Headline:
    """The status, what it means, and what it cost."""
    cost = f"It took {result.steps:,} steps in {result.episodes:,} episodes and {result.wall_seconds:.1f} s."
    if result.status is Status.CERTIFIED:
        return Headline("good", "Certified", (_certified_promise(result), *_radius_sentences(result), cost))
    if result.status is Status.VOID:
        claim = "a check that the certificates rest on has failed, so that nothing is certified:"
        return Headline("none", "Void", (claim, "; ".join(result.void) + ".", cost))
    if result.status is Status.STOPPED:
        claim = (
            f"{_goal_count_text(len(result.goals))} within {result.radius:g} steps, by the rule of the method "
            f"{result.setting.method}, which proves nothing: treat the numbers as estimates."
        )
        return Headline("none", f"Stopped, {NO_GUARANTEE_TEXT}", (claim, cost))
    why = "budget spent" if result.status is Status.BUDGET else "interrupted"
    return Headline(
        "partial" if result.guarantee else "none", f"Not finished ({why})", (*_unfinished_sentences(result), cost)
    )


def _certified_promise(result: Result) -> str:
    L, epsilon = result.radius, result.setting.epsilon
    return (
        f"with probability {_confidence_text(result)} or more, each of the {_goal_count_text(len(result.goals))} found is "
        f"reached by its policy in at most {L + epsilon:g} expected steps and at most {epsilon:g} more than the best "
        f"policy needs, and no goal that can be reached within {L:g} steps is missing."
    )


def _radius_sentences(result: Result) -> tuple[str, ...]:
    if not isinstance(result.setting.radius, str):
        return ()
    return (f"{result.radius:g} is the radius at which every goal was certified.",)


def _unfinished_sentences(result: Result) -> tuple[str, ...]:
    if result.certified_radius is not None:
        return (f"the largest radius that was certified is {result.certified_radius:g}:", _certified_promise(result))
    done = len(result.goals) - len(result.open_goals)
    status = (
        f"of the {_goal_count_text(len(result.goals))} that may lie within {result.radius:g} steps, {done} "
        f"{'has' if done == 1 else 'have'} a finished certificate and {len(result.open_goals)} "
        f"{'is' if len(result.open_goals) == 1 else 'are'} open."
    )
    if not result.guarantee:
        return (status, f"The method {result.setting.method} gives {NO_GUARANTEE_TEXT}.")
    return (
        status,
        f"Every interval holds already, all together with probability {_confidence_text(result)} or more, "
        "but goals that were never seen may be missing, and open goals may turn out to lie beyond the radius.",
    )


def _goal_count_text(n: int) -> str:
    return f"{n} goal" if n == 1 else f"{n} goals"


def _confidence_text(result: Result) -> str:
    return f"{100 * (1 - result.setting.delta):.6g}%"
