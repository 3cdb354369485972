"""``adagoal.train`` from Python: environments, goal rules, policies, results and bad input."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
import small_training
from gymnasium.wrappers import TransformObservation
from small_training import evaluate, load_policy
from test_goal_envs import Elsewhere, Settable

import adagoal
from adagoal import goal_rules, resume, train
from adagoal.cli.main import run_command_line
from adagoal.core.errors import EnvironmentFailure, InputError
from adagoal.core.random_streams import StreamPurpose
from adagoal.deep import Config, GoalPolicy
from adagoal.deep.goal_envs import EnvSource
from adagoal.deep.goal_selection import GoalSelector
from adagoal.deep.pointmass import PointMass
from adagoal.deep.policy import NumpyActor
from adagoal.runs import training_session
from adagoal.runs.train_result import TrainResult

TINY: dict[str, Any] = {**small_training.TINY, "workers": 1}


def user_rule(known: goal_rules.GoalInfo) -> Any:
    """Goal rule of a user."""
    return 1e-6 + np.where(known.D <= known.L, known.E, 0.0)


@pytest.fixture(scope="module")
def line() -> TrainResult:
    """A training run on an environment object with actions from -2 to 6."""
    return adagoal.train(Settable, user_rule, hidden=(32, 32), updates=100, batch=128, candidates=50, buffer=20_000,
                         steps=4_000, eval_episodes=32, episodes=16, horizon=20, workers=2)  # fmt: skip


def test_recipe_sets_the_goal_rule_unless_one_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(
        training_session, "start_training", lambda configs, *_, **__: asked.append(configs[0].goal_rule)
    )
    adagoal.train("point-mass", recipe="paper")
    adagoal.train("point-mass", "unigoal", recipe="paper")
    adagoal.train("point-mass")
    assert asked == ["proportional", "unigoal", "adagoal-proportional"]


@pytest.mark.parametrize(("backend", "batch", "hidden"), [("cpu", 512, (128,) * 3), ("gpu", 1024, (256,) * 3)])
def test_without_a_gpu_the_light_recipe_is_the_default(
    monkeypatch: pytest.MonkeyPatch, backend: str, batch: int, hidden: tuple[int, ...]
) -> None:
    asked: list[Config] = []
    monkeypatch.setattr(training_session, "start_training", lambda configs, *_, **__: asked.append(configs[0]))
    monkeypatch.setattr("jax.default_backend", lambda: backend)
    adagoal.train("point-mass")
    adagoal.train("point-mass", hidden=(64,))
    adagoal.train("point-mass", recipe="adagoal")
    adagoal.train("point-mass", recipe="light")
    found = [(config.batch, config.hidden) for config in asked]
    assert found == [(batch, hidden), (batch, (64,)), (1024, (256,) * 3), (512, (128,) * 3)]


def test_training_shows_its_progress(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    output: list[int] = []

    def one_cycle(configs: list[Config], *_: Any, observe: Any, **__: Any) -> bool:
        rows = [{"cycle": 3, "success": 0.25, "steps": 300}]
        history = SimpleNamespace(configs=configs, rows=rows, steps_before_cycle=lambda cycle: 100 * cycle)
        return observe is None or bool(observe(history))

    monkeypatch.setattr(training_session, "start_training", one_cycle)
    assert adagoal.train(
        "point-mass", progress=True, observe=lambda history: output.append(history.steps_before_cycle(1))
    )
    shown = capfd.readouterr().err.splitlines()
    assert shown[0] == "recipe light: JAX has no GPU here; the larger recipe is called adagoal"
    assert shown[1].startswith("400 / ")
    assert output == [100]
    assert not adagoal.train("point-mass", progress=True, observe=lambda history: False)
    capfd.readouterr()
    adagoal.train("point-mass")
    assert capfd.readouterr().err == ""


def test_rule_function_gets_what_it_declares() -> None:
    """A configuration holds only the name of a function, which does not tell its needs."""
    config = Config("point-mass", goal_rule="function:mega").resolve_for_horizon(50)
    space = lambda rng, n: np.zeros((n, 2))  # noqa: E731
    assert GoalSelector([config], [space], [space], goal_rules.mega).required_fields == [
        goal_rules.required_fields(goal_rules.mega, frozenset())
    ]


def test_random_keys_of_goal_selection_follow_the_seed_and_the_cycle() -> None:
    configs, space = [Config("point-mass", seed=seed) for seed in (0, 1)], lambda rng, n: np.zeros((n, 2))
    selector = GoalSelector(configs, [space] * 2, [space] * 2)
    keys = [jax.random.key_data(selector._random_keys(StreamPurpose.CANDIDATE_VALUES, cycle)) for cycle in (0, 1)]
    assert len({tuple(key) for key in np.concatenate(keys).tolist()}) == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mega", "omega", "discover"])
def test_rule_by_name_equals_rule_as_function(name: str) -> None:
    chosen = [
        adagoal.train("point-mass", rule, **TINY).history.goals for rule in (name, goal_rules.BUILTIN_RULES[name])
    ]
    np.testing.assert_array_equal(*chosen)


def test_policy_acts_in_the_units_of_the_environment(line: TrainResult) -> None:
    assert line.status == "done"
    env, reached = Settable(), 0
    for seed in range(20):
        seen, _ = env.reset(seed=seed)
        for _ in range(20):
            action = line.policy(seen, seen["desired_goal"])
            assert env.action_space.contains(action)
            seen, _, terminated, _, _ = env.step(action)
            if terminated:
                reached += 1
                break
    assert reached >= 18
    assert line.evaluate(40).summary()["success"] >= 0.9
    assert line.success >= 0.9


def test_distance_and_uncertainty_are_in_steps(line: TrainResult) -> None:
    """The point moves by at most 1 and has to come within 0.5 of the goal."""
    policy = line.policy
    near, far = (policy.distance(np.zeros(1), np.full(1, x)) for x in (3.0, 9.0))
    assert near < far
    covered = [
        abs(policy.distance([0.0], [x]) - math.ceil(x - 0.5)) <= policy.uncertainty([0.0], [x]) + 0.5
        for x in (3.0, 5.0, 7.0, 9.0, 11.0)
    ]
    assert sum(covered) >= 4


SMALL_TRAININGS: dict[str, dict[str, Any]] = {
    "point-mass": {"steps": 4800, "hidden": (64, 64), "horizon": 25},
    "FetchReach-v4": {"steps": 3200, "hidden": (64, 64), "horizon": 50},
    "PointMaze_UMaze-v3": {"steps": 16_000, "hidden": (64, 64), "horizon": 100},
    "FetchPush-v4": {"steps": 4800, "hidden": (64, 64), "horizon": 50},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL_TRAININGS)
def test_uncertainty_covers_nine_fresh_episodes_in_ten(name: str) -> None:
    """The share varies by 1.5% with the calibration and by 1% with the episodes."""
    policy = adagoal.train(name, workers=2, **SMALL_TRAININGS[name]).policy
    assert policy.success is not None
    env = EnvSource(name).make_env()
    T = SMALL_TRAININGS[name]["horizon"]
    covered, off = [], []
    for seed in range(10_000, 11_000):
        seen, _ = env.reset(seed=seed)
        goal = seen["desired_goal"].copy()
        D, E = policy.distance(seen, goal), policy.uncertainty(seen, goal)
        for n in range(1, T + 1):
            seen, *_ = env.step(policy(seen, goal))
            if np.linalg.norm(seen["achieved_goal"] - goal) <= policy.success:
                covered.append(abs(D - n) <= E)
                off.append(D - n)
                break
        else:
            covered.append(D + E >= T)
    print(f"{name}: covered {np.mean(covered):.3f}, reached {len(off) / 1000:.2f}, D - steps {np.mean(off):.2f}")
    assert 0.85 <= np.mean(covered) <= 0.95


def test_result_is_saved_and_loaded(line: TrainResult, tmp_path: Path) -> None:
    line.save(tmp_path / "one")
    loaded = adagoal.load(tmp_path / "one")
    assert isinstance(loaded, TrainResult)
    assert (loaded.status, loaded.history.rows, loaded.curve()) == (line.status, line.history.rows, line.curve())
    np.testing.assert_array_equal(loaded.maps["D"], line.maps["D"])
    loaded.save(tmp_path / "two")
    for name in ("log.csv", "policy.npz", "goals.npz", "past.npz", "result.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    assert len(loaded.evaluate(4, env=Settable).final_success) == 4
    with pytest.raises(InputError, match=r"^env: .* is on 'object:Settable'; give the object .*evaluate\(env=...\)$"):
        loaded.evaluate(4)
    policy = loaded.policy
    assert isinstance(policy, GoalPolicy)
    assert repr(policy) == "<Policy for object:Settable: from 1 numbers and a goal of 1 to an action of 1>"
    assert repr(line).startswith("<TrainResult of object:Settable, done: success ")
    seen, goal = Settable().reset(seed=3)[0], [7.0]
    np.testing.assert_array_equal(policy(seen, goal), line.policy(seen, goal))
    assert policy.distance(seen, goal) == line.policy.distance(seen, goal)
    assert policy.uncertainty(seen, goal) == line.policy.uncertainty(seen, goal)
    for name, array in line.weights().items():
        np.testing.assert_array_equal(policy.weights()[name], array)
    with pytest.raises(InputError, match=r"^path: .* already holds a run"):
        line.save(tmp_path / "one")


def test_command_on_an_environment_object_names_the_python_call(
    line: TrainResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line.save(tmp_path)
    test, certify = (f"adagoal.{call}" for call in ("load('{}').evaluate(env=...)", "certify('{}', env=...)"))
    called = {"evaluate": test, "play": test, "certify": certify}
    for command, call in called.items():
        assert run_command_line([command, str(tmp_path), *(["--radius", "5"] if command == "certify" else [])]) == 2
        assert call.format(tmp_path) in capsys.readouterr().err


@pytest.mark.parametrize(("observation", "goal"), [([0.0, 1.0], [7.0]), ([0.0], [7.0, 1.0]), ([np.nan], [7.0])])
def test_invalid_observation_or_goal_gives_an_error_with_its_name(
    line: TrainResult, observation: Any, goal: Any
) -> None:
    with pytest.raises(InputError, match=r"^(observation|goal): must be 1 finite numbers"):
        line.policy(observation, goal)


def test_train_accepts_an_environment_object_and_a_single_config() -> None:
    limited = gymnasium.wrappers.TimeLimit(PointMass(), 20)
    by_object = adagoal.train(limited, "unigoal", **TINY)
    by_name = train(Config("point-mass", goal_rule="unigoal", **small_training.TINY), workers=1)
    assert by_object.history.configs[0].env == "object:PointMass"
    for name, array in by_name.weights().items():
        np.testing.assert_array_equal(by_object.weights()[name], array)


def test_training_on_an_object_is_resumed_with_the_object(tmp_path: Path) -> None:
    stopped = adagoal.train(PointMass, user_rule, out=tmp_path, observe=lambda history: False, **TINY)
    assert stopped.status == "interrupted"
    with pytest.raises(InputError, match=r"^uncertainty: is calibrated at the end of training"):
        stopped.policy.uncertainty(np.zeros(4), np.zeros(2))
    with pytest.raises(InputError, match=r"^env: the run in .* is on 'object:PointMass'; .* adagoal.resume\("):
        resume(tmp_path, goal_rule=user_rule, workers=1)
    with pytest.raises(InputError, match=r"^goal_rule: the rule was a function user_rule; give it again"):
        resume(tmp_path, env=PointMass, workers=1)
    whole = adagoal.train(PointMass, user_rule, **TINY)
    finished = resume(tmp_path, env=PointMass, goal_rule=user_rule, workers=1)
    for name, array in whole.weights().items():
        np.testing.assert_array_equal(finished.weights()[name], array)


def other(threshold: float = 0.1, high: float = 1.0, more: int = 0) -> Any:
    """Return a function that makes a point mass, possibly a different one."""

    def make() -> gymnasium.Env[Any, Any]:
        env = PointMass()
        env.threshold, env.action_space = threshold, gymnasium.spaces.Box(-1.0, high, (2,), np.float64)
        seen = gymnasium.spaces.Box(-np.inf, np.inf, (4 + more,), np.float64)
        longer = gymnasium.spaces.Dict({**env.observation_space.spaces, "observation": seen})  # type: ignore[attr-defined]
        return TransformObservation(
            env, lambda o: o | {"observation": np.concatenate([o["observation"], np.zeros(more)])}, longer
        )

    return make


def test_other_environment_of_the_same_name_is_refused(tmp_path: Path) -> None:
    stopped = adagoal.train(other(), "unigoal", out=tmp_path, observe=lambda history: False, **TINY)
    for env, words in (
        (other(threshold=0.3), "the radius of success is 0.3, and was 0.1$"),
        (other(high=2.0), "the high end of actions is 2 2, and was 1 1$"),
        (other(more=3), "the size of observations is 7, and was 4$"),
    ):
        for use in (
            lambda env: resume(tmp_path, env=env, workers=1),
            lambda env: evaluate(tmp_path, env=env, episodes=1),
            lambda env: adagoal.certify(tmp_path, env=env, radius=5, workers=1),
        ):
            with pytest.raises(InputError, match=f"^env: object:PointMass is not the environment of the run: {words}"):
                use(env)
    assert evaluate(tmp_path, env=other(), episodes=1).goals.shape == (1, 2)
    assert adagoal.load(tmp_path).policy.success == stopped.policy.success


def policy(with_achieved: bool, ends: tuple[float, float] = (-2.0, 6.0), bias: float = 0.0) -> GoalPolicy:
    """Return a policy that gives the middle of the action box plus a bias, for two numbers and a goal."""
    layers = [(np.zeros((3, 1), np.float32), np.full(1, bias, np.float32))]
    actor = NumpyActor(layers, *np.zeros((1, 2)), *np.ones((1, 2)), np.zeros(1), np.ones(1), 5.0)  # type: ignore[arg-type]
    return GoalPolicy("line", actor, None, ends[:1], ends[1:], (1,), with_achieved, success=0.05)


@pytest.mark.parametrize("bias", [-100.0, 0.0, 100.0])
@pytest.mark.parametrize("ends", [(-0.1, 0.1), (-0.7, 0.3), (0.1, 0.3)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_actions_lie_in_the_action_box(dtype: Any, ends: tuple[float, float], bias: float) -> None:
    box = gymnasium.spaces.Box(*ends, (1,), dtype)
    action = policy(False, (float(box.low[0]), float(box.high[0])), bias)([0.0, 1.0], [5.0])
    assert box.contains(action)
    np.testing.assert_allclose(action, box.low + (box.high - box.low) * (1 + np.sign(bias)) / 2, atol=1e-7)


def test_policy_that_uses_the_achieved_goal_needs_the_whole_observation() -> None:
    seen, _ = Elsewhere().reset(seed=0)
    assert policy(True)(seen, [5.0]).tolist() == [2.0]
    with pytest.raises(InputError, match=r"^observation: give the whole observation"):
        policy(True)(seen["observation"], [5.0])
    assert policy(False)([0.0, 1.0], [5.0]).tolist() == [2.0]


def test_missing_entry_of_an_observation_gives_one_line_error() -> None:
    with pytest.raises(InputError, match=r"^observation: must have the entries 'observation' and 'achieved_goal'"):
        policy(False)({"achieved_goal": [0.0]}, [5.0])


def random_policy(with_achieved: bool) -> GoalPolicy:
    """Return a policy with random weights: four numbers and a goal of two in, an action of shape [3, 1] out."""
    rng = np.random.default_rng(0)
    layers = [(rng.normal(size=shape).astype(np.float32), np.zeros(shape[1], np.float32)) for shape in [(6, 8), (8, 3)]]
    moments = [rng.normal(size=4), np.ones(4), rng.normal(size=2), np.ones(2)]
    actor = NumpyActor(layers, *[moment.astype(np.float32) for moment in moments], 5.0)
    return GoalPolicy("line", actor, None, (-1.0,) * 3, (2.0,) * 3, (3, 1), with_achieved, success=0.05)


@pytest.mark.parametrize("n", [1, 5])
def test_batch_equals_single_calls(n: int) -> None:
    rng, act = np.random.default_rng(1), random_policy(False)
    seen, goals = rng.normal(size=(n, 4)), rng.normal(size=(n, 2))
    actions = act(seen, goals)
    assert actions.shape == (n, 3, 1)
    np.testing.assert_allclose(actions, [act(o, g) for o, g in zip(seen, goals, strict=True)], rtol=1e-6)
    np.testing.assert_array_equal(act(seen, goals[0]), act(seen, np.tile(goals[0], (n, 1))), "one goal for all")
    np.testing.assert_array_equal(act(seen[0], goals), act(np.tile(seen[0], (n, 1)), goals), "one observation for all")
    assert act(seen[0], goals[0]).shape == (3, 1)


def test_batch_of_dictionary_observations() -> None:
    """Vector environments return a dictionary of arrays [B, ...]."""
    rng, act = np.random.default_rng(2), random_policy(True)
    parts = {"b": rng.normal(size=(5, 1)), "a": rng.normal(size=(5, 1, 1))}
    whole: dict[str, Any] = {
        "observation": parts,
        "achieved_goal": rng.normal(size=(5, 2)),
        "desired_goal": rng.normal(size=(5, 2)),
    }
    actions = act(whole, whole["desired_goal"])
    for i in range(5):
        one: dict[str, Any] = {"achieved_goal": whole["achieved_goal"][i]}
        one["observation"] = {name: part[i] for name, part in parts.items()}
        np.testing.assert_allclose(actions[i], act(one, whole["desired_goal"][i]), rtol=1e-6)


@pytest.mark.parametrize(
    ("seen", "goal", "line"),
    [
        ((5, 3), (5, 2), r"observation: must be 4 finite numbers, or a batch \[B, 4\]"),
        ((5, 4), (6, 2), r"goal: observations and goals are batches of different sizes, \[5, 6\]"),
        ((5, 4), (2, 3), r"goal: must be 2 finite numbers"),
        ((0, 4), (2,), r"observation: must be 4 finite numbers"),
    ],
)
def test_wrong_batch_shapes_give_one_line_error(seen: tuple[int, ...], goal: tuple[int, ...], line: str) -> None:
    with pytest.raises(InputError, match=f"^{line}"):
        random_policy(False)(np.zeros(seen), np.zeros(goal))


def test_distances_of_a_batch_equal_single_calls(line: TrainResult) -> None:
    seen, goals = np.zeros((3, 1)), np.array([[3.0], [5.0], [9.0]])
    D, E = line.policy.distance(seen, goals), line.policy.uncertainty(seen, goals)
    np.testing.assert_allclose(D, [line.policy.distance([0.0], goal) for goal in goals], rtol=1e-5)
    assert line.policy.critics is not None
    assert line.policy.critics.error_model is not None
    np.testing.assert_array_equal(E, line.policy.critics.error_model.predict(D))


def test_html_of_a_training_result(line: TrainResult) -> None:
    assert repr(line).startswith("<TrainResult of ")
    assert "\n" not in repr(line)
    last = line.curve()[-1]
    assert f">{last['success']:.2f}<" in line._repr_html_()
    assert "<th>goal</th><td>1 numbers</td>" in line.policy._repr_html_()
    assert "&lt;b&gt;" in dataclasses.replace(line.policy, env="<b>")._repr_html_(), "names are text"
    assert line.plot()._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize("run", [-1, 1, 5, "0"])
def test_missing_runs_give_one_line_error(line: TrainResult, run: Any) -> None:
    for function in (line.weights, line.curve, lambda run: line.evaluate(4, run=run)):
        with pytest.raises(InputError, match=r"^run: must be a whole number in 0\.\.0, got "):
            function(run)


def test_rule_without_an_ensemble_has_no_distance() -> None:
    with pytest.raises(InputError, match=r"^distance: is not known"):
        policy(False).distance([0.0, 1.0], [5.0])


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf])
def test_invalid_weights_are_refused(weight: float) -> None:
    with pytest.raises(InputError, match=r"^goal_rule: a rule returns one finite weight >= 0 per goal"):
        adagoal.train("point-mass", lambda known: np.full(len(known.D), weight), **TINY)


def test_rule_error_is_reported_as_user_error() -> None:
    with pytest.raises(EnvironmentFailure, match=r"^goal_rule: the rule raised ZeroDivisionError"):
        adagoal.train("point-mass", lambda known: 1 // 0, **TINY)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"recipe": "none"}, "recipe"),
        ({"seeds": 0}, "seeds"),
        ({"steps": 0.5}, "steps"),
        ({"goal_rule": "nonsense"}, "goal_rule"),
        ({"goal_rule": goal_rules.goid}, "goal_rule"),
        ({"out": 3}, "out"),
        ({"out": ""}, "out"),
    ],
)
def test_wrong_arguments_give_an_error_with_their_name(wrong: dict[str, Any], name: str) -> None:
    with pytest.raises(InputError, match=f"^{name}: "):
        adagoal.train("point-mass", **wrong)


@pytest.mark.parametrize("path", [3, ""])
def test_invalid_path_gives_one_line_error(line: TrainResult, path: Any) -> None:
    for function in (evaluate, load_policy, resume, adagoal.load, line.save):
        with pytest.raises(InputError, match=r"^(folder|path): must be the path of a run's folder, got "):
            function(path)
    with pytest.raises(InputError, match=r"^policy: must be (a folder, MODEL.zip|a function of the observation)"):
        adagoal.certify(path, radius=5)


def test_settings_follow_from_the_time_scale() -> None:
    fetch, maze = (Config("point-mass", steps=400_000).resolve_for_horizon(T) for T in (50, 300))
    names = ("gamma", "radius", "radius_ramp", "episodes", "updates", "eval_every")
    assert [getattr(fetch, name) for name in names] == [0.98, 40.0, None, 16, 400, 25]
    assert [getattr(maze, name) for name in names] == [1 - 1 / 300, 240.0, None, 4, 600, 25]
    given = Config("point-mass", gamma=0.9, radius=7.0, radius_ramp=0, updates=3).resolve_for_horizon(300)
    assert (given.gamma, given.radius, given.radius_ramp, given.updates) == (0.9, 7.0, 0, 3)
    assert Config("point-mass", algorithm="ddpg").resolve_for_horizon(50).updates == 160


def test_importing_adagoal_stays_light() -> None:
    code = "import sys, adagoal; adagoal.train; assert not {'jax', 'mujoco', 'numba'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
