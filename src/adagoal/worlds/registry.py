"""Environments by name: the built-in worlds, anything that Gymnasium can make, and objects as they are."""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator, parse_env_id

from adagoal.core import checks, plugins
from adagoal.core.checks import number
from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.core.text import OBJECT, told
from adagoal.core.world import World
from adagoal.worlds import families, grid, matrices, random_models, toys
from adagoal.worlds.adapter import RANDOM, StartSeed
from adagoal.worlds.body import TOY_TEXT, Local
from adagoal.worlds.gym import GymWorld
from adagoal.worlds.model import TabularMDP
from adagoal.worlds.process import Remote
from adagoal.worlds.simulator import ModelWorld
from adagoal.worlds.toy_text import toy_text_model

Environment = gymnasium.Env[Any, Any]

BUILT_IN: dict[str, Callable[..., TabularMDP]] = {
    "two-room": grid.two_room,
    "two-room-right": functools.partial(grid.two_room, layout="right"),
    "grid": grid.open_grid,
    "grid-file": grid.grid_from_file,
    "maze": grid.maze,
    "chain": toys.chain,
    "waiting-chain": toys.waiting_chain,
    "rare-exit": toys.rare_exit,
    "trap-chain": toys.trap_chain,
    "fan": toys.fan,
    "lower-bound": toys.lower_bound,
    "separation": toys.separation,
    "random-dense": random_models.random_dense,
    "random-sparse": random_models.random_sparse,
    "random-deterministic": random_models.random_deterministic,
    "random-traps": random_models.random_traps,
    "random-unreachable": random_models.random_unreachable,
    "random-waiting": random_models.random_waiting,
    "random-rare-exits": random_models.random_rare_exits,
    "mixture-windy": families.windy,
    "mixture-slippery": families.slippery,
    "mixture-weather": families.weather,
    "mixture-tree": families.tree,
    "mixture-inventory": families.inventory,
    "mixture-signed": functools.partial(families.windy, signed=True),
}
"""Builders of known models; all their arguments are keywords."""

EXAMPLES = {
    "FrozenLake-v1": "Gymnasium: slippery ice with holes; map_name=8x8, is_slippery=false",
    "CliffWalking-v1": "Gymnasium: a grid whose cliff sends back to the start; is_slippery=true",
    "Taxi-v4": "Gymnasium: 500 states; the start is random unless --start-seed fixes it",
    "MiniGrid-Empty-5x5-v0": "MiniGrid (pip install minigrid): states are enumerated as they are met",
    "any other Gymnasium id": "discrete actions, and observations that are discrete or can be told apart exactly",
}


class Entry(NamedTuple):
    """One line of ``adagoal envs``."""

    name: str
    description: str
    arguments: dict[str, Any]
    """Accepted names of ``env_args`` with their defaults ("required" where there is none)."""


def make_world(
    env: str | Environment | World | TabularMDP,
    env_args: Mapping[str, Any],
    start_seed: StartSeed,
    max_states: int | None,
    step_timeout: float | None = None,
) -> tuple[World, str]:
    """The world to explore, and its name in results.

    A name gives a compiled simulator where the model is known (built-in worlds, toy-text environments); an
    environment object is always stepped as it is. With ``step_timeout`` an environment is made and stepped in a
    process of its own, which a step that takes longer does not survive.
    """
    if step_timeout is not None:
        number("step_timeout", step_timeout, 0, 1e6, closed="(]")
        if not isinstance(env, str | TabularMDP):
            raise InputError("an environment object cannot be sent to another process; give its name", "step_timeout")
    check_arguments(env_args, start_seed, max_states)
    brought = matrices.model_of(env, env_args)
    if start_seed == RANDOM and (brought is not None or not isinstance(env, str | gymnasium.Env) or env in BUILT_IN):
        raise InputError("random is for Gymnasium environments; a model has one start", "start")
    if brought is not None:
        return ModelWorld(brought, own=True), env if isinstance(env, str) else OBJECT + brought.name
    if isinstance(env, str):
        if modelled(env):
            return ModelWorld(_build(env, env_args)), env
        spec, notes = look_up(env)
        world: World
        if step_timeout is not None and not str(spec.entry_point).startswith(TOY_TEXT):
            body = Remote(functools.partial(_body, env, dict(env_args), max_states), env, step_timeout)
            world = GymWorld(body, env, start_seed, max_states)
        else:
            made = make(env, env_args)
            model = toy_text_model(made, env, start_seed)
            if model is None:
                world = GymWorld(made, env, start_seed, max_states)
            else:
                world = ModelWorld(model, observations=int(made.observation_space.n))  # type: ignore[attr-defined]
        for line in notes:
            world.note(line)
        return world, env
    if env_args:
        raise InputError(f"{next(iter(env_args))} given, but the environment is an object, made already", "env_args")
    if isinstance(env, gymnasium.Env):
        name = OBJECT + (env.spec.id if env.spec is not None else type(env.unwrapped).__name__)
        stepped, model = GymWorld(env, name, start_seed, max_states), toy_text_model(env, name, start_seed)
        if model is not None:
            stepped.labels, stepped.layout = model.labels, model.layout
        return stepped, name
    if hasattr(env, "rollout") and not isinstance(env, TabularMDP):
        return env, env.name
    text = f"must be a name, a file, a matrix, a Model, a Gymnasium environment or a World, not {type(env).__name__}"
    raise InputError(text, "env")


def start_of(start: Any, start_seed: StartSeed) -> StartSeed:
    """What is said about the start of an environment, as one value; a state of a matrix says nothing about that."""
    if not isinstance(start, str):
        return start_seed
    if start != RANDOM:
        raise InputError(f"must be {RANDOM}, or a state of a matrix, got {start!r}", "start")
    if start_seed not in (None, RANDOM):
        raise InputError("a start that is random is not drawn with a seed; give one of the two", "start")
    return RANDOM


def check_arguments(env_args: Any, start_seed: Any, max_states: Any) -> None:
    """Types and ranges of what is said about an environment."""
    if max_states is not None and (not isinstance(max_states, int | np.integer) or max_states < 2):
        raise InputError(f"must be a whole number >= 2, got {checks.shown(max_states)}", "max_states")
    if start_seed is not None and start_seed != RANDOM:
        checks.seed("start_seed", start_seed)
    checks.names_with_values("env_args", env_args)


def installed(env: str, trust: bool) -> str:
    """The environment that a folder names, unless naming it would run code that nobody but the folder has asked for."""
    if ":" in env and not env.startswith(OBJECT) and not trust:
        text = f"the run is on {env!r}, which names a module to import; give the environment again, or trust the folder"
        raise InputError(text, "env")
    return env


def make_model(
    env: str | Environment | World | TabularMDP, env_args: Mapping[str, Any], start_seed: StartSeed
) -> TabularMDP | None:
    """The exact model with the same state numbers as :func:`make_world`'s, or None where nobody knows it."""
    brought = matrices.model_of(env, env_args)
    if brought is not None:
        return brought
    if isinstance(env, str):
        return _build(env, env_args) if modelled(env) else toy_text_model(make(env, env_args), env, start_seed)
    if isinstance(env, gymnasium.Env):
        return toy_text_model(env, OBJECT + type(env.unwrapped).__name__, start_seed)
    return env.mdp if isinstance(env, ModelWorld) else None


def describe() -> list[Entry]:
    """What an environment can be: built-in worlds with their arguments, those of installed packages, and examples."""
    rows = [_entry(name) for name in BUILT_IN]
    for name in plugins.names(plugins.WORLDS):
        try:
            rows.append(_entry(name))
        except InputError as error:
            rows.append(Entry(name, error.reason, {}))
    return rows + [Entry(name, text, {}) for name, text in EXAMPLES.items()]


def modelled(name: str) -> bool:
    """Whether a name means a known model: a built-in world, or one that an installed package declares."""
    return name in BUILT_IN or name in plugins.names(plugins.WORLDS)


def _entry(name: str) -> Entry:
    return Entry(name, (inspect.getdoc(_plain(name)) or "").split("\n")[0], _arguments(name))


def _builder(name: str) -> Callable[..., TabularMDP]:
    found = BUILT_IN.get(name) or plugins.find(plugins.WORLDS, name, "env")
    if not callable(found):
        raise InputError(f"{name!r} of an installed package is not a function", "env")
    return found


def _plain(name: str) -> Callable[..., TabularMDP]:
    builder = _builder(name)
    return builder.func if isinstance(builder, functools.partial) else builder


def _arguments(name: str) -> dict[str, Any]:
    """The arguments that a user may give to a known model, with their defaults."""
    builder = _builder(name)
    fixed = builder.keywords if isinstance(builder, functools.partial) else {}
    parameters = inspect.signature(_plain(name)).parameters.values()
    return {p.name: "required" if p.default is p.empty else p.default for p in parameters if p.name not in fixed}


def _build(name: str, arguments: Mapping[str, Any]) -> TabularMDP:
    """A known model by its name; wrong arguments are one clear line."""
    accepted = _arguments(name)
    _check_names(name, arguments, accepted)
    for argument, default in accepted.items():
        if default == "required" and argument not in arguments:
            raise InputError(f"{name} needs {argument}=...", "env_args")
    try:
        model = _builder(name)(**arguments)
    except InputError as error:
        raise InputError(str(error), "env_args") from None
    except Exception as error:
        if name in BUILT_IN:
            raise
        raise EnvironmentFailure(f"{name} cannot be made ({told(error)})", "env") from error
    if not isinstance(model, TabularMDP):
        raise InputError(f"{name} of an installed package gave a {type(model).__name__}, not a Model", "env")
    return model


def _check_names(env: str, arguments: Mapping[str, Any], accepted: Iterable[str]) -> None:
    for argument in arguments:
        if argument not in accepted:
            raise InputError(
                f"{env} has no argument {argument!r}; it accepts {', '.join(accepted) or 'none'}", "env_args"
            )


def look_up(env: str) -> tuple[EnvSpec, list[str]]:
    """What Gymnasium knows under an id, and what should be said about it."""
    if env.startswith(OBJECT):
        raise InputError(f"{env} was an environment object of the program that ran it; give the object again", "env")
    module = env.partition(":")[0]
    if module.endswith(".py"):
        name = Path(module).stem
        raise InputError(f"{env} names a file; write {name}:ID, with an ID that {name} registers at Gymnasium", "env")
    if os.path.isfile(env):
        text = f"{env} is no file of a model ({', '.join(matrices.ENDINGS)}); adagoal.Model.from_dense(P).save(...)"
        raise InputError(f"{text} makes one from an array P[s, a, s']", "env")
    if env.startswith(("MiniGrid-", "BabyAI-")):
        _import_minigrid(env)
    with _blamed(env, {}):
        spec, notes = _spec(env)
        if spec.entry_point is None:
            raise InputError(f"{spec.id} cannot be made: it has no entry point", "env")
        return spec, notes


def make(env: str, arguments: Mapping[str, Any]) -> Environment:
    """An environment by its Gymnasium id, without Gymnasium's checks."""
    spec, _ = look_up(env)
    with _blamed(env, arguments):
        creator: Any = spec.entry_point if callable(spec.entry_point) else load_env_creator(str(spec.entry_point))
        parameters = inspect.signature(creator).parameters
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            _check_names(env, arguments, [name for name in parameters if name != "render_mode"])
        return gymnasium.make(spec, disable_env_checker=True, **arguments)


def _body(env: str, arguments: Mapping[str, Any], max_states: int | None) -> Local:
    """An environment for a process of its own."""
    return Local(make(env, arguments), env, max_states)


@contextlib.contextmanager
def _blamed(env: str, arguments: Mapping[str, Any]) -> Iterator[None]:
    """Code of an environment's package: without its notices, and whatever it raises is one clear line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
            raise InputError(f"{env} needs a package that is not installed ({error})", "env") from None
        except (KeyboardInterrupt, InputError):
            raise
        except BaseException as error:
            given = ", ".join(f"{key}={value}" for key, value in arguments.items())
            text = f"{env} cannot be made{f' with {given}' if given else ''} ({told(error)})"
            raise EnvironmentFailure(text, "env_args" if given else "env") from error


def _import_minigrid(env: str) -> None:
    """MiniGrid registers its environments when it is imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import minigrid  # noqa: F401
        except ImportError:
            raise InputError(f"{env} needs the minigrid package: pip install minigrid", "env") from None


def _spec(env: str) -> tuple[EnvSpec, list[str]]:
    """What Gymnasium knows under the id; the newest version stands in for one that was deprecated, or not given."""
    module, colon, rest = env.partition(":")
    if colon:
        importlib.import_module(module)
        env = rest
    if env in gymnasium.registry:
        return gymnasium.spec(env), []
    try:
        namespace, name, version = parse_env_id(env)
    except gymnasium.error.Error:
        raise InputError(_unknown(env), "env") from None
    same = [spec for spec in gymnasium.registry.values() if (spec.namespace, spec.name) == (namespace, name)]
    newest = max(same, key=lambda spec: spec.version or 0, default=None)
    if newest is None or (version or 0) > (newest.version or 0):
        raise InputError(_unknown(env), "env")
    return newest, [f"{env} is not in the installed Gymnasium: {newest.id} was used instead"]


def _unknown(env: str) -> str:
    names = [*BUILT_IN, *plugins.names(plugins.WORLDS), *gymnasium.registry]
    folded = {name.lower(): name for name in names}
    close = [folded[match] for match in difflib.get_close_matches(env.lower(), folded, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(close)}?" if close else "`adagoal envs` lists what there is"
    return f"unknown environment {env!r}; {hint}"
