"""The methods by name: each builds estimates for a world, and brings the loop that it is run with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from adagoal.baselines.bpi_ucbvi import BPI
from adagoal.baselines.disco import DisCo
from adagoal.baselines.gosprl import Gosprl
from adagoal.baselines.interval_mdp import INTERVAL_BOUNDS, IntervalEstimates
from adagoal.baselines.lae import LAE
from adagoal.baselines.self_directed import SelfDirectedMethod, parse_constants, run_self_directed
from adagoal.baselines.ucbexplore import UcbExplore
from adagoal.baselines.valae import VALAE
from adagoal.certified.explorer import CertifiedExplorer
from adagoal.certified.reset import RESET_DELTA_SHARE as SHARE_OF_RESET
from adagoal.certified.reset import ExactResetEstimates, UncertainReset
from adagoal.core import user_code
from adagoal.core.environment import TabularEnv
from adagoal.core.errors import InputError, Status
from adagoal.core.exploration_run import ExplorationRun, GoalEstimates, PlanningEstimates, RunObserver
from adagoal.core.goal_space import GoalSpace
from adagoal.core.linear_mixture import LinearMixture
from adagoal.core.transition_data import TransitionCounts
from adagoal.linear.likelihood_learner import LikelihoodLearner
from adagoal.linear.mixture_bounds import MixtureBounds
from adagoal.linear.pooled_learner import PooledLearner
from adagoal.linear.ucrl_vtr import VTR
from adagoal.loop import run_exploration
from adagoal.tabular.bayes import BayesianEstimates
from adagoal.tabular.ucbvi import EPSILON_SHARES, UCBVI


@dataclass(frozen=True)
class ExplorationProblem:
    """What every method is told."""

    env: TabularEnv
    counts: TransitionCounts
    L: float
    epsilon: float
    delta: float
    goal_space: GoalSpace
    seed: int = 0
    """Of methods that draw random numbers."""


def build_certified(problem: ExplorationProblem, branching: int | None = None) -> PlanningEstimates:
    """Certified bounds (the default). branching: no pair has more than this many successors, if you know it."""
    p = problem
    _check_branching(p.env, branching)
    rest = p.goal_space, branching, p.env.pair_bound
    return _account_for_reset(
        p, lambda delta: CertifiedExplorer(p.counts, p.env.state_bound, p.L, p.epsilon, delta, *rest)
    )


def build_ucbvi(
    problem: ExplorationProblem, bonus: str = "literal", horizon: int | None = None, lazy: bool = False
) -> PlanningEstimates:
    """The paper's AdaGoal-UCBVI. bonus: literal, rebalanced or simplified (no guarantee). horizon: H, instead of the
    formula's (a smaller one voids the guarantee). lazy: plan only when some count has doubled, not every episode.
    """
    p = problem
    if bonus not in list(EPSILON_SHARES):
        raise InputError(f"bonus must be one of {', '.join(EPSILON_SHARES)}, got {bonus!r}", "method_args")
    _check_positive_integer("horizon", horizon)
    _require_known_size("ucbvi", p)
    return UCBVI(p.counts, p.L, p.epsilon, p.delta, p.goal_space, bonus, horizon, lazy)


def build_bayes(problem: ExplorationProblem) -> PlanningEstimates:
    """Bayesian, no guarantee: quantiles over posterior samples of the model."""
    _require_known_size("bayes", problem)
    return BayesianEstimates(problem.counts, problem.L, problem.epsilon, problem.goal_space, seed=problem.seed)


def build_ucbexplore(problem: ExplorationProblem, constants: str = "paper") -> SelfDirectedMethod:
    """Lim and Auer's UcbExplore. constants: paper, or scaled=c (see baselines/self_directed.py)."""
    return UcbExplore(*_baseline_arguments(problem), constants, state_bound=_growing_state_bound(problem))


def build_disco(problem: ExplorationProblem, constants: str = "paper") -> SelfDirectedMethod:
    """DisCo. constants: paper, or scaled=c (see baselines/self_directed.py)."""
    return DisCo(*_baseline_arguments(problem), constants, state_bound=_growing_state_bound(problem))


def build_valae(problem: ExplorationProblem, constants: str = "paper") -> SelfDirectedMethod:
    """VALAE: DisCo's set, then its policies. constants: paper, or scaled=c (see baselines/self_directed.py)."""
    _require_known_size("valae", problem)
    return VALAE(*_baseline_arguments(problem), constants)


def build_lae(problem: ExplorationProblem, constants: str = "paper") -> SelfDirectedMethod:
    """LAE: layer by layer, then consolidation. constants: paper, or scaled=c (see baselines/self_directed.py)."""
    _require_known_size("lae", problem)
    return LAE(*_baseline_arguments(problem), constants)


def build_gosprl(
    problem: ExplorationProblem, constants: str = "paper", samples: int | None = None
) -> SelfDirectedMethod:
    """GOSPRL: the diameter, then goal-free exploration. constants: paper, or scaled=c (see baselines/self_directed.py).
    samples: collect so many samples of every pair, and nothing else.
    """
    _check_positive_integer("samples", samples)
    _require_known_size("gosprl", problem)
    return Gosprl(*_baseline_arguments(problem), constants, samples)


def build_bpi_ucbvi(
    problem: ExplorationProblem, constants: str = "paper", horizon: int | None = None
) -> PlanningEstimates:
    """BPI-UCBVI, for one goal. constants: paper, or scaled=c. horizon: H, instead of AdaGoal-UCBVI's."""
    _check_positive_integer("horizon", horizon)
    _require_known_size("bpi-ucbvi", problem)
    return BPI(*_baseline_arguments(problem), constants, horizon)


def build_intervals(
    problem: ExplorationProblem, bound: str = "clopper-pearson", branching: int | None = None
) -> PlanningEstimates:
    """Interval MDPs and L1 balls, as model checkers use them, with robust value iteration; certified. bound:
    clopper-pearson, hoeffding or weissman. branching: no pair has more than this many successors, if you know it.
    """
    p = problem
    if bound not in list(INTERVAL_BOUNDS):
        raise InputError(f"bound must be one of {', '.join(INTERVAL_BOUNDS)}, got {bound!r}", "method_args")
    _check_branching(p.env, branching)
    rest = p.goal_space, bound, branching, p.env.pair_bound
    return _account_for_reset(
        p, lambda delta: IntervalEstimates(p.counts, p.env.state_bound, p.L, p.epsilon, delta, *rest)
    )


def build_vtr(problem: ExplorationProblem, horizon: int | None = None) -> PlanningEstimates:
    """The paper's AdaGoal-UCRL.VTR, for linear mixtures. horizon: H, instead of the formula's (a smaller one voids the
    guarantee).
    """
    p, mixture = problem, _require_mixture("vtr", problem.env)
    _check_positive_integer("horizon", horizon)
    return VTR(mixture, p.counts, p.L, p.epsilon, p.delta, p.goal_space, p.env.add_void_reason, horizon)


def build_vtr_pooled(problem: ExplorationProblem) -> PlanningEstimates:
    """Linear mixtures, certified: one value-targeted regression for all goals."""
    p, mixture = problem, _require_mixture("vtr-pooled", problem.env)
    return _account_for_reset(
        p,
        lambda delta: MixtureBounds(
            mixture, p.counts, PooledLearner(mixture, delta), p.L, p.epsilon, p.goal_space, p.env.add_void_reason
        ),
    )


def build_likelihood(problem: ExplorationProblem) -> PlanningEstimates:
    """Linear mixtures of probability kernels, certified: a likelihood set for the weights."""
    p, mixture = problem, _require_mixture("likelihood", problem.env)
    return _account_for_reset(
        p,
        lambda delta: MixtureBounds(
            mixture, p.counts, LikelihoodLearner(mixture, delta), p.L, p.epsilon, p.goal_space, p.env.add_void_reason
        ),
    )


class Method(NamedTuple):
    """A method: how it is built, which loop plays it, and what it can do."""

    build_estimates: Callable[..., GoalEstimates]
    """From a :class:`ExplorationProblem` and the method's own arguments."""
    run_loop: Callable[[ExplorationRun, int, RunObserver], Status] = run_exploration
    uses_goal_rule: bool = True
    """False where the method decides by itself where to go."""
    radius_can_grow: bool = False
    """Whether its estimates are :class:`~adagoal.core.exploration_run.SupportsRadiusCurriculum`, for radius "auto" and
    "all"."""
    can_finalize: bool = False
    """Whether its estimates are :class:`~adagoal.core.exploration_run.SupportsFinalize`."""
    supports_action_masks: bool = False
    """Whether it can leave out actions that a state does not have."""


METHODS = {
    "certified": Method(build_certified, radius_can_grow=True, can_finalize=True, supports_action_masks=True),
    "ucbvi": Method(build_ucbvi),
    "bayes": Method(build_bayes),
    "ucbexplore": Method(build_ucbexplore, run_self_directed, uses_goal_rule=False),
    "disco": Method(build_disco, run_self_directed, uses_goal_rule=False),
    "valae": Method(build_valae, run_self_directed, uses_goal_rule=False),
    "lae": Method(build_lae, run_self_directed, uses_goal_rule=False),
    "gosprl": Method(build_gosprl, run_self_directed, uses_goal_rule=False),
    "bpi-ucbvi": Method(build_bpi_ucbvi),
    "intervals": Method(build_intervals, radius_can_grow=True, supports_action_masks=True),
    "likelihood": Method(build_likelihood, radius_can_grow=True),
    "vtr-pooled": Method(build_vtr_pooled, radius_can_grow=True),
    "vtr": Method(build_vtr),
}


def find_method(name: str) -> Method:
    """The method of that name: one of :data:`METHODS`, or of an installed package (:mod:`adagoal.core.user_code`)."""
    if name in list(METHODS):
        return METHODS[name]
    found = user_code.load_plugin(user_code.METHOD_GROUP, name, "method") if isinstance(name, str) else None
    if found is None:
        known = ", ".join([*METHODS, *user_code.list_plugin_names(user_code.METHOD_GROUP)])
        raise InputError(f"unknown method {name!r}; choose one of {known}", "method")
    if not isinstance(found, Method):
        raise InputError(f"{name!r} of an installed package is not an adagoal.methods.Method", "method")
    return found


def build_estimates(method: str, problem: ExplorationProblem, arguments: dict[str, Any]) -> GoalEstimates:
    """Estimates of the named method; unknown names and arguments are one clear line."""
    names = accepted_arguments(method)
    for name in arguments:
        if name not in names:
            raise InputError(
                f"{method} has no argument {name!r}; it accepts {', '.join(names) or 'none'}", "method_args"
            )
    problem.env.uses_action_masks = find_method(method).supports_action_masks
    answer = find_method(method).build_estimates(problem, **arguments)
    if answer.guarantee and not problem.env.start_is_certain and not isinstance(answer, UncertainReset):
        problem.env.add_warning(f"the proof of {method} takes it for granted that every reset leads to the same start")
    return answer


def accepted_arguments(method: str) -> list[str]:
    """The arguments of a method."""
    return list(inspect.signature(find_method(method).build_estimates).parameters)[1:]


def apply_constants(constants: str | None, choices: Sequence[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """The arguments of each (method, arguments), with ``constants`` where the method has them and none are given.

    This is what ``constants`` means, the same for all: the argument ``constants`` of the methods that have one.
    """
    if constants is None:
        return [arguments for _, arguments in choices]
    parse_constants(constants)
    open_to_it = ["constants" in accepted_arguments(method) and "constants" not in given for method, given in choices]
    if not any(open_to_it):
        able = ", ".join(name for name in METHODS if "constants" in accepted_arguments(name))
        chosen = ", ".join(":".join([method, *given]) for method, given in choices)
        raise InputError(f"is for {able}, where none are given yet; not for {chosen}", "constants")
    return [
        {**given, "constants": constants} if fits else given
        for (_, given), fits in zip(choices, open_to_it, strict=True)
    ]


def _check_positive_integer(name: str, value: int | None) -> None:
    """An argument that is a number of something, or not given."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise InputError(f"{name} must be a whole number >= 1, got {value!r}", "method_args")


def _check_branching(world: TabularEnv, branching: int | None) -> None:
    """The most successors of a pair, if the user vouches for a number."""
    _check_positive_integer("branching", branching)
    if branching is not None:
        world.add_warning(f"the certificate rests on your word that no pair has more than {branching} successors")


def _baseline_arguments(p: ExplorationProblem) -> tuple[TransitionCounts, float, float, float, GoalSpace]:
    return p.counts, p.L, p.epsilon, p.delta, p.goal_space


def _growing_state_bound(p: ExplorationProblem) -> int:
    """The most states, where they are numbered as they are found; else 0."""
    return p.env.state_bound if p.env.state_bound != p.env.initial_states or not p.goal_space.members_complete else 0


def _account_for_reset(p: ExplorationProblem, build: Callable[[float], ExactResetEstimates]) -> PlanningEstimates:
    """Estimates built with delta, or with what the reset leaves of it where the world cannot vouch for its start."""
    if p.env.start_is_certain:
        return build(p.delta)
    wider = UncertainReset(build((1.0 - SHARE_OF_RESET) * p.delta), SHARE_OF_RESET * p.delta)
    return cast(PlanningEstimates, wider)


def _require_known_size(method: str, problem: ExplorationProblem) -> None:
    world = problem.env
    if world.state_bound != world.initial_states or not problem.goal_space.members_complete:
        raise InputError(f"{method} needs a known number of states, which {world.name} does not have", "method")


def _require_mixture(method: str, world: TabularEnv) -> LinearMixture:
    """The known kernels of the world."""
    if world.mixture is None:
        text = f"{world.name} is not a linear mixture, which {method} needs; try a mixture-* environment"
        raise InputError(text, "method")
    return world.mixture
