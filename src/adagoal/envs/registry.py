"""Make the environment to explore: by name (built-in models, plug-ins, Gymnasium ids), an object, or several copies."""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import inspect
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator, parse_env_id
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import CloudpickleWrapper

from adagoal.core import user_code
from adagoal.core.environment import TabularEnv
from adagoal.core.errors import OBJECT_ENV_PREFIX, EnvironmentFailure, InputError, describe_exception
from adagoal.core.installation import install_command
from adagoal.core.run_settings import ExecutionOptions, ExplorationSettings
from adagoal.core.validation import check_arguments, to_python_scalar
from adagoal.envs import mixture_models, model_sources, toy_models
from adagoal.envs.env_backends import TOY_TEXT, InProcessEnv, SubprocessEnv
from adagoal.envs.env_workers import EnvWorker
from adagoal.envs.gym_adapter import GymAdapter, StartSeed
from adagoal.envs.model import TabularMDP
from adagoal.envs.parallel_env import ParallelEnv
from adagoal.envs.simulator import ModelSimulator
from adagoal.envs.state_machine import StateMachineEnv
from adagoal.parallel.worker_process import WorkerFactory, WorkerProcess

GymEnv = gymnasium.Env[Any, Any]
GymVectorEnv = VectorEnv[Any, Any, Any]
EnvLike = str | GymEnv | TabularEnv | TabularMDP

MODEL_BUILDERS: dict[str, Callable[..., TabularMDP]] = {
    "two-room": toy_models.two_room_grid,
    "grid": toy_models.open_grid_model,
    "grid-file": toy_models.grid_from_file,
    "maze": toy_models.random_maze,
    "chain": toy_models.chain_model,
    "rare-exit": toy_models.rare_exit_chain,
    "trap-chain": toy_models.trap_chain,
    "fan": toy_models.fan_model,
    "lower-bound": toy_models.lower_bound_instance,
    "random-dense": toy_models.random_dense,
    "random-sparse": toy_models.random_sparse,
    "mixture-windy": mixture_models.windy_mixture,
    "mixture-slippery": mixture_models.slippery_mixture,
    "mixture-weather": mixture_models.weather_mixture,
    "mixture-tree": mixture_models.tree_mixture,
    "mixture-inventory": mixture_models.inventory_mixture,
    "mixture-signed": functools.partial(mixture_models.windy_mixture, signed=True),
}
"""Builders of known models; all their arguments are keywords. ``adagoal envs`` lists them."""

# Beginnings of the ids of Gymnasium-Robotics and panda-gym.
TRAINING_FAMILIES = ("Fetch", "PointMaze", "AntMaze", "Hand", "Adroit", "FrankaKitchen", "Panda", "point-mass")


class EnvEntry(NamedTuple):
    """One line of ``adagoal envs``."""

    name: str
    description: str
    arguments: dict[str, Any]  # names of ``env_args`` with their defaults, or "required"


def make_env(
    env: EnvLike | GymVectorEnv,
    env_args: Mapping[str, Any],
    start_seed: StartSeed,
    max_states: int | None,
    step_timeout: float | None = None,
    workers: int = 1,
    make_worker: WorkerFactory = WorkerProcess,
) -> tuple[TabularEnv, str]:
    """Return the environment to explore and its name in results.

    With several workers, ``make_worker`` decides where they are. They step their copies even if a model is known.
    """
    if not isinstance(env, VectorEnv) and workers == 1:
        return make_single_env(env, env_args, start_seed, max_states, step_timeout)
    check_env_arguments(env_args, start_seed, max_states)
    first: Any
    makers: list[Callable[[], GymEnv]]
    if isinstance(env, VectorEnv):
        # Workers make environments of their own with the functions of the vector; those of the vector are not stepped.
        first = first_env_of_vector(env)
        if env_args:
            raise InputError("cannot be combined with environment objects; pass them when you create these", "env_args")
        if workers not in (1, env.num_envs):
            raise InputError(f"the vector has {env.num_envs} environments, got {workers}", "workers")
        name = _object_env_name(first)
        makers = [CloudpickleWrapper(make) for make in env.env_fns]  # type: ignore[attr-defined]
    elif not isinstance(env, str):
        text = "an environment object cannot be sent to other processes; give its name, or a gymnasium.vector of it"
        raise InputError(text, "workers")
    elif env in MODEL_BUILDERS or model_sources.model_from_argument(env, env_args) is not None:
        raise InputError(f"{env} is simulated from its model and needs no workers; leave workers out", "workers")
    else:
        name, first = env, make_gym_env(env, env_args)
        makers = [functools.partial(make_gym_env, env, dict(env_args))] * workers
    if step_timeout is not None:
        raise InputError("works with one worker only; leave one of the two out", "step_timeout")
    worker_makers = [functools.partial(EnvWorker, make, name, start_seed, max_states) for make in makers]
    parallel_env = ParallelEnv(worker_makers, name, make_worker)
    model = model_sources.toy_text_model(first, name, start_seed)
    if model is not None:
        parallel_env.labels, parallel_env.layout = model.labels, model.layout
    for line in find_gym_spec(name)[1] if isinstance(env, str) else []:
        parallel_env.add_warning(line)
    return parallel_env, name


def first_env_of_vector(env: EnvLike | GymVectorEnv) -> EnvLike:
    """Make one environment of a vector; return anything else unchanged."""
    if not isinstance(env, VectorEnv):
        return env
    if not isinstance(env, SyncVectorEnv | AsyncVectorEnv):
        text = f"a {type(env).__name__} cannot be split into environments; use a SyncVectorEnv or an AsyncVectorEnv"
        raise InputError(text, "env")
    first: GymEnv = env.env_fns[0]()
    return first


def make_single_env(
    env: EnvLike,
    env_args: Mapping[str, Any],
    start_seed: StartSeed,
    max_states: int | None,
    step_timeout: float | None = None,
) -> tuple[TabularEnv, str]:
    """Return the environment to explore, and its name in results.

    A name gives a compiled simulator if the model is known (built-in models, toy-text environments). An environment
    object is always stepped. With ``step_timeout`` [seconds] an environment runs in a process of its own; a step that
    takes longer ends the process.
    """
    if step_timeout is not None:
        check_arguments(ExecutionOptions, step_timeout=step_timeout)
        if not isinstance(env, str | TabularMDP):
            raise InputError("an environment object cannot be sent to another process; give its name", "step_timeout")
    check_env_arguments(env_args, start_seed, max_states)
    user_model = model_sources.model_from_argument(env, env_args)
    is_model = user_model is not None or not isinstance(env, str | gymnasium.Env) or env in MODEL_BUILDERS
    if start_seed == "random" and is_model:
        raise InputError("random is for Gymnasium environments; a model has one start", "start")
    if user_model is not None:
        name = env if isinstance(env, str) else OBJECT_ENV_PREFIX + user_model.name
        return ModelSimulator(user_model, is_user_model=True), name
    if isinstance(env, str):
        if is_model_name(env):
            return ModelSimulator(_build_named_model(env, env_args)), env
        return _make_env_by_id(env, env_args, start_seed, max_states, step_timeout), env
    if env_args:
        raise InputError("cannot be combined with an environment object; pass them when you create it", "env_args")
    if isinstance(env, gymnasium.Env):
        name = _object_env_name(env)
        adapter, model = (
            GymAdapter(env, name, start_seed, max_states),
            model_sources.toy_text_model(env, name, start_seed),
        )
        if model is not None:
            adapter.labels, adapter.layout = model.labels, model.layout
        if isinstance(env.unwrapped, StateMachineEnv):
            adapter.call_texts = env.unwrapped.call_texts
            if env.unwrapped.deterministic:
                # The promise covers the reset, which is one more call.
                adapter.branching, adapter.start_is_certain = 1, True
        return adapter, name
    if hasattr(env, "rollout") and not isinstance(env, TabularMDP):
        return env, OBJECT_ENV_PREFIX + env.name.removeprefix(OBJECT_ENV_PREFIX)
    raise env_type_error(env)


def _object_env_name(env: GymEnv) -> str:
    return OBJECT_ENV_PREFIX + (env.spec.id if env.spec is not None else type(env.unwrapped).__name__)


def env_type_error(env: object) -> InputError:
    """Return the error for an object that is no environment."""
    text = "must be a name, a file, a matrix, a Model, a Gymnasium environment or a TabularEnv, got "
    if isinstance(env, type):
        return InputError(f"{text}the class {env.__name__}; pass an object: {env.__name__}(...)", "env")
    name = type(env).__name__
    if isinstance(env, os.PathLike):
        return InputError(f"{text}{name}; give a file as text: {os.fspath(env)!r}", "env")
    if hasattr(env, "reset") and hasattr(env, "step"):
        hint = "it has reset and step, but it is no gymnasium.Env; put it into a class derived from gymnasium.Env"
        return InputError(f"{text}{name}: {hint}", "env")
    return InputError(f"{text}{name}", "env")


def _make_env_by_id(
    env: str, env_args: Mapping[str, Any], start_seed: StartSeed, max_states: int | None, step_timeout: float | None
) -> TabularEnv:
    spec, warning_lines = find_gym_spec(env)
    adapter: GymAdapter | ModelSimulator
    if step_timeout is not None and not str(spec.entry_point).startswith(TOY_TEXT):
        make_backend = functools.partial(_make_backend, env, dict(env_args), max_states)
        adapter = GymAdapter(SubprocessEnv(make_backend, env, step_timeout), env, start_seed, max_states)
    else:
        gym_env = make_gym_env(env, env_args)
        model = model_sources.toy_text_model(gym_env, env, start_seed)
        if model is None:
            adapter = GymAdapter(gym_env, env, start_seed, max_states)
        else:
            adapter = ModelSimulator(model, observations=int(gym_env.observation_space.n))  # type: ignore[attr-defined]
    for line in warning_lines:
        adapter.add_warning(line)
    return adapter


def parse_start_option(start: Any, start_seed: StartSeed) -> StartSeed:
    """Combine the options ``start`` and ``start_seed`` into one value; a start that is a state is for matrices."""
    start_seed = to_python_scalar(start_seed)
    if not isinstance(start, str):
        return start_seed
    if start != "random":
        raise InputError(f"must be random, or a state of a matrix, got {start!r}", "start")
    if start_seed not in (None, "random"):
        raise InputError("random cannot be combined with a start seed; give one of the two", "start")
    return "random"


def check_env_arguments(env_args: Any, start_seed: Any, max_states: Any) -> None:
    """Check types and ranges of the arguments that describe an environment."""
    check_arguments(ExplorationSettings, max_states=max_states, start_seed=start_seed, env_args=env_args)


def require_trusted_env(env: str, trust: bool) -> str:
    """Return the environment of a run folder; refuse one that names a module, unless the user trusts the folder."""
    # "module:ID" imports the module, so loading a folder from another person would execute code.
    if ":" in env and not env.startswith(OBJECT_ENV_PREFIX) and not trust:
        text = f"the run is on {env!r}, which names a module to import; give the environment again, or pass trust=True"
        raise InputError(text, "env")
    return env


def make_exact_model(env: EnvLike, env_args: Mapping[str, Any], start_seed: StartSeed) -> TabularMDP | None:
    """Return the exact model, with the state numbers of :func:`make_single_env`, or None if it is not known."""
    user_model = model_sources.model_from_argument(env, env_args)
    if user_model is not None:
        return user_model
    if isinstance(env, str) and is_model_name(env):
        return _build_named_model(env, env_args)
    if isinstance(env, str):
        return model_sources.toy_text_model(make_gym_env(env, env_args), env, start_seed)
    if isinstance(env, gymnasium.Env):
        return model_sources.toy_text_model(env, OBJECT_ENV_PREFIX + type(env.unwrapped).__name__, start_seed)
    return env.mdp if isinstance(env, ModelSimulator) else None


def list_environments() -> list[EnvEntry]:
    """List built-in models with their arguments, plug-ins, and examples of Gymnasium ids."""
    rows = [_describe_builder(name) for name in MODEL_BUILDERS]
    for name in user_code.list_plugin_names(user_code.PluginGroup.ENVIRONMENTS):
        try:
            # A plug-in that cannot be imported must not hide the others.
            rows.append(_describe_builder(name))
        except InputError as error:
            rows.append(EnvEntry(name, error.reason, {}))
    examples = {
        "FrozenLake-v1": "Gymnasium: slippery ice with holes; map_name=8x8, is_slippery=false",
        "CliffWalking-v1": "Gymnasium: a grid with a cliff that leads back to the start; is_slippery=true",
        "Taxi-v4": "Gymnasium: 500 states; the start is random unless --start-seed fixes it",
        "MiniGrid-Empty-5x5-v0": "MiniGrid (pip install minigrid): states are numbered as they are met",
        "any other Gymnasium id": "discrete actions, and observations that are discrete or can be compared exactly",
    }
    return rows + [EnvEntry(name, text, {}) for name, text in examples.items()]


def is_model_name(name: str) -> bool:
    """Return whether a name is that of a built-in model or of a plug-in."""
    return name in MODEL_BUILDERS or name in user_code.list_plugin_names(user_code.PluginGroup.ENVIRONMENTS)


def _describe_builder(name: str) -> EnvEntry:
    function, fixed = _find_builder(name), dict[str, Any]()
    if isinstance(function, functools.partial):
        fixed, function = function.keywords, function.func
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name not in fixed]
    arguments = {p.name: "required" if p.default is p.empty else p.default for p in parameters}
    return EnvEntry(name, (inspect.getdoc(function) or "").split("\n")[0], arguments)


def _find_builder(name: str) -> Callable[..., TabularMDP]:
    builder = MODEL_BUILDERS.get(name) or user_code.load_plugin(user_code.PluginGroup.ENVIRONMENTS, name, "env")
    if not callable(builder):
        raise InputError(f"{name!r} of an installed package is not a function", "env")
    return builder


def _build_named_model(name: str, arguments: Mapping[str, Any]) -> TabularMDP:
    accepted = _describe_builder(name).arguments
    _check_argument_names(name, arguments, accepted)
    for argument, default in accepted.items():
        if default == "required" and argument not in arguments:
            raise InputError(f"{name} needs {argument}=...", "env_args")
        if default is not None and arguments.get(argument, default) is None:
            raise InputError(f"{argument} of {name} must have a value, got None", "env_args")
    try:
        model = _find_builder(name)(**arguments)
    except InputError as error:
        raise InputError(str(error), "env_args") from None
    except Exception as error:
        # A bug of ours keeps its traceback; one of a plug-in is one line.
        if name in MODEL_BUILDERS:
            raise
        raise EnvironmentFailure(f"{name} cannot be made ({describe_exception(error)})", "env") from error
    if not isinstance(model, TabularMDP):
        raise InputError(f"{name} of an installed package gave a {type(model).__name__}, not a Model", "env")
    return model


def _check_argument_names(env: str, arguments: Mapping[str, Any], accepted: Iterable[str]) -> None:
    for argument in arguments:
        if argument not in accepted:
            known = ", ".join(accepted) or "none"
            raise InputError(f"{env} has no argument {argument!r}; it accepts {known}", "env_args")


def find_gym_spec(env: str) -> tuple[EnvSpec, list[str]]:
    """Return Gymnasium's specification of an id, and warnings about it."""
    if env.startswith(OBJECT_ENV_PREFIX):
        raise InputError(f"{env} was an environment object of another program; pass the object again", "env")
    module = env.partition(":")[0]
    if module.endswith(".py"):
        name = Path(module).stem
        raise InputError(f"{env} names a file; write {name}:ID, with an ID that {name} registers at Gymnasium", "env")
    if os.path.isfile(env):
        raise InputError(
            f"{env} is not a model file ({', '.join(model_sources.MODEL_SUFFIXES)}); "
            "adagoal.Model.from_dense(P).save(...) makes one from an array P[s, a, s']",
            "env",
        )
    with _convert_package_errors(env, {}):
        if env.startswith(("MiniGrid-", "BabyAI-")):
            try:
                import minigrid  # noqa: F401  # registers its environments
            except ImportError:
                raise InputError(f"{env} needs minigrid: {install_command('minigrid')}", "env") from None
        spec, warning_lines = _resolve_gym_spec(env)
        if spec.entry_point is None:
            raise InputError(f"{spec.id} cannot be made: it has no entry point", "env")
        return spec, warning_lines


def make_gym_env(env: str, arguments: Mapping[str, Any]) -> GymEnv:
    """Make an environment by its Gymnasium id, without Gymnasium's checks."""
    spec, _ = find_gym_spec(env)
    with _convert_package_errors(env, arguments):
        creator: Any = spec.entry_point if callable(spec.entry_point) else load_env_creator(str(spec.entry_point))
        parameters = inspect.signature(creator).parameters
        # Checked before the call, so a misspelt name is not reported as a failure of the environment.
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            _check_argument_names(env, arguments, [name for name in parameters if name != "render_mode"])
        return gymnasium.make(spec, disable_env_checker=True, **arguments)


def _make_backend(env: str, arguments: Mapping[str, Any], max_states: int | None) -> InProcessEnv:
    return InProcessEnv(make_gym_env(env, arguments), env, max_states)


@contextlib.contextmanager
def _convert_package_errors(env: str, arguments: Mapping[str, Any]) -> Iterator[None]:
    """Silence the warnings of an environment's package, and turn its exceptions into errors of one line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
            raise InputError(
                f"{env} needs a package that is not installed ({error}); install it first", "env"
            ) from None
        except (KeyboardInterrupt, InputError):
            raise
        except BaseException as error:
            # BaseException, because some packages call sys.exit, for example without a licence.
            values = ", ".join(f"{key}={value}" for key, value in arguments.items())
            text = f"{env} cannot be made{f' with {values}' if values else ''} ({describe_exception(error)})"
            raise EnvironmentFailure(text, "env_args" if values else "env") from error


def _resolve_gym_spec(env: str) -> tuple[EnvSpec, list[str]]:
    """Find an id; the newest version replaces one that was removed, or that was not given."""
    module, colon, rest = env.partition(":")
    text = f"unknown environment {env!r}; {_similar_names(env)}"
    # Training registers these ids, which the similar names would miss.
    if env.startswith(TRAINING_FAMILIES):
        text = f"{env} has continuous actions, so it is for adagoal train; explore takes discrete ones"
    unknown = InputError(text, "env")
    if colon:
        importlib.import_module(module)
        unknown = InputError(f"the module {module} registers no environment {rest!r}; {_similar_names(rest)}", "env")
        env = rest
    if env in gymnasium.registry:
        return gymnasium.spec(env), []
    try:
        namespace, name, version = parse_env_id(env)
    except gymnasium.error.Error:
        raise unknown from None
    versions = [spec for spec in gymnasium.registry.values() if (spec.namespace, spec.name) == (namespace, name)]
    newest = max(versions, key=lambda spec: spec.version or 0, default=None)
    if newest is None or (version or 0) > (newest.version or 0):
        raise unknown
    return newest, [f"{env} is not in the installed Gymnasium: {newest.id} was used instead"]


def _similar_names(env: str) -> str:
    """Return names like an unknown one as a question; without any, how to name the package of an id."""
    names = [*MODEL_BUILDERS, *user_code.list_plugin_names(user_code.PluginGroup.ENVIRONMENTS), *gymnasium.registry]
    # Without versions, else every name with the same version is similar; of several versions the last one is newest.
    by_stem = {_stem_of_id(name): name for name in names}
    close = [by_stem[match] for match in difflib.get_close_matches(_stem_of_id(env), by_stem, n=3, cutoff=0.6)]
    if close:
        return f"did you mean {' or '.join(close)}?"
    return "`adagoal envs` lists all names, and an id of another package is written MODULE:ID (ale_py:ALE/Pong-v5)"


def _stem_of_id(env_id: str) -> str:
    return re.sub(r"-v\d+$", "", env_id.lower())
