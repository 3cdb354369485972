"""Try an environment before a run: can it be used, would something void a certificate, and what will the run do?"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import gymnasium

from adagoal.core import status
from adagoal.core.checks import integer
from adagoal.core.errors import InputError
from adagoal.core.streams import aside
from adagoal.core.text import plain
from adagoal.core.world import World
from adagoal.worlds import probe, registry
from adagoal.worlds.body import Body, Local
from adagoal.worlds.gym import GymWorld
from adagoal.worlds.simulator import ModelWorld

STEPS = 2000


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
        return status.BAD_INPUT if self.errors else status.CONTRADICTED if self.void else 0

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
        parts = (("A run", self.plan), ("warning:", self.warnings), ("void:", self.void), ("error:", self.errors))
        return "\n".join([*lines, *(f"{kind} {line}" for kind, found in parts for line in found)])


def check_env(
    env: str | gymnasium.Env[Any, Any],
    *,
    env_args: Mapping[str, Any] | None = None,
    start: str | None = None,
    start_seed: int | str | None = None,
    max_states: int | None = None,
    step_timeout: float | None = None,
    steps: int = STEPS,
    seed: int = 0,
) -> Check:
    """Try an environment, as :func:`adagoal.explore` would use it, for some ``steps`` with random actions.

    An environment object is reset and stepped, so give one that is not in use. ``step_timeout`` is that of ``explore``;
    with it observations are not compared with their space, and action masks not looked for.
    """
    integer("steps", steps, 1, 10**9)
    integer("seed", seed, 0, 2**31 - 1)
    arguments, start_seed = env_args or {}, registry.start_of(start, start_seed)
    registry.check_arguments(arguments, start_seed, max_states)
    check = Check(plain(env if isinstance(env, str) else type(getattr(env, "unwrapped", env)).__name__, 200))
    with tempfile.TemporaryFile("w+", errors="replace") as printed:
        with aside(printed):
            try:
                given = Limits(arguments, start_seed, max_states, step_timeout, steps, seed)
                _try_name(check, env, given) if isinstance(env, str) else _try_object(check, env, env, given)
            except InputError as error:
                check.errors.append(str(error))
        printed.seek(0)
        check.printed = sum(1 for _ in printed)
    if check.printed:
        check.warnings.append(f"it prints ({check.printed} lines); that goes to standard error")
    return check


class Limits(NamedTuple):
    """What was said about the environment and the trial."""

    env_args: Mapping[str, Any]
    start_seed: int | str | None
    max_states: int | None
    step_timeout: float | None
    steps: int
    seed: int


def _try_name(check: Check, name: str, given: Limits) -> None:
    """A model is simulated, anything else is made and stepped."""
    model = registry.make_model(name, given.env_args, given.start_seed)
    own = registry.modelled(name)
    made = None if own else registry.make(name, given.env_args)
    check.warnings += [] if own else registry.look_up(name)[1]
    if model is None:
        assert made is not None
        _try_object(check, name, made, given)
        Local(made, name, given.max_states).close()
        return
    check.known_model, check.n_actions, check.n_states = True, model.n_actions, model.n_states
    check.fixed_start = made is None or bool(model.n_states == getattr(made.observation_space, "n", None))
    check.time_limit = None if made is None else probe.time_limit(made)
    check.action_masks = bool(model.absent.any())
    check.plan += _plan(check, ModelWorld(model))


def _try_object(check: Check, named: Any, env: Any, given: Limits) -> None:
    """Step an environment as it is; ``named`` is how the user gave it."""
    if not isinstance(env, gymnasium.Env):
        raise InputError(f"must be a name or a Gymnasium environment, not {type(env).__name__}", "env")
    check.known_model = registry.make_model(env, {}, given.start_seed) is not None
    check.time_limit, check.observations = probe.time_limit(env), plain(env.observation_space, 100)
    watched = probe.Watched(env)
    body: Body = Local(watched, check.env, given.max_states)
    if given.step_timeout is None:
        world = GymWorld(env, check.env, given.start_seed, given.max_states)  # not watched, as that takes time
    else:
        made, _ = registry.make_world(named, *given[:4])
        assert isinstance(made, GymWorld)
        world, body = made, made.body
    check.n_actions, check.fixed_start = world.n_actions, not world.sure_start
    check.n_states = None if body.facts.states is None else world.state_bound
    _step(check, world, body, given)
    if given.step_timeout is None and check.one_generator is not None:
        _remark(check, watched.seen)
    check.warnings += world.warnings
    check.void += world.void
    check.plan += _plan(check, world)


def _step(check: Check, world: GymWorld, body: Body, given: Limits) -> None:
    """Everything that an environment does when it is stepped."""
    found = probe.tour(world, given.steps, given.seed)
    check.steps, check.states_met, check.ends_met = found.steps, found.states, found.ends
    check.steps_per_second = found.steps / max(found.seconds, 1e-9)
    if found.failure is not None:
        (check.void if found.steps else check.errors).append(str(found.failure))
        return
    try:
        check.seed_decides, check.one_generator = probe.seed_decides(body), probe.one_generator(body)
    except InputError as error:
        check.void.append(str(error))
        return
    if not check.seed_decides:
        check.warnings.append("the same seed does not give the same steps, so a run cannot be repeated")
    if not check.one_generator:
        check.warnings.append(
            "not all randomness comes from np_random, so a resumed run is valid but not the same bit for bit"
        )
        if isinstance(given.start_seed, int):
            check.void.append(
                "start_seed seeds a generator of its own at every reset: all episodes draw the same numbers"
            )


def _remark(check: Check, seen: probe.Seen) -> None:
    """What it showed beside its states."""
    check.in_space, check.action_masks = seen.outside is None, seen.masks
    if seen.outside is not None:
        check.warnings.append(f"the observation {seen.outside} does not lie in its space")


def _plan(check: Check, world: World) -> list[str]:
    """What a run will do."""
    if isinstance(world, ModelWorld):
        plan = ["simulates the known model, compiled"]
    elif check.n_states is not None:
        plan = ["steps the environment and numbers states as it does"]
    else:
        plan = [f"steps the environment and numbers states as they are met, at most {world.state_bound:,} (max_states)"]
    if check.fixed_start:
        plan.append(f"begins at state {world.start}, to which every reset leads")
    else:
        plan.append(f"begins at a virtual start, state {world.start}, where every action draws a start of its own")
    if not world.sure_start:
        plan.append("keeps a share of delta for resets that might lead elsewhere")
    if check.action_masks:
        plan.append("leaves out the actions that masks (action_mask in info) rule out")
    if check.time_limit is not None:
        plan.append(f"ignores the time limit of {check.time_limit} steps")
    plan.append("can be audited" if check.known_model else "cannot be audited, as no exact model is known, but played")
    return plan
