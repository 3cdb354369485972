"""The methods by name: each builds estimates for a world, and brings the loop that it is run with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from adagoal.core import plugins
from adagoal.core.counts import Counts
from adagoal.core.errors import InputError
from adagoal.core.goalspace import GoalSpace
from adagoal.core.mixture import LinearMixture
from adagoal.core.run import Answer, Estimates, Observer, Run
from adagoal.core.status import Status
from adagoal.core.world import World
from adagoal.linear.bounds import MixtureBounds
from adagoal.linear.likelihood import Likelihood
from adagoal.linear.pooled import Pooled
from adagoal.linear.vtr import VTR
from adagoal.loop import explore
from adagoal.planning.backend import NUMBA, Backend
from adagoal.rivals.bpi import BPI
from adagoal.rivals.disco import DisCo
from adagoal.rivals.explorer import Explorer, follow
from adagoal.rivals.gosprl import Gosprl
from adagoal.rivals.intervals import Intervals
from adagoal.rivals.lae import LAE
from adagoal.rivals.looks import BOUNDS
from adagoal.rivals.planning import scale
from adagoal.rivals.ucbexplore import UcbExplore
from adagoal.rivals.valae import VALAE
from adagoal.tabular.bayes import Bayes
from adagoal.tabular.certified import Certified
from adagoal.tabular.paper import SHARE, UCBVI
from adagoal.tabular.reset import SHARE as SHARE_OF_RESET
from adagoal.tabular.reset import BelievedReset, Bounded


@dataclass(frozen=True)
class Problem:
    """What every method is told."""

    world: World
    counts: Counts
    L: float
    epsilon: float
    delta: float
    goals: GoalSpace
    backend: Backend = NUMBA
    seed: int = 0
    """Of methods that draw random numbers."""


def certified(problem: Problem, branching: int | None = None) -> Estimates:
    """Certified bounds (the default). branching: no pair has more than this many successors, if you know it."""
    p = problem
    _branching(p.world, branching)
    rest = p.goals, branching, p.world.pair_bound, p.backend
    return _vouched(p, lambda delta: Certified(p.counts, p.world.state_bound, p.L, p.epsilon, delta, *rest))


def ucbvi(problem: Problem, bonus: str = "literal", horizon: int | None = None, lazy: bool = False) -> Estimates:
    """The paper's AdaGoal-UCBVI. bonus: literal, rebalanced or simplified (no guarantee). horizon: H, instead of the
    formula's (a smaller one voids the guarantee). lazy: plan only when some count has doubled, not every episode.
    """
    p = problem
    if bonus not in list(SHARE):
        raise InputError(f"bonus must be one of {', '.join(SHARE)}, got {bonus!r}", "method_args")
    _whole("horizon", horizon)
    _known_size("ucbvi", p)
    return UCBVI(p.counts, p.L, p.epsilon, p.delta, p.goals, bonus, horizon, lazy)


def bayes(problem: Problem) -> Estimates:
    """Bayesian, no guarantee: quantiles over posterior samples of the model."""
    _known_size("bayes", problem)
    return Bayes(problem.counts, problem.L, problem.epsilon, problem.goals, seed=problem.seed)


def ucbexplore(problem: Problem, constants: str = "paper") -> Explorer:
    """Lim and Auer's UcbExplore. constants: paper, or scaled=c (see rivals/planning.py)."""
    return UcbExplore(*_rival(problem), constants, state_bound=_bound(problem))


def disco(problem: Problem, constants: str = "paper") -> Explorer:
    """DisCo. constants: paper, or scaled=c (see rivals/planning.py)."""
    return DisCo(*_rival(problem), constants, state_bound=_bound(problem))


def valae(problem: Problem, constants: str = "paper") -> Explorer:
    """VALAE: DisCo's set, then its policies. constants: paper, or scaled=c (see rivals/planning.py)."""
    _known_size("valae", problem)
    return VALAE(*_rival(problem), constants)


def lae(problem: Problem, constants: str = "paper") -> Explorer:
    """LAE: layer by layer, then consolidation. constants: paper, or scaled=c (see rivals/planning.py)."""
    _known_size("lae", problem)
    return LAE(*_rival(problem), constants)


def gosprl(problem: Problem, constants: str = "paper", samples: int | None = None) -> Explorer:
    """GOSPRL: the diameter, then goal-free exploration. constants: paper, or scaled=c (see rivals/planning.py).
    samples: collect so many samples of every pair, and nothing else.
    """
    _whole("samples", samples)
    _known_size("gosprl", problem)
    return Gosprl(*_rival(problem), constants, samples)


def bpi_ucbvi(problem: Problem, constants: str = "paper", horizon: int | None = None) -> Estimates:
    """BPI-UCBVI, for one goal. constants: paper, or scaled=c. horizon: H, instead of AdaGoal-UCBVI's."""
    _whole("horizon", horizon)
    _known_size("bpi-ucbvi", problem)
    return BPI(*_rival(problem), constants, horizon)


def intervals(problem: Problem, bound: str = "clopper-pearson", branching: int | None = None) -> Estimates:
    """Interval MDPs and L1 balls, as model checkers use them, with robust value iteration; certified. bound:
    clopper-pearson, hoeffding or weissman. branching: no pair has more than this many successors, if you know it.
    """
    p = problem
    if bound not in list(BOUNDS):
        raise InputError(f"bound must be one of {', '.join(BOUNDS)}, got {bound!r}", "method_args")
    _branching(p.world, branching)
    rest = p.goals, bound, branching, p.world.pair_bound
    return _vouched(p, lambda delta: Intervals(p.counts, p.world.state_bound, p.L, p.epsilon, delta, *rest))


def vtr(problem: Problem, horizon: int | None = None) -> Estimates:
    """The paper's AdaGoal-UCRL.VTR, for linear mixtures. horizon: H, instead of the formula's (a smaller one voids the
    guarantee).
    """
    p, mixture = problem, _mixture("vtr", problem.world)
    _whole("horizon", horizon)
    return VTR(mixture, p.counts, p.L, p.epsilon, p.delta, p.goals, p.world.doubt, horizon)


def vtr_pooled(problem: Problem) -> Estimates:
    """Linear mixtures, certified: one value-targeted regression for all goals."""
    p, mixture = problem, _mixture("vtr-pooled", problem.world)
    return _vouched(
        p,
        lambda delta: MixtureBounds(mixture, p.counts, Pooled(mixture, delta), p.L, p.epsilon, p.goals, p.world.doubt),
    )


def likelihood(problem: Problem) -> Estimates:
    """Linear mixtures of probability kernels, certified: a likelihood set for the weights."""
    p, mixture = problem, _mixture("likelihood", problem.world)
    return _vouched(
        p,
        lambda delta: MixtureBounds(
            mixture, p.counts, Likelihood(mixture, delta), p.L, p.epsilon, p.goals, p.world.doubt
        ),
    )


class Method(NamedTuple):
    """A method: how it is built, which loop plays it, and what it can do."""

    build: Callable[..., Answer]
    """From a :class:`Problem` and the method's own arguments."""
    loop: Callable[[Run, int, Observer], Status] = explore
    asks_rule: bool = True
    """False where the method decides by itself where to go."""
    grows: bool = False
    """Whether its estimates are :class:`~adagoal.core.run.Growing`, for radius "auto" and "all"."""
    waits: bool = False
    """Whether its estimates are :class:`~adagoal.core.run.Waiting`."""
    on_device: bool = False
    """Whether its plans can be made elsewhere than on the processor."""
    masks: bool = False
    """Whether it can leave out actions that a state does not have."""


METHODS = {
    "certified": Method(certified, grows=True, waits=True, on_device=True, masks=True),
    "ucbvi": Method(ucbvi),
    "bayes": Method(bayes),
    "ucbexplore": Method(ucbexplore, follow, asks_rule=False),
    "disco": Method(disco, follow, asks_rule=False),
    "valae": Method(valae, follow, asks_rule=False),
    "lae": Method(lae, follow, asks_rule=False),
    "gosprl": Method(gosprl, follow, asks_rule=False),
    "bpi-ucbvi": Method(bpi_ucbvi),
    "intervals": Method(intervals, grows=True, masks=True),
    "likelihood": Method(likelihood, grows=True),
    "vtr-pooled": Method(vtr_pooled, grows=True),
    "vtr": Method(vtr),
}


def get(name: str) -> Method:
    """The method of that name: one of :data:`METHODS`, or of an installed package (:mod:`adagoal.core.plugins`)."""
    if name in list(METHODS):
        return METHODS[name]
    found = plugins.find(plugins.METHODS, name, "method") if isinstance(name, str) else None
    if found is None:
        known = ", ".join([*METHODS, *plugins.names(plugins.METHODS)])
        raise InputError(f"unknown method {name!r}; choose one of {known}", "method")
    if not isinstance(found, Method):
        raise InputError(f"{name!r} of an installed package is not an adagoal.methods.Method", "method")
    return found


def build(method: str, problem: Problem, arguments: dict[str, Any]) -> Answer:
    """Estimates of the named method; unknown names and arguments are one clear line."""
    names = accepted(method)
    for name in arguments:
        if name not in names:
            raise InputError(
                f"{method} has no argument {name!r}; it accepts {', '.join(names) or 'none'}", "method_args"
            )
    problem.world.masked = get(method).masks
    answer = get(method).build(problem, **arguments)
    if answer.guarantee and not problem.world.sure_start and not isinstance(answer, BelievedReset):
        problem.world.note(f"the proof of {method} takes it for granted that every reset leads to the same start")
    return answer


def accepted(method: str) -> list[str]:
    """The arguments of a method."""
    return list(inspect.signature(get(method).build).parameters)[1:]


def with_constants(constants: str | None, choices: Sequence[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """The arguments of each (method, arguments), with ``constants`` where the method has them and none are given.

    This is what ``constants`` means, the same for all: the argument ``constants`` of the methods that have one.
    """
    if constants is None:
        return [arguments for _, arguments in choices]
    scale(constants)
    open_to_it = ["constants" in accepted(method) and "constants" not in given for method, given in choices]
    if not any(open_to_it):
        able = ", ".join(name for name in METHODS if "constants" in accepted(name))
        chosen = ", ".join(":".join([method, *given]) for method, given in choices)
        raise InputError(f"is for {able}, where none are given yet; not for {chosen}", "constants")
    return [
        {**given, "constants": constants} if fits else given
        for (_, given), fits in zip(choices, open_to_it, strict=True)
    ]


def _whole(name: str, value: int | None) -> None:
    """An argument that is a number of something, or not given."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise InputError(f"{name} must be a whole number >= 1, got {value!r}", "method_args")


def _branching(world: World, branching: int | None) -> None:
    """The most successors of a pair, if the user vouches for a number."""
    _whole("branching", branching)
    if branching is not None:
        world.note(f"the certificate rests on your word that no pair has more than {branching} successors")


def _rival(p: Problem) -> tuple[Counts, float, float, float, GoalSpace]:
    return p.counts, p.L, p.epsilon, p.delta, p.goals


def _bound(p: Problem) -> int:
    """The most states, where they are numbered as they are found; else 0."""
    return p.world.state_bound if p.world.state_bound != p.world.initial_states or not p.goals.whole else 0


def _vouched(p: Problem, build: Callable[[float], Bounded]) -> Estimates:
    """Estimates built with delta, or with what the reset leaves of it where the world cannot vouch for its start."""
    if p.world.sure_start:
        return build(p.delta)
    wider = BelievedReset(build((1.0 - SHARE_OF_RESET) * p.delta), SHARE_OF_RESET * p.delta)
    return cast(Estimates, wider)


def _known_size(method: str, problem: Problem) -> None:
    world = problem.world
    if world.state_bound != world.initial_states or not problem.goals.whole:
        raise InputError(f"{method} needs a known number of states, which {world.name} does not have", "method")


def _mixture(method: str, world: World) -> LinearMixture:
    """The known kernels of the world."""
    if world.mixture is None:
        text = f"{world.name} is not a linear mixture, which {method} needs; try a mixture-* environment"
        raise InputError(text, "method")
    return world.mixture
