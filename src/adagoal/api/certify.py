"""``adagoal.certify``: find out for which goals or starts a policy succeeds, with a guarantee."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium

from adagoal.certification.certificate import Certification, Claim, ComparisonClaim, Question
from adagoal.certification.certifier import Certifier, PlayFunction
from adagoal.certification.episodes import EpisodePlayer, EpisodeTask, PairPlayer, make_criterion, open_players
from adagoal.certification.policies import find_policy, fingerprint_function
from adagoal.certification.value_spaces import CellTree, ValueSampler, ValueSpace, make_value_space
from adagoal.core.errors import InputError
from adagoal.core.file_io import read_json, report_read_errors, write_json
from adagoal.core.run_settings import ClaimSettings, TrainingOptions
from adagoal.core.user_code import call_observer
from adagoal.core.validation import (
    check_arguments,
    check_folder_path,
    check_integer,
    document_settings,
    refuse_unknown_arguments,
)
from adagoal.deep import require_deep_extra
from adagoal.deep.goal_envs import EnvSource, find_goal_setter, make_goal_env, register_robotics_envs
from adagoal.deep.policy import GoalPolicy
from adagoal.envs.registry import make_gym_env
from adagoal.runs.job import stop_on_signals

if TYPE_CHECKING:
    from adagoal.runs.train_result import TrainResult

CERTIFICATE_FILE = "certificate.json"
SAVE_SECONDS = 20.0  # between two saves of a certification with a folder
CertificationObserver = Callable[[int, int], bool | None]


@dataclasses.dataclass(frozen=True)
class _Problem:
    """A certification that is ready to play: its values, its cells, its players, and what its certificate says."""

    claim: Claim
    question: Question
    sample: ValueSampler
    tree: CellTree | None  # None: cells from a sample
    open_play: Callable[[], Any]  # context manager of a PlayFunction
    about: Mapping[str, Any]


@refuse_unknown_arguments
@document_settings(ClaimSettings)
def certify(
    policy: Any,
    env: Any = None,
    *,
    versus: Any = None,
    goals: Any = None,
    starts: Any = None,
    set_start: Callable[[Any, Any], Any] | None = None,
    criterion: Any = None,
    radius: int | None = None,
    success: float = 0.9,
    delta: float = 0.05,
    slack: float = 0.05,
    rollouts: int | None = None,
    halvings: int = 6,
    run: int = 0,
    test_goals: str | None = None,
    seed: int = 0,
    trust: bool = False,
    workers: int | None = None,
    out: str | Path | None = None,
    observe: CertificationObserver | None = None,
) -> Certification:
    """Certify, refute or leave open the cells of a space of goals or starts, for any policy.

    Parameters
    ----------
    policy: a function ``action = policy(observation)``, or ``policy(observation, rng)`` if it is random; a
        Stable-Baselines3 model, or its .zip file (loading it runs the code in it); a function by name,
        ``module:function`` or ``FILE.py:NAME``; the folder of a run of ``adagoal.train``, or its result.
    env: a Gymnasium id, an environment, which is copied with pickle, or a function that makes one. The folder of a run
        knows its environment; if it names code that is not installed, give the environment, or ``trust``.
    versus: another policy: certify in which cells ``policy`` is better, worse, or equal up to ``slack``. Both play the
        same values with the same seeds.
    goals, starts: what is varied: a box ``{"x": (-2, 2)}`` or ``(low, high)``, a list of values, or a function
        ``f(rng)`` that draws one. By default the goals of the environment.
    set_start: ``set_start(env, value)`` puts the environment there after a reset and returns the observation.
    criterion: what counts as a success: by default ``info["is_success"]`` or the reward of the goal after any step;
        ``"survive:N"``, ``"return:X"``, or a function of the :class:`~adagoal.certification.episodes.Episode`.
    run, test_goals: for the folder of a run: index of the run, if trained with several seeds, and its goal space.
    seed: of goals and starts; the result does not depend on the number of ``workers`` (by default one per core).
    out: folder for ``certificate.json``. The same call continues an interrupted certification there.
    observe: called as ``observe(open cells, rollouts)`` before every round; False ends the certification.

    Examples
    --------
    >>> found = adagoal.certify(
    ...     lambda observation: int(observation[2] + observation[3] > 0), "CartPole-v1",
    ...     starts={"x": (-1, 1), "theta": (-0.1, 0.1)}, criterion="survive:50", workers=1)
    >>> found.status, len(found.cells), found.cell({"x": 0, "theta": 0}).verdict
    (<Status.CERTIFIED: 'certified'>, 8, <Verdict.CERTIFIED: 'certified'>)
    """
    claim = (Claim if versus is None else ComparisonClaim)(radius, success, delta, slack, halvings, rollouts)
    check_integer("seed", seed, 0, 2**31 - 1)
    check_arguments(TrainingOptions, workers=workers)
    folder = None if out is None else check_folder_path("out", out)
    workers = workers or os.cpu_count() or 1
    varied = {"goals": goals, "starts": starts}
    if isinstance(policy, GoalPolicy) or _is_training(policy):
        refused = {"starts": starts, "set_start": set_start, "criterion": criterion, "versus": versus}
        wrong = next((name for name, given in refused.items() if given is not None), None)
        if wrong:
            raise InputError("is for functions and Stable-Baselines3 models; a trained policy has goals only", wrong)
        problem = _trained_problem(policy, run, env, trust, claim, goals, test_goals, seed, workers)
    else:
        if goals is not None and starts is not None:
            raise InputError("give goals or starts, not both", "starts")
        if run or test_goals:
            raise InputError("is for a folder of adagoal train; leave it out", "run" if run else "test_goals")
        problem = _policy_problem(policy, versus, env, claim, varied, set_start, criterion, seed, workers)
    return _run_certification(problem, seed, folder, observe)


def _is_training(policy: Any) -> bool:
    if isinstance(policy, str | os.PathLike):
        return os.path.isdir(policy)
    return type(policy).__module__ == "adagoal.runs.train_result"


def _run_certification(
    problem: _Problem, seed: int, folder: Path | None, observe: CertificationObserver | None
) -> Certification:
    certifier = Certifier(problem.claim, problem.sample, seed, problem.tree)
    if folder is not None:
        _resume_saved(certifier, folder, problem)
    next_save = time.monotonic() + SAVE_SECONDS

    def complete(found: Certification) -> Certification:
        found = dataclasses.replace(found, about=problem.about, question=problem.question)
        if folder is not None:
            write_json(folder / CERTIFICATE_FILE, found.to_dict())
        return found

    # At once, because a save is atomic and a second Ctrl-C could damage nothing else.
    with _create_folder(folder), stop_on_signals(at_once=True) as stop, problem.open_play() as play:

        def proceed(open_cells: int, played: int) -> bool:
            nonlocal next_save
            if folder is not None and time.monotonic() > next_save:
                complete(certifier.result())
                next_save = time.monotonic() + SAVE_SECONDS
            return not stop.is_requested and call_observer(observe, open_cells, played)

        return complete(certifier.run(play, proceed))


@contextmanager
def _create_folder(folder: Path | None) -> Iterator[None]:
    """Create the folder at once, because it may not be writable; remove it if the block leaves it empty."""
    if folder is None or folder.is_dir():
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        # fails unless the folder is empty
        with suppress(OSError):
            folder.rmdir()


def _resume_saved(certifier: Certifier, folder: Path, problem: _Problem) -> None:
    """Continue the certification in the folder, if it asks the same question; otherwise it will be replaced."""
    path = folder / CERTIFICATE_FILE
    if not os.path.lexists(path):
        return
    saved = read_json(path)
    # another number of rollouts does not change the question
    claim = vars(problem.claim) | {"rollouts": None}
    with report_read_errors(path):
        same = isinstance(saved, dict) and saved.get("about") == problem.about and isinstance(saved.get("claim"), dict)
        if same and saved["claim"] | {"rollouts": None} == claim and saved.get("progress") is not None:
            certifier.resume(saved["progress"])


def _policy_problem(
    policy: Any,
    versus: Any,
    env: Any,
    claim: Claim,
    varied: Mapping[str, Any],
    set_start: Callable[[Any, Any], Any] | None,
    criterion: Any,
    seed: int,
    workers: int,
) -> _Problem:
    source = find_policy(policy)
    if env is None:
        raise InputError("missing; for example CartPole-v1", "env")
    if set_start is not None and not callable(set_start):
        raise InputError(f"must be a function of (env, start), got {set_start!r}", "set_start")
    env_name, make_env = _find_env(env)
    argument = "starts" if varied["starts"] is not None else "goals"
    given, subject = varied[argument], argument.removesuffix("s")
    space = _own_goals(env_name, make_env) if given is None else make_value_space(argument, given)
    judge = make_criterion(criterion, subject)
    task = EpisodeTask(env_name, make_env, source.make, subject, space, judge, seed, set_start, find_goal_setter)
    task = dataclasses.replace(task, radius=task.find_radius(claim.radius))
    claim = dataclasses.replace(claim, radius=task.radius)
    about: dict[str, Any] = {"env": env_name, "policy": source.fingerprint, "policy_name": source.text}
    make: Callable[[], Any] = functools.partial(EpisodePlayer, task)
    if versus is not None:
        try:
            other = find_policy(versus)
        except InputError as error:
            raise InputError(error.reason, "versus") from error
        make = functools.partial(PairPlayer, task, dataclasses.replace(task, make_policy=other.make))
        about |= {"versus": other.fingerprint, "versus_name": other.text}
    play = functools.partial(open_players, make, workers, in_process=True)
    about |= {argument: space.text, "criterion": judge.text, "seed": seed}
    about |= {} if set_start is None else {"set_start": getattr(set_start, "__qualname__", "function")}
    about |= _hash_code({"env": env, argument: given, "criterion": criterion, "set_start": set_start})
    question = Question(subject, judge.event, space.names)
    return _Problem(claim, question, space.sample, space.make_tree(claim.halvings), play, about)


def _hash_code(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of a certificate that changes with the code of these functions, and with an environment object.

    Their names do not, and a certification that is continued must not count rollouts of other code.
    """
    objects = {name: each for name, each in given.items() if callable(each) or isinstance(each, gymnasium.Env)}
    hashes = [name + fingerprint_function(each, name) for name, each in objects.items()]
    return {"code": hashlib.sha256("".join(hashes).encode()).hexdigest()} if hashes else {}


def _find_env(env: Any) -> tuple[str, Callable[[], Any]]:
    """Return the name of an environment, and the function that makes it."""
    if not isinstance(env, str):
        source = EnvSource.from_argument(env)
        return source.name, source.make_env
    make = functools.partial(make_goal_env if env == "point-mass" else _make_named_env, env)
    return env, make


def _make_named_env(name: str) -> Any:
    # Fetch, mazes and hands have plain ids, which their package registers; its import takes a second.
    is_unknown = ":" not in name and name not in gymnasium.registry
    if is_unknown and importlib.util.find_spec("gymnasium_robotics") is not None:
        register_robotics_envs()
    return make_gym_env(name, {})


def _own_goals(env_name: str, make_env: Callable[[], Any]) -> ValueSpace:
    """Return the goals that the environment itself draws."""
    from adagoal.deep.env_inspection import make_goal_sampler

    env = make_env()
    if "desired_goal" not in getattr(env.observation_space, "spaces", ()):
        raise InputError(f"missing; {env_name} has no goals, so say which starts to vary, such as x=-2:2", "starts")
    sample = make_goal_sampler(env, "test_goals", "env")
    env.close()
    return ValueSpace.from_sampler(sample, None, "env")


def _trained_problem(
    training: Any,
    run: int,
    env: Any,
    trust: bool,
    claim: Claim,
    goals: Any,
    test_goals: str | None,
    seed: int,
    workers: int,
) -> _Problem:
    # After the checks, so a wrong argument is reported without waiting for JAX.
    require_deep_extra()
    from adagoal.deep.policy_evaluation import prepare_certification
    from adagoal.deep.rollouts import explain_worker_exit

    policy, horizon, space, source, about = _load_trained_policy(training, run, env, trust)
    space = test_goals or space
    sample, make, radius = prepare_certification(policy, source, horizon, space, claim.radius, seed)
    claim = dataclasses.replace(claim, radius=radius)

    @contextmanager
    def open_play() -> Iterator[PlayFunction]:
        # always other processes: a step that takes too long kills its process
        with explain_worker_exit(source), open_players(make, workers) as play:
            yield play

    tree = None
    if goals is not None:
        given = make_value_space("goals", goals)
        expected = len(policy.actor.goal_mean)
        if given.tree_values.shape[1] != expected:
            raise InputError(f"must have {expected} numbers, got {given.tree_values.shape[1]}", "goals")
        sample, tree, space = given.sample, given.make_tree(claim.halvings), given.text
    about = {"env": policy.env, **about, "test_goals": space, "seed": seed, "policy": policy.fingerprint()}
    about |= _hash_code({"env": env, "goals": goals})
    return _Problem(claim, Question(), sample, tree, open_play, about)


def _load_trained_policy(
    training: str | Path | TrainResult | GoalPolicy, run: int, env: Any, trust: bool
) -> tuple[GoalPolicy, int | None, str, EnvSource, dict[str, Any]]:
    """Return a policy, its horizon, its test goals, its environment, and where the policy comes from."""
    from adagoal.runs.train_result import TrainResult, load_training

    if isinstance(training, GoalPolicy):
        return training, None, "env", EnvSource.from_argument(training.env if env is None else env), {}
    result = training if isinstance(training, TrainResult) else load_training(training)
    check_integer("run", run, 0, len(result.policies) - 1)
    source, config = result.env_source(env, trust, "adagoal.certify({}, env=...)"), result.history.configs[run]
    about = {"run": run, "steps": int(result.curve(run)[-1]["steps"])}
    return result.policies[run], config.horizon, config.test_goals, source, about
