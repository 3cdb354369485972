"""Goal rules (AdaGoal, Skew-Fit, MEGA and others): weights over all goals, from which the next goal is drawn.

A goal rule is a function ``rule(known) -> weights``. It reads estimates of every goal (:class:`GoalInfo`) and returns
non-negative weights ``[G]``; the goal of each episode is drawn in proportion to them. The same functions serve tabular
and linear explorations and deep training. A new rule is one function and one entry of :data:`BUILTIN_RULES`. Its
decorator :func:`rule` declares the fields that it needs, so a caller computes only these and refuses a rule whose
fields it cannot provide.

``adagoal`` is the paper's rule, eq. ``opt_pbm_constrained``:  argmax E(g)  subject to  D(g) <= L.
``unigoal`` and ``raregoal`` are the alternatives of its appendix ``app_exp``; the others are the goal rules of the deep
literature in the same form.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

import numpy as np

from adagoal.core import user_code
from adagoal.core.array_types import Bools, Floats
from adagoal.core.errors import EnvironmentFailure, InputError, describe_user_exception
from adagoal.core.user_code import USER_CODE_SECTION, is_file_spec, load_from_file
from adagoal.core.validation import suggest_name


@dataclass(frozen=True)
class GoalInfo:
    """The input of a goal rule. All arrays have one entry per goal, shape ``[G]``."""

    D: Floats  # optimistic distance: at most the true expected number of steps from s0
    E: Floats  # error: remaining uncertainty about the goal, in steps
    L: float  # radius
    eligible: Bools  # False for goals that contain the start
    visits: Floats  # visits to states of the goal, on purpose or not (deep: density of achieved goals)
    attempts: Floats  # episodes with this goal
    successes: Floats  # episodes with this goal that reached it
    recent: Floats  # success rate, fast moving average
    previous: Floats  # success rate, slow moving average
    # For a rule that needs the next field, training draws half of the candidates from achieved goals and half from the
    # goal space.
    experienced: Bools | None = None  # goals achieved before, in training; None in explorations, where ``visits`` tells
    divergence: float | None = None  # KL(p_wanted || p_achieved); None: computed from ``visits``
    onward_D: Floats | None = None  # D from the goal to the target of the episode, a test goal; None without a target
    onward_E: Floats | None = None


GoalRule = Callable[[GoalInfo], Floats]
RuleT = TypeVar("RuleT", bound=Callable[..., Floats])


class RuleOption(NamedTuple):
    """The range of a numeric option of a rule."""

    low: float
    high: float


@dataclass(frozen=True)
class RuleDeclaration:
    """The fields and options of a rule."""

    # L and eligible are always available. A rule that only breaks ties with attempts need not declare it.
    required_fields: frozenset[str]
    options: dict[str, RuleOption]


def rule(*needs: str, **options: RuleOption) -> Callable[[RuleT], RuleT]:
    """Declare the required fields and the options of a rule; the declaration is optional."""

    def declare(function: RuleT) -> RuleT:
        function.declaration = RuleDeclaration(frozenset(needs), options)  # type: ignore[attr-defined]
        return function

    return declare


@rule("D", "E")
def adagoal(known: GoalInfo) -> Floats:
    """The most uncertain goal among those believed reachable (eq. ``opt_pbm_constrained``)."""
    within = reachable_goals(known)
    return _most_uncertain_goal(known, within) if np.count_nonzero(within) else known.eligible.astype(float)


@rule("D", "E")
def adagoal_proportional(known: GoalInfo) -> Floats:
    """In proportion to E among the goals with D <= L: the constraint of the paper, the draw of its deep section."""
    return _weights_or_uniform(np.where(reachable_goals(known), known.E, 0.0), reachable_goals(known), known)


@rule("E")
def proportional(known: GoalInfo) -> Floats:
    """In proportion to E, without the constraint (section ``section_AdaGoal_deepRL``; VDS, Zhang et al. 2020)."""
    return _weights_or_uniform(np.where(known.eligible, known.E, 0.0), known.eligible, known)


@rule("E")
def argmax(known: GoalInfo) -> Floats:
    """The most uncertain goal, without the constraint."""
    return _most_uncertain_goal(known, known.eligible)


@rule()
def unigoal(known: GoalInfo) -> Floats:
    """Uniform over all goals but s0 (appendix ``app_exp``); in deep training this is plain HER."""
    return known.eligible.astype(float)


@rule("visits", alpha=RuleOption(1e-9, 1e9))
def raregoal(known: GoalInfo, alpha: float = 0.1) -> Floats:
    """In proportion to 1 / max(visits, alpha) (appendix ``app_exp``)."""
    return np.where(known.eligible, 1.0 / np.maximum(known.visits, alpha), 0.0)


@rule("visits", alpha=RuleOption(-1.0, 0.0))
def skewfit(known: GoalInfo, alpha: float = -1.0) -> Floats:
    """visits^(1 + alpha) over visited goals, alpha in [-1, 0): Skew-Fit (Pong et al. 2020) in tabular form.

    Skew-Fit re-weights samples of the visited distribution by p^alpha, hence the exponent 1 + alpha on
    the support; alpha = -1 is uniform over what has been visited.
    """
    visited = known.eligible & (known.visits > 0)
    weights = np.where(visited, np.maximum(known.visits, 1.0) ** (1.0 + alpha), 0.0)
    return _weights_or_uniform(weights, visited, known)


@rule("D", "visits", "experienced")
def mega(known: GoalInfo) -> Floats:
    """The least visited goal among those achieved before and believed reachable: MEGA (Pitis et al. 2020).

    The cutoff is D <= L; MEGA instead adapts a cutoff to the success rate. Checked against the authors' code
    (spitis/mrl, ``DensityAchievedGoalCuriosity``).
    """
    candidates = reachable_goals(known) & achieved_goals(known)
    fewest = known.visits[candidates].min(initial=np.inf)
    return _weights_or_uniform((candidates & (known.visits == fewest)).astype(float), candidates, known)


@rule("D", "visits", "experienced", "divergence", b=RuleOption(-1e6, 1e6))
def omega(known: GoalInfo, b: float = -3.0) -> Floats:
    """A mixture of :func:`mega` and the goal space, which gains weight as it comes near: OMEGA (Pitis et al. 2020).

    With probability alpha = 1 / max(b + KL(p_wanted || p_achieved), 1) the rule draws a goal of the goal space, unless
    it is beyond L; otherwise a goal of MEGA. Checked against the authors' code (``CuriosityAlphaMixtureModule``, b =
    -3).
    """
    alpha = 1.0 / max(b + goal_divergence(known), 1.0)
    wanted = known.eligible if known.experienced is None else known.eligible & ~known.experienced
    share = alpha * (wanted & reachable_goals(known)) / max(wanted.sum(), 1)
    rare = mega(known)
    return np.asarray(share + (1.0 - share.sum()) * rare / rare.sum())


@rule("D", "E", "experienced", "onward_D", "onward_E", alpha=RuleOption(0.0, 1e6), beta=RuleOption(0.0, 1e6))
def discover(known: GoalInfo, alpha: float = 1.0, beta: float = 1.0) -> Floats:
    """Towards a target g*: DISCOVER (Diaz-Bone et al. 2025), argmax over goals g achieved before of

        V(s0, g) + alpha sigma(s0, g) + beta (V(g, g*) + alpha sigma(g, g*)),     here V = -D and sigma = E:

    achievable, novel and relevant. The paper adapts alpha to a success rate of one half; here it is fixed. Checked
    against a published summary of the paper (arXiv 2505.19850), not against its code.
    """
    if known.onward_D is None or known.onward_E is None:
        text = "discover needs a target, which only training has; choose another rule"
        raise InputError(text, name="goal_rule")
    candidates = known.eligible & achieved_goals(known)
    score = alpha * known.E - known.D + beta * (alpha * known.onward_E - known.onward_D)
    best = np.max(score[candidates], initial=-np.inf)
    return _weights_or_uniform((candidates & (score == best)).astype(float), candidates, known)


@rule("attempts", "successes", low=RuleOption(0.0, 1.0), high=RuleOption(0.0, 1.0))
def goid(known: GoalInfo, low: float = 0.1, high: float = 0.9) -> Floats:
    """Uniform over goals of intermediate difficulty (Florensa et al. 2018): success rate in [low, high]."""
    rate = known.successes / np.maximum(known.attempts, 1.0)
    untried = known.attempts == 0
    # An untried goal has no rate yet. It counts as intermediate, or it would never be tried.
    good = known.eligible & (untried | ((rate >= low) & (rate <= high)))
    return _weights_or_uniform(good.astype(float), good, known)


@rule("recent", "previous", uniform=RuleOption(0.0, 1.0))
def progress(known: GoalInfo, uniform: float = 0.4) -> Floats:
    """|recent - previous success rate| mixed with a uniform share (CURIOUS, Colas et al. 2019)."""
    gain = np.where(known.eligible, np.abs(known.recent - known.previous), 0.0)
    flat: Floats = known.eligible / max(known.eligible.sum(), 1)
    total = gain.sum()
    return flat if total == 0 else uniform * flat + (1.0 - uniform) * gain / total


@rule("visits")
def goexplore(known: GoalInfo) -> Floats:
    """1 / sqrt(visits + 1) over visited goals: the cell weights of Go-Explore (Ecoffet et al. 2021)."""
    visited = known.eligible & (known.visits > 0)
    return _weights_or_uniform(np.where(visited, 1.0 / np.sqrt(known.visits + 1.0), 0.0), visited, known)


BUILTIN_RULES: dict[str, Callable[..., Floats]] = {  # by the name in settings
    function.__name__.replace("_", "-"): function
    for function in (
        *(adagoal, adagoal_proportional, proportional, argmax, unigoal, raregoal, skewfit, mega, omega, discover),
        *(goid, progress, goexplore),
    )
}


def reachable_goals(known: GoalInfo) -> Bools:
    """The constraint D(g) <= L of eq. ``opt_pbm_constrained_constraint``, over the eligible goals."""
    return known.eligible & (known.D <= known.L)


def achieved_goals(known: GoalInfo) -> Bools:
    """Goals achieved before, as a mask."""
    return known.visits > 0 if known.experienced is None else known.experienced


def goal_divergence(known: GoalInfo) -> float:
    """KL(p_wanted || p_achieved); from visits: the uniform distribution against visits + 1, over the eligible goals."""
    if known.divergence is not None:
        return known.divergence
    # One more visit each: the divergence from a goal that was never visited would be infinite.
    visits = known.visits[known.eligible] + 1.0
    return float(-np.log(len(visits) * visits / visits.sum()).mean()) if len(visits) else 0.0


def resolve_rule(spec: str | GoalRule) -> GoalRule:
    """Return the rule for ``name``, ``name:key=value,...`` or ``path/to/file.py:function``; a function is returned.

    A name is one of :data:`BUILTIN_RULES`, or a plug-in of an installed package (:mod:`adagoal.core.user_code`).
    """
    if callable(spec):
        return spec
    if not isinstance(spec, str):
        raise InputError(f"must be a name or a function, got {spec!r}", name="goal_rule")
    if is_file_spec(spec):
        loaded = load_from_file(spec, "goal_rule")
        if not callable(loaded):
            raise InputError(f"{spec} is not a function", name="goal_rule")
        return cast(GoalRule, loaded)
    name, _, options = spec.partition(":")
    group = user_code.PluginGroup.GOAL_RULES
    function = BUILTIN_RULES.get(name) or user_code.load_plugin(group, name, "goal_rule")
    if function is None:
        known = [*BUILTIN_RULES, *user_code.list_plugin_names(group)]
        hint = suggest_name(name, known, f"choose one of {', '.join(known)} or FILE.py:FUNCTION")
        raise InputError(f"unknown rule {name!r}{hint}", name="goal_rule")
    if not callable(function):
        raise InputError(f"{name!r} of an installed package is not a function", name="goal_rule")
    return functools.partial(function, **_parse_rule_options(name, function, options)) if options else function


def required_fields(rule: GoalRule, available: frozenset[str]) -> frozenset[str]:
    """Fields of :class:`GoalInfo` that a rule declares, or all ``available`` ones without a declaration."""
    declared = _find_declaration(rule)
    return available if declared is None else declared.required_fields


def compute_weights(rule: GoalRule, known: GoalInfo) -> Floats:
    """Return the checked weights ``[G]`` of a rule.

    Exceptions of user rules are re-raised as :class:`EnvironmentFailure`, those of built-in rules unchanged.
    """
    try:
        with USER_CODE_SECTION:
            weights = np.asarray(rule(known), float)
    except (Exception, SystemExit) as error:
        # Our own bugs keep their traceback.
        if _rule_function(rule) in BUILTIN_RULES.values():
            raise
        raise EnvironmentFailure(f"the rule raised {describe_user_exception(error)}", "goal_rule") from error
    # Written so that NaN fails: every comparison with NaN is false.
    if weights.shape != known.D.shape or not (weights.min(initial=np.inf) >= 0 and 0 < weights.sum() < np.inf):
        raise InputError(
            f"a rule returns one finite weight >= 0 per goal, not all of them zero; got {weights!s:.60}",
            name="goal_rule",
        )
    return weights


def require_trusted_rule(spec: str, trust: bool) -> str:
    """Return the rule of a run folder; raise if it would execute a file and the folder is not trusted."""
    # Reading a folder must not execute code: the folder may come from a stranger.
    if is_file_spec(spec) and not trust:
        text = f"the run has the rule {spec!r}, a file to run; give the rule again, or pass trust=True"
        raise InputError(text, "goal_rule")
    return spec


def require_same_rule(spec: str, given: str | GoalRule) -> None:
    """Refuse another rule than that of a run; code cannot be compared, so any code may replace the code of the run."""
    names = [*BUILTIN_RULES, *user_code.list_plugin_names(user_code.PluginGroup.GOAL_RULES)]
    is_code = is_file_spec(spec) or spec.partition(":")[0] not in names
    name = given if isinstance(given, str) else getattr(given, "__name__", "custom")
    if name != spec and not (is_code and (callable(given) or is_file_spec(given))):
        hint = "give it again" if is_code else "leave it out"
        raise InputError(f"the run has the rule {spec!r}, not {name!r}; {hint}", "goal_rule")


def rule_source_text(spec: str) -> str:
    """Return the source file of a user rule, or an empty text for a built-in rule."""
    return Path(spec.rpartition(":")[0]).read_text() if is_file_spec(spec) else ""


def sample_goal(weights: Floats, rng: np.random.Generator) -> int:
    """Draw the index of a goal in proportion to the weights."""
    # The minimum guards against rounding: the product may equal the last sum. side="right" skips goals of weight zero.
    cumulative = np.cumsum(weights)
    return int(min(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"), len(weights) - 1))


def _most_uncertain_goal(known: GoalInfo, candidates: Bools) -> Floats:
    """All weight on the candidate of largest E; ties go to the one with the fewest attempts."""
    score = np.where(candidates, known.E, -np.inf)
    # Before there is data all errors tie, and the first goal would take all attempts.
    (equals,) = (score == score[score.argmax()]).nonzero()
    weights = np.zeros(len(score))
    weights[equals[known.attempts[equals].argmin()]] = 1.0
    return weights


def _weights_or_uniform(weights: Floats, candidates: Bools, known: GoalInfo) -> Floats:
    """The weights; if all are zero, uniform over the candidates, or over all eligible goals without candidates."""
    if weights.sum() > 0:
        return weights
    return (candidates if candidates.any() else known.eligible).astype(float)


def _rule_function(rule: GoalRule) -> Callable[..., Floats]:
    return rule.func if isinstance(rule, functools.partial) else rule


def _find_declaration(rule: GoalRule) -> RuleDeclaration | None:
    return getattr(_rule_function(rule), "declaration", None)


def _parse_rule_options(name: str, rule: GoalRule, text: str) -> dict[str, float]:
    declared = _find_declaration(rule)
    accepted = declared.options if declared is not None else {}
    options = {}
    for item in text.split(","):
        key, _, value = item.partition("=")
        if key not in accepted:
            known = ", ".join(accepted) or "none"
            raise InputError(f"{name} has no option {key!r}; accepted: {known}", name="goal_rule")
        low, high = accepted[key]
        # NaN fails the range check below, so a missing number and a wrong one give the same message.
        try:
            options[key] = float(value)
        except ValueError:
            options[key] = np.nan
        if not low <= options[key] <= high:
            text = f"{name}: {key} must be a number in [{low:g}, {high:g}], got {value or 'nothing'}"
            raise InputError(text, name="goal_rule")
    return options
