"""Exploration methods by name: how each builds its estimates, which loop runs it, and what it supports.

A builder imports its method when it is called, so a run loads only the method that it names.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from adagoal.certified.explorer import CertifiedExplorer
from adagoal.certified.uncertain_reset import RESET_DELTA_SHARE, ExactResetEstimates, UncertainReset
from adagoal.core import user_code
from adagoal.core.array_types import Bools
from adagoal.core.environment import TabularEnv
from adagoal.core.errors import InputError, Status
from adagoal.core.exploration_run import ExplorationRun, GoalEstimates, PlanningEstimates, RunObserver
from adagoal.core.goal_space import GoalSpace
from adagoal.core.linear_mixture import LinearMixture
from adagoal.core.transition_data import TransitionCounts
from adagoal.core.validation import suggest_name
from adagoal.loop import run_exploration, run_self_directed

if TYPE_CHECKING:
    from adagoal.baselines.self_directed import SelfDirectedMethod
    from adagoal.tabular.reach_probabilities import KernelSets


class ReachTarget(NamedTuple):
    """What a run with probabilities asks for (docs/probabilities.md)."""

    within: int
    probability: float
    avoided: Callable[[int], Bools]  # returns the states to avoid, as a mask of the given length


@dataclass(frozen=True)
class ExplorationProblem:
    """What a method gets: environment, data so far, accuracy and goals."""

    env: TabularEnv
    counts: TransitionCounts
    L: float
    epsilon: float
    delta: float
    goal_space: GoalSpace
    seed: int = 0  # for methods that draw random numbers
    reach: ReachTarget | None = None  # None: bounds are expected steps

    @property
    def size_is_known(self) -> bool:
        """Whether all states, and all members of the goals, are known before the run."""
        return self.env.state_bound == self.env.initial_states and self.goal_space.members_complete


def build_certified(p: ExplorationProblem, branching: int | None = None) -> PlanningEstimates:
    """Certified bounds (the default). branching: no pair has more than this many successors, if you know it."""
    branching = branching if branching is not None else getattr(p.env, "branching", None)
    _check_branching(p.env, branching)
    n_states = None if p.env.pair_bound is None else p.env.state_bound
    if p.reach is not None:
        from adagoal.tabular.reach_probabilities import RestartedBalls

        sizes = n_states, p.env.pair_bound, p.goal_space.goal_bound
        return _bound_probabilities("certified", p, lambda delta: RestartedBalls(p.counts, *sizes, delta, branching))
    data, rest = (p.counts, n_states, p.L, p.epsilon), (p.goal_space, branching, p.env.pair_bound)
    return _account_for_reset(p, lambda delta: CertifiedExplorer(*data, delta, *rest))


def build_ucbvi(
    p: ExplorationProblem, bonus: str = "literal", horizon: int | None = None, lazy: bool = False
) -> PlanningEstimates:
    """The paper's AdaGoal-UCBVI. bonus: literal, rebalanced or simplified (no guarantee). horizon: H, instead of the
    formula's (a smaller one voids the guarantee). lazy: plan only when some count has doubled, not every episode.
    """
    from adagoal.tabular.ucbvi import EPSILON_SHARES, UCBVI

    # A list, because a value from Python may be unhashable.
    if bonus not in list(EPSILON_SHARES):
        raise InputError(f"bonus must be one of {', '.join(EPSILON_SHARES)}, got {bonus!r}", "method_args")
    _check_positive_integer("horizon", horizon)
    return UCBVI(p.counts, p.L, p.epsilon, p.delta, p.goal_space, bonus, horizon, lazy)


def build_bayes(p: ExplorationProblem) -> PlanningEstimates:
    """Bayesian, no guarantee: quantiles over posterior samples of the model."""
    from adagoal.tabular.bayes import BayesianEstimates

    return BayesianEstimates(p.counts, p.L, p.epsilon, p.goal_space, seed=p.seed)


def build_bpi_ucbvi(p: ExplorationProblem, constants: str = "paper", horizon: int | None = None) -> PlanningEstimates:
    """BPI-UCBVI, for one goal. constants: paper, or scaled=c. horizon: H, instead of AdaGoal-UCBVI's."""
    from adagoal.baselines.self_directed import parse_constants
    from adagoal.tabular.ucbvi import BPI

    _check_positive_integer("horizon", horizon)
    return BPI(*_baseline_arguments(p), parse_constants(constants), horizon)


def build_intervals(p: ExplorationProblem, bound: str = "betting", branching: int | None = None) -> PlanningEstimates:
    """Interval MDPs and L1 balls, as model checkers use them, with robust value iteration; certified. bound: betting,
    clopper-pearson, hoeffding or weissman. branching: no pair has more than this many successors, if you know it.
    """
    from adagoal.baselines.interval_mdp import INTERVAL_BOUNDS, FixedSampleSets, IntervalEstimates

    if bound not in list(INTERVAL_BOUNDS):
        raise InputError(f"bound must be one of {', '.join(INTERVAL_BOUNDS)}, got {bound!r}", "method_args")
    _check_branching(p.env, branching)
    pairs = p.env.pair_bound or p.env.state_bound * p.env.n_actions
    if p.reach is not None:
        widest = branching or p.env.state_bound
        return _bound_probabilities(
            "intervals", p, lambda delta: FixedSampleSets(p.counts, pairs, delta, widest, bound)
        )
    data, rest = (p.counts, p.env.state_bound, p.L, p.epsilon), (p.goal_space, bound, branching, pairs)
    return _account_for_reset(p, lambda delta: IntervalEstimates(*data, delta, *rest))


def build_vtr(p: ExplorationProblem, horizon: int | None = None) -> PlanningEstimates:
    """The paper's AdaGoal-UCRL.VTR, for linear mixtures. horizon: H, instead of the formula's (a smaller one voids the
    guarantee).
    """
    from adagoal.linear.ucrl_vtr import VTR

    mixture = _require_mixture("vtr", p.env)
    _check_positive_integer("horizon", horizon)
    return VTR(mixture, p.counts, p.L, p.epsilon, p.delta, p.goal_space, p.env.add_void_reason, horizon)


def build_vtr_pooled(p: ExplorationProblem) -> PlanningEstimates:
    """Linear mixtures, certified: one value-targeted regression for all goals."""
    from adagoal.linear.confidence_regions import PooledLearner

    return _build_mixture_bounds(p, PooledLearner)


def build_likelihood(p: ExplorationProblem) -> PlanningEstimates:
    """Linear mixtures of probability kernels, certified: a likelihood set for the weights."""
    from adagoal.linear.confidence_regions import LikelihoodLearner

    return _build_mixture_bounds(p, LikelihoodLearner)


def _build_mixture_bounds(p: ExplorationProblem, learner: Any) -> PlanningEstimates:
    from adagoal.linear.mixture_estimates import MixtureBounds

    mixture = _require_mixture(learner.name, p.env)
    rest = p.L, p.epsilon, p.goal_space, p.env.add_void_reason
    return _account_for_reset(p, lambda delta: MixtureBounds(mixture, p.counts, learner(mixture, delta), *rest))


class Method(NamedTuple):
    """Declaration of a method."""

    build_estimates: Callable[..., GoalEstimates]  # called with an ExplorationProblem and the method's own arguments
    run_loop: Callable[[ExplorationRun, int, RunObserver], Status] = run_exploration
    uses_goal_rule: bool = True  # False if the method decides by itself what to play
    radius_can_grow: bool = False  # whether its estimates have a SupportsRadiusCurriculum, for radius "auto" and "all"
    needs_known_size: bool = False  # whether the number of states must be known before the run
    can_finalize: bool = False  # whether its estimates are a SupportsFinalize
    supports_probabilities: bool = False  # whether it can bound probabilities (``ExplorationProblem.reach``)
    supports_action_masks: bool = False  # whether it can leave out actions that are not available in a state


def declare_baseline(module: str, class_name: str, needs_known_size: bool = False) -> Method:
    """Declare a self-directed method whose only argument is ``constants``: paper, or scaled=c (self_directed.py)."""

    def build(problem: ExplorationProblem, constants: str = "paper") -> SelfDirectedMethod:
        method = getattr(importlib.import_module(f"adagoal.baselines.{module}"), class_name)
        # 0 says that no state will be added.
        state_bound = 0 if problem.size_is_known else problem.env.state_bound
        return cast("SelfDirectedMethod", method(*_baseline_arguments(problem), constants, state_bound=state_bound))

    return Method(build, run_self_directed, uses_goal_rule=False, needs_known_size=needs_known_size)


METHODS = {
    "certified": Method(
        build_certified,
        radius_can_grow=True,
        can_finalize=True,
        supports_probabilities=True,
        supports_action_masks=True,
    ),
    "ucbvi": Method(build_ucbvi, needs_known_size=True),
    "bayes": Method(build_bayes, needs_known_size=True),
    "ucbexplore": declare_baseline("ucbexplore", "UcbExplore"),
    "disco": declare_baseline("disco", "DisCo"),
    "valae": declare_baseline("disco", "VALAE", needs_known_size=True),
    "lae": declare_baseline("lae", "LAE", needs_known_size=True),
    "gosprl": declare_baseline("gosprl", "Gosprl", needs_known_size=True),
    "bpi-ucbvi": Method(build_bpi_ucbvi, needs_known_size=True),
    "intervals": Method(build_intervals, radius_can_grow=True, supports_probabilities=True, supports_action_masks=True),
    "likelihood": Method(build_likelihood, radius_can_grow=True),
    "vtr-pooled": Method(build_vtr_pooled, radius_can_grow=True),
    "vtr": Method(build_vtr),
}


def find_method(name: str) -> Method:
    """Return a method of :data:`METHODS` or of an installed package (:mod:`adagoal.core.user_code`)."""
    # A list, because a name from Python may be unhashable.
    if name in list(METHODS):
        return METHODS[name]
    plugin = user_code.load_plugin(user_code.PluginGroup.METHODS, name, "method") if isinstance(name, str) else None
    if plugin is None:
        known = [*METHODS, *user_code.list_plugin_names(user_code.PluginGroup.METHODS)]
        hint = suggest_name(name, known, f"choose one of {', '.join(known)}")
        raise InputError(f"unknown method {name!r}{hint}", "method")
    if not isinstance(plugin, Method):
        raise InputError(f"{name!r} of an installed package is not an adagoal.methods.Method", "method")
    return plugin


def build_estimates(method: str, problem: ExplorationProblem, arguments: dict[str, Any]) -> GoalEstimates:
    """Return the estimates of a method; refuse arguments that it does not have."""
    names = accepted_arguments(method)
    for name in arguments:
        if name not in names:
            text = f"{method} has no argument {name!r}; it accepts {', '.join(names) or 'none'}"
            raise InputError(text, "method_args")
    declared, env = find_method(method), problem.env
    if declared.needs_known_size and not problem.size_is_known:
        text = f"{method} needs a known number of states, which {env.name} does not have; use certified"
        raise InputError(text, "method")
    if problem.reach is not None and not declared.supports_probabilities:
        able = " and ".join(name for name, listed in METHODS.items() if listed.supports_probabilities)
        raise InputError(f"{method} does not bound probabilities; {able} do", "method")
    env.uses_action_masks = declared.supports_action_masks
    estimates = declared.build_estimates(problem, **arguments)
    if estimates.guarantee and env.pair_bound is None and declared is not METHODS["certified"]:
        text = f"at most {env.state_bound - 1:,} states (max_states), as {env.name} does not say how many it has"
        env.add_warning(f"the proof of {method} assumes {text}")
    # UncertainReset pays for the reset with a share of delta. The other proofs take the start for fixed.
    takes_start_for_fixed = not isinstance(estimates, UncertainReset) and problem.reach is None
    if estimates.guarantee and not env.start_is_certain and takes_start_for_fixed:
        env.add_warning(f"the proof of {method} assumes that every reset leads to the same start")
    return estimates


def accepted_arguments(method: str) -> list[str]:
    """Return the names of the arguments of a method: the parameters of its builder after the problem."""
    return list(inspect.signature(find_method(method).build_estimates).parameters)[1:]


def apply_constants(constants: str | None, choices: Sequence[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the arguments of each (method, arguments), with ``constants`` added if the method takes them and has none.

    Methods without an argument ``constants`` keep their arguments. At least one of the methods must take them.
    """
    if constants is None:
        return [arguments for _, arguments in choices]
    from adagoal.baselines.self_directed import parse_constants

    # A comparison has one ``constants`` for all its methods; a method's own argument wins.
    parse_constants(constants)
    takes_them = ["constants" in accepted_arguments(method) and "constants" not in given for method, given in choices]
    if not any(takes_them):
        able = ", ".join(name for name in METHODS if "constants" in accepted_arguments(name))
        chosen = ", ".join(":".join([method, *given]) for method, given in choices)
        raise InputError(f"none of {chosen} uses them; methods that take constants: {able}", "constants")
    return [
        {**given, "constants": constants} if takes else given
        for (_, given), takes in zip(choices, takes_them, strict=True)
    ]


def _check_positive_integer(name: str, value: int | None) -> None:
    # bool is a subclass of int, and True would pass for 1.
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise InputError(f"{name} must be a whole number >= 1, got {value!r}", "method_args")


def _check_branching(env: TabularEnv, branching: int | None) -> None:
    _check_positive_integer("branching", branching)
    if branching is not None:
        promise = "an action in a state always leads to the same state"
        promise = promise if branching == 1 else f"no pair has more than {branching} successors"
        # Who counts the successors of actions may not think of the start that adagoal adds. A deterministic state
        # machine promises one first state.
        if getattr(env, "has_virtual_start", False) and getattr(env, "branching", None) is None:
            if branching == 1:
                text = "branching=1: the random start has several first states as successors; leave branching out"
                raise InputError(text, "method_args")
            promise = f"{promise} and the random start has no more than {branching} first states"
        env.add_warning(f"the certificate holds only if {promise}, as you declared")


def _baseline_arguments(p: ExplorationProblem) -> tuple[TransitionCounts, float, float, float, GoalSpace]:
    return p.counts, p.L, p.epsilon, p.delta, p.goal_space


def _account_for_reset(p: ExplorationProblem, build: Callable[[float], ExactResetEstimates]) -> PlanningEstimates:
    """Build the estimates with delta; if the start is not certain, a share of delta covers the reset (lemma 10)."""
    # Each kind of start that a log may turn out to have is another environment, with events of its own.
    delta = p.delta / getattr(p.env, "n_possible_starts", 1)
    if p.env.start_is_certain:
        return build(delta)
    # The two shares sum to delta, so both events hold together with the confidence that the user asked for.
    widened = UncertainReset(build((1.0 - RESET_DELTA_SHARE) * delta), RESET_DELTA_SHARE * delta)
    return cast(PlanningEstimates, widened)


def _bound_probabilities(
    name: str, p: ExplorationProblem, make_sets: Callable[[float], KernelSets]
) -> PlanningEstimates:
    """Build estimates of reach probabilities; if the start is not certain, a share of delta covers the reset."""
    from adagoal.tabular.reach_probabilities import ReachProbabilities

    assert p.reach is not None
    share = 0.0 if p.env.start_is_certain else RESET_DELTA_SHARE
    reset_log = -math.log(share * p.delta) if share else None
    sets = make_sets((1.0 - share) * p.delta)
    within, probability, avoided = p.reach
    return ReachProbabilities(name, p.counts, sets, p.goal_space, within, probability, p.epsilon, avoided, reset_log)


def _require_mixture(method: str, env: TabularEnv) -> LinearMixture:
    if env.mixture is None:
        text = f"{env.name} is not a linear mixture, which {method} needs; try a mixture-* environment"
        raise InputError(text, "method")
    return env.mixture
